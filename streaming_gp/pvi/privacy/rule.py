"""Private rules: pay first, then fit, then let out the noisy factor and nothing else.

``folder/<client>.json`` holds how often each kind of release has been made, with a digest of all of
it, and whose data and which rule it is of. ``folder/<client>.lock`` holds apart those who pay at
once, and how many releases there were at least: a record that is missing, or older than that, is
refused. Nobody else than the client knows what it has told, so that where the record is not to be
believed there is no answer.
"""

from __future__ import annotations

import abc
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from scipy.special import ndtri

from streaming_gp.errors import (
    BudgetSpentError,
    FileFormatError,
    InvalidDataError,
    StreamingGPError,
)
from streaming_gp.expfam import ExponentialFamily, Factor
from streaming_gp.inputs import NotNegativeFinite, Positive
from streaming_gp.pvi.guards import NO_LIMITS, Checks
from streaming_gp.pvi.privacy.accountant import Budget, Release, Spent, epsilon_of, with_release
from streaming_gp.pvi.task import (
    EPSILON,
    LOG,
    LocalResult,
    LocalTask,
    RefusedQuestionError,
    RuleAround,
    UpdateRule,
)
from streaming_gp.serialization import as_path, file_of, write_bytes

try:
    from fcntl import LOCK_EX, flock
except ImportError:  # not a POSIX system: one process at a time is up to the user
    flock = None  # type: ignore[assignment]

LARGEST_FILE, LARGEST_NUMBER = 2**20, 2**40
_WRITTEN: dict[Path, int] = {}  # releases on record by this process, whatever becomes of the files


# ---- the record of what was spent ----


