"""Every Python snippet in README and docs runs; every page that is linked exists."""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MARKDOWN = re.compile(r"```python\n(.*?)```", re.DOTALL)
RST = re.compile(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)")


def snippets(path):
    pattern = MARKDOWN if path.suffix == ".md" else RST
    return [textwrap.dedent(code) for code in pattern.findall(path.read_text())]


PAGES = [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.rst"))] if snippets(p)]


def in_turn(page):
    """How-to pages make many models: they run with the slow tests."""
    marks = [pytest.mark.slow] if page.name.startswith("howto_") else []
    return pytest.param(page, marks=marks, id=page.name)


@pytest.mark.parametrize("page", map(in_turn, PAGES))
def test_snippets_run_one_after_another(page):
    namespace = {}
    for number, code in enumerate(snippets(page)):
        exec(compile(code, f"{page.name}, snippet {number}", "exec"), namespace)
    assert namespace


def test_snippets_are_found():
    assert {page.name for page in PAGES} >= {"README.md", "quickstart.rst"}


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
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.rst")]:
        for image in re.findall(r"(?:\]\(|\.\. image:: )([\w/.]+\.png)", path.read_text()):
            assert (path.parent / image).is_file(), f"{path.name}: {image}"
