"""When a local fit is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streaming_gp.inputs import require_not_negative, require_positive_integer


@dataclass(frozen=True)
class Plateau:
    """The expected log-likelihood has not changed in several epochs (PGVI, section 5.2).

    A client that stops there does not go on to prune weights that the data have explained already.

    :param patience: The number of successive epochs without a change.
    :param tolerance: The difference between two epochs, in nats for each datum, that still is none.
    :raises InvalidDataError: if the patience is not positive, or the tolerance negative.
    """

    patience: int = 3
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        require_positive_integer("patience", self.patience)
        require_not_negative("tolerance", self.tolerance)

    def is_reached(self, values: Sequence[float]) -> bool:
        """Whether a fit is over.

        :param values: The expected log-likelihood of a datum, in each epoch so far.
        """
        changes = np.abs(np.diff(values))[-self.patience :]
        return len(changes) == self.patience and bool(np.all(changes <= self.tolerance))
