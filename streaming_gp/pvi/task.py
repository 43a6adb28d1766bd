"""What a local update is given, what it gives back, and what it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streaming_gp.expfam import ExponentialFamily, Factor
from streaming_gp.pvi.model import Data, Model
from streaming_gp.serialization import storable

__all__ = [
    "Data",
    "Discreet",
    "HasDamping",
    "LocalResult",
    "LocalTask",
    "ResidentRule",
    "UpdateRule",
    "WantsPrior",
    "Worker",
    "factor_of",
]


@dataclass(frozen=True, eq=False)
class LocalTask:
    """One question to one client, with the client's own data.

    :param model: The model that gives the likelihood.
    :param data: Inputs X [N, D] and observations Y [N, P].
    :param posterior: q now, of all clients together.
    :param own: The part of q that is taken out for the cavity; None if nothing is.
    :param start: The member of q's family at which an iterative fit starts.
    :param seed: The seed of all random numbers of the fit.
    :param given_prior: The server's prior, where it is another one than the model's.
    :param client_id: The name of the client.
    :param sequence: The number of questions to this client before, as the server counts them.
    """

    model: Model
    data: Data
    posterior: Any
    own: Any | None
    start: Any
    seed: int
    given_prior: Any | None = None
    client_id: str = ""
    sequence: int = 0

    @property
    def prior(self) -> Any:
        """The prior that is a part of q."""
        return self.model.prior() if self.given_prior is None else self.given_prior

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.data[0])

    @cached_property
    def cavity(self) -> Any:
        """The posterior without the client's own part; for an exponential family a ``Factor``.

        :raises ImproperError: if the family's cavities must be proper and this one is not.
        """
        return self.posterior.cavity(self.own)

    def size_of(self, batch_size: int | None) -> int:
        """The number of rows of a minibatch: all if None, and never more than there are."""
        return self.num_data if batch_size is None else min(batch_size, self.num_data)

    def minibatches(self, batch_size: int | None) -> Iterator[np.ndarray]:
        """Row numbers [B], without end.

        Each epoch goes through all rows in a new order; its last minibatch is filled up from the
        front, so that all have one size.
        """
        rng = np.random.default_rng(self.seed)
        size = self.size_of(batch_size)
        while True:
            order = rng.permutation(self.num_data)
            yield from np.resize(order, (-(-self.num_data // size), size))


EPSILON = "epsilon"
"""The diagnostic by which a private rule says what its client has spent so far."""


@storable
@dataclass(frozen=True, eq=False)
class LocalResult:
    """What a local fit arrived at.

    :param factor: The client's new factor, before any damping.
    :param free_energy: The local free energy in nats; NaN where the rule has none.
    :param steps: The number of steps that were made.
    :param skipped: The number of sites that an improper cavity kept as they were, summed over
        steps.
    :param diagnostics: Further numbers that the rule reports, by name.
    """

    factor: Any
    free_energy: float = float("nan")
    steps: int = 0
    skipped: int = 0
    diagnostics: Mapping[str, float] = field(default_factory=dict)


@runtime_checkable
class UpdateRule(Protocol):
    """How a client turns a question into a factor: a frozen dataclass that is called.

    A rule that knows the limits of its honest answers has ``checks`` as well
    (:class:`~streaming_gp.pvi.HasChecks`).
    """

    def __call__(self, task: LocalTask, /) -> LocalResult:
        """Fit the task's data under its cavity.

        :raises InvalidDataError: if the model lacks what the rule asks for.
        """
        ...


@runtime_checkable
class Worker(Protocol):
    """A rule at work in one client, which goes on between two questions.

    What it keeps is a cache: a worker that has just begun answers as well.
    """

    def __call__(self, task: LocalTask, /) -> LocalResult: ...

    def advance(self, iterations: int) -> bool:
        """Go on without a question, under the newest cavity.

        :param iterations: The number of iterations to make.
        :returns: whether there is something to go on with before the next question.
        """
        ...


@runtime_checkable
class ResidentRule(Protocol):
    """A rule whose workers live next to the data, one for each client of a session."""

    def __call__(self, task: LocalTask, /) -> LocalResult: ...

    def worker(self) -> UpdateRule:
        """A rule that remembers, and knows nothing yet: a ``Worker`` if it is continuous."""
        ...


@runtime_checkable
class HasDamping(Protocol):
    """A rule that knows how its answers are to be damped, where the schedule does not say."""

    @property
    def server_damping(self) -> float | None:
        """ρ in (0, 1]: 1 if the rule has damped them already; None if it does not know."""
        ...


@runtime_checkable
class WantsPrior(Protocol):
    """A rule that divides by the prior of the server, which is told where it is not the model's."""

    @property
    def wants_prior(self) -> bool:
        """Whether it does."""
        ...


@runtime_checkable
class Discreet(Protocol):
    """A rule whose answers tell of the data what it says itself, and nothing beside it."""

    @property
    def is_discreet(self) -> bool:
        """Whether the client holds back how many rows it has, and what else is not the rule's."""
        ...


def told_prior(client: Any, prior: Any) -> Any | None:
    """What a rule that divides by the prior has to be told: nothing if it is the model's.

    :param client: A client or a site.
    :param prior: The prior of the server.
    """
    if not (isinstance(client.update, WantsPrior) and client.update.wants_prior):
        return None
    pairs = zip(client.model.prior().natural, prior.natural, strict=True)
    return None if all(np.array_equal(a, b) for a, b in pairs) else prior


def factor_of(q: ExponentialFamily, cavity: Factor, free_energy: float) -> Factor:
    """``exp(F) q / cavity``, so that the ledger's normalisers add up to the free energy.

    :param free_energy: The local free energy F in nats; one that is not finite counts as zero.
    """
    factor = q.as_factor() / cavity
    scale = float(factor.log_scale) + (free_energy if np.isfinite(free_energy) else 0.0)
    return Factor(factor.family, factor.natural, scale).as_arrays()
