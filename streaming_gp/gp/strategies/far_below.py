"""Says when a fit on shared points ends far below one on points of the batch's own.

Where a likelihood is not log-concave, sites have several optima. A batch that the sites take for
outliers, one datum after another, ends around a bad one; as do points that were moved before.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError, PoorFitWarning
from streaming_gp.gp.bounds.problem import Problem
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.fitting import kept_on_shared
from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.strategies.selection import greedy_gain

FAR = 0.25
"""Nats for each datum."""
NARROW = 1e-6
"""Variance of f about the data, in squared units of the likelihood's scale."""


def warn_if_far_below(
    fitter: Fitter,
    cavity: Process,
    after: Process,
    batch: Batch,
    report: FitReport,
    number: int,
) -> None:
    """Compare the bound with that of sites on as many points of the batch's own.

    These stay at the inputs by which the bound gains most, under the same cavity and at the ε that
    was found, so that no optimiser runs. Of Student's t, sites start from the data as well, as if
    none of them were an outlier.

    :param cavity: Prior times all other factors, on the points that they were on.
    :param after: Prior times all factors, on the new points.
    :param report: What the fit on shared points reported.
    :param number: The number of points.
    """
    epsilon, found = report.epsilon, report.free_energy
    if cavity.hyperparameters is not None:  # both at the same ε
        found = kept_on_shared.bound_at(fitter.kept_bound, cavity, after, epsilon[None], batch.data)
    missing = (_of_its_own(fitter, cavity, batch, epsilon, number) - found) / len(batch.data[0])
    if missing > FAR:
        warnings.warn(
            f"batch {batch.name!r} ends {missing:.2f} nats a datum below a fit on points of its "
            "own: sites or shared points may have settled around a bad optimum",
            PoorFitWarning,
            stacklevel=2,
        )


def _of_its_own(
    fitter: Fitter, cavity: Process, batch: Batch, epsilon: np.ndarray, number: int
) -> float:
    """The largest bound that sites find on points of the batch's own."""
    at_rest = replace(batch, learn=False, epsilon=epsilon)

    def place(candidates: Candidates) -> np.ndarray:
        return candidates.inputs[greedy_gain(candidates, number)]

    if fitter.absorbing.serves(at_rest):
        bound = partial(fitter.absorbing.bound_on_own_points, cavity, place=place)
    else:
        bound = partial(_by_solver, fitter, fitter.problem(cavity, at_rest, place), cavity)
    best = -np.inf
    for sites in _starts(fitter, batch, epsilon):
        try:
            best = max(best, bound(replace(at_rest, sites=sites)))
        except NumericalError:
            continue
    return best


def _by_solver(fitter: Fitter, problem: Problem, cavity: Process, batch: Batch) -> float:
    return fitter.solver.at_rest(problem, cavity, batch.sites).report.free_energy


def _starts(fitter: Fitter, batch: Batch, epsilon: np.ndarray) -> Iterator[Sites | None]:
    """Where sites start: with nothing said, or at the data."""
    yield None
    local, (X, Y) = fitter.local, batch.data
    if isinstance(local.likelihood, gpflow.likelihoods.StudentT):
        with local.parameters.substituted(tf.constant(epsilon, tf.float64)):
            variance = (NARROW * tf.square(local.likelihood.scale) * tf.ones_like(Y)).numpy()
        yield local.at_data.step(epsilon[None], X, Y, Y[None], variance[None]).wanted
