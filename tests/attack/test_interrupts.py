"""An interrupt at any line of a commit: journal and memory agree, and the stream goes on."""

import os
import sys
from contextlib import suppress

import pytest

import streaming_gp as sgp
from streaming_gp.gp import journal as journals
from streaming_gp.gp import ledger_gp, turns
from streaming_gp.gp.journal import Journal
from streaming_gp.serialization import files
from tests.attack.streams import digest
from tests.gp.saved_streams import batch, begun, content, resumed
from tests.trees import same

WATCHED = {
    module.__file__: None if module in (journals, files) else name
    for module, name in (
        (ledger_gp, ("_commit", "_swap")),
        (journals, None),
        (files, None),
        (turns, ("alone", "begin", "end")),
    )
}
"""Functions of the commit path by file; None for all of them."""


class Interrupt(KeyboardInterrupt):
    pass


class Interrupting:
    """Raises at the n-th line of the watched functions, or only counts lines."""

    def __init__(self, at=None):
        self.at, self.count, self.where = at, 0, None

    def __call__(self, frame, event, argument):
        names = WATCHED.get(frame.f_code.co_filename, ())
        return self.line if names is None or frame.f_code.co_name in names else None

    def line(self, frame, event, argument):
        if event == "line":
            self.count += 1
            if self.count == self.at:
                self.where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                raise Interrupt(self.where)
        return self.line

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *_):
        sys.settrace(self.before)


CHANGES = {
    "update": lambda model: model.update(batch("", 2), learn=False),
    "revisit": lambda model: model.revisit("batch-0", batch("", 0)),
    "fade": lambda model: model.fade(0.9),
}


def journaled(folder):
    """A model that has learned two batches, and its journal."""
    model = begun("fixed", journal=folder, hyperparameters=sgp.PointHyperparameters())
    for index in range(2):
        model.update(batch("", index))
    return model


def check_all_lines(tmp_path, name, every=1):
    """Interrupt one change after another, each a few lines later, until one is over before that."""
    model, folder, seen, at = journaled(tmp_path / "journal"), tmp_path / "journal", [], every
    while True:
        before, entries = model.state, len(os.listdir(folder))
        with Interrupting(at) as watch, suppress(Interrupt):
            CHANGES[name](model)
        if watch.where is None:
            break
        after = model.state
        assert same(Journal.resumed(folder)[1], after), watch.where
        is_done = not same(after, before)
        assert len(os.listdir(folder)) == entries + is_done, watch.where
        seen.append(watch.where)
        at += every
    assert content(resumed(folder), tmp_path) == digest(model)
    assert any("ledger_gp" in where for where in seen)
    return len(seen)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupt_at_any_line_leaves_journal_and_memory_alike(tmp_path, name):
    assert check_all_lines(tmp_path, name) > 80


def test_an_interrupt_at_some_lines_leaves_journal_and_memory_alike(tmp_path):
    assert check_all_lines(tmp_path, "fade", every=17) > 4
