"""Rules around update rules that bound what a client's answers tell: by noise, and by sums."""

from streaming_gp.pvi.privacy.accountant import (
    Budget,
    Release,
    epsilon_of,
    noise_multiplier_for,
)
from streaming_gp.pvi.privacy.clipping import ClippedGradientModel
from streaming_gp.pvi.privacy.local_averaging import LocalAveraging
from streaming_gp.pvi.privacy.private_changes import PrivateChanges
from streaming_gp.pvi.privacy.private_gradients import PrivateGradients
from streaming_gp.pvi.privacy.private_rule import PrivateFitError, PrivateRule
from streaming_gp.pvi.privacy.summed_changes import SummedChanges

__all__ = [
    "Budget",
    "ClippedGradientModel",
    "LocalAveraging",
    "PrivateChanges",
    "PrivateFitError",
    "PrivateGradients",
    "PrivateRule",
    "Release",
    "SummedChanges",
    "epsilon_of",
    "noise_multiplier_for",
]
