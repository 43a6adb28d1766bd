"""The privacy that releases of data under noise cost together, by Google's ``dp-accounting``, and
the record of a client's releases, on a disk of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.inputs import (
    require_fraction,
    require_not_negative,
    require_positive,
    require_positive_integer,
    typed,
)
from streaming_gp.serialization import as_path, write_bytes

try:
    from fcntl import LOCK_EX, flock
except ImportError:  # not a POSIX system: one process at a time is up to the user
    flock = None  # type: ignore[assignment]


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


# ---- the record of a client ----


@contextmanager
def alone(folder: str, client_id: str) -> Iterator[None]:
    """Other threads and processes that would pay for this client wait meanwhile.

    Two that read the same record at once would both pay, and one payment would be lost.

    :raises FileFormatError: if there can be no record in the folder.
    """
    path = _path(folder, client_id).with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise FileFormatError(f"there can be no record in {folder!r}: {error.strerror}") from error
    with open(path, "ab") as file:
        if flock is not None:
            flock(file, LOCK_EX)
        yield


def read_spent(folder: str, client_id: str) -> Spent:
    """The releases on record of a client; none if there is no file.

    :raises FileFormatError: if the file is none of this kind: nobody then knows what is spent.
    """
    path = _path(folder, client_id)
    try:
        if not path.exists():
            return ()
        entries = json.loads(path.read_text())
        if not isinstance(entries, list):
            raise TypeError(f"wanted a list, got {entries!r:.100}")
        return tuple((Release(**entry["release"]), _count(entry["number"])) for entry in entries)
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path} is no record of what was spent: {error}") from error


def write_spent(folder: str, client_id: str, spent: Spent) -> None:
    """Put releases on record, whole or not at all, before anything leaves."""
    entries = [{"release": asdict(release), "number": number} for release, number in spent]
    write_bytes(_path(folder, client_id), json.dumps(entries).encode())


def with_release(spent: Spent, release: Release, number: int) -> Spent:
    """The releases with so many more of this kind."""
    counts = dict(spent)
    counts[release] = counts.get(release, 0) + number
    return tuple(counts.items())


def _count(number: object) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"wanted a number of releases, got {number!r:.100}")
    return number


def _path(folder: str, client_id: str) -> Path:
    return as_path(folder) / f"{quote(client_id, safe='')}.json"
