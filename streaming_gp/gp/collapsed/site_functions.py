"""Free energies at given sites as compiled functions of ε's variables and of places of points."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.gp.bounds.sites import Sites, expected_log_density
from streaming_gp.gp.collapsed.at_sites import SiteBound
from streaming_gp.gp.collapsed.energy import Known
from streaming_gp.gp.collapsed.functions import terms
from streaming_gp.gp.collapsed.prior_values import PriorValues
from streaming_gp.gp.collapsed.site_energy import Forwards, SiteEnergy
from streaming_gp.gp.process.compiled import (
    FLOAT,
    Compiled,
    at_each_sample,
    compiled,
    in_numpy,
    spec,
)
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
        self._compiled: dict[Any, Compiled] = {}

    def loss_and_gradient(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Any, sites: Sites, move: bool
    ) -> tuple[float, np.ndarray]:
        """As that of :class:`.CollapsedFunctions`.

        :param sites: Those on the data.
        """
        function = self._by_all if move else self._by_epsilon
        loss, gradient = self._call(function, offsets, variables, problem, sites)
        return float(loss), gradient.numpy()

    def loss(self, offsets: np.ndarray, variables: np.ndarray, problem: Any, sites: Sites) -> float:
        """The same without a gradient."""
        return float(self._call(self._loss, offsets, variables, problem, sites))

    @one_blas_thread()
    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        name = function.__name__
        if name not in self._compiled:
            site = spec(None, self.local.gp.num_latent)
            forms = spec(None), spec(None), self.local.problem_spec(False), Sites(site, site)
            self._compiled[name] = compiled(function, *forms)
        return self._compiled[name](*arguments)

    # ---- what is compiled ----

    def _by_all(self, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss, gradients = self._differentiated(slice(0, 2), *arguments)
        return loss, tf.concat(gradients, 0)

    def _by_epsilon(self, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss, (gradient,) = self._differentiated(slice(1, 2), *arguments)
        return loss, gradient

    def _loss(self, *arguments: Any) -> tf.Tensor:
        *given, sites = arguments
        found = terms(self.local, self.of.on_points, *given)
        q = self._forwards(found.known, sites, found.values)
        expected = at_each_sample(self._expected(given[-1]), found.draws, q.mean, q.variance)
        share = -1.0 / tf.cast(tf.shape(found.draws)[0], FLOAT)
        return found.penalty + share * (tf.reduce_sum(expected) + q.bound)

    def _differentiated(self, by: slice, *arguments: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        *given, sites = arguments
        with tf.GradientTape() as tape:
            tape.watch(given[by])
            penalty, draws, known, values = terms(self.local, self.of.on_points, *given)
        q = self._forwards(known, sites, values)
        expected, by_draws, *by_q = self._differentiated_expected(draws, q, given[-1])
        by_values = in_numpy(self._energy.backwards, (known, sites, values, q, by_q), values)
        share = -1.0 / tf.cast(tf.shape(draws)[0], FLOAT)
        gradients = tape.gradient(
            [penalty, draws, *values], given[by], unconnected_gradients="zero",
            output_gradients=[
                tf.ones_like(penalty), *(share * one for one in (by_draws, *by_values))
            ],
        )  # fmt: skip
        return penalty + share * (tf.reduce_sum(expected) + q.bound), gradients

    def _forwards(self, known: Known, sites: Sites, values: PriorValues) -> Forwards:
        q: Forwards = in_numpy(self._energy.forwards, (known, sites, values), self._energy.forms)
        for moment in (q.mean, q.variance):
            moment.set_shape([None, None, self.local.gp.num_latent])
        q.bound.set_shape([])
        return q

    def _expected(self, problem: Any) -> Callable[..., tf.Tensor]:
        """``E_q[log p(Y | f)]`` as a function of ε, means and variances."""

        def at(epsilon: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
            with self.local.parameters.substituted(epsilon):
                return expected_log_density(
                    self.local.likelihood, problem.X, mean, variance, problem.Y
                )

        return at

    def _differentiated_expected(
        self, draws: tf.Tensor, q: Forwards, problem: Any
    ) -> tuple[tf.Tensor, ...]:
        """Its values [S], and its derivatives by each of what it is a function of."""
        expected = self._expected(problem)

        def at(*arguments: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.GradientTape() as tape:
                tape.watch(arguments)
                value = expected(*arguments)
            return value, *tape.gradient(value, arguments, unconnected_gradients="zero")

        found: tuple[tf.Tensor, ...] = at_each_sample(at, draws, q.mean, q.variance)
        return found

    @cached_property
    def _energy(self) -> SiteEnergy:
        return SiteEnergy(
            self.of, float(self.local.hyperparameters.memory(lambda: 1.0, lambda: 0.0))
        )
