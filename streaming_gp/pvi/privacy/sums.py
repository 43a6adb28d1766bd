"""Changes of a client's factor that leave it within a sum, and in no other way; the server has
equal shares of the sum.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np

from streaming_gp import serialization
from streaming_gp.errors import BudgetSpentError, FileFormatError, InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.inputs import Fraction, Positive, PositiveInteger, typed
from streaming_gp.pvi.client import Clients
from streaming_gp.pvi.damping import damped
from streaming_gp.pvi.guards import NO_LIMITS, Checks, checks_among
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.privacy.rule import PrivateFitError, require_family, require_rule
from streaming_gp.pvi.task import (
    EPSILON,
    Delivery,
    LocalResult,
    LocalTask,
    RefusedQuestionError,
    have_same_natural,
)
from streaming_gp.serialization import file_of, storable

LOG = logging.getLogger("streaming_gp.privacy")
MODULUS = 2**32
"""Sums are counted modulo this."""
FEWEST = 3
"""Of a sum of two, each of the two knows what the other has said."""
KIND = "factor of a site"


@typed
@dataclass(frozen=True, kw_only=True)
class SummedChanges:
    """Any rule, around which a site answers by the change of its factor, and only within a sum.

    An engine that sums securely, such as ``engines.Flower``, asks all sites at once and gets the
    sum of their changes. The server has an equal share of it in the place of each site's factor, so
    that its posterior is right and the shares tell nothing beyond the sum; each site keeps its own
    factor. The site also damps its change, and lets its own checks pass judgement on it, as the
    server cannot. Engines that do not sum show the server each change: ``engines.Serial`` gives
    the run to compare with.

    Changes are rounded to multiples of ``resolution``. A site keeps what it has rounded to, so that
    errors do not add up over rounds, and each natural parameter of the posterior is off by at most
    ``sites / 2`` times that in any one.

    :param rule: Any update rule of an exponential family, private ones included.
    :param sites: The number of sites, of which each answers by this rule.
    :param record: The folder in which a site keeps its factor, at its own place.
    :param damping: ρ in (0, 1], the part of its step that a site takes; one over ``sites`` if None.
        The schedule's is to be None, or 1.
    :param limit: The largest change of a natural parameter in one answer, a power of two. A site
        that would change one by more does not answer.
    :param least: The smallest number of sites that a site lets itself be summed with, itself
        included; at least 3.
    :raises InvalidDataError: if a number is none of these.
    """

    rule: Any = field(kw_only=False)
    sites: PositiveInteger
    record: str
    damping: Fraction | None = None
    limit: Positive = 1024.0
    least: int = FEWEST
    is_discreet: ClassVar[bool] = True
    server_damping: ClassVar[float | None] = 1.0
    wants_prior: ClassVar[bool] = True
    keeps_state: ClassVar[bool] = True
    is_summed: ClassVar[bool] = True
    checks: ClassVar[Checks] = NO_LIMITS  # shares of a sum, which is judged as a whole

    def __post_init__(self) -> None:
        require_rule(type(self).__name__, self.rule)
        if math.frexp(self.limit)[0] != 0.5:
            raise InvalidDataError(f"limit must be a power of two, got {self.limit:g}")
        if not FEWEST <= self.least <= self.sites:
            raise InvalidDataError(
                f"least must lie between {FEWEST} and the number of sites, which is {self.sites}, "
                f"got {self.least}"
            )

    @property
    def levels(self) -> int:
        """The number of steps from −limit to limit: a power of two, below 2³² over all sites."""
        return int(min(2**30, 2 ** (((MODULUS - 1) // self.sites).bit_length() - 1)))

    @property
    def resolution(self) -> float:
        """The number that changes are multiples of."""
        return 2.0 * self.limit / self.levels

    def __call__(self, task: LocalTask) -> LocalResult:
        """Answer by the site's share of the sums so far, times its change.

        :raises BudgetSpentError: as the rule does.
        :raises InvalidDataError: if the posterior is of no exponential family, or the site's factor
            is not kept here.
        :raises PrivateFitError: if the fit fails, or the site's checks refuse it; the site's log
            has the reason.
        """
        require_family(task)
        own = own_factor(self.record, task)
        try:
            result = self.rule(replace(task, own=own))
            change = self._change(task, own, result.factor)
        except BudgetSpentError:
            raise
        except Exception:  # its text, and what it was raised from, may hold rows
            LOG.warning("%r does not answer", task.client_id, exc_info=True)
            raise PrivateFitError("it does not answer, and does not say why") from None
        write_record(self.record, task, own, change)
        spent = {name: e for name, e in result.diagnostics.items() if name == EPSILON}
        return LocalResult(times(task.own, change), diagnostics=spent)

    def rounded(self, change: Factor) -> Factor:
        """The nearest change whose natural parameters are multiples of the resolution.

        :raises InvalidDataError: if one of them is beyond the limit.
        """
        parts = [np.asarray(eta) for eta in change.natural]
        largest = max(float(np.max(np.abs(eta), initial=0.0)) for eta in parts)
        if not largest <= self.limit:
            raise InvalidDataError(f"it changes by {largest:.3g}, the limit is {self.limit:g}")
        # exact, as all are powers of two
        whole = tuple(np.round(eta / self.resolution) * self.resolution for eta in parts)
        return Factor(change.family, whole)

    def _change(self, task: LocalTask, own: Factor | None, proposal: Factor) -> Factor:
        """The change by which the site answers."""
        new = damped(own, proposal, 1.0 / self.sites if self.damping is None else self.damping)
        change = self.rounded(change_between(own, new))
        together = (task.posterior / task.prior).as_arrays()
        ledger: Ledger[Any] = Ledger(task.prior, {"all": together})
        checks = checks_among(task.model, self.rule)
        objection = checks.objection(ledger, proposal, task.num_data)
        objection = objection or checks.objection_to_step(ledger, {"all": together * change})
        if objection:
            raise InvalidDataError(objection)
        return change


@storable
@dataclass(frozen=True, eq=False)
class SiteRecord:
    """A site's own factor, and its newest answer, where the server knows sums only.

    :param sequence: The number of the question.
    :param share: The site's share of the sums, which the server had in the place of its factor.
    :param own: The site's factor; None if it had none.
    :param change: The change of it that was the answer, of which the site does not know yet whether
        it has entered a sum.
    :param past: Digests of the shares that the server had before, in this run.
    :param run: The name of the server.
    """

    sequence: int
    share: Factor | None
    own: Factor | None
    change: Factor
    past: tuple[str, ...] = ()
    run: str = ""

    def factor_at(self, task: LocalTask) -> Factor | None:
        """The site's factor when it is asked again.

        The change has entered a sum if the server has another share for the site since then.
        """
        if task.run != self.run:
            raise RefusedQuestionError("OtherRun")
        if have_same_natural(task.own, self.share):
            return self.own
        if task.sequence <= self.sequence or _digest(task.own) in self.past:
            raise RefusedQuestionError("ServerIsBack")
        return times(self.own, self.change)


def own_factor(folder: str, task: LocalTask) -> Factor | None:
    """The site's factor under this question; None if it has none yet."""
    if task.own is None:
        return None
    record = _read(folder, task.client_id)
    if record is None:
        raise RefusedQuestionError("FactorNotKept", f"{task.client_id!r} in {folder!r}")
    return record.factor_at(task)


