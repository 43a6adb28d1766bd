"""PVI without a server: peers hand the posterior on, and each keeps its own factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import require_fraction, require_positive_integer
from streaming_gp.pvi.client import Client, make_clients
from streaming_gp.pvi.damping import damped
from streaming_gp.pvi.ledger import Posterior
from streaming_gp.pvi.model import Model
from streaming_gp.pvi.server import seed_of
from streaming_gp.pvi.task import LocalTask, UpdateRule


@dataclass(frozen=True, eq=False)
class Baton:
    """All that goes from one peer to the next.

    :param posterior: q of all peers together; the prior at the start.
    :param visits: The number of visits so far.
    """

    posterior: Any
    visits: int = 0


class Peer:
    """A client that owns its factor, where otherwise the server's ledger has it.

    It needs no more than q for its cavity ``q / t_k``, and passes ``q t_k_new / t_k`` on. Nobody
    checks its answers, and a baton that is lost takes with it all but the peers' own factors.

    :param client: The client, with its data and its rule.
    :param damping: The damping ρ in (0, 1] of its factor.
    :param seed: The seed that the seeds of its visits are made from.
    :param number: Its number among all peers, from 0.
    :raises InvalidDataError: if the damping is out of its range.

    :ivar own: Its factor; None before its first visit.
    """

    def __init__(
        self, client: Client, damping: float = 1.0, seed: int = 0, number: int = 0
    ) -> None:
        require_fraction("damping", damping)
        self.client, self.damping, self.seed, self.number = client, damping, seed, number
        self.own: Any | None = None
        self._visits = 0

    def visit(self, baton: Baton) -> Baton:
        """Refine the own factor under the q that came (PVI 2018, algorithm 1).

        :returns: the baton to pass on.
        :raises ImproperError: if the new q is no distribution; the factor is as it was then.
        """
        q = baton.posterior
        task = LocalTask(
            model=None,
            data=None,
            posterior=q,
            own=self.own,
            seed=seed_of(self.seed, self.number, self._visits),
            sequence=self._visits,
            version=baton.visits,
            untouched=baton.visits == 0,
        )
        proposed = self.client.answer(task).factor
        new = damped(self.own, proposed, self.damping).as_arrays()
        after = q.exchanged([] if self.own is None else [self.own], [new]).as_arrays()
        self.own, self._visits = new, self._visits + 1
        return Baton(after, baton.visits + 1)


def make_peers(
    model: Model, shards: Any, update: UpdateRule, damping: float = 1.0, seed: int = 0
) -> list[Peer]:
    """One peer for each shard, as :func:`~streaming_gp.pvi.make_clients` makes clients.

    :param model: The model that all share.
    :param shards: (X, Y) of each peer, in order or by name.
    :param update: The rule by which each of them fits.
    :param damping: The damping ρ in (0, 1] of each factor.
    :param seed: The seed of all random numbers.
    :raises InvalidDataError: if there is no shard, or one that the model cannot take.
    """
    clients = make_clients(model, shards, update, 0)
    return [Peer(each, damping, seed, k) for k, each in enumerate(clients.values())]


def pass_around(prior: Posterior, peers: Sequence[Peer], rounds: int = 1) -> Baton:
    """Hand the baton from peer to peer, round after round, in this process.

    This is :class:`~streaming_gp.pvi.Sequential` PVI without a server: the same q after each visit.

    :param prior: The prior of the model.
    :param peers: The peers in the order of visits; none of them has a factor yet.
    :param rounds: The number of rounds.
    :raises InvalidDataError: if there are no peers, or one has a factor already.
    """
    require_positive_integer("rounds", rounds)
    if not peers or any(peer.own is not None for peer in peers):
        raise InvalidDataError("wanted one or more peers, none of which has a factor yet")
    baton = Baton(prior)
    for _ in range(rounds):
        for peer in peers:
            baton = peer.visit(baton)
    return baton
