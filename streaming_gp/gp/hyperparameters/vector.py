"""The vector ε of all trainable parameters, in GPflow's unconstrained space, and its units."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.base import PriorOn

from streaming_gp.errors import InvalidDataError

LARGEST_OFFSET = 10.0
"""An offset counts as known to so many standard deviations of f, however large it is: with a prior
as wide as a large offset q(ε) starts where all is noise, and stays there."""
_MOMENT_SAMPLES = 20_000
_QUANTILES = 0.1587, 0.5, 0.8413
_MIXING = gpflow.kernels.LinearCoregionalization


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
        return _joined(p.unconstrained_variable.numpy() for p in self.parameters.values())

    def epsilon_of(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """ε [E] of unconstrained values by path."""
        return _joined(values[path] for path in self.parameters)

    def values_at(self, epsilon: np.ndarray) -> dict[str, np.ndarray]:
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

    def log_density_of_priors(self) -> tf.Tensor:
        """The same as densities of ε, that is in unconstrained space."""
        value = self.log_prior_density()
        for one in self.parameters.values():
            if one.prior is not None and one.transform is not None:
                at = one.unconstrained_variable
                value += tf.reduce_sum(one.transform.forward_log_det_jacobian(at, event_ndims=0))
        return value

    def have_priors(self) -> np.ndarray:
        """Whether each entry of ε has a GPflow prior: [E]."""
        return self._where(lambda parameter: parameter.prior is not None)

    def constrained(self, epsilon: np.ndarray) -> dict[str, np.ndarray]:
        """``{path: [S, ...]}`` in constrained space, for ε [S, E]."""
        result, start = {}, 0
        for (path, parameter), size in zip(self.parameters.items(), self._sizes, strict=True):
            piece = epsilon[:, start : start + size].reshape(-1, *parameter.shape)
            result[path] = np.asarray(_forward(parameter, piece))
            start += size
        return result

    def prior_moments(self, log_scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [E] of a Gaussian prior on ε.

        A GPflow prior is stood for by the Gaussian with its median and the width of the two thirds
        around it in unconstrained space, which has no moments where tails are heavy. A parameter
        without one gets a Gaussian around its value, ``log_scale`` of its :class:`.Units` wide,
        which for a transformed one is about that much in the logarithm of the constrained value
        (delta method). Only the weights by which functions are mixed are one unit wide, whatever
        ``log_scale``.
        """
        at, means, scales = list(self.pieces(self.value())), [], []
        for path, (one, mean), unit in zip(self.parameters, at, self._units.at(at), strict=True):
            scale = unit if self._units.is_a_weight(one) else log_scale * unit
            if one.prior is not None:
                mean, scale = _moments_of_gpflow_prior(path, one)
            means.append(mean)
            scales.append(scale)
        return _joined(means), _joined(scales)

    def is_constrained(self) -> np.ndarray:
        """Whether each entry of ε is mapped through a transform: [E]."""
        return self._where(_has_transform)

    def are_periods(self) -> np.ndarray:
        """Whether each entry of ε says after what distance a function comes again: [E]."""
        named = gpflow.utilities.parameter_dict(self._module)
        periods = {id(p) for path, p in named.items() if path.endswith(".period")}
        parts = (self._module, *self._module.submodules)
        cosines = (part for part in parts if isinstance(part, gpflow.kernels.Cosine))
        periods |= {id(kernel.lengthscales) for kernel in cosines}
        return self._where(lambda parameter: id(parameter) in periods)

    def with_lengthscales(self, epsilon: np.ndarray, part: float) -> np.ndarray | None:
        """Minus infinity for each entry of ε [E], but for lengthscales ``part`` of their value at
        ``epsilon``; None where there are none.

        :param part: A part of the constrained values.
        """
        found, has_some = [], False
        for (path, parameter), (_, piece) in zip(
            self.parameters.items(), self.pieces(epsilon), strict=True
        ):
            if path.endswith("lengthscales") and _has_transform(parameter):
                shorter = part * np.asarray(_forward(parameter, piece))
                found.append(np.asarray(parameter.transform.inverse(tf.constant(shorter))))
                has_some = True
            else:
                found.append(np.full(parameter.shape, -np.inf))
        return _joined(found) if has_some else None

    def unit_log_widths(self, epsilon: np.ndarray | None = None) -> np.ndarray:
        """The :class:`.Units` of all parameters: [E].

        It is asked for at each update, and computed where ε has moved.

        :param epsilon: ε [E], where it is not the current one.
        """
        epsilon = self.value() if epsilon is None else epsilon
        at = epsilon.tobytes()
        if self._widths is None or self._widths[0] != at:
            self._widths = at, _joined(self._units.at(list(self.pieces(epsilon))))
        return self._widths[1].copy()

    @cached_property
    def _units(self) -> Units:
        return Units(self._module)

    def _where(self, condition: Callable[[gpflow.Parameter], bool]) -> np.ndarray:
        parts = (np.full(p.shape, condition(p)) for p in self.parameters.values())
        return _joined(parts).astype(bool)

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


