"""A site: a client known by name, whose data are read where they are and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import as_name, require_count, require_positive_integer
from streaming_gp.pvi.client import Client
from streaming_gp.pvi.model import Data, Model
from streaming_gp.pvi.task import UpdateRule

Load = Callable[[], tuple[Any, Any]]
"""Reads the data: X [N, D] and Y [N, P]."""


@dataclass(frozen=True, eq=False)
class Site:
    """A client that server and engine know by name, by what it can do, and by how much it holds.

    Its data are read when it is first asked, by the process that answers: a Ray actor, or the
    program that an organisation runs behind its own door. No other process reads a row of them.

    :param client_id: The name of its factor.
    :param model: The model that gives the likelihood.
    :param update: The rule by which it answers.
    :param num_data: The number of data points that it speaks for, by which its answers are checked.
    :param load: Reads X [N, D] and Y [N, P]; None where the data are elsewhere.
    :param seed: The seed of the start of the very first fit, the same for all clients of one model.
    :param place: The name, in its certificate, of the place where it is; that of its factor if
        None. A place may hold several sites, such as one for each batch of a stream.
    :raises InvalidDataError: if a name is no text, or the number of data points no positive one.
    """

    client_id: str
    model: Model
    update: UpdateRule
    num_data: int
    load: Load | None = None
    seed: int = 0
    place: str | None = None

    def __post_init__(self) -> None:
        as_name("a site's name", self.client_id)
        require_positive_integer("num_data", self.num_data)
        require_count("seed", self.seed)
        if self.place is not None:
            as_name("a place's name", self.place)

    def at_work(self) -> Client:
        """The client with its data, and with a worker of its own where its rule has workers.

        :raises InvalidDataError: if the data cannot be read here, are none that the model takes,
            or are not as many as the site says.
        """
        data = self._data()
        return Client(self.client_id, self.model, data, self.update, self.seed).at_work()

    def _data(self) -> Data:
        if self.load is None:
            raise InvalidDataError(f"site {self.client_id!r} has no loader: its data are elsewhere")
        try:
            X, Y = self.model.as_data(*self.load())
        except InvalidDataError as error:
            raise InvalidDataError(f"the data of site {self.client_id!r}: {error}") from error
        if len(X) != self.num_data:
            raise InvalidDataError(
                f"site {self.client_id!r} has {len(X)} data points, but says {self.num_data}"
            )
        return X, Y


Clients = Mapping[str, Client | Site]
"""Clients by name, with their data or by name alone."""


def by_name(clients: Clients | Iterable[Client | Site]) -> dict[str, Client | Site]:
    """Clients by the names of their factors, in order.

    :param clients: By name already, or one after another.
    :raises InvalidDataError: if there are none, or two of one name.
    """
    if isinstance(clients, Mapping):
        found = dict(clients)
    else:
        together = list(clients)
        found = {one.client_id: one for one in together}
        if len(found) < len(together):
            raise InvalidDataError(f"two clients of one name, among {list(found)}")
    if not found:
        raise InvalidDataError("no clients: a server needs at least one")
    return found
