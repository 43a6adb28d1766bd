"""One client pass of Partitioned Variational Inference (PVI 2018, algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from streaming_gp.pvi.damping import damped, require_damping
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.properness import PropernessPolicy, RaiseImproper
from streaming_gp.pvi.protocols import LocalFit, P

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class PassResult(Generic[P, R]):
    """What a pass gives back.

    :param ledger: the new ledger.
    :param report: what the local fit reported.
    :param removed_fraction: share of the client's old factor that the cavity left out.
    :param damping: the damping that was used.
    """

    ledger: Ledger[P]
    report: R
    removed_fraction: float
    damping: float


def client_pass(
    ledger: Ledger[P],
    client_id: str,
    fit: LocalFit[P, R],
    damping: float = 1.0,
    policy: PropernessPolicy | None = None,
) -> PassResult[P, R]:
    """Cavity, fit, factor, replace: the loop's one step. ``ledger`` itself never changes.

    The damped factor is ``t ← t_old^(1−ρ) (q / q_cavity)^ρ``; a client new to the ledger starts
    from the unit factor.

    :param client_id: whose factor is refined.
    :param fit: maps the cavity to ``(q, report)``.
    :param damping: ρ in (0, 1].
    :param policy: what to do about improper cavities and posteriors; raises by default.
    :raises InvalidDataError: if ``damping`` is outside (0, 1].
    :raises ImproperError: as the policy decides.
    """
    require_damping(damping)
    policy = policy or RaiseImproper()
    old = ledger.factors.get(client_id)

    removed = policy.removed_fraction(ledger, client_id)
    cavity = _cavity(ledger, client_id, removed)
    q, report = fit(cavity)
    new = q / cavity
    if old is not None and removed < 1.0:  # what stayed in the cavity belongs to the client as well
        new = new * old ** (1.0 - removed)

    def replace(rho: float) -> Ledger[P]:
        return ledger if rho == 0.0 else ledger.replaced(client_id, damped(old, new, rho))

    used = policy.damping(replace, damping)
    return PassResult(replace(used), report, removed, used)


def _cavity(ledger: Ledger[P], client_id: str, removed: float) -> P:
    if removed == 1.0:
        return ledger.cavity(client_id)
    kept = ledger.factors[client_id] ** (1.0 - removed)
    return ledger.replaced(client_id, kept).posterior
