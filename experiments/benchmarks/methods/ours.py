"""Every strategy of this package; ways to learn hyperparameters, when, and to forget the past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np

import streaming_gp as sgp
from experiments.benchmarks.methods.learner import Held, Prediction, Setup
from streaming_gp.gp import Forgetting

BUDGET = 480
"""Private points are merged where a stream would end with more."""
HYPERPARAMETERS: dict[str, Any] = {
    "default": sgp.VariationalHyperparameters(),
    "forgetting": sgp.VariationalHyperparameters(forgetting_factor=0.7),
    "point": sgp.PointHyperparameters(),
    "newest": sgp.PointHyperparameters(remember=False),
}
SCHEDULES: dict[str, Any] = {"each": sgp.EveryUpdate(), "settled": sgp.UntilSettled()}
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
        process = self.model.posterior_process
        factors = sum(factor.num_bytes for factor in self.model.factors.values())
        return Held(process.num_pseudo_points, "points", factors)


def strategy(name: str, setup: Setup) -> tuple[Any, sgp.LocalOptimiser]:
    """Pseudo-points and effort; shared ones take fewer iterations and move more points in each."""
    points, usual = setup.points, sgp.LocalOptimiser(max_iterations=setup.iterations(50))
    in_all = setup.points * setup.num_batches
    if name == "private":
        budget = BUDGET if in_all > BUDGET else None
        return sgp.PrivatePseudoPoints(points, budget=budget), usual
    if name == "automatic":
        return sgp.PrivatePseudoPoints("auto", max_number=3 * points, budget=2 * BUDGET), usual
    if name == "every input":
        return sgp.PrivatePseudoPoints("all"), usual
    if name.endswith("inputs"):
        return sgp.PrivatePseudoPoints("all", budget=int(name.split()[0])), usual
    if name == "conditional":
        return sgp.ConditionalPseudoPoints(points), usual
    optimiser = sgp.LocalOptimiser(
        max_iterations=setup.iterations(10), location_iterations=setup.iterations(20)
    )
    number = min(in_all, BUDGET)
    return sgp.SharedPseudoPoints(number, growth=points, kept_batches=1), optimiser


def forgetting(name: str, setup: Setup) -> Forgetting:
    """What earlier batches still say of the function."""
    if name == "fading":
        return sgp.Fading(FADING)
    if name == "window":
        return sgp.SlidingWindow(max(1, round(WINDOW * setup.num_batches / setup.num_data)))
    return sgp.ForgetNothing()


def streaming_gp(
    setup: Setup,
    points: str,
    hyperparameters: str,
    forgets: str = "nothing",
    learns: str = "each",
) -> Ours:
    """Before its first batch."""
    pseudo_points, optimiser = strategy(points, setup)
    start = setup.hyperparameters
    noisy = gpflow.likelihoods.Gaussian(start.noise)
    model = sgp.StreamingGP(
        start.kernel(),
        gpflow.likelihoods.Bernoulli() if setup.classes else noisy,
        pseudo_points=pseudo_points,
        hyperparameters=HYPERPARAMETERS[hyperparameters],
        forgetting=forgetting(forgets, setup),
        optimiser=optimiser,
        learning=SCHEDULES[learns],
        seed=setup.seed,
    )
    return Ours(model, setup.classes)
