"""Protocols of models: one for each capability that the loop or a rule asks for.

Every model is a :class:`Model`. The other protocols are asked for by single rules, through
:func:`require`, so that a model without the method is refused by name.

Compiled functions of a model are made once and kept as long as it lives. They take tensors, not
objects: natural parameters go in and out as plain tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary, proxy

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, Normal

Data = tuple[np.ndarray, np.ndarray]
"""X [N, D] and Y [N, P]."""


@runtime_checkable
class Model(Protocol):
    """The loop asks this of every model: a prior, and which data it takes.

    A model that knows the limits of honest answers has ``checks`` as well
    (:class:`~streaming_gp.pvi.Checks`).
    """

    def prior(self) -> Any:
        """The posterior before any data: p(θ), or a prior over functions."""

    def initial(self, seed: int) -> Any:
        """Where a fit starts while q is still the prior; the prior itself, if that serves.

        :param seed: The seed of its random numbers, if it has any.
        """

    def as_data(self, X: Any, Y: Any) -> Data:
        """The data as arrays of the right type and shape: X [N, D] and Y [N, P].

        :raises InvalidDataError: if the model cannot take them; says what came and what was wanted.
        """


@runtime_checkable
class LikelihoodModel(Model, Protocol):
    """A model of parameters θ with a likelihood whose expectation can be evaluated."""

    def expected_log_likelihood(
        self, q: Any, X: tf.Tensor, Y: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor:
        """``Σ_n E_q[log p(y_n | θ)]`` in nats, or an unbiased estimate of it: a scalar.

        :param q: A member of the prior's family; the value is differentiable in its parameters.
        :param X: Inputs [N, D].
        :param Y: Observations [N, P].
        :param seed: Two integers [2] that determine the estimate.
        """


@runtime_checkable
class ConjugateModel(Protocol):
    """A model whose likelihood is itself a factor of the prior's family."""

    def likelihood_factor(self, X: Any, Y: Any) -> Factor:
        """``p(Y | θ, X)`` as a factor (PVI 2018, section 3.1).

        :param X: Inputs [N, D].
        :param Y: Observations [N, P].
        """


@runtime_checkable
class LossModel(Protocol):
    """A model that takes losses other than ``−log p(y | θ)``."""

    def expected_loss(
        self, q: Any, X: tf.Tensor, Y: tf.Tensor, seed: tf.Tensor, loss: Any
    ) -> tf.Tensor:
        """``Σ_n E_q[loss(θ, y_n)]``, or an unbiased estimate of it: a scalar.

        :param q: A member of the prior's family; the value is differentiable in its parameters.
        :param X: Inputs [N, D].
        :param Y: Observations [N, P].
        :param seed: Two integers [2] that determine the estimate.
        :param loss: A loss of :mod:`streaming_gp.losses`.
        """


@runtime_checkable
class NaturalGradientModel(Protocol):
    """A model that knows its natural gradient better than differentiation does."""

    def natural_gradient(self, q: Any, X: tf.Tensor, Y: tf.Tensor, seed: tf.Tensor) -> Factor:
        """``∂/∂μ Σ_n E_q[log p(y_n | θ)]`` by the mean parameters μ of q, as a factor.

        :param q: A member of the prior's family.
        :param X: Inputs [N, D].
        :param Y: Observations [N, P].
        :param seed: Two integers [2] that determine the estimate.
        """


@runtime_checkable
class TiltedModel(Protocol):
    """A model that expectation propagation can fit."""

    def log_tilted(self, cavity: Any, x: tf.Tensor, y: tf.Tensor, alpha: float) -> tf.Tensor:
        """``log ∫ cavity(θ) p(y | θ, x)^α dθ`` of one datum: a scalar.

        :param cavity: A member of the prior's family; the integral is differentiable in its
            natural parameters.
        :param x: The input [D].
        :param y: The observation [P].
        :param alpha: The power α > 0.
        :raises InvalidDataError: where the model has no form for this α.
        """


@runtime_checkable
class SampledModel(Protocol):
    """A model whose tilted distributions can be sampled."""

    def log_likelihood(self, theta: tf.Tensor, X: Any, Y: Any) -> tf.Tensor:
        """``Σ_n log p(y_n | θ_s, x_n)`` for each of S draws: [S].

        :param theta: The draws [S, D'], where D' is the number of parameters.
        :param X: Inputs [N, D].
        :param Y: Observations [N, P].
        """


