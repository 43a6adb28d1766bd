"""How the outputs of a model are fitted: as functions of their own, or as one function of pairs.

Outputs ``f_p(x) = m_p(x) + Σ_l W_pl g_l(x)`` of independent latent functions g_l (the linear model
of coregionalisation: Álvarez, Rosasco & Lawrence 2012, section 4) have the covariance

    ``k((x, p), (x', p')) = Σ_l W_pl W_p'l k_l(x, x')``.

They are one Gaussian process over pairs of input and output, and P outputs at each of N inputs are
P N observations of it. A pair is a row of D + 1 columns, of which the last one numbers the output;
nothing moves that, as all here is piecewise constant in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import gpflow
import numpy as np
import tensorflow as tf
from gpflow import kernels as gk
from gpflow import likelihoods as gl

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fit.sites import is_conjugate
from streaming_gp.gp.prediction import Inputs, Moments, Posterior
from streaming_gp.gp.process.prior import latent_kernels
from streaming_gp.gp.structure import Modules
from streaming_gp.numerics.shapes import check_shapes
from streaming_gp.validation import Data

AT_ONCE = 16
"""Covariances among outputs are taken from joint covariances at so many inputs."""


@check_shapes("X: [N, D]", "return: [Q, E]")
def pairs(X: tf.Tensor, num_outputs: int) -> tf.Tensor:
    """All pairs [P N, D + 1] of inputs [N, D] and P outputs, one output after another."""
    index = tf.repeat(tf.range(num_outputs, dtype=X.dtype), tf.shape(X)[0])
    return tf.concat([tf.tile(X, [num_outputs, 1]), index[:, None]], axis=1)


def split(X: tf.Tensor, num_outputs: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Inputs [N, D] of pairs [N, D + 1], and rows [N, P] of zeros with a 1 at the output."""
    return X[:, :-1], tf.one_hot(tf.cast(X[:, -1], tf.int32), num_outputs, dtype=X.dtype)


