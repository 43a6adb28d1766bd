"""Expectation propagation by draws from the tilted distribution of all of a client's data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.expfam import Factor, Gaussian
from streaming_gp.inputs import NotNegativeFinite, PositiveInteger, require_strategy, typed
from streaming_gp.pvi.model import SampledModel, compiled_for, require
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule, factor_of
from streaming_gp.pvi.updates.power_ep import PowerEPUpdate

Chain = tuple[tf.Tensor, ...]
"""State of a Markov chain; its first entry is the position [D]."""


@dataclass(frozen=True, eq=False)
class Target:
    """A tilted distribution (Hasenclever et al. 2017, eq. 20).

    :param log_density: The function ``log_density(theta [S, D], seed [2])``: the logarithm of the
        density up to a constant [S], differentiable; on the minibatch that ``seed`` draws, if the
        sampler wants minibatches.
    :param approximation: A Gaussian that is near the tilted distribution.
    """

    log_density: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    approximation: Any


@runtime_checkable
class Sampler(Protocol):
    """A Markov chain kernel, hashable and made of TensorFlow operations: a rule compiles it."""

    @property
    def batch_size(self) -> int | None:
        """Random rows that a gradient sees; all if None."""

    def begin(self, theta: tf.Tensor) -> Chain:
        """A chain at ``theta`` [D]."""

    def step(self, chain: Chain, target: Target, seed: tf.Tensor) -> tuple[Chain, tf.Tensor]:
        """Go on, and give S draws [S, D].

        :param chain: The state of the chain.
        :param target: The tilted distribution.
        :param seed: Two integers [2] that determine the draws.
        """


def log_likelihood_of(model: Any) -> Callable[[tf.Tensor, Any, Any], tf.Tensor]:
    """The model's own."""
    return require(model, SampledModel, "sampling").log_likelihood


def require_gaussian(task: LocalTask) -> type[Gaussian]:
    """The family of a task."""
    family = type(task.posterior)
    if not issubclass(family, Gaussian):
        raise InvalidDataError(f"wanted a Gaussian posterior, got a {family.__name__}")
    return family


def log_density(
    model: Any, base: Factor, power: float, X: tf.Tensor, Y: tf.Tensor, batch_size: int | None
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """``log base(θ) + power · Σ_n log p(y_n | θ)`` as a target has it.

    :param batch_size: The number of rows that are drawn with replacement, and scaled to all; None
        for all rows as they are.
    """
    log_likelihood = log_likelihood_of(model)
    if batch_size is None:
        return lambda theta, _: base.log_value(theta) + power * log_likelihood(theta, X, Y)
    number, scale = tf.shape(X)[0], power / batch_size

    def estimate(theta: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        rows = tf.random.stateless_uniform([batch_size], seed, 0, number, tf.int32)
        value = log_likelihood(theta, tf.gather(X, rows), tf.gather(Y, rows))
        weight = scale * tf.cast(number, theta.dtype)
        return base.log_value(theta) + weight * tf.cast(value, theta.dtype)

    return estimate


@typed
@dataclass(frozen=True)
class DistributedEPUpdate:
    """``t ← Z proj[q_cav(θ) p(y | θ) / Z] / q_cav(θ)`` for all of a client's data together.

    Sampled as in Gelman et al. (2014), here with importance weights: draws are from what another
    rule says of the tilted distribution, and correct the moments of that. With the tilted
    distribution itself, as ``AnalyticUpdate`` gives it, the answer is exact.

    :param rule: The rule that proposes q.
    :param num_samples: The number of draws S.
    :param min_effective: The least number of effective samples ``1 / Σ w_s²`` that moments are
        taken from.
    """

    rule: UpdateRule = field(default_factory=PowerEPUpdate)
    num_samples: PositiveInteger = 4000
    min_effective: NotNegativeFinite = 200.0

    def __post_init__(self) -> None:
        require_strategy("rule", self.rule, UpdateRule, "pvi.VariationalUpdate()")

    def __call__(self, task: LocalTask) -> LocalResult:
        """Draw, weigh and match.

        :raises ImproperError: if cavity or proposal are improper.
        :raises NumericalError: if too few samples carry the weight.
        """
        cavity, proposed = task.cavity.normalised(), self.rule(task)
        proposal = (task.cavity * proposed.factor).normalised()
        theta = proposal.sample(self.num_samples, task.seed)
        log_joint = cavity.log_prob(theta) + log_likelihood_of(task.model)(theta, *task.data)
        log_weights = log_joint - proposal.log_prob(theta)
        weights = tf.nn.softmax(log_weights)
        effective = effective_samples(weights)
        if not effective >= self.min_effective:
            raise NumericalError(
                f"the proposal is far from the tilted distribution: {effective:.0f} effective "
                f"samples, wanted {self.min_effective:g}"
            )
        evidence = float(tf.reduce_logsumexp(log_weights)) - np.log(self.num_samples)
        factor = factor_of(match_weighted(proposal, theta, weights), task.cavity, evidence)
        return LocalResult(factor, evidence, proposed.steps, proposed.skipped)


def effective_samples(weights: tf.Tensor) -> float:
    """``1 / Σ w_s²``."""
    return 1.0 / float(tf.reduce_sum(tf.square(weights)))


def match_weighted(q: Any, theta: tf.Tensor, weights: tf.Tensor) -> Any:
    """The member with the weighted moments of draws from q, of which those that equal weights would
    give are known.
    """
    excess = weights - 1.0 / len(weights)
    if isinstance(q, Gaussian):  # in central moments, which keep the digits of a narrow q
        mean, covariance = q.moments()
        away = theta - mean
        moved = len(weights) * excess[:, None] * away
        shift = tf.reduce_mean(moved, axis=0)
        spread = q.mean_product(moved, away) - q.mean_product(shift[None], shift[None])
        return type(q).from_moments(mean + shift, covariance + spread)
    statistics = q.sufficient_statistics(theta)
    moments = (
        mean + tf.tensordot(excess, statistic, 1)
        for mean, statistic in zip(q.mean_parameters(), statistics, strict=True)
    )
    return type(q).from_mean_parameters(*moments)


@typed
@dataclass(frozen=True)
class MomentSharingUpdate:
    """``t ← N(θ; m̂, Λ̂⁻¹) / q_cav(θ)`` with the moments of S draws from the tilted distribution:
    sampling via moment sharing (SMS; Xu et al. 2014).

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
        require_strategy("sampler", self.sampler, Sampler, "samplers.NUTS()")

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
        factor = match_draws(family, draws[self._rule.warm_up :]) / task.cavity
        return LocalResult(Factor(family, factor.natural).as_arrays(), steps=len(draws))


def match_draws(family: type[Gaussian], draws: tf.Tensor) -> Factor:
    """The Gaussian whose precision is unbiased under draws [S, D] of a Gaussian."""
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
