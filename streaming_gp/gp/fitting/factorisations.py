"""Processes factorised at one ε, of which the last is held and extended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, PseudoPointFactor, plain
from streaming_gp.gp.process.tensors import GaussianProcess
from streaming_gp.numerics.threads import blas_threads_for


class Factorisations:
    """DenseProcess processes of one model.

    :param local: The model.
    """

    def __init__(self, local: LocalModel) -> None:
        self.local = local
        self._held: tuple[bytes, DenseProcess] | None = None

    def at(self, epsilon: np.ndarray, process: Process) -> DenseProcess:
        """A process at ε [E]; what it has in common with the one before is not computed again.

        :raises NumericalError: if the covariance of its pseudo-observations is not positive.
        """
        token = epsilon.tobytes() + self.local.fixed_values()
        known = DenseProcess(PriorAt(self.local.prior, epsilon[None]))
        if self._held is not None and self._held[0] == token:
            known = self._held[1]
        with blas_threads_for(process.num_pseudo_points):
            found = known.conditioned_on(plain(process))
        self._held = token, found
        return found

    def log_normaliser(self, epsilon: np.ndarray, process: Process) -> float:
        """The log normaliser of a process at ε [E], and its own log scale, in nats.

        A process that rests on frozen points is normalised.

        :raises NumericalError: as :meth:`at`.
        """
        compact = process.compact
        if type(self.local.gp) is not GaussianProcess:
            return compact.log_scale
        return compact.log_scale + self.at(epsilon, compact).log_normaliser

    def scaled(
        self,
        factor: PseudoPointFactor,
        epsilon: np.ndarray,
        free_energy: float,
        old_cavity: Process,
        cavity: Process,
    ) -> PseudoPointFactor:
        """A factor whose constant makes log normalisers add up to the free energy, at ε [E].

        :param old_cavity: Prior times all other factors.
        :param cavity: The same on the points that they are on now.
        :raises NumericalError: as :meth:`at`.
        """
        before, after = (
            self.log_normaliser(epsilon, Process(members))
            for members in (
                old_cavity.pseudo_observations,
                (*cavity.pseudo_observations, *factor.pseudo_observations),
            )
        )
        gained = free_energy + before - after
        return replace(factor, log_scale=old_cavity.log_scale + gained - cavity.log_scale)
