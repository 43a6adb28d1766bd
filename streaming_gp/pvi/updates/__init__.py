"""Local update rules: how a client turns a cavity and its data into a factor."""

from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule
from streaming_gp.pvi.updates.committee import AveragingUpdate, SplitPriorUpdate
from streaming_gp.pvi.updates.fixed_point import (
    AnalyticUpdate,
    FixedPointUpdate,
    StochasticNaturalGradientUpdate,
)
from streaming_gp.pvi.updates.optimisers import LBFGS, SGD, Adam, VariationalOnlineNewton
from streaming_gp.pvi.updates.point import DownpourUpdate, ElasticUpdate
from streaming_gp.pvi.updates.power_ep import AssumedDensityUpdate, PowerEPUpdate
from streaming_gp.pvi.updates.sampling import (
    DistributedEPUpdate,
    MomentSharingUpdate,
    Sampler,
    Target,
)
from streaming_gp.pvi.updates.snep import PublishedLoop, SNEPUpdate, StabilisedLoop
from streaming_gp.pvi.updates.stochastic_ep import StochasticEPUpdate, TiedUpdate
from streaming_gp.pvi.updates.variational import Plateau, VariationalUpdate

__all__ = [
    "LBFGS",
    "SGD",
    "Adam",
    "AnalyticUpdate",
    "AssumedDensityUpdate",
    "AveragingUpdate",
    "DistributedEPUpdate",
    "DownpourUpdate",
    "ElasticUpdate",
    "FixedPointUpdate",
    "LocalResult",
    "LocalTask",
    "MomentSharingUpdate",
    "Plateau",
    "PowerEPUpdate",
    "PublishedLoop",
    "SNEPUpdate",
    "Sampler",
    "SplitPriorUpdate",
    "StabilisedLoop",
    "StochasticEPUpdate",
    "StochasticNaturalGradientUpdate",
    "Target",
    "TiedUpdate",
    "UpdateRule",
    "VariationalOnlineNewton",
    "VariationalUpdate",
]
