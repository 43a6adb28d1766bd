"""Values of ε enough for q(ε).

The bound is averaged over a few values of ε, and q(ε) is a choice of E means and E widths. Where
data say much of ε, all values lie close to each other, and few do. Where they say little of many
hyperparameters, some q(ε) does well at the few values alone. That it stays wide shows which is the
case: then the fit is done once more, over as many values as there are hyperparameters.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from streaming_gp.gp.fitting.solver import Batch, Solution, Solver
from streaming_gp.gp.hyperparameters import num_uncertain
from streaming_gp.gp.process.graphs import FLOAT
from streaming_gp.gp.process.process import Process


def over_enough_values(
    solver: Solver, solution: Solution, cavity: Process, batch: Batch
) -> Solution:
    """A solution whose points rest, or the same fit over more values of ε where these are too few.

    It starts anew: where q(ε) was fitted to few values, the bound over others may not be finite.
    """
    q, problem, local = solution.hyperparameters, solution.problem, solver.local
    if q is None or local.parameters.size <= len(problem.noise):
        return solution
    mean, deviation = np.asarray(q.mean), np.sqrt(np.asarray(q.variance))
    number = num_uncertain(local.parameters, mean, deviation)
    noise = local.hyperparameters.noise(len(mean), batch.seed, False, number)
    if len(noise) <= len(problem.noise):
        return solution
    problem = problem._replace(noise=tf.constant(noise, FLOAT))
    found = solver.solve(problem, cavity, batch, move=False)
    iterations = solution.report.iterations + found.report.iterations
    return found._replace(report=found.report._replace(iterations=iterations))
