"""The default of this package, its conditionings and strategies, and ways to forget the past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np

import streaming_gp as sgp
from experiments.benchmarks.methods.learner import Held, Prediction, Setup

BUDGET = 480
"""Pseudo-points are merged where a stream would end with more."""
FADING, WINDOW = 0.7, 1500
"""The power for each batch, and the number of data in a window."""


@dataclass(frozen=True, eq=False)
class Ours:
    """A streaming GP as a learner."""

    model: sgp.StreamingGP
    classes: bool

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        self.model.update((X, Y))

    def predict(self, X: np.ndarray) -> Prediction:
        mean, variance = (np.ravel(moment) for moment in self.model.predict_y(X))
        return Prediction.of_label(mean) if self.classes else Prediction(mean, variance)

    def held(self) -> Held:
        factors = self.model.factors.values()
        number = sum(len(factor.Z) for factor in factors)
        return Held(number, "points", sum(factor.num_bytes for factor in factors))


def settings(name: str, setup: Setup) -> dict[str, Any]:
    """What :class:`streaming_gp.StreamingGP` is given beside its kernel and likelihood.

    Shared points take fewer iterations than private ones and move more points in each.
    """
    points, all_points = setup.points, setup.points * setup.num_batches
    usual = sgp.LocalOptimiser(max_iterations=setup.iterations(50))
    shared = sgp.LocalOptimiser(
        max_iterations=setup.iterations(10), location_iterations=setup.iterations(20)
    )
    private = sgp.PrivatePseudoPoints(points, budget=BUDGET if all_points > BUDGET else None)
    growing = sgp.SharedPseudoPoints(min(all_points, BUDGET), growth=points, kept_batches=1)
    kept = max(1, round(WINDOW * setup.num_batches / setup.num_data))
    of_points: dict[str, dict[str, Any]] = {
        "default": {},
        "dense": {"conditioning": sgp.Dense()},
        "nearest": {"conditioning": sgp.NearestNeighbors()},
        "private": {"pseudo_points": private, "optimiser": usual},
        "shared": {"pseudo_points": growing, "optimiser": shared},
        "conditional": {"pseudo_points": sgp.ConditionalPseudoPoints(points), "optimiser": usual},
    }
    forgetting = {"fading": sgp.Fading(FADING), "window": sgp.SlidingWindow(kept)}
    of, _, forgets = name.partition("-")
    return of_points[of] | ({"forgetting": forgetting[forgets]} if forgets else {})


def streaming_gp(setup: Setup, name: str) -> Ours:
    """Before its first batch."""
    start = setup.hyperparameters
    noisy = gpflow.likelihoods.Gaussian(start.noise)
    likelihood = gpflow.likelihoods.Bernoulli() if setup.classes else noisy
    model = sgp.StreamingGP(start.kernel(), likelihood, seed=setup.seed, **settings(name, setup))
    return Ours(model, setup.classes)
