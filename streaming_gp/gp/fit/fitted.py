"""A batch at hand, and the result of its fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streaming_gp.gp.fit.optimiser import Report
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.process.nearest import Conditioning
from streaming_gp.gp.process.process import PseudoPointFactor

Data = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch at hand.

    :param name: The name of its factor.
    :param data: X [N, D] and Y [N, P], validated.
    :param seed: The seed of the common random numbers over ε.
    :param conditioning: How the process is conditioned on points that are observed one by one.
    :param report: Called with (iteration, free energy) as a fit goes on.
    :param hold: Whether points that the batch has had before stay where they are.
    :param learn: Whether anything is optimised; otherwise it is absorbed at the present q(ε).
    """

    name: str
    data: Data
    seed: int
    conditioning: Conditioning
    report: Report = lambda *_: None
    hold: bool = False
    learn: bool = True


@dataclass(frozen=True, eq=False)
class Fitted:
    """The factor of a batch, and what was done.

    :param factor: The factor, undamped.
    :param epsilon: The point estimate of ε [E].
    :param free_energy: The local free energy, in nats.
    :param iterations: The number of optimiser iterations.
    :param nugget: The variance of the pseudo-points' white noise, in squared units of f.
    :param clipped_sites: The number of sites whose negative precision was cut off.
    :param unexplained: The variance of f at the data that the points leave, over that of the
        sites: a mean.
    :param shown_error: The standard deviation of errors at the points that the data show, over the
        predicted one; None where the bound does not know.
    :param ledger: The ledger that the factor belongs into, if other factors were projected onto
        other points; else None.
    :param conditioning: How the process is conditioned from now on; None for as before.
    """

    factor: PseudoPointFactor
    epsilon: np.ndarray
    free_energy: float
    iterations: int = 0
    nugget: float = 0.0
    clipped_sites: int = 0
    unexplained: float = 0.0
    shown_error: float | None = None
    ledger: GPLedger | None = None
    conditioning: Conditioning | None = None
