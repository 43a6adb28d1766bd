"""What is learned about the hyperparameters ε: nothing, a point, or a distribution."""

from streaming_gp.gp.hyperparameters.parameters import ParameterVector
from streaming_gp.gp.hyperparameters.point import FixedHyperparameters, PointHyperparameters
from streaming_gp.gp.hyperparameters.protocol import HyperparameterStrategy
from streaming_gp.gp.hyperparameters.variational import VariationalHyperparameters

__all__ = [
    "FixedHyperparameters",
    "HyperparameterStrategy",
    "ParameterVector",
    "PointHyperparameters",
    "VariationalHyperparameters",
]
