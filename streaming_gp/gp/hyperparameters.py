"""What is learned about the hyperparameters ε: nothing, a point, or a distribution.

Every strategy turns a few optimiser variables into values of ε and a penalty on the bound. The
variables are offsets whitened under the cavity q_cav(ε), so that zero means "no change".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from streaming_gp import expfam
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.noise import standard_noise
from streaming_gp.gp.parameters import ParameterVector

WIDTH_UNDER_PRIOR, WIDTH_UNDER_CAVITY = 0.1, 0.5
"""Where the width of q(ε) starts, in units of the prior's or of the cavity's: a start as wide as
the prior averages the bound over values of ε at which nothing can be fitted, and the optimum next
to it explains the data as noise."""


Bounds = tuple[float | None, float | None]


class HyperparameterStrategy(Protocol):
    """How ε takes part in a local update."""

    @property
    def remembers(self) -> bool:
        """Whether the evidence of earlier pseudo-observations is part of the objective."""
        ...

    @property
    def forgetting_factor(self) -> float:
        """Power to which earlier factors of ε are raised when a new batch comes; 1 keeps them."""
        ...

    def prior(self, epsilon: ParameterVector) -> expfam.Gaussian | None:
        """p(ε), or None where ε is a point."""
        ...

    def location_scale(
        self, cavity: expfam.Gaussian | None, epsilon: ParameterVector
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the whitened variables are zero: [E], and their unit: lower factor [E, E]."""
        ...

    def initial(self, size: int, has_seen_data: bool) -> np.ndarray:
        """Optimiser variables at the start: at the centre of the cavity or prior."""
        ...

    def bounds(self, epsilon: ParameterVector) -> list[Bounds]:
        """Bounds of the optimiser variables."""
        ...

    @property
    def num_draws(self) -> int | None:
        """S where it never changes, else None."""
        ...

    def noise(self, size: int, seed: int, full: bool = True) -> np.ndarray:
        """Common random numbers [S, E]: the bound is averaged over S values of ε.

        :param full: as many as the strategy has; otherwise half of them may do.
        """
        ...

    def draw(
        self, variables: tf.Tensor, location: tf.Tensor, scale: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        """Values of ε [S, E] for noise [S, E]."""
        ...

    def penalty(self, variables: tf.Tensor, epsilon: ParameterVector) -> tf.Tensor:
        """What is subtracted from the expected bound: KL(q(ε) ‖ q_cav(ε)) or −log p(ε)."""
        ...

    def posterior(
        self, variables: np.ndarray, location: np.ndarray, scale: np.ndarray
    ) -> expfam.Gaussian | None:
        """q(ε), or None where ε is a point."""
        ...


@dataclass(frozen=True)
class _Point:
    """A single value of ε."""

    @property
    def remembers(self) -> bool:
        return False

    @property
    def forgetting_factor(self) -> float:
        return 1.0

    def prior(self, epsilon: ParameterVector) -> None:
        return None

    @property
    def num_draws(self) -> int:
        return 1

    def noise(self, size: int, seed: int, full: bool = True) -> np.ndarray:
        return np.zeros((1, size))

    def location_scale(
        self, cavity: expfam.Gaussian | None, epsilon: ParameterVector
    ) -> tuple[np.ndarray, np.ndarray]:
        return epsilon.value(), np.diag(epsilon.unit_log_widths())

    def posterior(
        self, variables: np.ndarray, location: np.ndarray, scale: np.ndarray
    ) -> expfam.Gaussian | None:
        return None


@dataclass(frozen=True)
class FixedHyperparameters(_Point):
    """ε stays at the values that the GPflow parameters hold."""

    def initial(self, size: int, has_seen_data: bool) -> np.ndarray:
        return np.zeros(0)

    def bounds(self, epsilon: ParameterVector) -> list[Bounds]:
        return []

    def draw(
        self, variables: tf.Tensor, location: tf.Tensor, scale: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        return location[None]

    def penalty(self, variables: tf.Tensor, epsilon: ParameterVector) -> tf.Tensor:
        return tf.zeros([], tf.float64)


@dataclass(frozen=True)
class PointHyperparameters(_Point):
    """ε maximises the local free energy of the newest batch (PVI 2018, appendix C.2).

    Parameters that carry a GPflow prior contribute its log density (MAP); without priors this is
    maximum likelihood. Priors are densities in the space that the parameter's ``prior_on`` names.

    :param max_log_decrease: by at most so much does the logarithm of a constrained parameter fall
        in one update, to first order. A batch of one point has its maximum likelihood at no noise
        at all, and from there no gradient leads back.
    :param remember: add the log evidence that ε gives to all earlier pseudo-observations, as the
        bounds of appendices C.1 and C.2 (eq. 93) do; without it the newest batch alone decides.
    """

    max_log_decrease: float = 5.0
    remember: bool = False

    def __post_init__(self) -> None:
        if not self.max_log_decrease > 0.0:
            raise InvalidDataError(
                f"max_log_decrease must be positive, got {self.max_log_decrease}"
            )

    @property
    def remembers(self) -> bool:
        return self.remember

    def bounds(self, epsilon: ParameterVector) -> list[Bounds]:
        lowest = {True: -self.max_log_decrease, False: None}
        return [(lowest[bool(constrained)], None) for constrained in epsilon.is_constrained()]

    def initial(self, size: int, has_seen_data: bool) -> np.ndarray:
        return np.zeros(size)

    def draw(
        self, variables: tf.Tensor, location: tf.Tensor, scale: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        return (location + tf.linalg.matvec(scale, variables))[None]

    def penalty(self, variables: tf.Tensor, epsilon: ParameterVector) -> tf.Tensor:
        return -epsilon.log_prior_density()


@dataclass(frozen=True)
class VariationalHyperparameters:
    """A Gaussian q(ε) on the unconstrained vector, structured with the function.

    The variational family is ``q(f, ε) = q(ε) p̃(f | ε) t_b(b) / 𝒵_b(ε)`` (maths page, section 2).

    :param full_covariance: a full covariance matrix instead of independent Gaussians.
    :param num_samples: S, values of ε at which the bound is averaged; even. A full covariance
        takes at least 2 E, so that the samples' covariance can be made exact.
    :param prior_log_scale: width of the default prior, as a standard deviation of log ε_i (see
        :meth:`ParameterVector.prior_moments`); parameters with a GPflow prior use that.
    :param forgetting_factor: λ in (0, 1]: the ε part of every factor is raised to λ whenever a new
        batch comes, so that ``q_cav(ε) ∝ p(ε) Π_a t_a(ε)^(λ^age)`` (stabilised forgetting: Kulhavý
        & Zarrop 1993). What factors say of f stays. 1 forgets nothing. Synchronous rounds, in which
        batches have no order, forget nothing either.
    """

    full_covariance: bool = False
    num_samples: int = 8
    prior_log_scale: float = 2.0
    forgetting_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.num_samples < 2 or self.num_samples % 2:
            raise InvalidDataError(f"num_samples must be even and positive, got {self.num_samples}")
        if not self.prior_log_scale > 0.0:
            raise InvalidDataError(f"prior_log_scale must be positive, got {self.prior_log_scale}")
        if not 0.0 < self.forgetting_factor <= 1.0:
            raise InvalidDataError(
                f"forgetting_factor must lie in (0, 1], got {self.forgetting_factor}"
            )

    @property
    def remembers(self) -> bool:
        return False  # q(ε) does

    @property
    def _family(self) -> type[expfam.Gaussian]:
        return expfam.Normal if self.full_covariance else expfam.MeanFieldNormal

    def prior(self, epsilon: ParameterVector) -> expfam.Gaussian:
        mean, scale = epsilon.prior_moments(self.prior_log_scale)
        return self._family.from_mean_scale(mean, np.diag(scale)).as_arrays()

    def location_scale(
        self, cavity: expfam.Gaussian | None, epsilon: ParameterVector
    ) -> tuple[np.ndarray, np.ndarray]:
        assert cavity is not None
        return np.asarray(cavity.mean), np.asarray(cavity.scale)

    def initial(self, size: int, has_seen_data: bool) -> np.ndarray:
        width = WIDTH_UNDER_CAVITY if has_seen_data else WIDTH_UNDER_PRIOR
        variables = np.zeros(size + self._num_scale_variables(size))
        variables[size:] = self._flat_lower(np.log(width) * np.eye(size))
        return variables

    def bounds(self, epsilon: ParameterVector) -> list[Bounds]:
        return [(None, None)] * (epsilon.size + self._num_scale_variables(epsilon.size))

    def _flat_lower(self, lower: np.ndarray) -> np.ndarray:
        full = self.full_covariance and len(lower) > 0
        return tfp.math.fill_triangular_inverse(lower) if full else np.diag(lower)

    def _num_scale_variables(self, size: int) -> int:
        return size * (size + 1) // 2 if self.full_covariance else size

    @property
    def num_draws(self) -> None:
        return None

    def noise(self, size: int, seed: int, full: bool = True) -> np.ndarray:
        if not self.full_covariance:
            pairs = self.num_samples // 2
            return standard_noise(2 * (pairs if full else (pairs + 1) // 2), size, seed)
        return standard_noise(max(self.num_samples, 2 * size), size, seed, whiten=True)

    def _whitened(self, variables: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [E] and lower factor [E, E] of q in whitened coordinates."""
        mean, raw = variables[:size], variables[size:]
        full = self.full_covariance and size > 0
        lower = tfp.math.fill_triangular(raw) if full else tf.linalg.diag(raw)
        return mean, tf.linalg.set_diag(lower, tf.exp(tf.linalg.diag_part(lower)))

    def draw(
        self, variables: tf.Tensor, location: tf.Tensor, scale: tf.Tensor, noise: tf.Tensor
    ) -> tf.Tensor:
        mean, lower = self._whitened(variables, location.shape[0])
        white = mean + tf.linalg.matmul(noise, lower, transpose_b=True)
        return location + tf.linalg.matmul(white, scale, transpose_b=True)

    def penalty(self, variables: tf.Tensor, epsilon: ParameterVector) -> tf.Tensor:
        size = epsilon.size
        mean, lower = self._whitened(variables, size)
        standard = self._family.from_mean_scale(tf.zeros_like(mean), tf.eye(size, dtype=mean.dtype))
        return self._family.from_mean_scale(mean, lower).kl_divergence(standard)

    def posterior(
        self, variables: np.ndarray, location: np.ndarray, scale: np.ndarray
    ) -> expfam.Gaussian:
        mean, lower = self._whitened(tf.constant(variables), len(location))
        q_mean = location + scale @ mean.numpy()
        return self._family.from_mean_scale(q_mean, scale @ lower.numpy()).as_arrays()
