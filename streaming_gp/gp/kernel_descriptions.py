"""GPflow's kernels as plain values, from which :mod:`streaming_gp.runtime` makes NumPy forms."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow import kernels as gk

from streaming_gp.errors import InvalidDataError
from streaming_gp.runtime import Description

_STATIONARY = ("variance", "lengthscales")
_PARAMETERS: dict[type, tuple[str, ...]] = {
    gk.SquaredExponential: _STATIONARY,
    gk.RationalQuadratic: (*_STATIONARY, "alpha"),
    gk.Exponential: _STATIONARY,
    gk.Matern12: _STATIONARY,
    gk.Matern32: _STATIONARY,
    gk.Matern52: _STATIONARY,
    gk.Cosine: _STATIONARY,
    gk.Periodic: ("period",),
    gk.Linear: ("variance",),
    gk.Polynomial: ("variance", "offset", "degree"),
    gk.Constant: ("variance",),
    gk.White: ("variance",),
    gk.Sum: (),
    gk.Product: (),
}


def describe_kernel(kernel: gk.Kernel, input_dim: int) -> Description:
    """A single-output kernel at the values that its parameters hold now.

    Within ``ParameterVector.substituted(epsilon)`` these are the values at that ε.

    :param kernel: A kernel of GPflow.
    :param input_dim: The number D of columns of X.
    :raises InvalidDataError: if it is, or is made of, another kernel than those with a NumPy form,
        such as a subclass; names it.
    """
    parts = tuple(describe_kernel(part, input_dim) for part in _parts(kernel))
    described = describe("kernel", kernel, _PARAMETERS)
    columns = None if parts else _columns(kernel.active_dims, input_dim)
    return Description(described.name, described.parameters, columns, parts)


def describe(kind: str, module: gpflow.Module, known: dict[type, tuple[str, ...]]) -> Description:
    """The name of a module's class, and its parameters.

    :param kind: What the module is, for the error.
    :param module: The module.
    :param known: The names of the parameters of every class that there is a NumPy form of.
    :raises InvalidDataError: for another class; names it and those that there are.
    """
    if type(module) not in known:
        raise InvalidDataError(
            f"the {kind} {type(module).__name__} has no NumPy form and cannot be exported; wanted "
            f"one of GPflow's {', '.join(cls.__name__ for cls in known)}"
        )
    names = known[type(module)]
    values = {name: constrained_value(getattr(module, name)) for name in names}
    return Description(type(module).__name__, values)


def constrained_value(parameter: Any) -> np.ndarray:
    """The value that a parameter, variable or number holds now."""
    is_parameter = isinstance(parameter, gpflow.Parameter)
    return np.asarray(tf.convert_to_tensor(parameter) if is_parameter else parameter, np.float64)


def _parts(kernel: gk.Kernel) -> Iterable[gk.Kernel]:
    if isinstance(kernel, gk.Periodic):
        return [kernel.base_kernel]
    return kernel.kernels if isinstance(kernel, (gk.Sum, gk.Product)) else []


def _columns(active_dims: Any, input_dim: int) -> np.ndarray | None:
    """The columns by number, or None for all of them."""
    if not isinstance(active_dims, slice):
        return np.asarray(active_dims)
    columns = np.arange(input_dim)[active_dims]
    return None if np.array_equal(columns, np.arange(input_dim)) else columns
