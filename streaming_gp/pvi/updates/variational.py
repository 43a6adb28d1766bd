"""Local variational inference by an off-the-shelf optimiser (PVI 2018, eq. 3 and section 3.2)."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import scipy.optimize
import tensorflow as tf

from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.expfam import KL, Divergence, ExponentialFamily, Factor, MeanFieldNormal
from streaming_gp.expfam.divergences import require_domain
from streaming_gp.inputs import (
    Decay,
    Fraction,
    NotNegativeFinite,
    PositiveFinite,
    PositiveInteger,
    require_strategy,
    typed,
)
from streaming_gp.pvi.model import (
    LikelihoodModel,
    LossModel,
    Model,
    compiled_for,
    factor_tensors,
    require,
)
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule, factor_of

State = tuple[tf.Tensor, ...]
"""The place of q, and then an optimiser's memory of gradients."""
DataTerm = Callable[[Any], tf.Tensor]
"""The expected log-likelihood of a member of the family, or what takes its place."""
Penalty = Callable[[Any], tf.Tensor]
"""Divergence of a member of the family from the cavity."""


# ---- optimisers: they know q, its expected log-likelihood and the cavity ----


@dataclass(frozen=True)
class AdamFormula:
    """``m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²``, and a step of
    ``η √(1 − β₂^t) / (1 − β₁^t) · m / (√v + ε)`` (Kingma & Ba 2015, end of section 2).

    :param learning_rate: The size η of a step, about.
    :param beta1: The decay β₁ of the gradient's mean, in [0, 1).
    :param beta2: The decay β₂ of the gradient's mean square, in [0, 1).
    :param epsilon: The offset ε, which is added to the root of that mean square.
    """

    learning_rate: PositiveFinite = 1e-3
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: PositiveFinite = 1e-8

    def ascent(
        self, gradient: Any, first: Any, second: Any, count: Any
    ) -> tuple[Any, tuple[Any, Any, Any]]:
        """One step uphill, of arrays or of tensors.

        :param gradient: The gradient g, of any shape.
        :param first: The mean m before the step; zeros at first.
        :param second: The mean square v before the step; zeros at first.
        :param count: The number of steps made before this one, a scalar.
        :returns: the step, and ``(m, v, t)`` after it.
        """
        count = count + 1.0
        first = self.beta1 * first + (1.0 - self.beta1) * gradient
        second = self.beta2 * second + (1.0 - self.beta2) * gradient**2
        bias = (1.0 - self.beta2**count) ** 0.5 / (1.0 - self.beta1**count)
        step = self.learning_rate * bias * first / (second**0.5 + self.epsilon)
        return step, (first, second, count)


class StochasticOptimiser(abc.ABC):
    """A step of it sees one minibatch, and is compiled as a whole: a frozen dataclass.

    :cvar num_places: How many entries of a state place q.
    """

    num_places: ClassVar[int] = 1

    @abc.abstractmethod
    def begin(self, q: Any) -> State:
        """Its state at q, without a memory."""

    def resume(self, state: State, q: Any) -> State:
        """Its state at q, with what an earlier state remembers of gradients."""
        return *self.begin(q)[: self.num_places], *state[self.num_places :]

    @abc.abstractmethod
    def step(
        self, family: Any, state: State, data_term: DataTerm, penalty: Penalty, cavity: Factor
    ) -> tuple[State, tf.Tensor]:
        """The next state, and the free energy at the present one."""

    @abc.abstractmethod
    def member(self, family: Any, state: State) -> Any:
        """q at a state."""


class GradientOptimiser(StochasticOptimiser):
    """Goes uphill in real numbers: the unconstrained ones of q, or a point [D]."""

    @abc.abstractmethod
    def begin_at(self, numbers: tf.Tensor) -> State:
        """Its state at these numbers, which come first in it."""

    @abc.abstractmethod
    def ascend(self, state: State, gradient: tf.Tensor) -> State:
        """The next state."""

    def begin(self, q: Any) -> State:
        return self.begin_at(tf.convert_to_tensor(q.unconstrained()))

    def step(
        self, family: Any, state: State, data_term: DataTerm, penalty: Penalty, cavity: Factor
    ) -> tuple[State, tf.Tensor]:
        free_energy, gradient = value_and_gradient(family, state[0], data_term, penalty)
        return self.ascend(state, gradient), free_energy

    def member(self, family: Any, state: State) -> Any:
        return family.from_unconstrained(state[0])


