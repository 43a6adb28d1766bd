"""Figures of models and streams, and as the papers draw them; needs the ``plot`` extra."""

from streaming_gp.plotting.model import hyperparameters, ledger, posterior
from streaming_gp.plotting.papers import (
    batch_colors,
    decision_contours,
    hyperparameter_density,
    hyperparameter_histogram,
    labelled_points,
    learning_curves,
    pseudo_points,
    shared_limits,
)
from streaming_gp.plotting.stream import Evaluation, prequential

__all__ = [
    "Evaluation",
    "batch_colors",
    "decision_contours",
    "hyperparameter_density",
    "hyperparameter_histogram",
    "hyperparameters",
    "labelled_points",
    "learning_curves",
    "ledger",
    "posterior",
    "prequential",
    "pseudo_points",
    "shared_limits",
]
