"""A batch on pseudo-points at one ε, in NumPy: what its sites say of them, and what they leave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.shown_errors import shown_error
from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.collapsed.stacks import transposed
from streaming_gp.gp.fitting.absorbed import Left
from streaming_gp.gp.fitting.places import Inputs, Places, Start
from streaming_gp.gp.fitting.projection import OfPoints, Projection
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.numerics.linalg import compress_rows


@dataclass(frozen=True, eq=False)
class AtPoints:
    """The data, and what the points take over, as functions of points ``b = m + L c``.

    :param Z: The points [M, D].
    :param mean: m [G, M, C].
    :param chol: L [G, M, M].
    :param nugget: The variance of their white noise.
    :param data: The data.
    :param earlier: Earlier pseudo-observations that they take over, whose noise is one; () if there
        are none.
    """

    Z: np.ndarray
    mean: np.ndarray
    chol: np.ndarray
    nugget: float
    data: OfPoints
    earlier: tuple[OfPoints, ...] = ()

    @cached_property
    def joint(self) -> OfPoints:
        """The data, and after them what is taken over."""
        design, variance, residual = zip(self.data, *self.earlier, strict=True)
        return OfPoints(
            np.concatenate(design, axis=2),
            np.concatenate(variance, axis=1),
            np.concatenate(residual, axis=1),
        )

    def precisions(self, w: np.ndarray) -> np.ndarray:
        """Those of all observations, from those of the data [G, N]."""
        number = self.joint.variance.shape[1] - w.shape[1]
        return np.concatenate([w, np.ones((len(w), number))], axis=1)

    @cached_property
    def left(self) -> np.ndarray:
        """The variance of f at the data that the points leave [G, N]."""
        return np.maximum(self.data.left, 0.0)

    def said(
        self, w: np.ndarray, precision_mean: np.ndarray | float
    ) -> tuple[PseudoObservations, Left]:
        """What sites on the data say of the points, and what these leave of the data.

        The residuals are those of observations of precision w, to which a site of precision-mean λ
        adds ``λ / w``.

        :param w: [G, N].
        :param precision_mean: λ [G, N, C], or zero where all is in the residuals.
        """
        N = w.shape[1]
        root = np.sqrt(self.precisions(w))
        design = self.joint.design * root[:, None]
        targets = self.joint.residual * root[:, :, None]
        targets[:, :N] += precision_mean / root[:, :N, None]
        rows, fewer = compress_rows(transposed(design[:, :, :N]), targets[:, :N])
        R = stacks.solve(self.chol, transposed(rows), transposed=True)
        said = PseudoObservations(self.Z, R, fewer + transposed(R) @ self.mean, self.nugget)
        unexplained = float(np.mean(self.left / (1.0 / w + self.nugget)))
        return said, Left(unexplained, shown_error(self.chol, design, targets, self.nugget))


def on_own_points(
    places: Places, data: Inputs, start: Start, observed: np.ndarray | float
) -> AtPoints:
    """A batch on points of its own under a cavity.

    :param observed: Observations [G, N, C], or zero.
    :raises NumericalError: if the covariance of the points is not positive.
    """
    points = places.at(start.Z)
    try:
        L = stacks.cholesky(places.cavity.covariance(points.X, points.V), start.nugget)
    except np.linalg.LinAlgError:
        raise NumericalError("the cavity covariance at the pseudo-points is not positive") from None
    design = stacks.solve(L, places.covariance(points, data))
    of_data = OfPoints(design, data.variance, observed - data.mean)
    return AtPoints(points.X, points.mean, L, start.nugget, of_data)


def on_shared_points(
    projection: Projection,
    data: Inputs,
    observed: np.ndarray | float,
    earlier: tuple[PseudoObservations, ...],
) -> AtPoints:
    """A batch on points that take over earlier pseudo-observations, under the prior."""
    design = stacks.solve(projection.chol, projection.prior.covariance(projection.Z, data.X))
    return AtPoints(
        projection.Z,
        projection.mean,
        projection.chol,
        projection.nugget,
        OfPoints(design, data.variance, observed - data.mean),
        tuple(projection.observed(one) for one in earlier),
    )
