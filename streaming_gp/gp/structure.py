"""What a kernel, mean function and likelihood are, in words, and the values they hold.

Files hold no code: the caller of ``load`` gives the modules anew, and they must be those that the
file was written with, in everything that predictions or further updates depend on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from streaming_gp.errors import InvalidDataError

Modules = Mapping[str, Any]
"""Kernel, mean function and likelihood by these names."""

_WITH_PARAMETERS = (tfp.bijectors.Bijector, tfp.distributions.Distribution)
_LONGEST_ARRAY = 64


def structure(modules: Modules) -> dict[str, str]:
    """Classes, settings and parameters (with shape, transform, prior, trainability) by path.

    Settings are the public attributes that are numbers, strings, arrays or functions, and
    ``active_dims``; functions go by name.
    """
    found: dict[str, str] = {}
    for path, module in modules.items():
        found.update(_settings(path, module))
    owners: dict[int, str] = {}
    for path, leaf in leaves(modules).items():
        owner = owners.setdefault(id(leaf), path)
        found[path] = _leaf_text(leaf) if owner == path else f"the same as {owner}"
    return found


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
    """What holds the unconstrained value of a parameter or variable."""
    return leaf.unconstrained_variable if isinstance(leaf, gpflow.Parameter) else leaf


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
