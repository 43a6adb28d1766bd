"""A batch at one ε: nothing is optimised, and nothing factorised again.

The cavity is held factorised, so that under R earlier points a batch of N data costs O(R² N).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from streaming_gp.gp.bounds import Exact
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.bounds.sites import SiteSteps, is_conjugate
from streaming_gp.gp.fitting.absorbed import Absorbed
from streaming_gp.gp.fitting.absorbing_points import BatchAtRest
from streaming_gp.gp.fitting.absorbing_sites import SitesAtRest
from streaming_gp.gp.fitting.collapsed import power_of
from streaming_gp.gp.fitting.factorisations import Factorisations
from streaming_gp.gp.fitting.optimiser import with_larger_nuggets
from streaming_gp.gp.fitting.problem import Place
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.compiled import FLOAT
from streaming_gp.gp.process.conditioning import GaussianProcess
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.factorised import Factorised
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.pseudo_observations import Observations
from streaming_gp.threads import one_blas_thread


class Absorbing:
    """Absorbs batches of one model under one bound.

    What is known are the energies of power EP where noise is Gaussian, and a point at every input
    where it is not.

    :param local: The model.
    :param bound: The bound.
    :param factorisations: Of the model's processes.
    :param steps: Fixed-point steps of sites.
    """

    def __init__(
        self,
        local: LocalModel,
        bound: LocalBound,
        factorisations: Factorisations,
        steps: SiteSteps,
    ) -> None:
        self.local = local
        self.factorisations = factorisations
        self.alpha = power_of(bound) if is_conjugate(local.likelihood) else None
        at_inputs = type(bound) is Exact and not is_conjugate(local.likelihood)
        self.sites = SitesAtRest(local, steps) if at_inputs else None
        self.is_plain = type(local.gp) is GaussianProcess

    def serves(self, batch: Batch) -> bool:
        """Whether the batch learns nothing, and its bound is known here."""
        is_known = self.alpha is not None or self.sites is not None
        return not batch.learn and self.is_plain and is_known

    @one_blas_thread()
    def __call__(
        self, cavity: Process, batch: Batch, place: Place, at: Observations | None
    ) -> tuple[PseudoPointFactor, FitReport]:
        """The factor of a batch, and what was done; as :meth:`.Fitter.fit`."""
        hyperparameters, parameters = self.local.hyperparameters, self.local.parameters
        epsilon = batch.epsilon
        if epsilon is None:
            epsilon = hyperparameters.location_scale(cavity.hyperparameters, parameters)[0]
        compact = Process(cavity.compact.pseudo_observations)
        before = self.factorisations.at(epsilon, compact)
        found = self._absorbed(before, epsilon, batch, place, at)
        says = PseudoPointFactor((found.observations,))
        after = self.factorisations.at(epsilon, compact.times([says]))
        free_energy = found.free_energy - self._penalty(cavity, epsilon)
        scale = free_energy + before.log_normaliser - after.log_normaliser
        report = FitReport(
            epsilon, free_energy, 0, found.observations.nugget, found.clipped_sites,
            found.unexplained, found.shown_error,
        )  # fmt: skip
        return replace(says, hyperparameters=cavity.unit_of_epsilon, log_scale=scale), report

    def _absorbed(
        self,
        cavity: Factorised,
        epsilon: np.ndarray,
        batch: Batch,
        place: Place,
        at: Observations | None,
    ) -> Absorbed:
        if self.sites is not None:
            return self.sites(cavity, epsilon, batch.data)
        precision = self.local.noise_precision(epsilon, batch.data[0])
        at_rest = BatchAtRest(cavity, self.alpha or 0.0, batch.data, precision)
        return with_larger_nuggets(at_rest.on, at_rest.start(place, at))

    def _penalty(self, cavity: Process, epsilon: np.ndarray) -> float:
        """What a point ε costs by its prior; q(ε) has not moved."""
        if cavity.hyperparameters is not None:
            return 0.0
        hyperparameters, parameters = self.local.hyperparameters, self.local.parameters
        unmoved = tf.constant(hyperparameters.unmoved(parameters.size), FLOAT)
        with parameters.substituted(tf.constant(epsilon, FLOAT)):
            return float(hyperparameters.penalty(unmoved, parameters))
