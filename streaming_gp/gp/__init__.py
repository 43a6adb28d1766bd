"""Streaming Gaussian processes on pseudo-points, on GPflow."""

from streaming_gp.gp.bounds import (
    Conditional,
    Exact,
    LocalBound,
    PowerEP,
    SparseBound,
    Variational,
)
from streaming_gp.gp.client import GPUpdate
from streaming_gp.gp.fitting import Candidates, LocalOptimiser, Progress
from streaming_gp.gp.hyperparameters import (
    FixedHyperparameters,
    HyperparameterStrategy,
    ParameterVector,
    PointHyperparameters,
    VariationalHyperparameters,
)
from streaming_gp.gp.model import StreamingGP
from streaming_gp.gp.process import Process, PseudoObservations, PseudoPointFactor
from streaming_gp.gp.state import ModelState
from streaming_gp.gp.strategies import (
    ConditionalPseudoPoints,
    OwnPseudoPoints,
    PrivatePseudoPoints,
    PseudoPointStrategy,
    SharedPseudoPoints,
)
from streaming_gp.gp.update_info import UpdateInfo

__all__ = [
    "Candidates",
    "Conditional",
    "ConditionalPseudoPoints",
    "Exact",
    "FixedHyperparameters",
    "GPUpdate",
    "HyperparameterStrategy",
    "LocalBound",
    "LocalOptimiser",
    "ModelState",
    "OwnPseudoPoints",
    "ParameterVector",
    "PointHyperparameters",
    "PowerEP",
    "PrivatePseudoPoints",
    "Process",
    "Progress",
    "PseudoObservations",
    "PseudoPointFactor",
    "PseudoPointStrategy",
    "SharedPseudoPoints",
    "SparseBound",
    "StreamingGP",
    "UpdateInfo",
    "Variational",
    "VariationalHyperparameters",
]
