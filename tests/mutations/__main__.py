"""Runs the tests against mutants: ``python -m tests.mutations --out docs/results/mutations``.

Mutants come in a random order that the seed sets, so that a run that was stopped is a fair sample;
``--sample`` takes so many of each target. Verdicts are kept in ``runs.jsonl`` of the output folder,
and a run goes on from there; ``--again`` tries those that survived once more, after tests were
added. ``results.json`` counts, and names the survivors with the reason that ``equivalent.json``
gives for them, if there is one.

Of the target's tests those that call the changed function are run first. With ``--callers`` no
others are: quicker where a mutant survives, who may then be tried ``--again`` against all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutations.calls import Calls, callers, in_order, marked, seconds_of
from tests.mutations.mutants import Mutant, mutants
from tests.mutations.targets import ROOT, TARGETS, Target

COPIED = ("streaming_gp", "tests", "pyproject.toml", "setup.cfg", "datasets")
EQUIVALENT = Path(__file__).with_name("equivalent.json")
SLOWEST = 5.0
"""A mutant that takes so many times as long as the tests do without it is killed."""


def warm_up() -> None:
    """Import, before the first fork, what every run would import; but nothing of the package."""
    import gpflow
    import hypothesis
    import pytest
    import scipy.stats
    import tensorflow_probability

    del gpflow, hypothesis, pytest, scipy, tensorflow_probability


class Copy:
    """A copy of the repository, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source, to = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, to)

    def calls(self, target: Target) -> dict[str, Any] | None:
        """What each test calls of a target's functions; None if one of them fails."""
        out = self.folder / "calls.json"
        paths = [self.folder / path for path in target.paths()]
        sources = [path.read_text() for path in paths]
        try:
            for path, source in zip(paths, sources, strict=True):
                path.write_text(marked(source))
            passed = self.passes(target.tests, 3600.0, [Calls(out)])
        finally:
            for path, source in zip(paths, sources, strict=True):
                path.write_text(source)
        return json.loads(out.read_text()) if passed else None

    def passes(self, tests: tuple[str, ...], seconds: float, plugins: Sequence[Any] = ()) -> bool:
        """Whether the tests pass, in a process of their own and within so many seconds."""
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            self._test(tests, plugins)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status == 0
            time.sleep(0.05)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return False

    def _test(self, tests: tuple[str, ...], plugins: Sequence[Any]) -> None:
        import pytest

        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1), os.dup2(nowhere, 2)
        os.chdir(self.folder)
        sys.path[:] = [str(self.folder)] + [p for p in sys.path if Path(p).resolve() != ROOT]
        for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
            del sys.modules[name]
        options = ["-q", "-x", "-p", "no:cacheprovider", *tests]
        os._exit(int(pytest.main(options, plugins)))

    def survives(self, mutant: Mutant, tests: tuple[str, ...], seconds: float) -> bool:
        """Whether no test sees it."""
        path = self.folder / mutant.file
        source = path.read_bytes()
        path.write_bytes(mutant.applied(source))
        try:
            return self.passes(tests, seconds)
        finally:
            path.write_bytes(source)


def all_of(target: Target) -> list[Mutant]:
    """The mutants of a target's files."""
    return [
        one for path in target.paths() for one in mutants(str(path), (ROOT / path).read_bytes())
    ]


def known(path: Path) -> dict[str, bool]:
    """Verdicts by the names of mutants: whether they were killed."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {one["mutant"]: one["killed"] for one in map(json.loads, lines)}


def summary(verdicts: dict[str, bool], reasons: dict[str, str]) -> dict:
    """For each target how many mutants there are, were tried and killed; and those that live.

    Survivors with a reason change nothing: the share killed is of the others.
    """
    targets, survivors = [], []
    for name, target in TARGETS.items():
        names = [one.name for one in all_of(target)]
        tried = [each for each in names if each in verdicts]
        alive = [each for each in tried if not verdicts[each]]
        killed = len(tried) - len(alive)
        equivalent = sum(each in reasons for each in alive)
        share = killed / (len(tried) - equivalent) if tried else None
        counts = {
            "mutants": len(names), "tried": len(tried), "killed": killed, "equivalent": equivalent,
        }  # fmt: skip
        targets.append({"target": name, **counts, "killed_share": share})
        survivors += [{"mutant": one, "reason": reasons.get(one, "not looked at")} for one in alive]
    return {"targets": targets, "survivors": survivors}


def write(out: Path, arguments: argparse.Namespace) -> None:
    verdicts = known(out / "runs.jsonl")
    found = summary(verdicts, json.loads(EQUIVALENT.read_text()))
    results = {"command": "make mutate", "seed": arguments.seed, **found}
    (out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def try_all(name: str, copy: Copy, arguments: argparse.Namespace) -> None:
    """The mutants of one target that have no verdict yet."""
    target, path = TARGETS[name], arguments.out / "runs.jsonl"
    sampled = all_of(target)
    random.Random(arguments.seed).shuffle(sampled)
    verdicts = known(path)
    if arguments.again:
        todo = [one for one in sampled if verdicts.get(one.name) is False]
    else:
        todo = [one for one in sampled[: arguments.sample] if one.name not in verdicts]
    if not todo:
        return
    calls = copy.calls(target)
    if calls is None:
        raise SystemExit(f"{name}: the tests fail without any mutant")
    for number, mutant in enumerate(todo):
        held_by = callers(calls, mutant.place) if arguments.callers else calls
        limit = SLOWEST * seconds_of(held_by) + 30.0
        killed = not copy.survives(mutant, in_order(held_by, mutant.place), limit)
        with path.open("a") as file:
            row = {"mutant": mutant.name, "killed": killed}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(f"{name} {number + 1}/{len(todo)} {'' if killed else 'SURVIVED '}{mutant.name}")
        sys.stdout.flush()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "mutations")
    options.add_argument("--only", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    options.add_argument("--sample", type=int, default=None, help="mutants of each target at most")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--callers", action="store_true", help="run no tests but callers")
    options.add_argument("--again", action="store_true", help="try survivors once more")
    arguments = options.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    warm_up()
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for name in arguments.only:
            try_all(name, copy, arguments)
    write(arguments.out, arguments)


if __name__ == "__main__":
    main()
