"""Checks data once, before a model looks at them: for every model with a GPflow likelihood."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import gpflow
import gpflow.likelihoods as gl
import numpy as np
import tensorflow as tf
from check_shapes.exceptions import ShapeMismatchError

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import as_float64, as_pair, as_real_array

Data = tuple[np.ndarray, np.ndarray]
"""Inputs X [N, D] and observations Y [N, P]."""

SEVERAL_CLASSES = (gl.Softmax, gl.MultiClass)
"""Likelihoods whose labels are numbers from 0, and whose means [N, C] are probabilities."""

_LARGEST_SQUARED = 1e150


@runtime_checkable
class WrapsLikelihood(Protocol):
    """A likelihood that takes the observations of another one, such as a loss in its place."""

    @property
    def likelihood(self) -> gl.Likelihood:
        """The GPflow likelihood whose support observations must lie in."""


def number_of_classes(likelihood: Any) -> int | None:
    """Two for a Bernoulli likelihood, C for one of several classes, and None for any other."""
    if isinstance(likelihood, gl.Bernoulli):
        return 2
    return int(likelihood.num_classes) if isinstance(likelihood, SEVERAL_CLASSES) else None


def as_matrix(name: str, values: Any, columns: int | None, missing: bool = False) -> np.ndarray:
    """``values`` as a finite float64 matrix [N, columns], N ≥ 1.

    :param name: What to call the array in the error.
    :param values: What :func:`~streaming_gp.inputs.as_real_array` takes.
    :param columns: The wanted number of columns; None for any positive number.
    :param missing: Whether entries may be NaN, too.
    """
    array = as_real_array(name, values)
    wanted = f"[N, {columns if columns is not None else 'columns'}] with N ≥ 1"
    if array.ndim != 2 or 0 in array.shape or columns not in (None, array.shape[1]):
        raise InvalidDataError(f"{name} must have shape {wanted}, got {list(array.shape)}")
    array = as_float64(name, array)
    is_bad = ~np.isfinite(array) & ~(missing & np.isnan(array))
    if is_bad.any():
        bad = np.argwhere(is_bad)
        row, column = bad[0]
        raise InvalidDataError(
            f"{name} must be finite, but {len(bad)} of {array.size} entries are not; the first is "
            f"{array[row, column]} at row {row}, column {column}"
        )
    return array


def as_data(
    data: Any,
    likelihood: gl.Likelihood,
    input_dim: int | None,
    output_dim: int | None,
    missing: bool = False,
) -> Data:
    """X [N, D] and Y [N, P] as float64, Y within the likelihood's support.

    :param data: The pair (X, Y), as :func:`as_matrix` takes each of them.
    :param likelihood: The GPflow likelihood of Y, or one that :class:`WrapsLikelihood`.
    :param input_dim: The wanted D; None for any.
    :param output_dim: The wanted P; None for any.
    :param missing: Whether entries of Y may be NaN; rows without any other are left out.
    """
    X, Y = as_pair(data)
    X, Y = as_matrix("X", X, input_dim), as_matrix("Y", Y, output_dim, missing)
    if len(X) != len(Y):
        raise InvalidDataError(f"X and Y must have as many rows, got {len(X)} and {len(Y)}")
    is_missing = np.isnan(Y)
    if not is_missing.any():
        check_support(likelihood, X, Y)
        return X, Y
    if is_missing.all():
        raise InvalidDataError("all entries of Y are missing: wanted at least one observation")
    check_support(likelihood, X, np.where(is_missing, Y[~is_missing][0], Y))
    some = ~is_missing.all(axis=1)
    return X[some], Y[some]


def require_posterior(q: Any, prior: Any) -> None:
    """Refuse what is no posterior of a model.

    :param q: What came.
    :param prior: The prior of the model: a posterior has its family and its shapes.
    """
    form = getattr(q, "form", type(q).__name__)
    if form != prior.form:
        raise InvalidDataError(f"wanted as posterior a {prior.form}, got a {form}")


def check_support(likelihood: gl.Likelihood, X: np.ndarray, Y: np.ndarray) -> None:
    """Refuse observations to which the likelihood gives no density.

    :param likelihood: The GPflow likelihood of Y, or one that :class:`WrapsLikelihood`.
    :param X: Inputs [N, D].
    :param Y: Observations [N, P].
    """
    if isinstance(likelihood, WrapsLikelihood):
        likelihood = likelihood.likelihood
    if isinstance(likelihood, SEVERAL_CLASSES) and Y.shape[1] != 1:
        raise InvalidDataError(
            f"{type(likelihood).__name__} wants one column of class labels, got {Y.shape[1]}"
        )
    described = _support(likelihood, Y)
    if described is not None and not described[0].all():
        inside, support = described
        raise InvalidDataError(
            f"Y holds {Y[~inside][0]:g}, outside the support of {type(likelihood).__name__}: "
            f"wanted {support}"
        )
    if isinstance(likelihood, gl.SwitchedLikelihood):
        _check_switch(likelihood, Y)
    elif not _has_constant_noise(likelihood):
        _check_density(likelihood, X, Y)


def _check_switch(likelihood: gl.SwitchedLikelihood, Y: np.ndarray) -> None:
    which, number = Y[:, -1:], len(likelihood.likelihoods)
    if not ((which >= 0) & (which < number) & (np.round(which) == which)).all():
        raise InvalidDataError(f"the last column of Y must say which likelihood, 0 to {number - 1}")


def _support(likelihood: gl.Likelihood, Y: np.ndarray) -> tuple[np.ndarray, str] | None:
    whole = np.round(Y) == Y
    if isinstance(likelihood, gl.Bernoulli):
        return (Y == 0) | (Y == 1), "0 or 1"
    if isinstance(likelihood, gl.Poisson):
        return whole & (Y >= 0), "counts 0, 1, 2, ..."
    if isinstance(likelihood, SEVERAL_CLASSES):
        classes = int(likelihood.num_classes)
        return whole & (Y >= 0) & (classes > Y), f"class labels 0 to {classes - 1}"
    if isinstance(likelihood, gl.Ordinal):
        levels = int(likelihood.num_bins)
        return whole & (Y >= 0) & (levels > Y), f"levels 0 to {levels - 1}"
    if isinstance(likelihood, (gl.Exponential, gl.Gamma)):
        return Y > 0, "positive numbers"
    if _has_constant_noise(likelihood):
        return np.abs(Y) < _LARGEST_SQUARED, f"numbers below {_LARGEST_SQUARED:g} in size"
    if isinstance(likelihood, gl.Beta):
        return (Y > 0) & (Y < 1), "numbers strictly between 0 and 1"
    return None


def class_of_all(likelihood: gl.Likelihood, Y: np.ndarray) -> float | None:
    """The class of all labels, if the likelihood is one of classes and they are all alike.

    :param likelihood: The GPflow likelihood of Y, or one that :class:`WrapsLikelihood`.
    :param Y: Observations [N, P].
    """
    if isinstance(likelihood, WrapsLikelihood):
        likelihood = likelihood.likelihood
    are_classes = number_of_classes(likelihood) is not None
    return float(Y[0, 0]) if are_classes and (Y[0, 0] == Y).all() else None


def _has_constant_noise(likelihood: gl.Likelihood) -> bool:
    """Gaussian noise of one size, whose density need not be computed to know that it is finite."""
    return type(likelihood) is gl.Gaussian and all(
        isinstance(size, gpflow.Parameter) and size.shape.rank == 0
        for size in (likelihood.variance, likelihood.scale)
        if size is not None
    )


def _check_density(likelihood: gl.Likelihood, X: np.ndarray, Y: np.ndarray) -> None:
    """The density at f = 0 must be finite, whatever the likelihood."""
    latent = likelihood.latent_dim or Y.shape[1]
    F = tf.zeros([len(Y), latent], tf.float64)
    Y_as_wanted = observations(likelihood, tf.constant(Y))
    try:
        log_density = np.asarray(likelihood.log_prob(X, F, Y_as_wanted))
    except (ShapeMismatchError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise InvalidDataError(
            f"{type(likelihood).__name__} and its parameters do not fit Y of shape {list(Y.shape)}"
        ) from error
    if not np.isfinite(log_density).all():
        row = int(np.argmin(np.isfinite(log_density)))
        raise InvalidDataError(
            f"{type(likelihood).__name__} gives no finite density to Y at row {row}: {Y[row]}"
        )


def observations(likelihood: gl.Likelihood, Y: tf.Tensor) -> tf.Tensor:
    """Y in the dtype that the likelihood's density wants."""
    return tf.cast(Y, tf.int32) if isinstance(likelihood, gl.Softmax) else Y
