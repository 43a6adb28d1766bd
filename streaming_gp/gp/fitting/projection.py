"""Projects earlier factors onto other pseudo-points: ``t'(b) = exp E[log t(a) | b]``.

Shared points do this at every update; a budget does it where there are too many points (maths page,
"earlier pseudo-observations on new points").
"""

from __future__ import annotations

from collections.abc import Sequence
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
    expected_log_earlier,
    information,
    on_points,
    point_posterior,
    projected_earlier,
    whiten,
)
from streaming_gp.gp.fitting.optimiser import LocalOptimiser, minimise, with_larger_nuggets
from streaming_gp.gp.process.compiled import compiled, spec
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.process import Process

GPLedger = pvi.Ledger[Process]


class Projection:
    """Projections of one model's factors.

    :param local: The model.
    :param optimiser: How the places are found where few points lose least.
    """

    def __init__(self, local: LocalModel, optimiser: LocalOptimiser) -> None:
        self.local = local
        self.optimiser = optimiser
        signature = spec(local.parameters.size), spec(None), local.problem_spec(takes_over=True)
        self._projected = compiled(self._projected_at, *signature)
        self._loss_and_gradient = compiled(self._loss_and_gradient_at, *signature)

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

    def onto_fewer_points(
        self, factor: PseudoPointFactor, starts: Sequence[Problem], move: bool
    ) -> tuple[PseudoPointFactor, float]:
        """A factor on the points of one of the problems, or where these lose least at its ε.

        However few iterations there are, no more is lost than at the best of the starts.

        :param factor: The factor whose pseudo-observations are the problems' earlier ones.
        :param starts: Problems that differ in the points to start from alone; their ``location`` is
            the ε at which to weigh.
        :param move: Whether the points may move.
        :returns: the new factor, and the nats lost.
        """
        epsilon = starts[0].location.numpy()
        problem = min(starts, key=lambda start: self._loss_at_start(epsilon, start))

        def attempt(problem: Problem) -> tuple[PseudoPointFactor, float]:
            offsets, loss = self._best_offsets(epsilon, problem, move)
            return self.of_factor(factor, epsilon, offsets, problem), loss

        return with_larger_nuggets(attempt, problem)

    def _loss_at_start(self, epsilon: np.ndarray, problem: Problem) -> float:
        """The nats lost where the points start; infinite where a covariance is not positive."""
        loss, _ = self._loss_and_gradient(epsilon, np.zeros(int(tf.size(problem.Z_start))), problem)
        return float(loss) if np.isfinite(loss) else np.inf

    def _best_offsets(
        self, epsilon: np.ndarray, problem: Problem, move: bool
    ) -> tuple[np.ndarray, float]:
        """The best of all places that the optimiser looked at, its start first; the nats lost."""
        start = np.zeros(int(tf.size(problem.Z_start)))
        least, best = np.inf, start

        def loss_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal least, best
            loss, gradient = self._loss_and_gradient(epsilon, point, problem)
            if float(loss) < least:
                least, best = float(loss), point.copy()
            return float(loss), gradient.numpy()

        if move and self.optimiser.projection_iterations > 0:
            method, most = self.optimiser.method, self.optimiser.projection_iterations
            minimise(loss_and_gradient, start, None, method, most)
        else:
            loss_and_gradient(start)
        return best, least

    # ---- what is compiled ----

    def _projected_at(
        self, epsilon: tf.Tensor, offsets: tf.Tensor, problem: Problem
    ) -> tuple[Points, ProjectedEarlier]:
        with self.local.parameters.substituted(epsilon):
            assert problem.earlier
            cavity = cavity_of(self.local, problem)
            points = whiten(cavity, problem.moved(offsets), problem.nugget)
            return points, projected_earlier(cavity, points, problem.earlier)

    def _loss_and_gradient_at(
        self, epsilon: tf.Tensor, offsets: tf.Tensor, problem: Problem
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """What is lost, in nats, when the new points stand for the earlier ones."""
        gp = self.local.gp
        with tf.GradientTape() as tape:
            tape.watch(offsets)
            _, earlier = self._projected_at(epsilon, offsets, problem)
            c = point_posterior(gp, *information(gp, None, None, earlier))
            loss = c.kl - expected_log_earlier(gp, earlier, c)
        return loss, tape.gradient(loss, offsets, unconnected_gradients="zero")


def _shared_nugget(problem: Problem) -> tf.Tensor:
    return problem.earlier.shared_nugget if problem.earlier else tf.zeros_like(problem.nugget)


def _has_the_same_points(problem: Problem) -> bool:
    """Whether new and earlier points are the same variables."""
    return float(_shared_nugget(problem)) == float(problem.nugget) > 0.0
