"""Streaming Gaussian processes on pseudo-points, on GPflow."""

from streaming_gp.gp.bounds import (
    Conditional,
    Exact,
    Independent,
    LocalBound,
    PowerEP,
    SparseBound,
    Variational,
)
from streaming_gp.gp.client import GPUpdate
from streaming_gp.gp.fitting import Candidates, LocalOptimiser, Progress
from streaming_gp.gp.forgetting import Fading, ForgetNothing, Forgetting, SlidingWindow
from streaming_gp.gp.hyperparameters import (
    FixedHyperparameters,
    HyperparameterStrategy,
    ParameterVector,
    PointHyperparameters,
    VariationalHyperparameters,
)
from streaming_gp.gp.learning_schedule import (
    EveryUpdate,
    LearningSchedule,
    NeverLearn,
    UntilSettled,
)
from streaming_gp.gp.model import StreamingGP
from streaming_gp.gp.online import OnlineGP
from streaming_gp.gp.process import Process, PseudoObservations, PseudoPointFactor
from streaming_gp.gp.state import ModelState
from streaming_gp.gp.strategies import (
    ConditionalPseudoPoints,
    IndependentPseudoPoints,
    OwnPseudoPoints,
    PrivatePseudoPoints,
    PseudoPointStrategy,
    SharedPseudoPoints,
)
from streaming_gp.gp.update_info import UpdateInfo

__all__ = [
    "Candidates",
    "Conditional",
    "ConditionalPseudoPoints",
    "EveryUpdate",
    "Exact",
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
    "LocalOptimiser",
    "ModelState",
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
    "StreamingGP",
    "UntilSettled",
    "UpdateInfo",
    "Variational",
    "VariationalHyperparameters",
]
