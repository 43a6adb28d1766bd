"""Data and settings that attacks share, and what a model holds as bytes."""

import tempfile
from pathlib import Path

import numpy as np

import streaming_gp as sgp

FIXED = sgp.FixedHyperparameters()
QUICK = sgp.LocalOptimiser(max_iterations=3, rounds=1, site_steps=2)


def dates():
    return 20240101.0 + 7.0 * np.arange(12)[:, None]


def targets(X):
    return 2.0 * np.sin(X / 30.0)


def digest(model):
    """All that a model holds, as bytes: equal only where it is the same bit for bit."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.npz")
        model.save(path)
        return path.read_bytes()
