"""The privacy that releases of data under noise cost together, by Google's ``dp-accounting`` where
rows are sampled.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import (
    Fraction,
    NotNegativeFinite,
    Positive,
    missing_extra,
    require_positive,
    require_positive_finite,
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

    noise_multiplier: NotNegativeFinite
    sampling_rate: Fraction = 1.0


@typed
@dataclass(frozen=True)
class Budget:
    """How much one client may tell: an (ε, δ) that holds for all its answers together.

    :param epsilon: The largest ε; infinity if the client is only to say what it has spent.
    :param delta: The probability δ in (0, 1) that the bound does not hold; less than one over the
        number of rows.
    :raises InvalidDataError: if they are not that.
    """

    epsilon: Positive
    delta: Positive = 1e-5

    def __post_init__(self) -> None:
        if self.delta >= 1.0:
            raise InvalidDataError(f"delta must lie in (0, 1), got {self.delta}")


INTERVAL = 1e-3
"""Of privacy losses: results are upper bounds at any, and by it hardly larger than at less."""

MOST_STEPS, MOST_SAMPLED_STEPS, MOST_RELEASES = 10**6, 2 * 10**5, 10**6
"""Of a discretised Gaussian mechanism, the same of samples, and of sampled releases, of which one
under noise σ < 1 counts as ``1/σ²``: beyond it bounds are looser."""

LOG_TWO = math.log(2.0)

Spent = tuple[tuple[Release, int], ...]
"""How often each kind of release has been made."""


@lru_cache(maxsize=4096)
def epsilon_of(spent: Spent, delta: float) -> float:
    """ε at δ of all these releases. Releases of all rows are one Gaussian mechanism, whose ε is
    exact (Balle & Wang 2018); with samples among them it is an upper bound, by privacy loss
    distributions, or by Rényi divergences where there are very many, or hardly any noise.

    Two data sets are neighbours if one has one row more. Infinity if there is one without noise.

    :raises InvalidDataError: if delta is not positive, or rows were sampled and ``dp-accounting``
        is not installed.
    """
    require_positive("delta", delta)
    made = [(release, number) for release, number in spent if number]
    if any(release.noise_multiplier == 0.0 for release, _ in made):
        return math.inf
    whole = sum(n / one.noise_multiplier**2 for one, n in made if one.sampling_rate == 1.0)
    sampled = [(release, number) for release, number in made if release.sampling_rate < 1.0]
    if not sampled:
        return _gaussian_epsilon(whole, delta)
    accounting = _library()
    weights = [max(1.0, release.noise_multiplier**-2.0) for release, _ in sampled]
    interval = max(INTERVAL, whole / MOST_STEPS, max(weights) / MOST_SAMPLED_STEPS)
    if sum(n * weight for weight, (_, n) in zip(weights, sampled, strict=True)) > MOST_RELEASES:
        accountant = accounting.rdp.RdpAccountant()
    else:
        accountant = accounting.pld.PLDAccountant(value_discretization_interval=interval)
    with _quiet():
        for release, number in sampled:
            accountant.compose(_event(accounting, release, number))
        if whole > 0.0:
            accountant.compose(accounting.GaussianDpEvent(whole**-0.5))
        bound = float(accountant.get_epsilon(delta))
    of_all_rows = sum(number / release.noise_multiplier**2 for release, number in made)
    return min(bound, _gaussian_epsilon(of_all_rows, delta))  # samples cost no more than all rows


def _gaussian_epsilon(weight: float, delta: float) -> float:
    """ε of one Gaussian mechanism of noise multiplier ``weight^−½``: the least for which
    ``Φ(½√w − ε/√w) − e^ε Φ(−½√w − ε/√w)`` is at most δ.
    """
    if weight == 0.0:
        return 0.0
    root = math.sqrt(weight)

    def excess(epsilon: float) -> float:
        lost = math.exp(epsilon + float(log_ndtr(-0.5 * root - epsilon / root)))
        return float(ndtr(0.5 * root - epsilon / root)) - lost - delta

    if excess(0.0) <= 0.0:
        return 0.0
    highest = 0.5 * weight + root * (1.0 - float(ndtri(delta)))
    return float(brentq(excess, 0.0, highest, xtol=1e-12, rtol=1e-13))


def noise_multiplier_for(
    budget: Budget, releases: int, sampling_rate: float = 1.0, tolerance: float = 1e-3
) -> float:
    """The least noise multiplier with which so many releases keep within a budget.

    :param releases: The number of releases: of noisy gradients, or of answers.
    :param sampling_rate: The probability with which each row takes part in one of them.
    :param tolerance: The share of itself by which it may be larger than necessary.
    :raises InvalidDataError: if rows are sampled and ``dp-accounting`` is not installed, or the
        budget has no bound.
    """
    require_positive_integer("releases", releases)
    require_positive_finite("tolerance", tolerance)
    if not math.isfinite(budget.epsilon):
        raise InvalidDataError("a budget without a bound on epsilon asks for no noise")

    def excess(log_noise: float) -> float:
        release = Release(math.exp(log_noise), sampling_rate)
        return epsilon_of(((release, releases),), budget.delta) - budget.epsilon

    # enough for all rows: ½w + √w s = ε at a weight w = releases / σ², as in _gaussian_epsilon
    spread = 1.0 - float(ndtri(budget.delta))
    root = 2.0 * budget.epsilon / (spread + math.sqrt(spread**2 + 2.0 * budget.epsilon))
    high = math.log(math.sqrt(releases) / root)
    low = high - LOG_TWO
    while excess(low) <= 0.0:
        low, high = low - LOG_TWO, low
    found = float(brentq(excess, low, high, xtol=0.25 * tolerance))
    return math.exp(found + 0.5 * tolerance)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of this thread about orders of divergences that do not matter."""
    log, thread = logging.getLogger("absl"), threading.get_ident()

    def is_foreign(record: logging.LogRecord) -> bool:
        return record.thread != thread

    log.addFilter(is_foreign)
    try:
        yield
    finally:
        log.removeFilter(is_foreign)


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
    except ImportError as error:
        raise missing_extra("what is spent", "dp-accounting", "privacy") from error
    return dp_accounting


def with_release(spent: Spent, release: Release, number: int) -> Spent:
    """The releases with so many more of this kind."""
    counts = dict(spent)
    counts[release] = counts.get(release, 0) + number
    return tuple(counts.items())
