"""A look into a journal that another process may be writing."""

from __future__ import annotations

from streaming_gp import serialization
from streaming_gp.gp.journal import _replayed
from streaming_gp.gp.soundness import refuse_unsound
from streaming_gp.gp.state import ModelState
from streaming_gp.serialization import PathLike


def last_state(journal: PathLike) -> ModelState:
    """The state after the last completed change; nothing in the folder is touched.

    :param journal: The folder of a journal.
    :raises FileFormatError: if there is no journal, or an entry is missing or damaged.
    """
    _, state = _replayed(serialization.as_path(journal).absolute())
    refuse_unsound(journal, state)
    return state
