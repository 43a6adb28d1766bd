"""Named columns: from every kind of table, with what is missing, and scales that stay."""

import bz2
import datetime
import gzip
import json
import lzma
import warnings

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import FileFormatError, InvalidDataError, PoorFitWarning
from streaming_gp.frames.files import open_table
from streaming_gp.tables import TableGP, read_arrow, read_csv
from tests.tolerances import THROUGH_CHOLESKY


def new_model(likelihood=None):
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.5]),
        likelihood or gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints("all"),
        hyperparameters=sgp.FixedHyperparameters(),
    )


def table(rng, number=12):
    a, b = rng.uniform(0.0, 100.0, number), rng.uniform(-1.0, 1.0, number)
    return {"a": a, "b": b, "y": 500.0 + a + 10.0 * b}


def joined(batches):
    return {name: np.concatenate([one[name] for one in batches]) for name in "aby"}


def as_is(columns):
    return columns


def pandas(columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def polars(columns):
    return pytest.importorskip("polars").DataFrame(columns)


def arrow(columns):
    return pytest.importorskip("pyarrow").table(columns)


KINDS = [as_is, pandas, polars, arrow]


@pytest.fixture(scope="module")
def batches():
    rng = np.random.default_rng(5)
    return [table(rng) for _ in range(3)]


@pytest.fixture(scope="module")
def learned(batches):
    """A model of two batches, which tests must leave as it is."""
    model = TableGP(new_model(), "y")
    for batch in batches[:2]:
        model.update(batch)
    return model


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_an_input_that_is_silent_at_first_has_the_unit_in_which_it_comes(unit, batches):
    found = []
    for size in (1.0, unit):
        model = TableGP(new_model(), "y")
        model.update({**batches[0], "b": np.full(12, 0.3 * size)})
        for batch in batches[1:]:
            model.update({**batch, "b": size * batch["b"]})
        record = json.loads(json.dumps(model.to_record()))
        again = TableGP.from_record(model.model, record)
        found.append(again.predict({**batches[1], "b": size * batches[1]["b"]}))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_a_first_target_that_fixes_no_scale_is_warned_of(batches):
    first = {**batches[0], "y": np.full(len(batches[0]["y"]), 20.0)}
    model = TableGP(new_model(), "y")
    with pytest.warns(PoorFitWarning, match="targets of the first batch are all alike") as said:
        model.update(first)
    assert said[0].filename == __file__  # the line that gave the batch
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.update(batches[1])
        TableGP(new_model(), "y", scale=False).update(first)


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_kept_and_their_order_does_not_matter(kind, batches, learned):
    model = TableGP(new_model(), "y")
    model.update(kind(batches[0]))
    model.update(kind({name: batches[1][name] for name in ("y", "b", "a")}))
    assert model.feature_names_in_.tolist() == ["a", "b"]
    query = {name: batches[2][name] for name in ("b", "a")}
    for ours, plain in zip(model.predict(kind(query)), learned.predict(batches[2]), strict=True):
        np.testing.assert_array_equal(ours, plain)


def test_predictions_are_the_exact_gps_in_units_of_the_target(batches, learned):
    rows, first = joined(batches[:2]), batches[0]
    X = np.stack([(rows[n] - first[n].mean()) / first[n].std() for n in "ab"], axis=1)
    Y = ((rows["y"] - first["y"].mean()) / first["y"].std())[:, None]
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.5])
    exact = gpflow.models.GPR((X, Y), kernel, noise_variance=0.1)
    mean, variance = map(np.asarray, exact.predict_y(X[:5]))
    wanted = first["y"].mean() + first["y"].std() * mean, first["y"].std() * np.sqrt(variance)
    found = learned.predict({name: rows[name][:5] for name in "ab"})
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=THROUGH_CHOLESKY)


def test_other_columns_are_refused_by_name(batches, learned):
    before = learned.to_record()
    for wrong, message in (
        ({"a": [1.0], "y": [1.0]}, r"wanted the columns \['a', 'b'\], .*missing are \['b'\]"),
        ({**batches[2], "c": batches[2]["a"]}, r"not known are \['c'\]"),
        ({"a": [1.0], "b": [2.0]}, r"missing are \['y'\]"),
        (
            {"a": ["red"], "b": [2.0], "y": [1.0]},
            "column 'a' must hold numbers, got 'red' at row 0",
        ),
        ({"a": [1.0, 2.0], "b": [2.0], "y": [1.0]}, "columns must be of one length"),
        (np.zeros((2, 3)), "wanted a table with named columns .* got a ndarray"),
        ({1: [1.0]}, r"names of columns must be strings and differ, got \[1\]"),
    ):
        with pytest.raises(InvalidDataError, match=message):
            learned.update(wrong)
    assert learned.to_record() == before
    assert list(learned.model.factors) == ["batch-0", "batch-1"]


