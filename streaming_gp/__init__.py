"""Streaming Gaussian processes and partitioned variational inference: prior × factors.

Nothing is imported before it is asked for: ``streaming_gp.runtime`` works where TensorFlow and
GPflow are not installed, and not every user needs the libraries of every part.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streaming_gp.serialization import find_classes_in

if TYPE_CHECKING:  # modules are found without this
    from streaming_gp.errors import *  # noqa: F403
    from streaming_gp.gp import *  # noqa: F403
    from streaming_gp.tables import TableGP as TableGP
    from streaming_gp.tables import stream as stream

__version__ = "0.1.0"

_NAMES = {
    "errors": """
        FileFormatError ImproperError InvalidDataError NoAnswerError NumericalError StreamingGPError
    """,
    "gp": """
        ConditionalPseudoPoints Dense EveryUpdate Fading FixedHyperparameters ForgetNothing GPUpdate
        IndependentPseudoPoints LocalOptimiser NearestNeighbors NeverLearn OwnPseudoPoints
        PointHyperparameters PrivatePseudoPoints Progress SharedPseudoPoints SlidingWindow
        StreamingGP UntilSettled UpdateInfo VariationalHyperparameters WhenGrown
    """,
    "tables": "TableGP stream",
    "": """
        bnn datasets engines evaluate expfam flow gp hierarchical linear losses metrics mixture
        plotting pvi river runtime samplers sklearn surrogate tables testing
    """,
}
_HOMES = {name: room for room, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)

find_classes_in(f"{__name__}.expfam", f"{__name__}.pvi", f"{__name__}.gp")


if not TYPE_CHECKING:  # which sees the names above, and no others

    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if not home:
            return import_module(f"{__name__}.{name}")
        value = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = value  # found without this function from now on
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
