"""Sites that rest at the fixed point of PVI 2018, eq. 9, under q(f) at one or more values of ε."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.sites import MIN_SITE_PRECISION, Sites, SiteSteps
from streaming_gp.gp.process.compiled import Compiled, at_each_sample, compiled, spec


def rested(step: Callable[[Sites], Sites], sites: Sites, steps: SiteSteps) -> tuple[Sites, int]:
    """As :func:`streaming_gp.gp.bounds.sites.rested`, in NumPy.

    :param step: An undamped step.
    :returns: the sites, and how many the last step cut off.
    :raises NumericalError: if a step is not finite.
    """
    clipped = 0
    for _ in range(int(steps.most)):
        raw = step(sites)
        if not all(np.isfinite(one).all() for one in raw):
            raise NumericalError("the local posterior covariance gave non-finite sites")
        clipped = int(np.sum(raw.precision < MIN_SITE_PRECISION))
        wanted = raw._replace(precision=np.maximum(raw.precision, MIN_SITE_PRECISION))
        changes = [steps.damping * (new - old) for old, new in zip(sites, wanted, strict=True)]
        sites = Sites(*(old + change for old, change in zip(sites, changes, strict=True)))
        if max(np.max(np.abs(change)) for change in changes) < steps.tolerance:
            break
    return sites, clipped


class LikelihoodAtData:
    """What a likelihood says of f at the data, for Gaussian q(f) at S values of ε.

    :param local: The :class:`~streaming_gp.gp.bounds.problem.LocalModel`.
    """

    def __init__(self, local: Any) -> None:
        self.local = local

    def step(self, draws: Any, X: Any, Y: Any, mean: Any, variance: Any) -> tuple[float, Sites]:
        """``E_q[log p(Y | f)]`` in nats, summed over ε, and a step of the sites [N, L], averaged.

        :param draws: Values of ε [S, E].
        :param mean: [S, N, L].
        :param variance: [S, N, L].
        """
        found = self._compiled(draws, X, Y, mean, variance)
        expected, by_mean, by_variance = (part.numpy() for part in found)
        sites = site_rules.from_derivatives(by_mean, by_variance, mean)
        return float(np.sum(expected)), Sites(*(np.mean(part, axis=0) for part in sites))

    def differentiated(
        self, draws: tf.Tensor, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """The same of every ε [S] as tensors, and its derivatives by ε, mean and variance."""
        local = self.local

        def at(epsilon: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tuple[tf.Tensor, ...]:
            by = epsilon, mean, variance
            with tf.GradientTape() as tape:
                tape.watch(by)
                with local.parameters.substituted(epsilon):
                    value = site_rules.expected_log_density(local.likelihood, X, mean, variance, Y)
            return value, *tape.gradient(value, by, unconnected_gradients="zero")

        found: tuple[tf.Tensor, ...] = at_each_sample(at, draws, mean, variance)
        return found

    @cached_property
    def _compiled(self) -> Compiled:
        local = self.local
        moment = spec(None, None, local.gp.num_latent)
        data = spec(None, local.input_dim), spec(None, local.output_dim)
        draws = spec(local.hyperparameters.num_draws, local.parameters.size)
        return compiled(self._needed, draws, *data, moment, moment)

    def _needed(self, *arguments: tf.Tensor) -> tuple[tf.Tensor, ...]:
        expected, _, by_mean, by_variance = self.differentiated(*arguments)
        return expected, by_mean, by_variance
