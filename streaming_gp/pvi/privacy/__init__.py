"""Rules around update rules that bound what a client's answers tell: by noise, and by sums."""

from streaming_gp.pvi.privacy.accountant import Budget, Release, epsilon_of, noise_multiplier_for
from streaming_gp.pvi.privacy.changes import LocalAveraging, PrivateChanges, to_coordinates
from streaming_gp.pvi.privacy.gradients import (
    ClippedGradientModel,
    NoisyGradients,
    PrivateGradients,
)
from streaming_gp.pvi.privacy.rule import PrivateFitError, PrivateRule, begin_record
from streaming_gp.pvi.privacy.sums import SummedChanges

__all__ = [
    "Budget",
    "ClippedGradientModel",
    "LocalAveraging",
    "NoisyGradients",
    "PrivateChanges",
    "PrivateFitError",
    "PrivateGradients",
    "PrivateRule",
    "Release",
    "SummedChanges",
    "begin_record",
    "epsilon_of",
    "noise_multiplier_for",
    "to_coordinates",
]
