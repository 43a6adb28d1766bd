"""Records of what is spent: no damage, no race and no odd name makes a payment disappear."""

import json
import math
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from streaming_gp import pvi
from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.pvi import privacy
from streaming_gp.pvi.privacy.accountant import Release
from streaming_gp.pvi.privacy.rule import Record
from tests.hostile.test_answers import MODEL, clients

RELEASE, FREE = Release(2.0, 0.5), privacy.Budget(math.inf)


def record(folder, name="c", subject="data"):
    return Record(str(folder), name, subject)


def write(one, number):
    with one.held() as lock:
        one.write(lock, ((RELEASE, number),))


def read(one, has_answered=False):
    with one.held() as lock:
        return one.read(lock, has_answered)


with tempfile.TemporaryDirectory() as folder:
    write(record(folder), 3)
    GOOD = json.loads((Path(folder) / "c.json").read_text())


def with_entry(**changes):
    return [{**GOOD[0], **changes}]


DAMAGED = {
    "nothing": "",
    "no entry": "[]",
    "an entry twice": json.dumps(GOOD * 2),
    "one more and zero": json.dumps([*GOOD, {**GOOD[0], "number": 0}]),
    "nested": "[" * 100_000,
    "fewer": json.dumps(with_entry(number=2)),
    "more digits": json.dumps(with_entry(number=3)).replace(": 3", ": 3" + "0" * 5000),
    "longer": " " * 2**21 + json.dumps(GOOD),
    "no JSON": "{",
    "no list": json.dumps({"release": 1}),
    "text": json.dumps(["x"]),
    "no release": json.dumps(with_entry(release=None)),
    "other fields": json.dumps(with_entry(release={"noise": 1.0})),
    "noise text": json.dumps(with_entry(release={"noise_multiplier": "2"})),
    "noise nan": json.dumps(with_entry(release={"noise_multiplier": math.nan})),
    "noise negative": json.dumps(with_entry(release={"noise_multiplier": -1.0})),
    "rate 2": json.dumps(with_entry(release={"noise_multiplier": 1.0, "sampling_rate": 2.0})),
    "number text": json.dumps(with_entry(number="3")),
    "number true": json.dumps(with_entry(number=True)),
    "number half": json.dumps(with_entry(number=0.5)),
    "number negative": json.dumps(with_entry(number=-3)),
    "number missing": json.dumps([{"release": GOOD[0]["release"]}]),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_record_is_not_taken_for_none(tmp_path, name):
    (tmp_path / "c.json").write_text(DAMAGED[name])
    with pytest.raises(FileFormatError, match="no record of what was spent"):
        read(record(tmp_path))


@pytest.mark.parametrize("damage", ["lost", "older", "gone"])
def test_a_record_that_is_lost_or_older_is_refused_until_somebody_says_that_it_begins(
    tmp_path, damage
):
    folder, one = tmp_path / "spent", record(tmp_path / "spent")
    write(one, 1)
    before = (folder / "c.json").read_bytes()
    write(one, 2)
    if damage == "gone":
        shutil.rmtree(folder)
    elif damage == "lost":
        (folder / "c.json").unlink()
    else:
        (folder / "c.json").write_bytes(before)
    with pytest.raises(FileFormatError, match="2 at least"):
        read(one)
    privacy.begin_record(str(folder), "c")
    assert read(one) == ()
    with pytest.raises(FileFormatError, match="1 at least"):
        read(one, has_answered=True)


@pytest.mark.parametrize("in_sum", [False, True])
def test_a_site_starts_once_somebody_says_that_its_record_begins(tmp_path, in_sum):
    folder, data = tmp_path / "spent", clients()["c1"].data
    rule = privacy.PrivateChanges(pvi.AnalyticUpdate(), budget=FREE, record=str(folder))
    if in_sum:
        rule = privacy.SummedChanges(rule, sites=3, record=str(tmp_path / "factors"))
    site = pvi.Site("c", MODEL, rule, len(data[0]), lambda: data)
    for _ in range(2):
        with pytest.raises(FileFormatError, match="say that it begins"):
            site.at_work()
        privacy.begin_record(str(folder), "c")
        assert site.at_work().num_data == site.num_data
        shutil.rmtree(folder)


def test_a_record_is_of_its_data_and_rule_and_lies_at_one_place(tmp_path):
    write(record(tmp_path), 3)
    with pytest.raises(FileFormatError, match="of other data"):
        read(record(tmp_path, subject="other data"))
    for make in (
        lambda: privacy.begin_record("spent", "c"),
        lambda: privacy.PrivateChanges(pvi.AnalyticUpdate(), budget=FREE, record="spent"),
    ):
        with pytest.raises(InvalidDataError, match="absolute path, got 'spent'"):
            make()


def test_a_folder_or_other_bytes_are_no_record(tmp_path):
    (tmp_path / "c.json").mkdir()
    (tmp_path / "d.json").write_bytes(b"\xff\xfe")
    for name in ("c", "d"):
        with pytest.raises(FileFormatError, match="no record of what was spent"):
            read(record(tmp_path, name))
    with pytest.raises(FileFormatError, match="can be no record"):
        read(record(tmp_path, "x" * 300))


def test_a_place_where_there_can_be_no_record_is_named(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(FileFormatError, match="can be no record"):
        read(record(path))
    with pytest.raises(InvalidDataError, match="wanted the path"):
        read(record("a\0b"))


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/etc/passwd", "ä ö", "c.json", ""])
def test_records_stay_in_their_folder_whatever_the_client_is_called(tmp_path, name):
    folder = tmp_path / "records"
    write(record(folder, name), 3)
    assert read(record(folder, name)) == ((RELEASE, 3),)
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_answers_at_the_same_time_are_all_paid_for(tmp_path, caplog):
    """To several servers; each payment goes on from what is on record, which begins aloud."""
    rule = privacy.PrivateChanges(
        pvi.AnalyticUpdate(), budget=FREE, noise_multiplier=0.0, record=str(tmp_path)
    )
    client = replace(clients()["c1"], update=rule)
    asks = [pvi.Server(MODEL.prior(), {"c1": client}).ask("c1") for _ in range(24)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client.answer, asks))
    assert all(isinstance(answer, pvi.LocalResult) for answer in answers)
    (entry,) = json.loads((tmp_path / "c1.json").read_text())
    assert entry["number"] == 24
    assert [one.getMessage() for one in caplog.records] == [
        f"'c1': its record begins, in {tmp_path}"
    ]
