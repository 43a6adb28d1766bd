"""Files that somebody has changed with care: one error that names what is wrong, or sound ones."""

import copy
import gzip
import hashlib
import importlib
import io
import json
import os
import shutil
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import expfam, pvi, runtime, serialization
from streaming_gp.command_line.plans import Folder, Settings
from streaming_gp.errors import FileFormatError, StreamingGPError
from streaming_gp.frames.files import open_table
from streaming_gp.runtime.predictor import write as write_predictor
from tests.hostile.cases import every_tenth
from tests.hostile.test_answers import MODEL, clients, run
from tests.oracles.exported import small
from tests.oracles.saved_streams import (
    batch,
    begun,
    predictions,
    regression,
    resumed,
    spoiled,
    values,
)
from tests.oracles.trees import same

EVERY_INPUT = sgp.PrivatePseudoPoints("all")
"""Absorbing at these compiles nothing."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file, and its parts."""
    path = tmp_path_factory.mktemp("saved") / "stream.npz"
    model = begun("variational", pseudo_points=EVERY_INPUT)
    for index in range(2):
        model.update(batch("", index), learn=False)
    model.save(path)
    return parts_of(path.read_bytes())


def parts_of(data):
    with np.load(io.BytesIO(data)) as archive:
        parts = {name: archive[name] for name in archive.files}
    return json.loads(parts.pop("header").tobytes()), parts


