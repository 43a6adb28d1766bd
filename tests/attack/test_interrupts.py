"""An interrupt at any line of a commit: journal and memory agree, and the stream goes on."""

import os
import sys

import pytest

import streaming_gp as sgp
from streaming_gp.gp import journal as journals
from streaming_gp.gp import ledger_gp, turns
from streaming_gp.serialization import files, trees
from tests.attack.streams import digest
from tests.gp.saved_streams import batch, begun, content, resumed

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
    "remove": lambda model: model.remove("batch-0"),
    "fade": lambda model: model.fade(0.5),
}


def journaled(folder):
    """A model that has learned two batches, and its journal."""
    model = begun("fixed", journal=folder, hyperparameters=sgp.PointHyperparameters())
    for index in range(2):
        model.update(batch("", index))
    return model


def lines_of(model, change):
    """How many lines a change has, which is taken back by resuming elsewhere."""
    with Interrupting() as watch:
        change(model)
    return watch.count


def check_all_lines(tmp_path, name, every=1):
    change, folder = CHANGES[name], tmp_path / "journal"
    model = journaled(folder)
    seen, at = set(), 0
    while True:
        at += every
        before, entries = digest(model), len(os.listdir(folder))
        with Interrupting(at) as watch:
            try:
                change(model)
            except Interrupt:
                pass
        if watch.where is None:
            break
        seen.add(watch.where)
        after = digest(model)
        assert content(resumed(folder), tmp_path) == after, watch.where
        if after != before:  # the interrupt came when all was done
            assert len(os.listdir(folder)) == entries + 1, watch.where
            break
        assert len(os.listdir(folder)) == entries, watch.where
    change_again = CHANGES["fade"]
    change_again(model)  # whatever came before, the model and its journal go on
    assert content(resumed(folder), tmp_path) == digest(model)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupt_at_any_line_leaves_journal_and_memory_alike(tmp_path, name):
    assert len(check_all_lines(tmp_path, name)) > 40


def test_an_interrupt_at_some_lines_leaves_journal_and_memory_alike(tmp_path):
    assert len(check_all_lines(tmp_path, "fade", every=29)) > 3
