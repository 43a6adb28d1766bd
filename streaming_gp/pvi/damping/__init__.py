"""Damping rules: how proposed factors enter the ledger."""

from streaming_gp.pvi.damping.adam import ServerAdam
from streaming_gp.pvi.damping.annealed import Annealed
from streaming_gp.pvi.damping.around import AroundRule, Rho
from streaming_gp.pvi.damping.federated import (
    AdaptiveOptimiser,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedYogi,
    MaskedAveraging,
)
from streaming_gp.pvi.damping.momentum import Momentum
from streaming_gp.pvi.damping.power import Damping, OpinionPool
from streaming_gp.pvi.damping.robust import Median, RobustMean, TrimmedMean
from streaming_gp.pvi.damping.rule import DampingRule, Factors, Memory, damped
from streaming_gp.pvi.damping.server_optimiser import ServerOptimiser
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
    "Memory",
    "Momentum",
    "OpinionPool",
    "Rho",
    "RobustMean",
    "ServerAdam",
    "ServerOptimiser",
    "TrimmedMean",
    "damped",
]
