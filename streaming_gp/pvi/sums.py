"""Sites whose answers leave them within a sum only: the server has equal shares of the sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.pvi.client import Clients
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.privacy.sums import SummedChanges, same_factor, times
from streaming_gp.pvi.task import Delivery, LocalResult, LocalTask


def rule_of_sums(clients: Clients) -> SummedChanges | None:
    """The terms on which these clients are summed; None if they answer one by one.

    :raises InvalidDataError: if only some of them are, or not all on the same terms, or there are
        more of them than the terms say.
    """
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
        is_taken = same_factor(task.own, self.after[task.client_id])
        if not is_taken and not same_factor(task.own, self.before[task.client_id]):
            return False
        if self.is_taken is None:
            self.is_taken = is_taken
        return is_taken == self.is_taken


class Shares:
    """Equal shares of sums, one in the place of the factor of each site that is in the sum.

    :param clients: The sites by name.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._offers: dict[str, _Offer] = {}

    def require_whole(self, task: LocalTask) -> None:
        """Check that the sum which a site was in last was taken as it was, or not at all.

        :raises InvalidDataError: if a part of it was taken, which no site can know.
        """
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
        site = self._clients[task.client_id]
        rule: Any = site.update
        checks = rule.checks_with(site.model)
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
