"""Predictions of a process, integrated over q(ε), in GPflow's shapes.

Every prediction is a mixture over S values of ε: a fixed, seeded set of quasi-random draws from
q(ε), or the one point. The same model therefore gives the same answer twice, bit for bit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.errors import NumericalError
from streaming_gp.gp.fit import sites as site_rules
from streaming_gp.gp.fit.data import DataFits
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.hyperparameters import ParameterVector
from streaming_gp.gp.process.dense import CHUNK_ELEMENTS, DenseProcess
from streaming_gp.gp.process.graphs import at_each_sample, spec
from streaming_gp.gp.process.nearest import Conditioning, NearestProcess
from streaming_gp.gp.process.observations import DataObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, observations_of
from streaming_gp.gp.process.tensors import Conditioned, GaussianProcess, padded
from streaming_gp.gp.structure import refuse_indices
from streaming_gp.inputs import require_count, require_flag, require_positive_integer
from streaming_gp.numerics.quadrature import standard_normals
from streaming_gp.numerics.threads import blas_threads_for
from streaming_gp.validation import as_data, as_matrix

MOST_FACTORISED = 2**28
"""The number of elements of all factorised processes that a posterior holds: two gigabytes, or 16
values of ε at 4,000 points."""

WORTH_INTEGRATING = 0.01
"""In nats for each datum: where E values are learned from n data, the density at their mean is
worse than the integral over them by some E/2n."""

Inputs: TypeAlias = np.ndarray | tf.Tensor
"""Inputs [N, D]: an array; or a tensor, for gradients and inside a caller's graph."""
Moments: TypeAlias = tuple[tf.Tensor, tf.Tensor]


def as_inputs(X: Any, kernel: gpflow.kernels.Kernel, input_dim: int | None) -> Inputs:
    """X [N, D] in float64, checked once unless its values are not known yet.

    :param input_dim: D, or None before any data.
    :raises InvalidDataError: if X is not a finite matrix of D columns.
    """
    if tf.is_symbolic_tensor(X):  # inside a tf.function
        return tf.cast(X, tf.float64)
    checked = as_matrix("Xnew", X, input_dim)
    refuse_indices(kernel, checked)
    has_gradient = isinstance(X, (tf.Tensor, tf.Variable))
    return tf.cast(X, tf.float64) if has_gradient else checked


# ---- values of ε ----


def prediction_draws(
    process: Process, parameters: ParameterVector, num_samples: int, seed: int
) -> np.ndarray:
    """The values of ε [S, E], unconstrained, over which predictions are averaged.

    :param num_samples: How many, where a factorised process for each fits into memory.
    """
    q = process.hyperparameters
    if q is None:
        return parameters.value()[None]
    observations = process.pseudo_observations
    if observations and all(isinstance(one, DataObservations) for one in observations):
        num_data = sum(len(one.Z) for one in observations)
        if parameters.size <= 2.0 * WORTH_INTEGRATING * num_data:
            return np.asarray(q.mean)[None]
    affordable = MOST_FACTORISED // max(1, process.num_pseudo_points**2)
    number = next((n for n in (num_samples, 4, 2) if n <= min(num_samples, affordable)), 1)
    if number == 1:
        return np.asarray(q.mean)[None]
    noise = standard_normals(number, parameters.size, seed, whiten=True)
    return np.asarray(q.mean + noise @ np.transpose(q.scale))


def hyperparameter_samples(
    q: expfam.Gaussian | None, parameters: ParameterVector, num_samples: int, seed: int
) -> dict[str, np.ndarray]:
    """Draws from q(ε) in constrained space: ``{parameter path: [S, ...]}``; a point is repeated."""
    if q is None:
        draws = np.repeat(parameters.value()[None], num_samples, axis=0)
    else:
        draws = np.asarray(q.sample(num_samples, seed))
    return parameters.constrained(draws)