@runtime_checkable
class TrainableModel(Protocol):
    """A model whose likelihood has parameters to learn."""

    @property
    def trainable_variables(self) -> Sequence[tf.Variable]:
        """These parameters, unconstrained."""


class SecondOrder(NamedTuple):
    """A number with its gradient [H] by hyperparameters, and their Hessian [H, H] when wanted."""

    value: float
    gradient: np.ndarray
    hessian: Callable[[], np.ndarray]


@runtime_checkable
class HyperparameterModel(TrainableModel, Protocol):
    """A model whose prior has parameters to learn, as its likelihood may (PVI 2018, eq. 5)."""

    def data_term_by_hyperparameters(self, q: Any, data: Data) -> SecondOrder:
        """``E_q[log p(y | θ, ε)]``, at the ε that the model has.

        :param q: A posterior.
        :param data: Inputs X [N, D] and observations Y [N, P].
        """

    def prior_term_by_hyperparameters(self, q: Any) -> SecondOrder:
        """``−KL(q ‖ p(θ | ε))``, and log p(ε) if ε has a prior, at the ε that the model has.

        :param q: A posterior.
        """


def require(model: Any, protocol: type, what_for: str) -> Any:
    """The model, if it has what a rule asks for.

    :param model: Any model.
    :param protocol: A protocol of this module.
    :param what_for: Who asks, as the end of a sentence.
    :raises InvalidDataError: if a member of the protocol is missing; names it, the model and who
        asks.
    """
    members = [name for name in vars(protocol) if not name.startswith("_")]
    for name in members:  # the class by its attribute: the type of a proxy is not the model's
        if not hasattr(model, name):
            raise InvalidDataError(
                f"{model.__class__.__name__} has no {name}, which {what_for} asks for"
            )
    return model


# ---- compiled functions ----


F = TypeVar("F", bound=Callable[..., Any])

_OF_MODELS: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()


def compiled_for(model: Any, key: Hashable, build: Callable[[Any], F]) -> F:
    """The result of ``build(model)`` when it was first asked for under this model and key.

    It is built for a proxy of the model, so that it does not keep the model alive.
    """
    functions = _OF_MODELS.setdefault(model, {})
    if key not in functions:
        functions[key] = build(proxy(model))
    return functions[key]


def tensors(arrays: Iterable[Any]) -> tuple[tf.Tensor, ...]:
    """Natural parameters, or data, as tensors of the dtypes that they have."""
    return tuple(tf.convert_to_tensor(array) for array in arrays)


def factor_tensors(factor: Factor) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
    """A factor's natural parameters and log constant, tensors of one dtype."""
    natural = tensors(factor.natural)
    return natural, tf.cast(factor.log_scale, natural[0].dtype)


# ---- the parameters of a model as one vector ----

MAX_HALVINGS = 12
ROUNDING = 1e-6  # of 32-bit sums, relative


def values(model: Any) -> np.ndarray:
    """All of them, in the order of ``model.trainable_variables``: [H]."""
    variables = require(model, TrainableModel, "learning the likelihood").trainable_variables
    if not variables:
        raise InvalidDataError(f"{type(model).__name__} has no trainable_variables to learn")
    return np.concatenate([np.ravel(variable.numpy()) for variable in variables])


def set_values(model: Any, numbers: np.ndarray) -> None:
    """Assign them.

    :param numbers: The unconstrained values [H], in the order of :func:`values`.
    :raises InvalidDataError: if they are not as many as the model has, or not finite; the model is
        as it was then.
    """
    variables = model.trainable_variables
    sizes, start = [int(tf.size(variable)) for variable in variables], 0
    if np.shape(numbers) != (sum(sizes),) or not np.isfinite(numbers).all():
        raise InvalidDataError(
            f"{type(model).__name__} has {sum(sizes)} parameters to learn, and wants as many "
            f"finite numbers, got {numbers!s:.200}"
        )
    for variable, size in zip(variables, sizes, strict=True):
        variable.assign(np.reshape(numbers[start : start + size], variable.shape))
        start += size


