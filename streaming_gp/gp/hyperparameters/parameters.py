"""The vector ε of all trainable parameters, in GPflow's unconstrained space."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.base import PriorOn

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.hyperparameters.units import Units, forward, has_transform, periods

_MOMENT_SAMPLES = 20_000


class ParameterVector:
    """Views the trainable parameters of a module as one vector ε [E].

    The order is that of the parameter paths, so that it is the same in every process.

    :ivar traced_variables: Those that :meth:`substituted` puts tensors in the place of.
    """

    def __init__(self, module: tf.Module) -> None:
        named = gpflow.utilities.parameter_dict(module)
        for path, parameter in named.items():
            if parameter.dtype not in (tf.float64, tf.int32, tf.int64):
                raise InvalidDataError(
                    f"{path} is {parameter.dtype.name}, but GPs are computed in float64; see "
                    "gpflow.config.set_default_float"
                )
        trainable = {path: p for path, p in sorted(named.items()) if p.trainable}
        for path, parameter in trainable.items():
            if not isinstance(parameter, gpflow.Parameter):
                raise InvalidDataError(
                    f"{path} is a plain tf.Variable; hyperparameters must be gpflow.Parameter"
                )
        self._owners = {path.lstrip("."): id(p) for path, p in trainable.items()}
        unique = {id(parameter): path for path, parameter in reversed(trainable.items())}
        self.parameters: dict[str, gpflow.Parameter] = {
            path.lstrip("."): trainable[path] for path in sorted(unique.values())
        }
        self._sizes = [int(np.prod(p.shape)) for p in self.parameters.values()]
        self._module = module
        self._widths: tuple[bytes, np.ndarray] | None = None
        self.traced_variables = [p.unconstrained_variable for p in self.parameters.values()]

    def views_the_same_as(self, other: ParameterVector) -> bool:
        """Whether both view the same parameter objects in the same order."""
        mine, others = self.parameters.values(), other.parameters.values()
        return [id(p) for p in mine] == [id(p) for p in others]

    @property
    def size(self) -> int:
        """E."""
        return sum(self._sizes)

    def value(self) -> np.ndarray:
        """The current ε [E]."""
        values = [p.unconstrained_variable.numpy().ravel() for p in self.parameters.values()]
        return np.concatenate([*values, np.zeros(0)])

    def of_values(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """ε [E] of unconstrained values by path."""
        return np.concatenate([*(np.ravel(values[path]) for path in self.parameters), np.zeros(0)])

    def values_of(self, epsilon: np.ndarray) -> dict[str, np.ndarray]:
        """Unconstrained values of ε [E], by every path of each parameter."""
        values = {id(parameter): np.asarray(piece) for parameter, piece in self.pieces(epsilon)}
        return {path: values[owner] for path, owner in self._owners.items()}

    def assign(self, epsilon: np.ndarray) -> None:
        """Set every parameter from ε [E]."""
        for parameter, piece in self.pieces(epsilon):
            parameter.unconstrained_variable.assign(piece)

    @contextmanager
    def substituted(self, epsilon: tf.Tensor) -> Iterator[None]:
        """Within the block every trainable parameter reads from the tensor ε [E].

        TensorFlow Probability's deferred tensors evaluate ``transform(_pretransformed_input)`` at
        each read, so swapping that input reaches any kernel, and parameters shared by several
        owners, without naming their attributes. Transforms cache what they have computed, and
        caches outlive the model: they are emptied, or they would keep the graph that is traced here
        for good.
        """
        before = [p._pretransformed_input for p in self.parameters.values()]
        try:
            for parameter, piece in self.pieces(epsilon):
                parameter._pretransformed_input = piece
            yield
        finally:
            for parameter, variable in zip(self.parameters.values(), before, strict=True):
                parameter._pretransformed_input = variable
            _empty_caches(self._module)

    def log_prior_density(self) -> tf.Tensor:
        """Sum of the parameters' GPflow log priors, in constrained space; a scalar."""
        terms = [p.log_prior_density() for p in self.parameters.values() if p.prior is not None]
        return tf.add_n(terms) if terms else tf.zeros([], gpflow.default_float())

    def constrained(self, epsilon: np.ndarray) -> dict[str, np.ndarray]:
        """``{path: [S, ...]}`` in constrained space, for ε [S, E]."""
        result, start = {}, 0
        for (path, parameter), size in zip(self.parameters.items(), self._sizes, strict=True):
            piece = epsilon[:, start : start + size].reshape(-1, *parameter.shape)
            result[path] = np.asarray(forward(parameter, piece))
            start += size
        return result

    def prior_moments(self, log_scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [E] of a Gaussian prior on ε.

        A GPflow prior is matched in its first two moments in unconstrained space, which is the
        projection that minimises KL(prior ‖ Gaussian). A parameter without one gets a Gaussian
        around its value, ``log_scale`` of its :class:`.Units` wide, which for a transformed one is
        about that much in the logarithm of the constrained value (delta method). Only the weights
        by which functions are mixed are one unit wide, whatever ``log_scale``.
        """
        at = list(self.pieces(self.value()))
        moments = [
            self._prior_moments(one, np.asarray(value), unit, log_scale)
            for (one, value), unit in zip(at, self._units.at(at), strict=True)
        ]
        means = [np.ravel(mean) for mean, _ in moments]
        scales = [np.ravel(scale) for _, scale in moments]
        return np.concatenate([*means, np.zeros(0)]), np.concatenate([*scales, np.zeros(0)])

    def is_constrained(self) -> np.ndarray:
        """Whether each entry of ε is mapped through a transform: [E]."""
        return _flags(self, has_transform)

    def are_periods(self) -> np.ndarray:
        """Whether each entry of ε says after what distance a function comes again: [E]."""
        found = periods(self._module)
        return _flags(self, lambda parameter: id(parameter) in found)

    def unit_log_widths(self, epsilon: np.ndarray | None = None) -> np.ndarray:
        """The :class:`.Units` of all parameters: [E].

        It is asked for at each update, and computed where ε has moved.

        :param epsilon: ε [E], where it is not the current one.
        """
        epsilon = self.value() if epsilon is None else epsilon
        at = epsilon.tobytes()
        if self._widths is None or self._widths[0] != at:
            widths = map(np.ravel, self._units.at(list(self.pieces(epsilon))))
            self._widths = at, np.concatenate([*widths, np.zeros(0)])
        return self._widths[1].copy()

    @cached_property
    def _units(self) -> Units:
        return Units(self._module)

    def _prior_moments(
        self, parameter: gpflow.Parameter, value: np.ndarray, unit: np.ndarray, log_scale: float
    ) -> tuple[np.ndarray, np.ndarray]:
        if parameter.prior is not None:
            return _moments_of_gpflow_prior(parameter)
        return value, unit if self._units.is_a_weight(parameter) else log_scale * unit

    def pieces(self, epsilon: Any) -> Iterator[tuple[gpflow.Parameter, Any]]:
        """Each parameter with its part of ε [E], in the parameter's shape: arrays of an array."""
        if not self._sizes:
            return
        shapes = [parameter.shape for parameter in self.parameters.values()]
        parts: Iterator[Any]
        if isinstance(epsilon, np.ndarray):  # TensorFlow would take far longer
            parts = map(np.reshape, np.split(epsilon, np.cumsum(self._sizes)[:-1]), shapes)
        else:
            parts = map(tf.reshape, tf.split(epsilon, self._sizes), shapes)
        yield from zip(self.parameters.values(), parts, strict=True)


def num_uncertain(parameters: ParameterVector, mean: np.ndarray, deviation: np.ndarray) -> float:
    """How many parameters are not known to within a factor of e; one known better counts as
    a part.

    :param mean: Of ε [E].
    :param deviation: Its standard deviations [E].
    """
    return float(np.sum(np.minimum(1.0, deviation / parameters.unit_log_widths(mean))))


def _flags(vector: ParameterVector, is_so: Callable[[gpflow.Parameter], bool]) -> np.ndarray:
    """What is so of a parameter, for each entry of ε [E]."""
    flags = [np.full(p.shape, is_so(p)).ravel() for p in vector.parameters.values()]
    return np.concatenate([*flags, np.zeros(0, bool)])


def _empty_caches(module: tf.Module) -> None:
    """Of all transforms; all threads share one cache, from which entries may go meanwhile."""
    while True:
        with suppress(KeyError):
            gpflow.utilities.reset_cache_bijectors(module)
            return


def _moments_of_gpflow_prior(parameter: gpflow.Parameter) -> tuple[np.ndarray, np.ndarray]:
    draws = parameter.prior.sample(_MOMENT_SAMPLES, seed=tf.constant([0, 0], tf.int32))
    draws = tf.cast(draws, parameter.dtype)
    if parameter.prior_on is PriorOn.CONSTRAINED and parameter.transform is not None:
        draws = parameter.transform.inverse(draws)
    mean, scale = np.mean(draws, axis=0), np.std(draws, axis=0)
    if not (np.isfinite(mean).all() and (scale > 0.0).all()):
        raise InvalidDataError(
            f"the prior {parameter.prior.name} of parameter {parameter.name} has no finite mean "
            f"and positive width in unconstrained space (mean {mean}, sd {scale})"
        )
    return np.broadcast_to(mean, parameter.shape), np.broadcast_to(scale, parameter.shape)
