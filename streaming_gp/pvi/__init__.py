"""Partitioned Variational Inference: a ledger of factors, and the loop that refines them.

``Ledger`` and ``client_pass`` are the loop's one step, for anything that multiplies and divides.
``Server``, ``Client``, schedules and ``fit`` are the same loop for exponential families whose data
are spread over clients.
"""

from streaming_gp.pvi.checks import Checks
from streaming_gp.pvi.client import Client, make_clients
from streaming_gp.pvi.client_pass import PassResult, client_pass
from streaming_gp.pvi.damping import Damping, Momentum, OpinionPool
from streaming_gp.pvi.fit import EarlyStopping, fit
from streaming_gp.pvi.history import History, Round
from streaming_gp.pvi.hyperparameters import LikelihoodParameters, PriorVariance
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.messages import Answer, Ask
from streaming_gp.pvi.properness import BacktrackDamping, LargestProperFraction, RaiseImproper
from streaming_gp.pvi.protocols import Factor, LocalFit, Posterior
from streaming_gp.pvi.schedule import Asynchronous, Sequential, Synchronous
from streaming_gp.pvi.serial import Serial
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.server_optimisers import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedYogi,
    MaskedAveraging,
    ServerAdam,
    ServerOptimiser,
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
    LocalResult,
    LocalTask,
    Model,
    MomentSharingUpdate,
    PowerEPUpdate,
    SampledModel,
    Sampler,
    SNEPUpdate,
    SplitPriorUpdate,
    StochasticEPUpdate,
    Target,
    UpdateRule,
    VariationalOnlineNewton,
    VariationalUpdate,
)

__all__ = [
    "LBFGS",
    "Adam",
    "AnalyticUpdate",
    "Answer",
    "Ask",
    "AssumedDensityUpdate",
    "Asynchronous",
    "AveragingUpdate",
    "BacktrackDamping",
    "Checks",
    "Client",
    "Damping",
    "DistributedEPUpdate",
    "DownpourUpdate",
    "EarlyStopping",
    "ElasticUpdate",
    "Factor",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedYogi",
    "FixedPointUpdate",
    "History",
    "LargestProperFraction",
    "Ledger",
    "LikelihoodParameters",
    "LocalFit",
    "LocalResult",
    "LocalTask",
    "MaskedAveraging",
    "Model",
    "MomentSharingUpdate",
    "Momentum",
    "OpinionPool",
    "PassResult",
    "Posterior",
    "PowerEPUpdate",
    "PriorVariance",
    "RaiseImproper",
    "Round",
    "SNEPUpdate",
    "SampledModel",
    "Sampler",
    "Sequential",
    "Serial",
    "Server",
    "ServerAdam",
    "ServerOptimiser",
    "SplitPriorUpdate",
    "StochasticEPUpdate",
    "Synchronous",
    "Target",
    "UpdateRule",
    "VariationalOnlineNewton",
    "VariationalUpdate",
    "client_pass",
    "fit",
    "make_clients",
]
