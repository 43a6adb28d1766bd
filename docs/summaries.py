"""A table of what a page of the reference documents, and of where each of it is used."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parent
ENTRY = re.compile(r"^\.\. auto(?:class|function|data)::\s+(\S+)", re.MULTILINE)
CODE = re.compile(r"^( *)\.\. code-block:: python\n((?:\n|\1 +.*\n)+)", re.MULTILINE)
FILE = re.compile(r"literalinclude:: (\S+\.py)$", re.MULTILINE)
MOST = 2
"""So many pages are named of all that use an object."""


class ApiSummary(SphinxDirective):
    """``.. api-summary::`` makes the table of all objects that the page documents."""

    def run(self) -> list[nodes.Node]:
        page = Path(self.env.doc2path(self.env.docname)).read_text()
        return self.parse_text_to_nodes("\n".join(table_of(ENTRY.findall(page))))


def table_of(names: list[str]) -> Iterator[str]:
    """The lines of the table, in reStructuredText."""
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: 28 52 20", "")
    yield from ("   * - object", "     - what it is", "     - used in")
    for name in names:
        yield f"   * - :py:obj:`~{name}`"
        yield f"     - {first_sentence(found(name))}"
        yield f"     - {', '.join(uses_of(name))}"


def found(name: str) -> Any:
    """The object of a dotted name."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def first_sentence(thing: Any) -> str:
    """Of its docstring; data have none of their own."""
    documented = inspect.isclass(thing) or inspect.isroutine(thing)
    paragraph = (inspect.getdoc(thing) or "").split("\n\n")[0] if documented else ""
    return re.split(r"(?<=[.:])\s", " ".join(paragraph.split()))[0].rstrip(":")


def uses_of(name: str) -> list[str]:
    """Links to the pages whose code names an object; where there is none, examples that do."""
    word = re.compile(rf"\b{re.escape(name.rsplit('.', 1)[-1])}\b")
    pages = [f":doc:`/{page}`" for page, code in code_of_pages().items() if word.search(code)]
    return pages[:MOST] or [f"``{at}``" for at, code in examples().items() if word.search(code)][:1]


@cache
def code_of_pages() -> Mapping[str, str]:
    """The Python code of each page, those for beginners first; snippets run in the tests."""
    folders = ("start", "howto", "extend", "measured")
    paths = [path for folder in folders for path in sorted((DOCS / folder).glob("*.rst"))]
    written = {path: code_of(path) for path in paths}
    executed = {path: path.read_text() for path in sorted((DOCS / "notebooks").glob("*.py"))}
    both = (written | executed).items()
    return {path.relative_to(DOCS).with_suffix("").as_posix(): code for path, code in both}


def code_of(page: Path) -> str:
    """The blocks of code of a page, and the files of code that it shows."""
    text = page.read_text()
    shown = (page.parent / name for name in FILE.findall(text))
    return "".join(
        [*(block for _, block in CODE.findall(text)), *(one.read_text() for one in shown)]
    )


@cache
def examples() -> Mapping[str, str]:
    """The examples' code."""
    root = DOCS.parent
    paths = sorted((root / "examples").glob("*.py"))
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("api-summary", ApiSummary)
    return {"parallel_read_safe": True}
