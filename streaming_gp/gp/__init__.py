"""Streaming Gaussian processes with private pseudo-points, on GPflow."""

from streaming_gp.gp.factor import PseudoObservations, PseudoPointFactor
from streaming_gp.gp.hyperparameters import (
    FixedHyperparameters,
    PointHyperparameters,
    VariationalHyperparameters,
)
from streaming_gp.gp.model import StreamingGP, UpdateInfo
from streaming_gp.gp.optimiser import LocalOptimiser, Progress
from streaming_gp.gp.process import Process
from streaming_gp.gp.pseudo_points import (
    ConditionalPseudoPoints,
    PrivatePseudoPoints,
    SharedPseudoPoints,
)

__all__ = [
    "ConditionalPseudoPoints",
    "FixedHyperparameters",
    "LocalOptimiser",
    "PointHyperparameters",
    "PrivatePseudoPoints",
    "Process",
    "Progress",
    "PseudoObservations",
    "PseudoPointFactor",
    "SharedPseudoPoints",
    "StreamingGP",
    "UpdateInfo",
    "VariationalHyperparameters",
]
