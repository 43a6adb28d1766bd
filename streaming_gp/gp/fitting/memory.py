"""What a point ε that remembers by the divergence adds to the bound of its batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.gp.bounds.base import divergence_gained
from streaming_gp.gp.bounds.frozen import FrozenGaussianProcess
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.process.graphs import spec


class DivergenceGained:
    """What ``−KL(q(a) ‖ p(a | ε))`` gains with ε (PVI 2018, eq. 93), in nats.

    :param local: The model.
    """

    def __init__(self, local: LocalModel) -> None:
        self._local = local
        self._compiled: dict[bool, Any] = {}

    def __call__(self, epsilon: np.ndarray, problem: Problem) -> float:
        """At ε [E], over the ε before.

        Zero where points are frozen: it is a part of the batch's bound then, as no normaliser of
        earlier factors stands for the past.
        """
        if isinstance(self._local.gp, FrozenGaussianProcess):
            return 0.0
        takes_over = bool(problem.earlier)
        if takes_over not in self._compiled:
            arguments = spec(self._local.parameters.size), self._local.problem_spec(takes_over)
            self._compiled[takes_over] = self._local.graphs.compiled(self._at, *arguments)
        return float(self._compiled[takes_over](epsilon, problem))

    def _at(self, epsilon: tf.Tensor, problem: Problem) -> tf.Tensor:
        with self._local.parameters.substituted(epsilon):
            return divergence_gained(self._local, problem)
