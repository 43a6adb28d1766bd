"""Local update rules: how a client turns a cavity and its data into a factor."""

from streaming_gp.pvi.updates.analytic import AnalyticUpdate
from streaming_gp.pvi.updates.assumed_density import AssumedDensityUpdate
from streaming_gp.pvi.updates.committee import AveragingUpdate, SplitPriorUpdate
from streaming_gp.pvi.updates.distributed_ep import DistributedEPUpdate
from streaming_gp.pvi.updates.fixed_point import FixedPointUpdate
from streaming_gp.pvi.updates.moment_sharing import MomentSharingUpdate
from streaming_gp.pvi.updates.optimisers import LBFGS, Adam, VariationalOnlineNewton
from streaming_gp.pvi.updates.point import DownpourUpdate, ElasticUpdate
from streaming_gp.pvi.updates.power_ep import PowerEPUpdate
from streaming_gp.pvi.updates.sampling import SampledModel, Sampler, Target
from streaming_gp.pvi.updates.snep import SNEPUpdate
from streaming_gp.pvi.updates.stochastic_ep import StochasticEPUpdate
from streaming_gp.pvi.updates.task import LocalResult, LocalTask, Model, UpdateRule
from streaming_gp.pvi.updates.variational import VariationalUpdate

__all__ = [
    "LBFGS",
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
    "Model",
    "MomentSharingUpdate",
    "PowerEPUpdate",
    "SNEPUpdate",
    "SampledModel",
    "Sampler",
    "SplitPriorUpdate",
    "StochasticEPUpdate",
    "Target",
    "UpdateRule",
    "VariationalOnlineNewton",
    "VariationalUpdate",
]
