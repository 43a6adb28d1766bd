"""Local update rules: how a client turns a cavity and its data into a factor."""

from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule
from streaming_gp.pvi.updates.baselines.committee import AveragingUpdate, SplitPriorUpdate
from streaming_gp.pvi.updates.baselines.natural_gradient import (
    StochasticNaturalGradientUpdate,
)
from streaming_gp.pvi.updates.baselines.point import DownpourUpdate, ElasticUpdate
from streaming_gp.pvi.updates.ep.assumed_density import AssumedDensityUpdate
from streaming_gp.pvi.updates.ep.distributed_ep import DistributedEPUpdate
from streaming_gp.pvi.updates.ep.power_ep import PowerEPUpdate
from streaming_gp.pvi.updates.ep.stochastic_ep import StochasticEPUpdate
from streaming_gp.pvi.updates.ep.tied import TiedUpdate
from streaming_gp.pvi.updates.local.analytic import AnalyticUpdate
from streaming_gp.pvi.updates.local.fixed_point import FixedPointUpdate
from streaming_gp.pvi.updates.local.optimisers import LBFGS, SGD, Adam, VariationalOnlineNewton
from streaming_gp.pvi.updates.local.plateau import Plateau
from streaming_gp.pvi.updates.local.variational import VariationalUpdate
from streaming_gp.pvi.updates.sampled.loop import PublishedLoop, StabilisedLoop
from streaming_gp.pvi.updates.sampled.moment_sharing import MomentSharingUpdate
from streaming_gp.pvi.updates.sampled.sampling import Sampler, Target
from streaming_gp.pvi.updates.sampled.snep import SNEPUpdate

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
