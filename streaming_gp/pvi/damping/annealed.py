"""Steps that become smaller as a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streaming_gp.pvi.damping.around import AroundRule
from streaming_gp.pvi.damping.rule import Factors, Memory, annealed
from streaming_gp.pvi.ledger import Ledger


@dataclass(frozen=True)
class Annealed(AroundRule):
    """A damping rule: another rule whose steps fall to zero by a cosine over the rounds of a run.

    At a fraction p of all rounds a step is ``(1 + cos πp) / 2`` of what it would be (Loshchilov &
    Hutter 2017, eq. 5). Where clients differ and fit by minibatches, the posterior else keeps
    following whoever answered last; small steps in the end average over all of them. Fixed points
    are those of the rule itself.

    :param damping: The rule, or a damping ρ in (0, 1]; if None, what a schedule takes where it is
        given none.
    """

    def applied(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Factors, Memory]:
        rule = self.inner(ledger, proposals)
        return rule.applied(ledger, proposals, share * annealed(progress), progress, memory)
