"""Robust means of what clients propose, in the place of their sum.

In a synchronous round client k proposes to change its factor by ``Δ_k = t_k' / t_k``. The product
``Π Δ_k`` is a sum of natural parameters, and one client can make it anything. Its n-fold *median*
or *trimmed mean*, coordinate by coordinate, is the same where all say the same, and a few clients
cannot take it out of the range of the others (Yin et al. 2018).

Every client's factor then takes an equal part of that product, so that the posterior is prior times
factors at all times. At rest the median of the changes is one: every factor is the median of what
clients would say. Natural parameters of Gaussians are taken about the posterior's mean, so that it
does not matter where the origin is.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.stats

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, Gaussian
from streaming_gp.inputs import require_number, typed
from streaming_gp.pvi.damping.rule import (
    AroundRule,
    Factors,
    Natural,
    Proposals,
    State,
    require_family,
)
from streaming_gp.pvi.ledger import Ledger


@dataclass(frozen=True)
class RobustMean(AroundRule):
    """A rule that combines the changes of all who answered, for synchronous rounds.

    It assumes that clients have similar data, and as many. Where they have not, honest clients
    differ as hostile ones do, and it leaves out what only some of them know.
    """

    @abc.abstractmethod
    def centre(self, changes: np.ndarray) -> np.ndarray:
        """Where most of them are.

        :param changes: One natural parameter of the changes of all clients [n, ...].
        :returns: a value for each coordinate [...].
        """

    def update(
        self, ledger: Ledger[Any], proposals: Proposals, state: State, share: float, progress: float
    ) -> tuple[Factors, State]:
        """As ``DampingRule`` says.

        :raises InvalidDataError: if the ledger is not of an exponential family.
        """
        require_family(self, ledger)
        old, q = ledger.factors, ledger.posterior
        mean = np.asarray(q.mean, float) if isinstance(q, Gaussian) else None
        changes = [new / old[name] if name in old else new for name, new in proposals.items()]
        columns = zip(*(_about(change.natural, mean, -1.0) for change in changes), strict=True)
        centre = _about([self.centre(np.stack(column)) for column in columns], mean, 1.0)
        scale = self.centre(np.array([float(change.log_scale) for change in changes]))
        dtypes = [np.asarray(eta).dtype for eta in changes[0].natural]
        natural = (eta.astype(dtype) for eta, dtype in zip(centre, dtypes, strict=True))
        part = Factor(changes[0].family, tuple(natural), scale)
        equal = {name: old[name] * part if name in old else part for name in proposals}
        return self.inner(ledger, proposals).update(ledger, equal, state, share, progress)


@dataclass(frozen=True)
class Median(RobustMean):
    """The median over clients in each coordinate: less than half of them may lie.

    :param damping: The rule that what is left goes through, or a damping ρ in (0, 1].
    """

    def centre(self, changes: np.ndarray) -> np.ndarray:
        return np.asarray(np.median(changes, axis=0))


@typed
@dataclass(frozen=True)
class TrimmedMean(RobustMean):
    """The mean in each coordinate without the largest and the smallest values.

    :param damping: The rule that what is left goes through, or a damping ρ in (0, 1].
    :param fraction: The fraction of the clients that is left out at either end, rounded down, in
        [0, 0.5): so many may lie. With 0 it is the mean, and the posterior that of the sum.
    :raises InvalidDataError: if it is not in that range.
    """

    fraction: float = 0.2

    def __post_init__(self) -> None:
        require_number("fraction", self.fraction)
        if not 0.0 <= self.fraction < 0.5:
            raise InvalidDataError(f"fraction must lie in [0, 0.5), got {self.fraction}")

    def centre(self, changes: np.ndarray) -> np.ndarray:
        return np.asarray(scipy.stats.trim_mean(changes, self.fraction, axis=0))


def _about(natural: Any, mean: np.ndarray | None, sign: float) -> Natural:
    """``(h ± Λ m, Λ)``: to the natural parameters of a Gaussian factor of x − m with −, and back
    with +; those of other families as they are.
    """
    natural = tuple(np.asarray(eta, float) for eta in natural)
    if mean is None:
        return natural
    h, precision = natural
    pull = precision @ mean if precision.ndim == 2 else precision * mean
    return h + sign * pull, precision