def log_evidence(local: LocalModel, process: Process) -> tf.Tensor:
    """``log 𝒵`` of prior × factors at the parameters' present values: a scalar, in nats.

    It has a gradient by the parameters.
    """
    with tf.init_scope():
        compact = process.compact
        stack = local.gp.stack(compact.pseudo_observations, local.input_dim)
        log_scale = np.asarray(compact.log_scale)  # a Python number would be kept for ever
    with local.parameters.substituted(local.parameters.tensor()):
        return local.gp.log_normaliser(stack, local.gp.condition(stack)) + log_scale


# ---- posteriors ----


@dataclass(frozen=True, eq=False)
class Posterior:
    """A process factorised at S values of ε, which can be asked whatever its model learns later.

    :param local: The model.
    :param process: Prior × factors.
    :param draws: The values of ε [S, E].
    :param token: Bytes that change whenever ε changes, or anything else that predictions rest on.
    :param dense: The process factorised at every ε; None where it rests on conditional
        pseudo-points.
    """

    local: LocalModel
    process: Process
    draws: np.ndarray
    token: bytes
    dense: DenseProcess | NearestProcess | None

    # ---- mixtures over ε ----

    def predict_f(
        self, X: Inputs, full_cov: bool = False, full_output_cov: bool = False
    ) -> Moments:
        """Mean [N, P] and (co)variance of f, integrated over q(ε), for inputs [N, D].

        :returns: mean, and variance [N, P]; with ``full_cov`` [P, N, N], with ``full_output_cov``
            [N, P, P], with both [N, P, N, P].
        :raises NumericalError: if inputs are so large that covariances overflow.
        """
        require_flag("full_cov", full_cov)
        require_flag("full_output_cov", full_output_cov)
        return mixture_moments(*self.f(X, full_cov, full_output_cov), full_cov, full_output_cov)

    def predict_y(
        self, X: Inputs, full_cov: bool = False, full_output_cov: bool = False
    ) -> Moments:
        """Mean and variance [N, P] of new observations, integrated over q(ε).

        :raises NotImplementedError: with ``full_cov`` or ``full_output_cov``, as in GPflow.
        """
        gpflow.utilities.assert_params_false(
            self.predict_y, full_cov=full_cov, full_output_cov=full_output_cov
        )
        return mixture_moments(*self.y(X))

    def predict_log_density(self, X: Inputs, Y: np.ndarray) -> tf.Tensor:
        """``log p(y_n | x_n)`` [N] of held-out data, in nats, integrated over q(ε)."""
        log_densities = self.log_densities(X, Y)
        number = tf.cast(tf.shape(log_densities)[0], log_densities.dtype)
        return tf.reduce_logsumexp(log_densities, axis=0) - tf.math.log(number)

    def predict_f_samples(
        self, X: Inputs, num_samples: int | None, full_cov: bool, full_output_cov: bool, seed: int
    ) -> tf.Tensor:
        """Draws of f, each with its own ε from q(ε): [N, P], or [S, N, P] for S samples.

        :raises NotImplementedError: with both ``full_cov`` and ``full_output_cov``.
        """
        if num_samples is not None:
            require_positive_integer("num_samples", num_samples)
        require_count("seed", seed)
        if full_cov and full_output_cov:
            raise NotImplementedError("full_cov together with full_output_cov is not supported")
        means, variances = self.f(X, full_cov, full_output_cov)
        rng = np.random.default_rng(seed)
        chosen = np.resize(rng.permutation(means.shape[0]), num_samples or 1)
        noise = tf.constant(rng.standard_normal((len(chosen), *means.shape[1:])))
        means, variances = tf.gather(means, chosen), tf.gather(variances, chosen)
        samples = means + _scaled_noise(variances, noise, full_cov, full_output_cov)
        return samples[0] if num_samples is None else samples

    # ---- for each ε ----

    def f(self, X: Inputs, full_cov: bool = False, full_output_cov: bool = False) -> Moments:
        """Mean [S, N, P] and (co)variance of f for each ε.

        Functions are independent given ε.

        :returns: mean, and variance [S, N, P]; with ``full_cov`` [S, P, N, N], with
            ``full_output_cov`` [S, N, P, P], with both [S, N, P, N, P].
        """
        mean, variance = self._latent_moments(X, full_cov)
        if not full_output_cov:
            return mean, variance
        if not full_cov:
            return mean, tf.linalg.diag(variance)
        diagonal = tf.linalg.diag(tf.transpose(variance, [0, 2, 3, 1]))
        return mean, tf.transpose(diagonal, [0, 1, 3, 2, 4])

    def y(self, X: Inputs) -> Moments:
        """Mean and variance [S, N, P] of the observations for each ε."""
        likelihood = self.local.likelihood

        def observe(X: tf.Tensor, *moments: tf.Tensor) -> Moments:
            return site_rules.predictive_moments(likelihood, X, *moments)

        return self._of_moments(observe, X)

    def log_densities(self, X: Inputs, Y: np.ndarray) -> tf.Tensor:
        """``log p(y_n | ε)`` [S, N] for each ε."""
        likelihood = self.local.likelihood

        def score(X: tf.Tensor, Y: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
            return site_rules.predictive_log_density(likelihood, X, mean, variance, Y)

        return self._of_moments(score, X, Y)

    def _of_moments(self, function: Callable[..., Any], *data: Inputs) -> Any:
        """A function of data, and of the marginal moments of f at its inputs, for each ε."""
        columns = (self.local.input_dim, self.local.output_dim)[: len(data)]
        moments = spec(self._num_draws, None, self.local.gp.num_latent)
        at_each = self._at_each(function, [spec(None, d) for d in columns], [moments, moments])
        return at_each(self._draws, *data, *self._latent_moments(data[0], full_cov=False))

    def _latent_moments(self, X: Inputs, full_cov: bool) -> Moments:
        if isinstance(self.dense, NearestProcess) and tf.is_tensor(X):
            mean, variance = self.dense.tensors(X, full_cov)
        elif self.dense is None or tf.is_tensor(X):
            mean, variance = self._tensor_moments(X, full_cov)
        else:
            with blas_threads_for(self.process.num_pseudo_points):
                moments = self.dense.predict(X, full_cov)
            mean, variance = map(tf.constant, moments)
        if not tf.is_symbolic_tensor(mean) and not (
            np.isfinite(mean).all() and np.isfinite(variance).all()
        ):
            raise NumericalError(
                "predictions are not finite, as covariances overflow: wanted smaller inputs, got "
                f"some of size {np.abs(X).max():.3g}"
            )
        return mean, variance

    # ---- in TensorFlow: at inputs that are tensors, and for conditional pseudo-points ----

    @cached_property
    def _tensors(self) -> tuple[Any, Conditioned]:
        """The stack of pseudo-observations, and its factorisation at every ε."""
        gp, D = self.local.gp, self.local.input_dim
        with tf.init_scope():  # now, even while a caller is being traced
            stack = gp.stack(self.process.compact.pseudo_observations, D)
            if isinstance(self.dense, DenseProcess):
                return stack, padded(self.dense, gp.num_groups)
            at_each = self._at_each(gp.condition, [gp.stack_spec(D)])
            factorisation: Conditioned = at_each(self._draws, stack)
            if not bool(tf.reduce_all(tf.math.is_finite(factorisation.white))):
                raise NumericalError("the covariance of the pseudo-points is not positive")
            return stack, factorisation

    def _tensor_moments(self, X: Inputs, full_cov: bool) -> Moments:
        gp, D, S = self.local.gp, self.local.input_dim, self._num_draws
        C = gp.num_latent // gp.num_groups
        factors = [spec(S, None, None, None), spec(S, gp.num_groups, None, C)]
        predict = gp.predict_jointly if full_cov else gp.predict
        at_each = self._at_each(predict, [gp.stack_spec(D), spec(None, D)], factors)
        stack, factorisation = self._tensors
        chunk = max(256, CHUNK_ELEMENTS // max(1, int(np.prod(factorisation.white.shape))))
        if full_cov or X.shape[0] is None or X.shape[0] <= chunk:
            return at_each(self._draws, stack, X, *factorisation)
        pieces = [
            at_each(self._draws, stack, X[i : i + chunk], *factorisation)
            for i in range(0, X.shape[0], chunk)
        ]
        mean, variance = (tf.concat(parts, axis=1) for parts in zip(*pieces, strict=True))
        return mean, variance

    # ---- compiled ----

    @cached_property
    def _draws(self) -> tf.Tensor:
        with tf.init_scope():
            return tf.constant(self.draws)

    @property
    def _num_draws(self) -> int | None:
        """S as graphs see it: one ε has a graph of its own, which is smaller."""
        return 1 if len(self.draws) == 1 else None

    def _at_each(
        self, function: Callable[..., Any], shared: list[Any], each: Sequence[tf.TensorSpec] = ()
    ) -> Any:
        """A function at every ε, compiled: its arguments are the draws, and then those here.

        :param shared: The signature of arguments that are the same for all ε.
        :param each: That of arguments with an axis of the S values of ε in front.
        """
        local, number = self.local, len(shared)

        def mapped(draws: tf.Tensor, *arguments: Any) -> Any:
            def at(epsilon: tf.Tensor, *parts: tf.Tensor) -> Any:
                with local.parameters.substituted(epsilon):
                    return function(*arguments[:number], *parts)

            return at_each_sample(at, draws, *arguments[number:])

        signature = spec(self._num_draws, local.parameters.size), *shared, *each
        return local.graphs.compiled(mapped, *signature, of=function.__qualname__)


class PosteriorSnapshot:
    """The posterior of a model at one time, with all that predictions share computed beforehand.

    The methods are those of GPflow's posteriors, and give what the model gave when it was made,
    whatever it learns later; see :meth:`StreamingGP.posterior`.

    :param posterior: The factorised process.
    :param kernel: The kernel, which says what inputs it takes.
    :param likelihood: The likelihood.
    :param dims: D and P of the data.
    :param seed: The seed of draws.
    """

    def __init__(
        self,
        posterior: Posterior,
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        dims: tuple[int, int],
        seed: int,
    ) -> None:
        self._posterior = posterior
        self._kernel, self._likelihood = kernel, likelihood
        self._dims, self._seed = dims, seed

    def predict_f(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """As :meth:`StreamingGP.predict_f`."""
        return self._posterior.predict_f(self._inputs(Xnew), full_cov, full_output_cov)

    def predict_y(self, Xnew: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """As :meth:`StreamingGP.predict_y`."""
        return self._posterior.predict_y(self._inputs(Xnew))

    def predict_log_density(self, data: tuple[Any, Any]) -> tf.Tensor:
        """As :meth:`StreamingGP.predict_log_density`."""
        X, Y = as_data(data, self._likelihood, *self._dims)
        return self._posterior.predict_log_density(X, Y)

    def predict_f_samples(
        self,
        Xnew: Any,
        num_samples: int | None = None,
        full_cov: bool = True,
        full_output_cov: bool = False,
        seed: int | None = None,
    ) -> tf.Tensor:
        """As :meth:`StreamingGP.predict_f_samples`."""
        seed = self._seed if seed is None else seed
        return self._posterior.predict_f_samples(
            self._inputs(Xnew), num_samples, full_cov, full_output_cov, seed
        )

    def _inputs(self, X: Any) -> Any:
        return as_inputs(X, self._kernel, self._dims[0])


class PosteriorCache:
    """The newest posterior of one model, whose factorisation the next one extends.

    :param local: The model.
    :param make: Makes a posterior from its fields.
    :param fits: Fits of the same model, which condition it at one ε.
    """

    def __init__(self, local: LocalModel, make: Callable[..., Posterior], fits: DataFits) -> None:
        self._local = local
        self._fits = fits
        self._make = make
        self._newest: Posterior | None = None
        self._conditioning = threading.Lock()

    def token(self, process: Process) -> bytes:
        """Bytes that change whenever q(ε) does, or a value that is not in ε."""
        q = process.hyperparameters
        values = [self._local.parameters.value()] if q is None else q.natural
        return b"".join(np.asarray(part).tobytes() for part in values) + self._local.fixed_values()

    def at(
        self, process: Process, draws: np.ndarray, token: bytes, conditioning: Conditioning
    ) -> Posterior:
        """The posterior of a process at these values of ε [S, E].

        Threads that want the same one wait for the one that factorises it.

        :param token: The :meth:`token` of when the draws were taken; while it stays the same, so do
            the draws, which rounding might change.
        :param conditioning: How it is conditioned on points that are observed one by one.
        :raises NumericalError: if the covariance of the pseudo-observations is not positive.
        """
        local = self._local
        with self._conditioning:
            newest = self._newest
            if newest is None or newest.token != token or len(newest.draws) != len(draws):
                dense = None
            elif newest.process is process:
                return newest
            else:
                dense, draws = newest.dense, newest.draws
            if type(local.gp) is GaussianProcess:
                dense = self._conditioned(process, draws, dense, conditioning)
            self._newest = self._make(
                local=local, process=process, draws=draws, token=token, dense=dense
            )
            return self._newest

    def _conditioned(
        self,
        process: Process,
        draws: np.ndarray,
        before: DenseProcess | NearestProcess | None,
        conditioning: Conditioning,
    ) -> DenseProcess | NearestProcess:
        if len(draws) == 1:
            return self._fits.at(draws[0], process, conditioning)
        observed, prior = observations_of(process), PriorAt(self._local.prior, draws)
        number = sum(len(one.Z) for one in observed)
        start = conditioning.unconditioned(prior, number)
        if type(before) is type(start):
            start = before
        with blas_threads_for(number):
            return start.conditioned_on(observed)


# ---- mixtures and samples ----

_BETWEEN = {
    (False, False): "snp,snp->np",
    (True, False): "snp,smp->pnm",
    (False, True): "snp,snq->npq",
    (True, True): "snp,smq->npmq",
}


def mixture_moments(
    means: tf.Tensor, variances: tf.Tensor, full_cov: bool = False, full_output_cov: bool = False
) -> Moments:
    """Mean and (co)variance of an equal mixture over the leading axis, in GPflow's shapes.

    ε moves all means together, so that outputs are correlated even where they are independent
    given ε.

    :param means: The mean under each ε, [S, N, P].
    :param variances: The (co)variance under each ε, as :meth:`Posterior.f` gives it.
    :returns: mean [N, P], and variance [N, P] or covariance [P, N, N], [N, P, P] or [N, P, N, P].
    """
    mean = tf.reduce_mean(means, axis=0)
    shift = means - mean
    between = tf.einsum(_BETWEEN[full_cov, full_output_cov], shift, shift)
    weight = 1.0 / tf.cast(tf.shape(means)[0], means.dtype)
    return mean, tf.reduce_mean(variances, axis=0) + weight * between


def _scaled_noise(
    variances: tf.Tensor, noise: tf.Tensor, full_cov: bool, full_output_cov: bool
) -> tf.Tensor:
    if not (full_cov or full_output_cov):
        return tf.sqrt(variances) * noise
    diagonal = tf.linalg.diag_part(variances)
    jitter = 1e-6 * tf.reduce_mean(diagonal, axis=-1, keepdims=True)
    root = _root(tf.linalg.set_diag(variances, diagonal + jitter))
    return tf.einsum("spnm,smp->snp" if full_cov else "snpq,snq->snp", root, noise)


def _root(covariance: tf.Tensor) -> tf.Tensor:
    """R [..., N, N] with ``R Rᵀ`` the covariance; what rounding has left below zero is cut off.

    Of a function that is known well no more than rounding of the prior's covariance may be left.
    """
    chol = tf.linalg.cholesky(covariance)

    def of_eigenvalues() -> tf.Tensor:
        values, vectors = tf.linalg.eigh(covariance)
        return vectors * tf.sqrt(tf.maximum(values, np.finfo(float).tiny))[..., None, :]

    return tf.cond(tf.reduce_all(tf.math.is_finite(chol)), lambda: chol, of_eigenvalues)
