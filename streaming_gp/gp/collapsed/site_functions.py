"""Free energies at given sites as compiled functions of ε's variables and of places of points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.sites import Sites, SiteSteps
from streaming_gp.gp.collapsed.at_sites import SiteBound, moments
from streaming_gp.gp.collapsed.functions import Terms, terms
from streaming_gp.gp.collapsed.resting import LikelihoodAtData, Look, rested
from streaming_gp.gp.collapsed.site_energy import Forwards, SiteEnergy
from streaming_gp.gp.process.graphs import FLOAT, Compiled, in_numpy, spec
from streaming_gp.numerics.threads import one_blas_thread


class SiteFunctions:
    """Negative free energies of one model at given sites, their gradients, and sites at rest.

    TensorFlow takes the derivatives of the prior and of the expected log likelihood; what is
    between them is linear algebra in NumPy, forwards and backwards.

    :param local: The :class:`~streaming_gp.gp.bounds.problem.LocalModel`. Its latent functions are
        groups of one, as those of noise that is not Gaussian are.
    :param of: Where the points are.
    :param likelihood: What the model's likelihood says of f.
    """

    def __init__(self, local: Any, of: SiteBound, likelihood: LikelihoodAtData) -> None:
        self.local = local
        self.of = of
        self.likelihood = likelihood
        self._compiled: dict[tuple[str, bool], Compiled] = {}

    @one_blas_thread()
    def loss_and_gradient(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Any, sites: Sites, move: bool
    ) -> tuple[float, np.ndarray]:
        """As that of :class:`.CollapsedFunctions`.

        :param sites: Those on the data.
        """
        function = self._function(self._by_all if move else self._by_epsilon, problem, True)
        loss, gradient = function(offsets, variables, problem, sites)
        return float(loss), gradient.numpy()

    @one_blas_thread()
    def loss(self, offsets: np.ndarray, variables: np.ndarray, problem: Any, sites: Sites) -> float:
        """The same without a gradient."""
        given = self._given(offsets, variables, problem)
        q = self._energy(problem).forwards(given.known, _arrays(sites), given.values)
        if not np.isfinite(q.bound):
            return np.inf
        expected = self._look(given, problem, q.mean, q.variance).expected
        return float(given.penalty - (expected + q.bound) / len(given.draws))

    @one_blas_thread()
    def rested(
        self,
        offsets: np.ndarray,
        variables: np.ndarray,
        problem: Any,
        sites: Sites,
        steps: SiteSteps,
    ) -> tuple[Sites, int]:
        """Sites after fixed-point steps, averaged over ε, and how many of them were cut off.

        :raises NumericalError: if a step is not finite, or a covariance not positive.
        """
        given, energy = self._given(offsets, variables, problem), self._energy(problem)

        def step(now: Sites) -> Look:
            q = [energy.posterior(one, now, index) for index, (_, one) in enumerate(batches)]
            look = self._look(given, problem, *moments(q))
            return look._replace(expected=look.expected / len(given.draws))

        try:
            batches = energy.batches(given.known, given.values)
            found = rested(step, _arrays(sites), steps)
            return found.sites, found.clipped
        except np.linalg.LinAlgError:
            raise NumericalError("the local posterior covariance is not positive") from None

    def _given(self, offsets: np.ndarray, variables: np.ndarray, problem: Any) -> Terms:
        """The terms as arrays."""
        found = self._function(self._terms, problem)(offsets, variables, problem)
        arrays: Terms = tf.nest.map_structure(lambda one: one.numpy(), found)
        return arrays

    def _look(self, given: Terms, problem: Any, mean: np.ndarray, variance: np.ndarray) -> Look:
        N = len(problem.X)
        at_data = mean[:, :N], variance[:, :N]
        return self.likelihood.step(given.draws, problem.X, problem.Y, *at_data)

    def _energy(self, problem: Any) -> SiteEnergy:
        by_evidence = float(self.local.hyperparameters.memory(lambda: 1.0, lambda: 0.0))
        return SiteEnergy(self.of, by_evidence, bool(problem.earlier))

    def _function(
        self, function: Callable[..., Any], problem: Any, of_sites: bool = False
    ) -> Compiled:
        """A function of offsets, variables, a problem like this one, and perhaps sites."""
        key = function.__name__, bool(problem.earlier)
        if key not in self._compiled:
            site = spec(None, self.local.gp.num_latent)
            forms = spec(None), spec(None), self.local.problem_spec(key[1]), Sites(site, site)
            self._compiled[key] = self.local.graphs_of_fits.compiled(
                function, *(forms if of_sites else forms[:3]), of=self.of.on_points
            )
        return self._compiled[key]

    # ---- what is compiled ----

    def _terms(self, *arguments: Any) -> Terms:
        return terms(self.local, self.of.on_points, *arguments)

    def _by_all(self, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss, gradients = self._differentiated(slice(0, 2), *arguments)
        return loss, tf.concat(gradients, 0)

    def _by_epsilon(self, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss, (gradient,) = self._differentiated(slice(1, 2), *arguments)
        return loss, gradient

    def _differentiated(self, by: slice, *arguments: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        *given, sites = arguments
        problem = given[-1]
        with tf.GradientTape() as tape:
            tape.watch(given[by])
            penalty, draws, known, values = self._terms(*given)
        energy = self._energy(problem)
        q: Forwards = in_numpy(energy.forwards, (known, sites, values), energy.forms)
        expected, by_draws, *by_q = self.likelihood.differentiated(
            draws, problem.X, problem.Y, *self._at_data(q, problem)
        )
        by_values = in_numpy(energy.backwards, (known, sites, values, q, by_q), values)
        share = -1.0 / tf.cast(tf.shape(draws)[0], FLOAT)
        gradients = tape.gradient(
            [penalty, draws, *values], given[by], unconnected_gradients="zero",
            output_gradients=[
                tf.ones_like(penalty), *(share * one for one in (by_draws, *by_values))
            ],
        )  # fmt: skip
        bound = tf.reshape(q.bound, [])
        return penalty + share * (tf.reduce_sum(expected) + bound), gradients

    def _at_data(self, q: Forwards, problem: Any) -> Iterator[tf.Tensor]:
        """Means and variances at the data alone."""
        N, L = tf.shape(problem.X)[0], self.local.gp.num_latent
        for moment in (q.mean, q.variance):
            yield tf.ensure_shape(moment, [None, None, L])[:, :N]


def _arrays(sites: Sites) -> Sites:
    return Sites(*map(np.asarray, sites))
