"""An interrupt at any line of a commit: journal and memory agree, and the stream goes on."""

import dis
import linecache
import os
import sys
from contextlib import suppress

import pytest

import streaming_gp as sgp
from streaming_gp import serialization
from streaming_gp.gp import journal as journals
from streaming_gp.gp import store
from streaming_gp.gp.journal import Journal
from tests.hostile.streams import digest
from tests.oracles.saved_streams import batch, begun, content, resumed
from tests.oracles.trees import same

WATCHED = {
    store.__file__: ("current", "_commit", "_swap"),
    journals.__file__: None,
    serialization.__file__: (
        "packed", "write_new", "_written_beside", "_sync_folder", "as_path", "digest", "_entry"
    ),
}  # fmt: skip
"""Functions of the commit path by file; None for all of them."""


class Interrupt(KeyboardInterrupt):
    pass


class Interrupting:
    """Raises at the n-th line of the watched functions.

    A ``with`` is traced a second time when its block is left, where Python itself never raises an
    interrupt: after the last call of the block it is still within, and then ``__exit__`` is called.
    """

    def __init__(self, at):
        self.at, self.count, self.where = at, 0, None

    def __call__(self, frame, event, argument):
        names = WATCHED.get(frame.f_code.co_filename, ())
        return self.line if names is None or frame.f_code.co_name in names else None

    def line(self, frame, event, argument):
        if event == "line" and not self.leaves_block(frame):
            self.count += 1
            if self.count == self.at:
                self.where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                raise Interrupt(self.where)
        return self.line

    @staticmethod
    def leaves_block(frame):
        """Whether three times None is about to be loaded for ``__exit__``."""
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        operation = frame.f_code.co_code[frame.f_lasti]
        return source.lstrip().startswith("with ") and operation == dis.opmap["LOAD_CONST"]

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


def journaled(folder, learn):
    """A model that has seen two batches, and its journal; nothing is compiled if none is learned.

    :param learn: Whether hyperparameters were learned.
    """
    points = sgp.PrivatePseudoPoints(3 if learn else "all")
    options = {"pseudo_points": points, "hyperparameters": sgp.PointHyperparameters()}
    model = begun("fixed", journal=folder, **options)
    for index in range(2):
        model.update(batch("", index), learn=learn)
    return model


def check_all_lines(tmp_path, name, every=1, learn=True):
    """Interrupt one change after another, each a few lines later, until one is over before that."""
    folder, seen, at = tmp_path / "journal", [], every
    model = journaled(folder, learn)
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
    assert any("store" in where for where in seen)
    return len(seen)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupt_at_any_line_leaves_journal_and_memory_alike(tmp_path, name):
    assert check_all_lines(tmp_path, name) > 80


def test_an_interrupt_at_some_lines_leaves_journal_and_memory_alike(tmp_path):
    assert check_all_lines(tmp_path, "fade", every=7, learn=False) > 4
