"""Every Python snippet in README and docs runs; every page that is linked exists."""

import re
import runpy
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARKDOWN = re.compile(r"```python\n(.*?)```", re.DOTALL)
RST = re.compile(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)")


def snippets(path):
    pattern = MARKDOWN if path.suffix == ".md" else RST
    return [textwrap.dedent(code) for code in pattern.findall(path.read_text())]


DOCS = ROOT / "docs"
TEXTS = [ROOT / "README.md", *sorted(p for p in DOCS.rglob("*.rst") if "_build" not in p.parts)]
PAGES = [path for path in TEXTS if snippets(path)]


def name_of(page):
    return str(page.relative_to(ROOT))


SLOW_FOLDERS = {"howto", "extend", "start"}
NEEDED = {
    "docs/howto/changing_world.rst": "river",
    "docs/howto/privacy.rst": "dp_accounting",
    "docs/howto/river.rst": "river",
    "docs/howto/tables.rst": "pyarrow",
}
"""Extras that a page is about."""


def in_turn(page):
    """Pages that make many models, or check extensions, run with the slow tests; the README, which
    begins as the first of them does, runs always."""
    is_slow = page.parent.name in SLOW_FOLDERS
    return pytest.param(page, marks=[pytest.mark.slow] if is_slow else [], id=name_of(page))


@pytest.fixture
def module(monkeypatch):
    """A module of its own, so that the classes of a page can be pickled."""
    made = ModuleType("page_of_the_docs")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


@pytest.mark.parametrize("page", map(in_turn, PAGES))
def test_snippets_run_one_after_another(page, module):
    """A snippet that raises fails here; many assert what they show."""
    if name_of(page) in NEEDED:
        pytest.importorskip(NEEDED[name_of(page)])
    for number, code in enumerate(snippets(page)):
        exec(compile(code, f"{page.name}, snippet {number}", "exec"), vars(module))


def test_every_seam_has_a_page_that_ends_with_its_check():
    for page in (DOCS / "extend").glob("*.rst"):
        if page.stem not in {"index", "house"}:
            *_, last = snippets(page)[-1].strip().splitlines()
            assert last.startswith("testing.check_"), name_of(page)


def test_the_page_about_the_house_names_files_that_are_there():
    named = re.findall(r"``((?:gp|pvi|engines)/[\w/.]+)``", (DOCS / "extend/house.rst").read_text())
    assert len(named) > 20
    for name in named:
        assert (ROOT / "streaming_gp" / name).exists(), name


def test_tables_show_as_many_digits_as_the_error_has():
    pytest.importorskip("docutils")
    cell = runpy.run_path(str(DOCS / "tables.py"))["cell"]
    record = {
        "smse": 0.173562,
        "error": 0.00201,
        "large": 1234.5,
        "its": 17.2,
        "one": 2.5,
        "no": 0.0,
    }
    assert cell(record, "smse ± error") == "0.1736\u00a0±\u00a00.0020"
    assert cell(record, "large ± its") == "1234\u00a0±\u00a017"
    assert cell(record, "one ± no") == "2.5"  # of one seed
    assert cell(record, "smse") == "0.174"


def test_snippets_are_found():
    assert set(map(name_of, PAGES)) >= {"README.md", "docs/start/quickstart.rst"}


def test_the_readme_streams_a_batch_in_ten_lines():
    code = snippets(ROOT / "README.md")[0]
    statements = [
        line for line in code.splitlines() if line and not line.startswith(("import", ")"))
    ]
    assert len(statements) <= 10
    assert "model.update(" in code


def test_make_targets_of_the_readme_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text())) <= targets


def test_images_of_readme_and_docs_exist():
    for path in TEXTS:
        images = re.findall(
            r"(?:\]\(|\.\. (?:image|figure):: |:img-top: )([\w/.-]+\.png)", path.read_text()
        )
        for image in images:
            assert (path.parent / image).is_file(), f"{name_of(path)}: {image}"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_what_markdown_files_link_to_exists(name):
    pages = re.findall(r"\]\(((?:docs|examples)/[\w/.-]+)\)", (ROOT / name).read_text())
    assert pages
    for page in pages:
        assert (ROOT / page).exists(), page


def test_the_summary_of_an_api_page_says_what_an_object_is_and_where_it_is_used():
    pytest.importorskip("sphinx")
    summaries = runpy.run_path(str(DOCS / "summaries.py"))
    lines = list(summaries["table_of"](["streaming_gp.StreamingGP", "streaming_gp.pvi.fit"]))
    of_model, of_fit = ([*map(str.strip, lines[start : start + 3])] for start in (7, 10))
    assert of_model[0] == "* - :py:obj:`~streaming_gp.StreamingGP`"
    assert of_fit[1].endswith(".")
    assert len(of_fit[1]) > 20
    assert ":doc:`/start/" in of_model[2]
    assert ":doc:`/howto/" in of_fit[2]


def test_a_summary_ends_with_a_sentence_and_a_use_is_more_than_the_same_word():
    pytest.importorskip("sphinx")
    summaries = runpy.run_path(str(DOCS / "summaries.py"))

    docstring = "Natural gradients (Khan et al. 2018): quick. And\nmore.\n\n:param rate: None."
    assert summaries["first_sentence"](docstring) == "Natural gradients (Khan et al. 2018): quick."
    of_data = summaries["docstring_of"]("streaming_gp.pvi.guards.NO_LIMITS")
    assert of_data.startswith("For point estimates")
    use = summaries["use_of"]("streaming_gp.gp.fit.Problem")
    for code in (
        "from streaming_gp.gp.fit import LocalModel, Problem",
        "from streaming_gp.gp.fit import (\n    LocalModel,\n    Problem,\n)",
        "fit.Problem(X, Y)",
    ):
        assert use.search(code), code
    for code in (
        "Problem(X, Y)",
        "other.Problem",
        "from streaming_gp import gp\n\nProblem(X)",
        "from streaming_gp.river import Problem",
    ):
        assert not use.search(code), code


def test_every_object_of_the_reference_has_a_snippet_or_an_example():
    pytest.importorskip("sphinx")
    summaries = runpy.run_path(str(DOCS / "summaries.py"))
    pages = [path.read_text() for path in (DOCS / "reference").rglob("*.rst")]
    names = [name for page in pages for name in summaries["ENTRY"].findall(page)]
    assert names
    assert [name for name in names if not summaries["uses_of"](name)] == []
