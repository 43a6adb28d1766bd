"""Observations of one input each, as data are: what they say takes few bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from streaming_gp.gp.process.process import Process, plain
from streaming_gp.gp.process.pseudo_observations import PseudoObservations
from streaming_gp.serialization import storable


@storable
@dataclass(frozen=True, eq=False)
class SingleObservations:
    """Gaussian observations ``s ≈ r f(z)``, each of one input and with noise of variance 1.

    :param Z: The inputs [M, D].
    :param roots: r [G, M], the square roots of the precisions; G groups of latent functions.
    :param targets: s [G, M, C] for the C functions of a group.
    """

    Z: np.ndarray
    roots: np.ndarray
    targets: np.ndarray

    @staticmethod
    def of(one: PseudoObservations) -> SingleObservations:
        """The same observations, whose R is diagonal."""
        roots = np.diagonal(one.precision_factor, axis1=1, axis2=2)
        return SingleObservations(one.Z, np.array(roots), one.pseudo_targets)

    @staticmethod
    def of_data(X: np.ndarray, Y: np.ndarray, precision: np.ndarray, G: int) -> SingleObservations:
        """Data as observations; the columns of a group share their noise.

        :param X: Inputs [N, D].
        :param Y: Targets [N, P].
        :param precision: One over the variances of their noise [N, P].
        :param G: The number of groups.
        """
        Y, precision = (np.reshape(one, (len(X), G, -1)).swapaxes(0, 1) for one in (Y, precision))
        roots = np.sqrt(precision[:, :, 0])
        return SingleObservations(X, roots, roots[:, :, None] * Y)

    @property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """The data X [N, D] and Y [N, P] that these observations are of."""
        Y = self.targets / self.roots[:, :, None]
        return self.Z, np.reshape(Y.swapaxes(0, 1), (len(self.Z), -1))

    @property
    def num_bytes(self) -> int:
        """Size of its arrays."""
        return self.Z.nbytes + self.roots.nbytes + self.targets.nbytes

    def rows(self, kept: np.ndarray) -> SingleObservations:
        """Those at some of the inputs."""
        return SingleObservations(self.Z[kept], self.roots[:, kept], self.targets[:, kept])

    def as_pseudo_observations(self) -> PseudoObservations:
        """The same with a matrix R, of M² elements, for computing with few of them."""
        number = len(self.Z)
        factor = np.zeros((len(self.roots), number, number))
        np.einsum("gmm->gm", factor)[:] = self.roots
        return PseudoObservations(self.Z, factor, self.targets, 0.0)

    def __pow__(self, power: float) -> SingleObservations:
        """What they say, raised to a power: noise is larger by its inverse."""
        weight = np.sqrt(power)
        return SingleObservations(self.Z, weight * self.roots, weight * self.targets)


def joined(parts: Iterable[SingleObservations]) -> SingleObservations:
    """All of them; at least one part."""
    Z, roots, targets = zip(*((one.Z, one.roots, one.targets) for one in parts), strict=True)
    return SingleObservations(
        np.concatenate(Z), np.concatenate(roots, axis=1), np.concatenate(targets, axis=1)
    )


def singles(process: Process) -> SingleObservations | None:
    """What a process is conditioned on, if that is observations of one input each."""
    members = process.compact.pseudo_observations
    if not members or not all(
        isinstance(one, PseudoObservations) and one.is_diagonal for one in members
    ):
        return None
    return joined(SingleObservations.of(one) for one in plain(process))
