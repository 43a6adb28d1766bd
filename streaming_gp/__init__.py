"""Streaming Gaussian processes and partitioned variational inference: prior × factors."""

from streaming_gp import bnn, datasets, engines, expfam, linear, metrics, pvi
from streaming_gp.errors import (
    FileFormatError,
    ImproperError,
    InvalidDataError,
    NumericalError,
    StreamingGPError,
)
from streaming_gp.gp import (
    ConditionalPseudoPoints,
    FixedHyperparameters,
    LocalOptimiser,
    PointHyperparameters,
    PrivatePseudoPoints,
    Progress,
    SharedPseudoPoints,
    StreamingGP,
    UpdateInfo,
    VariationalHyperparameters,
)

__version__ = "0.1.0"

__all__ = [
    "ConditionalPseudoPoints",
    "FileFormatError",
    "FixedHyperparameters",
    "ImproperError",
    "InvalidDataError",
    "LocalOptimiser",
    "NumericalError",
    "PointHyperparameters",
    "PrivatePseudoPoints",
    "Progress",
    "SharedPseudoPoints",
    "StreamingGP",
    "StreamingGPError",
    "UpdateInfo",
    "VariationalHyperparameters",
    "bnn",
    "datasets",
    "engines",
    "expfam",
    "linear",
    "metrics",
    "pvi",
]
