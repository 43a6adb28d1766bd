"""Robot arm data: shapes, the test rows of SARCOS, and files of one's own."""

import numpy as np
import pytest
import scipy.io

from streaming_gp import datasets
from streaming_gp.datasets import simulated_arm
from streaming_gp.errors import InvalidDataError


def test_barrett_has_the_shapes_of_the_paper(barrett):
    assert barrett.X.shape == (12000, 21)
    assert barrett.Y.shape == (12000, 7)
    assert barrett.X_test.shape == (3000, 21)
    assert barrett.Y_test.shape == (3000, 7)


def sarcos_files(folder, train, test):
    scipy.io.savemat(folder / "sarcos_inv.mat", {"sarcos_inv": train})
    scipy.io.savemat(folder / "sarcos_inv_test.mat", {"sarcos_inv_test": test})
    return folder / "sarcos_inv.mat"


def test_sarcos_is_trained_on_no_row_that_it_is_tested_on(tmp_path, rng):
    own, shared = rng.normal(size=(20, 28)), rng.normal(size=(10, 28))
    same_input = np.c_[shared[:1, :21], own[:1, 21:]]  # measured twice, not copied
    train = np.concatenate([shared[:6], own, own[:3], shared[6:8], same_input])
    test = np.concatenate([shared, shared[:1]])
    data = datasets.load_robot_arm(sarcos_files(tmp_path, train, test))
    np.testing.assert_array_equal(np.c_[data.X, data.Y], np.concatenate([own, same_input]))
    np.testing.assert_array_equal(np.c_[data.X_test, data.Y_test], test)  # as published
    assert (data.X.shape[1], data.Y.shape[1]) == (21, 7)


def test_sarcos_files_of_the_data_folder_are_verified(nowhere, rng):
    (nowhere / "robot_arm").mkdir()
    sarcos_files(nowhere / "robot_arm", rng.normal(size=(5, 28)), rng.normal(size=(2, 28)))
    with pytest.raises(InvalidDataError, match=r"sarcos_inv.mat has sha256 .*, wanted b8a24973"):
        datasets.load_robot_arm("sarcos", nowhere, download=False)


def test_arm_files_that_are_something_else_are_named(tmp_path, rng):
    path = sarcos_files(tmp_path, rng.normal(size=(5, 22)), rng.normal(size=(2, 28)))
    with pytest.raises(InvalidDataError, match=r"sarcos_inv of shape \[N, 28\], got \[5, 22\]"):
        datasets.load_robot_arm(path)
    (tmp_path / "sarcos_inv_test.mat").unlink()
    scipy.io.savemat(path, {"sarcos_inv": rng.normal(size=(5, 28))})
    with pytest.raises(datasets.DataNotFoundError, match=r"no such file: .*sarcos_inv_test.mat"):
        datasets.load_robot_arm(path)
    path.write_text("not MATLAB's")
    with pytest.raises(InvalidDataError, match=r"sarcos_inv.mat is not a .mat file"):
        datasets.load_robot_arm(path)
    scipy.io.savemat(path, {"X_train": np.zeros((1, 21))})
    with pytest.raises(InvalidDataError, match=r"lacks the arrays \['Y_train', 'X_test'"):
        datasets.load_robot_arm(path)


def test_a_barrett_file_of_ones_own(tmp_path, rng):
    arrays = {name: rng.normal(size=(3, 21)) for name in ("X_train", "Y_train", "X_test", "Y_test")}
    scipy.io.savemat(tmp_path / "mine.mat", arrays)
    data = datasets.load_robot_arm(str(tmp_path / "mine.mat"))
    np.testing.assert_array_equal(data.Y_test, arrays["Y_test"])


def test_simulated_arm_data_have_the_shapes_of_the_real_ones():
    data = datasets.load_robot_arm("simulated")
    assert data.X.shape == (12000, 21)
    assert data.Y.shape == (12000, 7)
    assert data.X_test.shape == (3000, 21)
    assert data.Y_test.shape == (3000, 7)
    noise = data.Y_test - simulated_arm.inverse_dynamics(data.X_test)
    np.testing.assert_allclose(noise.std(axis=0), simulated_arm.NOISE, rtol=4 / np.sqrt(2 * 3000))
    again = datasets.load_robot_arm("simulated", seed=0)
    np.testing.assert_array_equal(data.Y, again.Y)
    np.testing.assert_array_equal(data.X_test, again.X_test)
    other = datasets.load_robot_arm("simulated", seed=1)
    assert not np.isin(other.X, data.X).any()