@typed
@dataclass(frozen=True)
class Adam(AdamFormula, GradientOptimiser):
    """Adam (Kingma & Ba 2015) on the unconstrained numbers of q.

    :param learning_rate: The size of a step, about.
    :param beta1: The decay of the gradient's mean, in [0, 1).
    :param beta2: The decay of the gradient's mean square, in [0, 1).
    :param epsilon: What is added to the root of that mean square.
    """

    learning_rate: PositiveFinite = 2e-3

    def begin_at(self, numbers: tf.Tensor) -> State:
        zeros = tf.zeros_like(numbers)
        return numbers, zeros, zeros, tf.zeros([], numbers.dtype)

    def ascend(self, state: State, gradient: tf.Tensor) -> State:
        numbers, *moments = state
        step, after = self.ascent(gradient, *moments)
        return numbers + step, *after


@typed
@dataclass(frozen=True)
class SGD(GradientOptimiser):
    """Gradient descent with momentum on the unconstrained numbers of q: v ← β v + g, a step of η v.

    :param learning_rate: The rate η. The free energy is a sum over rows, and so is its gradient g:
        what is 0.1 for the mean over N rows is 0.1 / N here.
    :param momentum: The decay β of the velocity v, in [0, 1).
    :raises InvalidDataError: if a number is out of its range.
    """

    learning_rate: PositiveFinite = 1e-5
    momentum: Decay = 0.9

    def begin_at(self, numbers: tf.Tensor) -> State:
        return numbers, tf.zeros_like(numbers)

    def ascend(self, state: State, gradient: tf.Tensor) -> State:
        numbers, velocity = state
        velocity = self.momentum * velocity + gradient
        return numbers + self.learning_rate * velocity, velocity


@typed
@dataclass(frozen=True)
class VariationalOnlineNewton(StochasticOptimiser):
    """Natural-gradient steps on mean and precision, with momentum (Khan et al. 2018).

    The precision moves by ``Λ + Δ + Δ²/(2Λ)``, which is positive whatever Δ (Lin, Schmidt & Khan
    2020). For mean-field Gaussians, and for the Kullback-Leibler divergence only.

    :param learning_rate: The rate ρ of the mean, as a share of a Newton step.
    :param precision_rate: The share of the way by which the precision moves to what the minibatch
        says.
    :param momentum: The decay β of the mean's gradient.
    """

    learning_rate: PositiveFinite = 0.02
    precision_rate: Fraction = 0.02
    momentum: Decay = 0.9
    num_places: ClassVar[int] = 2

    def begin(self, q: Any) -> State:
        if not isinstance(q, MeanFieldNormal):
            raise InvalidDataError(
                f"VariationalOnlineNewton is for mean-field Gaussians, not for {type(q).__name__}"
            )
        mean, precision = tf.convert_to_tensor(q.mean), tf.convert_to_tensor(q.precision)
        return mean, precision, tf.zeros_like(mean)

    def step(
        self, family: Any, state: State, data_term: DataTerm, penalty: Penalty, cavity: Factor
    ) -> tuple[State, tf.Tensor]:
        mean, precision, velocity = state
        q = self.member(family, state)
        expected, by_mean, by_variance = q.by_moments(data_term)
        free_energy = expected - penalty(q)
        cavity_precision_mean, cavity_precision = cavity.natural
        ascent = by_mean + cavity_precision_mean - cavity_precision * mean
        velocity = self.momentum * velocity + ascent
        target = cavity_precision - 2.0 * by_variance
        change = self.precision_rate * (target - precision)
        precision = precision + change + 0.5 * tf.square(change) / precision
        mean = mean + self.learning_rate * velocity / precision
        return (mean, precision, velocity), free_energy

    def member(self, family: Any, state: State) -> Any:
        mean, precision = state[:2]
        return family(precision * mean, precision)


