"""Bounds on pseudo-points, a few for each batch.

It is ordinary sparse inference whose GP prior is the cavity (maths page, section 2). What a batch's
free energy says of the data is left to each bound; all else is here.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.base import (
    BoundOfProjections,
    cavity_of,
    divergence_gained,
    gaussian_noise_sites,
    sites_at,
)
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.protocol import is_finite
from streaming_gp.gp.bounds.shown_errors import shown_error
from streaming_gp.gp.bounds.sites import Sites, is_conjugate
from streaming_gp.gp.bounds.whitening import (
    Cavity,
    PointPosterior,
    Points,
    ProjectedData,
    ProjectedEarlier,
    data_under_cavity,
    expected_log_earlier,
    from_sites,
    grouped_sites,
    information,
    left_by_points,
    point_posterior,
    posterior_at_data,
    projected_data,
    projected_earlier,
    whiten,
)
from streaming_gp.gp.process.graphs import at_each_sample, mean_over_samples
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import spread_over_latents


class Summary(NamedTuple):
    """New points, and what data and earlier pseudo-observations are as functions of them."""

    points: Points
    data: ProjectedData
    earlier: ProjectedEarlier | None


@dataclass(frozen=True)
class SparseBound(BoundOfProjections, abc.ABC):
    """``F = (what the data say under q) − KL(q(b) ‖ p̃(b))``, for points b = f(Z) under a cavity.

    Earlier pseudo-observations that the points take over count as data, less what they said under
    the cavity. A bound of your own says how data enter, in :meth:`expected`, and if it knows
    other sites of Gaussian noise than the exact ones, in :meth:`own_sites`.
    """

    @abc.abstractmethod
    def expected(
        self,
        local: LocalModel,
        data: ProjectedData,
        sites: Sites,
        c: PointPosterior,
        problem: Problem,
    ) -> tf.Tensor:
        """What the data add to the free energy: [], in nats.

        :param data: The data as linear functions of the whitened points.
        :param sites: The sites on the data.
        :param c: q of the whitened points.
        """

    def own_sites(self, local: LocalModel, data: ProjectedData, problem: Problem) -> Sites:
        """The sites of Gaussian noise."""
        return gaussian_noise_sites(local, problem)

    # ---- the protocol ----

    def free_energy(
        self, local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> tf.Tensor:
        def bound(epsilon: tf.Tensor) -> tf.Tensor:
            with local.parameters.substituted(epsilon):
                return self._bound(local, Z, problem, sites)

        return mean_over_samples(bound, draws)

    def projections(
        self, local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem
    ) -> tuple[ProjectedData, ProjectedEarlier | tuple[()]]:
        def at(epsilon: tf.Tensor) -> tuple[ProjectedData, ProjectedEarlier | tuple[()]]:
            with local.parameters.substituted(epsilon):
                _, _, data, earlier = _projected(local, Z, problem)
                return data, earlier or ()

        return at_each_sample(at, draws)

    def next_sites_of(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        projections: tuple[ProjectedData, ProjectedEarlier | tuple[()]],
        problem: Problem,
        sites: Sites,
    ) -> Sites:
        def step(
            epsilon: tf.Tensor, projected: tuple[ProjectedData, ProjectedEarlier | tuple[()]]
        ) -> Sites:
            data, earlier = projected
            with local.parameters.substituted(epsilon):
                c = point_posterior(local.gp, *information(local.gp, data, sites, earlier or None))
                return sites_at(local, posterior_at_data(local.gp, data, c), problem)

        return mean_over_samples(step, draws, projections)

    def known_sites(
        self, local: LocalModel, epsilon: tf.Tensor, Z: tf.Tensor, problem: Problem
    ) -> Sites:
        if type(self).own_sites is SparseBound.own_sites:  # these need no projection of the data
            return super().known_sites(local, epsilon, Z, problem)
        with local.parameters.substituted(epsilon):
            _, _, data, _ = _projected(local, Z, problem)
            return self.own_sites(local, data, problem)

    def summary(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        epsilon: tf.Tensor,
        Z: tf.Tensor,
        problem: Problem,
        sites: Sites,
    ) -> Summary:
        with local.parameters.substituted(epsilon):
            _, points, data, earlier = _projected(local, Z, problem)
            return Summary(points, data, earlier)

    def pseudo_observations(
        self,
        local: LocalModel,
        summary: Summary,
        problem: Problem,
        sites: Sites,
    ) -> PseudoObservations:
        points, data, _ = summary
        if not is_finite(data.A, points.mean):
            raise NumericalError("the cavity covariance at the pseudo-points is not positive")
        return from_sites(points, data, sites, local.gp.num_groups, float(problem.nugget))

    def unexplained(
        self,
        local: LocalModel,
        summary: Summary,
        problem: Problem,
        sites: Sites,
    ) -> float:
        left = spread_over_latents(left_by_points(summary.data), local.gp.num_latent)
        return site_rules.unexplained(left.numpy(), sites, float(problem.nugget))

    def shown_error(
        self, local: LocalModel, summary: Summary, problem: Problem, sites: Sites
    ) -> float:
        design, targets = _observations(local, summary, sites)
        return shown_error(summary.points.chol.numpy(), design, targets, float(problem.nugget))

    # ---- one value of ε ----

    def _bound(self, local: LocalModel, Z: tf.Tensor, problem: Problem, sites: Sites) -> tf.Tensor:
        gp = local.gp
        cavity, _, data, earlier = _projected(local, Z, problem)
        if is_conjugate(local.likelihood):
            sites = self.own_sites(local, data, problem)
        c = point_posterior(gp, *information(gp, data, sites, earlier))
        bound = self.expected(local, data, sites, c, problem) - c.kl
        if earlier is not None:
            bound += expected_log_earlier(gp, earlier, c)

        def log_evidence() -> tf.Tensor:
            past = gp.log_normaliser(cavity.conditioned)
            return past if earlier is None else past + earlier.log_evidence

        gained = partial(divergence_gained, local, problem)
        return bound + local.hyperparameters.memory(log_evidence, gained)


def _projected(
    local: LocalModel, Z: tf.Tensor, problem: Problem
) -> tuple[Cavity, Points, ProjectedData, ProjectedEarlier | None]:
    """New points under the cavity; data and earlier pseudo-observations as functions of them."""
    cavity = cavity_of(local, problem)
    under_cavity = data_under_cavity(cavity, problem.X)
    points = whiten(cavity, Z, problem.nugget)
    data = projected_data(cavity, points, under_cavity)
    if not problem.earlier:
        return cavity, points, data, None
    return cavity, points, data, projected_earlier(cavity, points, problem.earlier)


def _observations(
    local: LocalModel, summary: Summary, sites: Sites
) -> tuple[np.ndarray, np.ndarray]:
    """Observations of whitened points, in units of their noise, the data and then what is earlier:
    their design [G, M, N] and targets [G, N, C].
    """
    _, data, earlier = summary
    grouped = grouped_sites(sites, data.mean, local.gp.num_groups)
    precision, centred = (part.numpy() for part in grouped)
    root = np.sqrt(precision)
    design, targets = root * data.A.numpy(), centred / np.swapaxes(root, 1, 2)
    if earlier is None:
        return design, targets
    return (
        np.concatenate([design, earlier.design.numpy()], axis=2),
        np.concatenate([targets, earlier.residual.numpy()], axis=1),
    )
