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
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parent
ENTRY = re.compile(r"^\.\. auto(?:class|function|data)::\s+(\S+)", re.MULTILINE)
CODE = re.compile(r"^( *)\.\. code-block:: python\n((?:\n|\1 +.*\n)+)", re.MULTILINE)
FILE = re.compile(r"literalinclude:: (\S+\.py)$", re.MULTILINE)
SENTENCE_END = re.compile(r"(?<=\.)(?<!\bal\.)(?<!\beq\.)(?<!\beqs\.)\s")
MOST = 2
"""So many pages are named of all that use an object."""


class ApiSummary(SphinxDirective):
    """``.. api-summary::`` makes the table of all objects that the page documents."""

    def run(self) -> list[nodes.Node]:
        page = Path(self.env.doc2path(self.env.docname)).read_text()
        return self.parse_text_to_nodes("\n".join(table_of(ENTRY.findall(page))))


def table_of(names: list[str]) -> Iterator[str]:
    """The lines of the table, in reStructuredText."""
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: auto", "")
    yield from ("   * - object", "     - what it is", "     - used in")
    for name in names:
        yield f"   * - :py:obj:`~{name}`"
        yield f"     - {first_sentence(docstring_of(name))}"
        yield f"     - {', '.join(uses_of(name))}"


def found(name: str) -> Any:
    """The object of a dotted name."""
    module, _, last = name.rpartition(".")
    return getattr(import_module(module), last)


def docstring_of(name: str) -> str:
    """Of data it is in the source alone, below their assignment."""
    thing = found(name)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        return inspect.getdoc(thing) or ""
    module, _, last = name.rpartition(".")
    return "\n".join(ModuleAnalyzer.for_module(module).find_attr_docs().get(("", last), []))


def first_sentence(docstring: str) -> str:
    """Its end is no full stop of an abbreviation."""
    paragraph = docstring.split("\n\n")[0]
    return SENTENCE_END.split(" ".join(paragraph.split()))[0].rstrip(":")


def uses_of(name: str) -> list[str]:
    """Links to the pages whose code names an object; where there is none, a script that does."""
    use = use_of(name)
    pages = [f":doc:`/{page}`" for page, code in code_of_pages().items() if use.search(code)]
    return pages[:MOST] or [f"``{at}``" for at, code in scripts().items() if use.search(code)][:1]


def use_of(name: str) -> re.Pattern[str]:
    """An object as it is written after its module's name, or imported from the module, from one
    above it or from one within.
    """
    *modules, last = name.split(".")
    before = "|".join(["sgp", *modules])
    above = "|".join(re.escape(".".join(modules[:depth])) for depth in range(1, len(modules)))
    sources = rf"(?:{above or '(?!)'}|{re.escape('.'.join(modules))}(?:\.\w+)*)"
    imported = rf"from {sources} import (?:\([^)]*|[^\n(]*)\b{last}\b"
    return re.compile(rf"\b(?:{before})\.{last}\b|{imported}")


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
def scripts() -> Mapping[str, str]:
    """The code of the examples and experiments."""
    root = DOCS.parent
    paths = [*sorted(root.glob("examples/*.py")), *sorted(root.glob("experiments/*/*.py"))]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("api-summary", ApiSummary)
    return {"parallel_read_safe": True}
