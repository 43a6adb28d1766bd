"""Says once for each model when predicted standard deviations will be far too small, and when all
is taken for noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import chain

import numpy as np
import tensorflow as tf
from gpflow.kernels import Kernel, Product, Stationary, Sum
from scipy.spatial.distance import cdist

from streaming_gp import expfam
from streaming_gp.errors import OverconfidenceWarning, PoorFitWarning
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.sites import is_conjugate
from streaming_gp.gp.process.prior import PriorAt, latent_kernels
from streaming_gp.gp.process.process import Process, PseudoPointFactor, plain
from streaming_gp.numerics.quadrature import standard_normals

MOST_ERROR = 5.0
"""Predicted standard deviations that errors at points may be."""
MOST_UNEXPLAINED = 10.0
"""The variance that points leave, over that of the noise: of a merge, and of points where the bound
does not know how large errors are."""
MOST_WIDTHS = 3.0
"""How many widths of the prior the size of targets may lie from its middle."""
LEAST_SHARE = 1e-2
"""The prior variance of f over that of the noise, under which the data are explained as noise."""
MOST_APART = 2.0
"""So many lengthscales may inputs lie from their nearest, where a squared exponential has a
correlation of 0.14."""
LEAST_LOOKED_AT, MOST_LOOKED_AT = 20, 100
"""So many data say how far inputs lie apart, and how much f and noise vary where a batch is."""
NUM_DRAWS = 32


class Warnings:
    """The warnings that one model has given."""

    def __init__(self, local: LocalModel) -> None:
        self._local = local
        self._done: set[str] = set()

    def _warn(self, of: str, message: str, kind: type[UserWarning] = OverconfidenceWarning) -> None:
        """Once; where warnings are errors it is not done, and comes again."""
        if of not in self._done:
            warnings.warn(message, kind, stacklevel=2)
            self._done.add(of)

    def points(self, name: str, number: int, shown_error: float | None, unexplained: float) -> None:
        """Where a batch's points are too few for its noise.

        The variational bound counts data as if the points said all of f there (Titsias 2009; the
        same points and noise give the same in batch inference). How far that is from the truth the
        data show, where the bound knows; elsewhere there is only the prior's word for it.
        """
        error, most = shown_error, MOST_ERROR
        if error is None:
            error, most = unexplained**0.5, MOST_UNEXPLAINED**0.5
        if error > most:
            self._warn(
                "points",
                f"the {number} pseudo-points of batch {name!r} leave so much of f that errors at "
                f"them are some {error:.2g} predicted standard deviations, and predictions will be "
                "over-confident: wanted more points (PrivatePseudoPoints('all') has one at every "
                "input), alpha=1 where noise is Gaussian, or a larger noise variance; of later "
                "batches UpdateInfo.unexplained and UpdateInfo.shown_error say it",
            )

    def noise(self, name: str, number: int, X: np.ndarray, epsilon: np.ndarray) -> None:
        """Where few points of a batch have learned that all of it is noise.

        Points that explain next to nothing of the first batches leave this as the best there is,
        and as f has no variance then, later batches cannot tell otherwise.

        :param X: The inputs [N, D].
        :param epsilon: The ε that was learned [E].
        """
        local, few = self._local, X[:MOST_LOOKED_AT]
        if "noise" in self._done or number >= len(X) or not is_conjugate(local.likelihood):
            return
        of_f = np.mean(PriorAt(local.prior, epsilon[None]).variance(few))
        share = of_f / np.mean(1.0 / local.noise_precision(epsilon, few))
        if share < LEAST_SHARE:
            self._warn(
                "noise",
                f"batch {name!r} is explained as noise: at the hyperparameters that its {number} "
                f"pseudo-points have learned the function varies by {share:.1g} of the noise's "
                "variance, and later batches will hardly change that; wanted more points from the "
                "first batch on, if the targets depend on the inputs",
                PoorFitWarning,
            )

    def merge(self, before: PseudoPointFactor, after: PseudoPointFactor) -> None:
        """Where points onto which others are merged leave far more than these can bear.

        What a merge says is over-confident for the same reason. The nats that it lost are
        ``½ Σ r²`` over errors r in units of the noise; the white noise of the points widens what
        they say of f itself.
        """
        nugget = max(one.nugget for one in after.pseudo_observations)
        noise = sum(
            one.pseudo_targets.size + nugget * float(np.sum(one.precision_factor**2))
            for one in plain(Process(before.pseudo_observations))
        )
        unexplained = 2.0 * (before.log_scale - after.log_scale) / noise
        if unexplained > MOST_UNEXPLAINED:
            self._warn(
                "merge",
                f"a merge of earlier batches onto {len(after.Z)} pseudo-points leaves a variance "
                f"of f that is {unexplained:.3g} times that of the noise, and predictions will be "
                "over-confident: wanted a larger budget, or a larger noise variance",
            )

    def first_data(self, q: expfam.Gaussian, X: np.ndarray, Y: np.ndarray) -> None:
        """Where the first data are far from what the prior over ε expects.

        :param q: The prior over ε.
        :param X: The inputs [N, D].
        :param Y: The targets [N, P].
        """
        self._inputs(q, X)
        local = self._local
        if is_conjugate(local.likelihood) and local.gp.num_latent == Y.shape[1]:
            self._targets(q, X, Y)

    def _targets(self, q: expfam.Gaussian, X: np.ndarray, Y: np.ndarray) -> None:
        """A distribution over ε is held by its prior where targets are of another size, noise that
        is far from it the most. Targets that all are at the prior mean have no size.
        """
        local, center = self._local, np.asarray(q.mean)
        at_mean = PriorAt(local.prior, center[None]).mean(X)
        residual = Y - np.moveaxis(at_mean, 0, 1).reshape(len(X), -1)
        if not residual.any():
            return
        mean_square = float(np.log(max(np.mean(residual**2), np.finfo(float).tiny)))
        draws = center + standard_normals(NUM_DRAWS, len(center), seed=0) @ np.transpose(q.scale)
        of_f = PriorAt(local.prior, draws).variance(X).reshape(NUM_DRAWS, -1).mean(axis=1)
        noise = [np.mean(1.0 / local.noise_precision(epsilon, X)) for epsilon in draws]
        log_variance = np.log(of_f + np.asarray(noise))
        expected = float(log_variance.mean())
        width = float(np.hypot(log_variance.std(), _of_mean_square(local, center, X)))
        if np.isfinite(mean_square) and abs(mean_square - expected) > MOST_WIDTHS * width:
            size, wanted = np.exp(0.5 * mean_square), np.exp(0.5 * expected)
            self._warn(
                "targets",
                f"targets of size {size:.3g} about the prior mean, where the prior over the "
                f"hyperparameters expects {wanted:.3g}, up to a factor of "
                f"{np.exp(0.5 * MOST_WIDTHS * width):.3g}: it will hold noise and kernel variance "
                "where they fit nothing, and predictions may be over-confident; wanted "
                "standardised targets, variances that start at their size, or a larger "
                "prior_log_scale",
            )

    def _inputs(self, q: expfam.Gaussian, X: np.ndarray) -> None:
        """Inputs that lie so far apart that none says anything of another: then f is as good as
        noise, and lengthscales hardly move.
        """
        if len(X) < LEAST_LOOKED_AT:
            return
        local, few = self._local, _spread(X)
        longest = np.asarray(q.mean) + MOST_WIDTHS * np.linalg.norm(q.scale, axis=1)
        kernels = list(chain(*map(_with_lengthscales, latent_kernels(local.gp.kernel))))
        with local.parameters.substituted(tf.constant(longest)):
            scaled = [kernel.scale(kernel.slice(few, None)[0]).numpy() for kernel in kernels]
        apart = max(map(_median_to_the_nearest, scaled), default=0.0)
        if apart > MOST_APART:
            self._warn(
                "inputs",
                f"inputs lie {apart:.3g} lengthscales from their nearest, at lengthscales as long "
                "as the prior over the hyperparameters expects: all may be taken for noise; wanted "
                "standardised inputs, lengthscales that start at their spread, or a larger "
                "prior_log_scale",
                PoorFitWarning,
            )


def _spread(X: np.ndarray) -> np.ndarray:
    """A few of the rows, from all along them."""
    return X[:: -(-len(X) // MOST_LOOKED_AT)]


def _of_mean_square(local: LocalModel, epsilon: np.ndarray, X: np.ndarray) -> float:
    """The standard deviation of the logarithm of the mean square of targets at inputs [N, D], which
    the prior has at ε [E]: ``√(2 tr K²) / tr K``. A smooth function of few inputs is one draw.
    """
    few = _spread(X)
    K = PriorAt(local.prior, epsilon[None]).covariance(few).mean(axis=0)
    K += np.mean(1.0 / local.noise_precision(epsilon, few)) * np.eye(len(few))
    return float(np.sqrt(2.0) * np.linalg.norm(K) / np.trace(K))


def _with_lengthscales(kernel: Kernel) -> Iterator[Stationary]:
    """Parts of a sum or a product that have lengthscales to learn."""
    if isinstance(kernel, (Sum, Product)):
        for part in kernel.kernels:
            yield from _with_lengthscales(part)
    elif isinstance(kernel, Stationary) and getattr(kernel.lengthscales, "trainable", False):
        yield kernel


def _median_to_the_nearest(points: np.ndarray) -> float:
    apart = np.unique(points, axis=0)
    if len(apart) < 2:
        return 0.0
    distances = cdist(apart, apart)
    np.fill_diagonal(distances, np.inf)
    return float(np.median(distances.min(axis=1)))
