"""Loaders find, verify and refuse; scores are what their names say."""

import shutil

import numpy as np
import pytest

from streaming_gp import datasets, metrics
from streaming_gp.errors import InvalidDataError


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No data folder and an empty cache."""
    monkeypatch.delenv("STREAMING_GP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_banana_ships(nowhere):
    data = datasets.load_banana()
    assert data.X.shape == (400, 2)
    assert data.Y_test.shape == (4900, 1)
    assert set(np.unique(data.Y)) == {0.0, 1.0}
    assert not set(map(tuple, data.X)) & set(map(tuple, data.X_test))


def test_a_folder_that_is_passed_comes_first_and_is_verified(nowhere):
    folder = nowhere / "mine" / "banana"
    folder.mkdir(parents=True)
    shutil.copy(datasets._SHIPPED / "banana.csv", folder / "banana.csv")
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
    with pytest.raises(datasets.DataNotFoundError, match="neither 'barrett' nor a file"):
        datasets.load_robot_arm("no-such-arm")


def test_barrett_has_the_shapes_of_the_paper(barrett):
    assert barrett.X.shape == (12000, 21)
    assert barrett.Y.shape == (12000, 7)
    assert barrett.X_test.shape == (3000, 21)
    assert barrett.Y_test.shape == (3000, 7)


def test_error_rate():
    assert metrics.error_rate([[0.9], [0.2], [0.6], [0.4]], [1, 0, 0, 1]) == 0.5


def test_smse_of_the_mean_is_one(rng):
    targets = rng.standard_normal((50, 2))
    predicted = np.broadcast_to(targets.mean(axis=0), targets.shape)
    assert metrics.smse(predicted, targets) == pytest.approx(1.0)
    assert metrics.smse(targets, targets) == 0.0


def test_mean_negative_log_density():
    assert metrics.mean_negative_log_density([-1.0, -3.0]) == 2.0
