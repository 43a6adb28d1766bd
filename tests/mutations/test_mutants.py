"""What the mutants of a file are."""

import ast
import sys

from tests.mutations.__main__ import all_of, summary
from tests.mutations.calls import callers, in_order, marked, seconds_of
from tests.mutations.mutants import mutants
from tests.mutations.targets import ROOT, TARGETS

SOURCE = '''"""A file − with signs."""

RATE = 0.5


def loss(x: "a - b", slope=2.0):
    """Of x − 1."""
    if not x >= 0:
        raise ValueError(f"wanted {1 + 1}, got {x}")
    return -slope * (x) - 1e-9 if x is None or slope else slope**2
'''.encode()


def test_every_operator_sign_and_number_is_changed_once():
    found = {one.name.split(": ", 1)[1] for one in mutants("loss.py", SOURCE)}
    body = "-slope * (x) - 1e-9 if x is None or slope else slope**2"
    assert body in SOURCE.decode()
    assert found == {
        "not x >= 0 → x >= 0",
        "x >= 0 → x < 0",
        "0 → 1",
        "-slope * (x) - 1e-9 → -slope * (x) + 1e-9",
        "-slope * (x) → -slope / (x)",
        "-slope → slope",
        "x is None or slope → x is None and slope",
        "x is None → x is not None",
        "slope**2 → slope*2",
        "2 → 3",
    }


def test_mutants_of_the_package_can_be_parsed_and_have_names_of_their_own():
    for target in TARGETS.values():
        assert target.paths()
        for path in target.paths():
            source = (ROOT / path).read_bytes()
            found = mutants(str(path), source)
            assert len({one.name for one in found}) == len(found)
            for one in found[:: max(1, len(found) // 3)]:
                ast.parse(one.applied(source))
        assert all((ROOT / test.split("::")[0]).exists() for test in target.tests)


def test_tests_that_call_a_function_come_first_and_quick_ones_before_others():
    found = {
        "slow": {"names": ["loss", "penalty"], "seconds": 2.0},
        "other": {"names": ["penalty"], "seconds": 0.1},
        "quick": {"names": ["loss"], "seconds": 0.5},
    }
    assert in_order(found, "Model.loss") == ("quick", "slow", "other")
    assert set(callers(found, "Model.loss")) == {"quick", "slow"}
    assert callers(found, "Model.gain") == found
    assert seconds_of(callers(found, "Model.loss")) == 2.5


def test_marked_functions_say_that_they_are_called(monkeypatch):
    monkeypatch.setattr(sys, "called", set(), raising=False)
    found = {}
    exec(marked(SOURCE.decode()), found)
    assert sys.called == set()
    assert found["loss"](1.0) == -2.0 - 1e-9
    assert sys.called == {"loss"}


def test_marked_files_of_the_package_are_as_before_but_for_the_marks():
    for target in TARGETS.values():
        for path in target.paths():
            source = (ROOT / path).read_text()
            with_marks = marked(source)
            kept = [line for line in with_marks.splitlines() if "called.add(" not in line]
            assert kept == source.splitlines()
            compile(with_marks, path, "exec")


def test_survivors_that_change_nothing_are_no_share_of_those_that_are_seen():
    names = [one.name for one in all_of(TARGETS["losses"])][:4]
    verdicts = dict(zip(names, (True, True, False, False), strict=True))
    found = summary(verdicts, {names[3]: "it changes nothing"})
    (losses,) = (one for one in found["targets"] if one["target"] == "losses")
    assert (losses["tried"], losses["killed"], losses["equivalent"]) == (4, 2, 1)
    assert losses["killed_share"] == 2 / 3
    assert [one["reason"] for one in found["survivors"]] == ["not looked at", "it changes nothing"]
