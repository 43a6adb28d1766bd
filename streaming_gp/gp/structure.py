"""Kernel, mean function and likelihood: what they are in words, their values, and what is refused.

Files hold no code: the caller of ``load`` gives the modules anew, and they must be those that the
file was written with, in everything that predictions or further updates depend on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from check_shapes.exceptions import ShapeMismatchError

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.gp.process.prior import depends_on_differences

Modules = Mapping[str, Any]
"""Kernel, mean function and likelihood by these names."""

_WITH_PARAMETERS = (tfp.bijectors.Bijector, tfp.distributions.Distribution)
_LONGEST_ARRAY = 64
_KINDS = {
    "kernel": (gpflow.kernels.Kernel, "a GPflow kernel"),
    "likelihood": (gpflow.likelihoods.Likelihood, "a GPflow likelihood"),
    "mean_function": (gpflow.functions.MeanFunction, "a GPflow mean function or None"),
}
SMALLEST_NOISE = 1e-12
"""The lower bound of the variance of Gaussian noise, unless another was chosen."""
ROUNDING = 1e-15
"""Of a covariance, as a part of the variances."""
_HAS_COREGIONS: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""By kernel: to look takes milliseconds, at each batch."""
_REFUSALS = (ValueError, TypeError, tf.errors.InvalidArgumentError, ShapeMismatchError)


def structure(modules: Modules) -> dict[str, str]:
    """Classes, settings and parameters (with shape, transform, prior, trainability) by path.

    Settings are the public attributes that are numbers, strings, arrays or functions, and
    ``active_dims``; functions go by name.
    """
    words: dict[str, str] = {}
    for path, module in modules.items():
        words.update(_settings(path, module))
    owners: dict[int, str] = {}
    for path, leaf in leaves(modules).items():
        owner = owners.setdefault(id(leaf), path)
        words[path] = _leaf_text(leaf) if owner == path else f"the same as {owner}"
    return words


