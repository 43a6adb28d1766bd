"""Streams that are written down as they go."""

import os
import shutil
from pathlib import Path
from uuid import uuid4

import gpflow
import pytest

import streaming_gp as sgp
from streaming_gp import serialization as ser
from streaming_gp.errors import FileFormatError, InvalidDataError
from tests.oracles.builders import MERGED
from tests.oracles.saved_streams import (
    batch,
    begun,
    content,
    regression,
    resumed,
    small_disk,
    spoiled,
    values,
)
from tests.oracles.trees import same


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
