"""Local averaging: a client that is several clients within (Heikkilä et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from streaming_gp.expfam import Factor
from streaming_gp.inputs import require_positive_integer, typed
from streaming_gp.pvi.privacy.draws import Draws
from streaming_gp.pvi.privacy.private_changes import PrivateChanges
from streaming_gp.pvi.task import LocalTask


@typed
@dataclass(frozen=True, kw_only=True)
class LocalAveraging(PrivateChanges):
    """Any rule, on parts of the client's rows; the mean of the parts' clipped changes is noisy.

    Each row falls into one of M parts at random, anew at each visit. Every part is fitted from the
    client's cavity as if it were all of the client, with each of its rows M times, and Δ_m is the
    change that it proposes. The answer is the factor so far times
    ``(1/M) Σ_m Δ_m min(1, C / ‖Δ_m‖) + (2 C / M) σ ξ`` (Heikkilä et al. 2023, local averaging; in
    natural parameters). The more parts, the less noise, and the less each fit knows;
    a visit costs M fits.

    What is protected is each row. Sensitivity: let two data sets differ in one row, which one of
    them lacks or has another in the place of. Rows fall into parts independently of one another, so
    that the rows which both have fall into the same parts with the same probability. Then all parts
    but one are the same. The clipped change of that one moves by 2 C at most, and the mean by
    2 C / M.

    :param parts: The number of parts M.
    """

    parts: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive_integer("parts", self.parts)

    def private_factor(self, task: LocalTask, draws: Draws) -> Factor:
        parts = draws.parts(task.num_data, self.parts)
        changes = [self._change_by(task, rows) for rows in parts if len(rows)]
        mean = np.sum(changes, axis=0) / self.parts  # a part without rows changes nothing
        return self.noisy(task, mean, 2.0 * self.clip / self.parts, draws)

    def _change_by(self, task: LocalTask, rows: np.ndarray) -> np.ndarray:
        """What these rows say, each of them M times, as if they were all."""
        X, Y = task.data
        often = np.tile(rows, self.parts)
        return self.clipped_change(task, self.rule(replace(task, data=(X[often], Y[often]))).factor)