@typed
@dataclass(frozen=True)
class LBFGS:
    """SciPy's L-BFGS on the unconstrained numbers of q, over all data at once.

    :param max_iterations: The largest number of iterations.
    :param tolerance: The size of the gradient's largest entry, per data point, at which it stops.
    """

    max_iterations: PositiveInteger = 200
    tolerance: NotNegativeFinite = 1e-9

    def maximise(
        self, value_and_gradient: Callable[[tf.Tensor], Any], start: Any
    ) -> tuple[ExponentialFamily, float, int]:
        """q at the maximum, the value there, and iterations made.

        Where a line search ends on what is not finite, the best value that it has seen counts.

        :param value_and_gradient: The function that maps unconstrained numbers to the free
            energy per data point and its gradient.
        :raises NumericalError: if the free energy or its gradient is not finite at the start.
        """
        first = np.asarray(start.unconstrained())
        numbers = first.astype(np.float64)  # as SciPy wants them

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = value_and_gradient(tf.constant(flat.reshape(numbers.shape)))
            if best[0] < float(value) < np.inf:
                best[:] = float(value), flat.copy()
            return -float(value), -np.ravel(gradient.numpy()).astype(np.float64)

        best: list[Any] = [-np.inf, None]
        if not all(np.isfinite(part).all() for part in loss(np.ravel(numbers))):
            raise NumericalError(
                "the local free energy or its gradient is not finite where the fit starts"
            )
        options = {"maxiter": self.max_iterations, "gtol": self.tolerance, "ftol": 0.0}
        fit = scipy.optimize.minimize(
            loss, np.ravel(numbers), jac=True, method="L-BFGS-B", options=options
        )
        value, place = (-float(fit.fun), fit.x) if np.isfinite(fit.fun) else best
        q = type(start).from_unconstrained(place.reshape(numbers.shape).astype(first.dtype))
        return q.as_arrays(), value, int(fit.nit)


def value_and_gradient(
    family: Any, numbers: tf.Tensor, data_term: DataTerm, penalty: Penalty
) -> tuple[tf.Tensor, tf.Tensor]:
    """The free energy of the member of these unconstrained numbers, and its gradient by them."""
    with tf.GradientTape() as tape:
        tape.watch(numbers)
        q = family.from_unconstrained(numbers)
        free_energy = data_term(q) - penalty(q)
    return free_energy, tape.gradient(free_energy, numbers)


# ---- the rule ----

STEPS_AT_ONCE = 10
"""So many run as one compiled loop: for small networks a call costs more than a step."""

ExpectedLogLikelihood = Callable[..., tf.Tensor]
"""``E_q[log p(Y | θ, X)]`` as a function of (q, X, Y, seed), in nats: a scalar."""


def expected_log_likelihood_of(model: Model, loss: Any) -> ExpectedLogLikelihood:
    """The model's expected log-likelihood, or minus the expected loss.

    :param loss: A loss of :mod:`streaming_gp.losses`; None for ``−log p(y | θ)``.
    """
    if loss is None:
        own: LikelihoodModel = require(model, LikelihoodModel, "this update")
        return lambda q, X, Y, seed: own.expected_log_likelihood(q, X, Y, seed)
    expected: LossModel = require(model, LossModel, "a loss other than its own")
    return lambda q, X, Y, seed: -expected.expected_loss(q, X, Y, seed, loss)


def require_objective(loss: Any, divergence: Any) -> None:
    """Refuse what is no loss, or no divergence."""
    if loss is not None:
        require_strategy("loss", loss, Callable, "losses.BetaLoss(1.5)")
    require_strategy("divergence", divergence, Divergence, "expfam.KL()")


