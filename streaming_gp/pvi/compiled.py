"""Compiled functions of a model, made once and kept as long as the model lives; and their inputs.

Compiled functions take tensors, not objects: natural parameters go in and out as plain tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, proxy

import tensorflow as tf

from streaming_gp.expfam import Factor

F = TypeVar("F", bound=Callable[..., Any])

_OF_MODELS: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()


def compiled_for(model: Any, key: Hashable, build: Callable[[Any], F]) -> F:
    """The result of ``build(model)`` when it was first asked for under this model and key.

    It is built for a proxy of the model, so that it does not keep the model alive.
    """
    functions = _OF_MODELS.setdefault(model, {})
    if key not in functions:
        functions[key] = build(proxy(model))
    function: F = functions[key]
    return function


def tensors(arrays: Iterable[Any]) -> tuple[tf.Tensor, ...]:
    """Natural parameters, or data, as tensors of the dtypes that they have."""
    return tuple(tf.convert_to_tensor(array) for array in arrays)


def factor_tensors(factor: Factor) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
    """A factor's natural parameters and log constant, tensors of one dtype."""
    natural = tensors(factor.natural)
    return natural, tf.cast(factor.log_scale, natural[0].dtype)
