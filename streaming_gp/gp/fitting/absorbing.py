"""A batch at one ε: nothing is optimised, and nothing factorised again.

The cavity is held factorised, so that under R earlier points a batch of N data costs O(R² N).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import tensorflow as tf

from streaming_gp.gp.bounds import Exact
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.bounds.sites import SiteSteps, is_conjugate
from streaming_gp.gp.fitting.absorbed import Absorbed
from streaming_gp.gp.fitting.absorbing_points import PointsAtRest
from streaming_gp.gp.fitting.absorbing_sites import SitesAtRest
from streaming_gp.gp.fitting.at_points import on_own_points, on_shared_points
from streaming_gp.gp.fitting.collapsed import power_of
from streaming_gp.gp.fitting.factorisations import Factorisations
from streaming_gp.gp.fitting.optimiser import with_larger_nuggets
from streaming_gp.gp.fitting.places import Places, Start
from streaming_gp.gp.fitting.problem import Place
from streaming_gp.gp.fitting.projection import GPLedger, Projection
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.graphs import FLOAT
from streaming_gp.gp.process.observations import Observations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, PseudoPointFactor, plain
from streaming_gp.gp.process.tensors import GaussianProcess
from streaming_gp.numerics.threads import one_blas_thread


class Absorbing:
    """Absorbs batches of one model under one bound.

    What is known are the energies of power EP, of which the variational bound is one, and a point
    at every input where noise is not Gaussian.

    :param local: The model.
    :param bound: The bound.
    :param factorisations: Of the model's processes.
    :param steps: Fixed-point steps of sites.
    :ivar on_points: What batches say of a few points; None where that is not known.
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
        is_plain, alpha = type(local.gp) is GaussianProcess, power_of(bound)
        is_known = is_plain and alpha is not None
        self.on_points = PointsAtRest(local, alpha or 0.0, steps) if is_known else None
        at_inputs = is_plain and type(bound) is Exact and not is_conjugate(local.likelihood)
        self.at_inputs = SitesAtRest(local, steps) if at_inputs else None

    def serves(self, batch: Batch) -> bool:
        """Whether the batch learns nothing, and its bound is known here."""
        return not batch.learn and (self.on_points is not None or self.at_inputs is not None)

    @one_blas_thread()
    def __call__(
        self, cavity: Process, batch: Batch, place: Place, at: Observations | None
    ) -> tuple[PseudoPointFactor, FitReport]:
        """The factor of a batch, and what was done; as :meth:`.Fitter.fit`.

        :raises NumericalError: likewise.
        """
        epsilon = self._epsilon(cavity, batch)
        compact = Process(cavity.compact.pseudo_observations)
        before = self.factorisations.at(epsilon, compact)
        found = self._absorbed(before, epsilon, batch, place, at)
        says = PseudoPointFactor((found.observations,))
        after = self.factorisations.at(epsilon, compact.times([says]))
        free_energy = found.free_energy - self._penalty(cavity, epsilon)
        scale = free_energy + before.log_normaliser - after.log_normaliser
        factor = replace(says, hyperparameters=cavity.unit_of_epsilon, log_scale=scale)
        return factor, _report(epsilon, free_energy, found)

    @one_blas_thread()
    def onto_shared(
        self,
        ledger: GPLedger,
        cavity: Process,
        cavity_in: Callable[[GPLedger], Process],
        batch: Batch,
        place: Place,
        at: Observations | None,
    ) -> tuple[GPLedger, PseudoPointFactor, FitReport]:
        """The ledger on new points, the factor of a batch, and what was done; as
        :meth:`.Fitter.fit_onto_shared`.

        :raises NumericalError: if a covariance is not positive however large the nugget, or a site
            not finite.
        """
        assert self.on_points is not None
        (X, Y), rest = batch.data, self.on_points
        epsilon = self._epsilon(cavity, batch)
        earlier = plain(cavity)
        places = Places(DenseProcess(PriorAt(self.local.prior, epsilon[None])))
        data = places.at(X)

        def attempt(start: Start) -> tuple[GPLedger, Absorbed]:
            projection = Projection(places.cavity.prior, *start)
            points = on_shared_points(projection, data, rest.observed(Y), earlier)
            return projection.of_ledger(ledger), rest(points, epsilon, batch.data)

        if at is not None and at.nugget > 0.0:
            start = Start(at.Z, float(at.nugget), float(at.nugget))
        else:
            inputs = places.at(np.concatenate([*(one.Z for one in earlier), X]))
            weights = partial(rest.site_weights, places, data, Y, epsilon)
            start = places.start(inputs, place, weights, len(inputs.X) - len(X))
        moved, found = with_larger_nuggets(attempt, start)
        known = self.factorisations.at(epsilon, Process(earlier)).log_normaliser
        free_energy = found.free_energy - known - self._penalty(cavity, epsilon)
        factor = self.factorisations.scaled(
            PseudoPointFactor((found.observations,), cavity.unit_of_epsilon),
            epsilon, free_energy, cavity, cavity_in(moved),
        )  # fmt: skip
        return moved, factor, _report(epsilon, free_energy, found)

    def _absorbed(
        self,
        cavity: DenseProcess,
        epsilon: np.ndarray,
        batch: Batch,
        place: Place,
        at: Observations | None,
    ) -> Absorbed:
        """What a batch says, at every input or on points of its own."""
        if self.at_inputs is not None:
            return self.at_inputs(cavity, epsilon, batch.data, batch.sites)
        assert self.on_points is not None
        (X, Y), rest, places = batch.data, self.on_points, Places(cavity)
        data = places.at(X)

        def attempt(start: Start) -> Absorbed:
            points = on_own_points(places, data, start, rest.observed(Y))
            return rest(points, epsilon, batch.data, batch.sites)

        if at is not None and at.nugget > 0.0:
            return with_larger_nuggets(attempt, Start(at.Z, float(at.nugget)))
        weights = partial(rest.site_weights, places, data, Y, epsilon)
        return with_larger_nuggets(attempt, places.start(data, place, weights))

    def _epsilon(self, cavity: Process, batch: Batch) -> np.ndarray:
        """The ε [E] at which a batch is absorbed."""
        if batch.epsilon is not None:
            return batch.epsilon
        hyperparameters, parameters = self.local.hyperparameters, self.local.parameters
        return hyperparameters.location_scale(cavity.hyperparameters, parameters)[0]

    def _penalty(self, cavity: Process, epsilon: np.ndarray) -> float:
        """What a point ε costs by its prior; q(ε) has not moved."""
        if cavity.hyperparameters is not None:
            return 0.0
        hyperparameters, parameters = self.local.hyperparameters, self.local.parameters
        unmoved = tf.constant(hyperparameters.unmoved(parameters.size), FLOAT)
        with parameters.substituted(tf.constant(epsilon, FLOAT)):
            return float(hyperparameters.penalty(unmoved, parameters))


def _report(epsilon: np.ndarray, free_energy: float, found: Absorbed) -> FitReport:
    nugget = found.observations.nugget
    return FitReport(epsilon, free_energy, 0, nugget, found.clipped_sites, *found.left)
