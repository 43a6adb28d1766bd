"""A posterior that was factorised once, and answers as it did then."""

from __future__ import annotations

from typing import Any

import gpflow
import tensorflow as tf

from streaming_gp.gp import prediction
from streaming_gp.gp.prediction import Posterior
from streaming_gp.validation import as_data


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
        return prediction.as_inputs(X, self._kernel, self._dims[0])
