"""What counts as one unit of a hyperparameter: default priors and fits are made in these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

LARGEST_OFFSET = 10.0
"""An offset counts as known to so many standard deviations of f, however large it is: with a prior
as wide as a large offset q(ε) starts where all is noise, and stays there."""


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
        self._weights = _weights(module)
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
        return id(one) in self._offsets and not has_transform(one)

    def _of_one(self, one: gpflow.Parameter, value: np.ndarray, deviation: float) -> np.ndarray:
        if self.is_a_weight(one):
            return np.full(one.shape, self._weights[id(one)])
        if self._is_an_offset(one):
            return np.clip(np.abs(value), deviation, LARGEST_OFFSET * deviation)
        return unit_log_width(one, value)

    def _deviation_of_f(self, pieces: Sequence[tuple[gpflow.Parameter, Any]]) -> float:
        """The root of what the kernel's variances add up to; one if it has none."""
        learned = {id(one): forward(one, value) for one, value in pieces}
        total = sum(float(np.sum(learned.get(id(one), one))) for one in self._variances)
        return total**0.5 if self._variances else 1.0


def has_transform(parameter: gpflow.Parameter) -> bool:
    """Whether its constrained value is another one than the unconstrained."""
    identity = tfp.bijectors.Identity
    return parameter.transform is not None and not isinstance(parameter.transform, identity)


def forward(parameter: gpflow.Parameter, unconstrained: Any) -> Any:
    """Constrained values."""
    if parameter.transform is None:
        return unconstrained
    return parameter.transform.forward(tf.convert_to_tensor(unconstrained, parameter.dtype))


def unit_log_width(parameter: gpflow.Parameter, at: Any) -> np.ndarray:
    """Change of the unconstrained value that changes the constrained value e-fold, to first order.

    :param at: The unconstrained value, in the parameter's shape.

    Close to a lower bound of the constrained value no finite change does; the width is therefore
    at most ``2 max(1, u)``, which the plain softplus never reaches.
    """
    unconstrained = np.asarray(at)
    if not has_transform(parameter):
        return np.maximum(1.0, np.abs(unconstrained))
    with tf.GradientTape() as tape:
        point = tf.convert_to_tensor(unconstrained)
        tape.watch(point)
        constrained = parameter.transform.forward(point)
    slope = np.abs(tape.gradient(constrained, point).numpy())
    widest = 2.0 * np.maximum(1.0, unconstrained)
    reached = np.abs(constrained.numpy()) < widest * slope
    return np.where(reached, np.abs(constrained.numpy()) / np.where(reached, slope, 1.0), widest)


def periods(module: tf.Module) -> set[int]:
    """The ids of the parameters that are called periods, and of the lengthscales of cosines."""
    named = gpflow.utilities.parameter_dict(module)
    parts = (module, *module.submodules)
    cosines = [part for part in parts if isinstance(part, gpflow.kernels.Cosine)]
    called = {id(p) for path, p in named.items() if path.endswith(".period")}
    return called | {id(kernel.lengthscales) for kernel in cosines}


def _weights(module: tf.Module) -> dict[int, float]:
    """``1/√L`` of every kernel that mixes L functions, by the id of its weights."""
    mixing = gpflow.kernels.LinearCoregionalization
    kernels = [part for part in (module, *module.submodules) if isinstance(part, mixing)]
    return {id(kernel.W): float(kernel.num_latent_gps) ** -0.5 for kernel in kernels}
