"""Streaming Gaussian processes and partitioned variational inference: prior × factors.

Nothing is imported before it is asked for: ``streaming_gp.runtime`` works where TensorFlow and
GPflow are not installed, and not every user needs the libraries of every part.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streaming_gp.serialization.trees import find_classes_in

if TYPE_CHECKING:
    from streaming_gp import (
        bnn,
        datasets,
        engines,
        evaluate,
        expfam,
        flow,
        gp,
        hierarchical,
        linear,
        losses,
        metrics,
        mixture,
        plotting,
        pvi,
        river,
        runtime,
        samplers,
        sklearn,
        surrogate,
        tables,
        testing,
    )
    from streaming_gp.errors import (
        FileFormatError,
        ImproperError,
        InvalidDataError,
        NoAnswerError,
        NumericalError,
        StreamingGPError,
    )
    from streaming_gp.gp import (
        ConditionalPseudoPoints,
        EveryUpdate,
        Fading,
        FixedHyperparameters,
        ForgetNothing,
        GPUpdate,
        IndependentPseudoPoints,
        LocalOptimiser,
        NeverLearn,
        OwnPseudoPoints,
        PointHyperparameters,
        PrivatePseudoPoints,
        Progress,
        SharedPseudoPoints,
        SlidingWindow,
        StreamingGP,
        UntilSettled,
        UpdateInfo,
        VariationalHyperparameters,
    )
    from streaming_gp.tables import TableGP, stream

__version__ = "0.1.0"

__all__ = [
    "ConditionalPseudoPoints",
    "EveryUpdate",
    "Fading",
    "FileFormatError",
    "FixedHyperparameters",
    "ForgetNothing",
    "GPUpdate",
    "ImproperError",
    "IndependentPseudoPoints",
    "InvalidDataError",
    "LocalOptimiser",
    "NeverLearn",
    "NoAnswerError",
    "NumericalError",
    "OwnPseudoPoints",
    "PointHyperparameters",
    "PrivatePseudoPoints",
    "Progress",
    "SharedPseudoPoints",
    "SlidingWindow",
    "StreamingGP",
    "StreamingGPError",
    "TableGP",
    "UntilSettled",
    "UpdateInfo",
    "VariationalHyperparameters",
    "bnn",
    "datasets",
    "engines",
    "evaluate",
    "expfam",
    "flow",
    "gp",
    "hierarchical",
    "linear",
    "losses",
    "metrics",
    "mixture",
    "plotting",
    "pvi",
    "river",
    "runtime",
    "samplers",
    "sklearn",
    "stream",
    "surrogate",
    "tables",
    "testing",
]

_OF_TABLES = ("TableGP", "stream")

find_classes_in(f"{__name__}.expfam", f"{__name__}.pvi", f"{__name__}.gp")


if not TYPE_CHECKING:  # which sees the names above, and no others

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name in _OF_TABLES:
            home = "tables"
        elif name.endswith("Error"):
            home = "errors"
        elif name[0].isupper():
            home = "gp"
        else:
            return import_module(f"{__name__}.{name}")
        value = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = value  # found without this function from now on
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
