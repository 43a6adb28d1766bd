"""Which answers may touch the ledger, and which are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streaming_gp.pvi.checks import Checks
from streaming_gp.pvi.client import Client
from streaming_gp.pvi.damping import DampingRule, Memory
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.messages import Answer
from streaming_gp.pvi.model import HasChecks
from streaming_gp.pvi.step import completed


@dataclass(frozen=True)
class OpenQuestion:
    """A question that has no answer yet.

    :param sequence: The number of the question to its client.
    :param removed_fraction: The fraction of the client's old factor that the cavity left out, in
        (0, 1].
    """

    sequence: int
    removed_fraction: float


@dataclass(eq=False)
class Verdict:
    """Some answers, sorted.

    :param accepted: The answers that may enter the ledger, by client.
    :param proposals: The whole factor that each of them proposes, by client.
    :param refused: Why the others are refused, by client.
    """

    accepted: dict[str, Answer] = field(default_factory=dict)
    proposals: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Acceptance:
    """All that answers are judged by.

    :param clients: The clients by name.
    :param questions: The open question of each client that has one.
    :param checks: Limits that hold for all clients; None if each has its own.
    :param ledger: The ledger that the answers would change.
    :param rule: How they would enter the ledger.
    :param share: The share of the full step, in (0, 1].
    :param memory: What the damping rule has kept.
    :param hyperparameters: The likelihood's parameters where they are learned, else None: [H].
    """

    clients: Mapping[str, Client]
    questions: Mapping[str, OpenQuestion]
    checks: Checks | None
    ledger: Ledger[Any]
    rule: DampingRule
    share: float
    memory: Memory
    hyperparameters: np.ndarray | None

    def verdict(self, answers: Iterable[Answer]) -> Verdict:
        """Sort answers; each is judged alone, and a second one to a question is refused."""
        verdict = Verdict()
        for answer in answers:
            name = answer.client_id
            objection = self._objection_to_envelope(answer, name in verdict.accepted)
            objection = objection or self._objection_to_content(answer)
            whole = None if objection else self._whole(answer)
            objection = objection or self._objection_to_step(answer, whole)
            if objection:
                verdict.refused[name] = objection
            else:
                verdict.accepted[name], verdict.proposals[name] = answer, whole
        return verdict

    def _objection_to_envelope(self, answer: Answer, is_answered: bool) -> str | None:
        """Why nobody waits for this answer, or None."""
        if answer.client_id not in self.clients:
            return "there is no such client"
        question = self.questions.get(answer.client_id)
        if is_answered or question is None or question.sequence != answer.sequence:
            return f"question {answer.sequence} is not open: answered before, or out of date"
        return None

    def _objection_to_content(self, answer: Answer) -> str | None:
        """Why what it holds is refused whatever it would do to the posterior, or None."""
        client = self.clients[answer.client_id]
        checks = checks_of(client, self.checks)
        try:
            objection = checks.objection(self.ledger, answer.result.factor, client.num_data)
            if objection is None and self.hyperparameters is not None:
                objection = checks.objection_to_hyperparameters(
                    answer.hyperparameters, self.hyperparameters, client.num_data
                )
        except Exception as error:  # an answer may hold anything
            return f"it cannot be read: {type(error).__name__}: {error}"
        return objection

    def _whole(self, answer: Answer) -> Any:
        """The client's whole factor, with what had stayed in its cavity."""
        name = answer.client_id
        removed = self.questions[name].removed_fraction
        return completed(self.ledger, name, answer.result.factor, removed)

    def _objection_to_step(self, answer: Answer, whole: Any) -> str | None:
        """Why the posterior with it alone would be refused, or None."""
        # at progress 0, where steps are largest: a rule that remembers would else take in late
        # what it had refused early
        alone = {answer.client_id: whole}
        changes, _ = self.rule.applied(self.ledger, alone, self.share, 0.0, self.memory)
        checks = checks_of(self.clients[answer.client_id], self.checks)
        return checks.objection_to_step(self.ledger, changes)


def checks_of(client: Client, given: Checks | None = None) -> Checks:
    """The limits of this client's answers: those given, or its model's, its rule's, the defaults.

    :param given: Limits that hold for all clients; None if each has its own.
    """
    if given is not None:
        return given
    owners = (client.model, client.update)
    own = (owner.checks for owner in owners if isinstance(owner, HasChecks))
    return next((checks for checks in own if checks is not None), Checks())
