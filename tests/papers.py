"""The papers, row by row: what each equation, algorithm, figure and table is in the package.

The table is ``papers.json``. The docs' page *The papers, row by row* is made from it, and
``test_papers.py`` holds it: names, tests and pages exist, and no numbered row of a paper is without
a line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """Some rows of a paper that are one thing here.

    :param paper: The paper, one of ``TITLES``.
    :param item: Which rows: "eq. 1", "eqs. 22-27", "fig. 7", "algorithm 2", "section B.1".
    :param what: What they say.
    :param code: The public name under ``streaming_gp``; empty where there is none.
    :param test: The test that fails if it is wrong, as ``folder/file.py::test``.
    :param page: The page of the docs with the measured result.
    :param note: Why it is not here, or what differs.
    :param published: What was measured there, as the paper's text states it.
    :param here: What was measured here. ``{NAME/SECTION/KEY=VALUE/.../COLUMN:FORMAT}`` is a number
        of ``docs/results/NAME/results.json``: see ``filled``.
    """

    paper: str
    item: str
    what: str
    code: str = ""
    test: str = ""
    page: str = ""
    note: str = ""
    published: str = ""
    here: str = ""


RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
REFERENCE = re.compile(r"\{([^{}:]+):?([^{}]*)\}")


def filled(text: str) -> str:
    """The text with its numbers, each from the one record that its reference names.

    :raises ValueError: If not exactly one record has the values of a reference.
    """
    return REFERENCE.sub(lambda found: format(_value_at(found[1]), found[2]), text)


def _value_at(reference: str) -> str | float:
    name, section, *wanted, column = reference.split("/")
    records = json.loads((RESULTS / name / "results.json").read_text())[section]
    pairs = [one.split("=", 1) for one in wanted]
    found = [
        record[column]
        for record in (records if isinstance(records, list) else [records])
        if all(str(record[key]) == value for key, value in pairs)
    ]
    if len(found) != 1:
        raise ValueError(f"{len(found)} records of {reference}, wanted one")
    return found[0]


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text())
TITLES: dict[str, str] = _TABLE["titles"]
ROWS = tuple(Row(**one) for one in _TABLE["rows"])
