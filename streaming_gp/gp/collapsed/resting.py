"""Sites that rest at the fixed point of PVI 2018, eq. 9, under q(f) at one or more values of ε."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.sites import MIN_SITE_PRECISION, Sites, SiteSteps
from streaming_gp.gp.process.graphs import Compiled, at_each_sample, spec

FALL = 1.0
"""Nats for each datum by which the expected log likelihood never falls but where a step went too
far: counts in the hundreds under a log rate that is thought to be one, for instance."""
BACK = 0.1
"""The share of such a step that is tried instead."""
MOST_TRIES = 50
"""So often in all, beside the steps that are made."""
NEAR = 0.01
"""The largest change of a site in an undamped step, as a part of the largest site, at rest."""


class Look(NamedTuple):
    """What a likelihood says at given sites.

    :param expected: The expected log likelihood in nats.
    :param wanted: An undamped step, whose precisions may be negative.
    :param stationary: Another one, by :func:`.sites.stationary`.
    """

    expected: float
    wanted: Sites
    stationary: Sites


Step = Callable[[Sites], Look]


class Rested(NamedTuple):
    """Where steps ended.

    :param sites: The sites.
    :param clipped: How many the last step cut off.
    :param is_near: Whether they are nearly at rest.
    """

    sites: Sites
    clipped: int
    is_near: bool


def rested(step: Step, sites: Sites, steps: SiteSteps) -> Rested:
    """As :func:`streaming_gp.gp.bounds.sites.rested`, in NumPy, with shorter steps where one went
    too far. Where sites were cut off, steps go on to where the mean of q(f) is stationary.

    :param step: Looks at sites.
    :param sites: Where they start [N, L].
    :param steps: How many, how damped, and when they rest.
    :raises NumericalError: if the first step is not finite, or none is short enough.
    """
    found = _rested(step, sites, steps, attrgetter("wanted"))
    if found.clipped:
        with suppress(NumericalError):
            onward = _rested(step, found.sites, steps, attrgetter("stationary"))
            found = onward._replace(clipped=found.clipped)
    return found


def _rested(step: Step, sites: Sites, steps: SiteSteps, chosen: Callable[[Look], Sites]) -> Rested:
    """The same by one kind of step."""
    clipped, best, lowest = 0, sites, -np.inf
    number = tries = 0
    while number < steps.most:
        looked = step(sites)
        expected, raw = looked.expected, chosen(looked)
        if not (expected >= lowest and all(np.isfinite(one).all() for one in raw)):
            tries += 1
            if sites is best or tries > MOST_TRIES:
                raise NumericalError("the local posterior covariance gave non-finite sites")
            sites = _between(best, sites, BACK)
            continue
        number += 1
        clipped = int(np.sum(raw.precision < MIN_SITE_PRECISION))
        wanted = raw._replace(precision=np.maximum(raw.precision, MIN_SITE_PRECISION))
        best, lowest = sites, expected - FALL * len(sites.precision)
        sites = _between(sites, wanted, steps.damping)
        changes = (np.max(np.abs(new - old)) for new, old in zip(sites, best, strict=True))
        if max(changes) < steps.tolerance:
            return Rested(sites, clipped, True)
    looked = step(sites)
    if not looked.expected >= lowest:
        return Rested(best, clipped, False)
    wanted = np.maximum(chosen(looked).precision, MIN_SITE_PRECISION)
    away = np.max(np.abs(wanted - sites.precision))
    return Rested(sites, clipped, bool(away <= NEAR * np.max(sites.precision)))


def _between(some: Sites, others: Sites, share: float) -> Sites:
    """This share of the way from some sites to others."""
    return Sites(*(old + share * (new - old) for old, new in zip(some, others, strict=True)))


class LikelihoodAtData:
    """What a likelihood says of f at the data, for Gaussian q(f) at S values of ε.

    :param local: The :class:`~streaming_gp.gp.bounds.problem.LocalModel`.
    """

    def __init__(self, local: Any) -> None:
        self.local = local

    def step(self, draws: Any, X: Any, Y: Any, mean: Any, variance: Any) -> Look:
        """``E_q[log p(Y | f)]`` in nats, summed over ε, and steps of the sites [N, L], averaged.

        :param draws: Values of ε [S, E].
        :param mean: [S, N, L].
        :param variance: [S, N, L].
        """
        expected, *parts = (part.numpy() for part in self._compiled(draws, X, Y, mean, variance))
        return Look(float(expected), Sites(*parts[:2]), Sites(*parts[2:]))

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
        return local.graphs.compiled(self._needed, draws, *data, moment, moment)

    def _needed(
        self, draws: tf.Tensor, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        expected, _, by_mean, by_variance = self.differentiated(draws, X, Y, mean, variance)
        likelihood = self.local.likelihood
        sites = site_rules.from_derivatives(likelihood, by_mean, by_variance, mean, Y)
        both = *sites, *site_rules.stationary(sites, mean)
        return tf.reduce_sum(expected), *(tf.reduce_mean(part, axis=0) for part in both)
