"""Damping rules: how proposed factors enter the ledger."""

from streaming_gp.pvi.damping.optimisers import (
    AdaptiveOptimiser,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedYogi,
    MaskedAveraging,
    Momentum,
    ServerAdam,
    ServerOptimiser,
)
from streaming_gp.pvi.damping.robust import Median, RobustMean, TrimmedMean
from streaming_gp.pvi.damping.rule import (
    Annealed,
    AroundRule,
    Damping,
    DampingRule,
    Factors,
    OpinionPool,
    Rho,
    State,
    damped,
)
from streaming_gp.pvi.damping.tempering import Agreement, BoundedInfluence

__all__ = [
    "AdaptiveOptimiser",
    "Agreement",
    "Annealed",
    "AroundRule",
    "BoundedInfluence",
    "Damping",
    "DampingRule",
    "Factors",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedYogi",
    "MaskedAveraging",
    "Median",
    "Momentum",
    "OpinionPool",
    "Rho",
    "RobustMean",
    "ServerAdam",
    "ServerOptimiser",
    "State",
    "TrimmedMean",
    "damped",
]
