"""The model of a local fit: what stays the same from batch to batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.gp.fit.sites import (
    Look,
    Sites,
    expected_log_densities,
    expected_log_density,
    from_derivatives,
    of_tilted,
    predictive_log_density,
    predictive_moments,
    tilted_log_density,
    tilted_moments,
    without_sites,
)
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.hyperparameters.vector import TracedParameterVector
from streaming_gp.gp.process.graphs import Compiled, Graphs, at_each_sample, graphs_of_kind, spec
from streaming_gp.gp.process.prior import PriorFunctions
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.tensors import GaussianProcess
from streaming_gp.validation import observations


@dataclass(frozen=True, eq=False)
class LocalModel:
    """The model of a local fit.

    :param gp: Kernel and mean function.
    :param likelihood: Any GPflow likelihood.
    :param parameters: The vector ε of trainable parameters.
    :param hyperparameters: What is learned about ε.
    :param input_dim: The number D of columns of X.
    :param output_dim: The number P of columns of Y.
    """

    gp: GaussianProcess
    likelihood: Any
    parameters: TracedParameterVector
    hyperparameters: HyperparameterStrategy
    input_dim: int
    output_dim: int

    @cached_property
    def graphs(self) -> Graphs:
        """Compiled functions that models of its kind share, whatever they learn of ε."""
        return self._shared()

    @cached_property
    def graphs_of_fits(self) -> Graphs:
        """Those that models of its kind share which learn of ε in the same way."""
        return self._shared(self.hyperparameters)

    def _shared(self, *others: Any) -> Graphs:
        model = self.gp, self.likelihood, self.input_dim, self.output_dim, *others
        return graphs_of_kind(model, self.parameters.traced_parameters)

    @cached_property
    def prior(self) -> PriorFunctions:
        """The prior at any values of ε, which fits and predictions share."""
        return PriorFunctions(self.gp, self.parameters, self.input_dim, self.graphs)

    def location(self, process: Process) -> np.ndarray:
        """The mean [E] of a process's q(ε), or the point that the parameters hold."""
        return self.hyperparameters.location_scale(process.hyperparameters, self.parameters)[0]

    def penalty(self, cavity: Process, epsilon: np.ndarray) -> float:
        """The negative log prior of a point ε [E], in nats; q(ε) has its divergence."""
        if cavity.hyperparameters is not None:
            return 0.0
        unmoved = self.hyperparameters.unmoved(self.parameters.size)

        def penalty(at: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
            with self.parameters.substituted(at):
                return self.hyperparameters.penalty(offsets, self.parameters)

        given = spec(self.parameters.size), spec(len(unmoved))
        return float(self.graphs_of_fits.compiled(penalty, *given)(epsilon, unmoved))

    def grouped(self, values: np.ndarray) -> np.ndarray:
        """Values of latent functions [N, L] by their groups [G, N, C]."""
        return np.reshape(values, (len(values), self.gp.num_groups, -1)).swapaxes(0, 1)

    # ---- the likelihood ----

    def expected(
        self, draws: Any, X: Any, Y: Any, mean: Any, variance: Any
    ) -> tuple[np.ndarray, ...]:
        """``Σ_n E_q[log p(y_n | f_n)]`` [S] in nats at values of ε, and derivatives by ε and by the
        moments of q(f).

        :param draws: Values of ε [S, E].
        :param mean: Of f at the data [S, N, L].
        :param variance: Likewise.
        """
        return tuple(np.asarray(one) for one in self._expected(draws, X, Y, mean, variance))

    def look(self, draws: Any, X: Any, Y: Any, mean: Any, variance: Any) -> Look:
        """What it says of sites, averaged over ε; arguments as of :meth:`expected`."""
        expected, _, by_mean, by_variance = self.expected(draws, X, Y, mean, variance)
        wanted = from_derivatives(self.likelihood, by_mean, by_variance, np.asarray(mean), Y)
        return Look.averaged(expected, wanted, np.asarray(mean))

    def look_tilted(
        self,
        draws: Any,
        X: Any,
        Y: Any,
        mean: Any,
        variance: Any,
        left: Any,
        sites: Sites,
        alpha: float,
    ) -> Look:
        """What it says of the sites of power EP, averaged over ε.

        :param mean: Of f at the data [S, N, L].
        :param variance: Likewise.
        :param left: The part of it that the points leave, likewise: a site is of the other part.
        :param sites: The sites that q(f) has now.
        """
        cavity_mean, cavity = without_sites(mean, variance - left, *sites, alpha)
        about = tilted_moments(cavity_mean, cavity, left, *sites, alpha)
        tilted, by_mean, by_variance = (
            np.asarray(one)
            for one in self._tilted(alpha)(draws, X, Y, cavity_mean, cavity + left, *about)
        )
        wanted = of_tilted(by_mean, by_variance, cavity_mean, cavity, alpha)
        look = Look.averaged(tilted, wanted, mean)
        return look._replace(expected=look.expected / alpha)

    def _tilted(self, alpha: float) -> Compiled:
        def tilted_tensors(draws: tf.Tensor, X: tf.Tensor, Y: tf.Tensor, *moments: Any) -> Any:
            def at(epsilon: tf.Tensor, *given: tf.Tensor) -> tuple[tf.Tensor, ...]:
                by, about = given[:2], given[2:]
                with tf.GradientTape() as tape:
                    tape.watch(by)
                    with self.parameters.substituted(epsilon):
                        value = tilted_log_density(
                            self.likelihood, X, by[0], by[1], Y, about, alpha
                        )
                return value, *tape.gradient(value, by)

            return at_each_sample(at, draws, *moments)

        draws = spec(self.hyperparameters.num_draws, self.parameters.size)
        moment = spec(None, None, self.gp.num_latent)
        data = spec(None, self.input_dim), spec(None, self.output_dim)
        return self.graphs.compiled(tilted_tensors, draws, *data, *[moment] * 4, of=alpha)

    @cached_property
    def _expected(self) -> Compiled:
        data = spec(None, self.input_dim), spec(None, self.output_dim)
        draws = spec(self.hyperparameters.num_draws, self.parameters.size)
        moment = spec(None, None, self.gp.num_latent)
        return self.graphs.compiled(self.expected_tensors, draws, *data, moment, moment)

    def expected_tensors(
        self, draws: tf.Tensor, X: tf.Tensor, Y: tf.Tensor, *moments: tf.Tensor
    ) -> Any:
        """As :meth:`expected`, in TensorFlow."""

        def at(epsilon: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tuple[tf.Tensor, ...]:
            by = epsilon, mean, variance
            with tf.GradientTape() as tape:
                tape.watch(by)
                with self.parameters.substituted(epsilon):
                    value = expected_log_density(self.likelihood, X, mean, variance, Y)
            return value, *tape.gradient(value, by, unconnected_gradients="zero")

        return at_each_sample(at, draws, *moments)

    def expected_each(
        self, epsilon: np.ndarray, X: Any, Y: Any, mean: Any, variance: Any
    ) -> np.ndarray:
        """``E_q[log p(y_n | f_n)]`` [N] in nats at ε [E], for moments [N, L]."""
        return np.asarray(self._of_moments(expected_log_densities)(epsilon, X, Y, mean, variance))

    def log_densities(
        self, epsilon: np.ndarray, X: Any, Y: Any, mean: Any, variance: Any
    ) -> np.ndarray:
        """``log E_q[p(y_n | f_n)]`` [N] in nats at ε [E], for moments [N, L]."""
        return np.asarray(self._of_moments(predictive_log_density)(epsilon, X, Y, mean, variance))

    def standardised_errors(
        self, epsilon: np.ndarray, X: Any, Y: Any, mean: Any, variance: Any
    ) -> np.ndarray:
        """``(y - E y)² / var y`` [N] at ε [E], a mean over outputs; one where the likelihood's
        moments are not those of y, as of several classes.
        """
        return np.asarray(self._of_moments(_standardised)(epsilon, X, Y, mean, variance))

    def _of_moments(self, function: Callable[..., tf.Tensor]) -> Compiled:
        def at(epsilon: tf.Tensor, X: tf.Tensor, Y: tf.Tensor, *moments: tf.Tensor) -> tf.Tensor:
            with self.parameters.substituted(epsilon):
                return function(self.likelihood, X, *moments, Y)

        moment = spec(None, self.gp.num_latent)
        data = spec(None, self.input_dim), spec(None, self.output_dim)
        size, name = spec(self.parameters.size), function.__name__
        return self.graphs.compiled(at, size, *data, moment, moment, of=name)

    def noise_precision(self, epsilon: np.ndarray, X: np.ndarray) -> np.ndarray:
        """``1/σ²`` [N, P] of Gaussian noise at X [N, D] and at ε [E]."""
        return np.asarray(self._noise_precision(epsilon, X))

    @cached_property
    def _noise_precision(self) -> Compiled:
        def at(epsilon: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
            zeros = tf.zeros([tf.shape(X)[0], self.output_dim], X.dtype)
            with self.parameters.substituted(epsilon):
                return 1.0 / self.likelihood.conditional_variance(X, zeros)

        return self.graphs.compiled(at, spec(self.parameters.size), spec(None, self.input_dim))

    # ---- values that are not in ε ----

    def fixed_values(self) -> bytes:
        """Changes whenever a value changes that is not in ε."""
        return b"".join(variable.numpy().tobytes() for variable in self._fixed)

    @cached_property
    def _fixed(self) -> list[tf.Variable]:
        """The variables that are not in ε."""
        learned = {id(variable) for variable in self.parameters.traced_variables}
        modules = (self.gp.kernel, self.gp.mean_function, self.likelihood)
        variables = (variable for module in modules for variable in module.variables)
        return [variable for variable in variables if id(variable) not in learned]


def _standardised(
    likelihood: Any, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, Y: tf.Tensor
) -> tf.Tensor:
    expected, spread = predictive_moments(likelihood, X, mean, variance)
    observed = observations(likelihood, Y)
    if expected.shape[1] != observed.shape[1]:
        return tf.ones_like(mean[:, 0])
    return tf.reduce_mean(tf.square(observed - expected) / spread, axis=1)
