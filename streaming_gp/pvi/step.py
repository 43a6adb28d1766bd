"""PVI 2018, algorithm 1: the cavity of a client, its fit, and the damped replacement of its factor.

:func:`step` is the whole of it for clients that are at hand. A server, whose clients answer later
and elsewhere, calls its parts: :func:`ask` before the fit, :func:`replace` after it.

Where a cavity or a new posterior would be no distribution, one explicit policy decides. It sees two
moments of a step, forming the cavity and putting factors back, and its decisions go into the
history. Nothing is repaired in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from streaming_gp.errors import ImproperError, InvalidDataError
from streaming_gp.inputs import Decay, Fraction, PositiveInteger, typed
from streaming_gp.pvi.damping import DampingRule, State
from streaming_gp.pvi.ledger import Ledger, P
from streaming_gp.pvi.task import LocalTask
from streaming_gp.serialization import storable

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


# ---- the step ----


class Fit(Protocol[R_co]):
    """A local fit at hand: it turns a task into a factor."""

    def __call__(self, task: LocalTask, /) -> tuple[Ledger[Any] | None, Any, R_co]:
        """Fit.

        :param task: The cavity, and what fraction of the old factor it left out; it has its model
            and data itself.
        :returns: the ledger that the factor belongs into, if the fit has projected the other
            factors onto new pseudo-points, else the ledger as it was, or None for that; the new
            factor, before any damping; and a report of whatever type the caller wants.
        """


@dataclass(frozen=True, eq=False)
class StepResult(Generic[P, R]):
    """The outcome of a step.

    :param ledger: The new ledger.
    :param reports: The report of each client's fit, by client.
    :param share: The share of the full step that the policy allowed, in [0, 1].
    :param removed_fractions: The fraction of its old factor that each cavity left out, by client.
    """

    ledger: Ledger[P]
    reports: Mapping[str, R]
    share: float
    removed_fractions: Mapping[str, float]


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
    :param policy: The policy on improper cavities and posteriors; by default they raise.
    :raises InvalidDataError: if a fit gives what is no factor of this ledger, or one of several
        fits projects the other factors onto new pseudo-points.
    :raises ImproperError: as the policy decides.
    """
    policy = policy or RaiseImproper()
    target, proposals, reports, fractions = ledger, {}, {}, {}
    for name, fit in fits.items():
        task = ask(ledger, name, policy)
        projected, factor, reports[name] = fit(task)
        target = projected or ledger
        objection = ledger.posterior.objection_to(factor)
        if objection is not None:
            raise InvalidDataError(
                f"the fit of {name!r} gave no factor of this ledger: {objection}"
            )
        if target is not ledger and len(fits) > 1:
            raise InvalidDataError(
                f"the fit of {name!r} projects all factors onto new points, so that no other "
                "client can fit at the same time"
            )
        fractions[name] = task.removed_fraction
        proposals[name] = complete(target, name, factor, task.removed_fraction)
    target, share, _ = replace(target, proposals, rule, policy)
    return StepResult(target, reports, share, fractions)


def ask(ledger: Ledger[P], client_id: str, policy: PropernessPolicy) -> LocalTask:
    """The cavity that a client is to fit under, as the policy decides."""
    old = ledger.factors.get(client_id)
    removed = 1.0 if old is None else policy.removed_fraction(ledger, client_id)
    if old is None or removed == 1.0:
        return LocalTask(None, None, ledger.posterior, old)
    # q itself, written as a product in which the part that is taken out stands alone
    own = (old**removed).as_arrays()
    rest = ledger.replaced(client_id, old ** (1.0 - removed))
    posterior = ledger.prior.times([*rest.factors.values(), own])
    return LocalTask(None, None, posterior, own, removed_fraction=removed)


