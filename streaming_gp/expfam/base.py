"""Exponential families: a family gives a few primitives, every law is derived here once.

A density is written ``p(x) = h(x) exp(η·T(x) − A(η))`` with natural parameters η, sufficient
statistics T, log-partition A and base measure h. Families are frozen dataclasses whose fields,
in order, are the natural parameters; a field may be a NumPy array or a TensorFlow tensor.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import mul
from typing import Any, TypeVar, cast

import numpy as np
import tensorflow as tf

from streaming_gp.expfam.factor import Factor

Family = TypeVar("Family", bound="ExponentialFamily")
Array = Any  # np.ndarray or tf.Tensor


def inner(a: Sequence[Array], b: Sequence[Array]) -> tf.Tensor:
    """``Σ_i a_i · b_i`` over matching natural and mean parameters: a scalar."""
    return tf.add_n([tf.reduce_sum(x * y) for x, y in zip(a, b, strict=True)])


@dataclass(frozen=True, eq=False)
class ExponentialFamily(abc.ABC):
    """A normalised member of an exponential family."""

    # ---- primitives: what a family must say ----

    @abc.abstractmethod
    def log_partition(self) -> tf.Tensor:
        """``A(η)``: a scalar, finite exactly for proper natural parameters."""

    @abc.abstractmethod
    def log_base_measure(self, x: Array) -> tf.Tensor:
        """``log h(x)`` for points ``x`` [N, ...]: [N]."""

    @abc.abstractmethod
    def expected_log_base_measure(self) -> tf.Tensor:
        """``E[log h(x)]``: a scalar."""

    @staticmethod
    @abc.abstractmethod
    def sufficient_statistics(x: Array) -> tuple[tf.Tensor, ...]:
        """``T(x)`` for points ``x`` [N, ...]: one array [N, ...] for each natural parameter."""

    @classmethod
    @abc.abstractmethod
    def from_mean_parameters(cls: type[Family], *mean_parameters: Array) -> Family:
        """The member whose expected sufficient statistics are ``mean_parameters``."""

    @staticmethod
    @abc.abstractmethod
    def is_proper_natural(*natural: Array) -> bool:
        """Whether these natural parameters belong to a normalisable density."""

    @abc.abstractmethod
    def unconstrained(self) -> tf.Tensor:
        """Real numbers, any of which make a member, for optimisers that know no constraints."""

    @classmethod
    @abc.abstractmethod
    def from_unconstrained(cls: type[Family], numbers: Array) -> Family:
        """The member that :meth:`unconstrained` was called on."""

    @abc.abstractmethod
    def sample(self, num_samples: int, seed: int) -> tf.Tensor:
        """``num_samples`` draws [S, ...], the same ones for the same integer ``seed``."""

    # ---- laws: derived from the primitives ----

    @property
    def natural(self) -> tuple[Array, ...]:
        """Natural parameters η."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def is_proper(self) -> bool:
        """Whether the density can be normalised."""
        return self.is_proper_natural(*self.natural)

    def as_arrays(self: Family) -> Family:
        """The same member held in NumPy arrays."""
        return type(self)(*(np.asarray(eta) for eta in self.natural))

    def mean_parameters(self) -> tuple[tf.Tensor, ...]:
        """``μ = E[T(x)] = ∂A/∂η``."""
        natural = tuple(tf.convert_to_tensor(eta) for eta in self.natural)
        with tf.GradientTape() as tape:
            tape.watch(natural)
            log_partition = type(self)(*natural).log_partition()
        return tuple(tape.gradient(log_partition, natural))

    def fisher_information(self) -> tf.Tensor:
        """``∂²A/∂η∂η = cov[T(x)]`` in flattened natural parameters: [E, E]."""
        natural = tuple(tf.convert_to_tensor(eta) for eta in self.natural)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(natural)
            moments = type(self)(*natural).mean_parameters()
            flat = tf.concat([tf.reshape(moment, [-1]) for moment in moments], 0)
        blocks = [tape.jacobian(flat, eta) for eta in natural]
        return tf.concat([tf.reshape(block, [tf.size(flat), -1]) for block in blocks], 1)

    def natural_gradient(self: Family, function: Callable[[Family], tf.Tensor]) -> Factor:
        """``∂ function(q) / ∂μ`` as a factor (PVI 2018, eq. 9).

        Of an expected log likelihood it is the factor that the likelihood is worth under q; where
        the model is conjugate it is the likelihood itself, whatever q. As ``∂μ/∂η`` is the Fisher
        information, it solves a linear system; statistics that come twice, as the entries of a
        symmetric matrix do, share their part evenly.

        :param function: of a member, differentiable: a scalar.
        """
        natural = tuple(tf.convert_to_tensor(eta) for eta in self.natural)
        with tf.GradientTape() as tape:
            tape.watch(natural)
            value = function(type(self)(*natural))
        gradient = tape.gradient(value, natural, unconnected_gradients="zero")
        flat = tf.concat([tf.reshape(part, [-1]) for part in gradient], 0)
        solved = tf.linalg.lstsq(self.fisher_information(), flat[:, None], fast=False)[:, 0]
        parts = tf.split(solved, [tf.size(eta) for eta in natural], num=len(natural))
        shaped = (tf.reshape(part, tf.shape(eta)) for part, eta in zip(parts, natural, strict=True))
        return Factor(type(self), tuple(shaped))

    def log_prob(self, x: Array) -> tf.Tensor:
        """``log p(x)`` at points ``x`` [N, ...]: [N]."""
        return self.log_base_measure(x) + self.as_factor().log_value(x)

    def entropy(self) -> tf.Tensor:
        """``−E[log p] = A(η) − η·μ − E[log h]``, in nats."""
        eta_mu = inner(self.natural, self.mean_parameters())
        return self.log_partition() - eta_mu - self.expected_log_base_measure()

    def expected_log(self, factor: Factor) -> tf.Tensor:
        """``E[log t(x) + log h(x)]`` of a factor of this family: a scalar, proper or not."""
        inside = inner(factor.natural, self.mean_parameters())
        return factor.log_scale + inside + self.expected_log_base_measure()

    def kl_divergence(self: Family, other: Family) -> tf.Tensor:
        """``KL(self ‖ other) = (η − η')·μ − A(η) + A(η')``, in nats."""
        difference = [a - b for a, b in zip(self.natural, other.natural, strict=True)]
        divergence = inner(difference, self.mean_parameters())
        return divergence - self.log_partition() + other.log_partition()

    def as_factor(self) -> Factor:
        """This normalised density as a factor, so that its integral is one."""
        return Factor(type(self), self.natural, -self.log_partition())

    def times(self: Family, factors: Iterable[Factor]) -> Family:
        """The posterior ``p(x) Π t_m(x) / 𝒵``; the product is formed before it is checked.

        :raises ImproperError: if the product cannot be normalised.
        """
        arrays_then_tensors = [*factors, self.as_factor()]  # tensors cost more to add
        return cast(Family, reduce(mul, arrays_then_tensors).normalised())

    def __truediv__(self: Family, other: Family) -> Factor:
        """The factor ``self / other``: a difference of natural parameters, proper or not."""
        return self.as_factor() / other.as_factor()