@dataclass(frozen=True)
class Record:
    """What one client has spent on one data set by one kind of rule.

    :param folder: The folder, an absolute path.
    :param client_id: The client.
    :param subject: A fingerprint of its data and of the kind of its rule, as :func:`subject_of`
        gives it.
    """

    folder: str
    client_id: str
    subject: str

    @contextmanager
    def held(self) -> Iterator[IO[str]]:
        """Others that would pay for this client wait meanwhile."""
        path = self._path(".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            file = open(path, "r+", encoding="ascii", errors="replace")  # noqa: SIM115
        except OSError as error:
            raise FileFormatError(
                f"there can be no record in {self.folder!r}: {error.strerror}"
            ) from error
        with file:
            if flock is not None:
                flock(file, LOCK_EX)
            yield file

    def read(self, lock: IO[str], has_answered: bool = False) -> Spent:
        """The releases so far.

        :param lock: The file that :meth:`held` gives.
        :param has_answered: Whether the server has an answer of the client.
        """
        path = self._path(".json")
        try:
            lock.seek(0)
            least = max(int(lock.read(40) or "0"), _WRITTEN.get(path, 0))
            spent = self._parsed(path) if path.exists() or path.is_symlink() else ()
        except (KeyError, OSError, RecursionError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path} is no record of what was spent: {error}") from error
        number = sum(count for _, count in spent)
        if number < least or (has_answered and not number):
            raise FileFormatError(
                f"{path} is no record of what was spent: it says {number} releases, and there were "
                f"{max(least, 1)} at least. Bring it back; privacy.begin_record, where nothing of "
                "these data was ever told"
            )
        return spent

    def write(self, lock: IO[str], spent: Spent) -> None:
        """Put releases on record, whole or not at all, before anything leaves."""
        path, number = self._path(".json"), sum(count for _, count in spent)
        entries = [
            {"release": asdict(release), "number": count, "digest": self._digest(spent)}
            for release, count in spent
        ]
        write_bytes(path, json.dumps(entries).encode())
        _WRITTEN[path] = max(number, _WRITTEN.get(path, 0))
        lock.seek(0)
        lock.truncate()
        lock.write(str(number))
        lock.flush()

    def begin(self) -> None:
        """Begin anew, in so many words: what was on record is put aside."""
        path = self._path(".json")
        with self.held() as lock:
            lock.truncate(0)
            _WRITTEN.pop(path, None)
            aside = (path.with_suffix(f".before{n}") for n in range(10**6))
            if path.exists():
                path.rename(next(one for one in aside if not one.exists()))

    def _parsed(self, path: Path) -> Spent:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        entries = json.loads(path.read_text())
        if not isinstance(entries, list) or not entries:
            raise TypeError(f"wanted a list of releases, got {entries!r:.100}")
        if any(set(entry) != {"release", "number", "digest"} for entry in entries):
            raise KeyError("wanted releases, their numbers and a digest")
        spent = tuple((Release(**entry["release"]), _count(entry["number"])) for entry in entries)
        if len(dict(spent)) < len(spent):
            raise ValueError("a release is there twice")
        if {entry["digest"] for entry in entries} != {self._digest(spent)}:
            raise ValueError("it was altered, or is of other data or of another kind of rule")
        return spent

    def _digest(self, spent: Spent) -> str:
        content = [[asdict(release), count] for release, count in spent]
        return sha256(json.dumps([self.client_id, self.subject, content]).encode()).hexdigest()

    def _path(self, suffix: str) -> Path:
        return file_of(self.client_id, self.folder, suffix)


def subject_of(rule: Any, data: tuple[Any, Any]) -> str:
    """A fingerprint of data X and Y, and of what a rule protects in them."""
    digest = sha256(type(rule).__name__.encode())
    for part in map(np.ascontiguousarray, data):
        digest.update(f"{part.dtype} {part.shape}".encode())
        digest.update(part.data)
    return digest.hexdigest()


def begin_record(folder: str, client_id: str) -> None:
    """Say that nothing of a client's data was ever told, where its record is missing or of other
    data: the next answer is the first on record. What was on record is put aside.

    :param folder: The folder that the rule keeps records in, an absolute path.
    :param client_id: The client.
    :raises InvalidDataError: if the path is not absolute.
    """
    require_absolute(folder)
    Record(folder, client_id, "").begin()


def require_absolute(folder: str | None) -> None:
    """Refuse a folder that is another one wherever a program is started from."""
    if folder is not None and not as_path(folder).is_absolute():
        raise InvalidDataError(
            f"record must be an absolute path, got {folder!r}: started from another folder, the "
            "client would begin to spend anew"
        )


def _count(number: object) -> int:
    if type(number) is not int or not 0 < number <= LARGEST_NUMBER:
        raise ValueError(f"wanted a number of releases, got {number!r:.100}")
    return number


# ---- random numbers ----

BITS = np.uint64(52)


@dataclass(frozen=True)
class Draws:
    """Random numbers of which nobody else may know any.

    :param uniform: So many independent numbers, each in the open interval (0, 1).
    """

    uniform: Callable[[int], np.ndarray]

    def normal(self, *shape: int) -> np.ndarray:
        """Standard normal numbers of this shape, by the inverse of their distribution function.

        With 52 bits each, none is further out than 8.2. That floating-point numbers are no real
        ones is not defended against (Mironov 2012).
        """
        return ndtri(self.uniform(int(np.prod(shape)))).reshape(shape)

    def sample(self, number: int, rate: float) -> np.ndarray:
        """The rows, of so many, that take part, each with this probability and alone."""
        return np.flatnonzero(self.uniform(number) < rate)

    def parts(self, number: int, num_parts: int) -> list[np.ndarray]:
        """The rows of each part, where every row falls into one of them alone."""
        part = np.floor(num_parts * self.uniform(number))
        return [np.flatnonzero(part == one) for one in range(num_parts)]

    def seed(self) -> np.ndarray:
        """Two integers [2] for what is drawn in compiled functions."""
        return (self.uniform(2) * 2**31).astype(np.int32)


def secure_draws() -> Draws:
    """Numbers made of bits of ``os.urandom``."""

    def uniform(size: int) -> np.ndarray:
        bits = np.frombuffer(os.urandom(8 * size), np.uint64) >> (np.uint64(64) - BITS)
        return (bits.astype(np.float64) + 0.5) * 2.0 ** -float(BITS)

    return Draws(uniform)


def seeded_draws(*seed: int) -> Draws:
    """Numbers that whoever knows the seed can take away again: for tests and figures only."""
    return Draws(np.random.default_rng(seed).random)


# ---- rules ----


class PrivateFitError(StreamingGPError, RuntimeError):
    """A private fit failed; why is kept at the client, as errors tell about data."""


@dataclass(frozen=True, kw_only=True)
class PrivateRule(RuleAround, abc.ABC):
    """A rule around a rule, whose answers keep within a budget.

    What leaves is the natural parameters of the factor under noise. The free energy, the factor's
    constant, the number of rows, diagnostics and the texts of errors do not. What is spent is
    counted before the fit, so that a fit which fails, or an answer that is lost or refused, has
    been paid for.

    :param budget: The (ε, δ) of all answers of one client together.
    :param clip: The largest norm C of what depends on data, before there is noise; infinity for
        none.
    :param noise_multiplier: The standard deviation σ of the noise over the sensitivity.
    :param record: The folder in which each client keeps what it has spent, at its own place: an
        absolute path. What is on record is of these data and this kind of rule, and where it is
        missing or damaged there is no answer (``privacy.begin_record``). If None, the client takes
        the server's word for how many questions it has been asked, and ε is that of one run.
    :param insecure_seed: A seed for the noise, and for which rows are sampled. Whoever knows it can
        take the noise away: for tests and figures only. If None, both are made of the operating
        system's random bits.
    :raises InvalidDataError: if the budget is none, the record is no absolute path, and for noise
        without a bound to scale it by.
    """

    rule: Any = field(kw_only=False)
    budget: Budget
    clip: Positive = 1.0
    noise_multiplier: NotNegativeFinite = 1.0
    record: str | None = None
    insecure_seed: int | None = None
    is_discreet: ClassVar[bool] = True
    is_paid_for: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.budget, Budget):
            raise InvalidDataError(f"budget must be a privacy.Budget, got {self.budget!r:.100}")
        require_absolute(self.record)
        if math.isinf(self.clip) and self.noise_multiplier != 0.0:
            raise InvalidDataError("noise is scaled by clip, which is infinite")

    @property
    def release(self) -> Release:
        """One release of an answer: by default of all rows."""
        return Release(self.noise_multiplier)

    @property
    def releases_per_answer(self) -> int:
        """How many releases one answer is made of."""
        return 1

    @abc.abstractmethod
    def private_factor(self, task: LocalTask, draws: Draws) -> Factor:
        """The factor, of which everything that depends on data has gone through the release."""

    def require_task(self, task: LocalTask) -> None:
        """Refuse, before anything is spent, a question that the rule cannot answer.

        :raises InvalidDataError: saying what came and what was wanted, and nothing of the data.
        """
        require_family(task)

    def __call__(self, task: LocalTask) -> LocalResult:
        """Answer, if the budget allows it.

        :raises BudgetSpentError: if it does not.
        :raises InvalidDataError: if the posterior is of no exponential family: the pseudo-inputs of
            a Gaussian process's factor are chosen among data, and would leave with it.
        :raises PrivateFitError: if the fit fails, whatever the reason.
        """
        self.require_task(task)
        epsilon = self._pay(task)
        seed = self.insecure_seed
        draws = secure_draws() if seed is None else seeded_draws(seed, task.seed)
        try:
            factor = self.private_factor(task, draws)
        except Exception:  # its text, and what it was raised from, may hold rows
            LOG.error("%r: a private fit failed", task.client_id, exc_info=True)
            raise PrivateFitError("a private fit failed; the client does not say why") from None
        return LocalResult(
            Factor(factor.family, factor.natural).as_arrays(),
            steps=self.releases_per_answer,
            diagnostics={EPSILON: epsilon if math.isfinite(epsilon) else math.nan},
        )

    def require_begun(self, client_id: str) -> None:
        """Refuse to start a site whose record was never begun, or is gone.

        :raises FileFormatError: saying how it begins.
        """
        if self.record is not None and not file_of(client_id, self.record, ".lock").exists():
            raise FileFormatError(
                f"{self.record} holds no record of what {client_id!r} has told. Bring it back; or, "
                "where nothing of these data was ever told, say that it begins: "
                "privacy.begin_record, or streaming-gp site PROGRAM --begin-record"
            )

    def epsilon_after(self, answers: int) -> float:
        """The ε, at the budget's δ, that so many answers of one client add up to."""
        return epsilon_of(((self.release, answers * self.releases_per_answer),), self.budget.delta)

    def _pay(self, task: LocalTask) -> float:
        """Put one more answer on record, and give the ε of all."""
        if self.record is None:
            number = (task.sequence + 1) * self.releases_per_answer
            return self._price(((self.release, number),))
        record = Record(self.record, task.client_id, subject_of(self, task.data))
        has_answered = task.own is not None and task.sequence > 0
        with record.held() as lock:
            before = record.read(lock, has_answered)
            if not before:
                LOG.warning("%r: its record begins, in %s", task.client_id, self.record)
            spent = with_release(before, self.release, self.releases_per_answer)
            epsilon = self._price(spent)
            record.write(lock, spent)
        return epsilon

    def _price(self, spent: Spent) -> float:
        epsilon = epsilon_of(spent, self.budget.delta)
        if epsilon > self.budget.epsilon:
            raise BudgetSpentError(
                "its privacy budget is spent: one more answer would take it beyond epsilon "
                f"{self.budget.epsilon:g} at delta {self.budget.delta:g}"
            )
        return epsilon

    # ---- what the loop asks of rules ----

    @property
    def checks(self) -> Checks | None:
        """Those of the rule, if it has any; none under noise, as what was paid for is to be used,
        however far the noise takes it.
        """
        noisy = self.release.noise_multiplier > 0.0
        return NO_LIMITS if noisy else getattr(self.rule, "checks", None)

    @property
    def keeps_state(self) -> bool:
        """Whether it has a record."""
        return self.record is not None

    @property
    def caution(self) -> str | None:
        """What the budget does not hold for, without a record."""
        if self.record is not None:
            return None
        return (
            "its private rule keeps no record of what was told: its epsilon is for this run "
            "alone, and another run or server begins anew. Give it record=, an absolute path"
        )


def require_family(task: LocalTask) -> None:
    """Refuse posteriors whose factors carry more than natural parameters."""
    if not isinstance(task.posterior, ExponentialFamily):
        raise RefusedQuestionError("NeedsFamily", f"got a {type(task.posterior).__name__}")


def require_rule(name: str, rule: object) -> None:
    """Refuse what is no update rule."""
    if isinstance(rule, type) or not isinstance(rule, UpdateRule):
        raise InvalidDataError(f"{name} wants an update rule, got {rule!r}")
