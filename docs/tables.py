"""Sphinx directives: measured tables from results.json files in docs/results, and the papers."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, directives

RESULTS = Path(__file__).parent / "results"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import papers  # noqa: E402


def rows_of(name: str, section: str) -> list[dict[str, Any]]:
    """The records of one section of ``docs/results/NAME/results.json``."""
    section_of = json.loads((RESULTS / name / "results.json").read_text())[section]
    return section_of if isinstance(section_of, list) else [section_of]


def cell(record: dict[str, Any], column: str) -> str:
    """The value of a column, or of two that are ``value ± error``, where there is an error."""
    column, _, error = column.partition(" ± ")
    value = record[column]
    if error and record[error]:
        return with_error(value, record[error]).replace(" ", "\N{NO-BREAK SPACE}")
    if value is None:
        return "–"
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def with_error(value: float, error: float) -> str:
    """Both with as many decimals as show two digits of the error."""
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def day_of(name: str) -> str | None:
    """The day of the code that ``docs/results/NAME/results.json`` is of, where it is of one."""
    date = json.loads((RESULTS / name / "results.json").read_text()).get("commit_date")
    return date and date[:10]


class Measured(Directive):
    """``.. measured:: NAME SECTION`` with ``:columns:`` key=title pairs separated by commas; a key
    is a column, or ``column ± column of its error``. The day of the code stands below.
    """

    required_arguments = 2
    option_spec = {"columns": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        name, section = self.arguments
        self.state.document.settings.record_dependencies.add(str(RESULTS / name / "results.json"))
        columns = [pair.strip().split("=") for pair in self.options["columns"].split(",")]
        records = rows_of(name, section)
        titles = [title for _, title in columns]
        body = [[cell(record, key) for key, _ in columns] for record in records]
        table, day = table_of(titles, body), day_of(name)
        if day is None:
            return [table]
        return [table, nodes.paragraph(text=f"Measured with the code of {day}.", classes=["day"])]


def why(row: papers.Row) -> str:
    """The page with the measured result, and why a row is not here or what differs."""
    return "; ".join(filter(None, (row.page, row.note)))


class Papers(Directive):
    """``.. papers:: PAPER``: the rows of ``tests/papers.json`` that are of this paper."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        rows = [row for row in papers.ROWS if row.paper == self.arguments[0]]
        titles = ["of the paper", "what", "here, and its test", "the paper has", "measured here"]
        body = [
            [
                row.item,
                row.what,
                f"{row.code}\n{row.test}",
                row.published,
                papers.filled(row.here),
                why(row),
            ]
            for row in rows
        ]
        titles += ["page, or why not here"]
        table = table_of(titles, body)
        table["classes"] += ["papers", "stacked"]
        return [nodes.paragraph(text=papers.TITLES[self.arguments[0]]), table]


def table_of(titles: list[str], body: list[list[str]]) -> nodes.table:
    """A table of plain texts; a line of a text is a paragraph."""
    widths = [max(map(len, column)) for column in zip(titles, *body, strict=True)]
    table, group = nodes.table(), nodes.tgroup(cols=len(titles))
    group += [nodes.colspec(colwidth=width) for width in widths]
    group += nodes.thead("", row_of(titles))
    group += nodes.tbody("", *(row_of(texts) for texts in body))
    table += group
    return table


def row_of(texts: list[str]) -> nodes.row:
    """One row of it."""
    cells = ([nodes.paragraph(text=line) for line in text.split("\n") if line] for text in texts)
    return nodes.row("", *(nodes.entry("", *cell) for cell in cells))


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("measured", Measured)
    app.add_directive("papers", Papers)
    return {"parallel_read_safe": True}
