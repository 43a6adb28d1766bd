"""Single arguments, each checked by the range that its name says, and arrays of numbers.

Every ``require_`` raises :class:`~streaming_gp.errors.InvalidDataError`, which names the argument,
the value that came and what was wanted. Arrays, tensors, frames and nested lists are converted one
way.
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

# ---- ranges, which fields of settings are annotated with ----

Positive = float
"""Above zero."""
PositiveFinite = float
"""Above zero and below infinity, such as the size of a step."""
NotNegative = float
"""In [0, ∞]."""
NotNegativeFinite = float
"""In [0, ∞), such as a weight or a standard deviation."""
AboveOne = float
"""In (1, ∞)."""
Fraction = float
"""In (0, 1], such as the share of a whole that is not empty."""
Decay = float
"""In [0, 1), such as that of a moving average."""
Probability = float
"""In [0, 1]."""
PositiveInteger = int
"""Above zero."""


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (Real, np.floating)) and not isinstance(value, bool) and value == value


_KINDS: dict[str, tuple[Callable[[object], bool], str]] = {
    "int": (_is_integer, "an integer"),
    "float": (_is_number, "a number"),
    "bool": (lambda value: isinstance(value, (bool, np.bool_)), "true or false"),
    "str": (lambda value: isinstance(value, str), "a string"),
}
_RANGES: dict[str, tuple[str, Callable[[Any], bool], str]] = {
    "Positive": ("float", lambda x: x > 0, "be positive"),
    "PositiveFinite": ("float", lambda x: 0 < x < np.inf, "be positive and finite"),
    "NotNegative": ("float", lambda x: x >= 0, "not be negative"),
    "NotNegativeFinite": ("float", lambda x: 0 <= x < np.inf, "not be negative, and be finite"),
    "AboveOne": ("float", lambda x: 1 < x < np.inf, "be greater than 1 and finite"),
    "Fraction": ("float", lambda x: 0 < x <= 1, "lie in (0, 1]"),
    "Decay": ("float", lambda x: 0 <= x < 1, "lie in [0, 1)"),
    "Probability": ("float", lambda x: 0 <= x <= 1, "lie in [0, 1]"),
    "PositiveInteger": ("int", lambda x: x > 0, "be positive"),
    "int": ("int", lambda x: x >= 0, "be an integer, at least 0"),
}
"""Of each annotation its kind, whether a value is within, and what is wanted. Integers are numbers
or seeds of something, which are not negative."""


def typed(cls: C) -> C:
    """Class decorator of dataclasses: what is annotated as a number, flag or name must be one.

    Before anything else looks at the arguments, those annotated with ``int``, ``float``, ``bool``,
    ``str``, a range of this module and ``None``, or with unions of these, are checked. Booleans are
    no numbers, and NaN is none.
    """
    kinds = {field.name: str(field.type).split(" | ") for field in fields(cls)}
    plain = {name: of for name, of in kinds.items() if {*of} <= {*_KINDS, *_RANGES, "None"}}
    decorated: Any = cls
    initialise = decorated.__init__
    order = signature(initialise)

    @wraps(initialise)
    def check_and_initialise(*arguments: Any, **options: Any) -> None:
        for name, value in order.bind(*arguments, **options).arguments.items():
            if name in plain:
                _require(f"{cls.__name__}.{name}", value, plain[name])
        initialise(*arguments, **options)

    decorated.__init__ = check_and_initialise
    return cls


def _require(name: str, value: Any, annotations: Sequence[str]) -> None:
    """A value that one of several annotations allows."""
    if value is None and "None" in annotations:
        return
    kinds = [_RANGES[one][0] if one in _RANGES else one for one in annotations if one != "None"]
    if not any(_KINDS[kind][0](value) for kind in kinds):
        words = " or ".join(_KINDS[kind][1] for kind in kinds)
        raise InvalidDataError(f"{name} must be {words}, got {value!r:.100}")
    for annotation in annotations:
        kind, is_within, wanted = _RANGES.get(annotation, ("float", lambda _: True, ""))
        if _KINDS[kind][0](value) and not is_within(value):
            raise InvalidDataError(f"{name} must {wanted}, got {value!r:.100}")


def require_number(name: str, value: float) -> None:
    """A real number of Python or NumPy; booleans and NaN are none."""
    _require(name, value, ["float"])


def require_integer(name: str, value: int) -> None:
    """An integer of Python or NumPy; booleans are none."""
    if not _is_integer(value):
        raise InvalidDataError(f"{name} must be an integer, got {value!r:.100}")


def require_flag(name: str, value: bool) -> None:
    """True or false."""
    _require(name, value, ["bool"])


def require_count(name: str, value: int) -> None:
    """An integer, at least 0."""
    if not (_is_integer(value) and value >= 0):
        raise InvalidDataError(f"{name} must be an integer, at least 0, got {value!r:.100}")


def require_positive(name: str, value: float) -> None:
    """A number above zero."""
    _require_range(name, value, "Positive")


def require_positive_finite(name: str, value: float) -> None:
    """A number above zero and below infinity, such as the variance of a prior."""
    require_positive(name, value)
    if value == np.inf:
        raise InvalidDataError(f"{name} must be finite, got {value!r}")


def is_positive_integer(value: Any) -> bool:
    """Whether ``value`` is an integer of Python or NumPy above zero; booleans are none."""
    return _is_integer(value) and value > 0


def require_positive_integer(name: str, value: int) -> None:
    """An integer of Python or NumPy above zero; booleans are none."""
    if not _is_integer(value):
        raise InvalidDataError(f"{name} must be a positive integer, got {value!r}")
    require_positive(name, value)


SMALLEST_POWER = float(np.sqrt(np.finfo(np.float64).eps))
"""A site of power EP is what moments change by, divided by the power: it is off by rounding over
the power, and off its limit by about the power. Below this the rounding is the larger of both."""


def require_power(name: str, value: float, limit: str) -> None:
    """A power of power EP that is not too small for numbers of 64 bits.

    :param limit: What a power that tends to zero tends to.
    """
    if value < SMALLEST_POWER:
        raise InvalidDataError(
            f"{name} must be at least {SMALLEST_POWER:.2g}, below which sites are rounding errors, "
            f"got {value!r}; its limit at 0 is {limit}"
        )


def require_sizes(name: str, values: Any) -> None:
    """A sequence of positive integers, such as the units of each layer; it may be empty."""
    is_sequence = isinstance(values, (Sequence, np.ndarray)) and not isinstance(values, str)
    if not (is_sequence and all(map(is_positive_integer, values))):
        raise InvalidDataError(f"wanted a list of positive integers as {name}, got {values!r:.100}")


def require_not_negative(name: str, value: float) -> None:
    """A number in [0, ∞]."""
    _require_range(name, value, "NotNegative")


def require_not_negative_finite(name: str, value: float) -> None:
    """A number in [0, ∞), such as the standard deviation of a prior."""
    _require_range(name, value, "NotNegativeFinite")


def require_fraction(name: str, value: float) -> None:
    """A number in (0, 1], such as the share of a whole that is not empty."""
    _require_range(name, value, "Fraction")


def require_decay(name: str, value: float) -> None:
    """A number in [0, 1), such as the decay of a moving average."""
    _require_range(name, value, "Decay")


def require_probability(name: str, value: float) -> None:
    """A number in [0, 1]."""
    _require_range(name, value, "Probability")


def _require_range(name: str, value: Any, annotation: str) -> None:
    if isinstance(value, float) and np.isnan(value):  # NaN is within no range
        raise InvalidDataError(f"{name} must {_RANGES[annotation][2]}, got {value}")
    _require(name, value, [annotation])


def require_strategy(name: str, value: object, protocol: Any, example: str) -> None:
    """An object of a protocol, not its name, or a class in the place of one.

    :param protocol: The protocol, which can be asked for at run time.
    :param example: An object of it, as a user would write it.
    """
    if isinstance(value, type) or not isinstance(value, protocol):
        raise InvalidDataError(f"{name} must be a strategy such as {example}, got {value!r}")


def as_name(name: str, value: object) -> str:
    """A plain string, which files take as a key; strings of NumPy become one.

    :param name: What to call the argument in the error.
    """
    if not isinstance(value, str):
        raise InvalidDataError(f"{name} must be a string, got {value!r}")
    return str(value)


def as_groups(groups: Sequence[int] | None, size: int) -> np.ndarray:
    """The group of each of so many things [size]; all are in group 0 if None."""
    group_of = np.zeros(size, int) if groups is None else np.asarray(groups)
    numbers = np.unique(group_of)
    if group_of.shape != (size,) or not np.array_equal(numbers, np.arange(len(numbers))):
        raise InvalidDataError(
            f"groups must be [{size}] and count from 0 without gaps, got {group_of}"
        )
    return group_of.astype(int)


# ---- numbers ----

LARGEST_EXACT_INTEGER = 2**53
"""Beyond it not every integer is equal to a float64."""


def as_pair(data: Any) -> tuple[Any, Any]:
    """X and Y, whatever they are."""
    try:
        X, Y = data
    except (TypeError, ValueError):
        raise InvalidDataError(f"data must be a pair (X, Y), got {type(data).__name__}") from None
    return X, Y


def as_real_array(name: str, values: Any) -> np.ndarray:
    """``values`` as an array of real numbers, of the dtype that they came in.

    :param name: What to call the array in the error.
    :param values: An array, tensor, frame or nested sequence of real numbers.
    """
    refuse_masked(name, values)
    kind = type(values).__name__
    if hasattr(values, "todense") or hasattr(values, "dense_shape"):  # no type is in common
        raise InvalidDataError(f"{name} must be a dense array, got the sparse {kind}")
    try:
        array = np.asarray(values)
    except NotImplementedError:
        raise InvalidDataError(f"{name} must have values, got the symbolic {values}") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidDataError(f"{name} is not a rectangular array of numbers: {error}") from None
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise InvalidDataError(
            f"{name} must hold real numbers, got a {kind} of dtype {array.dtype} and "
            f"shape {list(array.shape)}"
        )
    return array


def as_float64(name: str, array: np.ndarray) -> np.ndarray:
    """An array of real numbers in float64; what is beyond that is infinite.

    :param name: What to call the array in the error.
    """
    if array.dtype.kind in "iu" and array.size:
        largest = max(abs(int(array.max())), abs(int(array.min())))
        if largest > LARGEST_EXACT_INTEGER:
            raise InvalidDataError(
                f"{name} holds the integer {largest}, which a float64 cannot represent; "
                "rescale it first"
            )
    with np.errstate(over="ignore"):
        return array.astype(np.float64)


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
    """Refuse masked entries, as NumPy would take what lies under a mask for data."""
    if not isinstance(values, np.ma.MaskedArray):
        return
    number = int(np.count_nonzero(np.ma.getmaskarray(values)))  # type: ignore[no-untyped-call]
    if number > 0:
        raise InvalidDataError(
            f"{name} has {number} masked entries, which are no data: leave their rows out"
        )


def missing_extra(what: str, library: str, extra: str) -> InvalidDataError:
    """The error of a part whose library is not installed, with the command that installs it."""
    return InvalidDataError(
        f"{what} needs {library}: pip install '.[{extra}]' in a checkout of streaming_gp"
    )
