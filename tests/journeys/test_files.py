"""Files of tables in any dress are the same table, and what is none is one clear error."""

import bz2
import datetime
import gzip
import lzma

import numpy as np
import pytest

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.frames.files import open_table, read_csv

TIMES = [datetime.datetime(2024, 1, day, 12) for day in (1, 2, 3)]
COLUMNS = {"x °C": [0.5, -1.25, 1e3], "site": ["süd", "", "none"], "when": TIMES}
KINDS = {"x °C": "number", "site": "words", "when": "time"}


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
    assert {name: kind for name, (kind, _) in file.kinds([*COLUMNS]).items()} == KINDS
    first, second = file.batches(2, KINDS)
    columns = {name: np.concatenate([first[name], second[name]]) for name in KINDS}
    assert columns["x °C"].tolist() == COLUMNS["x °C"]
    assert columns["site"].tolist() == ["süd", None, "none"]
    np.testing.assert_array_equal(columns["when"], np.array(TIMES, "datetime64[us]"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "must begin with names that differ"),
        (b"a,b\n1,2\n3,4,5\n", "line 3: wanted 2 values, got 3"),
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


def test_a_folder_and_an_unknown_encoding_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match="is no file"):
        open_table(tmp_path)
    (tmp_path / "data.csv").write_text("a\n1\n")
    with pytest.raises(InvalidDataError, match="there is no encoding 'utf-9'"):
        [*read_csv(tmp_path / "data.csv", encoding="utf-9")]
