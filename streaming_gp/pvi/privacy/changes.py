"""Changes of a client's factor, clipped and noisy, in units of the server's posterior."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.linalg

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, Gaussian, Normal
from streaming_gp.inputs import PositiveInteger, typed
from streaming_gp.pvi.privacy.rule import Draws, PrivateRule, require_rule
from streaming_gp.pvi.task import LocalTask


@typed
@dataclass(frozen=True, kw_only=True)
class PrivateChanges(PrivateRule):
    """Any rule; by how much an answer changes its client's factor is clipped, and noisy.

    With Δ the change of natural parameters from the factor so far to the one that the rule arrives
    at, the answer is the factor so far times ``Δ min(1, C / ‖Δ‖) + 2 C σ ξ``, in the coordinates of
    :func:`~streaming_gp.pvi.privacy.to_coordinates`.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        require_rule(type(self).__name__, self.rule)

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


@typed
@dataclass(frozen=True, kw_only=True)
class LocalAveraging(PrivateChanges):
    """Any rule, on parts of the client's rows; the mean of the parts' clipped changes is noisy. A
    client is several clients within (Heikkilä et al. 2023).

    Each row falls into one of M parts at random, anew at each visit. Every part is fitted from the
    client's cavity as if it were all of the client, with each of its rows M times, and Δ_m is the
    change that it proposes. The answer is the factor so far times
    ``(1/M) Σ_m Δ_m min(1, C / ‖Δ_m‖) + (2 C / M) σ ξ``, in natural parameters. The more parts, the
    less noise, and the less each fit knows; a visit costs M fits.

    What is protected is each row. Sensitivity: let two data sets differ in one row, which one of
    them lacks or has another in the place of. Rows fall into parts independently of one another, so
    that the rows which both have fall into the same parts with the same probability. Then all parts
    but one are the same. The clipped change of that one moves by 2 C at most, and the mean by
    2 C / M.

    :param parts: The number of parts M.
    :raises InvalidDataError: for a rule that keeps anything from one fit to the next.
    """

    parts: PositiveInteger = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if keeps_state(self.rule):
            raise InvalidDataError(
                "a row would reach all parts by way of what the rule keeps from fit to fit, which "
                f"the noise is not made for: wanted a rule without a memory, got {self.rule!r:.200}"
            )

    def private_factor(self, task: LocalTask, draws: Draws) -> Factor:
        (X, Y), changes = task.data, []
        for rows in draws.parts(task.num_data, self.parts):
            if len(rows):  # a part without rows changes nothing
                part = np.tile(rows, self.parts)
                result = self.rule(replace(task, data=(X[part], Y[part])))
                changes.append(self.clipped_change(task, result.factor))
        mean = np.sum(changes, axis=0) / self.parts
        return self.noisy(task, mean, 2.0 * self.clip / self.parts, draws)


def keeps_state(rule: Any) -> bool:
    """Whether a rule, or one that it is made around, keeps something from fit to fit: a worker with
    a memory, a folder or a record.
    """
    worker = getattr(rule, "worker", None)
    own = getattr(rule, "keeps_state", False) or (worker is not None and worker() is not rule)
    return bool(own) or (hasattr(rule, "rule") and keeps_state(rule.rule))


def to_coordinates(q: Any, change: Factor) -> np.ndarray:
    """A change of natural parameters as a vector.

    For Gaussians it is measured by q, the posterior that the server has sent and knows: the pull on
    its mean in standard deviations, and the change of its precision relative to it over √2, times
    √D where D coordinates have one. The length of the vector is that of the Fisher metric. Other
    families are taken as they are, with the off-diagonal entries of symmetric matrices times √2.
    """
    if not isinstance(q, Gaussian):
        return np.concatenate(
            [
                _flat(np.asarray(eta), place in q.symmetric)
                for place, eta in enumerate(change.natural)
            ]
        )
    mean, (by_mean, precision) = np.asarray(q.mean), map(np.asarray, change.natural)
    if not isinstance(q, Normal):
        sd, weight = _widths(q)
        pull = sd * (by_mean - precision * mean)
        return np.concatenate([pull, np.ravel(weight * sd**2 * precision)])
    scale = np.asarray(q.scale)
    pull = scale.T @ (by_mean - precision @ mean)
    return np.concatenate([pull, _flat(scale.T @ precision @ scale, True) / np.sqrt(2.0)])


def from_coordinates(q: Any, vector: np.ndarray) -> Factor:
    """The change that :func:`to_coordinates` was called on."""
    if not isinstance(q, Gaussian):
        parts, start = [], 0
        for place, shape in enumerate(np.shape(eta) for eta in q.natural):
            is_symmetric = place in q.symmetric
            kept = (*shape[:-2], shape[-1] * (shape[-1] + 1) // 2) if is_symmetric else shape
            part = vector[start : start + int(np.prod(kept))].reshape(kept)
            parts.append(_square(part, shape[-1]) if is_symmetric else part)
            start += part.size
        return Factor(type(q), tuple(parts))
    mean, size = np.asarray(q.mean), len(q.mean)
    pull, change = vector[:size], vector[size:]
    if not isinstance(q, Normal):
        sd, weight = _widths(q)
        precision = change.reshape(sd.shape) / weight / sd**2
        natural = pull / sd + precision * mean, precision
    else:
        inverse = scipy.linalg.solve_triangular(np.asarray(q.scale), np.eye(size), lower=True)
        precision = inverse.T @ _square(np.sqrt(2.0) * change, size) @ inverse
        natural = inverse.T @ pull + precision @ mean, 0.5 * (precision + precision.T)
    dtype = np.asarray(q.natural[0]).dtype
    return Factor(type(q), tuple(part.astype(dtype) for part in natural))


def _widths(q: Gaussian) -> tuple[np.ndarray, float]:
    """Standard deviations, [D] or one of all [], and the length of a relative change of precision:
    √½ of one coordinate, √(D/2) of all.
    """
    sd = 1.0 / np.sqrt(np.asarray(q.precision))
    return sd, float(np.sqrt(0.5 * np.size(q.precision_mean) / sd.size))


def _flat(array: np.ndarray, is_symmetric: bool) -> np.ndarray:
    if not is_symmetric:
        return np.ravel(array)
    rows, columns = np.triu_indices(array.shape[-1])
    weights = np.where(rows == columns, 1.0, np.sqrt(2.0))
    return np.ravel(array[..., rows, columns] * weights)


def _square(flat: np.ndarray, size: int) -> np.ndarray:
    """Symmetric matrices [..., D, D] of their upper triangles [..., D (D + 1) / 2]."""
    rows, columns = np.triu_indices(size)
    square = np.zeros((*flat.shape[:-1], size, size))
    square[..., rows, columns] = flat / np.where(rows == columns, 1.0, np.sqrt(2.0))
    square[..., columns, rows] = square[..., rows, columns]
    return square