class PairKernel(gpflow.kernels.Kernel):
    """The covariance between single outputs.

    :param mixing: The kernel that mixes; its parameters are this one's.
    """

    def __init__(self, mixing: gpflow.kernels.LinearCoregionalization) -> None:
        super().__init__()
        self.mixing = mixing

    def K(self, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
        """Covariance [N, N2] between pairs [N, D + 1] and [N2, D + 1]."""
        x, weights = self._weighted(X)
        x2, weights2 = (None, weights) if X2 is None else self._weighted(X2)
        mixed = zip(self.mixing.kernels, weights, weights2, strict=True)
        return tf.add_n([w[:, None] * kernel(x, x2) * w2 for kernel, w, w2 in mixed])

    def K_diag(self, X: tf.Tensor) -> tf.Tensor:
        """Variance [N] at pairs [N, D + 1]."""
        x, weights = self._weighted(X)
        mixed = zip(self.mixing.kernels, weights, strict=True)
        return tf.add_n([tf.square(w) * kernel(x, full_cov=False) for kernel, w in mixed])

    def _weighted(self, X: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Inputs [N, D], and for each latent function its weights [N] in the outputs."""
        W = tf.convert_to_tensor(self.mixing.W)
        x, chosen = split(X, W.shape[0])
        return x, tf.unstack(tf.matmul(W, chosen, transpose_a=True, transpose_b=True))


class _OfOneOutput(gpflow.functions.Function):
    """A function that has a value for each output, as a function of pairs.

    :param owner: The module that it reads its parameters from.
    :param num_outputs: The number P of outputs.
    """

    def __init__(self, owner: Any, num_outputs: int) -> None:
        super().__init__()
        self.owner = owner
        self.num_outputs = num_outputs

    def at(self, x: tf.Tensor) -> tf.Tensor:
        """Values [N, P] (or [N, 1]) at inputs [N, D]."""
        return self.owner(x)

    def __call__(self, X: tf.Tensor) -> tf.Tensor:
        x, chosen = split(X, self.num_outputs)
        return tf.reduce_sum(self.at(x) * chosen, axis=1, keepdims=True)


class PairMean(_OfOneOutput):
    """The mean function ``m_p(x)`` [N, 1]; its owner is the outputs' mean function."""


class PairNoise(_OfOneOutput):
    """The noise variance ``σ²_p(x)`` [N, 1]; its owner is the outputs' Gaussian likelihood."""

    def at(self, x: tf.Tensor) -> tf.Tensor:
        shape = [tf.shape(x)[0], self.num_outputs]
        return self.owner.conditional_variance(x, tf.zeros(shape, x.dtype))


@dataclass(frozen=True, eq=False)
class MixedPosterior(Posterior):
    """The posterior of P outputs, which are dependent given ε, from that of single ones at pairs.

    :param num_outputs: The number P of outputs.
    """

    num_outputs: int

    def f(self, X: Inputs, full_cov: bool = False, full_output_cov: bool = False) -> Moments:
        if full_cov and full_output_cov:
            return self._joint(X)
        if full_cov:
            return self._by_output(X)
        if full_output_cov:
            return self._by_input(X)
        mean, variance = super().f(self._pairs(X))
        return self._outputs(mean), self._outputs(variance)

    def y(self, X: Inputs) -> Moments:
        mean, variance = super().y(self._pairs(X))
        return self._outputs(mean), self._outputs(variance)

    def log_densities(self, X: Inputs, Y: np.ndarray) -> tf.Tensor:
        """``Σ_p log p(y_np | ε)`` [S, N] for each ε: outputs one by one, as in GPflow."""
        stacked = tf.reshape(tf.transpose(Y), [-1, 1])
        scores = super().log_densities(self._pairs(X), stacked)
        return tf.reduce_sum(self._outputs(scores), axis=2)

    # ---- pairs and outputs ----

    def _pairs(self, X: Inputs) -> Inputs:
        found = pairs(tf.convert_to_tensor(X), self.num_outputs)
        return found if tf.is_tensor(X) else found.numpy()

    def _outputs(self, values: tf.Tensor) -> tf.Tensor:
        """Values at all pairs [S, P N] or [S, P N, 1] as [S, N, P]."""
        by_output = tf.reshape(values, [tf.shape(values)[0], self.num_outputs, -1])
        return tf.transpose(by_output, [0, 2, 1])

    # ---- covariances ----

    def _joint(self, X: Inputs) -> Moments:
        """Covariance [S, N, P, N, P]."""
        mean, covariance = super().f(self._pairs(X), full_cov=True)
        N, P = tf.shape(X)[0], self.num_outputs
        split = tf.reshape(covariance, [-1, P, N, P, N])
        return self._outputs(mean), tf.transpose(split, [0, 2, 1, 4, 3])

    def _by_output(self, X: Inputs) -> Moments:
        """Covariance [S, P, N, N] among the inputs."""
        split = tf.split if tf.is_tensor(X) else np.split
        each = split(self._pairs(X), self.num_outputs)
        found = [self._latent_moments(one, full_cov=True) for one in each]
        mean, covariance = zip(*found, strict=True)
        return tf.concat(mean, axis=2), tf.concat(covariance, axis=1)

    def _by_input(self, X: Inputs) -> Moments:
        """Covariance [S, N, P, P] among the outputs."""
        number = X.shape[0]
        starts = [0] if number is None else range(0, number, AT_ONCE)
        found = [self._joint(X[i : i + AT_ONCE] if number else X) for i in starts]
        mean, joint = zip(*found, strict=True)
        covariance = [tf.einsum("snpnq->snpq", part) for part in joint]
        return tf.concat(mean, axis=1), tf.concat(covariance, axis=1)


@dataclass(frozen=True)
class Outputs:
    """Latent functions are independent, and are fitted themselves.

    :param num_latent_gps: The number L of latent functions, where it is known before any data.
    :param num_columns: The number P of columns of Y, where it is known before any data.
    """

    num_latent_gps: int | None
    num_columns: int | None
    index_columns: ClassVar[int] = 0
    """The number of columns that pseudo-inputs have beside those of X."""

    def modules(self, modules: Modules) -> Modules:
        """Kernel, mean function and likelihood of the functions that are fitted."""
        return modules

    def dims(self, input_dim: int, num_columns: int) -> tuple[int, int]:
        """Columns of inputs and of observations, as the functions are fitted to them."""
        return input_dim, num_columns

    def num_functions(self, modules: Modules, num_columns: int) -> int:
        """How many functions are fitted."""
        kernel, likelihood = modules["kernel"], modules["likelihood"]
        if self.num_latent_gps is not None:
            return self.num_latent_gps
        if likelihood.latent_dim is not None:
            return int(likelihood.latent_dim)
        return int(gpflow.models.GPModel.calc_num_latent_gps(kernel, likelihood, num_columns))

    def data(self, data: Data) -> Data:
        """X [N, D] and Y [N, P] as the functions are fitted to them."""
        return data

    def posterior(self, **fields: Any) -> Posterior:
        """The posterior of the outputs.

        :param fields: Those of the posterior of the functions that are fitted.
        """
        return Posterior(**fields)


@dataclass(frozen=True)
class MixedOutputs(Outputs):
    """Outputs mix latent functions, and are fitted as one function of pairs (x, p)."""

    num_latent_gps: int
    num_columns: int
    index_columns: ClassVar[int] = 1

    def modules(self, modules: Modules) -> Modules:
        likelihood = modules["likelihood"]
        if is_conjugate(likelihood):
            likelihood = gl.Gaussian(
                variance=PairNoise(likelihood, self.num_columns),
                variance_lower_bound=likelihood.variance_lower_bound,
            )
        return {
            "kernel": PairKernel(modules["kernel"]),
            "mean_function": PairMean(modules["mean_function"], self.num_columns),
            "likelihood": likelihood,
        }

    def dims(self, input_dim: int, num_columns: int) -> tuple[int, int]:
        return input_dim + self.index_columns, 1

    def num_functions(self, modules: Modules, num_columns: int) -> int:
        return 1

    def data(self, data: Data) -> Data:
        X, Y = data
        is_there = ~np.isnan(Y.T.ravel())
        stacked = pairs(tf.constant(X), self.num_columns).numpy()
        return stacked[is_there], Y.T.reshape(-1, 1)[is_there]

    def posterior(self, **fields: Any) -> Posterior:
        return MixedPosterior(**fields, num_outputs=self.num_columns)


def outputs_of(kernel: Any, likelihood: Any, num_latent_gps: int | None) -> Outputs:
    """How the outputs of a model are fitted.

    :param num_latent_gps: The number L of latent functions that was asked for, if one was.
    :raises InvalidDataError: if the kernel has another number of them, or kernel and likelihood do
        not go together.
    """
    known = getattr(kernel, "num_latent_gps", num_latent_gps)
    if num_latent_gps not in (None, known):
        raise InvalidDataError(
            f"num_latent_gps is {num_latent_gps}, but {type(kernel).__name__} has {known}"
        )
    if isinstance(kernel, gk.LinearCoregionalization):
        _refuse_unmixable(kernel, likelihood)
        return MixedOutputs(kernel.num_latent_gps, int(kernel.W.shape[0]))
    latent_kernels(kernel)  # refuses others that mix
    if known is None or likelihood.latent_dim is not None:
        return Outputs(known, None)
    switched = isinstance(likelihood, gl.SwitchedLikelihood)  # its last column says which
    return Outputs(known, known + int(switched))


def _refuse_unmixable(kernel: gk.LinearCoregionalization, likelihood: Any) -> None:
    """Refuse what has no meaning for a single output."""
    if len(kernel.kernels) != kernel.num_latent_gps:
        raise InvalidDataError(
            f"W of shape {list(kernel.W.shape)} wants {kernel.num_latent_gps} kernels, got "
            f"{len(kernel.kernels)}"
        )
    if any(isinstance(part, gk.White) for part in kernel.submodules):
        raise InvalidDataError(
            "latent functions that are mixed cannot hold white noise, got a White kernel; the "
            "likelihood's noise may differ from output to output"
        )
    if not isinstance(likelihood, gl.ScalarLikelihood) or isinstance(
        likelihood, gl.SwitchedLikelihood
    ):
        raise InvalidDataError(
            "outputs that mix latent functions want a likelihood of one function for each output, "
            f"got {type(likelihood).__name__}"
        )
    depends = any(isinstance(part, gpflow.functions.Function) for part in likelihood.submodules)
    differs = any(len(parameter.shape) > 0 for parameter in likelihood.parameters)
    if not is_conjugate(likelihood) and (depends or differs):
        raise InvalidDataError(
            f"where outputs mix latent functions, the parameters of {type(likelihood).__name__} "
            "must be single numbers; those of Gaussian may depend on input and output"
        )
