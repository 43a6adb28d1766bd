"""The table of the papers: what it names exists, and no numbered row is without a line."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import streaming_gp as sgp
from tests.papers import REFERENCE, ROWS, TITLES, filled

PVI, PGVI, SNEP, SEP = TITLES
TESTS = Path(__file__).resolve().parent
NUMBERED = {
    (PVI, "eq"): [str(n) for n in range(1, 95)],
    (PVI, "algorithm"): ["1", "2", "3", "4"],
    (PVI, "property"): [str(n) for n in range(1, 8)],
    (PVI, "table"): ["1"],
    (PVI, "fig"): [str(n) for n in range(1, 30)],
    (SNEP, "eq"): [str(n) for n in range(1, 29)],
    (SNEP, "algorithm"): ["1"],
    (SNEP, "fig"): [str(n) for n in range(1, 8)],
    (PGVI, "algorithm"): [str(n) for n in range(1, 10)],
    (PGVI, "statement"): [str(n) for n in range(1, 34)],
    (PGVI, "table"): ["3.1", "3.2", "4.1", "4.2", "5.1"],
    (PGVI, "eq"): ["1.1", "5.1"]
    + [f"{chapter}.{n}" for chapter, last in ((2, 13), (3, 7), (4, 6)) for n in range(1, last + 1)],
    (PGVI, "fig"): ["7.1"]
    + [
        f"{chapter}.{n}"
        for chapter, last in ((1, 4), (2, 6), (3, 9), (4, 4), (5, 7))
        for n in range(1, last + 1)
    ],
    (SEP, "eq"): [str(n) for n in range(1, 15)],
    (SEP, "algorithm"): [str(n) for n in range(1, 6)],
    (SEP, "statement"): ["1"],
    (SEP, "table"): ["1", "2"],
    (SEP, "fig"): [str(n) for n in range(1, 6)],
    (SEP, "section"): ["A.1", "A.2", "A.3", "B.1", "B.2", "C.1", "C.2", "C.3"],
}
STATEMENTS = {"definition", "theorem", "proposition", "lemma"}


def kind_and_numbers(item):
    """``eqs. 1.1, 2.1-2.3`` as ``eq`` and every number."""
    kind, numbers = item.split(" ", 1)
    kind = kind.rstrip("s.").replace("propertie", "property")
    found = []
    for part in numbers.split(", "):
        first, _, last = part.partition("-")
        found += [first] if not last else between(first, last)
    return ("statement" if kind in STATEMENTS else kind), found


def between(first, last):
    front, back = first.rpartition(".")[0], int(first.rpartition(".")[2])
    return [f"{front}.{n}".lstrip(".") for n in range(back, int(last.rpartition(".")[2]) + 1)]


def test_items_are_read():
    assert kind_and_numbers("eqs. 9-11") == ("eq", ["9", "10", "11"])
    assert kind_and_numbers("figs. 1.1, 2.1-2.2") == ("fig", ["1.1", "2.1", "2.2"])
    assert kind_and_numbers("theorems 4-5") == ("statement", ["4", "5"])


@pytest.mark.parametrize(("paper", "kind"), NUMBERED)
def test_no_row_of_a_paper_is_without_a_line(paper, kind):
    parsed = [kind_and_numbers(row.item) for row in ROWS if row.paper == paper]
    found = [number for its, numbers in parsed if its == kind for number in numbers]
    wanted = NUMBERED[paper, kind]
    assert sorted(found) == sorted({*found, *wanted}), "a row without a line, or with two"


@cache
def functions_in(file):
    tree = ast.parse((TESTS / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_what_a_line_names_exists():
    for row in ROWS:
        named = f"{row.paper} {row.item}"
        assert row.note or row.test or row.page, f"{named} is neither here nor has a reason"
        found = sgp
        for name in row.code.split(".") if row.code else ():
            found = getattr(found, name)
        if row.test:
            file, name = row.test.split("::")
            assert name in functions_in(file), named
        if row.page:
            assert (TESTS.parent / "docs" / f"{row.page}.rst").exists(), named
        assert not re.search(r"\s{2,}|\.$", row.what + row.note), named


def test_what_was_measured_here_stands_beside_the_paper_s_and_is_of_its_results():
    measured = [row for row in ROWS if row.published or row.here]
    assert measured
    for row in measured:
        named = f"{row.paper} {row.item}"
        assert row.published, named
        assert row.here, named
        assert row.page, named
        assert not re.search(r"\s{2,}|\.$|[{}]|None|nan", row.published + filled(row.here)), named
        assert not re.search(r"±|\d\.\d{3}", REFERENCE.sub("", row.here)), f"{named}: no results"


def test_a_reference_that_is_not_of_one_record_is_refused():
    assert filled("{banana/nuts/samples}") == "1000"
    assert filled("{banana/nuts/samples:.1f} draws") == "1000.0 draws"
    for wanted in ("batch=4", "batch=3"):
        with pytest.raises(ValueError, match="records of banana/stream"):
            filled(f"{{banana/stream/{wanted}/test_error}}")
