"""What comes in as numbers: arrays, tensors, frames and nested lists, each converted one way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError

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
