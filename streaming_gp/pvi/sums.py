"""What a server hears of sites whose answers leave them within a sum only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.pvi.engine import Delivery
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.messages import Answer, Ask
from streaming_gp.pvi.privacy.kept import changed, same_factor
from streaming_gp.pvi.privacy.summed_changes import SummedChanges
from streaming_gp.pvi.site import Clients
from streaming_gp.pvi.task import LocalResult


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
    """One sum, in equal shares.

    :param before: What the server had in the place of each site's factor, by site.
    :param after: The same times the share, by site.
    :param is_taken: Whether the server has taken it; None as long as nobody knows.
    """

    before: dict[str, Any]
    after: dict[str, Factor]
    is_taken: bool | None = None

    def fits(self, ask: Ask) -> bool:
        """Whether a site finds it taken, or not, as the others do."""
        is_taken = same_factor(ask.own, self.after[ask.client_id])
        if not is_taken and not same_factor(ask.own, self.before[ask.client_id]):
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

    def require_whole(self, ask: Ask) -> None:
        """Check that the sum which a site was in last was taken as it was, or not at all.

        :raises InvalidDataError: if a part of it was taken, which no site can know.
        """
        last = self._offers.get(ask.client_id)
        if last is not None and not last.fits(ask):
            raise InvalidDataError(
                "a sum enters the posterior as a whole or not at all, as sites do not hear of "
                "parts: leave the schedule's damping at None, and the server's policy as it is"
            )

    def deliveries(
        self,
        asks: Iterable[Ask],
        mean: Sequence[np.ndarray],
        spent: Mapping[str, Mapping[str, float]],
    ) -> list[Delivery]:
        """An answer in the name of each site that is in a sum.

        :param asks: The questions to them, under one posterior.
        :param mean: The mean of their changes, of natural parameters shaped as the posterior's.
        :param spent: What each site says of its privacy, by name.
        """
        together = list(asks)
        change = _change(together[0].posterior, mean)
        objection = self._objection(together[0], change ** float(len(together)))
        if objection:
            reason = f"the sum is refused: {objection}"
            return [Delivery(ask.client_id, None, reason) for ask in together]
        before = {ask.client_id: ask.own for ask in together}
        after = {name: changed(own, change) for name, own in before.items()}
        self._offers |= dict.fromkeys(after, _Offer(before, after))
        return [_delivery(ask, after[ask.client_id], spent[ask.client_id]) for ask in together]

    def _objection(self, ask: Ask, total: Factor) -> str | None:
        """Why the posterior may not take the sum, or None."""
        malformed = ask.posterior.objection_to(total)
        site = self._clients[ask.client_id]
        rule: Any = site.update
        checks = rule.checks_with(site.model)
        return malformed or checks.objection_to_step(Ledger(ask.posterior), {"sum": total})


def _delivery(ask: Ask, share: Factor, spent: Mapping[str, float]) -> Delivery:
    result = LocalResult(share, diagnostics=dict(spent))
    answer = Answer(ask.client_id, ask.sequence, ask.version, 0, result, None, ask.nonce)
    return Delivery(ask.client_id, answer)


def _change(posterior: Any, mean: Sequence[np.ndarray]) -> Factor:
    kinds = [np.asarray(eta).dtype for eta in posterior.natural]
    natural = tuple(eta.astype(kind) for eta, kind in zip(mean, kinds, strict=False))
    return Factor(type(posterior), natural)
