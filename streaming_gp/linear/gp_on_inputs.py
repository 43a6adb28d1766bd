"""A Gaussian process on inputs that are given, as a linear model."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp.expfam import Gaussian, Normal
from streaming_gp.linear.models import GeneralisedLinearModel
from streaming_gp.validation import as_matrix

NUGGET = 1e-6


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
    """

    def __init__(
        self,
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        Z: Any,
        family: type[Gaussian] = Normal,
    ) -> None:
        self.Z = as_matrix("Z", Z, np.shape(Z)[-1])
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
        variance = q.variance_along(A) + tf.maximum(left, 0.0)
        return tf.linalg.matvec(A, q.mean)[:, None], variance[:, None]

    def outputs(self, theta: tf.Tensor, X: Any) -> tf.Tensor:
        """``k(x_n, Z) L⁻ᵀ θ_s`` for ``theta`` [S, M]: [S, N, 1]."""
        return super().outputs(theta, self.features(X))
