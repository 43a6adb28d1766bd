"""A batch on points of its own at one ε: nothing is optimised, and nothing factorised again.

The cavity is held factorised, so that under R earlier points a batch of N data costs O(R² N). What
a fit gets from its bound in TensorFlow is written out here in NumPy, for Gaussian noise and the
energies of power EP, of which the variational bound is one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.bounds.shown_errors import shown_error
from streaming_gp.gp.bounds.sites import is_conjugate
from streaming_gp.gp.collapsed import stacks
from streaming_gp.gp.collapsed.batch import UnderCavity
from streaming_gp.gp.collapsed.bounds import OnPoints
from streaming_gp.gp.fitting.candidates import Candidates
from streaming_gp.gp.fitting.collapsed import power_of
from streaming_gp.gp.fitting.factorisations import Factorisations
from streaming_gp.gp.fitting.optimiser import with_larger_nuggets
from streaming_gp.gp.fitting.problem import NUGGET, Data, Place
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.process.compiled import FLOAT
from streaming_gp.gp.process.conditioning import GaussianProcess
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.factorised import Factorised
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.pseudo_observations import Observations, PseudoObservations
from streaming_gp.linalg import compress_rows
from streaming_gp.threads import one_blas_thread


class Absorbing:
    """Absorbs batches of one model under one bound.

    :param local: The model.
    :param bound: The bound.
    :param factorisations: Of the model's processes.
    """

    def __init__(
        self, local: LocalModel, bound: LocalBound, factorisations: Factorisations
    ) -> None:
        self.local = local
        self.factorisations = factorisations
        is_known = is_conjugate(local.likelihood) and type(local.gp) is GaussianProcess
        self.alpha = power_of(bound) if is_known else None

    def serves(self, batch: Batch) -> bool:
        """Whether the batch learns nothing, and its bound is known here."""
        return not batch.learn and self.alpha is not None

    @one_blas_thread()
    def __call__(
        self, cavity: Process, batch: Batch, place: Place, at: Observations | None
    ) -> tuple[PseudoPointFactor, FitReport]:
        """The factor of a batch, and what was done; as :meth:`.Fitter.fit`."""
        hyperparameters, parameters = self.local.hyperparameters, self.local.parameters
        epsilon = batch.epsilon
        if epsilon is None:
            epsilon = hyperparameters.location_scale(cavity.hyperparameters, parameters)[0]
        precision = self.local.noise_precision(epsilon, batch.data[0])
        compact = Process(cavity.compact.pseudo_observations)
        before = self.factorisations.at(epsilon, compact)
        at_rest = BatchAtRest(before, self.alpha or 0.0, batch.data, precision)
        start = at_rest.start(place, at)
        found = with_larger_nuggets(at_rest.on, start)
        says = PseudoPointFactor((found.observations,))
        after = self.factorisations.at(epsilon, compact.times([says]))
        free_energy = found.free_energy - self._penalty(cavity, epsilon)
        scale = free_energy + before.log_normaliser - after.log_normaliser
        report = FitReport(
            epsilon, free_energy, 0, found.observations.nugget, 0,
            found.unexplained, found.shown_error,
        )  # fmt: skip
        return replace(says, hyperparameters=cavity.unit_of_epsilon, log_scale=scale), report

    def _penalty(self, cavity: Process, epsilon: np.ndarray) -> float:
        """What a point ε costs by its prior; q(ε) has not moved."""
        if cavity.hyperparameters is not None:
            return 0.0
        hyperparameters, parameters = self.local.hyperparameters, self.local.parameters
        unmoved = tf.constant(hyperparameters.unmoved(parameters.size), FLOAT)
        with parameters.substituted(tf.constant(epsilon, FLOAT)):
            return float(hyperparameters.penalty(unmoved, parameters))


class Start(NamedTuple):
    """Where points are.

    :param Z: The points [M, D].
    :param nugget: The variance of their white noise.
    """

    Z: np.ndarray
    nugget: float


class Absorbed(NamedTuple):
    """What a batch says of its points.

    :param observations: As a factor holds it.
    :param free_energy: The bound, in nats.
    :param unexplained: The variance of f at the data that the points leave, over that of the noise
        that data have: a mean.
    :param shown_error: As :func:`~streaming_gp.gp.bounds.shown_errors.shown_error` says.
    """

    observations: PseudoObservations
    free_energy: float
    unexplained: float
    shown_error: float


class Inputs(NamedTuple):
    """Inputs under the cavity: X [N, D], their projection [G, R, N] and the mean of f [G, N, C]."""

    X: np.ndarray
    V: np.ndarray
    mean: np.ndarray


class BatchAtRest:
    """A batch under a cavity, at one ε.

    :param cavity: The cavity at ε.
    :param alpha: The power of the energy, in [0, 1].
    :param data: X [N, D] and Y [N, P].
    :param precision: One over the variance of the noise [N, P].
    """

    def __init__(self, cavity: Factorised, alpha: float, data: Data, precision: np.ndarray) -> None:
        self.cavity = cavity
        self.bound = OnPoints(alpha)
        self.data = self._at(data[0])
        V = self.data.V
        self.variance = cavity.prior.variance(data[0]) - np.einsum("grn,grn->gn", V, V)
        groups = len(precision), len(cavity.prior.groups), -1
        Y, noise = (np.reshape(one, groups).swapaxes(0, 1) for one in (data[1], 1.0 / precision))
        self.residual, self.noise = Y - self.data.mean, noise[:, :, 0]

    def start(self, place: Place, at: Observations | None) -> Start:
        """Points at chosen inputs, or at those that the batch has had before.

        :raises NumericalError: if the cavity covariance is not finite.
        """
        if at is not None and at.nugget > 0.0:
            return Start(at.Z, float(at.nugget))
        variance = np.mean(self.variance, axis=0)
        if not np.isfinite(variance).all():
            raise NumericalError("the cavity covariance at the batch is not finite")
        everything = np.arange(len(variance))
        found = Candidates(
            self.data.X,
            variance,
            lambda some: self._between(everything, some),
            lambda some: self._between(some, some),
            self._weights,
        )
        return Start(place(found), float(NUGGET * np.mean(variance)))

    def on(self, start: Start) -> Absorbed:
        """What the batch says of these points.

        :raises NumericalError: if their covariance is not positive.
        """
        points = self._at(start.Z)
        among = self.cavity.covariance(points.X, points.V)
        between = self._covariance(points, self.data)
        noise, residual = self.noise, self.residual
        try:
            L = stacks.cholesky(among, start.nugget)
        except np.linalg.LinAlgError:
            raise NumericalError(
                "the cavity covariance at the pseudo-points is not positive"
            ) from None
        A = stacks.solve(L, between)
        batch = UnderCavity(among, between, self.variance, residual, noise)
        _, unexplained, widened = self.bound.left(A, batch)
        root = np.sqrt(widened)[:, None]
        design, targets = A / root, residual / stacks.transposed(root)
        rows, fewer = compress_rows(stacks.transposed(design), targets)
        R = stacks.solve(L, stacks.transposed(rows), transposed=True)
        found = PseudoObservations(
            points.X, R, fewer + stacks.transposed(R) @ points.mean, start.nugget
        )
        return Absorbed(
            found,
            self.bound.value(A, unexplained, batch),
            float(np.mean(unexplained / (widened + start.nugget))),
            shown_error(L, design, targets, start.nugget),
        )

    # ---- covariances under the cavity ----

    def _at(self, X: np.ndarray) -> Inputs:
        V = self.cavity.project(X)
        return Inputs(X, V, self.cavity.mean(X, V))

    def _covariance(self, one: Inputs, other: Inputs) -> np.ndarray:
        """Covariances [G, N, K] of f; white noise is shared by no two sets of inputs."""
        prior = self.cavity.prior.covariance(one.X, other.X)
        return prior - stacks.product(stacks.transposed(one.V), other.V)

    def _between(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Covariances [K, K2] of f at some of the data, averaged over groups."""
        X, V, mean = self.data
        one, other = (Inputs(X[rows], V[:, :, rows], mean[:, rows]) for rows in (some, others))
        return np.mean(self._covariance(one, other), axis=0)

    def _weights(self) -> np.ndarray:
        """Site precisions [N], summed over latent functions.

        In the energies of power EP what points leave widens the noise: one at the first datum here.
        """
        widened = self.noise
        if self.bound.alpha > 0.0:
            first = self._at(self.data.X[:1])
            variance = self.cavity.covariance(first.X, first.V)[:, 0]
            left = self.variance - self._covariance(first, self.data)[:, 0] ** 2 / variance
            widened = self.noise + self.bound.alpha * np.maximum(left, 0.0)
        return np.asarray(self.residual.shape[2] * np.sum(1.0 / widened, axis=0))
