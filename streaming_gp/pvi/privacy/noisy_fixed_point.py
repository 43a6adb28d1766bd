"""``FixedPointUpdate`` whose gradients of the data terms are noisy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import KL, Factor, MeanFieldNormal
from streaming_gp.pvi.compiled import tensors
from streaming_gp.pvi.damping import damped
from streaming_gp.pvi.privacy.noisy_gradients import NoisyGradients
from streaming_gp.pvi.task import LocalResult, LocalTask
from streaming_gp.pvi.updates.fixed_point import FixedPointUpdate


@dataclass(frozen=True)
class NoisyFixedPoint(FixedPointUpdate):
    """The rule with these gradients in the place of its own.

    Of means alone, a step keeps the precision Λ_t of the client's factor and goes to the factor of
    that precision whose gradient at the mean m of q is the noisy one g: ``h = g + Λ_t m``.
    """

    gradients: NoisyGradients = field(kw_only=True)

    def __call__(self, task: LocalTask) -> LocalResult:
        factor, q = task.own, task.start
        for step in range(self.steps):
            if step > 0:
                q = (task.cavity * factor).normalised()
            gradient = self.gradients(task, self.loss, q)
            target = self._of_means(q, gradient, factor) if self.gradients.means_only else None
            factor = damped(factor, target or natural(q, gradient), self.damping)
        assert factor is not None
        return LocalResult(factor, steps=self.steps)

    def _of_means(self, q: Any, gradient: tf.Tensor, own: Factor | None) -> Factor:
        assert own is not None
        precision = np.asarray(own.natural[1])
        mean = np.asarray(q.mean)
        return Factor(MeanFieldNormal, (gradient[0].numpy() + precision * mean, precision))


def natural(q: Any, gradient: tf.Tensor) -> Factor:
    """A gradient by the unconstrained numbers of q as one by its mean parameters: a factor."""
    own = type(q)(*tensors(q.natural))
    found = own.natural_gradient(lambda q: tf.reduce_sum(gradient * q.unconstrained()))
    return Factor(type(q), found.natural).as_arrays()


def require_divergence(rule: FixedPointUpdate) -> None:
    """Refuse what a noisy step does not know.

    :raises InvalidDataError: for divergences other than KL.
    """
    if rule.divergence != KL():
        raise InvalidDataError("noisy fixed-point steps are for the KL divergence only")