def complete(ledger: Ledger[P], client_id: str, factor: Any, removed_fraction: float) -> Any:
    """The client's whole factor: the fitted one, times the part that stayed in its cavity."""
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
) -> tuple[Ledger[P], float, State]:
    """Put proposed factors into the ledger, damped by the rule, as far as the policy allows.

    :param proposals: Whole factors by client, as fits gave them.
    :param rule: How proposals enter the ledger.
    :param policy: How far a step goes where the posterior or a cavity would be improper.
    :param share: The share of the full step to try first, in (0, 1].
    :param progress: The fraction of all rounds that is over, in [0, 1).
    :param state: The rule's state after the step before; None before the first.
    :returns: the new ledger; the share of the full step that was taken, 0 if the ledger is the old
        one; and the rule's state after it.
    """
    state = rule.init(ledger) if state is None else state
    tried: dict[float, tuple[Ledger[P], State]] = {0.0: (ledger, state)}

    def attempt(size: float) -> Ledger[P]:
        if size not in tried:
            factors, after = rule.update(ledger, proposals, state, size, progress)
            changes = {name: factor.as_arrays() for name, factor in factors.items()}
            tried[size] = ledger.with_factors(changes), after
        return tried[size][0]

    taken = policy.damping(attempt, share)
    return attempt(taken), taken, tried[taken][1]


# ---- policies ----


@runtime_checkable
class PropernessPolicy(Protocol):
    """Decides how much of a factor is removed, and how far a new one is taken."""

    def removed_fraction(self, ledger: Ledger[Any], client_id: str) -> float:
        """The fraction of the client's old factor to take out for its cavity, in (0, 1].

        :raises ImproperError: if the policy refuses the cavity.
        """

    def damping(self, replace: Callable[[float], Ledger[Any]], damping: float) -> float:
        """The damping to use, in [0, ``damping``]; 0 leaves the ledger as it is.

        :param replace: Gives the ledger after a step of damping ρ.
        :param damping: The largest damping, which is tried first.
        :raises ImproperError: if the policy refuses the step.
        """


@storable
@dataclass(frozen=True)
class RaiseImproper:
    """Refuse: an improper posterior, or an improper cavity when its owner's turn comes, raises
    ``ImproperError``. The default, at no cost in the number of clients.
    """

    def removed_fraction(self, ledger: Ledger[Any], client_id: str) -> float:
        ledger.cavity(client_id)
        return 1.0

    def damping(self, replace: Callable[[float], Ledger[Any]], damping: float) -> float:
        _ = replace(damping).posterior
        return damping


@storable
@typed
@dataclass(frozen=True)
class BacktrackDamping:
    """Shrink the step until the new posterior and every cavity are proper.

    :param shrink: The factor by which the damping shrinks at each attempt, in (0, 1).
    :param attempts: The number of attempts after which the old factor stays (damping 0).
    :param cavities: Whether cavities must be proper too. A fit of mean-field factors can do with
        one that is improper in a few coordinates, as its own q is always proper.
    """

    shrink: Decay = 0.5
    attempts: PositiveInteger = 10
    cavities: bool = True

    def removed_fraction(self, ledger: Ledger[Any], client_id: str) -> float:
        return RaiseImproper().removed_fraction(ledger, client_id) if self.cavities else 1.0

    def damping(self, replace: Callable[[float], Ledger[Any]], damping: float) -> float:
        tried = (damping * self.shrink**attempt for attempt in range(self.attempts))
        return next((rho for rho in tried if self._is_proper(replace(rho))), 0.0)

    def _is_proper(self, ledger: Ledger[Any]) -> bool:
        try:
            _ = ledger.posterior
            for client_id in ledger.factors if self.cavities else ():
                ledger.cavity(client_id)
        except ImproperError:
            return False
        return True


@storable
@typed
@dataclass(frozen=True)
class LargestProperFraction:
    """Take out the largest fraction of the old factor that leaves a proper cavity.

    :param resolution: The accuracy of that fraction, which is found by bisection.
    """

    resolution: Fraction = 1e-3

    def removed_fraction(self, ledger: Ledger[Any], client_id: str) -> float:
        if client_id not in ledger.factors or self._is_proper(ledger, client_id, 1.0):
            return 1.0
        low, high = 0.0, 1.0
        while high - low > self.resolution:
            middle = 0.5 * (low + high)
            if self._is_proper(ledger, client_id, middle):
                low = middle
            else:
                high = middle
        if low == 0.0:
            raise ImproperError(f"no fraction of the factor of client {client_id!r} can be removed")
        return low

    def damping(self, replace: Callable[[float], Ledger[Any]], damping: float) -> float:
        return RaiseImproper().damping(replace, damping)

    def _is_proper(self, ledger: Ledger[Any], client_id: str, fraction: float) -> bool:
        try:
            _ = ledger.replaced(client_id, ledger.factors[client_id] ** (1.0 - fraction)).posterior
        except ImproperError:
            return False
        return True
