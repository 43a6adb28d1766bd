"""Carries earlier factors over to other pseudo-points: ``t'(b) = exp E[log t(a) | b]``.

Shared points do this at every update; a budget does it where there are too many points (maths page,
"earlier rows on new points").
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from streaming_gp import pvi
from streaming_gp.errors import NumericalError
from streaming_gp.gp import local_bound as lb
from streaming_gp.gp import posing
from streaming_gp.gp.factor import PseudoPointFactor
from streaming_gp.gp.local_functions import LocalFunctions
from streaming_gp.gp.optimiser import LocalOptimiser, minimise, persistently
from streaming_gp.gp.problem import Problem
from streaming_gp.gp.process import Process


def carried_over(
    functions: LocalFunctions,
    ledger: pvi.Ledger[Process],
    epsilon: np.ndarray,
    offsets: np.ndarray,
    problem: Problem,
) -> pvi.Ledger[Process]:
    """Every factor on the problem's points, moved by ``offsets``; precisions add over factors."""
    moved = {
        name: carried_factor(functions, factor, epsilon, offsets, problem)
        for name, factor in ledger.factors.items()
    }
    return pvi.Ledger(ledger.prior, moved)


def carried_factor(
    functions: LocalFunctions,
    factor: PseudoPointFactor,
    epsilon: np.ndarray,
    offsets: np.ndarray,
    problem: Problem,
) -> PseudoPointFactor:
    """One factor on the problem's points, moved by ``offsets``.

    :raises NumericalError: if the covariance of the points is not positive.
    """
    if float(problem.tie) == float(problem.nugget) > 0.0:
        return factor  # the points are the same variables
    gp = functions.gp
    mine = problem._replace(absorbed=gp.stack(factor.rows, functions.input_dim))
    points, seen = functions.projected_row(epsilon, offsets, mine)
    design = np.swapaxes(seen.design.numpy(), -1, -2)
    row, constant = lb.row_on_points(
        points, design, seen.residual.numpy(), gp.num_groups, float(problem.nugget)
    )
    if not np.isfinite(row.root).all():
        raise NumericalError("the covariance of the pseudo-points is not positive")
    unexplained = float(np.sum(seen.prior_trace) - np.sum(design**2))
    constant -= 0.5 * (gp.num_latent // gp.num_groups) * unexplained
    return replace(factor, rows=(row,), log_scale=factor.log_scale + constant)


def on_fewer_points(
    functions: LocalFunctions,
    optimiser: LocalOptimiser,
    kept: Process,
    factor: PseudoPointFactor,
    number: int,
    epsilon: np.ndarray,
) -> tuple[PseudoPointFactor, float]:
    """Carry ``factor`` over to at most ``number`` points, as the bound at ε loses least.

    :param kept: process conditioned on all other rows.
    :returns: the new factor, and the nats lost.
    """
    old = Process(factor.rows, None, factor.log_scale).compact
    compact = PseudoPointFactor(old.rows, factor.hyperparameters, old.log_scale)
    problem = posing.without_data(functions, kept.compact.rows, old.rows, epsilon, number)

    def attempt(problem: Problem) -> tuple[PseudoPointFactor, float]:
        offsets, loss = _best_offsets(functions, optimiser, epsilon, problem)
        return carried_factor(functions, compact, epsilon, offsets, problem), loss

    return persistently(attempt, problem)


def _best_offsets(
    functions: LocalFunctions, optimiser: LocalOptimiser, epsilon: np.ndarray, problem: Problem
) -> tuple[np.ndarray, float]:
    """Where few points lose least, and the nats lost."""

    def loss_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = functions.fold_objective(epsilon, point, problem)
        return float(loss), gradient.numpy()

    offsets = np.zeros(int(tf.size(problem.Z_start)))
    if functions.pseudo_points.moves:
        offsets, _ = minimise(
            loss_and_gradient, offsets, None, optimiser.method, optimiser.fold_iterations
        )
    return offsets, loss_and_gradient(offsets)[0]
