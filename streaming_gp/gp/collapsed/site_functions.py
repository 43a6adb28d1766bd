"""Free energies at given sites as compiled functions of ε's variables and of places of points."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.gp.bounds.sites import Sites, expected_log_density
from streaming_gp.gp.collapsed.at_sites import SiteBound
from streaming_gp.gp.collapsed.functions import terms
from streaming_gp.gp.collapsed.site_energy import Forwards, SiteEnergy
from streaming_gp.gp.process.compiled import FLOAT, at_each_sample, compiled, spec
from streaming_gp.threads import one_blas_thread


class SiteFunctions:
    """Negative free energies of one model at given sites, and their gradients.

    TensorFlow takes the derivatives of the prior and of the expected log likelihood; what is
    between them is linear algebra in NumPy, forwards and backwards.

    :param local: The :class:`~streaming_gp.gp.bounds.problem.LocalModel`. Its latent functions are
        groups of one, as those of noise that is not Gaussian are.
    :param of: Where the points are.
    """

    def __init__(self, local: Any, of: SiteBound) -> None:
        self.local = local
        self.of = of
        self._compiled: dict[bool, Any] = {}

    @one_blas_thread()
    def loss_and_gradient(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Any, sites: Sites, move: bool
    ) -> tuple[float, np.ndarray]:
        """As that of :class:`.CollapsedFunctions`.

        :param sites: Those on the data.
        """
        if move not in self._compiled:
            function = self._by_all if move else self._by_epsilon
            site = spec(None, self.local.gp.num_latent)
            arguments = spec(None), spec(None), self.local.problem_spec(False), Sites(site, site)
            self._compiled[move] = compiled(function, *arguments)
        loss, gradient = self._compiled[move](offsets, variables, problem, sites)
        return float(loss), gradient.numpy()

    # ---- what is compiled ----

    def _by_all(self, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss, gradients = self._differentiated(slice(0, 2), *arguments)
        return loss, tf.concat(gradients, 0)

    def _by_epsilon(self, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss, (gradient,) = self._differentiated(slice(1, 2), *arguments)
        return loss, gradient

    def _differentiated(self, by: slice, *arguments: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        *given, sites = arguments
        with tf.GradientTape() as tape:
            tape.watch(given[by])
            penalty, draws, known, values = terms(self.local, self.of.on_points, *given)
        prior = known, sites, values
        found = _through_numpy(self._energy.forwards, prior, self._energy.forms)
        expected, by_draws, *by_q = self._expected(draws, found, given[-1])
        by_values = _through_numpy(self._energy.backwards, (*prior, found, by_q), values)
        for derivative, value in zip(by_values, values, strict=True):
            derivative.set_shape(value.shape)
        share = -1.0 / tf.cast(tf.shape(draws)[0], FLOAT)
        gradients = tape.gradient(
            [penalty, draws, *values], given[by], unconnected_gradients="zero",
            output_gradients=[
                tf.ones_like(penalty), *(share * one for one in (by_draws, *by_values))
            ],
        )  # fmt: skip
        bound = tf.reshape(found.bound, [])
        return penalty + share * (tf.reduce_sum(expected) + bound), gradients

    def _expected(self, draws: tf.Tensor, found: Forwards, problem: Any) -> tuple[tf.Tensor, ...]:
        """``E_q[log p(Y | f)]`` [S], and its derivatives by ε, by means and by variances."""

        def at(epsilon: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tuple[tf.Tensor, ...]:
            at_q = epsilon, mean, variance
            with tf.GradientTape() as tape:
                tape.watch(at_q)
                with self.local.parameters.substituted(epsilon):
                    value = expected_log_density(
                        self.local.likelihood, problem.X, mean, variance, problem.Y
                    )
            return value, *tape.gradient(value, at_q, unconnected_gradients="zero")

        for moment in (found.mean, found.variance):
            moment.set_shape([None, None, self.local.gp.num_latent])
        result: tuple[tf.Tensor, ...] = at_each_sample(at, draws, found.mean, found.variance)
        return result

    @cached_property
    def _energy(self) -> SiteEnergy:
        return SiteEnergy(
            self.of, float(self.local.hyperparameters.memory(lambda: 1.0, lambda: 0.0))
        )


def _through_numpy(function: Callable[..., Any], given: Any, like: Any) -> Any:
    """A function of structures of arrays as an operation of TensorFlow.

    TensorFlow keeps it for good, and what it refers to.

    :param like: A structure such as it gives, of float64.
    """
    forms = tf.nest.map_structure(lambda _: None, given)

    def flat(*arrays: np.ndarray) -> list[Any]:
        return tf.nest.flatten(function(*tf.nest.pack_sequence_as(forms, arrays)))

    types = [FLOAT] * len(tf.nest.flatten(like))
    return tf.nest.pack_sequence_as(like, tf.numpy_function(flat, tf.nest.flatten(given), types))
