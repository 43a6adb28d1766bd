"""Unnormalised factors ``t(x) = exp(c + η·T(x))``: products, quotients, powers, damping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import ImproperError

if TYPE_CHECKING:
    from streaming_gp.expfam.base import ExponentialFamily


@dataclass(frozen=True, eq=False)
class Factor:
    """An unnormalised member of ``family``; unlike a distribution it may be indefinite.

    :param family: the exponential family whose statistics the factor uses.
    :param natural: its natural parameters η, shaped as the family's.
    :param log_scale: the constant c, a scalar: products keep the normaliser.
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

    def as_arrays(self) -> Factor:
        """The same factor held in NumPy arrays and a float."""
        natural = tuple(np.asarray(eta) for eta in self.natural)
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
