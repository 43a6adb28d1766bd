"""Saved models: what a file may be, what must fit it, and streams that continue bit for bit; a
streaming GP as a SavedModel, for those who serve TensorFlow.
"""

import inspect
import os
import pickle
import shutil
import subprocess
from dataclasses import dataclass, fields, is_dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import streaming_gp as sgp
from streaming_gp import pvi
from streaming_gp import serialization as ser
from streaming_gp.errors import FileFormatError, InvalidDataError
from tests.oracles.builders import MERGED, QUICK
from tests.oracles.reference import smooth_data
from tests.oracles.saved_streams import (
    STREAMS,
    batch,
    begun,
    content,
    in_another_process,
    predictions,
    regression,
    resumed,
    small_disk,
    spoiled,
    values,
)
from tests.oracles.trees import same
from tests.tolerances import ALGEBRA


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "stream.npz"
    begun("fixed").save(path)
    before = path.read_bytes()
    with small_disk(), pytest.raises(OSError, match="too large"):
        begun("variational").save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["stream.npz"]


def changed(name, edit):
    modules = regression(1.0)
    edit(modules[name])
    return modules


def with_exponential(kernel):
    kernel.variance = gpflow.Parameter(1.0, transform=gpflow.utilities.positive(base="exp"))


def with_prior(kernel):
    kernel.variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))


def one_parameter_twice(kernel):
    kernel.variance = kernel.lengthscales


SE, GAUSSIAN = gpflow.kernels.SquaredExponential, gpflow.likelihoods.Gaussian


MISFITS = {
    "kernel": ({"kernel": gpflow.kernels.Matern32()},
               "kernel does not fit the file: wanted SquaredExponential, got Matern32"),
    "shape": ({"kernel": SE(lengthscales=[1.0, 1.0])},
              r"kernel\.lengthscales .* shape \[\].* shape \[2\]"),
    "columns": ({"kernel": SE(active_dims=[0])}, r"kernel\.active_dims"),
    "transform": (changed("kernel", with_exponential), r"kernel\.variance .*Softplus.*Exp"),
    "prior": (changed("kernel", with_prior), r"prior Gamma\(concentration=2.0, rate=1.0\)"),
    "sharing": (changed("kernel", one_parameter_twice), r"same as kernel"),
    "trainability": (changed("mean_function", lambda m: gpflow.set_trainable(m, True)),
                     r"mean_function\.c .*wanted fixed .*got trainable"),
    "mean function": ({"mean_function": None}, "mean_function .*wanted Constant, got Zero"),
    "lower bound": ({"likelihood": GAUSSIAN(variance_lower_bound=1e-2)}, "wanted 1e-12, got 0.01"),
    "parametrisation": ({"likelihood": GAUSSIAN(scale=0.3)}, r"likelihood\.variance .*got nothing"),
}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "stream.npz"
    begun("fixed").save(path)
    return path


@pytest.mark.parametrize("name", MISFITS)
def test_modules_that_do_not_fit_are_refused_and_the_difference_is_named(file, name):
    given_modules, message = MISFITS[name]
    with pytest.raises(InvalidDataError, match=message):
        sgp.StreamingGP.load(file, **{**regression(1.0), **given_modules})


def test_every_argument_of_the_model_is_stored():
    arguments = set(signature(sgp.StreamingGP).parameters)
    not_stored = {"kernel", "likelihood", "mean_function", "journal"}
    said_by_the_bound = {"alpha"}
    assert {
        field.name for field in fields(begun("fixed").settings)
    } == arguments - not_stored - said_by_the_bound


def test_every_strategy_is_registered():
    no_settings = {
        "Arrival", "Candidates", "GPUpdate", "LocalBound", "LocalFunction", "Progress",
        "UpdateInfo",
    }  # fmt: skip
    strategies = {
        value for name, value in vars(sgp.gp).items()
        if is_dataclass(value) and not inspect.isabstract(value) and name not in no_settings
    } | {pvi.RaiseImproper, pvi.BacktrackDamping, pvi.LargestProperFraction}  # fmt: skip
    assert strategies <= set(ser.registered_classes().values())


