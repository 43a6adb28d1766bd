"""Fits ε and the places of points anew to data under the prior, as one batch.

Where noise is Gaussian the bound is that of Titsias (2009), and the factor that belongs to it is
``t(u) = exp E[log p(y | f) | u]``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.bounds import Variational
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.fitting.bound_functions import BoundFunctions
from streaming_gp.gp.fitting.cavity_functions import CavityFunctions
from streaming_gp.gp.fitting.optimiser import LocalOptimiser, Report, minimise
from streaming_gp.gp.fitting.problem import Data, ProblemBuilder, limits_within
from streaming_gp.gp.hyperparameters import PointHyperparameters
from streaming_gp.gp.hyperparameters.protocol import Limits
from streaming_gp.gp.process.compiled import FLOAT
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.pseudo_observations import PseudoObservations, factored
from streaming_gp.gp.process.single_observations import SingleObservations
from streaming_gp.numerics import dense, triangular

PACE = 10.0
"""Places are in units of so many spreads of the data. One place moves the bound far less than one
entry of ε does, and in these units the optimiser takes both along."""
STAYS: Limits = (0.0, 0.0)


class Anew:
    """Fits of one model to data under its prior, at one value of ε.

    :param local: The model.
    :param optimiser: Its method counts.
    """

    def __init__(self, local: LocalModel, optimiser: LocalOptimiser) -> None:
        self._local = replace(local, hyperparameters=PointHyperparameters(remember=False))
        self._optimiser = optimiser
        bound = BoundFunctions(Variational(), self._local)
        self._collapsed = bound.collapsed
        self._problems = ProblemBuilder(bound, CavityFunctions(self._local))

    @property
    def is_possible(self) -> bool:
        """Whether the bound of this model has a closed form."""
        return self._collapsed is not None

    def best(
        self,
        data: Data,
        at: PseudoObservations,
        epsilon: np.ndarray,
        iterations: int,
        move: bool = True,
        hold_noise: bool = False,
        learn: bool = True,
        report: Report = lambda *_: None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Places [M, D] and ε [E] that raise the bound; places stay in the range of the data.

        :param data: X [N, D] and Y [N, P].
        :param at: Has the places that these start from.
        :param epsilon: The ε [E] that it starts from.
        :param iterations: The largest number of iterations.
        :param move: Whether places move, or ε alone.
        :param hold_noise: Whether the likelihood's parameters stay as they are.
        :param learn: Whether ε moves, or places alone.
        :param report: Called with (iteration, bound).
        :raises NumericalError: if a covariance is not positive at the start.
        """
        problem = self._problem(data, at, epsilon)
        size = at.Z.size

        def loss_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
            assert self._collapsed is not None
            return self._collapsed(point[:size], point[size:], problem, True)

        places = limits_within(data[0], at.Z, problem.Z_unit.numpy()) if move else [STAYS] * size
        limits = places + (self._limits(hold_noise) if learn else [STAYS] * len(epsilon))
        start = np.zeros(len(limits))
        method = self._optimiser.method
        point, _ = minimise(loss_and_gradient, start, limits, method, iterations, report)
        offsets, variables = (tf.constant(part, FLOAT) for part in np.split(point, [size]))
        (found,) = self._local.hyperparameters.draw(
            variables, problem.location, problem.scale, problem.noise
        )
        return problem.moved(offsets).numpy(), found.numpy()

    def _problem(self, data: Data, at: PseudoObservations, epsilon: np.ndarray) -> Problem:
        noise = self._local.hyperparameters.noise(len(epsilon), seed=0)
        problem = self._problems.with_data(data, noise, Process(()), lambda _: at.Z, at)
        return problem._replace(location=tf.constant(epsilon, FLOAT), Z_unit=PACE * problem.Z_unit)

    def _limits(self, hold_noise: bool) -> list[Limits]:
        parameters = self._local.parameters
        limits = self._local.hyperparameters.limits(parameters)
        held = [
            hold_noise and path.startswith("likelihood.")
            for path, parameter in parameters.parameters.items()
            for _ in range(int(np.prod(parameter.shape)))
        ]
        return [STAYS if stays else one for one, stays in zip(limits, held, strict=True)]


def onto(
    prior: PriorAt, data: SingleObservations, Z: np.ndarray, nugget: float
) -> tuple[PseudoObservations, float]:
    """Observations projected onto points Z [M, D], and the log constant that is left over.

    :param prior: The prior at one ε.
    :param nugget: The variance of the points' white noise.
    :raises NumericalError: if the covariance of the points is not positive.
    """
    among, between = prior.covariance(Z), prior.covariance(Z, data.Z)
    variance, mean_Z, mean_X = prior.variance(data.Z), prior.mean(Z), prior.mean(data.Z)
    constant, parts = 0.0, []
    for group, (root, targets) in enumerate(zip(data.roots, data.targets, strict=True)):
        L = triangular.cholesky(among[group] + nugget * np.eye(len(Z)))
        if L is None:
            raise NumericalError("the covariance of the points is not positive")
        A = triangular.solve(L, between[group] * root)
        unexplained = np.sum(variance[group] * root**2) - np.sum(A**2)
        J = triangular.solve(L, A, transposed=True)
        residual = targets - root[:, None] * mean_X[group]
        R, s = factored(dense.product(J, J.T), J @ residual)
        lost = np.sum(residual**2) - np.sum(s**2) + residual.shape[1] * unexplained
        constant -= 0.5 * float(lost)
        parts.append((R, s + R.T @ mean_Z[group]))
    factor, said = (np.stack(part) for part in zip(*parts, strict=True))
    return PseudoObservations(Z, factor, said, nugget), constant