def packed(header, arrays, compression=np.savez):
    """What a careful attacker makes of it, with its checksum."""
    buffer, text = io.BytesIO(), np.frombuffer(json.dumps(header).encode(), np.uint8)
    compression(buffer, header=text, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = bytes(32)
    content = buffer.getvalue()[:-32]
    return content + hashlib.sha256(content).digest()


def places(tree, at=()):
    """Every place in a tree of JSON."""
    yield at
    if not isinstance(tree, (dict, list)):
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from places(value, (*at, key))


def with_value(tree, at, value):
    if not at:
        return value
    tree = copy.deepcopy(tree)
    inner = tree
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return tree


NAN = {"float": "000000000000f87f"}
DAMAGE = {
    "nothing": None,
    "negative": -1,
    "text": "x",
    "flag": True,
    "list": [],
    "dict": {},
    "nan": NAN,
    "no digits": {"float": "zz"},
    "array": {"array": 0, "order": []},
    "no array": {"array": 99, "order": []},
    "instance": {"instance": "Fading", "fields": {"power": 1}},
    "no instance": {"instance": "Fading", "fields": {"force": 1}},
    "class": {"class": "Fading"},
    "unknown": {"class": "Popen"},
    "huge": 10**40,
    "deep": json.loads("[" * 200 + "]" * 200),
}


@cache
def untouched():
    """Modules that no load has changed, and their values."""
    modules = regression(2.0)
    return modules, values(modules)


def load_model(path):
    """One clear error and the modules as they were, or a model."""
    modules, before = untouched()
    try:
        model = sgp.StreamingGP.load(path, **modules)
    except StreamingGPError:
        assert same(values(modules), before)
        raise
    untouched.cache_clear()
    return model


def check_load(path):
    """One clear error, or a model that can go on."""
    try:
        model = load_model(path)
    except StreamingGPError:
        return None
    assert np.isfinite(model.parameter_vector.value()).all()
    model.save(path)
    return model


def damaged(parts, name):
    """Files with one value at every sixteenth of all places in the tree, and these places."""
    header, arrays = parts
    for at in list(places(header["tree"]))[list(DAMAGE).index(name) :: 16]:
        tree = with_value(header["tree"], at, DAMAGE[name])
        yield at, packed({**header, "tree": tree}, arrays)


@every_tenth("name", DAMAGE.keys(), first=6)
def test_a_damaged_tree_is_refused_or_sound(saved, tmp_path, name):
    for _, data in damaged(saved, name):
        (tmp_path / "damaged.npz").write_bytes(data)
        check_load(tmp_path / "damaged.npz")


CHANGES = {
    "float32": lambda a: a.astype(np.float32),
    "longdouble": lambda a: a.astype(np.longdouble),
    "integers": lambda a: a.astype(int),
    "complex": lambda a: a + 1j,
    "flags": lambda a: a > 0,
    "text": lambda a: a.astype(str),
    "negative": np.negative,
    "nan": lambda a: a * np.nan,
    "infinite": lambda a: a + np.inf,
    "one more axis": lambda a: a[..., None],
    "first": lambda a: a.ravel()[:1],
    "empty": lambda a: a[..., :0] if a.ndim else a[None][:0],
    "huge": lambda a: a * 1e300,
}


@every_tenth("name", CHANGES.keys(), first=3)
def test_changed_arrays_are_refused_or_sound(saved, tmp_path, name):
    header, arrays = saved
    for key, array in arrays.items():
        (tmp_path / "changed.npz").write_bytes(
            packed(header, {**arrays, key: CHANGES[name](array)})
        )
        model = check_load(tmp_path / "changed.npz")
        if model is not None:
            factors = model.factors.values()
            assert all(model.ledger.prior.objection_to(factor) is None for factor in factors)


def test_the_parts_as_they_were_are_loaded(saved, tmp_path):
    (tmp_path / "same.npz").write_bytes(packed(*saved))
    assert len(check_load(tmp_path / "same.npz").factors) == 2


def swelling(header, arrays):
    return packed(header, {**arrays, "array_0": np.zeros(10**6)}, np.savez_compressed)


def lying(header, arrays):
    """A member that says it is a hundred times as long as the file."""
    data = bytearray(packed(header, arrays))
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = (10**9).to_bytes(4, "little")
    content = bytes(data[:-32])
    return content + hashlib.sha256(content).digest()


@pytest.mark.parametrize("made", [swelling, lying])
def test_a_file_that_unpacks_to_more_than_it_is_is_not_unpacked(saved, tmp_path, made):
    path = tmp_path / "swelling.npz"
    path.write_bytes(made(*saved))
    with pytest.raises(FileFormatError, match="unpack to"):
        sgp.StreamingGP.load(path, **regression(2.0))


def test_a_header_without_an_entry_is_refused(saved, tmp_path):
    header, arrays = saved
    path = tmp_path / "headless.npz"
    for key in ("format", "version", "package", "kind", "tree"):
        lacking = {name: value for name, value in header.items() if name != key}
        path.write_bytes(packed(lacking, arrays))
        if key == "package":  # that is for errors alone
            assert check_load(path) is not None
        else:
            with pytest.raises(FileFormatError):
                sgp.StreamingGP.load(path, **regression(2.0))


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(FileFormatError, match="is no regular file"):
            sgp.StreamingGP.load(path, **regression(2.0))


# ---- files that nobody changed with care ----


FILES = {
    "a streaming GP": (lambda path: begun("fixed").save(path), load_model),
    "a federated server": (
        lambda path: run(pvi.Synchronous()).save(path),
        lambda path: pvi.Server.load(path, MODEL.prior(), clients()),
    ),
    "a predictor": (lambda path: write_predictor(path, small()), runtime.load),
}


def directory(path):
    path.unlink()
    path.mkdir()


def array_file(path):
    with path.open("wb") as file:
        np.save(file, np.ones(3))


def of_version(version):
    def spoil(path):
        header, arrays = parts_of(path.read_bytes())
        path.write_bytes(packed({**header, "version": version}, arrays))

    return spoil


SPOILED = {
    "missing": (Path.unlink, "cannot read .*: No such file"),
    "a directory": (directory, "cannot read .*: Is a directory"),
    "empty": (spoiled(lambda data: b""), "is empty"),
    "text": (spoiled(lambda data: b"a,b\n1,2\n"), "is no npz archive"),
    "npy": (array_file, "is no npz archive"),
    "npz": (lambda path: np.savez(path, a=np.ones(3)), "npz archive, but not one of streaming_gp"),
    "truncated": (spoiled(lambda data: data[:-1]), "is truncated or was altered"),
    "half": (spoiled(lambda data: data[: len(data) // 2]), "is truncated or was altered"),
    "altered": (spoiled(lambda data: data.replace(b'"tree"', b'"free"')), "truncated or was alter"),
    "longer": (spoiled(lambda data: data + b"!"), "is truncated or was altered"),
    "from the past": (of_version(1), "has version 1 of the file format, .* version 2$"),
    "from the future": (of_version(7), "has version 7 of the file format, .* version 2$"),
    "another kind": (
        lambda path: serialization.write(path, "shopping list", (), {}),
        "holds a shopping list, wanted",
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_bad_file_gets_one_clear_error_and_changes_nothing(tmp_path, kind):
    (save, load), path = FILES[kind], tmp_path / "file.npz"
    save(path)
    whole = path.read_bytes()
    for name, (spoil, message) in SPOILED.items():
        if path.is_dir():
            path.rmdir()
        path.write_bytes(whole)
        spoil(path)
        with pytest.raises(FileFormatError, match=message) as caught:
            load(path)
        assert "\n" not in str(caught.value), name
        if name == "another kind":
            assert str(caught.value).endswith(kind)


# ---- journals ----


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """The journals of two streams that saw the same batches in another order."""
    folder = tmp_path_factory.mktemp("streams")
    for name, order in {"one": (0, 1, 2), "other": (1, 0, 2)}.items():
        model = begun("fixed", journal=folder / name, pseudo_points=EVERY_INPUT)
        for index in order:
            model.update(batch("", index), learn=False)
    return folder


def entry(number):
    return f"{number:08d}.npz"


@every_tenth("number", [0, 1, 2, 3])
def test_an_entry_of_another_stream_is_refused(streams, tmp_path, number):
    folder = shutil.copytree(streams / "one", tmp_path / "journal")
    shutil.copy(streams / "other" / entry(number), folder)
    if number == 0:  # both began alike
        assert resumed(folder).num_updates == 3
        return
    after = entry(number) if number == 3 else f"({entry(number)}|{entry(number + 1)})"
    with pytest.raises(FileFormatError, match=f"{after} does not follow the entry before it"):
        resumed(folder)


COPIES = {f"{s} as {t}": (s, t) for s in range(4) for t in (1, 2, 3) if s != t}


@every_tenth(("source", "target"), COPIES)
def test_a_copy_of_another_entry_is_refused(streams, tmp_path, source, target):
    folder = shutil.copytree(streams / "one", tmp_path / "journal")
    shutil.copy(folder / entry(source), folder / entry(target))
    with pytest.raises(FileFormatError, match=f"{entry(target)} does not follow"):
        resumed(folder)


def test_entries_that_are_no_files_are_refused(streams, tmp_path):
    folder = shutil.copytree(streams / "one", tmp_path / "journal")
    (folder / entry(2)).unlink()
    os.mkfifo(folder / entry(2))
    with pytest.raises(FileFormatError, match=r"00000002\.npz is no regular file"):
        resumed(folder)


# ---- servers ----


@pytest.mark.parametrize("hyperparameters", [None, np.zeros(1), np.zeros(2)])
def test_terms_of_hyperparameters_that_do_not_fit_the_file_are_refused(tmp_path, hyperparameters):
    server, path = pvi.Server(MODEL.prior(), clients()), tmp_path / "server.npz"
    term = expfam.Factor(expfam.Normal, (np.zeros(3), np.eye(3)))
    server.hyperparameters, server.hyperparameter_factors = hyperparameters, {"c0": term}
    server.save(path)
    with pytest.raises(FileFormatError, match=r"hyperparameters of 'c0' .* wanted"):
        pvi.Server.load(path, MODEL.prior(), clients())


@every_tenth("name", DAMAGE.keys(), first=2)
def test_a_damaged_server_is_refused_or_sound(tmp_path, name):
    path = tmp_path / "server.npz"
    run(pvi.Synchronous(damping=1.0)).save(path)
    for at, data in damaged(parts_of(path.read_bytes()), name):
        path.write_bytes(data)
        try:
            server = pvi.Server.load(path, MODEL.prior(), clients())
            mean = server.posterior.mean
            server.save(path)
        except StreamingGPError:
            continue
        assert np.isfinite(mean).all(), at


@pytest.mark.slow
def test_models_that_were_loaded_from_changed_arrays_predict(saved, tmp_path):
    header, arrays = saved
    for key, array in arrays.items():
        path = tmp_path / "changed.npz"
        path.write_bytes(packed(header, {**arrays, key: 0.5 * array}))
        model = check_load(path)
        assert model is None or np.isfinite(predictions(model)).all()


# ---- files that were cut or changed anywhere ----

ROWS = 12


def write_csv_gz(path):
    lines = [f"{number},{number * number}" for number in range(ROWS)]
    path.write_bytes(gzip.compress("\n".join(["a,y", *lines]).encode(), mtime=0))


def write_parquet(path):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": np.arange(ROWS), "y": np.arange(ROWS) ** 2.0})
    importlib.import_module("pyarrow.parquet").write_table(table, path, write_page_checksum=True)


RECORD = {"batch": "batch-0", "rows": 7}


def write_fit(path):
    folder = Folder(path.with_suffix(".fit"))
    folder.begin(Settings("y", {"a": "number"}, batch_size=7))
    folder.write_table({"features": ["a"], "inputs": {"mean": [0.25], "unit": [1.5]}})
    folder.append_record(RECORD)
    path.write_bytes(b"\x1e".join(file.read_bytes() for file in fit_files(path)))


def fit_files(path):
    return [path.with_suffix(".fit") / n for n in ("settings.json", "table.json", "batches.jsonl")]


def read_fit(path):
    parts = path.read_bytes().split(b"\x1e")
    for file, part in zip(fit_files(path), parts, strict=False):
        file.write_bytes(part)
    folder = Folder(path.with_suffix(".fit"))
    changed = [one for one in folder.records() if one != RECORD]  # a torn one is left out
    return folder.settings(), folder.table(), changed


def read_table(path):
    file = open_table(path)
    kinds = {name: kind for name, (kind, _) in file.kinds(file.names).items()}
    return [{k: v.tolist() for k, v in rows.items()} for rows in file.batches(5, kinds)]


def write_journal(path):
    folder = path.with_suffix(".journal")
    begun("fixed", journal=folder, pseudo_points=EVERY_INPUT).update(batch("", 0), learn=False)
    shutil.copy(folder / entry(1), path)


def read_journal(path):
    shutil.copy(path, path.with_suffix(".journal") / entry(1))
    return resumed(path.with_suffix(".journal"))


WRITTEN = {
    **FILES,
    "a journal": (write_journal, read_journal),
    "the folder of a fit": (write_fit, read_fit),
    "packed text": (write_csv_gz, read_table),
    "Parquet": (write_parquet, lambda path: read_table(path) and None),  # names have no checksum
}  # fmt: skip
EACH = 12


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_file_that_was_cut_or_changed_anywhere_is_refused_in_one_line(tmp_path, kind):
    """Or is, where nothing that counts was changed, read as what it was."""
    write, read = WRITTEN[kind]
    path = tmp_path / "file"
    write(path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    before = read(path)
    for number in range(EACH):
        data, at = bytearray(whole), int(rng.integers(len(whole)))
        if number % 3 == 0:
            del data[at:]
        elif number % 3 == 1:
            data[at] ^= 1 << int(rng.integers(8))
        else:
            data[at : at + 8] = rng.bytes(8)
        path.write_bytes(data)
        after, said = before, ""
        try:
            after = read(path)
        except StreamingGPError as error:
            said = str(error)
        assert "\n" not in said
        assert after == before, (number, at)
