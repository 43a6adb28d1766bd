"""What comes in: single arguments, each checked by the range that its name says, and numbers.

Arrays, tensors, frames and nested lists are converted one way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
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


# ---- numbers ----

LARGEST_EXACT_INTEGER = 2**53
"""Beyond it not every integer is equal to a float64."""


def as_real_array(name: str, values: Any) -> np.ndarray:
    """``values`` as an array of real numbers, of the dtype that they came in.

    :param name: What to call the array in the error.
    :param values: An array, tensor, frame or nested sequence of real numbers.
    :raises InvalidDataError: naming what came, if it is no rectangular array of real numbers, is
        sparse, or has masked entries.
    """
    refuse_masked(name, values)
    if _is_sparse(values):
        raise InvalidDataError(f"{name} must be a dense array, got the sparse {_kind(values)}")
    try:
        array = np.asarray(values)
    except NotImplementedError:
        raise InvalidDataError(f"{name} must have values, got the symbolic {values}") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidDataError(f"{name} is not a rectangular array of numbers: {error}") from None
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise InvalidDataError(
            f"{name} must hold real numbers, got a {_kind(values)} of dtype {array.dtype} and "
            f"shape {list(array.shape)}"
        )
    return array


def as_float64(name: str, array: np.ndarray) -> np.ndarray:
    """An array of real numbers in float64; what is beyond that is infinite.

    :param name: What to call the array in the error.
    :raises InvalidDataError: if it holds an integer that no float64 is equal to.
    """
    if array.dtype.kind in "iu" and array.size and _magnitude(array) > LARGEST_EXACT_INTEGER:
        raise InvalidDataError(
            f"{name} holds the integer {_magnitude(array)}, which a float64 cannot represent; "
            "rescale it first"
        )
    with np.errstate(over="ignore"):
        return array.astype(np.float64)


def _magnitude(array: np.ndarray) -> int:
    return max(abs(int(array.max())), abs(int(array.min())))


def make_read_only(tree: Any) -> None:
    """Let nobody write to the arrays of a value: it would change in every place that holds it.

    :param tree: Dataclasses, tuples and mappings of arrays and other things.
    """
    if isinstance(tree, np.ndarray):
        tree.setflags(write=False)
    elif isinstance(tree, Mapping):
        for one in tree.values():
            make_read_only(one)
    elif isinstance(tree, tuple):
        for one in tree:
            make_read_only(one)
    elif is_dataclass(tree) and not isinstance(tree, type):
        make_read_only({field.name: getattr(tree, field.name) for field in fields(tree)})


def refuse_masked(name: str, values: Any) -> None:
    """Refuse masked entries, as NumPy would take what lies under a mask for data.

    :raises InvalidDataError: if there are any.
    """
    if not isinstance(values, np.ma.MaskedArray):
        return
    number = int(np.count_nonzero(np.ma.getmaskarray(values)))  # type: ignore[no-untyped-call]
    if number > 0:
        raise InvalidDataError(
            f"{name} has {number} masked entries, which are no data: leave their rows out"
        )


def _is_sparse(values: Any) -> bool:
    """Of SciPy, TensorFlow or PyData: none has a type in common."""
    return any(hasattr(values, name) for name in ("todense", "dense_shape"))


def _kind(values: Any) -> str:
    return type(values).__name__
