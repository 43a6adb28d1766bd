"""A ledger of Gaussian-process factors that can be asked: one line each to what does the work."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models.training_mixins import InternalDataTrainingLossMixin

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import prediction
from streaming_gp.gp.export import export
from streaming_gp.gp.ledger_gp import LedgerGP
from streaming_gp.gp.prediction import Inputs, Posterior
from streaming_gp.gp.turns import refuse_in_graphs
from streaming_gp.inputs import require_count
from streaming_gp.serialization import PathLike
from streaming_gp.validation import as_data


class PredictiveGP(LedgerGP, InternalDataTrainingLossMixin):
    """A ledger of Gaussian-process factors that can be asked."""

    @property
    def prediction_draws(self) -> np.ndarray:
        """The values of ε [S, E], unconstrained, over which predictions are averaged."""
        with self._turns.swapping:
            return prediction.prediction_draws(
                self.posterior_process,
                self.parameter_vector,
                self.settings.num_prediction_samples,
                self.settings.seed,
            )

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
        X = self._inputs(Xnew)
        return self._posterior(X.shape[1]).predict_f(X, full_cov, full_output_cov)

    def predict_y(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [N, P] of new observations, integrated over q(ε).

        :param Xnew: The inputs [N, D].
        :raises NotImplementedError: with ``full_cov`` or ``full_output_cov``, as in GPflow.
        """
        X = self._inputs(Xnew)
        return self._posterior(X.shape[1]).predict_y(X, full_cov, full_output_cov)

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
        return self._posterior(X.shape[1], Y.shape[1]).predict_log_density(X, Y)

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
        X, seed = self._inputs(Xnew), self.settings.seed if seed is None else seed
        posterior = self._posterior(X.shape[1])
        return posterior.predict_f_samples(X, num_samples, full_cov, full_output_cov, seed)

    def hyperparameter_samples(
        self, num_samples: int, seed: int | None = None
    ) -> dict[str, np.ndarray]:
        """Draws from q(ε) in constrained space: ``{parameter path: [S, ...]}``.

        Point and fixed hyperparameters repeat their value.

        :param num_samples: The number S of draws.
        :param seed: The seed of the draws; the model's own by default.
        """
        require_count("num_samples", num_samples)
        seed = self.settings.seed if seed is None else seed
        require_count("seed", seed)
        return prediction.hyperparameter_samples(
            self.hyperparameter_posterior, self.parameter_vector, num_samples, seed
        )

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
        export(path, self._posterior(self._now.dims[0]))

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
        return prediction.log_evidence(local, self._now.ledger.posterior)

    def _inputs(self, X: Any) -> Inputs:
        return prediction.as_inputs(X, self.kernel, self._now.dims[0])

    def _posterior(self, input_dim: int, output_dim: int | None = None) -> Posterior:
        """The posterior; P is guessed before any data."""
        with tf.init_scope():  # conditioning happens now, even while a caller is being traced
            refuse_in_graphs("a prediction")
            with self._turns.swapping:
                outputs = self._now.dims[1] or output_dim or default_output_dim(self)
                self._compiled = compiled = self._compile(input_dim, outputs)
                process = self._now.ledger.posterior
                draws = prediction.prediction_draws(
                    process,
                    compiled.parameters,
                    self.settings.num_prediction_samples,
                    self.settings.seed,
                )
                token = compiled.posteriors.token(process)
            return compiled.posteriors.at(process, draws, token)


def default_output_dim(model: LedgerGP) -> int:
    """P of the data that a model expects before it has seen any."""
    switched = isinstance(model.likelihood, gpflow.likelihoods.SwitchedLikelihood)
    return int(model.num_latent_gps) + int(switched)  # its last column says which likelihood