def test_named_features_leave_other_columns_out(batches):
    model = TableGP(new_model(), "y", features=["b", "a"])
    model.update({**batches[0], "note": np.array(["x"] * 12, dtype=object)})
    model.update(batches[1])
    assert model.feature_names_in_.tolist() == ["b", "a"]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_a_target_are_skipped_and_counted(kind, batches, learned):
    model = TableGP(new_model(), "y")
    extra = {name: np.append(column, [3.0, 0.5]) for name, column in batches[0].items()}
    extra["y"][-2:] = np.nan
    if kind is not as_is:
        extra["y"] = [None if np.isnan(value) else value for value in extra["y"]]
    for batch in (kind(extra), batches[1]):
        model.update(batch)
    assert (model.num_rows, model.num_skipped) == (24, 2)
    np.testing.assert_array_equal(model.predict(batches[2])[0], learned.predict(batches[2])[0])
    nothing = {**batches[2], "y": np.full(12, np.nan)}
    assert model.update(nothing) is None
    assert (model.num_skipped, list(model.model.factors)) == (14, ["batch-0", "batch-1"])


def test_a_missing_input_is_refused_with_its_row(batches, learned):
    wrong = {**batches[2], "b": np.where(np.arange(12) == 7, np.nan, batches[2]["b"])}
    message = r"input 'b' is missing at row 7 \(1 of 12 rows miss one\)"
    for act in (learned.update, learned.predict):
        with pytest.raises(InvalidDataError, match=message):
            act(wrong)


@pytest.mark.parametrize(("name", "what"), [("a", "input"), ("y", "target")])
def test_what_is_infinite_is_refused_with_its_column_and_row(name, what, batches, learned):
    before = learned.num_rows
    values = {one: values.copy() for one, values in batches[1].items()}
    values["y"][:3] = np.nan  # rows that are left out count, too
    values[name][7] = np.inf
    with pytest.raises(InvalidDataError, match=f"{what} '{name}' is infinite at row 7 "):
        learned.update(values)
    assert learned.num_rows == before


def test_a_removed_batch_leaves_nothing_behind(batches, learned):
    model = TableGP(new_model(), "y")
    for batch in batches:
        model.update(batch)
    model.remove("batch-2")
    ours, never = model.predict(batches[2]), learned.predict(batches[2])
    for with_it, without in zip(ours, never, strict=True):
        np.testing.assert_allclose(with_it, without, rtol=THROUGH_CHOLESKY)
    for one, other in zip(model.normalisation, learned.normalisation, strict=True):
        assert one.to_record() == other.to_record()  # bit for bit


