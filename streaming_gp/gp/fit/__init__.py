"""How one batch is fitted under its cavity."""

from streaming_gp.gp.fit.bounds import LocalBound, LocalFunction, PowerEP, SparseBound, Variational
from streaming_gp.gp.fit.fit import Fitter
from streaming_gp.gp.fit.fitted import Batch, Fitted
from streaming_gp.gp.fit.frozen import Conditional, Independent
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.optimiser import LocalOptimiser, Progress
from streaming_gp.gp.fit.points import Candidates
from streaming_gp.gp.fit.projection import GPLedger

__all__ = [
    "Batch",
    "Candidates",
    "Conditional",
    "Fitted",
    "Fitter",
    "GPLedger",
    "Independent",
    "LocalBound",
    "LocalFunction",
    "LocalModel",
    "LocalOptimiser",
    "PowerEP",
    "Progress",
    "SparseBound",
    "Variational",
]
