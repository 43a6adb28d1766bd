"""Sampling via moment sharing (SMS; Xu et al. 2014): EP with the moments of a chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.expfam import Factor, Gaussian
from streaming_gp.inputs import require_not_negative, typed
from streaming_gp.pvi.compiled import compiled_for
from streaming_gp.pvi.task import LocalResult, LocalTask
from streaming_gp.pvi.updates.sampled.sampling import (
    Chain,
    Sampler,
    Target,
    log_density,
    log_likelihood_of,
    require_gaussian,
)


@typed
@dataclass(frozen=True)
class MomentSharingUpdate:
    """``t ← N(θ; m̂, Λ̂⁻¹) / q_cav(θ)`` with the moments of S draws from the tilted distribution.

    ``Λ̂ = (S − D − 2) (Σ_s (θ_s − m̂)(θ_s − m̂)ᵀ)⁻¹`` is unbiased for independent draws of a Gaussian,
    and there is none for fewer than D + 3 of them; of independent coordinates 4 draws are enough.
    Its noise is that of an inverse: damping averages over answers, but bounds none of them.
    A worker keeps the chain between questions, and waits for the next one.

    With the long chains of ``samplers.NUTS`` this is distributed EP by MCMC (Gelman et al. 2014;
    Vehtari et al. 2020).

    :param sampler: The sampler of the tilted distribution; the draws of each step make an answer.
    :param warm_up: The number of draws of each step that are left out, while the chain finds its
        target.
    :raises InvalidDataError: if it is negative.
    """

    sampler: Sampler
    warm_up: int = 0

    def __post_init__(self) -> None:
        require_not_negative("warm_up", self.warm_up)

    def __call__(self, task: LocalTask) -> LocalResult:
        """Draw and match, without a memory; raises as the worker does."""
        return self.worker()(task)

    def worker(self) -> MomentSharingWorker:
        """The rule with a chain that goes on, for one client."""
        return MomentSharingWorker(self)


class MomentSharingWorker:
    """Keeps a chain, which could be begun again. It rests between questions, as an answer is of
    draws under one cavity.
    """

    def __init__(self, rule: MomentSharingUpdate) -> None:
        self._rule = rule
        self._chain: Chain | None = None

    def __call__(self, task: LocalTask) -> LocalResult:
        """Draw and match.

        :raises InvalidDataError: if the model has no ``log_likelihood`` or no Gaussian posterior.
        :raises NumericalError: if the draws are too few, or not finite.
        """
        family, sampler = require_gaussian(task), self._rule.sampler
        log_likelihood_of(task.model)
        if self._chain is None:
            self._chain = sampler.begin(task.posterior.sample(1, task.seed)[0])
        draw = compiled_for(
            task.model, (self._rule, family), lambda model: _compiled(model, sampler, family)
        )
        natural = (task.cavity.natural, task.posterior.natural)
        self._chain, draws = draw(self._chain, *natural, *task.data, tf.constant([task.seed, 0]))
        if not np.isfinite(draws).all():
            self._chain = None
            raise NumericalError("the chain left the tilted distribution")
        factor = matched(family, draws[self._rule.warm_up :]) / task.cavity
        return LocalResult(Factor(family, factor.natural).as_arrays(), steps=len(draws))


def matched(family: type[Gaussian], draws: tf.Tensor) -> Factor:
    """The Gaussian whose precision is unbiased under draws [S, D] of a Gaussian.

    :raises NumericalError: if there is none for so few draws.
    """
    number, dimension = draws.shape
    mean = tf.reduce_mean(draws, axis=0)
    covariance = family.mean_product(draws - mean, draws - mean)
    lost = (2.0 / dimension, 2.0, dimension + 1.0)[len(covariance.shape)]
    degrees = number - 1.0 - lost
    if degrees <= 0.0:
        raise NumericalError(
            f"{number} draws have no unbiased precision: wanted more than {1.0 + lost:g}"
        )
    q = family.from_moments(mean, covariance)
    return Factor(family, q.natural) ** (degrees / number)


def _compiled(model: Any, sampler: Sampler, family: type[Gaussian]) -> Callable[..., Any]:
    @tf.function(autograph=False, reduce_retracing=True)
    def draw(chain: Chain, cavity: Any, q: Any, X: Any, Y: Any, seed: Any) -> Any:
        density = log_density(model, Factor(family, cavity), 1.0, X, Y, sampler.batch_size)
        return sampler.step(chain, Target(density, family(*q)), seed)

    return draw
