"""What a streaming model can say: predictions of prior × factors, in GPflow's shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models.training_mixins import InternalDataTrainingLossMixin

from streaming_gp import expfam, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import predictor as pr
from streaming_gp.gp.conditional import ConditionalFunctions, FrozenGaussianProcess
from streaming_gp.gp.covariances import latent_kernels
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.local_functions import LocalFunctions
from streaming_gp.gp.local_update import LocalUpdate
from streaming_gp.gp.noise import standard_noise
from streaming_gp.gp.optimiser import LocalOptimiser
from streaming_gp.gp.parameters import ParameterVector
from streaming_gp.gp.process import GaussianProcess, Process
from streaming_gp.gp.pseudo_points import PseudoPointStrategy
from streaming_gp.gp.sites import is_conjugate
from streaming_gp.validation import as_data, as_matrix


@dataclass(frozen=True, eq=False)
class Machinery:
    """Compiled functions for one shape of problem."""

    gp: GaussianProcess
    epsilon: ParameterVector
    predictor: pr.Predictor
    update: LocalUpdate
    dims: tuple[int, int]


class PredictingGP(gpflow.models.GPModel, InternalDataTrainingLossMixin):
    """A ledger of GP factors that can be asked; :class:`StreamingGP` lets it learn."""

    pseudo_points: PseudoPointStrategy
    hyperparameters: HyperparameterStrategy
    optimiser: LocalOptimiser
    num_prediction_samples: int
    seed: int
    alpha: float
    _wanted_latent_gps: int | None
    _dims: tuple[int | None, int | None]
    _machinery: Machinery | None
    _ledger: pvi.Ledger[Process]

    @property
    def ledger(self) -> pvi.Ledger[Process]:
        """Prior and factors."""
        return self._ledger

    @property
    def posterior_process(self) -> Process:
        """Prior times factors."""
        return self._ledger.posterior

    @property
    def hyperparameter_posterior(self) -> expfam.Gaussian | None:
        """q(ε) on the unconstrained vector, or None where ε is a point."""
        return self._ledger.posterior.hyperparameters

    # ---- compiled functions ----

    def _parameters(self) -> ParameterVector:
        return ParameterVector(_Modules(self.kernel, self.mean_function, self.likelihood))

    def _prepare(self, input_dim: int, output_dim: int) -> Machinery:
        """Compiled functions for these dimensions: the present ones if they fit."""
        epsilon, present = self._parameters(), self._machinery
        if (
            present is not None
            and present.dims == (input_dim, output_dim)
            and present.epsilon.views_the_same_as(epsilon)
        ):
            return present
        q = self._ledger.posterior.hyperparameters
        if q is not None and np.asarray(q.natural[0]).size != epsilon.size:
            raise InvalidDataError(
                f"q(ε) covers {np.asarray(q.natural[0]).size} parameter values but {epsilon.size} "
                "are trainable now; set what is trainable before the model is made"
            )
        return self._compile(epsilon, input_dim, output_dim)

    def _prepared(self) -> Machinery:
        """The compiled functions of a model that has seen data."""
        input_dim, output_dim = self._dims
        assert input_dim is not None
        assert output_dim is not None
        return self._prepare(input_dim, output_dim)

    def _compile(self, epsilon: ParameterVector, input_dim: int, output_dim: int) -> Machinery:
        num_latent = self._num_latent(output_dim)
        shared = is_conjugate(self.likelihood) and len(latent_kernels(self.kernel)) == 1
        frozen = self.pseudo_points.freezes
        process_type = FrozenGaussianProcess if frozen else GaussianProcess
        gp = process_type(self.kernel, self.mean_function, num_latent, 1 if shared else num_latent)
        dims = (input_dim, output_dim)
        samples = 1 if self.hyperparameter_posterior is None else self.num_prediction_samples
        predictor = pr.Predictor(gp, self.likelihood, epsilon, samples, dims)
        functions = (ConditionalFunctions if frozen else LocalFunctions)(
            gp,
            self.likelihood,
            epsilon,
            self.pseudo_points,
            self.hyperparameters,
            self.alpha,
            dims,
        )
        update = LocalUpdate(functions, self.optimiser)
        return Machinery(gp, epsilon, predictor, update, dims)

    def _num_latent(self, output_dim: int) -> int:
        if self._wanted_latent_gps is not None:
            return self._wanted_latent_gps
        if self.likelihood.latent_dim is not None:
            return int(self.likelihood.latent_dim)
        return int(self.calc_num_latent_gps(self.kernel, self.likelihood, output_dim))

    # ---- predictions ----

    def _draws(self, epsilon: ParameterVector) -> np.ndarray:
        """Values of ε [S, E] over which predictions are averaged."""
        q = self.hyperparameter_posterior
        if q is None:
            return epsilon.value()[None]
        noise = standard_noise(self.num_prediction_samples, epsilon.size, self.seed, whiten=True)
        return np.asarray(q.mean + noise @ np.transpose(q.scale))

    def _conditioned_predictor(
        self, X: Any, output_dim: int | None = None
    ) -> tuple[pr.Predictor, tf.Tensor]:
        """A predictor for the posterior, and X as a tensor; P is guessed before any data."""
        if tf.is_tensor(X) and not hasattr(X, "numpy"):  # symbolic, inside a tf.function
            inputs = tf.cast(X, tf.float64)
        else:
            as_matrix("Xnew", X, self._dims[0])
            inputs = tf.cast(tf.convert_to_tensor(X), tf.float64)
        with tf.init_scope():  # conditioning happens now, even while a caller is being traced
            outputs = self._dims[1] or output_dim or self._guessed_output_dim()
            return self._conditioned(inputs.shape[1], outputs), inputs

    def _guessed_output_dim(self) -> int:
        switched = isinstance(self.likelihood, gpflow.likelihoods.SwitchedLikelihood)
        return self.num_latent_gps + int(switched)  # its last column says which likelihood

    def _conditioned(self, input_dim: int, output_dim: int) -> pr.Predictor:
        self._machinery = machinery = self._prepare(input_dim, output_dim)
        draws = self._draws(machinery.epsilon)
        machinery.predictor.condition(self._ledger.posterior, draws, self._untrained_bytes())
        return machinery.predictor

    def _untrained_bytes(self) -> bytes:
        return b"".join(p.numpy().tobytes() for p in self.parameters if not p.trainable)

    def predict_f(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and (co)variance of f, integrated over q(ε); shapes as in GPflow.

        :param Xnew: inputs [N, D].
        :returns: mean [N, P] and variance [N, P]; with ``full_cov`` [P, N, N], with
            ``full_output_cov`` [N, P, P], with both [N, P, N, P].
        :raises InvalidDataError: if Xnew is not a finite matrix of D columns.
        """
        predictor, X = self._conditioned_predictor(Xnew)
        means, variances = predictor.f(X, full_cov)
        if full_cov or full_output_cov:
            return pr.mixture_covariance(means, variances, full_cov, full_output_cov)
        return pr.mixture_moments(means, variances)

    def predict_y(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [N, P] of new observations, integrated over q(ε).

        :param Xnew: inputs [N, D].
        :raises NotImplementedError: with ``full_cov`` or ``full_output_cov``, as in GPflow.
        """
        gpflow.utilities.assert_params_false(
            self.predict_y, full_cov=full_cov, full_output_cov=full_output_cov
        )
        predictor, X = self._conditioned_predictor(Xnew)
        return pr.mixture_moments(*predictor.y(X))

    def predict_log_density(
        self, data: tuple[Any, Any], full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """``log p(y_n | x_n)`` [N] of held-out data, in nats, integrated over q(ε).

        :param data: X [N, D] and Y [N, P].
        :raises InvalidDataError: as :meth:`update`.
        """
        gpflow.utilities.assert_params_false(
            self.predict_log_density, full_cov=full_cov, full_output_cov=full_output_cov
        )
        X, Y = as_data(data, self.likelihood, *self._dims)
        predictor, inputs = self._conditioned_predictor(X, Y.shape[1])
        return predictor.log_density(inputs, tf.constant(Y))

    def predict_f_samples(
        self,
        Xnew: Any,
        num_samples: int | None = None,
        full_cov: bool = True,
        full_output_cov: bool = False,
        seed: int | None = None,
    ) -> tf.Tensor:
        """Draws of f, each with its own ε from q(ε): [N, P], or [S, N, P] for S samples.

        :param Xnew: inputs [N, D].
        :param full_cov: draws correlated over the inputs.
        :param full_output_cov: not supported with ``full_cov``; outputs are independent given ε.
        :param seed: the model's own seed by default, so that a second call gives the same draws.
        """
        if full_cov and full_output_cov:
            raise NotImplementedError("full_cov together with full_output_cov is not supported")
        predictor, X = self._conditioned_predictor(Xnew)
        means, variances = predictor.f(X, full_cov)
        rng = np.random.default_rng(self.seed if seed is None else seed)
        chosen = np.resize(rng.permutation(means.shape[0]), num_samples or 1)
        noise = tf.constant(rng.standard_normal((len(chosen), *means.shape[1:])))
        means, variances = tf.gather(means, chosen), tf.gather(variances, chosen)
        samples = means + _scaled_noise(variances, noise, full_cov)
        return samples[0] if num_samples is None else samples

    def hyperparameter_samples(
        self, num_samples: int, seed: int | None = None
    ) -> dict[str, np.ndarray]:
        """Draws from q(ε) in constrained space: ``{parameter path: [S, ...]}``.

        Point and fixed hyperparameters repeat their value.
        """
        epsilon, q = self._parameters(), self.hyperparameter_posterior
        if q is None:
            draws = np.repeat(epsilon.value()[None], num_samples, axis=0)
        else:
            draws = np.asarray(q.sample(num_samples, self.seed if seed is None else seed))
        return epsilon.constrained(draws)

    # ---- GPflow's objective ----

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Log normaliser of prior × factors at the parameters' present values: a scalar, in nats.

        With a pseudo-point at every input and Gaussian noise this is the exact log evidence as a
        function of kernel and mean function; elsewhere the sum of local free energies, carried
        over to other values of ε by the pseudo-observations.
        """
        if None in self._dims:
            return tf.zeros([], tf.float64)
        machinery = self._prepared() if self._machinery is None else self._machinery
        process = self._ledger.posterior.compact
        stack = machinery.gp.stack(process.rows, machinery.dims[0])
        conditioned = machinery.gp.condition(stack)
        return machinery.gp.log_normaliser(conditioned) + process.log_scale


class _Modules(gpflow.Module):
    """The three modules whose parameters are hyperparameters, under GPflow's own path names."""

    def __init__(self, kernel: Any, mean_function: Any, likelihood: Any) -> None:
        super().__init__()
        self.kernel = kernel
        self.mean_function = mean_function
        self.likelihood = likelihood


def _scaled_noise(variances: tf.Tensor, noise: tf.Tensor, full_cov: bool) -> tf.Tensor:
    if not full_cov:
        return tf.sqrt(variances) * noise
    diagonal = tf.linalg.diag_part(variances)
    jitter = 1e-6 * tf.reduce_mean(diagonal, axis=-1, keepdims=True)
    chol = tf.linalg.cholesky(tf.linalg.set_diag(variances, diagonal + jitter))
    return tf.einsum("spnm,smp->snp", chol, noise)
