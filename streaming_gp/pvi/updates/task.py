"""What a local update is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from streaming_gp.expfam import ExponentialFamily, Factor

Data = tuple[np.ndarray, np.ndarray]
"""X [N, D] and Y [N, P]."""


class Model(Protocol):
    """What the loop asks of a model: a prior over its parameters θ, and a likelihood.

    Some rules ask for more: ``likelihood_factor(X, Y)`` of a conjugate model, ``expected_loss(q, X,
    Y, seed, loss)`` for robust losses; and ``natural_gradient(q, X, Y, seed)``, a factor, where a
    model knows its own better than differentiation does. ``checks`` are the limits of its honest
    answers, where they are not the default ones.
    """

    def prior(self) -> ExponentialFamily:
        """p(θ)."""
        ...

    def initial(self, seed: int) -> ExponentialFamily:
        """Where a fit starts while q is still the prior; the prior itself, if that serves."""
        ...

    def as_data(self, X: Any, Y: Any) -> Data:
        """Arrays of the right type and shape; raises ``InvalidDataError``."""
        ...

    def expected_log_likelihood(
        self, q: Any, X: tf.Tensor, Y: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor:
        """``Σ_n E_q[log p(y_n | θ)]``, or an unbiased estimate that ``seed`` [2] determines: []."""
        ...


@dataclass(frozen=True, eq=False)
class LocalTask:
    """One question to one client.

    :param model: what gives the likelihood.
    :param data: X [N, D] and Y [N, P].
    :param posterior: q now, of all clients together.
    :param own: what is taken out of q for the cavity; None if nothing is.
    :param start: where an iterative fit starts.
    :param seed: of everything random.
    """

    model: Model
    data: Data
    posterior: ExponentialFamily
    own: Factor | None
    start: ExponentialFamily
    seed: int

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.data[0])

    @cached_property
    def cavity(self) -> Factor:
        """Posterior over own factor, with the constant that normalises it if it is proper.

        A factor and not a distribution: a mean-field cavity may be improper in a few coordinates,
        and a local free energy is still defined there, as its q is proper by construction.
        """
        q = self.posterior.as_factor()
        cavity = q if self.own is None else q / self.own
        shift = -cavity.log_integral() if cavity.is_proper else -cavity.log_scale
        return Factor(cavity.family, cavity.natural, cavity.log_scale + shift)

    def size_of(self, batch_size: int | None) -> int:
        """Rows of a minibatch: all if None, and never more than there are."""
        return self.num_data if batch_size is None else min(batch_size, self.num_data)

    def minibatches(self, batch_size: int | None) -> Iterator[np.ndarray]:
        """Row numbers [B], without end: each epoch goes through all rows in a new order; its last
        minibatch is filled up from the front, so that all have one size.
        """
        rng = np.random.default_rng(self.seed)
        size = self.size_of(batch_size)
        while True:
            order = rng.permutation(self.num_data)
            yield from np.resize(order, (-(-self.num_data // size), size))


@dataclass(frozen=True, eq=False)
class LocalResult:
    """What a local fit arrived at.

    :param factor: the client's new factor, before any damping.
    :param free_energy: local free energy in nats; NaN where the rule has none.
    :param steps: that were made.
    :param skipped: sites that an improper cavity kept as they were, summed over steps.
    """

    factor: Factor
    free_energy: float = float("nan")
    steps: int = 0
    skipped: int = 0


class UpdateRule(Protocol):
    """How a client turns a question into a factor. It may have ``checks``, the limits of its honest
    answers.
    """

    def __call__(self, task: LocalTask, /) -> LocalResult: ...


@runtime_checkable
class Worker(Protocol):
    """A rule that remembers, and goes on between two questions. What it keeps is a cache: one that
    has just begun answers as well.
    """

    def __call__(self, task: LocalTask, /) -> LocalResult: ...

    def meanwhile(self, iterations: int) -> bool:
        """Go on under the newest cavity while a message travels; False if there is nothing to do
        before the next question.
        """
        ...


@runtime_checkable
class ResidentRule(Protocol):
    """A rule whose workers live next to the data, one for each client of a session."""

    def __call__(self, task: LocalTask, /) -> LocalResult: ...

    def worker(self) -> UpdateRule:
        """One that remembers, and knows nothing yet: a ``Worker`` if it never rests."""
        ...


def factor_of(q: ExponentialFamily, cavity: Factor, free_energy: float) -> Factor:
    """``exp(F) q / cavity``, so that the ledger's normalisers add up to the free energy."""
    factor = q.as_factor() / cavity
    scale = float(factor.log_scale) + (free_energy if np.isfinite(free_energy) else 0.0)
    return Factor(factor.family, factor.natural, scale).as_arrays()
