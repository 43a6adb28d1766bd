"""Streaming Gaussian processes and partitioned variational inference: prior × factors."""

from importlib import import_module
from types import ModuleType

from streaming_gp import engines, expfam, metrics, pvi
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
    GPUpdate,
    LocalOptimiser,
    OwnPseudoPoints,
    PointHyperparameters,
    PrivatePseudoPoints,
    Progress,
    SharedPseudoPoints,
    StreamingGP,
    UpdateInfo,
    VariationalHyperparameters,
)

__version__ = "0.1.0"

_LAZY = frozenset(
    {"bnn", "datasets", "evaluate", "linear", "mixture", "plotting", "samplers", "testing"}
)
"""Rooms that are imported when they are first asked for: not every user needs their libraries."""

__all__ = [
    "ConditionalPseudoPoints",
    "FileFormatError",
    "FixedHyperparameters",
    "GPUpdate",
    "ImproperError",
    "InvalidDataError",
    "LocalOptimiser",
    "NumericalError",
    "OwnPseudoPoints",
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
    "evaluate",
    "expfam",
    "linear",
    "metrics",
    "mixture",
    "plotting",
    "pvi",
    "samplers",
    "testing",
]


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
