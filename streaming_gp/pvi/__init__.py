"""Partitioned Variational Inference: a ledger of factors, and the loop that refines them.

``Ledger`` and ``step`` are the loop, for anything that multiplies and divides.
``Server``, ``Client``, schedules and ``fit`` are the same loop for exponential families whose data
are spread over clients.
"""

from streaming_gp.pvi.checks import NO_LIMITS, Checks
from streaming_gp.pvi.client import Client, make_clients
from streaming_gp.pvi.continual import Continual, continual_clients
from streaming_gp.pvi.damping import (
    Damping,
    DampingRule,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedYogi,
    MaskedAveraging,
    Momentum,
    OpinionPool,
    ServerAdam,
    ServerOptimiser,
)
from streaming_gp.pvi.engine import Delivery, Engine, Session
from streaming_gp.pvi.fit import EarlyStopping, fit
from streaming_gp.pvi.history import History, Round
from streaming_gp.pvi.hyperparameters import HyperparameterRule, LikelihoodParameters, PriorVariance
from streaming_gp.pvi.ledger import Factor, Ledger, Posterior
from streaming_gp.pvi.messages import Answer, Ask
from streaming_gp.pvi.model import (
    ConjugateModel,
    Data,
    HasChecks,
    LikelihoodModel,
    LossModel,
    Model,
    NaturalGradientModel,
    SampledModel,
    TiltedModel,
    TrainableModel,
    require,
)
from streaming_gp.pvi.peers import Baton, Peer, make_peers, pass_around
from streaming_gp.pvi.properness import (
    BacktrackDamping,
    LargestProperFraction,
    PropernessPolicy,
    RaiseImproper,
)
from streaming_gp.pvi.schedule import Asynchronous, Schedule, Sequential, Synchronous
from streaming_gp.pvi.serial import Serial
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.serving import serve
from streaming_gp.pvi.site import Site
from streaming_gp.pvi.step import Fit, Question, StepResult, step
from streaming_gp.pvi.task import (
    HasDamping,
    LocalResult,
    LocalTask,
    ResidentRule,
    UpdateRule,
    Worker,
    factor_of,
)
from streaming_gp.pvi.updates import (
    LBFGS,
    Adam,
    AnalyticUpdate,
    AssumedDensityUpdate,
    AveragingUpdate,
    DistributedEPUpdate,
    DownpourUpdate,
    ElasticUpdate,
    FixedPointUpdate,
    MomentSharingUpdate,
    Plateau,
    PowerEPUpdate,
    PublishedLoop,
    Sampler,
    SNEPUpdate,
    SplitPriorUpdate,
    StabilisedLoop,
    StochasticEPUpdate,
    Target,
    TiedUpdate,
    VariationalOnlineNewton,
    VariationalUpdate,
)

__all__ = [
    "LBFGS",
    "NO_LIMITS",
    "Adam",
    "AnalyticUpdate",
    "Answer",
    "Ask",
    "AssumedDensityUpdate",
    "Asynchronous",
    "AveragingUpdate",
    "BacktrackDamping",
    "Baton",
    "Checks",
    "Client",
    "ConjugateModel",
    "Continual",
    "Damping",
    "DampingRule",
    "Data",
    "Delivery",
    "DistributedEPUpdate",
    "DownpourUpdate",
    "EarlyStopping",
    "ElasticUpdate",
    "Engine",
    "Factor",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedYogi",
    "Fit",
    "FixedPointUpdate",
    "HasChecks",
    "HasDamping",
    "History",
    "HyperparameterRule",
    "LargestProperFraction",
    "Ledger",
    "LikelihoodModel",
    "LikelihoodParameters",
    "LocalResult",
    "LocalTask",
    "LossModel",
    "MaskedAveraging",
    "Model",
    "MomentSharingUpdate",
    "Momentum",
    "NaturalGradientModel",
    "OpinionPool",
    "Peer",
    "Plateau",
    "Posterior",
    "PowerEPUpdate",
    "PriorVariance",
    "PropernessPolicy",
    "PublishedLoop",
    "Question",
    "RaiseImproper",
    "ResidentRule",
    "Round",
    "SNEPUpdate",
    "SampledModel",
    "Sampler",
    "Schedule",
    "Sequential",
    "Serial",
    "Server",
    "ServerAdam",
    "ServerOptimiser",
    "Session",
    "Site",
    "SplitPriorUpdate",
    "StabilisedLoop",
    "StepResult",
    "StochasticEPUpdate",
    "Synchronous",
    "Target",
    "TiedUpdate",
    "TiltedModel",
    "TrainableModel",
    "UpdateRule",
    "VariationalOnlineNewton",
    "VariationalUpdate",
    "Worker",
    "continual_clients",
    "factor_of",
    "fit",
    "make_clients",
    "make_peers",
    "pass_around",
    "require",
    "serve",
    "step",
]
