"""Whether kernel, mean function and likelihood are what they should be, and take these inputs."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes.exceptions import ShapeMismatchError

from streaming_gp.errors import InvalidDataError

_KINDS = {
    "kernel": (gpflow.kernels.Kernel, "a GPflow kernel"),
    "likelihood": (gpflow.likelihoods.Likelihood, "a GPflow likelihood"),
    "mean_function": (gpflow.functions.MeanFunction, "a GPflow mean function or None"),
}
_REFUSALS = (ValueError, TypeError, tf.errors.InvalidArgumentError, ShapeMismatchError)


def refuse_other_kinds(kernel: Any, likelihood: Any, mean_function: Any) -> None:
    """Refuse what is no object of GPflow of its kind.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    given = {"kernel": kernel, "likelihood": likelihood, "mean_function": mean_function}
    for name, value in given.items():
        kind, wanted = _KINDS[name]
        if not (isinstance(value, kind) or (value is None and name == "mean_function")):
            raise InvalidDataError(f"{name} must be {wanted}, got {value!r:.100}")


def refuse_misfits(kernel: Any, mean_function: Any, input_dim: int, num_latent: int) -> None:
    """Refuse a kernel or mean function that cannot be evaluated at inputs of so many columns.

    :param num_latent: The number of latent functions; a mean has one column, or one for each.
    :raises InvalidDataError: naming which, and why.
    """
    X = tf.zeros([2, input_dim], tf.float64)
    for part in kernel.submodules if isinstance(kernel, tf.Module) else ():
        _refuse_columns(part, input_dim)
    _refuse_columns(kernel, input_dim)
    for one in getattr(kernel, "latent_kernels", (kernel,)):
        found = _evaluated("the kernel", lambda one=one: one(X), input_dim)
        if found.dtype != tf.float64:
            raise InvalidDataError(f"the kernel gives {found.dtype.name}, wanted float64")
    mean = _evaluated("the mean function", lambda: mean_function(X), input_dim)
    columns = {(2, 1), (1, 1), (2, num_latent), (1, num_latent)}
    if mean.dtype != tf.float64 or tuple(mean.shape) not in columns:
        raise InvalidDataError(
            f"the mean function gives {mean.dtype.name} of shape {list(mean.shape)} at 2 inputs, "
            f"wanted float64 of shape [2, {num_latent}]"
        )


def _refuse_columns(kernel: Any, input_dim: int) -> None:
    dims = getattr(kernel, "active_dims", slice(None))
    if not isinstance(dims, slice) and not all(0 <= d < input_dim for d in np.ravel(dims)):
        raise InvalidDataError(
            f"active_dims of {type(kernel).__name__} are {list(np.ravel(dims))}, but inputs have "
            f"{input_dim} columns, counted from 0"
        )


def _evaluated(what: str, call: Any, input_dim: int) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(call())
    except _REFUSALS as error:
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidDataError(
            f"{what} cannot be evaluated at inputs of {input_dim} columns: {why:.200}"
        ) from error


def refuse_indices(kernel: Any, X: np.ndarray) -> None:
    """Refuse indices of outputs that a ``Coregion`` kernel does not have.

    :param X: The inputs [N, D].
    :raises InvalidDataError: naming the first.
    """
    for part in _coregions(kernel) if _has_coregions(kernel) else ():
        indices = np.ravel(X[:, part.active_dims])
        fits = (indices >= 0) & (indices < part.output_dim) & (np.round(indices) == indices)
        if not fits.all():
            raise InvalidDataError(
                f"inputs hold the output {indices[~fits][0]:g}, but Coregion has outputs 0 to "
                f"{part.output_dim - 1}"
            )


_KNOWN: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""Whether a kernel has a ``Coregion`` in it: to look takes milliseconds, at each batch."""


def _has_coregions(kernel: Any) -> bool:
    if kernel not in _KNOWN:
        _KNOWN[kernel] = bool(_coregions(kernel))
    return _KNOWN[kernel]


def _coregions(kernel: Any) -> list[Any]:
    parts = (kernel, *kernel.submodules)
    return [part for part in parts if isinstance(part, gpflow.kernels.Coregion)]