@typed
@dataclass(frozen=True)
class Plateau:
    """The expected log-likelihood has not changed in several epochs (PGVI, section 5.2).

    A client that stops there does not go on to prune weights that the data have explained already.

    :param patience: The number of successive epochs without a change.
    :param tolerance: The difference between two epochs, in nats for each datum, that still is none.
    :raises InvalidDataError: if the patience is not positive, or the tolerance negative.
    """

    patience: PositiveInteger = 3
    tolerance: NotNegativeFinite = 1e-3

    def is_reached(self, values: Sequence[float]) -> bool:
        """Whether a fit is over.

        :param values: The expected log-likelihood of a datum, in each epoch so far.
        """
        changes = np.abs(np.diff(values))[-self.patience :]
        return len(changes) == self.patience and bool(np.all(changes <= self.tolerance))


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

    >>> update = sgp.pvi.VariationalUpdate(epochs=2, batch_size=5, learning_rate=0.01)
    >>> server = sgp.pvi.run(line, shards, rounds=1, update=update)
    """

    epochs: PositiveInteger = 1
    batch_size: PositiveInteger | None = 200
    learning_rate: PositiveFinite = 2e-3
    optimiser: StochasticOptimiser | LBFGS | None = None
    divergence: Divergence = field(default_factory=KL)
    loss: Any = None
    stopping: Plateau | None = None
    stateful: bool = False

    def __post_init__(self) -> None:
        require_objective(self.loss, self.divergence)
        if self.optimiser is not None:
            kinds = StochasticOptimiser | LBFGS
            require_strategy("optimiser", self.optimiser, kinds, "pvi.Adam()")
        if self.stopping is not None:
            require_strategy("stopping", self.stopping, Plateau, "pvi.Plateau()")
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
        q, free_energy, steps = self.fit(task)
        return LocalResult(factor_of(q, task.cavity, free_energy), free_energy, steps)

    def worker(self) -> UpdateRule:
        """The rule for one client: with a memory if it is stateful."""
        return VariationalWorker(self) if self.stateful else self

    def fit(self, task: LocalTask) -> tuple[ExponentialFamily, float, int]:
        """q, its free energy (over stochastic steps the mean of the last epoch), and steps made.

        :raises ImproperError: if the divergence is not defined between q and the cavity.
        """
        if isinstance(self.optimiser, LBFGS):
            return self._by_lbfgs(self.optimiser, task)
        return self.by_steps(task)[1:]

    @property
    def stochastic_optimiser(self) -> StochasticOptimiser:
        """The optimiser of minibatches; Adam at the rule's learning rate where none is given."""
        assert not isinstance(self.optimiser, LBFGS)
        return self.optimiser or Adam(self.learning_rate)

    def by_steps(
        self, task: LocalTask, memory: State | None = None
    ) -> tuple[State, ExponentialFamily, float, int]:
        """The optimiser's state after a visit, and what ``fit`` says.

        :param memory: Its state after the visit before; None if it begins anew.
        """
        require_domain(self.divergence, task.start, task.cavity)
        optimiser = self.stochastic_optimiser
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
        state = optimiser.begin(start) if memory is None else optimiser.resume(memory, start)
        batches, a_pass = task.minibatches(self.batch_size), -(-task.num_data // size)
        at_once = STEPS_AT_ONCE if jit else 1
        scale = tf.constant(task.num_data / size, cavity[1].dtype)
        per_datum: list[float] = []
        for epoch in range(self.epochs):
            total = np.zeros(2)
            for first in range(0, a_pass, at_once):
                group = [*islice(batches, min(at_once, a_pass - first))]
                rows = np.resize(group, (at_once, size))  # the last is filled up, to have one size
                seed = np.array([task.seed, epoch * a_pass + first], np.int32)
                number = np.array(len(group), np.int32)
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
        objective = compiled_for(
            task.model,
            ("objective", self.divergence, self.loss),
            lambda model: _compiled_objective(
                expected_log_likelihood_of(model, self.loss), self.divergence
            ),
        )
        (X, Y), seed = task.data, np.array([task.seed, 0], np.int32)
        family, size, cavity = type(task.posterior), task.num_data, factor_tensors(task.cavity)

        def per_datum(numbers: tf.Tensor) -> tuple[float, tf.Tensor]:
            numbers = tf.cast(numbers, cavity[1].dtype)
            value, gradient = objective(family, numbers, cavity, X, Y, seed)
            return float(value) / size, gradient / size

        q, value, steps = optimiser.maximise(per_datum, task.start)
        return q, size * value, steps


class VariationalWorker:
    """Lives next to one client's data. All that it keeps is what its optimiser remembers."""

    def __init__(self, rule: VariationalUpdate) -> None:
        self._rule = rule
        self._memory: State | None = None

    def __call__(self, task: LocalTask) -> LocalResult:
        state, q, free_energy, steps = self._rule.by_steps(task, self._memory)
        is_finite = all(np.isfinite(part).all() for part in state)
        self._memory = state if is_finite else None
        return LocalResult(factor_of(q, task.cavity, free_energy), free_energy, steps)


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

    @tf.function(autograph=False, jit_compile=jit, reduce_retracing=not jit)
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


def _compiled_objective(
    expected: ExpectedLogLikelihood, divergence: Divergence
) -> Callable[..., Any]:
    """Free energy and its gradient by unconstrained numbers."""

    @tf.function(autograph=False, reduce_retracing=True)
    def objective(family: Any, numbers: Any, given: Any, X: Any, Y: Any, seed: Any) -> Any:
        return value_and_gradient(
            family,
            numbers,
            lambda q: expected(q, X, Y, seed),
            lambda q: divergence(q, Factor(family, *given)),
        )

    return objective