def write_record(folder: str, task: LocalTask, own: Factor | None, change: Factor) -> None:
    """Put on record what is about to be answered, whole or not at all."""
    path = file_of(task.client_id, folder)
    share = None if task.own is None else task.own.as_arrays()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileFormatError(f"there can be no record in {folder!r}: {error.strerror}") from error
    before = _read(folder, task.client_id)
    if before is not None and before.run != task.run:
        before = None
    past: tuple[str, ...] = ()
    if before is not None and before.share is not None and share is not None:
        is_same = have_same_natural(before.share, share)
        past = before.past if is_same else (*before.past, _digest(before.share))
    record = SiteRecord(task.sequence, share, own, change, past, task.run)
    serialization.write(path, KIND, record, serialization.registered_classes())


def times(factor: Any, change: Factor) -> Factor:
    """A factor, or the unit factor of one who has none yet, times a change."""
    return (change if factor is None else factor * change).as_arrays()


def change_between(old: Any, new: Factor) -> Factor:
    """The new factor over the old one, which may be the unit factor."""
    return new if old is None else new / old


def _read(folder: str, client_id: str) -> SiteRecord | None:
    path = file_of(client_id, folder)
    if not path.exists():
        return None
    return serialization.read(path, KIND, serialization.registered_classes(), SiteRecord)


