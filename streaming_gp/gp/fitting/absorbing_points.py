"""Gaussian noise at one ε, on points of a batch's own: what a fit gets from its bound, in NumPy.

The bounds are the energies of power EP, of which the variational bound is one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.shown_errors import shown_error
from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.collapsed.batch import UnderCavity
from streaming_gp.gp.collapsed.bounds import OnPoints
from streaming_gp.gp.fitting.absorbed import Absorbed
from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.problem import NUGGET, Data, Place
from streaming_gp.gp.process.factorised import Factorised
from streaming_gp.gp.process.pseudo_observations import Observations, PseudoObservations
from streaming_gp.linalg import compress_rows


class Start(NamedTuple):
    """Where points are.

    :param Z: The points [M, D].
    :param nugget: The variance of their white noise.
    """

    Z: np.ndarray
    nugget: float


class Inputs(NamedTuple):
    """Inputs under the cavity: X [N, D], their projection [G, R, N] and the mean of f [G, N, C]."""

    X: np.ndarray
    V: np.ndarray
    mean: np.ndarray


class BatchAtRest:
    """A batch under a cavity, at one ε.

    :param cavity: The cavity at ε.
    :param alpha: The power of the energy, in [0, 1].
    :param data: X [N, D] and Y [N, P].
    :param precision: One over the variance of the noise [N, P].
    """

    def __init__(self, cavity: Factorised, alpha: float, data: Data, precision: np.ndarray) -> None:
        self.cavity = cavity
        self.bound = OnPoints(alpha)
        self.data = self._at(data[0])
        V = self.data.V
        self.variance = cavity.prior.variance(data[0]) - np.einsum("grn,grn->gn", V, V)
        groups = len(precision), len(cavity.prior.groups), -1
        Y, noise = (np.reshape(one, groups).swapaxes(0, 1) for one in (data[1], 1.0 / precision))
        self.residual, self.noise = Y - self.data.mean, noise[:, :, 0]

    def start(self, place: Place, at: Observations | None) -> Start:
        """Points at chosen inputs, or at those that the batch has had before.

        :raises NumericalError: if the cavity covariance is not finite.
        """
        if at is not None and at.nugget > 0.0:
            return Start(at.Z, float(at.nugget))
        variance = np.mean(self.variance, axis=0)
        if not np.isfinite(variance).all():
            raise NumericalError("the cavity covariance at the batch is not finite")
        everything = np.arange(len(variance))
        found = Candidates(
            self.data.X,
            variance,
            lambda some: self._between(everything, some),
            lambda some: self._between(some, some),
            self._weights,
        )
        return Start(place(found), float(NUGGET * np.mean(variance)))

    def on(self, start: Start) -> Absorbed:
        """What the batch says of these points.

        :raises NumericalError: if their covariance is not positive.
        """
        points = self._at(start.Z)
        among = self.cavity.covariance(points.X, points.V)
        between = self._covariance(points, self.data)
        noise, residual = self.noise, self.residual
        try:
            L = stacks.cholesky(among, start.nugget)
        except np.linalg.LinAlgError:
            raise NumericalError(
                "the cavity covariance at the pseudo-points is not positive"
            ) from None
        A = stacks.solve(L, between)
        batch = UnderCavity(among, between, self.variance, residual, noise)
        _, unexplained, widened = self.bound.left(A, batch)
        root = np.sqrt(widened)[:, None]
        design, targets = A / root, residual / stacks.transposed(root)
        rows, fewer = compress_rows(stacks.transposed(design), targets)
        R = stacks.solve(L, stacks.transposed(rows), transposed=True)
        found = PseudoObservations(
            points.X, R, fewer + stacks.transposed(R) @ points.mean, start.nugget
        )
        return Absorbed(
            found,
            self.bound.value(A, unexplained, batch),
            float(np.mean(unexplained / (widened + start.nugget))),
            shown_error=shown_error(L, design, targets, start.nugget),
        )

    # ---- covariances under the cavity ----

    def _at(self, X: np.ndarray) -> Inputs:
        V = self.cavity.project(X)
        return Inputs(X, V, self.cavity.mean(X, V))

    def _covariance(self, one: Inputs, other: Inputs) -> np.ndarray:
        """Covariances [G, N, K] of f; white noise is shared by no two sets of inputs."""
        prior = self.cavity.prior.covariance(one.X, other.X)
        return prior - stacks.product(stacks.transposed(one.V), other.V)

    def _between(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Covariances [K, K2] of f at some of the data, averaged over groups."""
        X, V, mean = self.data
        one, other = (Inputs(X[rows], V[:, :, rows], mean[:, rows]) for rows in (some, others))
        return np.mean(self._covariance(one, other), axis=0)

    def _weights(self) -> np.ndarray:
        """Site precisions [N], summed over latent functions.

        In the energies of power EP what points leave widens the noise: one at the first datum here.
        """
        widened = self.noise
        if self.bound.alpha > 0.0:
            first = self._at(self.data.X[:1])
            variance = self.cavity.covariance(first.X, first.V)[:, 0]
            left = self.variance - self._covariance(first, self.data)[:, 0] ** 2 / variance
            widened = self.noise + self.bound.alpha * np.maximum(left, 0.0)
        return np.asarray(self.residual.shape[2] * np.sum(1.0 / widened, axis=0))
