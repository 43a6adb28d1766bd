"""Private rules: pay first, then fit, then let out the noisy factor and nothing else."""

from __future__ import annotations

import abc
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtri

from streaming_gp.errors import BudgetSpentError, InvalidDataError, StreamingGPError
from streaming_gp.expfam import ExponentialFamily, Factor
from streaming_gp.pvi.guards import NO_LIMITS, Checks
from streaming_gp.pvi.privacy.accountant import Budget, Release, Spent, epsilon_of, with_release
from streaming_gp.pvi.privacy.record import Record, require_absolute, subject_of
from streaming_gp.pvi.refusals import RefusedQuestionError
from streaming_gp.pvi.task import EPSILON, LocalResult, LocalTask, UpdateRule

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
        normal: np.ndarray = ndtri(self.uniform(int(np.prod(shape)))).reshape(shape)
        return normal

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


class PrivateFitError(StreamingGPError, RuntimeError):
    """A private fit failed; why is kept at the client, as errors tell about data."""


@dataclass(frozen=True, kw_only=True)
class PrivateRule(abc.ABC):
    """A rule around a rule, whose answers keep within a budget.

    What leaves is the natural parameters of the factor under noise. The free energy, the factor's
    constant, the number of rows, diagnostics and the texts of errors do not. What is spent is
    counted before the fit, so that a fit which fails, or an answer that is lost or refused, has
    been paid for.

    :param budget: The (ε, δ) of all answers of one client together.
    :param record: The folder in which each client keeps what it has spent, at its own place: an
        absolute path. What is on record is of these data and this kind of rule, and where it is
        missing or damaged there is no answer (``privacy.begin_record``). If None, the client takes
        the server's word for how many questions it has been asked, and ε is that of one run.
    :param insecure_seed: A seed for the noise, and for which rows are sampled. Whoever knows it can
        take the noise away: for tests and figures only. If None, both are made of the operating
        system's random bits.
    :raises InvalidDataError: if the record is no absolute path.
    """

    rule: Any = field(kw_only=False)
    budget: Budget
    record: str | None = None
    insecure_seed: int | None = None
    is_discreet: ClassVar[bool] = True
    is_paid_for: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_absolute(self.record)

    @property
    @abc.abstractmethod
    def release(self) -> Release:
        """One release of an answer."""

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
            raise PrivateFitError("a private fit failed; the client does not say why") from None
        return LocalResult(
            Factor(factor.family, factor.natural).as_arrays(),
            steps=self.releases_per_answer,
            diagnostics={EPSILON: epsilon if math.isfinite(epsilon) else math.nan},
        )

    def epsilon_after(self, answers: int) -> float:
        """The ε, at the budget's δ, that so many answers of one client add up to."""
        return epsilon_of(((self.release, answers * self.releases_per_answer),), self.budget.delta)

    def _pay(self, task: LocalTask) -> float:
        """Put one more answer on record, and give the ε of all.

        :raises BudgetSpentError: if that is beyond the budget.
        """
        if self.record is None:
            number = (task.sequence + 1) * self.releases_per_answer
            return self._price(((self.release, number),))
        record = Record(self.record, task.client_id, subject_of(self, task.data))
        has_answered = task.own is not None and task.sequence > 0
        with record.held() as lock:
            before = record.read(lock, has_answered)
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

    @property
    def server_damping(self) -> float | None:
        """That of the rule, if it knows."""
        return getattr(self.rule, "server_damping", None)

    @property
    def wants_prior(self) -> bool:
        """Whether the rule does."""
        return getattr(self.rule, "wants_prior", False)


def require_family(task: LocalTask) -> None:
    """Refuse posteriors whose factors carry more than natural parameters.

    :raises RefusedQuestionError: naming what came and what was wanted.
    """
    if not isinstance(task.posterior, ExponentialFamily):
        raise RefusedQuestionError("NeedsFamily", f"got a {type(task.posterior).__name__}")


def require_rule(name: str, rule: object) -> None:
    """Refuse what is no update rule.

    :raises InvalidDataError: naming what came.
    """
    if isinstance(rule, type) or not isinstance(rule, UpdateRule):
        raise InvalidDataError(f"{name} wants an update rule, got {rule!r}")
