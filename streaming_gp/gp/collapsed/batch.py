"""A batch under its cavity, and what its derivatives say of the prior's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.collapsed.cavity import Cavity, Observed, conditioned
from streaming_gp.gp.collapsed.prior_values import PriorValues
from streaming_gp.gp.collapsed.stacks import transposed


class UnderCavity(NamedTuple):
    """A batch under its cavity at S values of ε, or the derivatives of a bound by each entry of it.

    :param among: The covariance of the points [S, M, M]; the nugget is in it.
    :param between: That of points and data [S, M, N]; N = 0 where the points are the data.
    :param variance: The variance at the data [S, N], likewise.
    :param residual: Observations less their mean [S, N, C].
    :param noise: The variance of the noise [S, N].
    """

    among: np.ndarray
    between: np.ndarray
    variance: np.ndarray
    residual: np.ndarray
    noise: np.ndarray


@dataclass(frozen=True, eq=False)
class BatchUnderCavity:
    """A cavity at the points of a batch, and at its data where these are others.

    :param cavity: At the points, and at the data after them.
    :param num_points: The number M of points.
    """

    cavity: Cavity
    num_points: int

    def log_evidence(self, by_evidence: float) -> float:
        """What the cavity adds to the bound, summed over ε.

        :param by_evidence: How often its log evidence is added.
        """
        return by_evidence * self.cavity.log_evidence

    def described(self, prior: PriorValues, Y: np.ndarray, nugget: float) -> UnderCavity:
        """The batch, with observations Y [N, C] and the points' nugget."""
        R, white = self._num_earlier, self.cavity.white
        V_points, V_data = self._split(self.cavity.projected)
        among = prior.among[:, R:, R:] - stacks.product(transposed(V_points), V_points)
        among = stacks.with_diagonal(among, nugget)
        mean = prior.mean_data if self._has_points else prior.mean_points[:, R:]
        return UnderCavity(
            among,
            prior.between[:, R:] - stacks.product(transposed(V_points), V_data),
            prior.variance - np.einsum("srn,srn->sn", V_data, V_data),
            Y - mean - transposed(V_data if self._has_points else V_points) @ white,
            prior.noise,
        )

    def pulled_back(self, by: UnderCavity, by_evidence: float, prior: PriorValues) -> PriorValues:
        """Derivatives by the prior's values.

        Those by V are linear in V and w, so that ``Pᵀ V̄``, those by k(Z, ·), come from ``Pᵀ V``.

        :param by: Those by what :meth:`described` gives.
        :param by_evidence: That by the cavity's log evidence.
        """
        R, back = self._num_earlier, self.cavity.back(self.cavity.projected)
        points, data = self._split(back)
        by_points = -2.0 * stacks.product(points, by.among)
        by_points -= stacks.product(data, transposed(by.between))
        by_data = data * (-2.0 * by.variance[:, None])
        by_data -= stacks.product(points, by.between)
        observed, by_observed = (data, by_data) if self._has_points else (points, by_points)
        by_observed -= self.cavity.white_back @ transposed(by.residual)
        by_between = np.concatenate([by_points, by_data], axis=2)
        by_K, by_mean = self.cavity.pullback(
            back, by_between, -(observed @ by.residual), by_evidence
        )
        found = PriorValues(*map(np.zeros_like, prior))
        found.among[:, :R, :R], found.among[:, R:, R:] = by_K, by.among
        found.among[:, :R, R:] = by_between[:, :, : self.num_points]
        found.between[:, :R], found.between[:, R:] = by_between[:, :, self.num_points :], by.between
        found.variance[:], found.noise[:] = by.variance, by.noise
        found.mean_points[:, :R] = by_mean
        by_mean_data = found.mean_data if self._has_points else found.mean_points[:, R:]
        by_mean_data -= by.residual
        return found

    @property
    def _num_earlier(self) -> int:
        return self.cavity.chol.shape[1]

    @property
    def _has_points(self) -> bool:
        return self.cavity.projected.shape[2] > self.num_points

    def _split(self, projected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Columns of the points [S, R, M], and of the data [S, R, N or 0]."""
        return projected[:, :, : self.num_points], projected[:, :, self.num_points :]


def under_cavity(prior: PriorValues, observed: Observed, has_points: bool) -> BatchUnderCavity:
    """The batch under its cavity.

    :param prior: The prior of one group; its points are the cavity's and then the batch's.
    :param observed: What the cavity is conditioned on.
    :param has_points: Whether the batch has points beside its data.
    :raises numpy.linalg.LinAlgError: if a covariance is not positive.
    """
    R = len(observed.nugget)
    between = prior.among[:, :R, R:]
    if has_points:
        between = np.concatenate([between, prior.between[:, :R]], axis=2)
    cavity = conditioned(observed, prior.among[:, :R, :R], between, prior.mean_points[:, :R])
    return BatchUnderCavity(cavity, prior.among.shape[1] - R)
