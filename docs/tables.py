"""A Sphinx directive that makes measured tables from results.json files in docs/results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, directives

RESULTS = Path(__file__).parent / "results"


def rows_of(name: str, section: str) -> list[dict[str, Any]]:
    """The records of one section of ``docs/results/NAME/results.json``."""
    section_of = json.loads((RESULTS / name / "results.json").read_text())[section]
    return section_of if isinstance(section_of, list) else [section_of]


def cell(record: dict[str, Any], column: str) -> str:
    value = record[column]
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


class Measured(Directive):
    """``.. measured:: NAME SECTION`` with ``:columns:`` key=title pairs separated by commas."""

    required_arguments = 2
    option_spec = {"columns": directives.unchanged_required}  # noqa: RUF012

    def run(self) -> list[nodes.Node]:
        name, section = self.arguments
        columns = [pair.strip().split("=") for pair in self.options["columns"].split(",")]
        records = rows_of(name, section)
        titles = [title for _, title in columns]
        body = [[cell(record, key) for key, _ in columns] for record in records]
        widths = [max(map(len, column)) for column in zip(titles, *body, strict=True)]
        table, group = nodes.table(), nodes.tgroup(cols=len(columns))
        group += [nodes.colspec(colwidth=width) for width in widths]
        group += nodes.thead("", self._row(titles))
        group += nodes.tbody("", *(self._row(texts) for texts in body))
        table += group
        return [table]

    @staticmethod
    def _row(texts: list[str]) -> nodes.row:
        return nodes.row("", *(nodes.entry("", nodes.paragraph(text=text)) for text in texts))


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("measured", Measured)
    return {"parallel_read_safe": True}
