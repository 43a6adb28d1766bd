"""Where a batch puts its pseudo-points, and what becomes of earlier ones: the protocol."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.fit import Fitter
from streaming_gp.gp.fit.fitted import Batch, Fitted
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.hyperparameters import HyperparameterStrategy, PointHyperparameters

MERGED = "merged"
"""Name of the factor that holds the batches whose own factors are kept no longer."""


@dataclass(frozen=True)
class Allowed:
    """Changes that the factors of a strategy allow; whoever asks for more is refused.

    :param clients: Whether a client can fit its data that does not know the ledger.
    :param rounds: Whether several batches can be fitted under one ledger.
    :param changes: Which factors can be revisited or removed.
    :param fading: Whether what factors say of f can fade.
    :param window: The most batches that a sliding window can hold; None for any number.
    :param compression: Whether factors can be projected onto fewer points.
    :param moves: Whether points that are compressed may move.
    :param near: Whether points are observed one by one, so that predictions can condition on those
        near them.
    :param because: Why not, where something is not allowed.
    """

    clients: bool = True
    rounds: bool = True
    changes: Literal["all", "newest", "none"] = "all"
    fading: bool = True
    window: int | None = None
    compression: bool = True
    moves: bool = True
    near: bool = False
    because: str = ""


@runtime_checkable
class PseudoPointStrategy(Protocol):
    """How a batch enters the ledger: a frozen dataclass of plain fields.

    :class:`~streaming_gp.OwnPseudoPoints` has all of this but the choice of points.
    """

    @property
    def allowed(self) -> Allowed:
        """Changes that its factors allow."""
        ...

    def local_bound(
        self, default: LocalBound, hyperparameters: HyperparameterStrategy
    ) -> LocalBound:
        """The bound that batches are fitted by.

        :param default: The model's own bound.
        :param hyperparameters: What is learned about ε.
        :raises InvalidDataError: if these do not go with the strategy.
        """
        ...

    def fit(
        self, fitter: Fitter, ledger: GPLedger, question: pvi.LocalTask, batch: Batch
    ) -> Fitted:
        """Fit a batch under the cavity of a question.

        :param ledger: All factors; of a client that knows its own alone, that one.
        :returns: the factor, undamped, and what was done; with the ledger that it belongs into, if
            other factors were projected onto other points.
        """
        ...

    def tidy(
        self, fitter: Fitter, ledger: GPLedger, epsilon: np.ndarray, kept: Collection[str] = ()
    ) -> GPLedger:
        """The ledger with no more factors and points than the strategy keeps.

        :param epsilon: The ε [E] at which factors are projected, if they are.
        :param kept: Names of factors that must stay as they are.
        :raises InvalidDataError: if these leave no room.
        """
        ...


_REFUSALS = {
    "clients": "clients that fit on their own need pseudo-points of their own",
    "rounds": "batches that are fitted under one ledger need pseudo-points of their own",
    "fading": "nothing can be forgotten",
    "compression": "factors cannot be compressed",
}


def check_allowed(
    strategy: PseudoPointStrategy, wanted: Literal["clients", "rounds", "fading", "compression"]
) -> None:
    """Refuse what a strategy does not allow.

    :raises InvalidDataError: naming it, the strategy, and the reason.
    """
    allowed = strategy.allowed
    if not getattr(allowed, wanted):
        raise InvalidDataError(f"{_REFUSALS[wanted]}, got {strategy}: {allowed.because}")


def check_window(strategy: PseudoPointStrategy, num_batches: int) -> None:
    """Refuse a sliding window of more batches than a strategy keeps apart.

    :raises InvalidDataError: naming both.
    """
    check_allowed(strategy, "fading")
    most = strategy.allowed.window
    if most is not None and num_batches > most:
        raise InvalidDataError(
            f"a sliding window of {num_batches} batches wants as many that are kept apart, got "
            f"{strategy}: {strategy.allowed.because}"
        )


def check_change(strategy: PseudoPointStrategy, ledger: GPLedger, name: str) -> None:
    """Refuse to revisit or remove a factor on which others rest.

    :raises InvalidDataError: if others do.
    """
    allowed = strategy.allowed
    if allowed.changes == "none":
        raise InvalidDataError(
            f"no factor can be revisited or removed: {allowed.because}; got {name!r} of {strategy}"
        )
    newest = list(ledger.factors)[-1]
    if allowed.changes == "newest" and name != newest:
        raise InvalidDataError(
            f"only the newest factor {newest!r} can be revisited or removed: {allowed.because}; "
            f"got {name!r} of {strategy}"
        )


def refuse_memory(hyperparameters: HyperparameterStrategy, name: str, why: str) -> None:
    """Refuse a point ε that remembers by this name.

    :param why: What has no such memory, and the reason.
    :raises InvalidDataError: if it does.
    """
    if isinstance(hyperparameters, PointHyperparameters) and hyperparameters.remember == name:
        raise InvalidDataError(f"a point ε cannot remember by {name!r} with {why}")
