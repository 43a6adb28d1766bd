"""Says once for each model when predicted standard deviations will be far too small, and when all
is taken for noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from streaming_gp import expfam
from streaming_gp.errors import OverconfidenceWarning, PoorFitWarning
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.bounds.sites import is_conjugate
from streaming_gp.gp.fitting.solver import Batch, FitReport
from streaming_gp.gp.fitting.spread import to_the_nearest
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
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


class Watch:
    """What one model has said already; each of it is said once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def _say(
        self, what: str, message: str, kind: type[UserWarning] = OverconfidenceWarning
    ) -> None:
        """Warn; where warnings are errors it is not said, and comes again."""
        if what not in self._said:
            warnings.warn(message, kind, stacklevel=2)
            self._said.add(what)

    def points(self, name: str, number: int, report: FitReport) -> None:
        """Warn where a batch's points are too few for its noise.

        The variational bound counts data as if the points said all of f there (Titsias 2009; the
        same points and noise give the same in batch inference). How far that is from the truth the
        data show, where the bound knows; elsewhere there is only the prior's word for it.

        :param name: The batch.
        :param number: The number of its points.
        :param report: What was done.
        """
        error, most = report.shown_error, MOST_ERROR
        if error is None:
            error, most = report.unexplained**0.5, MOST_UNEXPLAINED**0.5
        if error > most:
            self._say(
                "points",
                f"the {number} pseudo-points of batch {name!r} leave so much of f that errors at "
                f"them are some {error:.2g} predicted standard deviations, and predictions will be "
                "over-confident: wanted more points (PrivatePseudoPoints('all') has one at every "
                "input), alpha=1 where noise is Gaussian, or a larger noise variance; of later "
                "batches UpdateInfo.unexplained and UpdateInfo.shown_error say it",
            )

    def noise(self, local: LocalModel, batch: Batch, number: int, report: FitReport) -> None:
        """Warn where few points of a batch have learned that all of it is noise.

        Points that explain next to nothing of the first batches leave this as the best there is,
        and as f has no variance then, later batches cannot tell otherwise.

        :param local: The model.
        :param batch: The batch.
        :param number: The number of its points.
        :param report: What was done.
        """
        learns = batch.learn and bool(local.hyperparameters.limits(local.parameters))
        is_of_few = is_conjugate(local.likelihood) and number < len(batch.data[0])
        if "noise" in self._said or not (learns and is_of_few):
            return
        X, epsilon = batch.data[0][:MOST_LOOKED_AT], report.epsilon
        of_f = np.mean(PriorAt(local.prior, epsilon[None]).variance(X))
        share = of_f / np.mean(1.0 / local.noise_precision(epsilon, X))
        if share < LEAST_SHARE:
            self._say(
                "noise",
                f"batch {batch.name!r} is explained as noise: at the hyperparameters that its "
                f"{number} pseudo-points have learned the function varies by {share:.1g} of the "
                "noise's variance, and later batches will hardly change that; wanted more points "
                "from the first batch on, if the targets depend on the inputs",
                PoorFitWarning,
            )

    def merge(
        self, earlier: Sequence[PseudoObservations], found: PseudoObservations, lost: float
    ) -> None:
        """Warn where points onto which others are merged leave far more than these can bear.

        What a merge says is over-confident for the same reason. The white noise of the points
        widens what they say of f itself.

        :param earlier: What is merged.
        :param found: What it is merged into.
        :param lost: The nats that this lost, ``½ Σ r²`` over errors r in units of the noise.
        """
        noise = sum(
            one.pseudo_targets.size + found.nugget * float(np.sum(one.precision_factor**2))
            for one in earlier
        )
        unexplained = 2.0 * lost / noise
        if unexplained > MOST_UNEXPLAINED:
            self._say(
                "merge",
                f"a merge of earlier batches onto {len(found.Z)} pseudo-points leaves a variance "
                f"of f that is {unexplained:.3g} times that of the noise, and predictions will be "
                "over-confident: wanted a larger budget, or a larger noise variance",
            )

    def targets(self, local: LocalModel, q: expfam.Gaussian, X: np.ndarray, Y: np.ndarray) -> None:
        """Warn where the first targets are of another size than the prior over ε expects.

        A distribution over ε is then held by its prior, noise that is far from it the most. Targets
        that all are what the prior expects have no size.

        :param q: The prior over ε.
        :param X: The inputs [N, D].
        :param Y: The targets [N, P].
        """
        if not is_conjugate(local.likelihood) or local.gp.num_latent != Y.shape[1]:
            return
        expected, width, mean_square = log_sizes(local, q, X, Y)
        if np.isfinite(mean_square) and abs(mean_square - expected) > MOST_WIDTHS * width:
            size, wanted = np.exp(0.5 * mean_square), np.exp(0.5 * expected)
            self._say(
                "targets",
                f"targets of size {size:.3g} about the prior mean, where the prior over the "
                f"hyperparameters expects {wanted:.3g}, up to a factor of "
                f"{np.exp(0.5 * MOST_WIDTHS * width):.3g}: it will hold noise and kernel variance "
                "where they fit nothing, and predictions may be over-confident; wanted "
                "standardised targets, variances that start at their size, or a larger "
                "prior_log_scale",
            )

    def inputs(self, local: LocalModel, q: expfam.Gaussian, X: np.ndarray) -> None:
        """Warn where the first inputs lie so far apart that none says anything of another.

        Then f is as good as noise, and lengthscales hardly move.

        :param q: The prior over ε.
        :param X: The inputs [N, D].
        """
        if len(X) < LEAST_LOOKED_AT:
            return
        longest = np.asarray(q.mean) + MOST_WIDTHS * np.linalg.norm(q.scale, axis=1)
        apart = to_the_nearest(local, longest, X[:: -(-len(X) // MOST_LOOKED_AT)])
        if apart > MOST_APART:
            self._say(
                "inputs",
                f"inputs lie {apart:.3g} lengthscales from their nearest, at lengthscales as long "
                "as the prior over the hyperparameters expects: all may be taken for noise; wanted "
                "standardised inputs, lengthscales that start at their spread, or a larger "
                "prior_log_scale",
                PoorFitWarning,
            )


def log_sizes(
    local: LocalModel, q: expfam.Gaussian, X: np.ndarray, Y: np.ndarray
) -> tuple[float, float, float]:
    """Mean and standard deviation under q(ε) of the log variance of Y, and the log of the mean
    square of these Y [N, P] about the prior mean at X [N, D]; −∞ if all are equal to it.
    """
    normals = standard_normals(NUM_DRAWS, len(np.asarray(q.mean)), seed=0)
    draws = np.asarray(q.mean) + normals @ np.transpose(q.scale)
    prior = PriorAt(local.prior, draws)
    of_f = prior.variance(X).reshape(NUM_DRAWS, -1).mean(axis=1)
    noise = [np.mean(1.0 / local.noise_precision(epsilon, X)) for epsilon in draws]
    log_variance = np.log(of_f + np.asarray(noise))
    at_mean = PriorAt(local.prior, np.asarray(q.mean)[None]).mean(X)
    residual = Y - np.moveaxis(at_mean, 0, 1).reshape(len(X), -1)
    smallest = np.finfo(float).tiny if residual.any() else 0.0
    with np.errstate(divide="ignore"):
        mean_square = float(np.log(max(np.mean(residual**2), smallest)))
    return float(log_variance.mean()), float(log_variance.std()), mean_square
