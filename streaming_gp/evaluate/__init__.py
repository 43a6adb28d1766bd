"""Test-then-train: every batch of a stream is predicted before it is learned."""

from streaming_gp.evaluate.drift import Detector, DriftAlarm
from streaming_gp.evaluate.prequential import BatchError, Learner, prequential
from streaming_gp.evaluate.scores import Step, Summary

__all__ = [
    "BatchError",
    "Detector",
    "DriftAlarm",
    "Learner",
    "Step",
    "Summary",
    "prequential",
]
