"""Changes of a client's factor, clipped and noisy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.inputs import require_positive, typed
from streaming_gp.pvi.privacy.accountant import Release
from streaming_gp.pvi.privacy.coordinates import from_coordinates, to_coordinates
from streaming_gp.pvi.privacy.draws import Draws
from streaming_gp.pvi.privacy.private_rule import PrivateRule, require_rule
from streaming_gp.pvi.task import LocalTask


@typed
@dataclass(frozen=True, kw_only=True)
class PrivateChanges(PrivateRule):
    """Any rule; by how much an answer changes its client's factor is clipped, and noisy.

    With Δ the change of natural parameters from the factor so far to the one that the rule arrives
    at, the answer is the factor so far times ``Δ min(1, C / ‖Δ‖) + 2 C σ ξ``, in the coordinates of
    :func:`~streaming_gp.pvi.privacy.coordinates.to_coordinates`.

    What is protected is the whole of a client: any two data sets of it are neighbours, whatever
    they hold and however many rows. Sensitivity: the coordinates depend on the posterior that the
    server has sent, and the clipped change of any data set lies in a ball of radius C. Two points
    of it are 2 C apart at most, so that the noise has σ times the sensitivity. That is much more
    than the protection of a row, and takes much more noise: for many rows a client,
    ``PrivateGradients`` or ``LocalAveraging`` tell more for the same ε.

    :param rule: Any update rule of an exponential family.
    :param clip: The largest norm C of a change; infinity for none.
    :param noise_multiplier: The standard deviation of the noise over 2 C.
    :raises InvalidDataError: for noise without a bound to scale it by.
    """

    clip: float = 1.0
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        require_rule(type(self).__name__, self.rule)
        require_positive("clip", self.clip)
        if math.isinf(self.clip) and self.noise_multiplier != 0.0:
            raise InvalidDataError("noise is scaled by clip, which is infinite")
        Release(self.noise_multiplier)

    @property
    def release(self) -> Release:
        return Release(self.noise_multiplier)

    def private_factor(self, task: LocalTask, draws: Draws) -> Factor:
        change = self.clipped_change(task, self.rule(task).factor)
        return self.noisy(task, change, 2.0 * self.clip, draws)

    def clipped_change(self, task: LocalTask, factor: Factor) -> np.ndarray:
        """From the task's own factor to this one, no longer than C; none if not finite."""
        change = factor if task.own is None else factor / task.own
        vector = to_coordinates(task.posterior, change)
        norm = float(np.linalg.norm(vector))
        if not math.isfinite(norm):
            return np.zeros_like(vector)
        return vector / max(1.0, norm / self.clip)

    def noisy(
        self, task: LocalTask, change: np.ndarray, sensitivity: float, draws: Draws
    ) -> Factor:
        """The task's own factor with this change, and noise of σ times the sensitivity."""
        if self.noise_multiplier > 0.0:
            change = change + self.noise_multiplier * sensitivity * draws.normal(len(change))
        factor: Any = from_coordinates(task.posterior, change)
        return factor if task.own is None else factor * task.own
