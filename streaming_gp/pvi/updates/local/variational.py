"""Local variational inference by an off-the-shelf optimiser (PVI 2018, eq. 3 and section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import KL, Divergence, ExponentialFamily, Factor
from streaming_gp.expfam.divergences import require_domain
from streaming_gp.inputs import typed
from streaming_gp.pvi.compiled import compiled_for, factor_tensors
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule, factor_of
from streaming_gp.pvi.updates.local.expected_log_likelihood import (
    ExpectedLogLikelihood,
    expected_log_likelihood_of,
)
from streaming_gp.pvi.updates.local.optimisers import (
    LBFGS,
    Adam,
    State,
    StochasticOptimiser,
    VariationalOnlineNewton,
)
from streaming_gp.pvi.updates.local.plateau import Plateau

STEPS_AT_ONCE = 10
"""So many run as one compiled loop: for small networks a call costs more than a step."""


@typed
@dataclass(frozen=True)
class VariationalUpdate:
    """Maximise ``F = E_q[log p(y | θ)] − KL(q ‖ cavity)``; the factor is q over the cavity.

    The fit starts from the server's q, or from the model's own start while q is still the prior.

    :param epochs: The number of passes over the client's data in one visit.
    :param batch_size: The number of rows of a minibatch (section 3.4.1); all if None.
    :param learning_rate: The learning rate of Adam, where ``optimiser`` is not given.
    :param optimiser: The optimiser: ``Adam``, ``SGD``, ``VariationalOnlineNewton`` or ``LBFGS``,
        which wants all data.
    :param divergence: The divergence in the place of ``KL(q ‖ cavity)`` (generalised PVI: PGVI, eq.
        4.5).
    :param loss: The loss in the place of ``−log p(y | θ)``, for models with ``expected_loss``.
    :param stopping: When a visit ends before its last epoch; never if None.
    :param stateful: Whether a client's optimiser remembers at its next visit what it knew of
        gradients, for as long as one call of ``pvi.fit`` lasts; not within a rule that wraps this
        one. Adam that begins anew divides the first gradients of each visit by about their own
        size, and follows their signs, whose mean is zero elsewhere than theirs: after visits of
        few steps rounds end at another posterior than the optimum.
    :raises InvalidDataError: if epochs or the minibatch are not positive, L-BFGS is to see
        minibatches, to be stopped or to be stateful, or the online Newton method to take another
        divergence than KL.
    """

    epochs: int = 1
    batch_size: int | None = 200
    learning_rate: float = 2e-3
    optimiser: StochasticOptimiser | LBFGS | None = None
    divergence: Divergence = field(default_factory=KL)
    loss: Any = None
    stopping: Plateau | None = None
    stateful: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise InvalidDataError(
                f"epochs and batch_size must be positive, got {self.epochs} and {self.batch_size}"
            )
        if isinstance(self.optimiser, LBFGS) and self.batch_size is not None:
            raise InvalidDataError("LBFGS sees all data at once: batch_size must be None")
        if isinstance(self.optimiser, LBFGS) and self.stopping is not None:
            raise InvalidDataError("LBFGS knows when to stop: stopping must be None")
        if isinstance(self.optimiser, LBFGS) and self.stateful:
            raise InvalidDataError("LBFGS begins anew with each visit: stateful must be False")
        newton = isinstance(self.optimiser, VariationalOnlineNewton)
        if newton and self.divergence != KL():
            raise InvalidDataError("VariationalOnlineNewton is for the KL divergence only")

    def __call__(self, task: LocalTask) -> LocalResult:
        return _result(task, *self.fitted(task))

    @property
    def optimiser_or_adam(self) -> StochasticOptimiser | LBFGS:
        """The optimiser; Adam at the rule's learning rate, where none is given."""
        return self.optimiser or Adam(self.learning_rate)

    def worker(self) -> UpdateRule:
        """The rule for one client: with a memory if it is stateful."""
        return VariationalWorker(self) if self.stateful else self

    def fitted(self, task: LocalTask) -> tuple[ExponentialFamily, float, int]:
        """q, its free energy (over stochastic steps the mean of the last epoch), and steps made."""
        optimiser = self.optimiser_or_adam
        if isinstance(optimiser, LBFGS):
            return self._by_lbfgs(optimiser, task)
        return self.by_steps(optimiser, task)[1:]

    def by_steps(
        self, optimiser: StochasticOptimiser, task: LocalTask, memory: State | None = None
    ) -> tuple[State, ExponentialFamily, float, int]:
        """The optimiser's state after a visit, and what ``fitted`` says.

        :param memory: Its state after the visit before; None if it begins anew.
        :raises ImproperError: if the divergence is not defined between q and the cavity.
        """
        require_domain(self.divergence, task.start, task.cavity)
        jit = self.batch_size is not None  # XLA wants shapes that do not change
        steps = compiled_for(
            task.model,
            (optimiser, self.divergence, self.loss, jit),
            lambda model: _compiled_steps(
                expected_log_likelihood_of(model, self.loss), optimiser, self.divergence, jit
            ),
        )
        family, (X, Y), cavity = type(task.posterior), task.data, factor_tensors(task.cavity)
        start, size = task.start, task.size_of(self.batch_size)
        state = optimiser.begin(start) if memory is None else optimiser.resumed(memory, start)
        batches, a_pass = task.minibatches(self.batch_size), -(-task.num_data // size)
        at_once = STEPS_AT_ONCE if jit else 1
        scale = tf.constant(task.num_data / size, cavity[1].dtype)
        per_datum: list[float] = []
        for epoch in range(self.epochs):
            total = np.zeros(2)
            for first, rows, number in _groups(islice(batches, a_pass), at_once):
                seed = np.array([task.seed, epoch * a_pass + first], np.int32)
                state, sums = steps(family, state, cavity, X[rows], Y[rows], seed, scale, number)
                total += sums
            free_energy, expected = total / a_pass
            per_datum.append(expected / task.num_data)
            if self.stopping is not None and self.stopping.is_reached(per_datum):
                break
        q = optimiser.member(family, state).as_arrays()
        return state, q, float(free_energy), len(per_datum) * a_pass

    def _by_lbfgs(self, optimiser: LBFGS, task: LocalTask) -> tuple[ExponentialFamily, float, int]:
        """The free energy is made deterministic by one seed for all iterations."""
        require_domain(self.divergence, task.start, task.cavity)
        value_and_gradient = compiled_for(
            task.model,
            ("objective", self.divergence, self.loss),
            lambda model: _objective(expected_log_likelihood_of(model, self.loss), self.divergence),
        )
        X, Y = task.data
        seed = np.array([task.seed, 0], np.int32)
        family, size, cavity = type(task.posterior), task.num_data, factor_tensors(task.cavity)

        def per_datum(numbers: tf.Tensor) -> tuple[float, tf.Tensor]:
            numbers = tf.cast(numbers, cavity[1].dtype)
            value, gradient = value_and_gradient(family, numbers, cavity, X, Y, seed)
            return float(value) / size, gradient / size

        q, value, steps = optimiser.maximise(per_datum, task.start)
        return q, size * value, steps


class VariationalWorker:
    """Lives next to one client's data. All that it keeps is what its optimiser remembers."""

    def __init__(self, rule: VariationalUpdate) -> None:
        self._rule = rule
        self._optimiser: Any = rule.optimiser_or_adam
        self._memory: State | None = None

    def __call__(self, task: LocalTask) -> LocalResult:
        state, q, free_energy, steps = self._rule.by_steps(self._optimiser, task, self._memory)
        lost = not all(np.isfinite(part).all() for part in state)
        self._memory = None if lost else state
        return _result(task, q, free_energy, steps)


def _result(task: LocalTask, q: ExponentialFamily, free_energy: float, steps: int) -> LocalResult:
    return LocalResult(factor_of(q, task.cavity, free_energy), free_energy, steps)


def _groups(
    batches: Iterator[np.ndarray], at_once: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Minibatches in groups: the number of the first, the rows of all [K, B], and how many they
    are; the last group is filled up, so that all have one size.
    """
    for first in count(0, at_once):
        rows = [*islice(batches, at_once)]
        if not rows:
            return
        yield first, np.resize(rows, (at_once, len(rows[0]))), np.array(len(rows), np.int32)


def _compiled_steps(
    expected: ExpectedLogLikelihood,
    optimiser: StochasticOptimiser,
    divergence: Divergence,
    jit: bool,
) -> Callable[..., Any]:
    """Steps of the optimiser, one for each minibatch, as one compiled function: its last state, and
    [2] sums of the free energies before the steps, and of what in them is expected log-likelihood.

    Of minibatches X [K, B, ...] and Y [K, B, ...] only the first ``number`` are seen.
    """

    @tf.function(jit_compile=jit, reduce_retracing=not jit)
    def steps(
        family: Any, state: Any, given: Any, X: Any, Y: Any, seed: Any, scale: Any, number: Any
    ) -> Any:
        cavity = Factor(family, *given)

        def penalty(q: Any) -> tf.Tensor:
            return divergence(q, cavity)

        def step(i: tf.Tensor, state: Any, sums: tf.Tensor) -> Any:
            def data_term(q: Any) -> tf.Tensor:
                return scale * expected(q, X[i], Y[i], tf.stack([seed[0], seed[1] + i]))

            before = penalty(optimiser.member(family, state))
            state, free_energy = optimiser.step(family, state, data_term, penalty, cavity)
            return i + 1, state, sums + tf.stack([free_energy, free_energy + before])

        start = (tf.constant(0), state, tf.zeros([2], scale.dtype))
        return tf.while_loop(lambda i, *_: i < number, step, start)[1:]

    return steps


def _objective(expected: ExpectedLogLikelihood, divergence: Divergence) -> Callable[..., Any]:
    """Free energy and its gradient by unconstrained numbers."""

    @tf.function(reduce_retracing=True)
    def compiled(family: Any, numbers: Any, given: Any, X: Any, Y: Any, seed: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(numbers)
            q = family.from_unconstrained(numbers)
            free_energy = expected(q, X, Y, seed) - divergence(q, Factor(family, *given))
        return free_energy, tape.gradient(free_energy, numbers)

    return compiled
