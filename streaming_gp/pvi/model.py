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
from streaming_gp.expfam import Factor

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
        ...

    def initial(self, seed: int) -> Any:
        """Where a fit starts while q is still the prior; the prior itself, if that serves.

        :param seed: The seed of its random numbers, if it has any.
        """
        ...

    def as_data(self, X: Any, Y: Any) -> Data:
        """The data as arrays of the right type and shape: X [N, D] and Y [N, P].

        :raises InvalidDataError: if the model cannot take them; says what came and what was wanted.
        """
        ...


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
        ...


@runtime_checkable
class ConjugateModel(Protocol):
    """A model whose likelihood is itself a factor of the prior's family."""

    def likelihood_factor(self, X: Any, Y: Any) -> Factor:
        """``p(Y | θ, X)`` as a factor (PVI 2018, section 3.1).

        :param X: Inputs [N, D].
        :param Y: Observations [N, P].
        """
        ...


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
        ...


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
        ...


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
        ...


@runtime_checkable
class SampledModel(Protocol):
    """A model whose tilted distributions can be sampled."""

    def log_likelihood(self, theta: tf.Tensor, X: Any, Y: Any) -> tf.Tensor:
        """``Σ_n log p(y_n | θ_s, x_n)`` for each of S draws: [S].

        :param theta: The draws [S, D'], where D' is the number of parameters.
        :param X: Inputs [N, D].
        :param Y: Observations [N, P].
        """
        ...


@runtime_checkable
class TrainableModel(Protocol):
    """A model whose likelihood has parameters to learn."""

    @property
    def trainable_variables(self) -> Sequence[tf.Variable]:
        """These parameters, unconstrained."""
        ...


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
        ...

    def prior_term_by_hyperparameters(self, q: Any) -> SecondOrder:
        """``−KL(q ‖ p(θ | ε))``, and log p(ε) if ε has a prior, at the ε that the model has.

        :param q: A posterior.
        """
        ...


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
    function: F = functions[key]
    return function


def tensors(arrays: Iterable[Any]) -> tuple[tf.Tensor, ...]:
    """Natural parameters, or data, as tensors of the dtypes that they have."""
    return tuple(tf.convert_to_tensor(array) for array in arrays)


def factor_tensors(factor: Factor) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
    """A factor's natural parameters and log constant, tensors of one dtype."""
    natural = tensors(factor.natural)
    return natural, tf.cast(factor.log_scale, natural[0].dtype)
