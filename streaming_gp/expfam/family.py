"""Exponential families and their factors: a family gives primitives, laws are derived here once.

A density is written ``p(x) = h(x) exp(η·T(x) − A(η))`` with natural parameters η, sufficient
statistics T, log-partition A and base measure h. Families are frozen dataclasses whose fields,
in order, are the natural parameters; a field may be a NumPy array or a TensorFlow tensor.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import tensorflow as tf

from streaming_gp.errors import ImproperError
from streaming_gp.serialization import storable

Family = TypeVar("Family", bound="ExponentialFamily")
Array = Any  # np.ndarray or tf.Tensor
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def inner(a: Sequence[Array], b: Sequence[Array]) -> tf.Tensor:
    """``Σ_i a_i · b_i`` over matching natural and mean parameters: a scalar."""
    return tf.add_n([tf.reduce_sum(x * y) for x, y in zip(a, b, strict=True)])


def num_bytes(natural: Sequence[Array]) -> int:
    """Size of the arrays of natural parameters."""
    return sum(int(np.asarray(eta).nbytes) for eta in natural)


def shapes(natural: Sequence[Array]) -> list[tuple[int, ...]]:
    """The shape of each natural parameter."""
    return [tuple(np.shape(eta)) for eta in natural]


def is_finite(*natural: Array) -> bool:
    """Whether all entries of natural parameters are finite."""
    return all(np.isfinite(np.asarray(eta)).all() for eta in natural)


def is_positive_definite(matrices: np.ndarray) -> bool:
    """Whether matrices [..., D, D] have a Cholesky factor."""
    try:
        np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return False
    return True


@storable
@dataclass(frozen=True, eq=False)
class Factor:
    """``t(x) = exp(c + η·T(x))``, an unnormalised member of ``family``, which may be improper.

    :param family: The exponential family whose statistics the factor uses.
    :param natural: The natural parameters η, shaped as the family's.
    :param log_scale: The constant c, a scalar, so that products keep the normaliser.
    """

    family: type[ExponentialFamily]
    natural: tuple[Any, ...]
    log_scale: Any = 0.0

    def __mul__(self, other: Factor) -> Factor:
        natural = tuple(a + b for a, b in zip(self.natural, other.natural, strict=True))
        return Factor(self.family, natural, self.log_scale + other.log_scale)

    def __truediv__(self, other: Factor) -> Factor:
        return self * other**-1.0

    def __pow__(self, power: float) -> Factor:
        natural = tuple(power * eta for eta in self.natural)
        return Factor(self.family, natural, power * self.log_scale)

    def log_value(self, x: Any) -> tf.Tensor:
        """``c + η·T(x)`` at points ``x`` [N, ...]: [N]."""
        value = self.log_scale
        for eta, statistic in zip(self.natural, self.family.sufficient_statistics(x), strict=True):
            axes = list(range(1, len(statistic.shape)))
            value += tf.reduce_sum(eta * statistic, axis=axes)
        return value

    @property
    def is_proper(self) -> bool:
        """Whether the factor alone has a finite integral."""
        return self.family.is_proper_natural(*self.natural)

    @property
    def num_bytes(self) -> int:
        """Size of its natural parameters."""
        return num_bytes(self.natural)

    def as_arrays(self) -> Factor:
        """The same factor held in NumPy arrays and a float.

        Matrices are made symmetric to the last digit: what rounding left in a cavity is in every
        factor that it is divided out of, so that a product of K such factors has K times as much.
        """
        natural = tuple(
            _symmetrised(np.asarray(eta)) if index in self.family.symmetric else np.asarray(eta)
            for index, eta in enumerate(self.natural)
        )
        return Factor(self.family, natural, float(self.log_scale))

    def normalised(self) -> ExponentialFamily:
        """The distribution proportional to this factor.

        :raises ImproperError: if there is none.
        """
        if not self.is_proper:
            raise ImproperError(
                f"a product of {self.family.__name__} factors has no finite integral: its natural "
                f"parameters {self.natural} are not those of a distribution"
            )
        return self.family(*self.natural)

    def log_integral(self) -> tf.Tensor:
        """``log ∫ t(x) h(x) dx = c + A(η)``.

        :raises ImproperError: if the integral is not finite.
        """
        return self.log_scale + self.normalised().log_partition()


@dataclass(frozen=True, eq=False)
class ExponentialFamily(abc.ABC):
    """A normalised member of an exponential family.

    :cvar symmetric: Which of its natural parameters are symmetric matrices.
    """

    symmetric: ClassVar[tuple[int, ...]] = ()

    # ---- primitives of a family ----

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

    @property
    def num_bytes(self) -> int:
        """Size of its natural parameters."""
        return num_bytes(self.natural)

    @property
    def form(self) -> str:
        """Family and shapes, in words: members can be multiplied only if their forms agree."""
        return f"{type(self).__name__} with natural parameters of shapes {shapes(self.natural)}"

    def as_arrays(self: Family) -> Family:
        """The same member held in NumPy arrays."""
        return type(self)(*(np.asarray(eta) for eta in self.natural))

    @property
    def in_numpy(self) -> bool:
        """Whether it is held in NumPy arrays, and nothing is traced: small members are worked with
        many times faster so.
        """
        return isinstance(self.natural[0], np.ndarray) and tf.executing_eagerly()

    def held(self, value: Array) -> Array:
        """A value in the kind of arrays that the member is held in, NumPy's or TensorFlow's."""
        return np.asarray(value) if self.in_numpy else value

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

        Of an expected log likelihood it is the factor that stands for the likelihood under q; where
        the model is conjugate it is the likelihood itself, whatever q. As ``∂μ/∂η`` is the Fisher
        information, it solves a linear system; statistics that come twice, as the entries of a
        symmetric matrix do, get half of it each.

        :param function: A differentiable function of a member, whose value is a scalar.
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
        arrays_then_tensors = [*(factor.natural for factor in factors), self.natural]
        columns = zip(*arrays_then_tensors, strict=True)  # tensors cost more to add
        product = Factor(type(self), tuple(reduce(add, column) for column in columns))
        return cast(Family, product.normalised())

    def __truediv__(self: Family, other: Family) -> Factor:
        """The factor ``self / other``: a difference of natural parameters, proper or not."""
        return self.as_factor() / other.as_factor()

    def cavity(self, own: Factor | None) -> Factor:
        """``self / own``, normalised if it is proper, or ``self`` if there is no own factor.

        A factor and not a distribution: a mean-field cavity may be improper in a few coordinates,
        and a local free energy is still defined there, as its q is proper by construction.
        """
        q = self.as_factor()
        cavity = q if own is None else q / own
        shift = -cavity.log_integral() if cavity.is_proper else -cavity.log_scale
        return Factor(cavity.family, cavity.natural, cavity.log_scale + shift)

    def exchanged(self: Family, removed: Iterable[Factor], added: Iterable[Factor]) -> Family:
        """``self × Π added / Π removed``.

        :raises ImproperError: if the product cannot be normalised.
        """
        return self.times([*added, *(factor**-1.0 for factor in removed)])

    def objection_to(self, factor: object) -> str | None:
        """Why this object is no factor that ``self`` can be multiplied by, or None if it is one."""
        if not isinstance(factor, Factor) or factor.family is not type(self):
            return f"it is no factor of the family {type(self).__name__}"
        natural, log_scale = factor.natural, factor.log_scale
        if type(natural) is not tuple or not all(_is_array(eta) for eta in natural):
            return "its natural parameters are no tuple of floating-point arrays"
        got, wanted = shapes(natural), shapes(self.natural)
        if got != wanted:
            return f"its natural parameters have shapes {got}, wanted {wanted}"
        arrays = [np.asarray(eta) for eta in natural]
        if any(array.dtype not in _DTYPES for array in arrays):
            return "its natural parameters are not floating-point numbers of 32 or 64 bits"
        if not is_finite(*arrays):
            return "its natural parameters are not finite"
        if not all(_is_symmetric(arrays[index]) for index in self.symmetric):
            return "a matrix among its natural parameters is not symmetric"
        number = np.asarray(None if isinstance(log_scale, (tuple, list)) else log_scale)
        if number.shape != () or number.dtype not in (*_DTYPES, np.dtype(int)):
            return f"its log constant is {log_scale!r:.100}, wanted a number"
        return None if np.isfinite(number) else f"its log constant is {log_scale}"


def _is_array(eta: Any) -> bool:
    """Of NumPy or TensorFlow, and not of a class that adds to them, such as masks."""
    return type(eta) is np.ndarray or isinstance(eta, np.generic) or tf.is_tensor(eta)


def _symmetrised(matrices: np.ndarray) -> np.ndarray:
    """Matrices; their diagonals, which have one dimension less, as they are."""
    if matrices.ndim < 2:
        return matrices
    return 0.5 * (matrices + np.swapaxes(matrices, -1, -2))


def _is_symmetric(matrices: np.ndarray) -> bool:
    """To rounding; a matrix that is kept as its diagonal has one dimension less."""
    if matrices.ndim < 2:
        return True
    tolerance = np.sqrt(np.finfo(matrices.dtype).eps) * np.max(np.abs(matrices), initial=0.0)
    return bool(np.all(np.abs(matrices - np.swapaxes(matrices, -1, -2)) <= tolerance))
