"""What a method is: how it learns and predicts, and what is said of it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Literal, Protocol

import gpflow
import numpy as np
import scipy.stats

from streaming_gp.inputs import missing_extra

NOISE_VARIANCE = 0.1
"""Where every method starts, for targets of variance 1."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Mean [N] and variance [N] of y; of labels, their probability and its p (1 − p)."""

    mean: np.ndarray
    variance: np.ndarray

    @classmethod
    def of_label(cls, probability: np.ndarray) -> Prediction:
        return cls(probability, probability * (1.0 - probability))


@dataclass(frozen=True)
class Held:
    """What a method keeps between batches.

    :param number: How many points or features.
    :param unit: What is counted.
    :param num_bytes: The size of all arrays that it needs to go on.
    """

    number: int
    unit: Literal["points", "features"]
    num_bytes: int


class Learner(Protocol):
    """Takes batches one after another."""

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        """Learn X [N, D] and Y [N, 1]."""
        ...

    def predict(self, X: np.ndarray) -> Prediction:
        """What is predicted for y at X [N, D]."""
        ...

    def held(self) -> Held: ...


@dataclass(frozen=True, eq=False)
class Hyperparameters:
    """Those of a squared-exponential kernel and Gaussian noise.

    :param variance: The kernel's variance.
    :param lengthscales: The lengthscale of each input, [D].
    :param noise: The variance of the noise.
    """

    variance: float
    lengthscales: np.ndarray
    noise: float

    def kernel(self) -> gpflow.kernels.Kernel:
        return gpflow.kernels.SquaredExponential(self.variance, self.lengthscales)

    @classmethod
    def start(cls, input_dim: int) -> Hyperparameters:
        """Where all learning starts: at lengthscales that let inputs of variance 1 matter."""
        return cls(1.0, np.full(input_dim, np.sqrt(input_dim)), NOISE_VARIANCE)


@dataclass(frozen=True, eq=False)
class Setup:
    """What a learner is made for.

    :param hyperparameters: Where it starts, or what it keeps to if it cannot learn them.
    :param num_data: The length of the stream.
    :param num_batches: The number of its batches.
    :param points: The number of private pseudo-points of a batch.
    :param classes: Whether y is a label.
    :param seed: The seed of its random numbers.
    :param effort: The share of the usual iterations that it may take.
    """

    hyperparameters: Hyperparameters
    num_data: int
    num_batches: int
    points: int
    classes: bool
    seed: int
    effort: float = 1.0

    @property
    def input_dim(self) -> int:
        return len(self.hyperparameters.lengthscales)

    def iterations(self, usual: int) -> int:
        return max(2, round(self.effort * usual))


@dataclass(frozen=True)
class Method:
    """One row of a stream's table.

    :param make: Where the learner is made: a module of this package and a function in it that takes
        a :class:`Setup`, then ``setting``.
    :param family: What it is; of several settings of one family the better one counts.
    :param setting: The setting that was chosen for it.
    :param source: Who published it.
    :param group: Whose it is, or whether it is a limit or floor for all of them.
    :param tuned: What its hyperparameters are learned from.
    :param is_random: Whether seeds matter, so that there are three of them.
    :param labels: Whether it models labels; otherwise −1 and 1 are regressed on.
    :param needs: The module that must be installed, if it is not one of the library's.
    :param at_once: Whether it gets all batches as one.
    """

    make: str
    family: str
    source: str
    setting: tuple[int, ...] | tuple[str, ...] = ()
    group: Literal["ours", "rival", "limit", "floor"] = "rival"
    tuned: Literal["every batch", "first batches", "all data"] = "every batch"
    is_random: bool = False
    labels: bool = False
    needs: str | None = None
    at_once: bool = False

    @property
    def is_installed(self) -> bool:
        return self.needs is None or find_spec(self.needs) is not None

    def learner(self, setup: Setup) -> Learner:
        """A new learner.

        :raises InvalidDataError: if it needs a module that is not installed.
        """
        if not self.is_installed:
            raise missing_extra(self.family, str(self.needs), "benchmarks")
        module, _, function = self.make.partition(":")
        maker = getattr(import_module(f"experiments.benchmarks.methods.{module}"), function)
        learner: Learner = maker(setup, *self.setting)
        return OnLabels(learner) if setup.classes and not self.labels else learner


@dataclass(frozen=True, eq=False)
class OnLabels:
    """Least-squares classification: regression on −1 and 1, and the probability that a latent
    Gaussian value is positive (Rasmussen & Williams 2006, section 6.5).
    """

    regression: Learner

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        self.regression.update(X, 2.0 * Y - 1.0)

    def predict(self, X: np.ndarray) -> Prediction:
        latent = self.regression.predict(X)
        return Prediction.of_label(scipy.stats.norm.cdf(latent.mean / np.sqrt(latent.variance)))

    def held(self) -> Held:
        return self.regression.held()
