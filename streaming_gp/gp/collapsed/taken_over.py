"""Points that take over what earlier points said: pseudo-observations are data beside the batch's.

They are ``s = Rᵀ u + noise`` of unit variance, for u at earlier points Z_a. On new points b they
are linear functions of the whitened ones, as the batch is: ``D = chol(K_bb)⁻¹ K_ba R``. What the
points leave of them, ``tr Rᵀ (K_aa − K_ab K_bb⁻¹ K_ba) R``, counts as in Titsias' bound (2009), and
what they said under the prior, their log evidence, is taken off again.
"""

from __future__ import annotations

import numpy as np

from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.collapsed.batch import UnderCavity
from streaming_gp.gp.collapsed.bounds import LowRank, OnPoints, low_rank
from streaming_gp.gp.collapsed.cavity import Observed, conditioned
from streaming_gp.gp.collapsed.prior_values import PriorValues
from streaming_gp.gp.collapsed.stacks import transposed
from streaming_gp.linalg import LOG_TWO_PI


class TakenOver:
    """A batch and earlier pseudo-observations on points, in one group and under the prior.

    :param prior: The prior; its points are the earlier ones and then the new ones.
    :param observed: What earlier points said.
    :param Y: Observations [N, C].
    :param nugget: That of the new points.
    :param shared: The variance of white noise that earlier points and new ones have in common,
        where they are the same variables [R, M].
    :raises numpy.linalg.LinAlgError: if a covariance is not positive.
    """

    def __init__(
        self,
        prior: PriorValues,
        observed: Observed,
        Y: np.ndarray,
        nugget: float,
        shared: np.ndarray,
    ) -> None:
        R = len(observed.nugget)
        nothing, mean = prior.among[:, :R, :0], prior.mean_points[:, :R]
        self.prior, self.observed = prior, observed
        self.alone = conditioned(observed, prior.among[:, :R, :R], nothing, mean)
        self.L = stacks.cholesky(prior.among[:, R:, R:], nugget)
        of_data = prior.between[:, R:]
        of_earlier = transposed(observed.weighted(prior.among[:, :R, R:] + shared))
        self.joint = stacks.solve(self.L, np.concatenate([of_data, of_earlier], axis=2))
        residuals = Y - prior.mean_data, observed.targets - observed.weighted(mean)
        self.residual = np.concatenate(residuals, axis=1)

    def value_and_gradient(self, bound: OnPoints, by_evidence: float) -> tuple[float, PriorValues]:
        """The bound in nats, summed over ε, and its derivatives by the prior's values.

        :param by_evidence: How often the log evidence of what is taken over is added.
        """
        noise, (S, _, C) = self.prior.noise, self.residual.shape
        N, by_alone = noise.shape[1], by_evidence - 1.0
        A, D = self.joint[:, :, :N], self.joint[:, :, N:]
        batch = UnderCavity(self.L, A, self.prior.variance, self.residual[:, :N], noise)
        left, unexplained, widened = bound.left(A, batch)
        diagonal = np.concatenate([widened, np.ones((S, D.shape[2]))], axis=1)
        found = low_rank(self.joint, diagonal, self.residual)
        trace = np.sum(self.alone.chol**2) - self.alone.chol.shape[1] * S - np.sum(D**2)
        value = found.value - C * (bound.correction(unexplained / noise) + 0.5 * trace)
        value += by_alone * self.alone.log_evidence - 0.5 * batch.residual.size * LOG_TWO_PI
        by_diagonal = found.by_diagonal[:, :N]
        by_noise, by_variance = bound.by_variances(by_diagonal, left, noise, C)
        by_joint = found.by_design
        by_joint[:, :, :N] -= 2.0 * by_variance[:, None] * A
        by_joint[:, :, N:] += C * D
        by = self._pulled_back(by_joint, found, by_alone)
        by.variance[:], by.noise[:] = by_variance, by_noise
        return float(value), by

    def _pulled_back(self, by_joint: np.ndarray, found: LowRank, by_alone: float) -> PriorValues:
        """Derivatives by covariances and means."""
        R, N, C = len(self.observed.nugget), self.prior.noise.shape[1], found.a.shape[2]
        by_products = stacks.solve(self.L, by_joint, transposed=True)
        back = stacks.solve(self.L, self.joint, transposed=True)
        nothing = np.zeros((len(back), R, 0))
        by_K, by_mean = self.alone.pullback(nothing, nothing, np.zeros((len(back), R, C)), by_alone)
        half = self.observed.unweighted(np.eye(R)[None])
        by_K -= 0.5 * C * (half @ transposed(half))
        by = PriorValues(*map(np.zeros_like, self.prior))
        by.among[:, :R, :R] = by_K
        by.among[:, :R, R:] = self.observed.unweighted(transposed(by_products[:, :, N:]))
        # As in Cavity.pullback: no rotation of the whitened points changes anything.
        by.among[:, R:, R:] = -0.5 * stacks.product(by_products, transposed(back))
        by.between[:, R:] = by_products[:, :, :N]
        by.mean_points[:, :R] = by_mean + self.observed.unweighted(found.a[:, N:])
        by.mean_data[:] = found.a[:, :N]
        return by
