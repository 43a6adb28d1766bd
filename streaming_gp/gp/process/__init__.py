"""Gaussian processes as values: a prior conditioned on pseudo-observations."""

from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.observations import (
    ConditionalPseudoObservations,
    DataObservations,
    PseudoObservations,
)
from streaming_gp.gp.process.process import Process, PseudoPointFactor
from streaming_gp.gp.process.tensors import Conditioned, GaussianProcess, Stack

__all__ = [
    "ConditionalPseudoObservations",
    "Conditioned",
    "DataObservations",
    "DenseProcess",
    "GaussianProcess",
    "Process",
    "PseudoObservations",
    "PseudoPointFactor",
    "Stack",
]
