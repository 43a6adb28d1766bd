"""Which tests call which functions: those come first when a function is changed."""

from __future__ import annotations

import ast
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MARK = '__import__("sys").called.add("{}")'
"""The first statement of a marked function: also where TensorFlow runs a copy of it."""


def marked(source: str) -> str:
    """The same file, whose functions say that they are called."""
    lines = source.splitlines(keepends=True)
    for line, name in sorted(_first_statements(ast.parse(source)), reverse=True):
        indent = len(lines[line - 1]) - len(lines[line - 1].lstrip())
        lines.insert(line - 1, " " * indent + MARK.format(name) + "\n")
    return "".join(lines)


def _first_statements(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and function of each first statement that is no docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node, clean=False) else node.body
            signature = [node.returns, *node.args.args, *node.args.kwonlyargs]
            last = max((one.end_lineno for one in signature if one), default=node.lineno)
            if body and body[0].lineno > last:  # not a protocol's ``...``
                decorators = getattr(body[0], "decorator_list", [])
                yield min(one.lineno for one in [body[0], *decorators]), node.name


class Calls:
    """A plugin of pytest: for each test the names of the marked functions that run, and seconds.

    :param out: The file that they are written to at the end.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._found: dict[str, Any] = {}
        sys.called = set()  # type: ignore[attr-defined]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        sys.called = called = set()  # type: ignore[attr-defined]
        start = time.monotonic()
        try:
            return (yield)
        finally:
            seconds = time.monotonic() - start
            self._found[item.nodeid] = {"names": sorted(called), "seconds": seconds}

    def pytest_sessionfinish(self) -> None:
        self._out.write_text(json.dumps(self._found))


def callers(found: dict[str, Any], place: str) -> dict[str, Any]:
    """The tests that call the function at this place; all of them if none is known to."""
    name = place.rsplit(".", 1)[-1]
    return {test: one for test, one in found.items() if name in one["names"]} or found


def in_order(found: dict[str, Any], place: str) -> tuple[str, ...]:
    """All tests, those that call the function at this place before others, quick ones first."""
    first = callers(found, place)
    return tuple(sorted(found, key=lambda test: (test not in first, found[test]["seconds"])))


def seconds_of(found: dict[str, Any]) -> float:
    """How long the tests take, without any mutant."""
    return float(sum(one["seconds"] for one in found.values()))
