"""The compiled functions of a local update.

Each is traced once for a model, with unknown data shapes, so that a stream of any length neither
retraces nor leaks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from streaming_gp.gp import covariances as cov
from streaming_gp.gp import local_bound as lb
from streaming_gp.gp import sites as site_rules
from streaming_gp.gp.compiled import compiled, mean_over_samples, spec
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.parameters import ParameterVector
from streaming_gp.gp.process import GaussianProcess, Stack
from streaming_gp.gp.pseudo_points import PrivatePseudoPoints
from streaming_gp.gp.sites import Sites


class Problem(NamedTuple):
    """All that is given in one update.

    :param X: inputs [N, D].
    :param Y: observations [N, P].
    :param stack: the cavity's rows.
    :param location: where the whitened variables of ε are zero [E].
    :param scale: their unit, a lower factor [E, E].
    :param noise: common random numbers [S, E].
    :param Z_start: where the pseudo-points start [M, D].
    :param Z_unit: the unit of their offsets [D].
    :param nugget: variance of their white noise [].
    """

    X: tf.Tensor
    Y: tf.Tensor
    stack: Stack
    location: tf.Tensor
    scale: tf.Tensor
    noise: tf.Tensor
    Z_start: tf.Tensor
    Z_unit: tf.Tensor
    nugget: tf.Tensor


class LocalFunctions:
    """Bound, sites and cavity of one model, as compiled functions.

    The variables that the optimiser moves are one vector: offsets of the pseudo-points, if they
    move, then what the hyperparameter strategy wants.

    :param gp: the process' kernel and mean function.
    :param likelihood: any GPflow likelihood.
    :param epsilon: the vector of trainable parameters.
    :param dims: D and P, columns of X and Y.
    """

    def __init__(
        self,
        gp: GaussianProcess,
        likelihood: Any,
        epsilon: ParameterVector,
        pseudo_points: PrivatePseudoPoints,
        hyperparameters: HyperparameterStrategy,
        dims: tuple[int, int],
    ) -> None:
        self.gp = gp
        self.likelihood = likelihood
        self.epsilon = epsilon
        self.pseudo_points = pseudo_points
        self.hyperparameters = hyperparameters
        self.conjugate = site_rules.is_conjugate(likelihood)

        G, E = gp.num_groups, epsilon.size
        problem = self._problem_spec(*dims)
        sites = Sites(spec(None, gp.num_latent), spec(None, gp.num_latent))
        variables, index = spec(None), tf.TensorSpec([], tf.int32)
        self.objective = compiled(self._objective_and_gradient, variables, problem, sites)
        self.new_sites = compiled(self._average_sites, variables, problem, sites)
        self.whitened = compiled(self._whiten_at, spec(E), variables, problem)
        self.exact_sites = compiled(self._sites_at, spec(E), problem.X, problem.Y)
        self.features = compiled(self._features_at, spec(E), problem.stack, problem.X)
        self.column = compiled(self._column_at, spec(E), problem.X, spec(G, None, None), index)
        self.log_normaliser = compiled(self._log_normaliser_at, spec(E), problem.stack)

    def _problem_spec(self, input_dim: int, output_dim: int) -> Problem:
        E = self.epsilon.size
        return Problem(
            X=spec(None, input_dim),
            Y=spec(None, output_dim),
            stack=self.gp.stack_spec(input_dim),
            location=spec(E),
            scale=spec(E, E),
            noise=spec(*self.hyperparameters.noise(E, seed=0).shape),
            Z_start=spec(None, input_dim),
            Z_unit=spec(input_dim),
            nugget=spec(),
        )

    # ---- one value of ε ----

    def locations(self, variables: tf.Tensor, problem: Problem) -> tuple[tf.Tensor, tf.Tensor]:
        """Pseudo-inputs [M, D], and the variables that are left for ε."""
        if not self.pseudo_points.moves:
            return problem.Z_start, variables
        size = tf.size(problem.Z_start)
        offset = tf.reshape(variables[:size], tf.shape(problem.Z_start))
        return problem.Z_start + problem.Z_unit * offset, variables[size:]

    def _local_posterior(self, Z: tf.Tensor, problem: Problem, sites: Sites) -> lb.LocalPosterior:
        """q(f) at the data at the ε that the parameters now read."""
        conditioned = self.gp.condition(problem.stack)
        if self.pseudo_points.exact:
            return lb.exact_posterior(self.gp, problem.stack, conditioned, problem.X, sites)
        white = lb.whiten(self.gp, problem.stack, conditioned, problem.X, Z, problem.nugget)
        return lb.sparse_posterior(self.gp, white, sites)

    def _bound_at(
        self, epsilon: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> tf.Tensor:
        with self.epsilon.substituted(epsilon):
            if self.conjugate:
                sites = site_rules.conjugate_sites(self.likelihood, problem.X, problem.Y)
            q = self._local_posterior(Z, problem, sites)
            expected = site_rules.expected_log_density(
                self.likelihood, problem.X, q.mean, q.variance, problem.Y
            )
        return expected - q.kl

    def _sites_step_at(
        self, epsilon: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> Sites:
        with self.epsilon.substituted(epsilon):
            q = self._local_posterior(Z, problem, sites)
            return site_rules.fixed_point_sites(
                self.likelihood, problem.X, q.mean, q.variance, problem.Y
            )

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

    def _whiten_at(
        self, epsilon: tf.Tensor, variables: tf.Tensor, problem: Problem
    ) -> tuple[tf.Tensor, lb.Whitened]:
        Z, _ = self.locations(variables, problem)
        with self.epsilon.substituted(epsilon):
            conditioned = self.gp.condition(problem.stack)
            return Z, lb.whiten(self.gp, problem.stack, conditioned, problem.X, Z, problem.nugget)

    def _sites_at(self, epsilon: tf.Tensor, X: tf.Tensor, Y: tf.Tensor) -> Sites:
        with self.epsilon.substituted(epsilon):
            return site_rules.conjugate_sites(self.likelihood, X, Y)

    def _features_at(
        self, epsilon: tf.Tensor, stack: Stack, X: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Cavity projection V [G, R, N] and cavity variance [N], averaged over groups."""
        with self.epsilon.substituted(epsilon):
            V = self.gp.project(stack, self.gp.condition(stack), X)
            return V, tf.reduce_mean(self.gp.variance(V, X), axis=0)

    def _column_at(
        self, epsilon: tf.Tensor, X: tf.Tensor, V: tf.Tensor, index: tf.Tensor
    ) -> tf.Tensor:
        """Cavity covariance [N] of all inputs with input ``index``, averaged over groups."""
        with self.epsilon.substituted(epsilon):
            prior = cov.covariance(self.gp.kernel, X, X[index][None])[:, :, 0]
            explained = tf.reduce_sum(V * V[:, :, index][:, :, None], axis=1)
            return tf.reduce_mean(prior - explained, axis=0)

    def _log_normaliser_at(self, epsilon: tf.Tensor, stack: Stack) -> tf.Tensor:
        with self.epsilon.substituted(epsilon):
            return self.gp.log_normaliser(self.gp.condition(stack))
