"""The papers, row by row: what each equation, algorithm, figure and table is in the package.

The table is ``papers.json``. The docs' page *The papers, row by row* is made from it, and
``test_papers.py`` holds it: names, tests and pages exist, and no numbered row of a paper is without
a line.
"""

from __future__ import annotations

import json
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
    """

    paper: str
    item: str
    what: str
    code: str = ""
    test: str = ""
    page: str = ""
    note: str = ""


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text())
TITLES: dict[str, str] = _TABLE["titles"]
ROWS = tuple(Row(**one) for one in _TABLE["rows"])
