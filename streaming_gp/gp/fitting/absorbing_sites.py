"""Any likelihood at one ε, with a point at every input of a batch: its sites are looked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.exact import at_every_input
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.bounds.sites import MIN_SITE_PRECISION, Sites, SiteSteps
from streaming_gp.gp.collapsed.at_sites import AtData, SitesAtInputs
from streaming_gp.gp.collapsed.batch import UnderCavity
from streaming_gp.gp.fitting.absorbed import Absorbed
from streaming_gp.gp.fitting.problem import Data
from streaming_gp.gp.process.compiled import Compiled, compiled, spec
from streaming_gp.gp.process.factorised import Factorised

Posterior = Callable[[Sites], list[AtData]]
"""q(f) of every latent function at given sites."""


class SitesAtRest:
    """What batches of one model say at one ε.

    :param local: The model.
    :param steps: Fixed-point steps of the sites.
    """

    def __init__(self, local: LocalModel, steps: SiteSteps) -> None:
        self.local = local
        self.steps = steps

    def __call__(self, cavity: Factorised, epsilon: np.ndarray, data: Data) -> Absorbed:
        """What a batch says.

        :param cavity: The cavity at ε.
        :param epsilon: [E].
        :param data: X [N, D] and Y [N, P].
        :raises NumericalError: if a covariance is not positive, or a site not finite.
        """
        V = cavity.project(data[0])
        covariances, means = cavity.covariance(data[0], V), cavity.mean(data[0], V)
        q_at = partial(_posteriors, covariances, means)
        look = partial(self._compiled, epsilon, *data)
        try:
            sites, clipped = self._rested(q_at, look, data[0])
            q = q_at(sites)
        except np.linalg.LinAlgError:
            raise NumericalError("the cavity covariance at the inputs is not positive") from None
        expected = float(look(*_moments(q))[0])
        bound = expected - sum(float(one.kl) for one in q)
        said = at_every_input(data[0], sites, self.local.gp.num_groups)
        return Absorbed(said, bound, clipped_sites=clipped)

    def _rested(
        self, q_at: Posterior, look: Callable[..., Any], X: np.ndarray
    ) -> tuple[Sites, int]:
        """As :func:`.rested`, which is for many values of ε and in TensorFlow."""
        nothing = np.zeros((len(X), self.local.gp.num_latent))
        now, clipped = Sites(nothing, nothing + MIN_SITE_PRECISION), 0
        for _ in range(int(self.steps.most)):
            raw = Sites(*(one.numpy() for one in look(*_moments(q_at(now)))[1]))
            if not all(np.isfinite(one).all() for one in raw):
                raise NumericalError("the local posterior covariance gave non-finite sites")
            clipped = int(np.sum(raw.precision < MIN_SITE_PRECISION))
            wanted = raw._replace(precision=np.maximum(raw.precision, MIN_SITE_PRECISION))
            changes = [self.steps.damping * (b - a) for a, b in zip(now, wanted, strict=True)]
            now = Sites(*(a + change for a, change in zip(now, changes, strict=True)))
            if max(np.max(np.abs(change)) for change in changes) < self.steps.tolerance:
                break
        return now, clipped

    @cached_property
    def _compiled(self) -> Compiled:
        """The expected log likelihood at q(f), and a step of the sites."""
        local = self.local

        def at(
            epsilon: tf.Tensor, X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor
        ) -> tuple[tf.Tensor, Sites]:
            with local.parameters.substituted(epsilon):
                of = local.likelihood, X, mean, variance, Y
                return site_rules.expected_log_density(*of), site_rules.fixed_point_sites(*of)

        moment = spec(None, local.gp.num_latent)
        inputs, outputs = spec(None, local.input_dim), spec(None, local.output_dim)
        return compiled(at, spec(local.parameters.size), inputs, outputs, moment, moment)


def _posteriors(covariances: np.ndarray, means: np.ndarray, sites: Sites) -> list[AtData]:
    """q(f) of every latent function under a cavity of these covariances [L, N, N] and means."""
    none = np.zeros((1, covariances.shape[1], 0))
    found = []
    for K, mean, *site in zip(covariances, means, *(part.T for part in sites), strict=True):
        batch = UnderCavity(K[None], none, none[:, 0], -mean[None], none[:, :, 0:0])
        found.append(SitesAtInputs().posterior(batch, *site))
    return found


def _moments(q: list[AtData]) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances [N, L]."""
    return np.stack([one.mean[0] for one in q], axis=1), np.stack(
        [one.variance[0] for one in q], axis=1
    )
