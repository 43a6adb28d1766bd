"""Projects earlier factors onto other pseudo-points: ``t'(b) = exp E[log t(a) | b]``.

Shared points do this at every update (maths page, "earlier pseudo-observations on new points").
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from streaming_gp import pvi
from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.base import cavity_of
from streaming_gp.gp.bounds.problem import Earlier, LocalModel, Problem
from streaming_gp.gp.bounds.whitening import (
    Points,
    ProjectedEarlier,
    on_points,
    projected_earlier,
    whiten,
)
from streaming_gp.gp.process.compiled import compiled, spec
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.process import Process

GPLedger = pvi.Ledger[Process]


class Projection:
    """Projections of one model's factors.

    :param local: The model.
    """

    def __init__(self, local: LocalModel) -> None:
        self.local = local
        signature = spec(local.parameters.size), spec(None), local.problem_spec(takes_over=True)
        self._projected = compiled(self._projected_at, *signature)

    def of_ledger(
        self, ledger: GPLedger, epsilon: np.ndarray, offsets: np.ndarray, problem: Problem
    ) -> GPLedger:
        """Every factor on the problem's points, moved by ``offsets``."""
        return ledger.with_factors(
            {
                name: self.of_factor(factor, epsilon, offsets, problem)
                for name, factor in ledger.factors.items()
            }
        )

    def of_factor(
        self,
        factor: PseudoPointFactor,
        epsilon: np.ndarray,
        offsets: np.ndarray,
        problem: Problem,
    ) -> PseudoPointFactor:
        """One factor on the problem's points, moved by ``offsets``.

        :raises NumericalError: if the covariance of the points is not positive.
        """
        if not factor.pseudo_observations or _has_the_same_points(problem):
            return factor
        gp = self.local.gp
        stack = gp.stack(factor.pseudo_observations, self.local.input_dim)
        mine = problem._replace(earlier=Earlier(stack, _shared_nugget(problem)))
        points, projected = self._projected(epsilon, offsets, mine)
        design = np.swapaxes(projected.design.numpy(), -1, -2)
        found, constant = on_points(
            points, design, projected.residual.numpy(), gp.num_groups, float(problem.nugget)
        )
        if not np.isfinite(found.precision_factor).all():
            raise NumericalError("the covariance of the pseudo-points is not positive")
        unexplained = float(np.sum(projected.prior_trace) - np.sum(design**2))
        constant -= 0.5 * (gp.num_latent // gp.num_groups) * unexplained
        return replace(factor, pseudo_observations=(found,), log_scale=factor.log_scale + constant)

    # ---- what is compiled ----

    def _projected_at(
        self, epsilon: tf.Tensor, offsets: tf.Tensor, problem: Problem
    ) -> tuple[Points, ProjectedEarlier]:
        with self.local.parameters.substituted(epsilon):
            assert problem.earlier
            cavity = cavity_of(self.local, problem)
            points = whiten(cavity, problem.moved(offsets), problem.nugget)
            return points, projected_earlier(cavity, points, problem.earlier)


def _shared_nugget(problem: Problem) -> tf.Tensor:
    return problem.earlier.shared_nugget if problem.earlier else tf.zeros_like(problem.nugget)


def _has_the_same_points(problem: Problem) -> bool:
    """Whether new and earlier points are the same variables."""
    return float(_shared_nugget(problem)) == float(problem.nugget) > 0.0
