"""Partitioned Variational Inference: a ledger of factors, and the loop that refines them.

``Ledger`` and ``step`` are the loop, for anything that multiplies and divides.
``Server``, ``Client``, schedules and ``fit`` are the same loop for exponential families whose data
are spread over clients.
"""

from streaming_gp.pvi.client import Client, Site, make_clients
from streaming_gp.pvi.damping import (
    Agreement,
    Annealed,
    BoundedInfluence,
    Damping,
    DampingRule,
    Median,
    OpinionPool,
    TrimmedMean,
)
from streaming_gp.pvi.desk import serve
from streaming_gp.pvi.engine import Engine, Serial, Session
from streaming_gp.pvi.fit import Baton, EarlyStopping, Peer, fit, make_peers, pass_around, run
from streaming_gp.pvi.guards import NO_LIMITS, Checks
from streaming_gp.pvi.history import History, Round
from streaming_gp.pvi.hyperparameters import HyperparameterRule, LikelihoodParameters, PriorVariance
from streaming_gp.pvi.ledger import Factor, Ledger, Posterior
from streaming_gp.pvi.model import (
    ConjugateModel,
    Data,
    HyperparameterModel,
    LikelihoodModel,
    LossModel,
    Model,
    NaturalGradientModel,
    SampledModel,
    SecondOrder,
    TiltedModel,
    TrainableModel,
    require,
)
from streaming_gp.pvi.personal import PersonalModel, PersonalUpdate
from streaming_gp.pvi.schedule import (
    Arrivals,
    Asynchronous,
    Continual,
    Schedule,
    Sequential,
    Synchronous,
    continual_clients,
)
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.server_optimisers import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedYogi,
    MaskedAveraging,
    Momentum,
    ServerAdam,
    ServerOptimiser,
)
from streaming_gp.pvi.step import (
    BacktrackDamping,
    Fit,
    LargestProperFraction,
    PropernessPolicy,
    RaiseImproper,
    StepResult,
    step,
)
from streaming_gp.pvi.task import Delivery, LocalResult, LocalTask, UpdateRule, Worker, factor_of
from streaming_gp.pvi.updates.baselines import (
    AveragingUpdate,
    DownpourUpdate,
    ElasticUpdate,
    SplitPriorUpdate,
)
from streaming_gp.pvi.updates.fixed_point import (
    AnalyticUpdate,
    FixedPointUpdate,
    StochasticNaturalGradientUpdate,
)
from streaming_gp.pvi.updates.power_ep import (
    AssumedDensityUpdate,
    PowerEPUpdate,
    StochasticEPUpdate,
    TiedUpdate,
)
from streaming_gp.pvi.updates.sampling import (
    DistributedEPUpdate,
    MomentSharingUpdate,
    Sampler,
    Target,
)
from streaming_gp.pvi.updates.snep import PublishedLoop, SNEPUpdate, StabilisedLoop
from streaming_gp.pvi.updates.variational import (
    LBFGS,
    SGD,
    Adam,
    Plateau,
    VariationalOnlineNewton,
    VariationalUpdate,
)

__all__ = [
    "LBFGS",
    "NO_LIMITS",
    "SGD",
    "Adam",
    "Agreement",
    "AnalyticUpdate",
    "Annealed",
    "Arrivals",
    "AssumedDensityUpdate",
    "Asynchronous",
    "AveragingUpdate",
    "BacktrackDamping",
    "Baton",
    "BoundedInfluence",
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
    "History",
    "HyperparameterModel",
    "HyperparameterRule",
    "LargestProperFraction",
    "Ledger",
    "LikelihoodModel",
    "LikelihoodParameters",
    "LocalResult",
    "LocalTask",
    "LossModel",
    "MaskedAveraging",
    "Median",
    "Model",
    "MomentSharingUpdate",
    "Momentum",
    "NaturalGradientModel",
    "OpinionPool",
    "Peer",
    "PersonalModel",
    "PersonalUpdate",
    "Plateau",
    "Posterior",
    "PowerEPUpdate",
    "PriorVariance",
    "PropernessPolicy",
    "PublishedLoop",
    "RaiseImproper",
    "Round",
    "SNEPUpdate",
    "SampledModel",
    "Sampler",
    "Schedule",
    "SecondOrder",
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
    "StochasticNaturalGradientUpdate",
    "Synchronous",
    "Target",
    "TiedUpdate",
    "TiltedModel",
    "TrainableModel",
    "TrimmedMean",
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
    "run",
    "serve",
    "step",
]
