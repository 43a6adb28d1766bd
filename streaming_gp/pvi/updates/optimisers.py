"""Optimisers of a local free energy: they know q, its expected log likelihood and the cavity."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.optimize
import tensorflow as tf

from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.expfam import ExponentialFamily, Factor, MeanFieldNormal
from streaming_gp.inputs import Decay, Positive, typed

State = tuple[tf.Tensor, ...]
"""The place of q, and then an optimiser's memory of gradients."""
DataTerm = Callable[[Any], tf.Tensor]
"""The expected log-likelihood of a member of the family, or what takes its place."""
Penalty = Callable[[Any], tf.Tensor]
"""Divergence of a member of the family from the cavity."""


@dataclass(frozen=True)
class AdamFormula:
    """``m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²``, and a step of
    ``η √(1 − β₂^t) / (1 − β₁^t) · m / (√v + ε)`` (Kingma & Ba 2015, end of section 2).

    :param learning_rate: The size η of a step, about.
    :param beta1: The decay β₁ of the gradient's mean, in [0, 1).
    :param beta2: The decay β₂ of the gradient's mean square, in [0, 1).
    :param epsilon: The offset ε, which is added to the root of that mean square.
    """

    learning_rate: Positive = 1e-3
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    epsilon: float = 1e-8

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

    learning_rate: Positive = 2e-3

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

    learning_rate: Positive = 1e-5
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

    learning_rate: float = 0.02
    precision_rate: float = 0.02
    momentum: float = 0.9
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

    max_iterations: int = 200
    tolerance: float = 1e-9

    def maximise(
        self, value_and_gradient: Callable[[tf.Tensor], Any], start: Any
    ) -> tuple[ExponentialFamily, float, int]:
        """q at the maximum, the value there, and iterations made.

        Where a line search ends on what is not finite, the best value that it has seen counts.

        :param value_and_gradient: The function that maps unconstrained numbers to the free
            energy per data point and its gradient.
        :raises NumericalError: if the free energy is not finite at the start.
        """
        numbers = np.asarray(start.unconstrained(), np.float64)

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = value_and_gradient(tf.constant(flat.reshape(numbers.shape)))
            if best[0] < float(value) < np.inf:
                best[:] = float(value), flat.copy()
            return -float(value), -np.ravel(gradient.numpy()).astype(np.float64)

        best: list[Any] = [-np.inf, None]
        if not np.isfinite(loss(np.ravel(numbers))[0]):
            raise NumericalError("the local free energy is not finite where the fit starts")
        options = {"maxiter": self.max_iterations, "gtol": self.tolerance, "ftol": 0.0}
        fit = scipy.optimize.minimize(
            loss, np.ravel(numbers), jac=True, method="L-BFGS-B", options=options
        )
        value, place = (-float(fit.fun), fit.x) if np.isfinite(fit.fun) else best
        q = type(start).from_unconstrained(place.reshape(numbers.shape))
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
