"""The compiled functions of a local update.

Each is traced once for a model, with unknown data shapes, so that a stream of any length neither
retraces nor leaks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp import covariances as cov
from streaming_gp.gp import local_bound as lb
from streaming_gp.gp import sites as site_rules
from streaming_gp.gp.compiled import compiled, mean_over_samples, spec
from streaming_gp.gp.factor import Row
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.parameters import ParameterVector
from streaming_gp.gp.problem import Problem
from streaming_gp.gp.process import Conditioned, GaussianProcess, Stack
from streaming_gp.gp.pseudo_points import PseudoPointStrategy
from streaming_gp.gp.sites import Sites


class LocalFunctions:
    """Bound, sites and cavity of one model, as compiled functions.

    The variables that the optimiser moves are one vector: offsets of the pseudo-points, if they
    move, then what the hyperparameter strategy wants.

    :param gp: the process' kernel and mean function.
    :param likelihood: any GPflow likelihood.
    :param epsilon: the vector of trainable parameters.
    :param alpha: of power EP; 0 is the variational bound.
    :param dims: D and P, columns of X and Y.
    """

    def __init__(
        self,
        gp: GaussianProcess,
        likelihood: Any,
        epsilon: ParameterVector,
        pseudo_points: PseudoPointStrategy,
        hyperparameters: HyperparameterStrategy,
        alpha: float,
        dims: tuple[int, int],
    ) -> None:
        self.gp = gp
        self.likelihood = likelihood
        self.epsilon = epsilon
        self.pseudo_points = pseudo_points
        self.hyperparameters = hyperparameters
        self.alpha = alpha
        self.input_dim, self.output_dim = dims
        self.conjugate = site_rules.is_conjugate(likelihood)

        G, E = gp.num_groups, epsilon.size
        problem = self._problem_spec(*dims)
        sites = Sites(spec(None, gp.num_latent), spec(None, gp.num_latent))
        variables, indices = spec(None), tf.TensorSpec([None], tf.int64)
        self.objective = compiled(self._objective_and_gradient, variables, problem, sites)
        self.new_sites = compiled(self._average_sites, variables, problem, sites)
        self.view = compiled(self._view_at, spec(E), variables, problem)
        self.exact_sites = compiled(self._sites_at, spec(E), variables, problem)
        L = gp.num_latent
        conditioned = Conditioned(spec(None, None, None), spec(G, None, L // G))
        seen = lb.Seen(spec(G, None, None), spec(None, L), spec(None, None))
        self.cavity = compiled(self._cavity_at, spec(E), problem)
        self.location_objective = compiled(
            self._location_objective_and_gradient,
            spec(E), variables, problem, conditioned, seen, sites,
        )  # fmt: skip
        self.fold_objective = compiled(self._fold_and_gradient, spec(E), variables, problem)
        self.projected_row = compiled(self._projected_row_at, spec(E), variables, problem)
        self.features = compiled(self._features_at, spec(E), problem.stack, problem.X)
        self.columns = compiled(self._columns_at, spec(E), problem.X, spec(G, None, None), indices)
        self.log_normaliser = compiled(self._log_normaliser_at, spec(E), problem.stack)

    def _problem_spec(self, input_dim: int, output_dim: int) -> Problem:
        E = self.epsilon.size
        return Problem(
            X=spec(None, input_dim),
            Y=spec(None, output_dim),
            stack=self.gp.stack_spec(input_dim),
            location=spec(E),
            scale=spec(E, E),
            noise=spec(self.hyperparameters.num_draws, E),
            Z_start=spec(None, input_dim),
            Z_unit=spec(input_dim),
            nugget=spec(),
            absorbed=self.gp.stack_spec(input_dim),
            tie=spec(),
        )

    @property
    def relocates(self) -> bool:
        """Whether locations can be moved on their own."""
        return self.pseudo_points.moves

    # ---- one value of ε ----

    def locations(self, variables: tf.Tensor, problem: Problem) -> tuple[tf.Tensor, tf.Tensor]:
        """Pseudo-inputs [M, D], and the variables that are left for ε."""
        if not self.pseudo_points.moves:
            return problem.Z_start, variables
        size = tf.size(problem.Z_start)
        return self._moved(variables[:size], problem), variables[size:]

    def _moved(self, offsets: tf.Tensor, problem: Problem) -> tf.Tensor:
        return problem.Z_start + problem.Z_unit * tf.reshape(offsets, tf.shape(problem.Z_start))

    def _bound_at(
        self, epsilon: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> tf.Tensor:
        with self.epsilon.substituted(epsilon):
            conditioned = self.gp.condition(problem.stack)
            if self.pseudo_points.exact:
                return self._exact_bound(conditioned, problem, sites)
            seen = lb.see_data(self.gp, problem.stack, conditioned, problem.X)
            return self._bound_from(conditioned, seen, Z, problem, sites)

    def _bound_from(
        self,
        conditioned: Conditioned,
        seen: lb.Seen,
        Z: tf.Tensor,
        problem: Problem,
        sites: Sites,
    ) -> tf.Tensor:
        _, white, absorbed = self._see(conditioned, seen, Z, problem)
        sites = self._own_sites(white, problem) if self.conjugate else sites
        c = lb.point_posterior(self.gp, *lb.information(self.gp, white, sites, absorbed))
        bound = self._expected_log_likelihood(white, sites, c, problem) - c.kl
        if absorbed is not None:
            bound += lb.expected_log_rows(self.gp, absorbed, c)
        return bound + self._memory(conditioned, absorbed)

    def _exact_bound(self, conditioned: Conditioned, problem: Problem, sites: Sites) -> tf.Tensor:
        if self.conjugate:
            sites = site_rules.conjugate_sites(self.likelihood, problem.X, problem.Y)
        q = lb.exact_posterior(self.gp, problem.stack, conditioned, problem.X, sites)
        return self._expected_at(q, problem) - q.kl + self._memory(conditioned, None)

    def _memory(self, conditioned: Conditioned, absorbed: lb.Absorbed | None) -> tf.Tensor:
        """Log evidence of the earlier rows, where a point ε is to answer to them as well."""
        if not self.hyperparameters.remembers:
            return tf.zeros([], tf.float64)
        evidence = self.gp.log_normaliser(conditioned)
        return evidence if absorbed is None else evidence + absorbed.log_evidence

    def _see(
        self, conditioned: Conditioned, seen: lb.Seen, Z: tf.Tensor, problem: Problem
    ) -> tuple[lb.Points, lb.Whitened, lb.Absorbed | None]:
        """New points under the cavity, and data and absorbed rows seen from them."""
        points = lb.whiten(self.gp, problem.stack, conditioned, Z, problem.nugget)
        white = lb.seen_from(self.gp, points, seen, problem.X)
        if not self.pseudo_points.absorbs:
            return points, white, None
        return points, white, self._see_rows(conditioned, points, problem)

    def _see_rows(
        self, conditioned: Conditioned, points: lb.Points, problem: Problem
    ) -> lb.Absorbed:
        return lb.see_rows(
            self.gp, problem.stack, conditioned, points, problem.absorbed, problem.tie
        )

    def _own_sites(self, white: lb.Whitened, problem: Problem) -> Sites:
        """Exact sites of Gaussian noise; under power EP the noise widens by α times what the
        points leave unexplained (Bui, Yan & Turner 2017).
        """
        sites = site_rules.conjugate_sites(self.likelihood, problem.X, problem.Y)
        if self.alpha == 0.0:
            return sites
        widened = 1.0 / sites.precision + self.alpha * self._unexplained(white)
        return Sites(problem.Y / widened, 1.0 / widened)

    def _unexplained(self, white: lb.Whitened) -> tf.Tensor:
        """Variance of f at the data given the points [N, L]."""
        variance = white.variance - tf.reduce_sum(tf.square(white.A), axis=-2)
        return cov.spread_over_latents(tf.maximum(variance, 0.0), self.gp.num_latent)

    def _expected_log_likelihood(
        self, white: lb.Whitened, sites: Sites, c: lb.PointPosterior, problem: Problem
    ) -> tf.Tensor:
        if self.alpha == 0.0:
            return self._expected_at(lb.posterior_at_data(self.gp, white, c), problem)
        unexplained = self._unexplained(white)
        explained = white._replace(variance=tf.reduce_sum(tf.square(white.A), axis=-2))
        q = lb.posterior_at_data(self.gp, explained, c)
        noise = site_rules.conjugate_sites(self.likelihood, problem.X, problem.Y).precision
        return site_rules.power_ep_energy(
            self.alpha, problem.Y, q.mean, q.variance, sites.precision, noise * unexplained
        )

    def _expected_at(self, q: lb.LocalPosterior, problem: Problem) -> tf.Tensor:
        return site_rules.expected_log_density(
            self.likelihood, problem.X, q.mean, q.variance, problem.Y
        )

    def _sites_step_at(
        self, epsilon: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> Sites:
        with self.epsilon.substituted(epsilon):
            q = self._posterior_at_data(Z, problem, sites)
            return site_rules.fixed_point_sites(
                self.likelihood, problem.X, q.mean, q.variance, problem.Y
            )

    def _posterior_at_data(self, Z: tf.Tensor, problem: Problem, sites: Sites) -> lb.LocalPosterior:
        conditioned = self.gp.condition(problem.stack)
        if self.pseudo_points.exact:
            return lb.exact_posterior(self.gp, problem.stack, conditioned, problem.X, sites)
        seen = lb.see_data(self.gp, problem.stack, conditioned, problem.X)
        _, white, absorbed = self._see(conditioned, seen, Z, problem)
        c = lb.point_posterior(self.gp, *lb.information(self.gp, white, sites, absorbed))
        return lb.posterior_at_data(self.gp, white, c)

    # ---- averages over q(ε) ----

    def _free_energy(self, variables: tf.Tensor, problem: Problem, sites: Sites) -> tf.Tensor:
        Z, rest = self.locations(variables, problem)
        draws = self.hyperparameters.draw(rest, problem.location, problem.scale, problem.noise)
        bound = mean_over_samples(lambda e: self._bound_at(e, Z, problem, sites), draws)
        with self.epsilon.substituted(draws[0]):
            return bound - self.hyperparameters.penalty(rest, self.epsilon)

    def _objective_and_gradient(
        self, variables: tf.Tensor, problem: Problem, sites: Sites
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(variables)
            loss = -self._free_energy(variables, problem, sites)
        gradient = tape.gradient(loss, variables, unconnected_gradients="zero")
        return loss, gradient

    def _average_sites(self, variables: tf.Tensor, problem: Problem, sites: Sites) -> Sites:
        Z, rest = self.locations(variables, problem)
        draws = self.hyperparameters.draw(rest, problem.location, problem.scale, problem.noise)
        return mean_over_samples(lambda e: self._sites_step_at(e, Z, problem, sites), draws)

    # ---- at a given ε ----

    def _view_at(
        self, epsilon: tf.Tensor, variables: tf.Tensor, problem: Problem
    ) -> tuple[lb.Points, lb.Whitened]:
        Z, _ = self.locations(variables, problem)
        with self.epsilon.substituted(epsilon):
            return self._view_of_points(Z, problem)

    def _view_of_points(self, Z: tf.Tensor, problem: Problem) -> tuple[lb.Points, lb.Whitened]:
        conditioned = self.gp.condition(problem.stack)
        seen = lb.see_data(self.gp, problem.stack, conditioned, problem.X)
        points, white, _ = self._see(conditioned, seen, Z, problem)
        return points, white

    def _sites_at(self, epsilon: tf.Tensor, variables: tf.Tensor, problem: Problem) -> Sites:
        """Sites that are known without a fixed point: those of Gaussian noise."""
        with self.epsilon.substituted(epsilon):
            if self.alpha == 0.0 or self.pseudo_points.exact:
                return site_rules.conjugate_sites(self.likelihood, problem.X, problem.Y)
            Z, _ = self.locations(variables, problem)
            return self._own_sites(self._view_of_points(Z, problem)[1], problem)

    def _cavity_at(self, epsilon: tf.Tensor, problem: Problem) -> tuple[Conditioned, lb.Seen]:
        """All of the cavity that does not depend on where the new points are."""
        with self.epsilon.substituted(epsilon):
            conditioned = self.gp.condition(problem.stack)
            return conditioned, lb.see_data(self.gp, problem.stack, conditioned, problem.X)

    def _location_objective_and_gradient(
        self,
        epsilon: tf.Tensor,
        offsets: tf.Tensor,
        problem: Problem,
        conditioned: Conditioned,
        seen: lb.Seen,
        sites: Sites,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The negative bound at one ε as a function of the locations alone."""
        with tf.GradientTape() as tape, self.epsilon.substituted(epsilon):
            tape.watch(offsets)
            Z = self._moved(offsets, problem)
            loss = -self._bound_from(conditioned, seen, Z, problem, sites)
        return loss, tape.gradient(loss, offsets)

    def row(
        self, epsilon: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> Row:
        """What the ledger keeps of a solution.

        :raises NumericalError: if a covariance was not positive.
        """
        if self.pseudo_points.exact:
            return lb.exact_row(problem.X.numpy(), sites, self.gp.num_groups)
        points, white = self.view(epsilon, variables, problem)
        if not (np.isfinite(white.A).all() and np.isfinite(points.mean).all()):
            raise NumericalError("the cavity covariance at the pseudo-points is not positive")
        return lb.sparse_row(points, white, sites, self.gp.num_groups, float(problem.nugget))

    # ---- earlier rows on new points, without data ----

    def _projected_row_at(
        self, epsilon: tf.Tensor, offsets: tf.Tensor, problem: Problem
    ) -> tuple[lb.Points, lb.Absorbed]:
        with self.epsilon.substituted(epsilon):
            conditioned = self.gp.condition(problem.stack)
            Z = self._moved(offsets, problem)
            points = lb.whiten(self.gp, problem.stack, conditioned, Z, problem.nugget)
            return points, self._see_rows(conditioned, points, problem)

    def _fold_and_gradient(
        self, epsilon: tf.Tensor, offsets: tf.Tensor, problem: Problem
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """What is lost, in nats, when the absorbed rows are carried by the new points."""
        with tf.GradientTape() as tape:
            tape.watch(offsets)
            _, absorbed = self._projected_row_at(epsilon, offsets, problem)
            c = lb.point_posterior(self.gp, *lb.information(self.gp, None, None, absorbed))
            loss = c.kl - lb.expected_log_rows(self.gp, absorbed, c)
        return loss, tape.gradient(loss, offsets)

    def _features_at(
        self, epsilon: tf.Tensor, stack: Stack, X: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Cavity projection V [G, R, N] and cavity variance [N], averaged over groups."""
        with self.epsilon.substituted(epsilon):
            V = self.gp.project(stack, self.gp.condition(stack), X)
            return V, tf.reduce_mean(self.gp.variance(V, X), axis=0)

    def _columns_at(
        self, epsilon: tf.Tensor, X: tf.Tensor, V: tf.Tensor, indices: tf.Tensor
    ) -> tf.Tensor:
        """Cavity covariances [N, K] of all inputs with K of them, averaged over groups."""
        with self.epsilon.substituted(epsilon):
            some = tf.gather(V, indices, axis=2), tf.gather(X, indices)
            return tf.reduce_mean(self.gp.covariance(V, X, *some), axis=0)

    def _log_normaliser_at(self, epsilon: tf.Tensor, stack: Stack) -> tf.Tensor:
        with self.epsilon.substituted(epsilon):
            return self.gp.log_normaliser(self.gp.condition(stack))
