"""The hyperparameters ε: one vector, of which nothing, a point or a distribution is learned."""

from streaming_gp.gp.hyperparameters.strategies import (
    DIVERGENCE,
    EVIDENCE,
    FixedHyperparameters,
    HyperparameterStrategy,
    Limits,
    PointHyperparameters,
    VariationalHyperparameters,
)
from streaming_gp.gp.hyperparameters.vector import (
    ParameterVector,
    TracedParameterVector,
    num_uncertain,
)

__all__ = [
    "DIVERGENCE",
    "EVIDENCE",
    "FixedHyperparameters",
    "HyperparameterStrategy",
    "Limits",
    "ParameterVector",
    "PointHyperparameters",
    "TracedParameterVector",
    "VariationalHyperparameters",
    "num_uncertain",
]
