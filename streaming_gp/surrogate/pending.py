"""Points whose values are still to come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import StreamingGP
from streaming_gp.inputs import as_name
from streaming_gp.surrogate.rows import as_arrays

OBSERVED, ROWS = "observed", "rows-"
"""The factor of all rows that hyperparameters were learned from, and what the names of those that
came since begin with."""
TEMPORARY = "temporary"
"""The factor of rows that count in one question."""


class HasPending:
    """A model, some of whose factors stand for guesses.

    :param model: The model.
    """

    def __init__(self, model: StreamingGP) -> None:
        self.model = model
        self._pending: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def pending(self) -> tuple[str, ...]:
        """The names of what is pending."""
        return tuple(self._pending)

    def add_pending(self, name: str, X: Any, Y: Any = None) -> None:
        """Behave as if these points had been observed.

        :param name: A name of your choice.
        :param X: The points [N, D].
        :param Y: What to take for their values [N, P]; by default what the model expects, which
            lowers the variance there and leaves the mean as it is.
        :raises InvalidDataError: if the name is taken, or X or Y are refused.
        """
        if as_name("name", name) == OBSERVED or name.startswith(ROWS):
            raise InvalidDataError(f"{name!r} is a name of observed rows: wanted another")
        guess = np.asarray(self.model.predict_f(X)[0]) if Y is None else Y
        X, guess = as_arrays((X, guess))
        self.model.update((X, guess), batch_id=name, learn=False)
        self._pending[str(name)] = X, guess

    def remove_pending(self, name: str) -> None:
        """Take pending points out again, as if they had never been.

        :param name: Their name.
        :raises InvalidDataError: if nothing of that name is pending.
        """
        if name not in self._pending:
            raise InvalidDataError(f"nothing named {name!r} is pending; {[*self._pending]} is")
        self.model.remove(name)
        del self._pending[name]

    @contextmanager
    def given(self, X: Any, Y: Any = None) -> Iterator[None]:
        """What the model would say if it had these observations, within a ``with`` block.

        :param X: The points [N, D].
        :param Y: Their values [N, P], as in :meth:`add_pending`.
        """
        self.add_pending(TEMPORARY, X, Y)
        try:
            yield
        finally:
            self.remove_pending(TEMPORARY)

    def _forget(self, names: list[str]) -> None:
        for name in names:
            self.model.remove(name)
