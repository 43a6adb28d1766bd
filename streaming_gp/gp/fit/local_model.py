"""The model of a local fit: what stays the same from batch to batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.gp.fit.sites import LikelihoodAtData
from streaming_gp.gp.hyperparameters import HyperparameterStrategy
from streaming_gp.gp.hyperparameters.vector import TracedParameterVector
from streaming_gp.gp.process.graphs import Compiled, Graphs, graphs_of_kind, spec
from streaming_gp.gp.process.prior import PriorFunctions
from streaming_gp.gp.process.tensors import GaussianProcess


@dataclass(frozen=True, eq=False)
class LocalModel:
    """The model of a local fit.

    :param gp: Kernel and mean function.
    :param likelihood: Any GPflow likelihood.
    :param parameters: The vector ε of trainable parameters.
    :param hyperparameters: What is learned about ε.
    :param input_dim: The number D of columns of X.
    :param output_dim: The number P of columns of Y.
    """

    gp: GaussianProcess
    likelihood: Any
    parameters: TracedParameterVector
    hyperparameters: HyperparameterStrategy
    input_dim: int
    output_dim: int

    @cached_property
    def graphs(self) -> Graphs:
        """Compiled functions that models of its kind share, whatever they learn of ε."""
        return self._shared()

    @cached_property
    def graphs_of_fits(self) -> Graphs:
        """Those that models of its kind share which learn of ε in the same way."""
        return self._shared(self.hyperparameters)

    def _shared(self, *others: Any) -> Graphs:
        model = self.gp, self.likelihood, self.input_dim, self.output_dim, *others
        return graphs_of_kind(model, self.parameters.traced_parameters)

    @cached_property
    def prior(self) -> PriorFunctions:
        """The prior at any values of ε, which fits and predictions share."""
        return PriorFunctions(self.gp, self.parameters, self.input_dim, self.graphs)

    @cached_property
    def at_data(self) -> LikelihoodAtData:
        """The likelihood at data, as a function of f."""
        return LikelihoodAtData(self)

    def grouped(self, values: np.ndarray) -> np.ndarray:
        """Values of latent functions [N, L] by their groups [G, N, C]."""
        return np.reshape(values, (len(values), self.gp.num_groups, -1)).swapaxes(0, 1)

    def noise_precision(self, epsilon: np.ndarray, X: np.ndarray) -> np.ndarray:
        """``1/σ²`` [N, P] of Gaussian noise at X [N, D] and at ε [E]."""
        return np.asarray(self._noise_precision(epsilon, X))

    @cached_property
    def _noise_precision(self) -> Compiled:
        def at(epsilon: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
            zeros = tf.zeros([tf.shape(X)[0], self.output_dim], X.dtype)
            with self.parameters.substituted(epsilon):
                return 1.0 / self.likelihood.conditional_variance(X, zeros)

        return self.graphs.compiled(at, spec(self.parameters.size), spec(None, self.input_dim))

    def fixed_values(self) -> bytes:
        """Changes whenever a value changes that is not in ε."""
        return b"".join(variable.numpy().tobytes() for variable in self._fixed)

    @cached_property
    def _fixed(self) -> list[tf.Variable]:
        """The variables that are not in ε."""
        learned = {id(variable) for variable in self.parameters.traced_variables}
        modules = (self.gp.kernel, self.gp.mean_function, self.likelihood)
        variables = (variable for module in modules for variable in module.variables)
        return [variable for variable in variables if id(variable) not in learned]
