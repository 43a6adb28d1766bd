"""Records of what is spent: no damage, no race and no odd name makes a payment disappear."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from streaming_gp import pvi
from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.pvi import privacy
from streaming_gp.pvi.privacy.accountant import (
    Release,
    alone,
    read_spent,
    with_release,
    write_spent,
)
from tests.hostile.test_answers import MODEL, clients

RELEASE = Release(2.0, 0.5)
GOOD = [{"release": {"noise_multiplier": 2.0, "sampling_rate": 0.5}, "number": 3}]


def with_entry(**changes):
    return [{**GOOD[0], **changes}]


DAMAGED = {
    "nothing": "",
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
        read_spent(str(tmp_path), "c")


def test_a_folder_or_other_bytes_are_no_record(tmp_path):
    (tmp_path / "c.json").mkdir()
    (tmp_path / "d.json").write_bytes(b"\xff\xfe")
    for name in ("c", "d", "x" * 300):
        with pytest.raises(FileFormatError, match="no record of what was spent"):
            read_spent(str(tmp_path), name)


def test_a_place_where_there_can_be_no_record_is_named(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(FileFormatError, match="can be no record"), alone(str(path), "c"):
        pass
    with pytest.raises(InvalidDataError, match="wanted the path"), alone("a\0b", "c"):
        pass


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/etc/passwd", "ä ö", "c.json", ""])
def test_records_stay_in_their_folder_whatever_the_client_is_called(tmp_path, name):
    folder = tmp_path / "records"
    with alone(str(folder), name):
        write_spent(str(folder), name, with_release((), RELEASE, 3))
    assert read_spent(str(folder), name) == ((RELEASE, 3),)
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_answers_at_the_same_time_are_all_paid_for(tmp_path):
    """To several servers; each payment goes on from what is on record."""
    budget = privacy.Budget(math.inf)
    rule = privacy.PrivateChanges(
        pvi.AnalyticUpdate(), budget=budget, noise_multiplier=0.0, record=str(tmp_path)
    )
    client = replace(clients()["c1"], update=rule)
    asks = [pvi.Server(MODEL.prior(), {"c1": client}).ask("c1") for _ in range(24)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(client.answer, asks))
    assert all(isinstance(answer, pvi.LocalResult) for answer in answers)
    assert read_spent(str(tmp_path), "c1") == ((rule.release, 24),)
