"""What all built-in bounds share: the likelihood at the data, and averages over values of ε."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf
from gpflow.likelihoods import Likelihood

from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.bounds.whitening import Cavity, LocalPosterior
from streaming_gp.gp.process.tensors import GaussianProcess


@dataclass(frozen=True)
class Bound:
    """A bound for any GPflow likelihood, on a process without approximations of its own."""

    is_evidence_bound: ClassVar[bool] = False
    """Whether it is the expected log-likelihood less a divergence: then an update reports that of
    the one factor that is kept for all ε."""

    def check(self, likelihood: Likelihood) -> None:
        """Any likelihood will do."""

    def gaussian_process(
        self, kernel: Any, mean_function: Any, num_latent: int, num_groups: int
    ) -> GaussianProcess:
        return GaussianProcess(kernel, mean_function, num_latent, num_groups)

    def known_sites(
        self, local: LocalModel, epsilon: tf.Tensor, Z: tf.Tensor, problem: Problem
    ) -> Sites:
        """The exact sites, of Gaussian noise; bounds with others say so."""
        with local.parameters.substituted(epsilon):
            return gaussian_noise_sites(local, problem)


@dataclass(frozen=True)
class BoundOfProjections(Bound, abc.ABC):
    """A bound whose steps of the sites share the data under the cavity, which no site is in.

    :meth:`next_sites` follows from the two methods here: fits call these.
    """

    @abc.abstractmethod
    def projections(
        self, local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem
    ) -> Any:
        """What all steps share at each of S values of ε: a structure of tensors [S, ...]."""

    @abc.abstractmethod
    def next_sites_of(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        projections: Any,
        problem: Problem,
        sites: Sites,
    ) -> Sites:
        """As :meth:`.LocalBound.next_sites`, from the projections."""

    def next_sites(
        self, local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> Sites:
        projections = self.projections(local, draws, Z, problem)
        return self.next_sites_of(local, draws, projections, problem, sites)


def cavity_of(local: LocalModel, problem: Problem) -> Cavity:
    """The cavity process at the ε that the parameters hold now."""
    return Cavity(local.gp, problem.stack, local.gp.condition(problem.stack))


def divergence_gained(local: LocalModel, problem: Problem) -> tf.Tensor:
    """``KL(q(a) ‖ p(a | ε_old)) − KL(q(a) ‖ p(a | ε))`` at the ε that the parameters hold (eq. 93).

    q(a) is what is known at ε_old of all earlier points. It is held, so that only E log p(a | ε)
    changes. By Jensen's inequality the log evidence of what they say changes by as much or more.
    """
    gp = local.gp
    with local.parameters.substituted(problem.location):
        q = gp.held(problem.past)
        before = gp.expected_log_prior(q)
    return gp.expected_log_prior(q) - before


def gaussian_noise_sites(local: LocalModel, problem: Problem) -> Sites:
    """The exact sites of Gaussian noise."""
    return site_rules.conjugate_sites(local.likelihood, problem.X, problem.Y)


def expected_log_likelihood(local: LocalModel, q: LocalPosterior, problem: Problem) -> tf.Tensor:
    """``Σ_n E_q[log p(y_n | f_n)]``: []."""
    return site_rules.expected_log_density(
        local.likelihood, problem.X, q.mean, q.variance, problem.Y
    )


def sites_at(local: LocalModel, q: LocalPosterior, problem: Problem) -> Sites:
    """A fixed-point step of the sites at q(f)."""
    return site_rules.fixed_point_sites(local.likelihood, problem.X, q.mean, q.variance, problem.Y)
