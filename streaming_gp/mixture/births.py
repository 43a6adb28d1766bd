"""New components for a mixture that data stream into."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import KL, Dirichlet, DirichletNormalWishart, NormalWishart
from streaming_gp.mixture.gaussian_mixture import GaussianMixture
from streaming_gp.pvi import FixedPointUpdate, LocalResult, LocalTask, UpdateRule

UNSEEN = 1e-3
"""Concentration at which a component gets no responsibility."""


@dataclass(frozen=True)
class BirthUpdate:
    """Message passing that also starts with one component more, on data that the others explain
    badly; the fit of the highest local free energy is the answer.

    Components that no data have claimed are all alike, and message passing keeps them so: a stream
    needs a start that tells one of them apart. It is the cavity with a newborn, as in q itself
    other components may have been stretched over the data already. Only starts differ, and fixed
    points are those of the rule. For sequential visits: clients that give birth in parallel would
    use one component for different clusters.

    :param rule: The rule that fits.
    :param attempts: The number of starts to try in one visit.
    """

    rule: UpdateRule = field(default_factory=lambda: FixedPointUpdate(steps=20))
    attempts: int = 5

    def __call__(self, task: LocalTask) -> LocalResult:
        rng, model = np.random.default_rng(task.seed), _mixture(task)
        start: Any = task.posterior
        base: Any = task.cavity.normalised()
        if not model.claimed(start).any():  # or the data would be shared out among equals
            start = base = with_birth(model, base, task.data[1], rng)
        best = self._fitted(replace(task, start=start))
        for _ in range(self.attempts):
            if model.claimed(base).all():
                break
            start = with_birth(model, base, task.data[1], rng)
            other = self._fitted(replace(task, start=start))
            if other.free_energy > best.free_energy:
                best, base = other, start
        return best

    def _fitted(self, task: LocalTask) -> LocalResult:
        result = self.rule(task)
        q = _posterior(task, result)
        X, Y = task.data
        expected = _mixture(task).expected_log_likelihood(q, X, Y, None)
        return replace(result, free_energy=float(expected - KL()(q, task.cavity)))


def _mixture(task: LocalTask) -> GaussianMixture:
    if not isinstance(task.model, GaussianMixture):
        name = type(task.model).__name__
        raise InvalidDataError(f"BirthUpdate is for a GaussianMixture, not for {name}")
    return task.model


def _posterior(task: LocalTask, result: LocalResult) -> Any:
    return (task.cavity * result.factor).normalised()


def with_birth(
    model: GaussianMixture, q: DirichletNormalWishart, Y: np.ndarray, rng: np.random.Generator
) -> DirichletNormalWishart:
    """q with one unclaimed component moved to a datum, drawn as k-means++ draws its centres: the
    worse q explains a datum, the likelier.
    """
    k = int(np.argmin(model.claimed(q)))
    score = np.asarray(model.log_joint(q, Y)).max(axis=1)
    badness = score.max() - score + 1e-9
    datum = rng.choice(len(Y), p=badness / badness.sum())
    weights, mean = np.array(q.concentration), np.array(q.components.mean)
    strength, dof = np.array(q.strength), np.array(q.components.dof)
    weights[~model.claimed(q)] = UNSEEN
    weights[k], mean[k], strength[k] = 0.5 * len(Y), Y[datum], len(Y)
    components = NormalWishart.from_standard(
        mean, strength, dof, np.asarray(q.components.scale_inverse)
    )
    return DirichletNormalWishart.of(Dirichlet(weights), components).as_arrays()
