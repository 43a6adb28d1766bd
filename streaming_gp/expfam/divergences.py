"""Divergences of q from a cavity, as local free energies use them.

Fisher's are of Gaussians alone, and so is total variation. All others come from one primitive of a
family, its log-partition: with ``p_η`` normalised,
``log ∫ Π p_i^{a_i} = A(Σ a_i η_i) − Σ a_i A(η_i)``, for powers that sum to one, and for Gaussians
(whose base measure is constant) for any powers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from streaming_gp.errors import ImproperError, InvalidDataError
from streaming_gp.expfam.family import ExponentialFamily, Factor
from streaming_gp.expfam.normal import Gaussian
from streaming_gp.inputs import AboveOne, NotNegativeFinite, typed

AT_THE_LIMIT = 1e-4
"""So close to a limit the divergence is linear to rounding."""
COLD_START = (
    "; where the first client alone holds the narrow q that learning started from, the cavities of "
    "others are so: give each client a part of it (Server.warm_start)"
)


@runtime_checkable
class Divergence(Protocol):
    """How far q is from a cavity."""

    def __call__(self, q: ExponentialFamily, cavity: Factor, /) -> tf.Tensor:
        """In nats: a scalar, differentiable; NaN outside the domain."""


@typed
@dataclass(frozen=True)
class KL:
    """``weight · E_q[log q − log cavity]``; defined for improper cavities as well.

    :param weight: The factor of the divergence: 1 is variational inference, 0 maximum likelihood.
    """

    weight: NotNegativeFinite = 1.0

    def __call__(self, q: ExponentialFamily, cavity: Factor) -> tf.Tensor:
        return -self.weight * (q.entropy() + q.expected_log(cavity))


@dataclass(frozen=True)
class ReverseKL:
    """``KL(cavity ‖ q)``: covers what the cavity covers."""

    def __call__(self, q: ExponentialFamily, cavity: Factor) -> tf.Tensor:
        return cavity.family(*cavity.natural).kl_divergence(q)


@typed
@dataclass(frozen=True)
class Renyi:
    """``(α (α − 1))⁻¹ log ∫ q^α cavity^(1−α)`` (Cichocki & Amari 2010; PGVI, definition 20).

    Tends to ``KL(q ‖ cavity)`` as α → 1 and to ``KL(cavity ‖ q)`` as α → 0, and is these there.
    Smaller α gives a wider q.

    :param alpha: The order α; for α > 1 or α < 0 the mixture of natural parameters must be proper.
    """

    alpha: float

    def __call__(self, q: ExponentialFamily, cavity: Factor) -> tf.Tensor:
        p = cavity.family(*cavity.natural)
        if abs(self.alpha - 1.0) < AT_THE_LIMIT:
            return q.kl_divergence(p) + (self.alpha - 1.0) * _slope(q, p, 1.0)
        if abs(self.alpha) < AT_THE_LIMIT:
            return p.kl_divergence(q) + self.alpha * _slope(q, p, 0.0)
        return _renyi(q, p, self.alpha)


def _renyi(q: Any, p: Any, alpha: float) -> tf.Tensor:
    """By ``log ∫ q^α p^(1−α)``."""
    q, p = _about_mean(q, p)
    natural = [alpha * a + (1.0 - alpha) * b for a, b in zip(q.natural, p.natural, strict=True)]
    between = type(q)(*natural).log_partition()
    overlap = between - alpha * q.log_partition() - (1.0 - alpha) * p.log_partition()
    return overlap / (alpha * (alpha - 1.0))


def _about_mean(*members: Any) -> Any:
    """Gaussians of x minus the mean of the first: by natural parameters, one much narrower than it
    is far from 0 loses all digits. Others as they are.
    """
    if not isinstance(members[0], Gaussian):
        return members
    mean = tf.stop_gradient(members[0].mean)
    natural = ((one.precision_mean - one._times(one.precision, mean), one) for one in members)
    return tuple(type(one)(pull, one.precision) for pull, one in natural)


def _slope(q: Any, p: Any, limit: float) -> tf.Tensor:
    """Of the divergence by α, at a limit where its formula is 0/0."""
    high, low = (_renyi(q, p, limit + step) for step in (AT_THE_LIMIT, -AT_THE_LIMIT))
    return (high - low) / (2.0 * AT_THE_LIMIT)


@typed
@dataclass(frozen=True)
class BetaDivergence:
    """``∫ q^β/(β(β−1)) + ∫ p^β/β − ∫ q p^(β−1)/(β−1)`` for Gaussians (PGVI, theorem 21).

    :param beta: The power β > 1, near 1, as the integrals scale with the (β − 1)-th power of a
        density.
    """

    beta: AboveOne

    def __call__(self, q: ExponentialFamily, cavity: Factor) -> tf.Tensor:
        integrals = _log_integrals(q, cavity, self.beta)
        return _contrast(self.beta, *map(tf.exp, integrals))


@typed
@dataclass(frozen=True)
class GammaDivergence:
    """The β divergence with the logarithm of every integral (Cichocki & Amari 2010).

    :param gamma: The power γ > 1.
    """

    gamma: AboveOne

    def __call__(self, q: ExponentialFamily, cavity: Factor) -> tf.Tensor:
        return _contrast(self.gamma, *_log_integrals(q, cavity, self.gamma))


def _contrast(b: float, own: tf.Tensor, other: tf.Tensor, both: tf.Tensor) -> tf.Tensor:
    return own / (b * (b - 1.0)) + other / b - both / (b - 1.0)


def _log_integrals(q: Any, cavity: Factor, b: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """``log ∫ q^b``, ``log ∫ p^b`` and ``log ∫ q p^(b−1)`` with p the cavity."""
    q, p = _about_mean(q, cavity.family(*cavity.natural))
    return _log_integral((q, b)), _log_integral((p, b)), _log_integral((q, 1.0), (p, b - 1.0))


def _log_integral(*powers: tuple[Any, float]) -> tf.Tensor:
    """``log ∫ Π p_i^{a_i}`` of Gaussians, for any powers that leave it proper."""
    first = powers[0][0]
    if not isinstance(first, Gaussian):
        raise InvalidDataError(f"this divergence is for Gaussians, not for {type(first).__name__}")
    natural = [
        sum(power * one.natural[i] for one, power in powers) for i in range(len(first.natural))
    ]
    excess = sum(power for _, power in powers) - 1.0
    base = excess * first.expected_log_base_measure()
    scales = sum(power * one.log_partition() for one, power in powers)
    return type(first)(*natural).log_partition() - scales + base


@typed
@dataclass(frozen=True)
class Fisher:
    """``weight · E_q ‖∇ log q − ∇ log cavity‖²`` for Gaussians (PGVI, 2.3.1 and 4.3.1).

    With means m, precisions Λ and covariances V it is ``‖Λ' (m − m')‖² + tr (Λ − Λ')² V``. No
    constant of the cavity is in it, which may be improper. Its unit is that of an inverse square
    of the parameters.

    :param weight: 1 is Fisher's divergence, and ½ Hyvärinen's.
    """

    weight: NotNegativeFinite = 1.0

    def __call__(self, q: ExponentialFamily, cavity: Factor) -> tf.Tensor:
        if not isinstance(q, Gaussian):
            raise InvalidDataError(f"this divergence is for Gaussians, not {type(q).__name__}")
        (pull, precision), (mean, covariance) = cavity.natural, q.moments()
        slope = pull - q._times(precision, mean)
        bend = tf.convert_to_tensor(q.precision - precision)
        square = bend @ bend if bend.shape.rank == 2 else tf.square(bend)
        spread = q._trace(square, covariance)
        return self.weight * (tf.reduce_sum(tf.square(slope)) + spread)


@dataclass(frozen=True)
class TotalVariation:
    """``½ ∫ |q − cavity|`` of univariate normals, in [0, 1] (PGVI, 2.3.1 and 4.3.1).

    It is the difference of probabilities between the two points at which the densities are equal.
    For Gaussians of one coordinate only: there is no closed form for more.
    """

    def __call__(self, q: Any, cavity: Factor) -> tf.Tensor:
        p = _univariate(q, cavity, "total variation")
        (m, n), (v, w) = (
            [tf.convert_to_tensor(one)[0] for one in both]
            for both in ((q.mean, p.mean), (q.variance, p.variance))
        )
        # where q = p, with x about the mean of q: a x² + 2 b x + c = 0, which no derivative moves
        away, a = n - m, 1.0 / w - 1.0 / v
        b, c = -away / w, away**2 / w + tf.math.log(w / v)
        root = tf.sqrt(tf.maximum(b**2 - a * c, 0.0))
        far = -(b + tf.where(b < 0.0, -root, root))
        places = tf.stop_gradient(m + tf.stack([far / a, tf.math.divide_no_nan(c, far)]))
        is_there = tf.math.is_finite(places)  # at infinity both are whole, without a slope
        places = tf.where(is_there, places, m)
        inside = [_normal_cdf((places - mean) / tf.sqrt(of)) for mean, of in ((m, v), (n, w))]
        gap = tf.where(is_there, inside[0] - inside[1], 0.0)
        return tf.abs(gap[0] - gap[1])


def _normal_cdf(x: tf.Tensor) -> tf.Tensor:
    return 0.5 * tf.math.erfc(-x / np.sqrt(2.0))


def _univariate(q: Any, cavity: Factor, name: str) -> Any:
    """The cavity as a distribution of one coordinate."""
    if not isinstance(q, Gaussian) or np.shape(q.precision_mean) != (1,):
        raise InvalidDataError(f"the {name} is for univariate normals")
    return cavity.family(*cavity.natural)


@dataclass(frozen=True)
class FisherRao:
    """The distance along the manifold of univariate normals (Nielsen 2023; PGVI, 4.4.1).

    For Gaussians of one coordinate only.
    """

    def __call__(self, q: Any, cavity: Factor) -> tf.Tensor:
        p = _univariate(q, cavity, "Fisher-Rao distance")
        mean = tf.square(q.mean - p.mean)[0]
        sd_q, sd_p = tf.sqrt(q.variance)[0], tf.sqrt(p.variance)[0]
        near, far = mean + 2.0 * tf.square(sd_q - sd_p), mean + 2.0 * tf.square(sd_q + sd_p)
        is_apart = near > 0.0  # the root has no slope at zero, where a distance has its least
        root = tf.sqrt(tf.where(is_apart, near / far, 1.0))
        return 2.0 * np.sqrt(2.0) * tf.atanh(tf.where(is_apart, root, 0.0))


def require_domain(divergence: Divergence, q: ExponentialFamily, cavity: Factor) -> None:
    """Check that a divergence is defined between two members."""
    if not isinstance(divergence, (KL, Fisher)):
        _require_distribution(divergence, cavity)
        require_gradient(divergence, q, cavity)


def require_gradient(divergence: Divergence, q: ExponentialFamily, cavity: Factor) -> None:
    """Check that a divergence has a gradient by q.

    A Rényi divergence has one where its mixture is proper, although the cavity may not be: what
    normalises the cavity is a constant.
    """
    if isinstance(divergence, Renyi):
        alpha = divergence.alpha
        if not (q.as_factor() ** alpha * cavity ** (1.0 - alpha)).is_proper:
            raise ImproperError(
                f"for α = {alpha:g} the mixture α η_q + (1 − α) η_cavity must be proper, and is "
                f"not{COLD_START}"
            )
    elif not isinstance(divergence, (KL, Fisher)):
        _require_distribution(divergence, cavity)


def _require_distribution(divergence: Divergence, cavity: Factor) -> None:
    if not cavity.is_proper:
        raise ImproperError(
            f"{type(divergence).__name__} needs a cavity that is a distribution{COLD_START}"
        )
