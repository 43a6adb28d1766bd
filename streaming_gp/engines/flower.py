"""Clients in other organisations, on the connections of Flower."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from streaming_gp.engines import flower_link as links
from streaming_gp.engines.flower_place import at_work
from streaming_gp.engines.flower_run import begun
from streaming_gp.engines.flower_session import FlowerSession
from streaming_gp.engines.flower_sum_session import FlowerSumSession
from streaming_gp.engines.remote import RESULT, places_of, refuse_missed
from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import require_positive, typed
from streaming_gp.pvi.client import Clients
from streaming_gp.pvi.desk import Desk
from streaming_gp.pvi.sums import Shares, rule_of_sums

PathLike = str | os.PathLike[str]


@typed
@dataclass(frozen=True)
class Flower:
    """Sites beside Flower's SuperNodes, and a coordinator beside its SuperLink.

    Flower carries messages between them, encrypted, and knows each node by its key. Its own way is
    to start a process for every message, with code that the coordinator has sent. Here nothing is
    sent but messages of this package, as bytes: SuperLink and SuperNodes are started with
    ``--isolation process`` and a secret, and this package, in a process that stays, asks them for
    what there is to do. The coordinator runs :func:`~streaming_gp.pvi.fit`; each site runs
    :func:`~streaming_gp.pvi.serve`.

    A question is put again where Flower says that it is lost, until it is answered or overdue.
    Sites whose rule is ``privacy.SummedChanges`` are asked by Flower's SecAgg+, which lets the
    coordinator see nothing but the sum of what they say.

    :param address: The host and port of the SuperLink, for a coordinator, or of the SuperNode on
        the same machine, for a site: where Flower has its runtime interface.
    :param secret: The file with the secret that it was started with.
    :param certificate: The file with the certificate that its own is verified by. None for no TLS,
        which is for a SuperNode on the same machine.
    :param keys: For a coordinator: the file with the public key of each place's SuperNode, by the
        name of the place. Who has another key is not asked.
    :param deadline: The seconds for an answer; None waits for ever.
    :param inbox: The file that a site keeps the newest result in that the coordinator has published
        (``publish``); None refuses them.
    :raises InvalidDataError: if the deadline is not positive.
    """

    address: str
    secret: PathLike
    certificate: PathLike | None = None
    keys: Mapping[str, PathLike] = field(default_factory=dict)
    deadline: float | None = None
    inbox: PathLike | None = None

    def __post_init__(self) -> None:
        if self.deadline is not None:
            require_positive("deadline", self.deadline)

    # ---- the coordinator's end ----

    @contextmanager
    def session(self, clients: Clients) -> Iterator[FlowerSession | FlowerSumSession]:
        """A run of Flower for the time of a ``with`` block.

        :raises InvalidDataError: if Flower is not installed, a file is missing, the SuperLink gives
            no run, a place has no key, or a client is no ``Site``: no data are sent. Also if sites
            that answer within sums do not agree on the terms, or two of them are at one place.
        """
        keys, rule = self._keys_of(places_of(clients)), rule_of_sums(clients)
        if rule is not None and len(set(keys.values())) < len(keys):
            raise InvalidDataError(f"wanted one site at each place in a sum, got {list(clients)}")
        with begun(self._link()) as run:
            if rule is None:
                yield FlowerSession(run, keys, self.deadline)
            else:
                yield FlowerSumSession(run, keys, self.deadline, rule, Shares(clients))

    def publish(self, places: Iterable[str], content: bytes) -> None:
        """Send a result to places, such as the bytes of a file that ``gp.export`` has written.

        :param places: Their names.
        :param content: What each of them finds in its inbox.
        :raises NoAnswerError: if places refuse it, or are not there by the deadline; says which.
        :raises InvalidDataError: as :meth:`session`.
        """
        keys = self._keys_of({name: name for name in places})
        with begun(self._link()) as run:
            session = FlowerSession(run, keys, self.deadline)
            for name in keys:
                session.send(name, RESULT, content)
            replies = [session.reply() for _ in keys]
        refuse_missed({name: objection for name, _, objection in replies if objection})

    def _keys_of(self, places: Mapping[str, str]) -> dict[str, bytes]:
        missing = sorted({place for place in places.values() if place not in self.keys})
        if missing:
            raise InvalidDataError(f"wanted a key of each place, got none of {missing}")
        return {name: links.public_key(self.keys[place]) for name, place in places.items()}

    # ---- a site's end ----

    @contextmanager
    def open(self, desk: Desk) -> Iterator[None]:
        """Answer what comes to the SuperNode, for the time of a ``with`` block.

        :raises InvalidDataError: if Flower is not installed, or a file is missing.
        """
        with at_work(self._link(), desk, self.inbox):
            yield

    def _link(self) -> links.Link:
        certificate = None if self.certificate is None else _read(self.certificate)
        return links.Link(self.address, _read(self.secret), certificate)


def _read(path: PathLike) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidDataError(f"wanted a file, got {path!r}: {error}") from error
