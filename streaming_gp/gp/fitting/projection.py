"""Projects earlier factors onto other pseudo-points: ``t'(b) = exp E[log t(a) | b]``.

Shared points do this at every update (maths page, "earlier pseudo-observations on new points").
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp import pvi
from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.whitening import on_points
from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.process.graphs import FLOAT
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, PseudoPointFactor, plain

GPLedger = pvi.Ledger[Process]


class OfPoints(NamedTuple):
    """Observations as functions of whitened points c: their mean, ``Dᵀ c``, and what is left.

    :param design: D [G, M, N].
    :param variance: Of what is observed, without its noise [G, N].
    :param residual: The observations less their mean [G, N, C].
    """

    design: np.ndarray
    variance: np.ndarray
    residual: np.ndarray

    @property
    def left(self) -> np.ndarray:
        """The variance that the points leave [G, N], which rounding may take below zero."""
        return self.variance - np.einsum("gmn,gmn->gn", self.design, self.design)


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
    :ivar mean: m(Z) [G, M, C].
    :ivar chol: L [G, M, M].
    :raises NumericalError: if the covariance of the new points is not positive.
    """

    def __init__(
        self, prior: PriorAt, Z: np.ndarray, nugget: float, shared_nugget: float = 0.0
    ) -> None:
        self.prior = prior
        self.Z = Z
        self.nugget = nugget
        self.mean = prior.mean(Z)
        try:
            self.chol = stacks.cholesky(prior.covariance(Z), nugget)
        except np.linalg.LinAlgError:
            raise NumericalError("the covariance of the pseudo-points is not positive") from None
        self._shared_nugget = shared_nugget
        self._known: dict[bytes, EarlierPoints] = {}

    @property
    def moves_nothing(self) -> bool:
        """Whether new and earlier points are the same variables."""
        return self._shared_nugget == self.nugget > 0.0

    def of_ledger(self, ledger: GPLedger) -> GPLedger:
        """Every factor on the new points."""
        if self.moves_nothing:
            return ledger
        factors = ledger.factors.items()
        return ledger.with_factors({name: self.of_factor(one) for name, one in factors})

    def of_factor(self, factor: PseudoPointFactor) -> PseudoPointFactor:
        """The factor on the new points; its constant is what log t' has beside its own."""
        members = plain(Process(factor.pseudo_observations))
        if not members:
            return factor
        seen = [self.observed(one) for one in members]
        design = np.concatenate([np.swapaxes(one.design, 1, 2) for one in seen], axis=1)
        residual = np.concatenate([one.residual for one in seen], axis=1)
        found, constant = on_points(self.Z, self.chol, self.mean, design, residual, self.nugget)
        left = sum(float(np.sum(one.left)) for one in seen)
        constant -= 0.5 * self.prior.num_columns * left
        return replace(factor, pseudo_observations=(found,), log_scale=factor.log_scale + constant)

    def observed(self, one: PseudoObservations) -> OfPoints:
        """Observations of earlier points as functions of the new ones; their noise is one."""
        A, K, mean = self._earlier(one.Z)
        R = one.precision_factor
        variance = np.sum(R * (K @ R + one.nugget * R), axis=1)
        return OfPoints(A @ R, variance, one.pseudo_targets - np.swapaxes(R, 1, 2) @ mean)

    def _earlier(self, Z: np.ndarray) -> EarlierPoints:
        """Earlier points, which most factors of a ledger have in common."""
        key = Z.tobytes()
        if key not in self._known:
            between = self.prior.covariance(self.Z, Z)
            between = between + self._shared_nugget * np.eye(len(self.Z), len(Z))
            A = stacks.solve(self.chol, between, overwrite=True)
            self._known[key] = EarlierPoints(A, self.prior.covariance(Z), self.prior.mean(Z))
        return self._known[key]


def projection_of(
    local: LocalModel, epsilon: np.ndarray, offsets: np.ndarray, problem: Problem
) -> Projection:
    """That onto the points of a problem, moved by ``offsets``.

    :raises NumericalError: if the covariance of the points is not positive.
    """
    shared = float(problem.earlier.shared_nugget) if problem.earlier else 0.0
    Z = problem.moved(tf.constant(offsets, FLOAT)).numpy()
    return Projection(PriorAt(local.prior, epsilon[None]), Z, float(problem.nugget), shared)