def test_a_record_and_a_loaded_model_go_on_bit_for_bit(tmp_path, batches):
    model = TableGP(new_model(), "y")
    model.update(batches[0])
    model.model.save(tmp_path / "model.npz")
    record = json.loads(json.dumps(model.to_record()))
    parts = new_model().kernel, new_model().likelihood
    loaded = TableGP.from_record(sgp.StreamingGP.load(tmp_path / "model.npz", *parts), record)
    for one in (model, loaded):
        one.update(batches[1])
    assert loaded.to_record() == model.to_record()
    for ours, theirs in zip(loaded.predict(batches[2]), model.predict(batches[2]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_model_that_has_learned_recalls_what(batches, learned):
    model = TableGP(learned.model, "y")
    for batch in batches[:2]:
        assert model.recall(batch)
    assert not model.recall({**batches[2], "y": np.full(12, np.nan)})
    assert model.to_record() == {**learned.to_record(), "num_skipped": model.num_skipped}
    np.testing.assert_array_equal(model.predict(batches[2])[0], learned.predict(batches[2])[0])


def test_labels_are_those_of_the_classes(batches):
    model = TableGP(new_model(gpflow.likelihoods.Bernoulli()), "y", classes=["low", "high"])
    words = np.where(batches[0]["a"] > 50.0, "high", "low").astype(object)
    words[3] = None
    model.update({**batches[0], "y": words})
    assert model.num_skipped == 1
    probability = model.predict_proba(batches[0])
    np.testing.assert_allclose(probability.sum(axis=1), 1.0)
    assert np.mean((probability[:, 1] > 0.5) == (batches[0]["a"] > 50.0)) > 0.9
    with pytest.raises(InvalidDataError, match=r"'y' is 'odd' at row 1, which is none of the cl"):
        model.update({"a": [1.0, 2.0], "b": [1.0, 2.0], "y": ["low", "odd"]})


def test_what_makes_no_table_model_is_refused(batches, learned):
    with pytest.raises(InvalidDataError, match="classes are those of one target"):
        TableGP(new_model(), ["y", "z"], classes=["a", "b"])
    with pytest.raises(InvalidDataError, match="nothing has been learned yet"):
        TableGP(new_model(), "y").predict(batches[0])
    with pytest.raises(InvalidDataError, match="no inputs beside the targets"):
        TableGP(new_model(), "y").update({"y": [1.0]})
    with pytest.raises(InvalidDataError, match="there are no classes"):
        learned.predict_proba(batches[0])


# ---- files and sources ----


def written(folder, columns):
    path = folder / "data.csv"
    lines = [",".join(map(repr, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([",".join(columns), *lines]).replace("nan", "") + "\n")
    return path


def test_a_csv_file_is_read_in_chunks(tmp_path, batches):
    columns = {name: column.tolist() for name, column in batches[0].items()}
    columns["y"][4] = float("nan")
    path = written(tmp_path, columns)
    chunks = [*read_csv(path, batch_size=5)]
    assert [len(chunk["a"]) for chunk in chunks] == [5, 5, 2]
    for name, column in columns.items():
        found = np.concatenate([chunk[name] for chunk in chunks])
        np.testing.assert_array_equal(found, column)
    (last,) = read_csv(path, batch_size=5, skip=10)
    np.testing.assert_array_equal(last["a"], columns["a"][10:])
    (words,) = read_csv(path, text=["y"])
    assert words["y"][4] is None
    assert words["y"][5] == repr(columns["y"][5])


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_arrow_files_are_read_in_chunks(tmp_path, batches, kind):
    pyarrow = pytest.importorskip("pyarrow", reason="the tables extra is not installed")
    from pyarrow import feather, parquet

    path = tmp_path / f"data.{kind}"
    write = parquet.write_table if kind == "parquet" else feather.write_feather
    write(pyarrow.table(batches[0]), path)
    chunks = [*read_arrow(path, batch_size=5)]
    assert [chunk.num_rows for chunk in chunks] == [5, 5, 2]
    found = np.concatenate([np.asarray(chunk["a"]) for chunk in chunks])
    np.testing.assert_array_equal(found, batches[0]["a"])
    path.write_bytes(b"something else")
    with pytest.raises(FileFormatError, match="cannot be read"):
        list(read_arrow(path))


def test_a_source_is_streamed_to_its_end(tmp_path, batches, learned, capsys):
    both = {name: column.tolist() for name, column in joined(batches[:2]).items()}
    model, infos = TableGP(new_model(), "y"), []
    source = read_csv(written(tmp_path, both), batch_size=12)
    report = sgp.stream(source, model, label="file", report=infos.append)
    assert (report.num_batches, report.num_rows, report.num_skipped) == (2, 24, 0)
    assert [info.batch_id for info in infos] == ["batch-0", "batch-1"]
    assert "file: batch 2, 24 rows, 0 skipped" in capsys.readouterr().out
    np.testing.assert_array_equal(model.predict(batches[2])[0], learned.predict(batches[2])[0])


def test_pairs_are_streamed_into_a_plain_model(rng):
    X, Y = rng.standard_normal((10, 2)), rng.standard_normal((10, 1))
    gaps = Y.copy()
    gaps[2:4] = np.nan
    plain, streamed = new_model(), new_model()
    plain.update((np.delete(X, [2, 3], axis=0), np.delete(Y, [2, 3], axis=0)))
    report = sgp.stream(iter([(X, gaps), (X, gaps * np.nan)]), streamed)
    assert (report.num_batches, report.num_rows, report.num_skipped) == (1, 8, 12)
    np.testing.assert_array_equal(streamed.predict_f(X)[0], plain.predict_f(X)[0])
    X[1, 1] = np.nan
    with pytest.raises(InvalidDataError, match=r"batch 2, after 10 rows: X .* row 1, column 1"):
        sgp.stream([(np.ones((10, 2)), Y), (X, Y)], streamed)
    with pytest.raises(InvalidDataError, match="tables are for a TableGP"):
        sgp.stream([{"a": [1.0]}], streamed)


# ---- files ----


TIMES = [datetime.datetime(2024, 1, day, 12) for day in (1, 2, 3)]
COLUMNS = {"x °C": [0.5, -1.25, 1e3], "site": ["süd", "", "none"], "when": TIMES}
READ_AS = {"x °C": "number", "site": "words", "when": "time"}


def text(delimiter=",", decimal="."):
    rows = zip(*COLUMNS.values(), strict=True)
    lines = [
        delimiter.join((str(x).replace(".", decimal), site, when.isoformat()))
        for x, site, when in rows
    ]
    return "\r\n".join([delimiter.join(COLUMNS), *lines])


def parquet(path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    sites = [site or None for site in COLUMNS["site"]]
    parquet.write_table(pyarrow.table({**COLUMNS, "site": sites, "list": [[1.0]] * 3}), path)


DRESSES = {
    "utf-8": lambda path: path.write_text(text(), encoding="utf-8"),
    "with a mark": lambda path: path.write_text(text(), encoding="utf-8-sig"),
    "utf-16": lambda path: path.write_text(text(), encoding="utf-16"),
    "utf-16 without a mark": lambda path: path.write_text(text(), encoding="utf-16-be"),
    "latin-1": lambda path: path.write_text(text(), encoding="latin-1"),
    "semicolons, decimal commas": lambda path: path.write_text(text(";", ","), encoding="cp1252"),
    "tabs": lambda path: path.write_text(text("\t"), encoding="utf-8"),
    "gzip": lambda path: path.write_bytes(gzip.compress(text().encode())),
    "bzip2": lambda path: path.write_bytes(bz2.compress(text().encode())),
    "xz": lambda path: path.write_bytes(lzma.compress(text().encode("latin-1"))),
    "parquet": parquet,
}


@pytest.mark.parametrize("dress", DRESSES)
def test_a_table_is_the_same_in_any_dress(tmp_path, dress):
    path = tmp_path / "data"  # no name says what it is
    DRESSES[dress](path)
    file = open_table(path)
    assert {name: kind for name, (kind, _) in file.kinds([*COLUMNS]).items()} == READ_AS
    first, second = file.batches(2, READ_AS)
    columns = {name: np.concatenate([first[name], second[name]]) for name in READ_AS}
    assert columns["x °C"].tolist() == COLUMNS["x °C"]
    assert columns["site"].tolist() == ["süd", None, "none"]
    np.testing.assert_array_equal(columns["when"], np.array(TIMES, "datetime64[us]"))


def test_integers_of_files_are_not_rounded(tmp_path):
    """Two numbers of one account would be the same one."""
    big = 2**53 + 1
    (tmp_path / "data.csv").write_text(f"id;y\n1;2,5\n{big};7e30\n")
    with pytest.raises(FileFormatError, match=f"line 3: column 'id' holds the integer {big}"):
        list(read_csv(tmp_path / "data.csv"))
    (rows,) = read_csv(tmp_path / "data.csv", text=["id", "y"])
    assert rows["id"].tolist() == ["1", str(big)]


def test_integers_of_arrow_are_not_rounded(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"id": [None, 2**53 + 1]}), tmp_path / "data")
    (rows,) = open_table(tmp_path / "data").batches(2, {"id": "number"})
    assert rows["id"].tolist() == [None, 2**53 + 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "must begin with names that differ"),
        (b"a,a\n1,2\n", "must begin with names that differ"),
        (b"a,b\n1,2\n1\n", "line 3: wanted 2 values, got 1"),
        (b"a,b\n1,2\n3,4,5\n", "line 3: wanted 2 values, got 3"),
        (b"a,b\n1,2\n\n1,red\n", "data.csv, line 4: column 'b' must hold numbers, got 'red'"),
        (b'a,b\n1,2\n"3,4\n', "line 3: unexpected end of data: is a quotation mark missing"),
        (b"a,b\n1,1_000\n", "line 2: column 'b' must hold numbers, got '1_000'"),
        (b"a;b\n1;1.000,5\n2;1,5\n", "line 2: column 'b' must hold numbers, got '1.000,5'"),
        (b"a\n" + bytes(range(1, 128)), "is no text"),
        (bytes(range(255, -1, -1)) * 20, "is no text"),
        (gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-9], "cannot be unpacked"),
        (b"PK\3\4 workbook", "save the sheet as CSV"),
        (b"PAR1 cut", "cannot be read"),
    ],
)
def test_what_is_no_table_is_one_clear_error(tmp_path, content, message):
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        [*(file := open_table(path)).batches(2, dict.fromkeys(file.names, "number"))]


def test_a_folder_no_file_and_an_unknown_encoding_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match="is no file"):
        open_table(tmp_path)
    with pytest.raises(FileFormatError, match="cannot be read: No such file"):
        list(read_csv(tmp_path / "none.csv"))
    (tmp_path / "data.csv").write_text("a\n1\n")
    with pytest.raises(InvalidDataError, match="there is no encoding 'utf-9'"):
        [*read_csv(tmp_path / "data.csv", encoding="utf-9")]


def test_words_may_hold_separators_of_lines_and_decimals_exponents(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("num;word\n1,5e-3;a\u2028b\n-2,25E+1;c\x85d\n", encoding="utf-8")
    (batch,) = read_csv(path, text=["word"])
    assert batch["num"].tolist() == [0.0015, -22.5]
    assert batch["word"].tolist() == ["a\u2028b", "c\x85d"]
