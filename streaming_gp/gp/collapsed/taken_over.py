"""Points that take over what earlier points said: pseudo-observations are data beside the batch's.

They are ``s = Rᵀ u + noise`` of unit variance, for u at earlier points Z_a. On new points b they
are linear functions of the whitened ones, as the batch is: ``D = chol(K_bb)⁻¹ K_ba R``. What the
points leave of them, ``tr Rᵀ (K_aa − K_ab K_bb⁻¹ K_ba) R``, counts as in Titsias' bound (2009), and
what they said under the prior, their log evidence, is taken off again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.collapsed.batch import UnderCavity
from streaming_gp.gp.collapsed.bounds import OnPoints, low_rank
from streaming_gp.gp.collapsed.cavity import Cavity, Observed, conditioned
from streaming_gp.gp.collapsed.prior_values import PriorValues
from streaming_gp.gp.collapsed.stacks import transposed
from streaming_gp.numerics.linalg import LOG_TWO_PI


@dataclass(frozen=True, eq=False)
class TakenOver:
    """Earlier pseudo-observations as data of a batch's points, in one group.

    :param cavity: What they say without the batch, under the prior.
    """

    cavity: Cavity

    def described(
        self, prior: PriorValues, Y: np.ndarray, nugget: float, shared: np.ndarray
    ) -> UnderCavity:
        """The batch under the prior, and after its data the R pseudo-observations.

        :param prior: The prior; its points are the earlier ones and then the new ones.
        :param Y: Observations [N, C].
        :param nugget: That of the new points.
        :param shared: The variance of white noise that earlier points and new ones have in common,
            where they are the same variables [R, M].
        """
        R, said = self._num_earlier, self.cavity.observed
        of_earlier = transposed(said.weighted(prior.among[:, :R, R:] + shared))
        variance = np.sum(self.cavity.chol**2, axis=2) - 1.0
        earlier = said.targets - said.weighted(prior.mean_points[:, :R])
        return UnderCavity(
            stacks.with_diagonal(prior.among[:, R:, R:], nugget),
            np.concatenate([prior.between[:, R:], of_earlier], axis=2),
            np.concatenate([prior.variance, variance], axis=1),
            np.concatenate([Y - prior.mean_data, earlier], axis=1),
            np.concatenate([prior.noise, np.ones_like(variance)], axis=1),
        )

    def log_evidence(self, by_evidence: float) -> float:
        """What is added to the bound, summed over ε.

        :param by_evidence: How often the log evidence of what is taken over is added.
        """
        return (by_evidence - 1.0) * self.cavity.log_evidence

    def pulled_back(self, by: UnderCavity, by_evidence: float, prior: PriorValues) -> PriorValues:
        """Derivatives by the prior's values, as those of :class:`.BatchUnderCavity`."""
        R, said = self._num_earlier, self.cavity.observed
        N = by.variance.shape[1] - R
        nothing = np.zeros((len(by.among), R, 0))
        none = np.zeros((len(by.among), R, by.residual.shape[2]))
        by_K, by_mean = self.cavity.pullback(nothing, nothing, none, by_evidence - 1.0)
        weighted = said.unweighted(by.variance[:, N:, None] * np.eye(R))
        by_K += said.unweighted(transposed(weighted))
        found = PriorValues(*map(np.zeros_like, prior))
        found.among[:, :R, :R] = by_K
        found.among[:, :R, R:] = said.unweighted(transposed(by.between[:, :, N:]))
        found.among[:, R:, R:] = by.among
        found.between[:, R:] = by.between[:, :, :N]
        found.variance[:], found.noise[:] = by.variance[:, :N], by.noise[:, :N]
        found.mean_points[:, :R] = by_mean - said.unweighted(by.residual[:, N:])
        found.mean_data[:] = -by.residual[:, :N]
        return found

    @property
    def _num_earlier(self) -> int:
        return self.cavity.chol.shape[1]


def taken_over(prior: PriorValues, observed: Observed) -> TakenOver:
    """What earlier points said, under the prior.

    :raises numpy.linalg.LinAlgError: if a covariance is not positive.
    """
    R = len(observed.nugget)
    nothing, mean = prior.among[:, :R, :0], prior.mean_points[:, :R]
    return TakenOver(conditioned(observed, prior.among[:, :R, :R], nothing, mean))


def value_and_gradient(
    bound: OnPoints, batch: UnderCavity, num_earlier: int
) -> tuple[float, UnderCavity]:
    """The bound in nats, summed over ε, and its derivatives.

    :param batch: What :meth:`TakenOver.described` gives.
    :param num_earlier: The number of pseudo-observations, whose constants are not counted.
    :raises numpy.linalg.LinAlgError: if a covariance is not positive.
    """
    L = stacks.cholesky(batch.among)
    joint = stacks.solve(L, batch.between)
    S, NR, C = batch.residual.shape
    N = NR - num_earlier
    noise = batch.noise[:, :N]
    of_data = batch._replace(variance=batch.variance[:, :N], noise=noise)
    left, unexplained, widened = bound.left(joint[:, :, :N], of_data)
    found = low_rank(joint, np.concatenate([widened, batch.noise[:, N:]], axis=1), batch.residual)
    trace = np.sum(batch.variance[:, N:]) - np.sum(joint[:, :, N:] ** 2)
    value = found.value - C * (bound.correction(unexplained / noise) + 0.5 * trace)
    by_noise, by_variance = bound.by_variances(found.by_diagonal[:, :N], left, noise, C)
    by_noise, by_variance = (
        np.concatenate([part, np.full((S, num_earlier), more)], axis=1)
        for part, more in ((by_noise, 0.0), (by_variance, -0.5 * C))
    )
    by_joint = found.by_design - 2.0 * by_variance[:, None] * joint
    by_between = stacks.solve(L, by_joint, transposed=True)
    back = stacks.solve(L, joint, transposed=True)
    # As in Cavity.pullback: no rotation of the whitened points changes anything.
    by_among = -0.5 * stacks.product(by_between, transposed(back))
    by = UnderCavity(by_among, by_between, by_variance, -found.a, by_noise)
    return float(value - 0.5 * S * N * C * LOG_TWO_PI), by
