"""Linear models with Gaussian weights: ``f(x) = θᵀx``, full or mean-field.

Conjugate regression, any likelihood on a linear predictor, and sparse Gaussian processes on fixed
pseudo-inputs, which are linear in white weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import scipy.special
import tensorflow as tf
import tensorflow_probability as tfp

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, Gaussian, Normal
from streaming_gp.expfam.normal import require_gaussian_family
from streaming_gp.inputs import make_read_only, require_positive_finite, require_positive_integer
from streaming_gp.losses import Loss, log_gaussian_power
from streaming_gp.numerics.linalg import LOG_TWO_PI
from streaming_gp.numerics.quadrature import gauss_hermite
from streaming_gp.pvi import AnalyticUpdate, FixedPointUpdate, UpdateRule
from streaming_gp.validation import Data, as_data, as_matrix, require_posterior

__all__ = [
    "BayesianLinearRegression",
    "GPOnInputs",
    "GeneralisedLinearModel",
    "logistic_regression",
    "probit_regression",
]

NUM_NODES = 40
NUGGET = 1e-6
LEAST_VARIANCE = 1e-20
"""Of f where all inputs are zero, and f is known to be: quadrature asks for its root."""


class GeneralisedLinearModel:
    """Any GPflow likelihood of one latent function on the linear predictor.

    :param num_inputs: The number of inputs D; add a column of ones to X for an intercept.
    :param likelihood: A GPflow likelihood of one latent function, whose expectations are GPflow's
        own, closed or by quadrature.
    :param prior_variance: The prior variance of each weight.
    :param family: The family of the posterior, ``Normal`` (full covariance), ``MeanFieldNormal`` or
        ``IsotropicNormal``.
    :raises InvalidDataError: if a number is not positive, the likelihood is none of one latent
        function, or the family none of Gaussians.
    """

    def __init__(
        self,
        num_inputs: int,
        likelihood: gpflow.likelihoods.Likelihood,
        prior_variance: float = 1.0,
        family: type[Gaussian] = Normal,
    ) -> None:
        require_positive_integer("num_inputs", num_inputs)
        require_positive_finite("prior_variance", prior_variance)
        _require_one_function(likelihood)
        require_gaussian_family(family)
        self.num_inputs = num_inputs
        self.likelihood = likelihood
        self.prior_variance = prior_variance
        self.family = family
        self._prior: tuple[float, Gaussian] | None = None  # as it was asked for last

    def prior(self) -> Gaussian:
        """``N(θ; 0, prior_variance I)``."""
        if self._prior is None or self._prior[0] != self.prior_variance:
            scale = np.sqrt(self.prior_variance) * np.eye(self.num_inputs)
            prior = self.family.from_mean_scale(np.zeros(self.num_inputs), scale).as_arrays()
            make_read_only(prior)
            self._prior = self.prior_variance, prior
        return self._prior[1]

    def initial(self, seed: int) -> Gaussian:
        """The prior."""
        return self.prior()

    def default_update(self) -> UpdateRule:
        """For ``pvi.run``: natural gradients."""
        return FixedPointUpdate()

    def as_data(self, X: Any, Y: Any) -> Data:
        """Arrays X [N, D] and Y [N, 1], float64.

        :raises InvalidDataError: if shapes or entries are not what the model can take.
        """
        return as_data((X, Y), self.likelihood, self.num_inputs, 1)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """The likelihood's, unconstrained, which only ``pvi.LikelihoodParameters`` learns."""
        return self.likelihood.trainable_variables

    def predictor(self, q: Gaussian, X: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of f(X), [N, 1] each; the root of the variance has a slope."""
        variance = tf.maximum(q.variance_along(X), LEAST_VARIANCE)
        return tf.linalg.matvec(X, q.mean)[:, None], variance[:, None]

    def expected_log_likelihood(
        self, q: Gaussian, X: tf.Tensor, Y: tf.Tensor, seed: Any
    ) -> tf.Tensor:
        """``Σ_n E_q[log p(y_n | θᵀx_n)]``."""
        mean, variance = self.predictor(q, X)
        return tf.reduce_sum(self.likelihood.variational_expectations(X, mean, variance, Y))

    def outputs(self, theta: tf.Tensor, X: Any) -> tf.Tensor:
        """``θ_sᵀx_n`` for weights ``theta`` [S, D]: [S, N, 1]."""
        return tf.matmul(theta, X, transpose_b=True)[..., None]

    def log_likelihood(self, theta: tf.Tensor, X: Any, Y: Any) -> tf.Tensor:
        """``Σ_n log p(y_n | θ_sᵀx_n)`` for weights ``theta`` [S, D]: [S]."""
        return tf.reduce_sum(self.likelihood.log_prob(X, self.outputs(theta, X), Y), axis=1)

    def log_tilted(self, cavity: Gaussian, x: tf.Tensor, y: tf.Tensor, alpha: float) -> tf.Tensor:
        """``log ∫ cavity(θ) p(y | θᵀx)^α dθ`` of one datum, an integral over the predictor: [].

        :param x: The input of the datum [D].
        :param y: The observation of the datum [1].
        :param alpha: The power α > 0 of the likelihood; for 1 the integral is the likelihood's
            predictive density, where it has that in closed form.
        """
        X, Y = x[None], y[None]
        mean, variance = self.predictor(cavity, X)
        quadrature = gpflow.likelihoods.QuadratureLikelihood._predict_log_density
        if alpha == 1.0 and type(self.likelihood)._predict_log_density is not quadrature:
            return self.likelihood.predict_log_density(X, mean, variance, Y)[0]
        return log_expected_power(self.likelihood, X, mean, variance, Y, alpha)[0]

    def expected_loss(
        self, q: Gaussian, X: tf.Tensor, Y: tf.Tensor, seed: Any, loss: Loss
    ) -> tf.Tensor:
        """``Σ_n E_q[loss(θᵀx_n, y_n)]`` by Gauss-Hermite quadrature: []."""
        mean, variance = self.predictor(q, X)
        nodes, weights = gauss_hermite(NUM_NODES)
        F = mean + tf.sqrt(variance) * nodes[:, 0]
        many = tf.reshape(tf.tile(Y, [1, NUM_NODES]), [-1, 1])
        losses = tf.reshape(loss(self.likelihood, tf.reshape(F, [-1, 1]), many), tf.shape(F))
        return tf.reduce_sum(losses * weights)

    def predict(self, q: Gaussian, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of y at X [N, D], [N, 1] each; of a label the mean is P(y = 1).

        :raises InvalidDataError: if q or X is not what the model takes.
        """
        require_posterior(q, self.prior())
        X = as_matrix("X", X, self.num_inputs)
        mean, variance = self.likelihood.predict_mean_and_var(X, *self.predictor(q, X))
        if isinstance(self.likelihood, gpflow.likelihoods.Bernoulli):  # quadrature rounds beyond 1
            mean = tf.clip_by_value(mean, 0.0, 1.0)
            variance = mean * (1.0 - mean)
        return mean.numpy(), variance.numpy()


def _require_one_function(likelihood: Any) -> None:
    if not isinstance(likelihood, gpflow.likelihoods.Likelihood):
        raise InvalidDataError(f"likelihood must be a GPflow likelihood, got {likelihood!r:.100}")
    if likelihood.latent_dim not in (None, 1):
        raise InvalidDataError(
            f"wanted a likelihood of one latent function, got {type(likelihood).__name__}, which "
            f"has {likelihood.latent_dim}"
        )


class BayesianLinearRegression(GeneralisedLinearModel):
    """Gaussian noise: conjugate, so that every rule has an exact answer to be held to.

    :param noise_variance: The variance σ² of the noise.
    """

    def __init__(
        self,
        num_inputs: int,
        noise_variance: float = 1.0,
        prior_variance: float = 1.0,
        family: type[Gaussian] = Normal,
    ) -> None:
        require_positive_finite("noise_variance", noise_variance)
        likelihood = gpflow.likelihoods.Gaussian(noise_variance)
        super().__init__(num_inputs, likelihood, prior_variance, family)
        self._noise: tuple[float, float] | None = None  # unconstrained, and as it is

    @property
    def noise_variance(self) -> float:
        """σ² now. TensorFlow is slow to say it, and is asked again only where it has changed."""
        now = float(self.likelihood.variance.unconstrained_variable.numpy())
        if self._noise is None or self._noise[0] != now:
            self._noise = now, float(self.likelihood.variance.numpy())
        return self._noise[1]

    def natural_gradient_in_numpy(self, q: Gaussian, X: np.ndarray, Y: np.ndarray) -> Factor:
        """``∂/∂μ Σ_n E_q[log p(y_n | θᵀx_n)]`` by the mean parameters μ of q, as a factor."""
        XX, noise = X.T @ X, self.noise_variance
        precision = {0: np.trace(XX) / len(XX), 1: np.diagonal(XX), 2: XX}[np.ndim(q.precision)]
        mean = np.asarray(q.mean)
        pull = X.T @ Y[:, 0] - XX @ mean
        pull = pull + (precision @ mean if np.ndim(precision) == 2 else precision * mean)
        return Factor(self.family, (pull / noise, np.asarray(precision / noise)))

    def default_update(self) -> UpdateRule:
        """For ``pvi.run``: exact where the posterior has a full covariance."""
        return AnalyticUpdate() if self.family is Normal else FixedPointUpdate()

    def likelihood_factor(self, X: np.ndarray, Y: np.ndarray) -> Factor:
        """``Π_n N(y_n; θᵀx_n, σ²)`` as a factor of θ with full covariance.

        :raises InvalidDataError: for a mean-field posterior, in which it is not conjugate.
        """
        if self.family is not Normal:
            raise InvalidDataError("only a full-covariance posterior is conjugate")
        noise = self.noise_variance
        natural = (X.T @ Y[:, 0] / noise, X.T @ X / noise)
        scale = -0.5 * (np.sum(Y**2) / noise + len(Y) * (LOG_TWO_PI + np.log(noise)))
        return Factor(Normal, natural, float(scale))

    def log_tilted(self, cavity: Gaussian, x: tf.Tensor, y: tf.Tensor, alpha: float) -> tf.Tensor:
        """``log E[N(y; θᵀx, σ²)^α]`` under the cavity: []."""
        mean, variance = self.predictor(cavity, x[None])
        noise = tf.convert_to_tensor(self.likelihood.variance)
        return log_gaussian_power(y, mean, variance, noise, alpha)[0, 0]


class GPOnInputs(GeneralisedLinearModel):
    """A sparse Gaussian process: ``f(x) = k(x, Z) L⁻ᵀ θ + ε(x)``, ``L Lᵀ = k(Z, Z)``, θ ~ N(0, I).

    Its pseudo-inputs Z stay where they are. Take them from a grid, from where inputs may lie at
    all, or from a set that is public: so that factors, which are of θ, tell nothing of inputs by
    where they are. ``ε(x)``, what f(Z) leaves open, is independent of θ with variance
    ``k(x, x) − k(x, Z) k(Z, Z)⁻¹ k(Z, x)``, which the expected log-likelihood has (Titsias 2009;
    Hensman et al. 2015). Draws of functions are of the first term alone. Kernel and likelihood keep
    their parameters.

    :param kernel: A GPflow kernel.
    :param likelihood: A GPflow likelihood of one latent function.
    :param Z: The pseudo-inputs [M, D].
    :param family: The family of the posterior over θ.
    :raises InvalidDataError: if the kernel or the likelihood is none, or Z no such matrix.
    """

    def __init__(
        self,
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        Z: Any,
        family: type[Gaussian] = Normal,
    ) -> None:
        if not isinstance(kernel, gpflow.kernels.Kernel):
            raise InvalidDataError(f"kernel must be a GPflow kernel, got {kernel!r:.100}")
        self.Z = as_matrix("Z", Z, None)
        super().__init__(self.Z.shape[1], likelihood, 1.0, family)
        self.kernel = kernel
        covariance = kernel(self.Z).numpy()
        size = float(np.mean(np.diag(covariance)))
        self._chol = np.linalg.cholesky(covariance + NUGGET * size * np.eye(len(self.Z)))

    def prior(self) -> Gaussian:
        """``N(θ; 0, I)`` of M coordinates."""
        size = len(self.Z)
        return self.family.from_mean_scale(np.zeros(size), np.eye(size)).as_arrays()

    def features(self, X: Any) -> tf.Tensor:
        """``k(X, Z) L⁻ᵀ`` [N, M]."""
        half = tf.linalg.triangular_solve(self._chol, self.kernel(self.Z, X))
        return tf.linalg.matrix_transpose(half)

    def predictor(self, q: Gaussian, X: Any) -> tuple[tf.Tensor, tf.Tensor]:
        A = self.features(X)
        left = self.kernel(X, full_cov=False) - tf.reduce_sum(tf.square(A), axis=1)
        variance = q.variance_along(A) + tf.maximum(left, LEAST_VARIANCE)
        return tf.linalg.matvec(A, q.mean)[:, None], variance[:, None]

    def outputs(self, theta: tf.Tensor, X: Any) -> tf.Tensor:
        """``k(x_n, Z) L⁻ᵀ θ_s`` for ``theta`` [S, M]: [S, N, 1]."""
        return super().outputs(theta, self.features(X))


class Logistic(gpflow.likelihoods.Bernoulli):
    """P(y = 1) = 1/(1 + exp(−f)); its logarithm is finite whatever f."""

    def __init__(self) -> None:
        super().__init__(invlink=tf.sigmoid)

    def _scalar_log_prob(self, X: Any, F: Any, Y: Any) -> tf.Tensor:
        return tf.math.log_sigmoid((2.0 * Y - 1.0) * F)

    def _predict_log_density(self, X: Any, Fmu: Any, Fvar: Any, Y: Any) -> tf.Tensor:
        return log_expected_power(self, X, Fmu, Fvar, Y, 1.0)


class Probit(gpflow.likelihoods.Bernoulli):
    """P(y = 1) = Φ(f), without the slack that GPflow's own has; its logarithm is always finite."""

    def __init__(self) -> None:
        super().__init__(invlink=_cumulative)

    def _scalar_log_prob(self, X: Any, F: Any, Y: Any) -> tf.Tensor:
        return _standard_normal().log_cdf((2.0 * Y - 1.0) * F)

    def _predict_mean_and_var(self, X: Any, Fmu: Any, Fvar: Any) -> tuple[tf.Tensor, tf.Tensor]:
        mean = self.invlink(Fmu / tf.sqrt(1.0 + Fvar))
        return mean, mean - tf.square(mean)

    def _predict_log_density(self, X: Any, Fmu: Any, Fvar: Any, Y: Any) -> tf.Tensor:
        return self._scalar_log_prob(X, Fmu / tf.sqrt(1.0 + Fvar), Y)[:, 0]


def _cumulative(F: tf.Tensor) -> tf.Tensor:
    """Φ, with a name, so that it can be pickled."""
    return tf.exp(_standard_normal().log_cdf(F))


def _standard_normal() -> tfp.distributions.Normal:
    return tfp.distributions.Normal(tf.zeros([], tf.float64), 1.0)


def logistic_regression(
    num_inputs: int, prior_variance: float = 1.0, family: type[Gaussian] = Normal
) -> GeneralisedLinearModel:
    """Labels 0 and 1 with P(y = 1) = 1/(1 + exp(−θᵀx))."""
    return GeneralisedLinearModel(num_inputs, Logistic(), prior_variance, family)


def probit_regression(
    num_inputs: int, prior_variance: float = 1.0, family: type[Gaussian] = Normal
) -> GeneralisedLinearModel:
    """Labels 0 and 1 with P(y = 1) = Φ(θᵀx)."""
    return GeneralisedLinearModel(num_inputs, Probit(), prior_variance, family)


# ---- expectations under Gaussians far wider or narrower than the likelihood ----

NODES, WEIGHTS = scipy.special.roots_legendre(8)
FROM_MEAN = np.arange(-8.0, 9.0)
"""Cuts, in standard deviations from the mean."""
_DYADIC = 2.0 ** np.arange(-1.0, 20.0)
FROM_CENTRE = np.concatenate([-_DYADIC[::-1], [0.0], _DYADIC])
"""Cuts, in scales of the likelihood from its centre."""
REACH = 8.0
"""So many scales about its centre are looked at, wherever the Gaussian is."""
NEAR_MODE = np.concatenate(
    [-(2.0 ** np.arange(3.0, -5.0, -1.0)), [0.0], 2.0 ** np.arange(-4.0, 4.0)]
)
"""Cuts, in standard deviations of the Gaussian from where its product with the likelihood is
largest."""
ZOOMS, PLACES = 6, np.linspace(0.0, 1.0, 9)
"""So often the largest product is looked for at so many places between two others."""

LARGEST_EXPONENT = 700.0
"""Its exponential, and that of its negative, are float64 numbers."""


def log_expected_power(
    likelihood: Any, X: Any, mean: tf.Tensor, variance: tf.Tensor, Y: Any, alpha: float
) -> tf.Tensor:
    """``log E[p(y_n | f_n)^α]`` for ``f_n`` of these means and variances [N, 1]: [N].

    Nodes that are spread as the Gaussian is, as those of Gauss and Hermite, miss a likelihood that
    changes between two of them: an integral under a wide prior is then flat in its mean, and
    expectation propagation learns nothing. So the line is cut where either of the two changes, and
    where their product is largest, which is far from both for a datum that nobody expected. Every
    panel has a Gauss–Legendre rule of its own. The nodes do not move with mean and variance, so
    that gradients by these are the moments of the tilted distribution.
    """
    deviation = tf.sqrt(variance)

    def log_product(F: tf.Tensor) -> tf.Tensor:
        log_normal = -0.5 * (LOG_TWO_PI + tf.math.log(variance) + tf.square((F - mean) / deviation))
        return log_normal + alpha * _log_prob(likelihood, X, F, Y)[..., None]

    fixed = tf.stop_gradient(mean), tf.stop_gradient(deviation)
    centre = centre_and_scale(likelihood, Y)
    mode = _mode(log_product, *fixed, *centre)
    F, log_weights = map(tf.stop_gradient, _rule(mode, *fixed, *centre))
    return tf.reduce_logsumexp(log_weights + log_product(F), axis=0)[..., 0]


def _log_prob(likelihood: Any, X: Any, F: tf.Tensor, Y: Any) -> tf.Tensor:
    """``log p(y_n | f)`` at nodes [J, N, 1]: [J, N].

    An exponential link is zero or infinite far out, and a count's density is no number there: it
    counts as what it is where the link is neither.
    """
    exact = likelihood.log_prob(X, F, Y)
    inside = likelihood.log_prob(X, tf.clip_by_value(F, -LARGEST_EXPONENT, LARGEST_EXPONENT), Y)
    return tf.where(tf.math.is_nan(exact), inside, exact)


def _mode(
    log_product: Callable[[tf.Tensor], tf.Tensor],
    mean: tf.Tensor,
    deviation: tf.Tensor,
    centre: Any,
    scale: Any,
) -> tf.Tensor:
    """Where a function is largest, to a small part of the deviation: [N, 1].

    First among places that are the closer to mean and centre the closer they are to one another,
    and then between the neighbours of the best of them.
    """
    steps = FROM_CENTRE[:, None, None]
    places = tf.concat([mean + steps * deviation, centre + steps * scale], axis=0)
    for _ in range(ZOOMS):
        values = tf.stop_gradient(log_product(places))
        values = tf.where(tf.math.is_nan(values), tf.cast(-np.inf, values.dtype), values)
        is_best = values >= tf.reduce_max(values, axis=0)
        best = tf.reduce_min(tf.where(is_best, places, np.inf), axis=0)
        low = tf.reduce_max(tf.where(places < best, places, -np.inf), axis=0)
        high = tf.reduce_min(tf.where(places > best, places, np.inf), axis=0)
        low, high = (tf.where(tf.math.is_finite(end), end, best) for end in (low, high))
        places = low + PLACES[:, None, None] * (high - low)
    return best


def _rule(
    mode: tf.Tensor, mean: tf.Tensor, deviation: tf.Tensor, centre: Any, scale: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Nodes and logarithms of weights [J, N, 1]; panels of no width have no weight."""
    lowest = tf.minimum(mean + FROM_MEAN[0] * deviation, centre - REACH * scale)
    highest = tf.maximum(mean + FROM_MEAN[-1] * deviation, centre + REACH * scale)
    cuts = tf.concat([
        mean + FROM_MEAN[:, None, None] * deviation,
        mode + NEAR_MODE[:, None, None] * deviation,
        tf.clip_by_value(centre + FROM_CENTRE[:, None, None] * scale, lowest, highest),
        [lowest, highest],
    ], axis=0)  # fmt: skip
    cuts = tf.sort(cuts, axis=0)
    middle, half = 0.5 * (cuts[1:] + cuts[:-1]), 0.5 * (cuts[1:] - cuts[:-1])
    nodes = middle + NODES[:, None, None, None] * half
    log_weights = tf.math.log(WEIGHTS[:, None, None, None] * half)
    shape = [-1, *mean.shape]
    return tf.reshape(nodes, shape), tf.reshape(log_weights, shape)


def centre_and_scale(likelihood: Any, Y: tf.Tensor) -> tuple[Any, Any]:
    """The f near which ``log p(y | f)`` changes fastest, and within how much: [N, 1] or [] each.

    Cuts are the closer the closer to it they are. One that is not known is taken for 0 and 1.
    """
    if isinstance(likelihood, gpflow.likelihoods.StudentT):
        return Y, tf.convert_to_tensor(likelihood.scale)
    if isinstance(likelihood, gpflow.likelihoods.Gaussian) and likelihood.variance is not None:
        return Y, tf.sqrt(tf.convert_to_tensor(likelihood.variance))
    if isinstance(likelihood, gpflow.likelihoods.Poisson):
        rate = Y + 0.5
        return tf.math.log(rate / likelihood.binsize), 1.0 / tf.sqrt(rate)
    if isinstance(likelihood, gpflow.likelihoods.Gamma):
        shape = tf.convert_to_tensor(likelihood.shape)
        return tf.math.log(Y / shape), 1.0 / tf.sqrt(shape)
    if isinstance(likelihood, gpflow.likelihoods.Exponential):
        return tf.math.log(Y), 1.0
    return tf.zeros_like(Y), 1.0
