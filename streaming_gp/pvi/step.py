"""The loop's one step: cavity under a policy, fit, check, damped replacement.

:func:`step` is the whole of it for clients that are at hand. A server, whose clients answer later
and elsewhere, calls its parts: :func:`ask` before the fit, :func:`replace` after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi.damping import DampingRule, State
from streaming_gp.pvi.ledger import Ledger, P
from streaming_gp.pvi.properness import PropernessPolicy, RaiseImproper

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, eq=False)
class Question(Generic[P]):
    """What a client is asked: to fit its data under a cavity.

    :param posterior: q now, of all clients together.
    :param own: The part of q that the client takes out; None if it has no factor yet.
    :param removed_fraction: The fraction of its old factor that ``own`` is, in (0, 1].
    """

    posterior: P
    own: Any | None
    removed_fraction: float = 1.0

    @property
    def cavity(self) -> Any:
        """The posterior without the client's own part.

        :raises ImproperError: if the family's cavities must be proper and this one is not.
        """
        return self.posterior.cavity(self.own)


class Fit(Protocol[R_co]):
    """A local fit at hand: it turns a question into a factor."""

    def __call__(self, question: Question[Any], /) -> tuple[Ledger[Any] | None, Any, R_co]:
        """Fit.

        :returns: the ledger that the factor belongs into, if the fit has projected the other
            factors onto new pseudo-points, else the ledger as it was, or None for that; the new
            factor, before any damping; and a report of whatever type the caller wants.
        """
        ...


@dataclass(frozen=True, eq=False)
class Replacement(Generic[P]):
    """What became of proposed factors.

    :param ledger: The new ledger.
    :param share: The share of the full step that was taken; 0 if the ledger is the old one.
    :param state: The state of the damping rule after the step.
    """

    ledger: Ledger[P]
    share: float
    state: State = None


@dataclass(frozen=True, eq=False)
class StepResult(Generic[P, R]):
    """What a step gives back.

    :param ledger: The new ledger.
    :param reports: What each client's fit reported, by client.
    :param share: The share of the full step that the policy allowed, in [0, 1].
    :param removed_fractions: The fraction of its old factor that each cavity left out, by client.
    """

    ledger: Ledger[P]
    reports: Mapping[str, R]
    share: float
    removed_fractions: Mapping[str, float]


def ask(ledger: Ledger[P], client_id: str, policy: PropernessPolicy) -> Question[P]:
    """The cavity that a client is to fit under, as the policy decides.

    :raises ImproperError: if the policy refuses an improper cavity.
    """
    old = ledger.factors.get(client_id)
    if old is None:
        return Question(ledger.posterior, None)
    removed = policy.removed_fraction(ledger, client_id)
    if removed == 1.0:
        return Question(ledger.posterior, old)
    # q itself, written as a product in which the part that is taken out stands alone
    own = (old**removed).as_arrays()
    rest = ledger.replaced(client_id, old ** (1.0 - removed))
    posterior = ledger.prior.times([*rest.factors.values(), own])
    return Question(posterior, own, removed)


def completed(ledger: Ledger[P], client_id: str, factor: Any, removed_fraction: float) -> Any:
    """The client's whole factor: the fitted one, and what stayed in its cavity."""
    old = ledger.factors.get(client_id)
    if old is None or removed_fraction == 1.0:
        return factor
    return factor * old ** (1.0 - removed_fraction)


def replace(
    ledger: Ledger[P],
    proposals: Mapping[str, Any],
    rule: DampingRule,
    policy: PropernessPolicy,
    share: float = 1.0,
    progress: float = 0.0,
    state: State = None,
) -> Replacement[P]:
    """Put proposed factors into the ledger, damped by the rule, as far as the policy allows.

    :param proposals: Whole factors by client, as fits gave them.
    :param rule: How proposals enter the ledger.
    :param policy: How far a step goes where the posterior or a cavity would be improper.
    :param share: The share of the full step to try first, in (0, 1].
    :param progress: The fraction of all rounds that is over, in [0, 1).
    :param state: The rule's state after the step before; None before the first.
    :raises ImproperError: if the policy refuses the step.
    """
    state = rule.init(ledger) if state is None else state
    tried: dict[float, Replacement[P]] = {0.0: Replacement(ledger, 0.0, state)}

    def attempt(size: float) -> Ledger[P]:
        if size not in tried:
            factors, after = rule.update(ledger, proposals, state, size, progress)
            changes = {name: factor.as_arrays() for name, factor in factors.items()}
            tried[size] = Replacement(ledger.with_factors(changes), size, after)
        return tried[size].ledger

    used = policy.damping(attempt, share)
    attempt(used)
    return tried[used]


def step(
    ledger: Ledger[P],
    fits: Mapping[str, Fit[R]],
    rule: DampingRule,
    policy: PropernessPolicy | None = None,
) -> StepResult[P, R]:
    """Cavity, fit, check, damped replacement; ``ledger`` itself never changes.

    Several clients fit under the same ledger and are replaced together, which is a synchronous
    round; one client after another is the sequential schedule (PVI 2018, algorithm 1).

    :param fits: The local fit of each client that takes part, by client.
    :param rule: How proposals enter the ledger.
    :param policy: What to do about improper cavities and posteriors; by default they raise.
    :raises InvalidDataError: if a fit gives what is no factor of this ledger, or one of several
        fits projects the other factors onto new pseudo-points.
    :raises ImproperError: as the policy decides.
    """
    policy = policy or RaiseImproper()
    target, proposals, reports, removed = ledger, {}, {}, {}
    for name, fit in fits.items():
        question = ask(ledger, name, policy)
        projected, factor, reports[name] = fit(question)
        target = projected or ledger
        _require_factor(target, ledger, name, factor, len(fits))
        removed[name] = question.removed_fraction
        proposals[name] = completed(target, name, factor, question.removed_fraction)
    done = replace(target, proposals, rule, policy)
    return StepResult(done.ledger, reports, done.share, removed)


def _require_factor(
    target: Ledger[Any], ledger: Ledger[Any], name: str, factor: Any, num_clients: int
) -> None:
    objection = ledger.posterior.objection_to(factor)
    if objection is not None:
        raise InvalidDataError(f"the fit of {name!r} gave no factor of this ledger: {objection}")
    if target is not ledger and num_clients > 1:
        raise InvalidDataError(
            f"the fit of {name!r} projects all factors onto new points, so that no other client "
            "can fit at the same time"
        )
