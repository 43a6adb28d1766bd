"""Distributed EP: the moments of a client's whole tilted distribution, by sampling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.inputs import typed
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule, factor_of
from streaming_gp.pvi.updates.ep.power_ep import PowerEPUpdate
from streaming_gp.pvi.updates.sampled.sampling import log_likelihood_of


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
    num_samples: int = 4000
    min_effective: float = 200.0

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
        q = moved(proposal, theta, self._checked(tf.nn.softmax(log_weights)))
        evidence = float(tf.reduce_logsumexp(log_weights)) - np.log(self.num_samples)
        factor = factor_of(q, task.cavity, evidence)
        return LocalResult(factor, evidence, proposed.steps, proposed.skipped)

    def _checked(self, weights: tf.Tensor) -> tf.Tensor:
        effective = 1.0 / float(tf.reduce_sum(tf.square(weights)))
        if not effective >= self.min_effective:
            raise NumericalError(
                f"the proposal is far from the tilted distribution: {effective:.0f} effective "
                f"samples, wanted {self.min_effective:g}"
            )
        return weights


def moved(q: Any, theta: tf.Tensor, weights: tf.Tensor) -> Any:
    """q moved to the weighted moments of its draws: what equal weights would give is known."""
    excess = weights - 1.0 / len(weights)
    statistics = q.sufficient_statistics(theta)
    moments = (
        mean + tf.tensordot(excess, statistic, 1)
        for mean, statistic in zip(q.mean_parameters(), statistics, strict=True)
    )
    return type(q).from_mean_parameters(*moments)