def test_a_strategy_that_is_not_registered_is_named(tmp_path):
    @dataclass(frozen=True)
    class Mine(sgp.FixedHyperparameters):
        pass

    with pytest.raises(InvalidDataError, match=r"settings\.hyperparameters is of type Mine"):
        begun("fixed", hyperparameters=Mine()).save(tmp_path / "stream.npz")
    assert not os.listdir(tmp_path)


def continue_streams(folder):
    """In another process: load every stream, learn one more batch."""
    for name, (modules, _) in STREAMS.items():
        model = sgp.StreamingGP.load(f"{folder}/{name}.npz", **modules(2.0))
        loaded = predictions(model)
        model.update(batch(name, 2))
        model.save(f"{folder}/{name} continued.npz")
        np.savez(f"{folder}/{name} predictions.npz", loaded=loaded, continued=predictions(model))


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """Models that were saved after two batches, and a folder where they were continued."""
    folder, models = tmp_path_factory.mktemp("streams"), {name: begun(name) for name in STREAMS}
    for name, model in models.items():
        for index in range(2):
            model.update(batch(name, index))
        model.save(folder / f"{name}.npz")
    child = in_another_process(continue_streams, folder, stderr=subprocess.PIPE)
    _, complaints = child.communicate()
    assert child.returncode == 0, complaints
    return folder, models


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_continues_bit_for_bit_in_another_process(streams, tmp_path, name):
    folder, models = streams
    there, model = np.load(folder / f"{name} predictions.npz"), models[name]
    np.testing.assert_array_equal(there["loaded"], predictions(model))
    model.update(batch(name, 2))
    np.testing.assert_array_equal(there["continued"], predictions(model))
    model.save(tmp_path / "here.npz")
    there_bytes = (folder / f"{name} continued.npz").read_bytes()
    assert (tmp_path / "here.npz").read_bytes() == there_bytes


def assert_is_a_value(model, modules):
    """Its state can be pickled, as scikit-learn does, and makes the same model again."""
    state = model.state
    copy = sgp.StreamingGP.from_state(pickle.loads(pickle.dumps(state)), **modules(2.0))
    assert same(copy.state, state)
    assert float(copy.training_loss()) == float(model.training_loss())


def test_a_state_is_a_value(journal):
    assert_is_a_value(resumed(journal), regression)


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_states_of_all_streams_are_values(streams, name):
    assert_is_a_value(streams[1][name], STREAMS[name][0])