def refuse_difference(file: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Compare two structures.

    :param file: The structure of the modules that the file was written with.
    :param given: The structure of the modules that the caller gave.
    :raises InvalidDataError: if they differ; names the first difference.
    """
    for path in {**file, **given}:
        wanted, got = file.get(path, "nothing"), given.get(path, "nothing")
        if wanted != got:
            raise InvalidDataError(f"{path} does not fit the file: wanted {wanted}, got {got}")


def refuse_change(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse modules that are others than those that a model has learned with.

    :raises InvalidDataError: if they differ; names the first difference.
    """
    for path in {**before, **now}:
        if before.get(path) != now.get(path):
            raise InvalidDataError(
                f"{path} has changed since the model last learned, which rests on it: it was "
                f"{before.get(path, 'nothing')}, and is {now.get(path, 'nothing')}"
            )


def leaves(modules: Modules) -> dict[str, Any]:
    """Every parameter and variable by path, trainable or not."""
    return {
        f"{name}{path}": leaf
        for name, module in modules.items()
        for path, leaf in gpflow.utilities.parameter_dict(module).items()
    }


def variable(leaf: Any) -> tf.Variable:
    """The variable that holds the unconstrained value of a parameter, or a variable itself."""
    return leaf.unconstrained_variable if isinstance(leaf, gpflow.Parameter) else leaf


def values(modules: Modules) -> dict[str, np.ndarray]:
    """The unconstrained values of all parameters and variables, by path."""
    return {path: np.array(variable(leaf)) for path, leaf in leaves(modules).items()}


def assign(
    modules: Modules, values: Mapping[str, np.ndarray], only: Collection[str] | None = None
) -> None:
    """Give parameters and variables their values.

    :param only: Their paths; by default all.
    """
    for path, leaf in leaves(modules).items():
        if only is None or path in only:
            variable(leaf).assign(values[path])


def refuse_values(modules: Modules, values: Mapping[str, np.ndarray]) -> None:
    """Refuse values that kernel, mean function and likelihood cannot take.

    :raises FileFormatError: naming the first.
    """
    for path, leaf in leaves(modules).items():
        wanted, value = variable(leaf), values.get(path)
        fits = (
            isinstance(value, (np.ndarray, np.generic))
            and value.dtype == wanted.dtype.as_numpy_dtype
            and value.shape == tuple(wanted.shape)
            and bool(np.isfinite(value).all())
        )
        if not fits:
            raise FileFormatError(
                f"the value of {path} does not fit: wanted finite {wanted.dtype.name} of shape "
                f"{list(wanted.shape)}, got {value!r:.60}"
            )


def refuse_other_kinds(kernel: Any, likelihood: Any, mean_function: Any) -> None:
    """Refuse what is no object of GPflow of its kind.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    modules = {"kernel": kernel, "likelihood": likelihood, "mean_function": mean_function}
    for name, value in modules.items():
        kind, wanted = _KINDS[name]
        if not (isinstance(value, kind) or (value is None and name == "mean_function")):
            raise InvalidDataError(f"{name} must be {wanted}, got {value!r:.100}")


@contextmanager
def noise_bound_as_it_was(likelihood: Any) -> Iterator[None]:
    """If anything raises, what :func:`lower_noise_bound` has changed is as it was."""
    names = "variance", "scale", "variance_lower_bound", "scale_lower_bound"
    before = {name: getattr(likelihood, name) for name in names if hasattr(likelihood, name)}
    try:
        yield
    except BaseException:
        for name, value in before.items():
            setattr(likelihood, name, value)
        raise


def lower_noise_bound(likelihood: Any) -> None:
    """Let Gaussian noise become as small as data say, where it has GPflow's own lower bound.

    GPflow keeps its variance above 1e-6, so that Cholesky factors of nearly singular matrices stay
    possible; here these have a jitter of their own. A bound that was chosen stays.
    """
    if type(likelihood) is not gpflow.likelihoods.Gaussian:
        return
    if likelihood.variance_lower_bound != gpflow.config.default_likelihood_positive_minimum():
        return
    likelihood.variance_lower_bound = SMALLEST_NOISE
    likelihood.scale_lower_bound = SMALLEST_NOISE**0.5
    for name, lower in (("variance", SMALLEST_NOISE), ("scale", SMALLEST_NOISE**0.5)):
        value = getattr(likelihood, name)
        if isinstance(value, gpflow.Parameter):
            lower_one = gpflow.Parameter(
                np.maximum(value.numpy(), 2.0 * lower),
                transform=gpflow.utilities.positive(lower=lower),
                prior=value.prior,
                prior_on=value.prior_on,
                trainable=value.trainable,
            )
            setattr(likelihood, name, lower_one)


def refuse_misfits(kernel: Any, mean_function: Any, input_dim: int, num_latent: int) -> None:
    """Refuse a kernel or mean function that cannot be evaluated at inputs of so many columns.

    :param num_latent: The number of latent functions; a mean has one column, or one for each.
    :raises InvalidDataError: naming which, and why.
    """
    X = tf.zeros([2, input_dim], tf.float64)
    _refuse_all_columns(kernel, input_dim)
    for one in getattr(kernel, "latent_kernels", (kernel,)):
        covariance = _evaluated("the kernel", lambda one=one: one(X), input_dim)
        if covariance.dtype != tf.float64:
            raise InvalidDataError(f"the kernel gives {covariance.dtype.name}, wanted float64")
    mean = _evaluated("the mean function", lambda: mean_function(X), input_dim)
    columns = {(2, 1), (1, 1), (2, num_latent), (1, num_latent)}
    if mean.dtype != tf.float64 or tuple(mean.shape) not in columns:
        raise InvalidDataError(
            f"the mean function gives {mean.dtype.name} of shape {list(mean.shape)} at 2 inputs, "
            f"wanted float64 of shape [2, {num_latent}]"
        )


def _refuse_all_columns(kernel: Any, input_dim: int) -> None:
    for part in (*kernel.submodules, kernel) if isinstance(kernel, tf.Module) else (kernel,):
        _refuse_columns(part, input_dim)


def _refuse_columns(kernel: Any, input_dim: int) -> None:
    dims = getattr(kernel, "active_dims", slice(None))
    if not isinstance(dims, slice) and not all(0 <= d < input_dim for d in np.ravel(dims)):
        raise InvalidDataError(
            f"active_dims of {type(kernel).__name__} are {list(np.ravel(dims))}, but inputs have "
            f"{input_dim} columns, counted from 0"
        )
    read = len(range(input_dim)[dims]) if isinstance(dims, slice) else np.size(dims)
    for name in ("lengthscales", "period"):  # those of one column would be read as those of several
        given = np.size(getattr(kernel, name, 1.0))
        if read == 1 < given:
            raise InvalidDataError(
                f"{type(kernel).__name__} has {given} {name}, but reads one column of inputs"
            )


def _evaluated(what: str, call: Any, input_dim: int) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(call())
    except _REFUSALS as error:
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InvalidDataError(
            f"{what} cannot be evaluated at inputs of {input_dim} columns: {why:.200}"
        ) from error


def refuse_lost_digits(kernel: Any, likelihood: Any, X: np.ndarray, Y: np.ndarray) -> None:
    """Refuse inputs so far from zero that covariances are rounded by more than the noise, as those
    of a ``Linear`` kernel at time stamps; kernels that depend on differences alone keep their
    digits.

    :param X: The inputs [N, D].
    :param Y: The targets [N, P].
    :raises InvalidDataError: naming the farthest; or as :func:`refuse_misfits`.
    """
    kernels = getattr(kernel, "latent_kernels", [kernel])
    if all(depends_on_differences(one) for one in kernels):
        return
    _refuse_all_columns(kernel, X.shape[1])
    noise = 1.0
    if type(likelihood) is gpflow.likelihoods.Gaussian:
        noise = float(np.min(likelihood.conditional_variance(X, np.zeros_like(Y))))
    for one in kernels:
        found = _evaluated("the kernel", lambda one=one: one(X, full_cov=False), X.shape[1])
        variance = np.asarray(found)
        if not depends_on_differences(one) and variance.max() > noise / ROUNDING:
            raise InvalidDataError(lost_digits(X[int(variance.argmax())]))


def lost_digits(x: np.ndarray) -> str:
    """What to say where a kernel is not stationary and an input [D] too far from zero."""
    return (
        f"inputs reach {float(np.abs(x).max()):.6g}, where covariances of this kernel, which does "
        "not depend on differences alone, are rounded by more than the noise: wanted inputs about "
        "zero, such as the time since the first one"
    )


def refuse_indices(kernel: Any, X: np.ndarray) -> None:
    """Refuse indices of outputs that a ``Coregion`` kernel does not have.

    :param X: The inputs [N, D].
    :raises InvalidDataError: naming the first.
    """
    if kernel not in _HAS_COREGIONS:
        _HAS_COREGIONS[kernel] = bool(_coregions(kernel))
    for part in _coregions(kernel) if _HAS_COREGIONS[kernel] else ():
        _refuse_columns(part, X.shape[1])
        indices = np.ravel(X[:, part.active_dims])
        fits = (indices >= 0) & (indices < part.output_dim) & (np.round(indices) == indices)
        if not fits.all():
            raise InvalidDataError(
                f"inputs hold the output {indices[~fits][0]:g}, but Coregion has outputs 0 to "
                f"{part.output_dim - 1}"
            )


def _coregions(kernel: Any) -> list[Any]:
    parts = (kernel, *kernel.submodules)
    return [part for part in parts if isinstance(part, gpflow.kernels.Coregion)]


def _settings(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, (gpflow.Parameter, tf.Variable)):
        return
    if isinstance(value, tf.Module):
        yield path, type(value).__name__
        for name, part in vars(value).items():
            if not name.startswith("_") or name == "_active_dims":
                yield from _settings(f"{path}.{name.removeprefix('_')}", part)
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _settings(f"{path}[{index}]", part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _settings(f"{path}[{key!r}]", part)
    elif isinstance(value, (bool, int, float, str, slice, np.ndarray, np.generic)):
        yield path, _text(value)
    elif callable(value):
        yield path, getattr(value, "__qualname__", type(value).__name__)


def _leaf_text(leaf: Any) -> str:
    role = "trainable" if leaf.trainable else "fixed"
    text = f"{role} {leaf.dtype.name} of shape {list(leaf.shape)}"
    if not isinstance(leaf, gpflow.Parameter):
        return f"{text}, a plain variable"
    prior = "" if leaf.prior is None else f", prior {_text(leaf.prior)} {leaf.prior_on.value}"
    return f"{text}, transform {_text(leaf.transform)}{prior}"


def _text(value: Any) -> str:
    """A setting, or a transform or distribution with its numeric parameters."""
    if isinstance(value, _WITH_PARAMETERS):
        numbers = {k: v for k, v in value.parameters.items() if _is_number_or_nested(v)}
        return f"{type(value).__name__}({', '.join(f'{k}={_text(v)}' for k, v in numbers.items())})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_text(part) for part in value)}]"
    if isinstance(value, np.ndarray) or tf.is_tensor(value):
        return _array_text(np.asarray(value))
    return repr(value)


def _is_number_or_nested(value: Any) -> bool:
    numeric = isinstance(value, (int, float, list, tuple, np.ndarray, np.generic))
    return not isinstance(value, bool) and (
        numeric or tf.is_tensor(value) or isinstance(value, _WITH_PARAMETERS)
    )


def _array_text(array: np.ndarray) -> str:
    if array.size <= _LONGEST_ARRAY:
        return repr(array.tolist())
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"{array.dtype} of shape {list(array.shape)} with SHA-256 {digest[:16]}"
