"""What releases of data under noise add up to, by Google's ``dp-accounting``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import (
    require_fraction,
    require_not_negative,
    require_positive,
    require_positive_integer,
    typed,
)


@typed
@dataclass(frozen=True)
class Release:
    """One number of data, or a vector of them, that is let out under Gaussian noise.

    :param noise_multiplier: The standard deviation of the noise over the sensitivity, which is the
        largest distance between the values of two neighbouring data sets.
    :param sampling_rate: The probability in (0, 1] with which each row takes part, alone.
    :raises InvalidDataError: if they are not that.
    """

    noise_multiplier: float
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        require_not_negative("noise_multiplier", self.noise_multiplier)
        require_fraction("sampling_rate", self.sampling_rate)


@typed
@dataclass(frozen=True)
class Budget:
    """How much one client may tell: an (ε, δ) that holds for all its answers together.

    :param epsilon: The largest ε; infinity if the client is only to say what it has spent.
    :param delta: The probability δ in (0, 1) that the bound does not hold; less than one over the
        number of rows.
    :raises InvalidDataError: if they are not that.
    """

    epsilon: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)
        require_positive("delta", self.delta)
        if self.delta >= 1.0:
            raise InvalidDataError(f"delta must lie in (0, 1), got {self.delta}")


INTERVAL = 1e-3
"""Of privacy losses: results are upper bounds at any, and by it hardly larger than at less."""

Spent = tuple[tuple[Release, int], ...]
"""How often each kind of release has been made."""


@lru_cache(maxsize=4096)
def epsilon_of(spent: Spent, delta: float) -> float:
    """ε at δ of all these releases: an upper bound, by privacy loss distributions.

    Two data sets are neighbours if one has one row more. Infinity if there is one without noise.

    :raises InvalidDataError: if ``dp-accounting`` is not installed.
    """
    made = [(release, number) for release, number in spent if number]
    if any(release.noise_multiplier == 0.0 for release, _ in made):
        return math.inf
    if not made:
        return 0.0
    accounting = _library()
    accountant = accounting.pld.PLDAccountant(value_discretization_interval=INTERVAL)
    for release, number in made:
        accountant.compose(_event(accounting, release, number))
    return float(accountant.get_epsilon(delta))


def noise_multiplier_for(
    budget: Budget, releases: int, sampling_rate: float = 1.0, tolerance: float = 1e-3
) -> float:
    """The least noise multiplier with which so many releases keep within a budget.

    :param releases: The number of releases: of noisy gradients, or of answers.
    :param sampling_rate: The probability with which each row takes part in one of them.
    :param tolerance: How much larger than necessary it may be.
    :raises InvalidDataError: if ``dp-accounting`` is not installed, or the budget has no bound.
    """
    require_positive_integer("releases", releases)
    if not math.isfinite(budget.epsilon):
        raise InvalidDataError("a budget without a bound on epsilon asks for no noise")
    accounting = _library()

    def event(sigma: float) -> Any:
        return _event(accounting, Release(float(sigma), sampling_rate), releases)

    def least(accountant: Callable[[], Any], interval: Any) -> float:
        return float(
            accounting.calibrate_dp_mechanism(
                accountant, event, budget.epsilon, budget.delta, interval, tol=tolerance
            )
        )

    # a looser bound by Rényi divergences is quick, and says where to look
    above = least(accounting.rdp.RdpAccountant, accounting.LowerEndpointAndGuess(0.05, 1.0))
    return least(
        lambda: accounting.pld.PLDAccountant(value_discretization_interval=INTERVAL),
        accounting.LowerEndpointAndGuess(0.6 * above, above),
    )


def _event(accounting: Any, release: Release, number: int) -> Any:
    event = accounting.GaussianDpEvent(release.noise_multiplier)
    if release.sampling_rate < 1.0:
        event = accounting.PoissonSampledDpEvent(release.sampling_rate, event)
    return accounting.SelfComposedDpEvent(event, number)


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
        import dp_accounting.rdp
    except ImportError:
        raise InvalidDataError(
            "what is spent is worked out by dp-accounting: install streaming-gp[privacy]"
        ) from None
    return dp_accounting
