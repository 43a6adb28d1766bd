"""Files are looked for in their places, verified, and refused."""

import shutil

import numpy as np
import pytest

from streaming_gp import datasets
from streaming_gp.errors import InvalidDataError


def test_banana_ships(nowhere):
    data = datasets.load_banana()
    assert data.X.shape == (400, 2)
    assert data.Y_test.shape == (4900, 1)
    assert set(np.unique(data.Y)) == {0.0, 1.0}
    assert not set(map(tuple, data.X)) & set(map(tuple, data.X_test))


def test_a_folder_that_is_passed_comes_first_and_is_verified(nowhere):
    folder = nowhere / "mine" / "banana"
    folder.mkdir(parents=True)
    shutil.copy(datasets.files.SHIPPED / "banana.csv", folder / "banana.csv")
    assert datasets.load_banana(nowhere / "mine").X.shape == (400, 2)
    (folder / "banana.csv").write_text("x1,x2,label\n0,0,0\n")
    with pytest.raises(InvalidDataError, match=r"banana.csv has sha256 .*, wanted a8956248"):
        datasets.load_banana(nowhere / "mine")


def test_the_environment_variable_is_the_next_place(nowhere, monkeypatch):
    folder = nowhere / "env" / "banana"
    folder.mkdir(parents=True)
    (folder / "train_rows.txt").write_text("1\n")
    monkeypatch.setenv("STREAMING_GP_DATA", str(nowhere / "env"))
    with pytest.raises(InvalidDataError, match="train_rows"):
        datasets.load_banana()


def test_data_that_are_nowhere_are_named(nowhere):
    with pytest.raises(
        datasets.DataNotFoundError, match=r"ias_real_barrett_data.mat.*STREAMING_GP_DATA"
    ):
        datasets.load_robot_arm("barrett", download=False)
    with pytest.raises(datasets.DataNotFoundError, match=r"sarcos_inv.mat.*STREAMING_GP_DATA"):
        datasets.load_robot_arm("sarcos", download=False)
    with pytest.raises(
        datasets.DataNotFoundError, match=r"none of 'barrett', 'sarcos'.*and no file"
    ):
        datasets.load_robot_arm("no-such-arm")
