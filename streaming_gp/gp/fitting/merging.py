"""Factors on fewer points: which go, what the others take over, and where these move to."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from streaming_gp.errors import NumericalError
from streaming_gp.gp.fitting.factorisations import Factorisations
from streaming_gp.gp.fitting.moving import Moving
from streaming_gp.gp.fitting.optimiser import LocalOptimiser
from streaming_gp.gp.fitting.thinning import thinned
from streaming_gp.gp.fitting.watch import Watch
from streaming_gp.gp.process.process import Process, PseudoPointFactor, plain
from streaming_gp.numerics.threads import one_blas_thread


class Merging:
    """Projects factors onto some of their own points.

    :param factorisations: Those of the model's processes.
    :param optimiser: How points move.
    :param watch: Warns where that leaves far more than the noise.
    """

    def __init__(
        self, factorisations: Factorisations, optimiser: LocalOptimiser, watch: Watch
    ) -> None:
        self._factorisations = factorisations
        self._optimiser = optimiser
        self._watch = watch

    @one_blas_thread()
    def thinned(
        self,
        factor: PseudoPointFactor,
        others: Process,
        epsilon: np.ndarray,
        number: int,
        iterations: int = 0,
        watch: bool = True,
    ) -> PseudoPointFactor:
        """A factor on ``number`` of its points, projected under all others at ε [E].

        :param iterations: The number in which these then move to where still less is lost.
        :param watch: Whether to warn where that leaves far more than the noise.
        """
        process = Process(factor.pseudo_observations, None, factor.log_scale).compact
        rest = self._factorisations.at(epsilon, Process(others.pseudo_observations))
        members = plain(process)
        Z = np.concatenate([one.Z for one in members])
        V = rest.project(Z)
        found, constant = thinned(rest.covariance(Z, V), rest.mean(Z, V), members, number)
        if iterations > 0:
            moving = Moving(rest.prior, rest.members, members, found.nugget)
            with suppress(NumericalError):  # where rounding forbids it the points stay
                Z = moving.best_places(found.Z, self._optimiser, iterations)
                found, constant = moving.projected(Z)
        if watch:
            self._watch.merge(members, found, -constant)
        scale = process.log_scale + constant
        return PseudoPointFactor((found,), factor.hyperparameters, scale)
