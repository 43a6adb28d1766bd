"""Streaming Gaussian processes on pseudo-points, on GPflow."""

from streaming_gp.gp.federated import GPUpdate
from streaming_gp.gp.fit import (
    Candidates,
    Conditional,
    Independent,
    LocalBound,
    LocalFunction,
    LocalOptimiser,
    PowerEP,
    Progress,
    SparseBound,
    Variational,
)
from streaming_gp.gp.forgetting import Fading, ForgetNothing, Forgetting, SlidingWindow
from streaming_gp.gp.hyperparameters import (
    Arrival,
    EveryUpdate,
    FixedHyperparameters,
    HyperparameterStrategy,
    LearningSchedule,
    NeverLearn,
    ParameterVector,
    PointHyperparameters,
    UntilSettled,
    VariationalHyperparameters,
    WhenGrown,
)
from streaming_gp.gp.model import StreamingGP
from streaming_gp.gp.online import OnlineGP
from streaming_gp.gp.process import (
    DataObservations,
    Process,
    PseudoObservations,
    PseudoPointFactor,
)
from streaming_gp.gp.process.nearest import Conditioning, Dense, NearestNeighbors
from streaming_gp.gp.state import State
from streaming_gp.gp.strategies import (
    ConditionalPseudoPoints,
    IndependentPseudoPoints,
    OwnPseudoPoints,
    PrivatePseudoPoints,
    PseudoPointStrategy,
    SharedPseudoPoints,
)
from streaming_gp.gp.stream import UpdateInfo

__all__ = [
    "Arrival",
    "Candidates",
    "Conditional",
    "ConditionalPseudoPoints",
    "Conditioning",
    "DataObservations",
    "Dense",
    "EveryUpdate",
    "Fading",
    "FixedHyperparameters",
    "ForgetNothing",
    "Forgetting",
    "GPUpdate",
    "HyperparameterStrategy",
    "Independent",
    "IndependentPseudoPoints",
    "LearningSchedule",
    "LocalBound",
    "LocalFunction",
    "LocalOptimiser",
    "NearestNeighbors",
    "NeverLearn",
    "OnlineGP",
    "OwnPseudoPoints",
    "ParameterVector",
    "PointHyperparameters",
    "PowerEP",
    "PrivatePseudoPoints",
    "Process",
    "Progress",
    "PseudoObservations",
    "PseudoPointFactor",
    "PseudoPointStrategy",
    "SharedPseudoPoints",
    "SlidingWindow",
    "SparseBound",
    "State",
    "StreamingGP",
    "UntilSettled",
    "UpdateInfo",
    "Variational",
    "VariationalHyperparameters",
    "WhenGrown",
]
