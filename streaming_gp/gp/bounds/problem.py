"""All that is given in one local update: the model, and the batch under its cavity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.gp.collapsed.at_sites import SitesAtInputs, SitesOnPoints
from streaming_gp.gp.collapsed.functions import CollapsedFunctions
from streaming_gp.gp.collapsed.resting import LikelihoodAtData
from streaming_gp.gp.collapsed.site_functions import SiteFunctions
from streaming_gp.gp.hyperparameters import HyperparameterStrategy, TracedParameterVector
from streaming_gp.gp.process.graphs import Compiled, Graphs, graphs_of_kind, spec
from streaming_gp.gp.process.prior import PriorFunctions
from streaming_gp.gp.process.tensors import GaussianProcess


class Earlier(NamedTuple):
    """Earlier pseudo-observations that the new points take over.

    :param stack: The pseudo-observations.
    :param shared_nugget: The variance of the white noise that their u and the new points have in
        common; zero unless they are the same variables: [].
    """

    stack: Any
    shared_nugget: tf.Tensor


class Problem(NamedTuple):
    """A batch under its cavity, as tensors.

    :param X: The inputs [N, D].
    :param Y: The observations [N, P].
    :param stack: The cavity's pseudo-observations.
    :param location: The value of ε at which its whitened variables are zero [E].
    :param scale: The unit of these variables, a lower factor [E, E].
    :param noise: Common random numbers [S, E].
    :param Z_start: The pseudo-inputs at the start [M, D].
    :param Z_unit: The unit of their offsets [D].
    :param nugget: The variance of the white noise of the pseudo-points [], in squared units of f.
    :param earlier: Earlier pseudo-observations that the new points take over; () if there are none.
    """

    X: tf.Tensor
    Y: tf.Tensor
    stack: Any
    location: tf.Tensor
    scale: tf.Tensor
    noise: tf.Tensor
    Z_start: tf.Tensor
    Z_unit: tf.Tensor
    nugget: tf.Tensor
    earlier: Earlier | tuple[()] = ()

    @property
    def past(self) -> Any:
        """All earlier pseudo-observations: those that new points take over, or the cavity's."""
        return self.earlier.stack if self.earlier else self.stack

    def moved(self, offsets: tf.Tensor) -> tf.Tensor:
        """Pseudo-inputs [M, D], from their offsets [M D]."""
        return self.Z_start + self.Z_unit * tf.reshape(offsets, tf.shape(self.Z_start))


@dataclass(frozen=True, eq=False)
class LocalModel:
    """The model of a local update: what stays the same from batch to batch.

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
    def collapsed(self) -> dict[bool, CollapsedFunctions]:
        """Bounds in closed form, where noise is Gaussian, by whether there are points beside the
        data; bounds of the same kind share them.
        """
        return {on_points: CollapsedFunctions(self, on_points) for on_points in (False, True)}

    @cached_property
    def at_sites(self) -> dict[bool, SiteFunctions]:
        """The same at given sites, where noise is not Gaussian."""
        bounds = SitesAtInputs(), SitesOnPoints()
        return {of.on_points: SiteFunctions(self, of, self.at_data) for of in bounds}

    @cached_property
    def at_data(self) -> LikelihoodAtData:
        """What the likelihood says of f at data."""
        return LikelihoodAtData(self)

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

    def problem_spec(self, takes_over: bool) -> Problem:
        """The signature of problems of any size, for compiled functions.

        :param takes_over: Whether they have earlier pseudo-observations.
        """
        D, E = self.input_dim, self.parameters.size
        stack = self.gp.stack_spec(D)
        return Problem(
            X=spec(None, D),
            Y=spec(None, self.output_dim),
            stack=stack,
            location=spec(E),
            scale=spec(E, E),
            noise=spec(self.hyperparameters.num_draws, E),
            Z_start=spec(None, D),
            Z_unit=spec(D),
            nugget=spec(),
            earlier=Earlier(stack, spec()) if takes_over else (),
        )
