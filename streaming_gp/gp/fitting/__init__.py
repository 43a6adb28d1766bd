"""Local fits: the problem of a batch, the optimiser, and the factor that comes of it."""

from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.fitting.optimiser import LocalOptimiser, Progress
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch, FitReport

__all__ = [
    "Batch",
    "Candidates",
    "FitReport",
    "Fitter",
    "GPLedger",
    "LocalOptimiser",
    "Progress",
]
