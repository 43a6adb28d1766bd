"""Trees of values in files, bit for bit."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streaming_gp import pvi
from streaming_gp import serialization as ser
from streaming_gp.errors import FileFormatError, InvalidDataError
from tests.oracles.trees import same


@dataclass(frozen=True, eq=False)
class Pair:
    left: Any
    right: Any = None


@dataclass(frozen=True)
class Leaf:
    value: Any


@dataclass(frozen=True)
class Choice:
    value: bool | Literal["exact", 1]


class Named(NamedTuple):
    value: int


CLASSES = {"Pair": Pair, "Leaf": Leaf}
DTYPES = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(sizes=(16, 32, 64)), hnp.complex_number_dtypes(sizes=(64, 128)),
)  # fmt: skip
SHAPES = hnp.array_shapes(min_dims=0, min_side=0, max_side=3)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from([Pair, Leaf]),
    ARRAYS, ARRAYS.map(np.transpose), DTYPES.flatmap(hnp.from_dtype),
)  # fmt: skip
TREES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Leaf, inner),
    ),
    max_leaves=8,
)


@given(tree=TREES)
@settings(deadline=None)
def test_trees_come_back_bit_for_bit(tmp_path_factory, tree):
    path = tmp_path_factory.getbasetemp() / "tree.npz"
    ser.write(path, "tree", tree, CLASSES)
    assert same(ser.read(path, "tree", CLASSES), tree)


def test_arrays_keep_their_order_in_memory():
    array = np.swapaxes(np.arange(24.0).reshape(2, 3, 4), -1, -2)
    structure, arrays = ser.encode(array, {})
    assert ser.decode(structure, arrays, {}).strides == array.strides


@pytest.mark.parametrize(
    "value",
    [[1], {1}, b"bytes", {1: 2}, Named(1), object, int, np.array([None]), np.array("text"), len],
    ids=repr,
)
def test_other_values_are_refused_where_they_are(value):
    with pytest.raises(InvalidDataError, match=r"value\['a'\]\[1\]\.left"):
        ser.encode({"a": (0, Pair(value))}, CLASSES)


def test_a_file_can_only_make_what_is_registered(tmp_path):
    ser.write(tmp_path / "leaf", "tree", Leaf(1), CLASSES)
    with pytest.raises(FileFormatError, match=r"no valid tree: .*'Leaf' is not regist"):
        ser.read(tmp_path / "leaf", "tree", {"Pair": Pair})
    with pytest.raises(FileFormatError, match="Leaf has no field value"):
        ser.read(tmp_path / "leaf", "tree", {"Leaf": Pair})


@pytest.mark.parametrize("value", [np.ones(2), "other", 1.0, ("exact",)])
def test_a_field_that_takes_some_names_takes_nothing_else(value):
    structure, arrays = ser.encode(Leaf(value), CLASSES)
    with pytest.raises(FileFormatError, match=r"Leaf\.value is .*, wanted"):
        ser.decode(structure, arrays, {"Leaf": Choice})
    assert ser.decode(*ser.encode(Leaf("exact"), CLASSES), {"Leaf": Choice}) == Choice("exact")


def test_a_field_that_is_new_since_the_file_gets_its_default():
    structure, arrays = ser.encode(Pair(1), CLASSES)
    del structure["fields"]["right"]
    assert ser.decode(structure, arrays, CLASSES).right is None


@given(position=st.integers(min_value=0), bit=st.integers(0, 7))
@settings(deadline=None)
def test_a_single_bit_that_changed_is_noticed(tmp_path_factory, position, bit):
    path = tmp_path_factory.getbasetemp() / "bit.npz"
    ser.write(path, "tree", Pair(np.arange(3.0), "text"), CLASSES)
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=r"truncated or was altered|no npz|not one of"):
        ser.read(path, "tree", CLASSES)


def test_only_frozen_dataclasses_of_names_of_their_own_are_storable():
    @dataclass
    class Mutable:
        value: int = 0

    with pytest.raises(InvalidDataError, match="Mutable is no frozen dataclass"):
        ser.storable(Mutable)

    @dataclass(frozen=True)
    class RaiseImproper:
        value: int = 0

    assert pvi.RaiseImproper is not RaiseImproper
    with pytest.raises(InvalidDataError, match="there is a storable RaiseImproper already"):
        ser.storable(RaiseImproper)
