"""Assertions of all checks, which say in a sentence what does not hold."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, TypeVar

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.serialization import registered_classes

T = TypeVar("T")


def ensure(holds: Any, sentence: str) -> None:
    """Check that something holds."""
    if not holds:
        raise AssertionError(f"does not hold: {sentence}")


def ensure_close(value: Any, wanted: Any, sentence: str, tolerance: float) -> None:
    """Check that two arrays agree, relative to the largest entry of the wanted one."""
    value, wanted = np.asarray(value, np.float64), np.asarray(wanted, np.float64)
    ensure(value.shape == wanted.shape, f"{sentence} (shapes {value.shape} and {wanted.shape})")
    error = np.max(np.abs(value - wanted), initial=0.0)
    scale = 1.0 + np.max(np.abs(wanted), initial=0.0)
    ensure(error <= tolerance * scale, f"{sentence} (they differ by {error:.3g})")


def ensure_same(value: Any, wanted: Any, sentence: str, tolerance: float = 0.0) -> None:
    """Check that two distributions or factors have the same natural parameters.

    :param tolerance: The largest difference, relative to the largest entry; 0 for bit by bit.
    """
    ensure(len(value.natural) == len(wanted.natural), sentence)
    for a, b in zip(value.natural, wanted.natural, strict=True):
        ensure_close(a, b, sentence, tolerance)


def ensure_refused(call: Callable[[], Any], what: str) -> None:
    """Check that a call raises ``InvalidDataError``.

    :param what: What the call is about, as the subject of a sentence.
    """
    sentence = f"does not hold: {what} is refused with InvalidDataError"
    try:
        call()
    except InvalidDataError:
        return
    except Exception as error:
        raise AssertionError(f"{sentence} (got {error!r})") from error
    raise AssertionError(sentence)


def copies(original: T, what: str) -> list[T]:
    """A deep copy, and one that was pickled on the way.

    :param what: What the original is, as the subject of a sentence.
    """
    try:
        return [copy.deepcopy(original), pickle.loads(pickle.dumps(original))]
    except Exception as error:
        message = f"does not hold: {what} can be copied and pickled (got {error!r})"
        raise AssertionError(message) from error


def ensure_storable(strategy: Any, what: str) -> None:
    """Check that a strategy is a frozen dataclass that files can hold and processes exchange.

    :param what: What the strategy is, as the subject of a sentence.
    """
    cls = type(strategy)
    frozen = is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    ensure(frozen, f"{what} is a frozen dataclass")
    registered = registered_classes().get(cls.__name__) is cls
    ensure(registered, f"{cls.__name__} is registered by streaming_gp.serialization.storable")
    for one in copies(strategy, what):
        ensure(one == strategy, f"a copy of {what} is equal to it")
