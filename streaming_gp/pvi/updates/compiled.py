"""Compiled functions of a model, made once and kept as long as the model lives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, proxy

F = TypeVar("F", bound=Callable[..., Any])

_OF_MODELS: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()


def compiled_for(model: Any, key: Hashable, build: Callable[[Any], F]) -> F:
    """What ``build(model)`` gave when it was first asked for under this model and key.

    It is built for a proxy of the model, so that what is kept does not keep the model.
    """
    kept = _OF_MODELS.setdefault(model, {})
    if key not in kept:
        kept[key] = build(proxy(model))
    built: F = kept[key]
    return built
