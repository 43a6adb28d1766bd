"""Test-then-train: every batch of a stream is predicted before it is learned."""

from streaming_gp.evaluate.drift import Detector, DriftAlarm
from streaming_gp.evaluate.learner import (
    HasLikelihood,
    HasPseudoPoints,
    Learner,
    ReportsFreeEnergy,
)
from streaming_gp.evaluate.scores import Step, Summary
from streaming_gp.evaluate.stream import BatchError, prequential

__all__ = [
    "BatchError",
    "Detector",
    "DriftAlarm",
    "HasLikelihood",
    "HasPseudoPoints",
    "Learner",
    "ReportsFreeEnergy",
    "Step",
    "Summary",
    "prequential",
]
