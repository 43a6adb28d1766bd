"""The command line: what it learns and prints, its errors, and that kills lose nothing."""

import bz2
import csv
import gzip
import hashlib
import json
import lzma
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from streaming_gp.command_line import main
from streaming_gp.command_line.plans import Folder
from streaming_gp.estimators import default_kernel, default_likelihood
from streaming_gp.gp import StreamingGP
from streaming_gp.tables import TableGP, read_csv

OPTIONS = ["--batch-size", "20", "--budget", "30", "--target", "y"]


def command(*arguments):
    return [sys.executable, "-m", "streaming_gp", *map(str, arguments)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """y is 50 + 5 sin a + b, whatever c."""
    path = tmp_path_factory.mktemp("data") / "data.csv"
    rows = np.random.default_rng(4).uniform(0.0, 10.0, (60, 3))
    lines = [f"{a},{b},{c},{50.0 + 5.0 * np.sin(a) + b}" for a, b, c in rows]
    lines[7] = "1,2,3,"
    path.write_text("a,b,c,y\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def fitted(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit") / "journal"
    main(["fit", str(data), "--journal", str(folder), *OPTIONS])
    return folder


def digest(folder):
    entries = sorted((folder / "journal").glob("*.npz"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in entries)).hexdigest()


def as_table(folder):
    model = StreamingGP.resume(folder / "journal", default_kernel(3), default_likelihood())
    return TableGP.from_record(model, json.loads((folder / "table.json").read_text()))


def answer(capsys, *arguments):
    main([*map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


def failure(capsys, *arguments):
    """The one line of an error."""
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    assert ended.value.code == 1
    out, message = capsys.readouterr()
    *_, line = message.strip().splitlines()
    assert line.startswith("error: ")
    assert out == ""
    return line


def test_a_fit_that_is_done_has_nothing_to_learn(data, fitted, capsys):
    before = digest(fitted)
    report = answer(capsys, "fit", data, "--journal", fitted)
    assert (report["batches"], report["new_batches"]) == (3, 0)
    assert (report["rows"], report["skipped"]) == (59, 1)
    assert report["pseudo_points"] == 30
    assert digest(fitted) == before


def test_rows_that_come_later_are_learned_by_the_same_command(data, fitted, tmp_path, capsys):
    part, journal = tmp_path / "part.csv", tmp_path / "journal"
    lines = data.read_text().splitlines(keepends=True)
    part.write_text("".join(lines[:41]))
    assert answer(capsys, "fit", part, "--journal", journal, *OPTIONS)["new_batches"] == 2
    part.write_text("".join(lines))
    assert answer(capsys, "fit", part, "--journal", journal)["new_batches"] == 1
    assert digest(journal) == digest(fitted)


def test_a_run_goes_on_with_its_own_rows_alone(data, fitted, tmp_path, capsys):
    """Other rows would have changed the scales that predictions are in."""
    lines, journal = data.read_text().splitlines(keepends=True), tmp_path / "journal"
    file = tmp_path / "file.csv"
    file.write_text("".join(lines[:31]))
    answer(capsys, "fit", file, "--journal", journal, *OPTIONS)
    table = (journal / "table.json").read_text()
    file.write_text("".join(lines))
    message = failure(capsys, "fit", file, "--journal", journal)
    assert "rows 21 to 40: they are not those that batch-1 was learned from" in message
    file.write_text("".join([lines[0], *lines[21:], *lines[1:21]]))
    assert "batch-0 was learned from" in failure(capsys, "fit", file, "--journal", journal)
    assert (journal / "table.json").read_text() == table
    file.write_text("".join(lines[:31]))
    assert answer(capsys, "fit", file, "--journal", journal)["new_batches"] == 0


def test_predictions_are_the_models(data, fitted, tmp_path, capsys):
    out = tmp_path / "out.csv"
    report = answer(capsys, "predict", fitted, data, "--out", out)
    assert report == {"rows": 60, "out": str(out)}
    with out.open() as file:
        titles, *rows = csv.reader(file)
    assert titles == ["y_mean", "y_sd"]
    table = as_table(fitted)
    (chunk,) = read_csv(data)
    np.testing.assert_array_equal(np.array(rows, float), np.hstack(table.predict(chunk)))
    known = ~np.isnan(chunk["y"])
    assert np.std(np.array(rows, float)[known, 0] - chunk["y"][known]) < 0.5
    main(["predict", str(fitted), str(data)])
    assert capsys.readouterr().out == out.read_text()


def test_predictions_are_packed_as_the_name_of_their_file_says(data, fitted, tmp_path, capsys):
    answer(capsys, "predict", fitted, data, "--out", tmp_path / "out.csv")
    plain = (tmp_path / "out.csv").read_bytes()
    for suffix, unpack in (".gz", gzip), (".bz2", bz2), (".xz", lzma):
        out = tmp_path / f"out.csv{suffix}"
        answer(capsys, "predict", fitted, data, "--out", out)
        assert unpack.decompress(out.read_bytes()) == plain


def test_a_figure_that_cannot_be_drawn_leaves_that_of_before(fitted, tmp_path, capsys, monkeypatch):
    def broken_off(self, path, **options):
        Path(path).write_bytes(b"half of it")
        raise OSError("no space left on device")

    before = tmp_path / "error.png"
    before.write_bytes(b"a figure")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", broken_off)
    assert "no space left" in failure(capsys, "plot", fitted, "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["error.png"]
    assert before.read_bytes() == b"a figure"


def test_a_row_that_cannot_be_predicted_is_named_by_its_place_in_the_file(fitted, tmp_path, capsys):
    file = tmp_path / "new.csv"
    file.write_text("a,b,c\n" + "1,2,3\n" * 1503 + ",2,3\n")
    message = failure(capsys, "predict", fitted, file, "--out", tmp_path / "out.csv")
    assert "rows 1001 to 1504: input 'a' is missing at row 503" in message
    assert not (tmp_path / "out.csv").exists()


def test_inspect_says_what_was_learned_and_plot_draws_it(fitted, tmp_path, capsys):
    report = answer(capsys, "inspect", fitted)
    assert report["inputs"] == ["a", "b", "c"]
    assert report["effects"]["a"] == pytest.approx(10.0, rel=0.1)  # along y = 5 sin a + b
    assert report["effects"]["b"] == pytest.approx(9.0, rel=0.1)  # 0.05 to 0.95 of its range
    for name in ("nlpd", "inside", "squared_error"):
        assert name not in report["batches"][0]
        assert report["batches"][2][name] < 1.01
    assert [one["batch"] for one in report["batches"]] == ["batch-0", "batch-1", "batch-2"]
    assert [one["rows"] for one in report["batches"]] == [19, 20, 20]
    assert report["free_energy"] == sum(one["free_energy"] for one in report["batches"])
    assert sum(report["factors"].values()) == 30
    quantiles = report["hyperparameters"]["likelihood.variance"]
    assert 0.0 < quantiles["low"] < quantiles["median"] < quantiles["high"]
    plots = answer(capsys, "plot", fitted, "--out", tmp_path / "plots")["plots"]
    assert sorted(path.rsplit("/", 1)[1] for path in plots) == [
        "calibration.png", "error.png", "hyperparameters.png", "inputs.png", "ledger.png",
    ]  # fmt: skip
    main(["inspect", str(fitted)])
    printed = capsys.readouterr().out
    assert "3 batches, 59 rows, 1 skipped" in printed
    assert "within their 95 % intervals" in printed
    assert all(f"kernel.lengthscales of {name} " in printed for name in "abc")


def test_a_torn_note_of_a_batch_is_left_out(fitted, tmp_path):
    folder = Folder(tmp_path)
    folder.append_record({"batch": "batch-0", "rows": 1})
    with (tmp_path / "batches.jsonl").open("a") as log:
        log.write('\n{"batch": "bat')
    folder.append_record({"batch": "batch-1", "rows": 2})
    assert [one["batch"] for one in folder.records()] == ["batch-0", "batch-1"]


@pytest.mark.slow
def test_words_are_classes(tmp_path, capsys):
    path, rng = tmp_path / "words.csv", np.random.default_rng(0)
    a = rng.uniform(-1.0, 1.0, 60)
    lines = [f"{x},{'up' if x > 0.0 else 'down'}" for x in a]
    path.write_text("a,word\n" + "\n".join(lines) + "\n")
    journal, out = tmp_path / "journal", tmp_path / "out.csv"
    options = ["--target", "word", "--classes", "down,up", "--batch-size", 60]
    answer(capsys, "fit", path, "--journal", journal, *options)
    answer(capsys, "predict", journal, path, "--out", out)
    with out.open() as file:
        titles, *rows = csv.reader(file)
    assert titles == ["word", "p_down", "p_up"]
    words = np.array([row[0] for row in rows])
    assert np.mean(words == np.where(a > 0.0, "up", "down")) > 0.9


def test_errors_are_one_line_and_change_nothing(data, fitted, tmp_path, capsys):
    new, before = tmp_path / "new", digest(fitted)
    assert "--target must name one of" in failure(capsys, "fit", data, "--journal", new)
    assert "no columns ['z']" in failure(capsys, "fit", data, "--journal", new, "--target", "z")
    message = failure(capsys, "fit", data, "--journal", new, "--target", "y", "--features", "y,a")
    assert "the target is none of them" in message
    message = failure(capsys, "fit", data, "--journal", new, "--target", "y", "--classes", "a")
    assert "at least two labels" in message
    assert "cannot be read" in failure(capsys, "fit", tmp_path / "no.csv", "--journal", new)
    assert not new.exists()
    message = failure(capsys, "fit", data, "--journal", fitted, "--budget", 7)
    assert "was begun with budget 30, got 7" in message
    message = failure(capsys, "fit", data, "--journal", data.parent, *OPTIONS)
    assert "is neither empty nor the folder of a fit" in message
    assert "holds no fit" in failure(capsys, "inspect", tmp_path)
    short = tmp_path / "short.csv"
    short.write_text("".join(data.read_text().splitlines(keepends=True)[:21]))
    message = failure(capsys, "fit", short, "--journal", fitted)
    assert "has 1 batches, but 3 of it were learned" in message
    message = failure(capsys, "predict", fitted, data, "--json")
    assert "--json wants --out" in message
    assert digest(fitted) == before


def test_wrong_usage_ends_with_2(capsys):
    for wrong in ([], ["fit"], ["fit", "a.csv", "--journal", "b", "--budget", "-1"], ["sing"]):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2
        assert "usage: streaming-gp" in capsys.readouterr().err
    assert b"--journal" in subprocess.run(command("fit", "--help"), capture_output=True).stdout


PROGRAM = """
import numpy as np
from streaming_gp import linear, pvi
from streaming_gp.pvi import privacy

X = np.random.default_rng(0).standard_normal((20, 2))
rule = privacy.PrivateChanges(
    pvi.FixedPointUpdate(), budget=privacy.Budget(1.0), record={record!r}
)
model = linear.logistic_regression(2)
site = pvi.Site("clinic", model, rule, 20, lambda: (X, 1.0 * (X[:, :1] > 0.0)))
"""


def test_a_site_sees_that_its_data_can_be_learned_from(capsys, tmp_path):
    program, record = tmp_path / "clinic.py", tmp_path / "spent"
    program.write_text(PROGRAM.format(record=str(record)))
    assert answer(capsys, "site", program, "--check", "--begin-record") == {"rows": {"clinic": 20}}
    assert [path.name for path in record.iterdir()] == ["clinic.lock"]
    assert "wanted one of --nvflare KIT" in failure(capsys, "site", program)
    program.write_text("site = 3")
    assert "must define site" in failure(capsys, "site", program, "--check")


@pytest.mark.slow
def test_a_fit_that_is_killed_again_and_again_ends_the_same(data, fitted, tmp_path):
    folder = tmp_path / "journal"
    started = command("fit", data, "--journal", folder, *OPTIONS)
    for wanted in (1, 2, 3):  # entries that are there when it is killed
        with subprocess.Popen(started, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and len([*(folder / "journal").glob("*.npz")]) < wanted:
                time.sleep(0.02)
            process.kill()
    done = subprocess.run(started, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert digest(folder) == digest(fitted)
    assert json.loads((folder / "table.json").read_text()) == json.loads(
        (fitted / "table.json").read_text()
    )
    failed = subprocess.run(command("inspect", tmp_path), capture_output=True, text=True)
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
def test_the_demo_predicts_better_and_better(capsys):
    scores = answer(capsys, "demo")["smse"]
    assert len(scores) == 4
    assert scores[-1] < 0.05


def test_words_times_and_gaps_are_taken_as_the_options_say(tmp_path, capsys):
    """A first fit that is refused leaves nothing behind, and predictions go to Parquet too."""
    path, journal = tmp_path / "sites.csv", tmp_path / "run"
    rows = [f"2024-01-{i + 1:02d},{('south', 'north')[i % 2]},{3.0 * (i % 2)}" for i in range(30)]
    rows[5] = ",north,3.0"
    path.write_text("day,site,y\n" + "\n".join(rows) + "\n")
    fit = ["fit", path, "--journal", journal, *OPTIONS]
    message = failure(capsys, *fit)
    assert "columns hold no numbers: site ('south' in line 2); --text drop" in message
    labels = [*fit[:4], "--target", "site"]
    assert "name them by --classes" in failure(capsys, *labels)
    encode = [*fit, "--text", "encode"]
    assert "input 'day' is missing at row 5" in failure(capsys, *encode)
    assert not journal.exists()
    assert answer(capsys, *encode, "--missing", "drop")["skipped"] == 1
    effects = answer(capsys, "inspect", journal)["effects"]
    assert {*effects} == {"day", "site=north", "site=south"}
    parquet = pytest.importorskip("pyarrow.parquet")
    out, other = tmp_path / "out.parquet", tmp_path / "out.parquet.part"
    other.write_text("of the user")
    answer(capsys, "predict", journal, path, "--out", out)
    means = parquet.read_table(out)["y_mean"].to_pylist()
    assert means[5] is None
    assert all(abs(means[i] - 3.0 * (i % 2)) < 0.5 for i in range(6, 30))
    assert other.read_text() == "of the user"
    assert "would be overwritten" in failure(capsys, "predict", journal, path, "--out", path)
    path.write_text("day,site\n2024-02-01,west\n")
    assert "'west'" in failure(capsys, "predict", journal, path)


@pytest.mark.slow
def test_labels_may_be_numbers_of_a_parquet_file_whatever_they_are_called(tmp_path, capsys):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, out, a = tmp_path / "labels.parquet", tmp_path / "OUT.PARQUET", np.arange(40.0)
    parquet.write_table(pyarrow.table({"a": a, "is_mean": (a > 19.0).astype(int)}), path)
    fit = ["fit", path, "--target", "is_mean", "--classes", "0,1", "--journal", tmp_path / "run"]
    assert answer(capsys, *fit)["rows"] == 40
    answer(capsys, "predict", tmp_path / "run", path, "--out", out)
    labels = parquet.read_table(out)["is_mean"].to_pylist()
    assert labels == [str(int(one > 19.0)) for one in a]


def test_times_are_not_taken_for_numbers(fitted, tmp_path, capsys):
    """As days since 1970 they would be; in a text file they are refused."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "new.parquet"
    columns = {"a": np.array(["2024-01-01"], "datetime64[us]"), "b": [1.0], "c": [2.0]}
    parquet.write_table(pyarrow.table(columns), path)
    message = failure(capsys, "predict", fitted, path, "--out", tmp_path / "out.csv")
    assert "column 'a' must hold numbers, got timestamp[us]" in message


@pytest.mark.slow
def test_a_class_may_be_called_none(tmp_path, capsys):
    path = tmp_path / "rain.csv"
    rows = "\n".join(f"{i / 10},{('NA', 'none', 'heavy')[i % 3]}" for i in range(30))
    path.write_text(f"hour,rain\n{rows}\n")
    fit = ["fit", path, "--target", "rain", "--journal", tmp_path / "run"]
    report = answer(capsys, *fit, "--classes", "none,heavy")
    assert (report["rows"], report["skipped"]) == (20, 10)  # NA is none of them: missing
    path.write_text(f"hour,rain\n{rows.replace('heavy', 'none')}\n")
    fit[-1] = tmp_path / "other"
    assert answer(capsys, *fit, "--classes", "none,NA")["rows"] == 30


def test_what_is_wrong_is_said_before_tensorflow_is_loaded(tmp_path):
    """Every mistake that options and files show."""
    code = """
import sys
from streaming_gp.command_line import main

missing, folder = sys.argv[1:]
for arguments, status in {
    ("--version",): 0,
    ("fit", missing, "--target", "y", "--journal", "run"): 1,
    ("demo", "--seed", "-5"): 2,
    ("predict", folder, missing): 1,
    ("plot", folder, "--out", folder): 1,
}.items():
    try:
        main(arguments)
    except SystemExit as end:
        assert (end.code or 0) == status, arguments
    assert "tensorflow" not in sys.modules, arguments
"""
    arguments = [sys.executable, "-c", code, str(tmp_path / "no.csv"), str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error:") == 4


@pytest.mark.slow
def test_the_commands_of_the_page_run(data, tmp_path, monkeypatch, capsys):
    """One after another, as a reader would give them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    for name in ("data.csv", "new.csv"):
        (tmp_path / name).write_bytes(data.read_bytes())
    lines = [f"{x:.3f},{'ab'[i % 2]},{x + i % 2:.3f}" for i, x in enumerate(rng.uniform(size=40))]
    (tmp_path / "sites.csv").write_text("wind,site,power\n" + "\n".join(lines) + "\n")
    lines = [f"{i},{i % 5},{('none', 'light', 'heavy')[i % 3]}" for i in range(45)]
    (tmp_path / "rain.csv").write_text("hour,wind,rain\n" + "\n".join(lines) + "\n")
    page = (Path(__file__).parents[2] / "docs/howto/command_line.rst").read_text()
    commands = re.findall(r"^    \$ streaming-gp ([^#\n]+)", page, re.MULTILINE)
    assert len(commands) > 6
    for one in commands:
        main(one.split())
        assert "error" not in capsys.readouterr().err