class TracedParameterVector(ParameterVector):
    """The parameters of a module, for which tensors are substituted in a copy of that module.

    Whoever reads the parameters while something is traced, in whatever thread, sees values.

    :param module: The module.
    """

    def __init__(self, module: tf.Module) -> None:
        super().__init__(module)
        self.traced = _copy_to_trace(module)
        self._inside, self._tracing = ParameterVector(self.traced), threading.RLock()
        self.traced_variables = self._inside.traced_variables
        self.traced_parameters = list(self._inside.parameters.values())

    @contextmanager
    def substituted(self, epsilon: tf.Tensor) -> Iterator[None]:
        with self._tracing, self._inside.substituted(epsilon):
            yield

    def log_prior_density(self) -> tf.Tensor:
        return self._inside.log_prior_density()

    def log_density_of_priors(self) -> tf.Tensor:
        return self._inside.log_density_of_priors()

    def tensor(self) -> tf.Tensor:
        """The current ε [E] as a tensor that depends on the parameters' variables."""
        empty = tf.zeros([0], gpflow.default_float())
        values = [tf.reshape(p.unconstrained_variable, [-1]) for p in self.parameters.values()]
        return tf.concat([*values, empty], 0)


class Units:
    """The unit of every parameter of a module.

    One that has a transform is changed e-fold by its unit. A parameter of the mean function has its
    own size, but at least one standard deviation of f, and at most ten. The weights W [P, L] by
    which L functions are mixed have ``1/√L``: all of them together then add about as much to an
    output as one function has. Others that have no transform have their own size, but at least one.

    :param module: The module with kernel, mean function and likelihood.
    """

    def __init__(self, module: tf.Module) -> None:
        named = gpflow.utilities.parameter_dict(module)
        kernels = [one for one in (module, *module.submodules) if isinstance(one, _MIXING)]
        self._weights = {id(one.W): float(one.num_latent_gps) ** -0.5 for one in kernels}
        self._offsets = {id(p) for path, p in named.items() if path.startswith(".mean_function")}
        self._variances = [
            p for path, p in named.items()
            if path.startswith(".kernel") and path.endswith(".variance")
        ]  # fmt: skip

    def is_a_weight(self, parameter: gpflow.Parameter) -> bool:
        """Whether it mixes functions."""
        return id(parameter) in self._weights

    def at(self, pieces: Sequence[tuple[gpflow.Parameter, Any]]) -> list[np.ndarray]:
        """The units, in the shapes of the parameters.

        :param pieces: All parameters that are learned, with their unconstrained values.
        """
        has_offsets = any(self._is_an_offset(one) for one, _ in pieces)
        deviation = self._deviation_of_f(pieces) if has_offsets else 1.0
        return [self._of_one(one, np.asarray(value), deviation) for one, value in pieces]

    def _is_an_offset(self, one: gpflow.Parameter) -> bool:
        return id(one) in self._offsets and not _has_transform(one)

    def _of_one(self, one: gpflow.Parameter, value: np.ndarray, deviation: float) -> np.ndarray:
        if self.is_a_weight(one):
            return np.full(one.shape, self._weights[id(one)])
        if self._is_an_offset(one):
            return np.clip(np.abs(value), deviation, LARGEST_OFFSET * deviation)
        return _unit_log_width(one, value)

    def _deviation_of_f(self, pieces: Sequence[tuple[gpflow.Parameter, Any]]) -> float:
        """The root of what the kernel's variances add up to; one if it has none."""
        learned = {id(one): _forward(one, value) for one, value in pieces}
        total = sum(float(np.sum(learned.get(id(one), one))) for one in self._variances)
        return total**0.5 if self._variances else 1.0