OTHERS = {
    "shared": {"pseudo_points": sgp.SharedPseudoPoints(3)},
    "conditional": {"pseudo_points": sgp.ConditionalPseudoPoints(2)},
    "full covariance": {"hyperparameters": sgp.VariationalHyperparameters(full_covariance=True)},
    "policy": {"policy": pvi.BacktrackDamping(shrink=0.7)},
    "power EP": {"alpha": 0.5, "pseudo_points": sgp.PrivatePseudoPoints(3, budget=6)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_strategies_continue_bit_for_bit(tmp_path, name):
    model = begun("variational", **OTHERS[name])
    for index in range(3):
        model.update(batch("", index))
    model.save(tmp_path / "stream.npz")
    loaded = sgp.StreamingGP.load(tmp_path / "stream.npz", **regression(2.0))
    np.testing.assert_array_equal(predictions(loaded), predictions(model))
    for each in (model, loaded):
        each.update(batch("", 3))
    np.testing.assert_array_equal(predictions(loaded), predictions(model))
    assert content(loaded, tmp_path) == content(model, tmp_path)


@pytest.mark.slow
def test_a_saved_model_predicts_inputs_of_any_number(rng, tmp_path):
    """With learned parameters, of which it holds the draws, and one that is fixed."""
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    gpflow.set_trainable(likelihood, False)
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), likelihood,
        pseudo_points=sgp.PrivatePseudoPoints(4), optimiser=QUICK,
    )  # fmt: skip
    model.update(smooth_data(rng, 20))
    inputs = tf.TensorSpec([None, 2], tf.float64)
    served = tf.Module()
    served.parts = [model.kernel, model.mean_function, model.likelihood]
    served.predict_f = tf.function(model.predict_f, input_signature=[inputs])
    served.predict_y = tf.function(model.predict_y, input_signature=[inputs])
    tf.saved_model.save(served, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for number in (1, 7):
        X = rng.uniform(-2.0, 2.0, (number, 2))
        ours = *loaded.predict_f(tf.constant(X)), *loaded.predict_y(tf.constant(X))
        for a, b in zip(ours, (*model.predict_f(X), *model.predict_y(X)), strict=True):
            np.testing.assert_allclose(a, b, rtol=ALGEBRA)


# ---- trees of values ----


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
@settings(deadline=None, max_examples=40)
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


# ---- journals ----


@pytest.mark.slow
def test_a_journal_holds_what_forgetting_changed(tmp_path):
    hyperparameters = sgp.VariationalHyperparameters(num_samples=2, forgetting_factor=0.5)
    journal = tmp_path / "journal"
    model = begun("variational", hyperparameters=hyperparameters, journal=journal)
    for index in range(3):
        model.update(batch("", index))
    resumed = sgp.StreamingGP.resume(journal, **regression(2.0))
    assert same(resumed.state, model.state)


@pytest.fixture(scope="module")
def journaled(tmp_path_factory):
    """A journal of every kind of change, and the file that the model saved after each."""
    folder = tmp_path_factory.mktemp("journaled")
    model = begun("fixed", hyperparameters=sgp.PointHyperparameters(), journal=folder / "journal")
    changes = [
        lambda: None,
        lambda: model.update(batch("", 0)),
        lambda: model.update(batch("", 1)),
        lambda: model.update(batch("", 2)),
        lambda: model.revisit("batch-1", batch("", 1)),
        lambda: model.remove("batch-0"),
        lambda: model.compress(4),
        lambda: model.update(batch("", 3)),
        lambda: model.revisit("batch-3", batch("", 3)),
    ]
    for number, change in enumerate(changes):
        change()
        model.save(folder / f"after-{number}.npz")
    return folder, len(changes)


@pytest.fixture
def journal(journaled, tmp_path):
    """A copy of the journal, to be spoiled."""
    return Path(shutil.copytree(journaled[0] / "journal", tmp_path / "journal"))


def test_a_journal_holds_every_state_bit_for_bit(journaled, tmp_path):
    folder, number = journaled
    part = tmp_path / "part"
    part.mkdir()
    for index in range(number):
        shutil.copy(folder / "journal" / f"{index:08d}.npz", part)
        expected = (folder / f"after-{index}.npz").read_bytes()
        assert content(resumed(part), tmp_path) == expected
    assert len(os.listdir(folder / "journal")) == number


def test_data_are_not_stored(journaled):
    folder, number = journaled
    with np.load(folder / f"after-{number - 1}.npz") as archive:
        stored = np.concatenate([archive[name].ravel() for name in archive.files])
    assert not any(np.isin(np.concatenate(batch("", index)), stored).any() for index in range(4))


def test_an_entry_holds_only_what_changed(journal):
    entries = [
        ser.read(path, "journal entry", ser.registered_classes())
        for path in sorted(journal.iterdir())
    ]
    assert [list(entry.state.factors) for entry in entries] == [
        [], ["batch-0"], ["batch-1"], ["batch-2"], ["batch-1"], [],
        [MERGED], ["batch-3"], ["batch-3"],
    ]  # fmt: skip
    assert entries[5].order == ("batch-1", "batch-2")


def test_a_resumed_model_goes_on_writing_and_its_copy_does_not(journal, tmp_path):
    model, before = resumed(journal), set(os.listdir(journal))
    clone = gpflow.utilities.deepcopy(model)
    clone.remove("batch-3")
    assert set(os.listdir(journal)) == before
    model.remove("batch-3")
    assert set(os.listdir(journal)) - before == {f"{len(before):08d}.npz"}
    assert content(resumed(journal), tmp_path) == content(model, tmp_path)


def test_a_second_writer_is_refused_and_stays_as_it_was(journal, tmp_path):
    first, second = resumed(journal), resumed(journal)
    first.remove("batch-3")
    before, entries = content(second, tmp_path), set(os.listdir(journal))
    with pytest.raises(InvalidDataError, match=r"another model has written entry 00000009\.npz"):
        second.remove("batch-3")
    assert content(second, tmp_path) == before
    assert set(os.listdir(journal)) == entries


def test_an_entry_that_cannot_be_written_changes_nothing(journal, tmp_path):
    model = resumed(journal)
    before, entries = content(model, tmp_path), set(os.listdir(journal))
    with small_disk(), pytest.raises(OSError, match="too large"):
        model.remove("batch-3")
    assert content(model, tmp_path) == before
    assert set(os.listdir(journal)) == entries
    model.remove("batch-3")
    assert content(resumed(journal), tmp_path) == content(model, tmp_path)


def test_leftovers_of_a_killed_process_are_cleaned(journal, tmp_path):
    expected = content(resumed(journal), tmp_path)
    (journal / f"00000009.npz.{uuid4().hex}.part").write_bytes(b"half an entry")
    assert content(resumed(journal), tmp_path) == expected
    assert not list(journal.glob("*.part"))
    only_a_part = tmp_path / "killed at once"
    only_a_part.mkdir()
    (only_a_part / f"00000000.npz.{uuid4().hex}.part").write_bytes(b"")
    begun("fixed", journal=only_a_part)
    assert os.listdir(only_a_part) == ["00000000.npz"]


DAMAGE = {
    "last entry": (
        lambda folder: spoiled(lambda data: data[:-9])(folder / "00000008.npz"),
        "00000008.npz is truncated or was altered",
    ),
    "middle entry": (
        lambda folder: spoiled(lambda data: data.replace(b"Gauss", b"gauss"))(
            folder / "00000003.npz"
        ),
        "00000003.npz is truncated or was altered",
    ),
    "gap": (lambda folder: (folder / "00000004.npz").unlink(), "00000004.npz is missing"),
    "no beginning": (lambda folder: (folder / "00000000.npz").unlink(), "00000000.npz is missing"),
    "entry of another journal": (
        lambda folder: os.replace(folder / "00000007.npz", folder / "00000002.npz"),
        "00000002.npz does not follow",
    ),
    "empty folder": (
        lambda folder: [path.unlink() for path in folder.iterdir()], "there is no journal in"
    ),
    "no folder": (shutil.rmtree, "there is no journal in"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_journal_is_refused_and_the_entry_named(journal, name):
    spoil, message = DAMAGE[name]
    spoil(journal)
    modules = regression(2.0)
    before = values(modules)
    with pytest.raises(FileFormatError, match=message):
        sgp.StreamingGP.resume(journal, **modules)
    assert same(values(modules), before)


def test_a_journal_begins_in_a_folder_of_its_own(journal, tmp_path):
    entries = {path: path.read_bytes() for path in journal.iterdir()}
    with pytest.raises(InvalidDataError, match=r"a journal in .* already: StreamingGP\.resume"):
        begun("fixed", journal=journal)
    assert {path: path.read_bytes() for path in journal.iterdir()} == entries
    (tmp_path / "file").touch()
    with pytest.raises(InvalidDataError, match=r"a journal is a folder, but .*file is a file"):
        begun("fixed", journal=tmp_path / "file")
    with pytest.raises(InvalidDataError, match=r"needs an empty folder, but .* has file"):
        begun("fixed", journal=tmp_path)


def test_a_resumed_model_needs_fitting_modules(journal):
    modules = {**regression(1.0), "kernel": gpflow.kernels.Matern32()}
    with pytest.raises(InvalidDataError, match=r"kernel .*wanted SquaredExponential, got Matern32"):
        sgp.StreamingGP.resume(journal, **modules)
