"""Says when a fit on shared points ends far below one on points of the batch's own.

With a likelihood that is not Gaussian, sites and places are found in turn, and where it is not
log-concave either, they may settle around a bad optimum.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

from streaming_gp.errors import PoorFitWarning
from streaming_gp.gp.fitting import kept_on_shared
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.strategies.selection import greedy_gain

FAR = 0.25
"""Nats for each datum."""


def warn_if_far_below(
    fitter: Fitter,
    cavity: Process,
    after: Process,
    batch: Batch,
    report: FitReport,
    number: int,
) -> None:
    """Compare the bound with that of sites on as many points of the batch's own.

    They stay at the inputs by which the bound gains most, under the same cavity and at the ε that
    was found, so that no optimiser runs.

    :param cavity: Prior times all other factors, on the points that they were on.
    :param after: Prior times all factors, on the new points.
    :param report: What the fit on shared points reported.
    :param number: The number of points.
    """
    epsilon, found = report.epsilon, report.free_energy
    if cavity.hyperparameters is not None:  # both at the same ε
        found = kept_on_shared.bound_at(fitter.kept_bound, cavity, after, epsilon[None], batch.data)
    at_rest = replace(batch, learn=False, epsilon=epsilon)
    _, own = fitter.learned(
        cavity, at_rest, lambda candidates: candidates.inputs[greedy_gain(candidates, number)]
    )
    missing = (own.free_energy - found) / len(batch.data[0])
    if missing > FAR:
        warnings.warn(
            f"batch {batch.name!r} ends {missing:.2f} nats a datum below a fit on points of its "
            "own: shared points may have settled around a bad optimum, or be too few",
            PoorFitWarning,
            stacklevel=2,
        )
