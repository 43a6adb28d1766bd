"""A local bound: what a batch's own fit maximises, and the factor that this leaves."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf
from gpflow.likelihoods import Likelihood

from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.process.observations import Observations
from streaming_gp.gp.process.tensors import GaussianProcess


@runtime_checkable
class LocalBound(Protocol):
    """The local free energy of one batch under a cavity process: a frozen dataclass.

    Its functions are compiled: they must be made of TensorFlow operations, and may be called for
    batches, cavities and numbers of points of any size. ``draws`` are S values of ε [S, E], Z the
    pseudo-inputs [M, D]; within ``local.parameters.substituted(epsilon)`` kernel, mean function and
    likelihood read from ε.
    """

    def check(self, likelihood: Likelihood) -> None:
        """Refuse a likelihood that the bound is not for.

        :raises InvalidDataError: naming the likelihood and what was wanted.
        """
        ...

    def gaussian_process(
        self, kernel: Any, mean_function: Any, num_latent: int, num_groups: int
    ) -> GaussianProcess:
        """What conditions on the pseudo-observations that this bound leaves."""
        ...

    def free_energy(
        self, local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> tf.Tensor:
        """The bound, averaged over the draws: [], in nats. The part of ε is not in it."""
        ...

    def next_sites(
        self, local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites
    ) -> Sites:
        """A fixed-point step of the sites of a likelihood that is not Gaussian, undamped."""
        ...

    def known_sites(
        self, local: LocalModel, epsilon: tf.Tensor, Z: tf.Tensor, problem: Problem
    ) -> Sites:
        """The sites of Gaussian noise at ε [E], which need no fixed point."""
        ...

    def summary(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        epsilon: tf.Tensor,
        Z: tf.Tensor,
        problem: Problem,
        sites: Sites,
    ) -> Any:
        """What :meth:`pseudo_observations` needs of a solution, as a structure of tensors.

        :param epsilon: The point estimate of ε [E].
        """
        ...

    def pseudo_observations(
        self, local: LocalModel, summary: Any, problem: Problem, sites: Sites
    ) -> Observations:
        """What the batch's factor says of f.

        :param summary: From :meth:`summary`, computed.
        :raises NumericalError: if a covariance was not positive.
        """
        ...


@runtime_checkable
class ApproximatesByPoints(Protocol):
    """A bound on few points, which knows what these leave of the data."""

    def unexplained(self, local: LocalModel, summary: Any, problem: Problem, sites: Sites) -> float:
        """:func:`~streaming_gp.gp.bounds.sites.unexplained` of a solution, without a unit.

        :param summary: From :meth:`LocalBound.summary`, computed.
        """
        ...


@runtime_checkable
class ShowsErrors(Protocol):
    """A bound whose data show how far from the truth it is at its points."""

    def shown_error(self, local: LocalModel, summary: Any, problem: Problem, sites: Sites) -> float:
        """:func:`~streaming_gp.gp.bounds.shown_errors.shown_error` of a solution, without a unit.

        :param summary: From :meth:`LocalBound.summary`, computed.
        """
        ...


def is_finite(*arrays: Any) -> bool:
    """Whether all entries of all arrays are finite."""
    return all(bool(np.isfinite(array).all()) for array in arrays)
