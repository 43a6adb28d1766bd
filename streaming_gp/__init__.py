"""Streaming Gaussian processes and partitioned variational inference: prior × factors."""

from streaming_gp import expfam, metrics, pvi
from streaming_gp.gp import (
    FixedHyperparameters,
    LocalOptimiser,
    PointHyperparameters,
    PrivatePseudoPoints,
    Progress,
    StreamingGP,
    UpdateInfo,
    VariationalHyperparameters,
)

__version__ = "0.1.0"

__all__ = [
    "FixedHyperparameters",
    "LocalOptimiser",
    "PointHyperparameters",
    "PrivatePseudoPoints",
    "Progress",
    "StreamingGP",
    "UpdateInfo",
    "VariationalHyperparameters",
    "expfam",
    "metrics",
    "pvi",
]
