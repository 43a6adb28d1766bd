"""Checks of single arguments, each by the range that its name says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from streaming_gp.errors import InvalidDataError

C = TypeVar("C", bound=type)


def typed(cls: C) -> C:
    """Class decorator of dataclasses: what is annotated as a number, flag or name must be one.

    Before anything else looks at the arguments, those annotated with ``int``, ``float``, ``bool``,
    ``str`` and ``None``, or with unions of these, are checked. Booleans are no numbers, NaN is
    none, and integers are numbers or seeds of something, which are not negative.
    """
    kinds = {field.name: str(field.type).split(" | ") for field in fields(cls)}
    known = {name: kind for name, kind in kinds.items() if set(kind) <= {*_KINDS, "None"}}
    decorated: Any = cls
    made = decorated.__init__
    order = signature(made)

    @wraps(made)
    def checked(*arguments: Any, **options: Any) -> None:
        for name, value in order.bind(*arguments, **options).arguments.items():
            if name in known:
                _require_kind(f"{cls.__name__}.{name}", value, known[name])
                if "int" in known[name] and _is_integer(value):
                    require_count(f"{cls.__name__}.{name}", value)
        made(*arguments, **options)

    decorated.__init__ = checked
    return cls


def _require_kind(name: str, value: Any, kinds: Sequence[str]) -> None:
    if value is None and "None" in kinds:
        return
    wanted = [_KINDS[kind] for kind in kinds if kind != "None"]
    if not any(holds(value) for holds, _ in wanted):
        words = " or ".join(word for _, word in wanted)
        raise InvalidDataError(f"{name} must be {words}, got {value!r:.100}")


def require_number(name: str, value: float) -> None:
    """Refuse what is no real number of Python or NumPy; booleans and NaN are none.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    _require_kind(name, value, ["float"])


def require_integer(name: str, value: int) -> None:
    """Refuse what is no integer of Python or NumPy; booleans are none.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    _require_kind(name, value, ["int"])


def require_flag(name: str, value: bool) -> None:
    """Refuse what is neither true nor false.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    _require_kind(name, value, ["bool"])


def require_count(name: str, value: int) -> None:
    """Refuse what is not an integer, at least 0.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    if not (_is_integer(value) and value >= 0):
        raise InvalidDataError(f"{name} must be an integer, at least 0, got {value!r:.100}")


def require_positive(name: str, value: float) -> None:
    """Refuse what is not a number above zero.

    :param name: What to call the argument in the error.
    :param value: The number that came; NaN is refused.
    :raises InvalidDataError: naming what came and what was wanted.
    """
    _require_real(name, value)
    if not value > 0:
        raise InvalidDataError(f"{name} must be positive, got {value}")


def require_positive_integer(name: str, value: int) -> None:
    """Refuse what is not an integer of Python or NumPy above zero; booleans are none.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    if not _is_integer(value):
        raise InvalidDataError(f"{name} must be a positive integer, got {value!r}")
    require_positive(name, value)


def require_not_negative(name: str, value: float) -> None:
    """Refuse what is not a number in [0, ∞].

    :raises InvalidDataError: naming what came and what was wanted.
    """
    _require_real(name, value)
    if not value >= 0:
        raise InvalidDataError(f"{name} must not be negative, got {value}")


def require_above_one(name: str, value: float) -> None:
    """Refuse what is not a number above one.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    _require_real(name, value)
    if not value > 1:
        raise InvalidDataError(f"{name} must be greater than 1, got {value}")


def require_fraction(name: str, value: float) -> None:
    """Refuse what is not a number in (0, 1], such as the share of a whole that is not empty.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    _require_real(name, value)
    if not 0 < value <= 1:
        raise InvalidDataError(f"{name} must lie in (0, 1], got {value}")


def require_decay(name: str, value: float) -> None:
    """Refuse what is not a number in [0, 1), such as the decay of a moving average.

    :raises InvalidDataError: naming what came and what was wanted.
    """
    _require_real(name, value)
    if not 0 <= value < 1:
        raise InvalidDataError(f"{name} must lie in [0, 1), got {value}")


def require_probability(name: str, value: float) -> None:
    """Refuse what is not a number in [0, 1].

    :raises InvalidDataError: naming what came and what was wanted.
    """
    _require_real(name, value)
    if not 0 <= value <= 1:
        raise InvalidDataError(f"{name} must lie in [0, 1], got {value}")


def require_strategy(name: str, value: object, protocol: type, example: str) -> None:
    """Refuse what is no object of a protocol, such as its name, or a class in the place of one.

    :param protocol: The protocol, which can be asked for at run time.
    :param example: An object of it, as a user would write it.
    :raises InvalidDataError: naming what came and what was wanted.
    """
    if isinstance(value, type) or not isinstance(value, protocol):
        raise InvalidDataError(f"{name} must be a strategy such as {example}, got {value!r}")


def as_name(name: str, value: object) -> str:
    """A plain string, which files take as a key; strings of NumPy become one.

    :param name: What to call the argument in the error.
    :raises InvalidDataError: if it is no string.
    """
    if not isinstance(value, str):
        raise InvalidDataError(f"{name} must be a string, got {value!r}")
    return str(value)


def as_groups(groups: Sequence[int] | None, size: int) -> np.ndarray:
    """The group of each of so many things [size]; all are in group 0 if None.

    :raises InvalidDataError: if there is not one for each, or they do not count from 0.
    """
    found = np.zeros(size, int) if groups is None else np.asarray(groups)
    numbers = np.unique(found)
    if found.shape != (size,) or not np.array_equal(numbers, np.arange(len(numbers))):
        raise InvalidDataError(
            f"groups must be [{size}] and count from 0 without gaps, got {found}"
        )
    return found


def is_positive_integer(value: Any) -> bool:
    """Whether ``value`` is an integer of Python or NumPy above zero; booleans are none."""
    return _is_integer(value) and value > 0


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _require_real(name: str, value: Any) -> None:
    """NaN is in no range, which the caller says better."""
    if not (isinstance(value, float) and np.isnan(value)):
        require_number(name, value)


def _is_number(value: object) -> bool:
    return isinstance(value, (Real, np.floating)) and not isinstance(value, bool) and value == value


def _is_flag(value: object) -> bool:
    return isinstance(value, (bool, np.bool_))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "int": (_is_integer, "an integer"),
    "float": (_is_number, "a number"),
    "bool": (_is_flag, "true or false"),
    "str": (_is_text, "a string"),
}
