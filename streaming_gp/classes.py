"""Which likelihoods are of classes, and of how many."""

from __future__ import annotations

from typing import Any

import gpflow.likelihoods as gl

SEVERAL_CLASSES = (gl.Softmax, gl.MultiClass)
"""Their labels are numbers from 0, and the means [N, C] that they predict are probabilities."""


def number_of_classes(likelihood: Any) -> int | None:
    """Two for a Bernoulli likelihood, C for one of several classes, and None for any other."""
    if isinstance(likelihood, gl.Bernoulli):
        return 2
    return int(likelihood.num_classes) if isinstance(likelihood, SEVERAL_CLASSES) else None
