"""Factors of sites at every input, which still know the targets of their batch.

With Gaussian noise the factor of a batch at every input is its likelihood, and its data can be read
from it. The sites of labels and counts depend on what else was known when they were fitted. Who
wants to fit them once more, with later batches, needs the targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.fitting.problem import Data
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.single_observations import SingleObservations, joined, singles
from streaming_gp.serialization import storable


@storable
@dataclass(frozen=True, eq=False)
class FactorWithTargets(PseudoPointFactor):
    """A factor at every input of a batch, all that its data say. Its powers and products are not,
    nor is what is left when ε is forgotten in part: they have no targets.

    :param targets: Y [N, P] of the batch.
    """

    targets: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self.targets.nbytes

    def saying_less_of_epsilon(self, power: float) -> PseudoPointFactor:
        said = PseudoPointFactor(self.pseudo_observations, self.hyperparameters, self.log_scale)
        return said.saying_less_of_epsilon(power)


def with_targets(factor: PseudoPointFactor, data: Data) -> PseudoPointFactor:
    """The factor of a batch with its targets, if it has a site at each of the inputs."""
    said, (X, Y) = factor.pseudo_observations, data
    if len(said) != 1 or not np.array_equal(said[0].Z, X):
        return factor
    return FactorWithTargets(said, factor.hyperparameters, factor.log_scale, Y)


def sites_of(said: SingleObservations) -> Sites:
    """The sites [N, L] that observations of latent functions in groups of one are."""
    return Sites((said.roots * said.targets[:, :, 0]).T, np.square(said.roots).T)


def joined_observations(factors: Sequence[PseudoPointFactor]) -> SingleObservations:
    """What factors at every input say of f, one after the other."""
    found = [singles(Process(one.pseudo_observations)) for one in factors]
    return joined(one for one in found if one is not None)