def _digest(share: Any) -> str:
    return sha256(b"".join(np.asarray(eta).tobytes() for eta in share.natural)).hexdigest()


# ---- the server: equal shares of each sum ----


def rule_of_sums(clients: Clients) -> SummedChanges | None:
    """The terms on which these clients are summed; None if they answer one by one."""
    rules = [client.update for client in clients.values()]
    summed = [rule for rule in rules if isinstance(rule, SummedChanges)]
    if not summed:
        return None
    terms = {(rule.sites, rule.limit, rule.least) for rule in summed}
    if len(summed) < len(rules) or len(terms) > 1:
        raise InvalidDataError(
            "wanted sites that are summed on the same terms, all of them: got sites, limit and "
            f"least {sorted(terms)}, and {len(rules) - len(summed)} clients that answer by "
            "themselves"
        )
    if len(rules) > summed[0].sites:
        raise InvalidDataError(f"wanted at most {summed[0].sites} sites, got {len(rules)}")
    return summed[0]


@dataclass(eq=False)
class _Offer:
    """One sum, in equal shares."""

    before: dict[str, Any]  # the server's factor in the place of each site's
    after: dict[str, Factor]  # the same times the share
    is_taken: bool | None = None  # by the server; None as long as nobody knows

    def fits(self, task: LocalTask) -> bool:
        """Whether a site finds it taken, or not, as the others do."""
        is_taken = have_same_natural(task.own, self.after[task.client_id])
        if not is_taken and not have_same_natural(task.own, self.before[task.client_id]):
            return False
        if self.is_taken is None:
            self.is_taken = is_taken
        return is_taken == self.is_taken


class Shares:
    """Equal shares of sums, one in the place of the factor of each site that is in the sum."""

    def __init__(self, clients: Clients) -> None:
        self._site = next(iter(clients.values()))  # all agree on the terms
        self._offers: dict[str, _Offer] = {}

    def require_whole(self, task: LocalTask) -> None:
        """Check that the sum which a site was in last was taken as it was, or not at all."""
        last = self._offers.get(task.client_id)
        if last is not None and not last.fits(task):
            raise InvalidDataError(
                "a sum enters the posterior as a whole or not at all, as sites do not hear of "
                "parts: leave the schedule's damping at None, and the server's policy as it is"
            )

    def deliveries(
        self,
        tasks: Iterable[LocalTask],
        mean: Sequence[np.ndarray],
        spent: Mapping[str, Mapping[str, float]],
    ) -> list[Delivery]:
        """An answer in the name of each site that is in a sum.

        :param tasks: The questions to them, under one posterior.
        :param mean: The mean of their changes, of natural parameters shaped as the posterior's.
        :param spent: What each site says of its privacy, by name.
        """
        together = list(tasks)
        first = together[0]
        kinds = [np.asarray(eta).dtype for eta in first.posterior.natural]
        natural = tuple(eta.astype(kind) for eta, kind in zip(mean, kinds, strict=False))
        change = Factor(type(first.posterior), natural)
        objection = self._objection(first, change ** float(len(together)))
        if objection:
            reason = f"the sum is refused: {objection}"
            return [Delivery(task.client_id, None, reason) for task in together]
        before = {task.client_id: task.own for task in together}
        after = {name: times(own, change) for name, own in before.items()}
        self._offers |= dict.fromkeys(after, _Offer(before, after))
        return [_delivery(task, after[task.client_id], spent[task.client_id]) for task in together]

    def _objection(self, task: LocalTask, total: Factor) -> str | None:
        """Why the posterior may not take the sum, or None."""
        malformed = task.posterior.objection_to(total)
        rule: Any = self._site.update
        checks = checks_among(self._site.model, rule.rule)
        return malformed or checks.objection_to_step(Ledger(task.posterior), {"sum": total})


def _delivery(task: LocalTask, share: Factor, spent: Mapping[str, float]) -> Delivery:
    answer = LocalResult(
        share,
        diagnostics=dict(spent),
        client_id=task.client_id,
        sequence=task.sequence,
        version=task.version,
        nonce=task.nonce,
    )
    return Delivery(task.client_id, answer)
