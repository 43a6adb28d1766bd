"""Which answers may touch the ledger, and which are refused."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi.checks import Checks
from streaming_gp.pvi.client import Client
from streaming_gp.pvi.damping import DampingRule, State
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.messages import Answer
from streaming_gp.pvi.model import HasChecks
from streaming_gp.pvi.reading import Reading, described
from streaming_gp.pvi.site import Clients, Site
from streaming_gp.pvi.step import completed


class WrongRuleError(Exception):
    """The damping rule is none for this ledger, which is no client's fault.

    :param reason: What the rule says.
    """

    def __init__(self, reason: InvalidDataError) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(frozen=True)
class OpenQuestion:
    """A question that has no answer yet.

    :param sequence: The number of the question to its client.
    :param removed_fraction: The fraction of the client's old factor that the cavity left out, in
        (0, 1].
    :param version: The version of the posterior that was asked under.
    :param nonce: What an answer has to carry back.
    """

    sequence: int
    removed_fraction: float
    version: int
    nonce: str

    def objection_to(self, answer: Answer | None) -> str | None:
        """Why this is no answer to the question, or None."""
        if answer is None or answer.sequence != self.sequence:
            number = None if answer is None else answer.sequence
            return f"question {number} is not open: answered before, or out of date"
        if not secrets.compare_digest(answer.nonce.encode(), self.nonce.encode()):
            return f"it does not carry the nonce of question {self.sequence} of this run"
        if answer.version != self.version:
            return f"it speaks of version {answer.version}, asked under version {self.version}"
        return None


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
    :param state: The state of the damping rule.
    :param hyperparameters: The likelihood's parameters where they are learned, else None: [H].
    """

    clients: Clients
    questions: Mapping[str, OpenQuestion]
    checks: Checks | None
    ledger: Ledger[Any]
    rule: DampingRule
    share: float
    state: State
    hyperparameters: np.ndarray | None

    def verdict(self, readings: Iterable[Reading]) -> Verdict:
        """Sort answers; each is judged alone, and a second one to a question is refused."""
        verdict = Verdict()
        for reading in readings:
            name = reading.channel
            try:
                found = self._judged(reading, name in verdict.accepted)
            except WrongRuleError as error:
                raise error.reason from None
            except Exception as error:  # an answer may hold anything
                found = f"it cannot be read: {described(error)}"
            if isinstance(found, str):
                verdict.refused[name] = found
            else:
                verdict.accepted[name], verdict.proposals[name] = found
        return verdict

    def _judged(self, reading: Reading, is_answered: bool) -> tuple[Answer, Any] | str:
        """The answer with the client's whole factor, or why it is refused."""
        if reading.channel not in self.clients:
            return "there is no such client"
        if reading.answer is None:
            return reading.objection or "there is no answer"
        answer = reading.answer
        objection = self._objection_to_envelope(answer, is_answered)
        objection = objection or self._objection_to_content(answer)
        if objection:
            return objection
        whole = self._whole(answer)
        return self._objection_to_step(answer, whole) or (answer, whole)

    def _objection_to_envelope(self, answer: Answer, is_answered: bool) -> str | None:
        """Why nobody waits for this answer, or None."""
        question = self.questions.get(answer.client_id)
        if is_answered or question is None:
            return f"question {answer.sequence} is not open: answered before, or out of date"
        return question.objection_to(answer)

    def _objection_to_content(self, answer: Answer) -> str | None:
        """Why what it holds is refused whatever it would do to the posterior, or None."""
        client = self.clients[answer.client_id]
        checks = checks_of(client, self.checks)
        objection = checks.objection(self.ledger, answer.result.factor, client.num_data)
        if objection is None and self.hyperparameters is not None:
            return checks.objection_to_hyperparameters(
                answer.hyperparameters, self.hyperparameters, client.num_data
            )
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
        try:
            changes, _ = self.rule.update(self.ledger, alone, self.state, self.share, 0.0)
        except InvalidDataError as error:
            raise WrongRuleError(error) from error
        checks = checks_of(self.clients[answer.client_id], self.checks)
        return checks.objection_to_step(self.ledger, changes)


def staleness(
    readings: Iterable[Reading], questions: Mapping[str, OpenQuestion], version: int
) -> int:
    """The largest number of versions by which one of the answers has been overtaken."""
    found = [(questions.get(reading.channel), reading.answer) for reading in readings]
    answered = [q for q, answer in found if q is not None and q.objection_to(answer) is None]
    return max((version - question.version for question in answered), default=0)


def checks_of(client: Client | Site, given: Checks | None = None) -> Checks:
    """The limits of this client's answers: those given, or its model's, its rule's, the defaults.

    :param given: Limits that hold for all clients; None if each has its own.
    """
    if given is not None:
        return given
    owners = (client.model, client.update)
    own = (owner.checks for owner in owners if isinstance(owner, HasChecks))
    return next((checks for checks in own if checks is not None), Checks())
