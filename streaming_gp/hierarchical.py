"""Models whose hyperparameters have a posterior too: q(θ, ε) of PVI 2018, eqs. 6 and 7.

A prior that depends on ε is no member of a Gaussian family. Written with white weights w it is one:
``θ = m + √v · exp(σ_s u_g) · w`` with w and u standard normal has the model's own prior N(m, v),
times a log-normal scale for each group of weights. So clients own factors ``t_m(w, ε)`` of one
Gaussian, and ledger, schedules, engines and checks are the same as without ε.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Gaussian
from streaming_gp.inputs import as_groups, require_not_negative_finite, require_positive_integer
from streaming_gp.numerics.linalg import LOG_TWO_PI
from streaming_gp.numerics.quadrature import standard_normal, standard_normals
from streaming_gp.pvi.model import Model, SampledModel, require
from streaming_gp.validation import require_posterior


class HierarchicalModel:
    """A linear model or network with unknown prior variances, and unknown noise.

    q is of the family of the model's own prior, over ``φ = (w, u)``: a full covariance knows how
    weights and hyperparameters depend on one another, a mean field does not.

    A Gaussian q cannot follow how the weights of a group and their scale make up for one another:
    the surer data are of the weights, the more is q too sure of the scale, and a little low. With
    few noisy data its sd is two thirds of the posterior's, with many precise ones a quarter.

    With at least twice as many draws as numbers in φ, expectations are over fixed nodes, exact for
    quadratic functions; with fewer they are over draws by the seed of each step.

    :param model: A linear model or a network: with a ``likelihood``, ``outputs`` and
        ``log_likelihood`` of draws, and a prior ``N(θ; m, v)``, independent in all coordinates,
        which is that of scales of one.
    :param groups: The group of each weight [D], from 0: all weights of a group share a scale.
        ``net.layer_of_weights`` gives each layer of a network one, ``range(D)`` makes the scales of
        a linear model relevances. One group for all if None.
    :param scale_sd: The prior standard deviation of the logarithm of each scale.
    :param noise_sd: The prior standard deviation of the logarithm of the noise variance, about the
        model's own; None if the noise is known. For Gaussian likelihoods.
    :param num_samples: The number of draws for each estimate of the expected log-likelihood.
    :raises InvalidDataError: if an argument is out of its range, the noise of a likelihood that is
        not Gaussian is to be learned, or the family has one variance for all coordinates.
    """

    def __init__(
        self,
        model: Any,
        groups: Sequence[int] | None = None,
        scale_sd: float = 1.0,
        noise_sd: float | None = None,
        num_samples: int = 64,
    ) -> None:
        require_not_negative_finite("scale_sd", scale_sd)
        require_positive_integer("num_samples", num_samples)
        for protocol in (Model, SampledModel):
            require(model, protocol, "HierarchicalModel")
        prior = model.prior()
        size = len(prior.precision_mean)
        self.model, self.scale_sd, self.noise_sd = model, scale_sd, noise_sd
        self.num_samples = num_samples
        self.groups = as_groups(groups, size)
        if noise_sd is not None:
            require_not_negative_finite("noise_sd", noise_sd)
            if not isinstance(model.likelihood, gpflow.likelihoods.Gaussian):
                name = type(model.likelihood).__name__
                raise InvalidDataError(f"only Gaussian noise can be learned, got {name}")
        if np.ndim(prior.precision) == 0:
            raise InvalidDataError(f"a {type(prior).__name__} has no widths for hyperparameters")
        self._mean, self._sd = np.asarray(prior.mean), np.sqrt(np.asarray(prior.variance))
        self._family: type[Gaussian] = type(prior)
        self.num_parameters = size + int(self.groups.max()) + 1 + (noise_sd is not None)

    # ---- the model, for update rules ----

    def prior(self) -> Gaussian:
        """``N(φ; 0, I)``."""
        zero = np.zeros(self.num_parameters, self._mean.dtype)
        return self._family.from_mean_variance(zero, np.ones_like(zero)).as_arrays()

    def initial(self, seed: int) -> Gaussian:
        """The model's own start, with hyperparameters at their prior means, as sure as weights."""
        start = self.model.initial(seed)
        mean = (np.asarray(start.mean) - self._mean) / self._sd
        variance = np.asarray(start.variance) / self._sd**2
        left = self.num_parameters - len(mean)
        variance = np.concatenate([variance, np.full(left, variance.mean(), variance.dtype)])
        mean = np.concatenate([mean, np.zeros(left, mean.dtype)])
        return self._family.from_mean_variance(mean, variance).as_arrays()

    def as_data(self, X: Any, Y: Any) -> tuple[np.ndarray, np.ndarray]:
        """As the model's own."""
        return self.model.as_data(X, Y)

    def log_likelihood(self, phi: tf.Tensor, X: Any, Y: Any) -> tf.Tensor:
        """``Σ_n log p(y_n | θ_s, ε_s, x_n)`` for draws ``phi`` [S, D + H]: [S]."""
        theta = self.weights(phi)
        if self.noise_sd is None:
            return self.model.log_likelihood(theta, X, Y)
        F = self.model.outputs(theta, X)
        variance = tf.cast(self.noise_variance(phi), F.dtype)
        square = tf.reduce_sum(tf.square(Y - F), axis=[1, 2])
        number = tf.cast(tf.size(Y), F.dtype)
        return -0.5 * (number * (LOG_TWO_PI + tf.math.log(variance)) + square / variance)

    def expected_log_likelihood(self, q: Gaussian, X: Any, Y: Any, seed: Any) -> tf.Tensor:
        """``Σ_n E_q[log p(y_n | θ, ε, x_n)]`` over the draws: []."""
        phi = q.from_white(self._white(seed, tf.convert_to_tensor(q.precision_mean).dtype))
        return tf.reduce_mean(self.log_likelihood(phi, X, Y))

    # ---- θ and hyperparameters of φ ----

    def weights(self, phi: tf.Tensor) -> tf.Tensor:
        """θ of draws ``phi`` [S, D + H]: [S, D]."""
        size = len(self._mean)
        scale = tf.exp(self.scale_sd * tf.gather(phi[:, size:], self.groups, axis=1))
        return self._mean + self._sd * scale * phi[:, :size]

    def noise_variance(self, phi: tf.Tensor) -> tf.Tensor:
        """The variance of the noise of draws ``phi`` [S, D + H]: [S]."""
        own = tf.cast(self.model.likelihood.variance, phi.dtype)
        return own * tf.exp((self.noise_sd or 0.0) * phi[:, -1])

    def sample(self, q: Gaussian, num_samples: int = 100, seed: int = 0) -> tf.Tensor:
        """Draws of θ [S, D], for instance for ``net.predict_by``.

        :raises InvalidDataError: if q is no posterior of the model.
        """
        require_posterior(q, self.prior())
        return self.weights(q.sample(num_samples, seed))

    def hyperparameters(self, q: Gaussian) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Mean and standard deviation under q of ``log_scale`` [G], by which the prior standard
        deviation of each group is larger than the model's own, and of ``log_noise_variance`` [1].

        :raises InvalidDataError: if q is no posterior of the model.
        """
        require_posterior(q, self.prior())
        size, number = len(self._mean), int(self.groups.max()) + 1
        mean, sd = np.asarray(q.mean)[size:], np.sqrt(np.asarray(q.variance))[size:]
        moments = {"log_scale": (self.scale_sd * mean[:number], self.scale_sd * sd[:number])}
        if self.noise_sd is not None:
            own = np.log(np.asarray(self.model.likelihood.variance))
            noise = own + self.noise_sd * mean[number:], self.noise_sd * sd[number:]
            moments["log_noise_variance"] = noise
        return moments

    def _white(self, seed: Any, dtype: Any) -> tf.Tensor:
        """Draws from N(0, I): [S, D + H]."""
        if self.num_samples >= 2 * self.num_parameters:
            nodes = standard_normals(self.num_samples, self.num_parameters, seed=0, whiten=True)
            return tf.constant(nodes, dtype)
        return standard_normal([self.num_samples, self.num_parameters], seed, dtype)