def _has_transform(parameter: gpflow.Parameter) -> bool:
    """Whether its constrained value is another one than the unconstrained."""
    identity = tfp.bijectors.Identity
    return parameter.transform is not None and not isinstance(parameter.transform, identity)


def _forward(parameter: gpflow.Parameter, unconstrained: Any) -> Any:
    """Constrained values."""
    if parameter.transform is None:
        return unconstrained
    return parameter.transform.forward(tf.convert_to_tensor(unconstrained, parameter.dtype))


def _unit_log_width(parameter: gpflow.Parameter, at: Any) -> np.ndarray:
    """Change of the unconstrained value that changes the constrained value e-fold, to first order.

    :param at: The unconstrained value, in the parameter's shape.

    Close to a lower bound of the constrained value no finite change does; the width is therefore
    at most ``2 max(1, u)``, which the plain softplus never reaches.
    """
    unconstrained = np.asarray(at)
    if not _has_transform(parameter):
        return np.maximum(1.0, np.abs(unconstrained))
    with tf.GradientTape() as tape:
        point = tf.convert_to_tensor(unconstrained)
        tape.watch(point)
        constrained = parameter.transform.forward(point)
    slope = np.abs(tape.gradient(constrained, point).numpy())
    widest = 2.0 * np.maximum(1.0, unconstrained)
    reached = np.abs(constrained.numpy()) < widest * slope
    return np.where(reached, np.abs(constrained.numpy()) / np.where(reached, slope, 1.0), widest)


def _joined(parts: Iterable[Any]) -> np.ndarray:
    """The entries of arrays, one after another: [E]."""
    return np.concatenate([*map(np.ravel, parts), np.zeros(0)])


def _empty_caches(module: tf.Module) -> None:
    """Of all transforms; all threads share one cache, from which entries may go meanwhile."""
    while True:
        with suppress(KeyError):
            gpflow.utilities.reset_cache_bijectors(module)
            return


def _moments_of_gpflow_prior(
    path: str, parameter: gpflow.Parameter
) -> tuple[np.ndarray, np.ndarray]:
    draws = parameter.prior.sample(_MOMENT_SAMPLES, seed=tf.constant([0, 0], tf.int32))
    draws = tf.cast(draws, parameter.dtype)
    if parameter.prior_on is PriorOn.CONSTRAINED and parameter.transform is not None:
        draws = parameter.transform.inverse(draws)
    draws = np.where(np.isnan(draws), -np.inf, draws)  # below a lower bound of the parameter
    low, mean, high = np.quantile(draws, _QUANTILES, axis=0, method="nearest")
    scale = 0.5 * (high - low)
    if not (np.isfinite([low, high]).all() and (scale > 0.0).all()):
        raise InvalidDataError(
            f"the prior {parameter.prior.name} of {path} has no finite median and positive width "
            f"in unconstrained space (two thirds of it lie between {low} and {high})"
        )
    return np.broadcast_to(mean, parameter.shape), np.broadcast_to(scale, parameter.shape)


def _copy_to_trace(module: tf.Module) -> tf.Module:
    """A copy that shares what is not trained with the original, so that a change of it is seen.

    The softplus of TensorFlow Probability has a gradient of its own, which gets lost where
    functions are vectorised over values of ε: what is left of it is not finite for numbers above
    709. The copy takes TensorFlow's, which is the same function.
    """
    leaves = gpflow.utilities.parameter_dict(module).values()
    shared = [one for one in leaves if not one.trainable]
    shared += [one.prior for one in leaves if getattr(one, "prior", None) is not None]
    clone = copy.deepcopy(module, {id(one): one for one in shared})
    for parameter in gpflow.utilities.parameter_dict(clone).values():
        if parameter.trainable:
            for softplus in _softpluses(parameter.transform):
                softplus._forward = tf.math.softplus
    return clone


def _softpluses(transform: Any) -> list[tfp.bijectors.Softplus]:
    """Every plain softplus that a transform is a chain of."""
    parts = transform.bijectors if isinstance(transform, tfp.bijectors.Chain) else [transform]
    if len(parts) > 1:
        return [one for part in parts for one in _softpluses(part)]
    is_plain = isinstance(parts[0], tfp.bijectors.Softplus) and parts[0].hinge_softness is None
    return [parts[0]] if is_plain and parts[0].low is None else []
