"""Which tests call which functions: those come first when a function is changed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CONVERTED = "__autograph_generated_file"
"""TensorFlow runs copies of functions, which have such files and other names."""


class Calls:
    """A plugin of pytest: for each test the names of the package's functions that run, and seconds.

    :param package: The folder of the package.
    :param out: The file that they are written to at the end.
    """

    def __init__(self, package: Path, out: Path) -> None:
        self._package, self._out = str(package), out
        self._found: dict[str, Any] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        names: set[str] = set()

        def note(frame: Any, event: str, argument: Any) -> None:
            code = frame.f_code
            if event == "call" and self._is_of_package(code.co_filename):
                names.add(code.co_name.removeprefix("tf__"))

        start = time.monotonic()
        sys.settrace(note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            seconds = time.monotonic() - start
            self._found[item.nodeid] = {"names": sorted(names), "seconds": seconds}

    def _is_of_package(self, file: str) -> bool:
        return file.startswith(self._package) or CONVERTED in file

    def pytest_sessionfinish(self) -> None:
        self._out.write_text(json.dumps(self._found))


def in_order(found: dict[str, Any], place: str) -> tuple[str, ...]:
    """All tests, those that call the function at this place before others, quick ones first."""
    name = place.rsplit(".", 1)[-1]
    return tuple(sorted(found, key=lambda t: (name not in found[t]["names"], found[t]["seconds"])))
