"""Projects earlier factors onto other pseudo-points: ``t'(b) = exp E[log t(a) | b]``.

Shared points do this at every update (maths page, "earlier pseudo-observations on new points").
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp import pvi, triangular
from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.whitening import on_points
from streaming_gp.gp.process.compiled import FLOAT
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, plain
from streaming_gp.gp.process.pseudo_observations import PseudoObservations

GPLedger = pvi.Ledger[Process]


class EarlierPoints(NamedTuple):
    """Points a of earlier factors as functions of new ones, b = m(Z_b) + L c with c ~ N(0, I).

    :param A: ``L⁻¹ k(Z_b, Z_a)`` [G, M, R].
    :param covariance: ``k(Z_a, Z_a)``, without a nugget [G, R, R].
    :param mean: ``m(Z_a)`` [G, R, C].
    """

    A: np.ndarray
    covariance: np.ndarray
    mean: np.ndarray


class Projection:
    """The projections of factors onto new points, under the prior at one ε.

    :param prior: The prior.
    :param Z: The new points [M, D].
    :param nugget: The variance of their white noise.
    :param shared_nugget: The part of it that the earlier points have as well, which are as many.
    :raises NumericalError: if the covariance of the new points is not positive.
    """

    def __init__(
        self, prior: PriorAt, Z: np.ndarray, nugget: float, shared_nugget: float = 0.0
    ) -> None:
        self._prior = prior
        self._Z = Z
        self._nugget = nugget
        self._shared_nugget = shared_nugget
        self._mean = prior.mean(Z)
        parts = [_factorised(K + nugget * np.eye(len(Z))) for K in prior.covariance(Z)]
        self._chol = np.stack(parts)
        self._known: dict[bytes, EarlierPoints] = {}

    def of_factor(self, factor: PseudoPointFactor) -> PseudoPointFactor:
        """The factor on the new points; its constant is what log t' has beside its own."""
        members = plain(Process(factor.pseudo_observations))
        if not members:
            return factor
        designs, residuals, traces = zip(*map(self._about, members), strict=True)
        design, residual = (np.concatenate(part, axis=1) for part in (designs, residuals))
        found, constant = on_points(self._Z, self._chol, self._mean, design, residual, self._nugget)
        unexplained = sum(traces) - float(np.sum(design**2))
        constant -= 0.5 * self._prior.num_columns * unexplained
        return replace(factor, pseudo_observations=(found,), log_scale=factor.log_scale + constant)

    def _about(self, one: PseudoObservations) -> tuple[np.ndarray, np.ndarray, float]:
        """What observations of earlier points say of c: design [G, R, M], residual [G, R, C]; and
        the trace of their prior covariance.
        """
        A, K, mean = self._earlier(one.Z)
        R = one.precision_factor
        Rt = np.swapaxes(R, 1, 2)
        trace = np.sum(R * (K @ R)) + one.nugget * np.sum(R**2)
        return Rt @ np.swapaxes(A, 1, 2), one.pseudo_targets - Rt @ mean, float(trace)

    def _earlier(self, Z: np.ndarray) -> EarlierPoints:
        """Earlier points, which most factors of a ledger have in common."""
        key = Z.tobytes()
        if key not in self._known:
            between = self._prior.covariance(self._Z, Z)
            between = between + self._shared_nugget * np.eye(len(self._Z), len(Z))
            A = np.stack(
                [triangular.solve(*pair) for pair in zip(self._chol, between, strict=True)]
            )
            self._known[key] = EarlierPoints(A, self._prior.covariance(Z), self._prior.mean(Z))
        return self._known[key]


def project_ledger(
    local: LocalModel, ledger: GPLedger, epsilon: np.ndarray, offsets: np.ndarray, problem: Problem
) -> GPLedger:
    """Every factor on the problem's points, moved by ``offsets``.

    :raises NumericalError: if the covariance of the points is not positive.
    """
    nugget = float(problem.nugget)
    shared = float(problem.earlier.shared_nugget) if problem.earlier else 0.0
    if shared == nugget > 0.0:  # new and earlier points are the same variables
        return ledger
    Z = problem.moved(tf.constant(offsets, FLOAT)).numpy()
    projection = Projection(PriorAt(local.prior, epsilon[None]), Z, nugget, shared)
    factors = ledger.factors.items()
    return ledger.with_factors({name: projection.of_factor(one) for name, one in factors})


def _factorised(K: np.ndarray) -> np.ndarray:
    L = triangular.cholesky(K)
    if L is None:
        raise NumericalError("the covariance of the pseudo-points is not positive")
    return L
