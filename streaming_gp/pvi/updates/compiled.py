"""Compiled functions of a model, made once and kept as long as the model lives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

F = TypeVar("F", bound=Callable[..., Any])

_OF_MODELS: WeakKeyDictionary[Any, dict[Hashable, Any]] = WeakKeyDictionary()


def compiled_for(model: Any, key: Hashable, build: Callable[[], F]) -> F:
    """What ``build()`` gave when it was first asked for under this model and key."""
    kept = _OF_MODELS.setdefault(model, {})
    if key not in kept:
        kept[key] = build()
    built: F = kept[key]
    return built