def hyperparameter_factor(model: Any, candidates: Sequence[Any], data: Data, seed: int) -> Factor:
    """``E_q[log p(y | θ, ε)]`` to second order about the ε that the model has, as a factor of ε.

    Its gradient there is one client's part of PVI 2018, eq. 5, and the product of all clients'
    factors is the whole data term. Its curvature is raised, as in a trust region, as far as it
    takes for its maximum to be uphill indeed.

    :param candidates: Distributions q; the one that makes the data likeliest is taken.
    :param data: Inputs X [N, D] and observations Y [N, P].
    :param seed: The seed of the estimate, if it is one.
    """
    terms = [_data_term(model, q, data, seed) for q in candidates]
    best = int(np.argmax([np.nan_to_num(one.value, nan=-np.inf) for one in terms]))
    value, gradient, hessian = terms[best]
    numbers, precision = values(model), -hessian()
    if np.isfinite(gradient).all() and np.isfinite(precision).all():  # else the server refuses it
        precision = bounded_precision(numbers, gradient, precision, bound=1.0)
        step = newton_step(gradient, precision)
        try:
            for halvings in range(MAX_HALVINGS):
                share = 0.5**halvings
                set_values(model, numbers + share * step)
                gain = _data_term(model, candidates[best], data, seed).value - value
                promise = 0.5 * share * float(gradient @ step)
                if gain >= 0.5 * promise - ROUNDING * abs(value):
                    break
        finally:
            set_values(model, numbers)
        precision = precision / share
    return Factor(Normal, (gradient + precision @ numbers, precision))


def _data_term(model: Any, q: Any, data: Data, seed: int) -> SecondOrder:
    """By the model's own formula if it has one."""
    if isinstance(model, HyperparameterModel):
        return model.data_term_by_hyperparameters(q, data)
    derivatives = compiled_for(model, "by hyperparameters", _derivatives)
    seeds = np.array([seed, 0], np.int32)
    value, gradient, hessian = derivatives(type(q), tensors(q.natural), *data, seeds)
    return SecondOrder(float(value), gradient.numpy(), hessian.numpy)


def _derivatives(model: Any) -> Callable[..., Any]:
    """Value, gradient [H] and Hessian [H, H] of the expected log-likelihood by hyperparameters."""

    @tf.function(autograph=False, reduce_retracing=True)
    def derivatives(family: Any, natural: Any, X: Any, Y: Any, seed: Any) -> Any:
        variables = model.trainable_variables
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                expected = model.expected_log_likelihood(family(*natural), X, Y, seed)
            parts = inner.gradient(expected, variables, unconnected_gradients="zero")
            gradient = tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
        columns = outer.jacobian(
            gradient, variables, unconnected_gradients="zero", experimental_use_pfor=False
        )
        size = tf.size(gradient)
        hessian = tf.concat([tf.reshape(part, [size, -1]) for part in columns], 1)
        # the second derivative of TFP's softplus is NaN beyond 709, and should be zero
        hessian = tf.where(tf.math.is_nan(hessian), tf.zeros_like(hessian), hessian)
        return expected, gradient, hessian

    return derivatives


# ---- quadratic functions of them ----


def slope_and_precision(factor: Factor, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradient [H] of a factor's logarithm at these hyperparameters [H], and minus its Hessian
    [H, H].
    """
    precision_mean, precision = factor.natural
    return precision_mean - precision @ numbers, precision


def bounded_precision(
    numbers: np.ndarray, gradient: np.ndarray, precision: np.ndarray, bound: float
) -> np.ndarray:
    """The positive curvature [H, H] under which a Newton step goes uphill and is bounded.

    Along each eigenvector of the precision its sign is dropped, and it is raised where the step
    would be longer than the bound.

    :param numbers: Hyperparameters [H]; one beyond 2 is measured in units of its half.
    """
    unit = np.maximum(1.0, 0.5 * numbers)
    curvature, directions = np.linalg.eigh(unit[:, None] * precision * unit)
    slope = directions.T @ (unit * gradient)
    steepest = np.maximum(np.abs(curvature), np.abs(slope) / bound)
    return (directions * steepest) @ directions.T / (unit[:, None] * unit)


def newton_step(gradient: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """The shortest step [H] to the maximum; none in directions without curvature."""
    return np.linalg.lstsq(precision, gradient, rcond=None)[0]
