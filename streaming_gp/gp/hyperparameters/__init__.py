"""The hyperparameters ε: one vector, of which nothing, a point or a distribution is learned."""

from streaming_gp.gp.hyperparameters.strategies import (
    DIVERGENCE,
    EVIDENCE,
    Arrival,
    EveryUpdate,
    FixedHyperparameters,
    HyperparameterStrategy,
    LearningSchedule,
    Limits,
    NeverLearn,
    PointHyperparameters,
    UntilSettled,
    VariationalHyperparameters,
    WhenGrown,
)
from streaming_gp.gp.hyperparameters.vector import ParameterVector, TracedParameterVector

__all__ = [
    "DIVERGENCE",
    "EVIDENCE",
    "Arrival",
    "EveryUpdate",
    "FixedHyperparameters",
    "HyperparameterStrategy",
    "LearningSchedule",
    "Limits",
    "NeverLearn",
    "ParameterVector",
    "PointHyperparameters",
    "TracedParameterVector",
    "UntilSettled",
    "VariationalHyperparameters",
    "WhenGrown",
]
