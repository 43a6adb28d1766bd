"""Gaussian processes as values: a prior conditioned on pseudo-observations."""

from streaming_gp.gp.process.conditioning import Conditioned, GaussianProcess, Stack
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.pseudo_observations import (
    ConditionalPseudoObservations,
    PseudoObservations,
)

__all__ = [
    "ConditionalPseudoObservations",
    "Conditioned",
    "GaussianProcess",
    "Process",
    "PseudoObservations",
    "PseudoPointFactor",
    "Stack",
]
