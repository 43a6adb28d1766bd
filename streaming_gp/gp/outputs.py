"""How the outputs of a model are fitted: as functions of their own, or as one function of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import gpflow
import tensorflow as tf
from gpflow import kernels as gk
from gpflow import likelihoods as gl

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds.sites import is_conjugate
from streaming_gp.gp.mixed_predictor import MixedPredictor
from streaming_gp.gp.predictor import Predictor
from streaming_gp.gp.process.covariances import latent_kernels
from streaming_gp.gp.process.mixing import PairKernel, PairMean, PairNoise, pairs
from streaming_gp.gp.structure import Modules
from streaming_gp.validation import Data

Predictions = Predictor | MixedPredictor
"""Predictions of outputs of either kind."""


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

    def predictions(self, functions: Predictor) -> Predictions:
        """Predictions of the outputs, from those of the functions that are fitted."""
        return functions


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
        return pairs(tf.constant(X), self.num_columns).numpy(), Y.T.reshape(-1, 1)

    def predictions(self, functions: Predictor) -> Predictions:
        return MixedPredictor(functions, self.num_columns)


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
