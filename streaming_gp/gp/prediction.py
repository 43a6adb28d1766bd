"""What a ledger of Gaussian-process factors can say: predictions in GPflow's shapes."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models.training_mixins import InternalDataTrainingLossMixin

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import predictor as pr
from streaming_gp.gp.compilation import CompiledGP
from streaming_gp.gp.export import exported
from streaming_gp.gp.hyperparameters import ParameterVector
from streaming_gp.gp.ledger_gp import LedgerGP
from streaming_gp.gp.modules import refuse_indices
from streaming_gp.gp.outputs import Predictions
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.turns import refuse_in_graphs
from streaming_gp.inputs import require_count, require_flag, require_positive_integer
from streaming_gp.numerics.quadrature import standard_normals
from streaming_gp.runtime import exported as exported_files
from streaming_gp.serialization import PathLike
from streaming_gp.validation import as_data, as_matrix

MOST_FACTORISED = 2**28
"""The number of elements of all factorised processes that predictions hold: two gigabytes, or 16
values of ε at 4,000 points."""


class PredictiveGP(LedgerGP, InternalDataTrainingLossMixin):
    """A ledger of Gaussian-process factors that can be asked."""

    @property
    def prediction_draws(self) -> np.ndarray:
        """The values of ε [S, E], unconstrained, over which predictions are averaged."""
        with self._turns.swapping:
            return self._draws(self.parameter_vector, self.posterior_process)

    def _draws(self, parameters: ParameterVector, process: Process) -> np.ndarray:
        q = process.hyperparameters
        if q is None:
            return parameters.value()[None]
        number = self._num_draws(process.num_pseudo_points)
        if number == 1:
            return np.asarray(q.mean)[None]
        noise = standard_normals(number, parameters.size, self.settings.seed, whiten=True)
        return np.asarray(q.mean + noise @ np.transpose(q.scale))

    def _num_draws(self, points: int) -> int:
        """How many values of ε: fewer where a factorised process for each would not fit."""
        wanted = self.settings.num_prediction_samples
        affordable = MOST_FACTORISED // max(1, points**2)
        return next((n for n in (wanted, 4, 2) if n <= min(wanted, affordable)), 1)

    def predict_f(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and (co)variance of f, integrated over q(ε); shapes as in GPflow.

        :param Xnew: The inputs [N, D].
        :param full_cov: Whether to give covariances over the inputs.
        :param full_output_cov: Whether to give covariances over the outputs.
        :returns: mean [N, P] and variance [N, P]; with ``full_cov`` [P, N, N], with
            ``full_output_cov`` [N, P, P], with both [N, P, N, P].
        :raises InvalidDataError: if Xnew is not a finite matrix of D columns.
        :raises NumericalError: if they are so large that covariances overflow.
        """
        require_flag("full_cov", full_cov)
        require_flag("full_output_cov", full_output_cov)
        X = self._inputs(Xnew)
        found = self._predictor(X.shape[1]).f(X, full_cov, full_output_cov)
        return pr.mixture_moments(*found, full_cov, full_output_cov)

    def predict_y(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [N, P] of new observations, integrated over q(ε).

        :param Xnew: The inputs [N, D].
        :raises NotImplementedError: with ``full_cov`` or ``full_output_cov``, as in GPflow.
        """
        gpflow.utilities.assert_params_false(
            self.predict_y, full_cov=full_cov, full_output_cov=full_output_cov
        )
        X = self._inputs(Xnew)
        return pr.mixture_moments(*self._predictor(X.shape[1]).y(X))

    def predict_log_density(
        self, data: tuple[Any, Any], full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """``log p(y_n | x_n)`` [N] of held-out data, in nats, integrated over q(ε).

        Given ε, outputs count one by one, as in GPflow, even where the kernel mixes functions.

        :param data: The inputs X [N, D] and the observations Y [N, P].
        :raises InvalidDataError: as :meth:`StreamingGP.update`.
        """
        gpflow.utilities.assert_params_false(
            self.predict_log_density, full_cov=full_cov, full_output_cov=full_output_cov
        )
        X, Y = as_data(data, self.likelihood, *self._now.dims)
        return pr.mixture_log_density(self._predictor(X.shape[1], Y.shape[1]).log_densities(X, Y))

    def predict_f_samples(
        self,
        Xnew: Any,
        num_samples: int | None = None,
        full_cov: bool = True,
        full_output_cov: bool = False,
        seed: int | None = None,
    ) -> tf.Tensor:
        """Draws of f, each with its own ε from q(ε): [N, P], or [S, N, P] for S samples.

        :param Xnew: The inputs [N, D].
        :param num_samples: The number S of draws; one without the leading axis if None.
        :param full_cov: Whether draws are correlated over the inputs.
        :param full_output_cov: Whether draws are correlated over the outputs, as they are given ε
            where the kernel mixes latent functions; not supported with ``full_cov``.
        :param seed: The seed of the draws: the model's own by default, so that a second call gives
            the same draws.
        """
        if num_samples is not None:
            require_positive_integer("num_samples", num_samples)
        if seed is not None:
            require_count("seed", seed)
        if full_cov and full_output_cov:
            raise NotImplementedError("full_cov together with full_output_cov is not supported")
        X = self._inputs(Xnew)
        means, variances = self._predictor(X.shape[1]).f(X, full_cov, full_output_cov)
        rng = np.random.default_rng(self.settings.seed if seed is None else seed)
        chosen = np.resize(rng.permutation(means.shape[0]), num_samples or 1)
        noise = tf.constant(rng.standard_normal((len(chosen), *means.shape[1:])))
        means, variances = tf.gather(means, chosen), tf.gather(variances, chosen)
        samples = means + _scaled_noise(variances, noise, full_cov, full_output_cov)
        return samples[0] if num_samples is None else samples

    def hyperparameter_samples(
        self, num_samples: int, seed: int | None = None
    ) -> dict[str, np.ndarray]:
        """Draws from q(ε) in constrained space: ``{parameter path: [S, ...]}``.

        Point and fixed hyperparameters repeat their value.

        :param num_samples: The number S of draws.
        :param seed: The seed of the draws; the model's own by default.
        """
        require_count("num_samples", num_samples)
        if seed is not None:
            require_count("seed", seed)
        parameters, q = self.parameter_vector, self.hyperparameter_posterior
        if q is None:
            draws = np.repeat(parameters.value()[None], num_samples, axis=0)
        else:
            seed = self.settings.seed if seed is None else seed
            draws = np.asarray(q.sample(num_samples, seed))
        return parameters.constrained(draws)

    def export(self, path: PathLike) -> None:
        """Write all that predictions need to a file, for :func:`streaming_gp.runtime.load`.

        That makes the same predictions with NumPy alone, but learns no more.

        :param path: The file; one that was there is replaced.
        :raises InvalidDataError: before any data, for conditional pseudo-points, and for a kernel
            or mean function that has no NumPy form.
        :raises OSError: if the file cannot be written; a file that was there stays as it was.
        """
        if self._now.dims[0] is None:
            raise InvalidDataError("a model can be exported once it has seen data")
        exported_files.write(path, exported(self._predictor(self._now.dims[0])))

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Log normaliser of prior × factors at the parameters' present values: a scalar, in nats.

        With a pseudo-point at every input and Gaussian noise this is the exact log evidence as a
        function of kernel and mean function; elsewhere the sum of local free energies, carried by
        the pseudo-observations to other values of ε.
        """
        if None in self._now.dims:
            return tf.zeros([], tf.float64)
        with tf.init_scope():
            local = self._compile_for_dims().local
            process = self._now.ledger.posterior.compact
            stack = local.gp.stack(process.pseudo_observations, local.input_dim)
            log_scale = np.asarray(process.log_scale)  # a Python number would be kept for ever
        with local.parameters.substituted(local.parameters.tensor()):
            return local.gp.log_normaliser(local.gp.condition(stack)) + log_scale

    def _inputs(self, X: Any) -> pr.Inputs:
        """X [N, D] in float64, checked once unless its values are not known yet."""
        if tf.is_symbolic_tensor(X):  # inside a tf.function
            return tf.cast(X, tf.float64)
        checked = as_matrix("Xnew", X, self._now.dims[0])
        refuse_indices(self.kernel, checked)
        has_gradient = isinstance(X, (tf.Tensor, tf.Variable))
        return tf.cast(X, tf.float64) if has_gradient else checked

    def _predictor(self, input_dim: int, output_dim: int | None = None) -> Predictions:
        """A predictor for the posterior; P is guessed before any data."""
        with tf.init_scope():  # conditioning happens now, even while a caller is being traced
            refuse_in_graphs("a prediction")
            with self._turns.swapping:
                outputs = self._now.dims[1] or output_dim or default_output_dim(self)
                self._compiled = compiled = self._compile(input_dim, outputs)
                process = self._now.ledger.posterior
                draws = self._draws(compiled.parameters, process)
                token = _token(compiled, process)
            return compiled.predictor(process, draws, token)


def _token(compiled: CompiledGP, process: Process) -> bytes:
    """Changes whenever q(ε) does, or a value that is not in ε."""
    q = process.hyperparameters
    of_epsilon = [compiled.parameters.value()] if q is None else q.natural
    values = b"".join(np.asarray(part).tobytes() for part in of_epsilon)
    return values + compiled.local.fixed_values()


def default_output_dim(model: LedgerGP) -> int:
    """P of the data that a model expects before it has seen any."""
    switched = isinstance(model.likelihood, gpflow.likelihoods.SwitchedLikelihood)
    return int(model.num_latent_gps) + int(switched)  # its last column says which likelihood


def _scaled_noise(
    variances: tf.Tensor, noise: tf.Tensor, full_cov: bool, full_output_cov: bool
) -> tf.Tensor:
    if not (full_cov or full_output_cov):
        return tf.sqrt(variances) * noise
    diagonal = tf.linalg.diag_part(variances)
    jitter = 1e-6 * tf.reduce_mean(diagonal, axis=-1, keepdims=True)
    chol = tf.linalg.cholesky(tf.linalg.set_diag(variances, diagonal + jitter))
    return tf.einsum("spnm,smp->snp" if full_cov else "snpq,snq->snp", chol, noise)
