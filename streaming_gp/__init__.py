"""Streaming Gaussian processes and partitioned variational inference: prior × factors.

Nothing is imported before it is asked for: ``streaming_gp.runtime`` works where TensorFlow and
GPflow are not installed, and not every user needs the libraries of every part.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streaming_gp.serialization.registry import find_classes_in

if TYPE_CHECKING:
    from streaming_gp import (
        bnn,
        datasets,
        engines,
        evaluate,
        expfam,
        gp,
        linear,
        metrics,
        mixture,
        plotting,
        pvi,
        runtime,
        samplers,
        testing,
    )
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
    "gp",
    "linear",
    "metrics",
    "mixture",
    "plotting",
    "pvi",
    "runtime",
    "samplers",
    "testing",
]

_ERRORS = frozenset(name for name in __all__ if name.endswith("Error"))
_ROOMS = frozenset(name for name in __all__ if name.islower())
"""Names that are modules; all others are classes, of ``errors`` and of ``gp``."""

find_classes_in(f"{__name__}.expfam", f"{__name__}.pvi", f"{__name__}.gp")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    home = import_module(f"{__name__}.{'errors' if name in _ERRORS else 'gp'}")
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
