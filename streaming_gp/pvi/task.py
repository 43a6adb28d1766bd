"""A round's messages, a question to a client and its answer or failure; and what an update rule is.

An error's text is data: ``got nan at row 3`` tells what the row was. What leaves a site is a code
of a fixed list, and the coordinator knows the sentence that belongs to it. The text, with all that
it was raised from, stays in the site's own log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streaming_gp import serialization
from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.expfam import ExponentialFamily, Factor
from streaming_gp.inputs import require_strategy
from streaming_gp.pvi import ledger
from streaming_gp.serialization import storable

KIND, QUESTION = "answer of a client", "question to a client"
EPSILON = "epsilon"
"""The diagnostic by which a private rule says what its client has spent so far."""


@storable
@dataclass(frozen=True, eq=False)
class LocalTask:
    """One question to one client: to fit its data under a cavity.

    The server asks; the client adds its model, its data and a start, which never travel, and hands
    the task to its update rule.

    :param model: The model that gives the likelihood.
    :param data: Inputs X [N, D] and observations Y [N, P].
    :param posterior: q now, of all clients together.
    :param own: The part of q that is taken out for the cavity; None if nothing is.
    :param start: The member of q's family at which an iterative fit starts.
    :param seed: The seed of all random numbers of the fit.
    :param given_prior: The server's prior, where it is another one than the model's.
    :param client_id: The name of the client.
    :param sequence: The number of questions to this client before, as the server counts them.
    :param version: The version of the server's posterior.
    :param nonce: A secret between server and client, which the answer carries back.
    :param removed_fraction: The fraction of the client's factor that ``own`` is, in (0, 1].
    :param untouched: Whether q is still the prior, so that a fit had better start elsewhere.
    :param hyperparameters: The likelihood's parameters, unconstrained, where they are learned: [H].
    :param largest_answer: The number of bytes that an answer has at most; a larger one is not read.
    :param run: A name of the server that no other one has, but that which goes on from its file.
    """

    model: Any
    data: Any
    posterior: Any
    own: Any | None
    start: Any = None
    seed: int = 0
    given_prior: Any | None = None
    client_id: str = ""
    sequence: int = 0
    version: int = 0
    nonce: str = ""
    removed_fraction: float = 1.0
    untouched: bool = False
    hyperparameters: np.ndarray | None = None
    largest_answer: int = 2**63
    run: str = ""

    @property
    def prior(self) -> Any:
        """The prior that is a part of q."""
        return self.model.prior() if self.given_prior is None else self.given_prior

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.data[0])

    @property
    def num_bytes(self) -> int:
        """Size of the arrays that travel."""
        parts = [self.posterior, self.own, self.given_prior]
        return sum(part.num_bytes for part in parts if part is not None)

    @cached_property
    def cavity(self) -> Any:
        """The posterior without the client's own part; for an exponential family a ``Factor``.

        :raises ImproperError: if the family's cavities must be proper and this one is not.
        """
        return self.posterior.cavity(self.own)

    def size_of(self, batch_size: int | None) -> int:
        """The number of rows of a minibatch: all if None, and never more than there are."""
        return self.num_data if batch_size is None else min(batch_size, self.num_data)

    def minibatches(self, batch_size: int | None) -> Iterator[np.ndarray]:
        """Row numbers [B], without end.

        Each epoch goes through all rows in a new order; its last minibatch is filled up from the
        front, so that all have one size.
        """
        rng = np.random.default_rng(self.seed)
        size = self.size_of(batch_size)
        while True:
            order = rng.permutation(self.num_data)
            yield from np.resize(order, (-(-self.num_data // size), size))


@storable
@dataclass(frozen=True, eq=False)
class LocalResult:
    """A client's answer: the factor that its fit arrived at.

    An update rule gives the first five; the client adds the rest, which say what was answered.

    :param factor: The client's new factor, before any damping.
    :param free_energy: The local free energy in nats; NaN where the rule has none.
    :param steps: The number of steps that were made.
    :param skipped: The number of sites that an improper cavity kept as they were, summed over
        steps.
    :param diagnostics: Further numbers that the rule reports, by name.
    :param client_id: The client that answers.
    :param sequence: The number of the question.
    :param version: The version of the posterior that the factor was fitted under.
    :param num_data: The number of data points that it speaks for; 0 where it does not say.
    :param hyperparameters: The data term of ε after the fit, where ε is learned: a ``Normal``
        factor of unconstrained numbers [H].
    :param nonce: That of the question.
    """

    factor: Any
    free_energy: float = float("nan")
    steps: int = 0
    skipped: int = 0
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    client_id: str = ""
    sequence: int = 0
    version: int = 0
    num_data: int = 0
    hyperparameters: ledger.Factor | None = None
    nonce: str = ""

    @property
    def num_bytes(self) -> int:
        """Size of the arrays in its factor; nothing if that is none, or broken."""
        with suppress(Exception):
            return int(self.factor.num_bytes)
        return 0


@dataclass(frozen=True, eq=False)
class Delivery:
    """An answer, or the news that there will be none.

    :param client_id: The client that was asked.
    :param answer: Its answer or its ``Failure``, as it is or as the bytes of a message: the server
        reads it. None if nothing came.
    :param error: Why nothing came.
    """

    client_id: str
    answer: Any
    error: str | None = None


# ---- no answer: the words in which a client says so, and nothing of its data ----

LOG = logging.getLogger("streaming_gp.site")
CODES: Mapping[str, str] = {
    # by the class of the error
    "BudgetSpentError": "its privacy budget is spent",
    "DataError": "its data cannot be read, or are none that its model takes",
    "FileFormatError": "a file or message is damaged or missing; no record of what was spent, say",
    "ImproperError": "its fit came to no distribution",
    "InvalidDataError": "its rule, its model and its data do not fit one another",
    "MemoryError": "it has no memory left",
    "NumericalError": "its fit failed numerically",
    "OSError": "a disk or a network failed",
    "PrivateFitError": "a private fit failed, and the client does not say why",
    "OtherError": "it failed in another way",
    # by the refusal
    "NoSite": "there is no such site at this place",
    "NoInbox": "this place takes no results: it has no inbox",
    "NoMessage": "nobody waits for such a message",
    "AnswersByItself": "the site answers by itself, and within no sum",
    "AnswersInSums": "the site answers within sums only",
    "ServerIsBack": (
        "the server is back where it was before it had the last sums, and the site's factor of "
        "that time is not kept"
    ),
    "FactorNotKept": "the site's own factor is not kept where its rule says",
    "OtherRun": (
        "the site's own factor is no more: another run has kept one in its place since; each wants "
        "a folder of its own"
    ),
    "TooLarge": "its answer is larger than one can be",
    "OtherTerms": "the site has not agreed to a sum on these terms",
    "NeedsFamily": (
        "a private rule wants a posterior of an exponential family: pseudo-inputs that are chosen "
        "among data would leave with its factors; linear.GPOnInputs has them from a grid, the "
        "prior or a public set"
    ),
    "NeedsNoHyperparameters": (
        "what data say of the likelihood's parameters would leave without noise"
    ),
}
"""The sentence that the coordinator shows, by code."""


class RefusedQuestionError(InvalidDataError):
    """A question that a client does not answer, by a code of the list."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

    def __str__(self) -> str:
        return f"{CODES[self.code]}: {self.detail}" if self.detail else CODES[self.code]


class DataError(InvalidDataError):
    """The data of a site cannot be read, or are none that its model takes."""


@storable
@dataclass(frozen=True)
class Failure:
    """A client's news that there will be no answer.

    :param code: A code of the list.
    :param text: The error in words, for this process; it is in no message unless ``is_open``.
    :param is_open: Whether the coordinator has the client's data anyway, so that the text may go.
    """

    code: str
    text: str = ""
    is_open: bool = False

    @property
    def reason(self) -> str:
        """What the history says."""
        if self.is_open and self.text:
            return printable(f"{self.text:.1000}")
        code = self.code if self.code in CODES else "OtherError"
        return f"{code}: {CODES[code]} (its own log says more: logger {LOG.name})"


def failure_of(
    error: BaseException, client_id: str, is_open: bool = False, is_discreet: bool = True
) -> Failure:
    """The news of an error, whose text goes into the log of this process.

    :param is_open: Whether the coordinator has the client's data anyway.
    :param is_discreet: Whether not even this process may be told, but for its log.
    """
    is_open = is_open and not is_discreet
    if not is_open:
        LOG.error("%r does not answer", client_id, exc_info=error)
    return Failure(code_of(error), "" if is_discreet else describe(error), is_open)


def code_of(error: BaseException) -> str:
    """The code of an error: its own, or the name of the nearest of its classes that has one."""
    code: Any = getattr(error, "code", None)
    if type(code) is str and code in CODES:
        return code
    names = (cls.__name__ for cls in type(error).__mro__)
    return next((name for name in names if name in CODES), "OtherError")


def describe(error: BaseException) -> str:
    """An error in words, even if its own are broken."""
    try:
        return printable(f"{type(error).__name__}: {error}")
    except Exception:
        return f"{type(error).__name__}, which cannot be printed"


def means_a_misfit(reason: str) -> bool:
    """Whether a failure's reason is an ``InvalidDataError``: of a rule, a model and data that do
    not fit one another.
    """
    return reason.startswith(f"{InvalidDataError.__name__}: ")


def printable(text: str) -> str:
    """The text, with characters spelled out that no encoding can hold."""
    return text.encode(errors="backslashreplace").decode()


# ---- as bytes, in the package's own format, which holds values and nothing that can run ----


def encode_task(task: LocalTask) -> bytes:
    """The task as a message, without data."""
    plain = replace(task, model=None, data=None, start=None, posterior=task.posterior.as_arrays())
    return serialization.packed(QUESTION, plain, serialization.registered_classes())


def decode_task(message: bytes) -> LocalTask:
    """The task that :func:`encode_task` made a message of."""
    task: LocalTask = serialization.unpacked(
        "the question", message, QUESTION, serialization.registered_classes(), LocalTask
    )
    kinds = {"posterior": ledger.Posterior, "own": ledger.Factor, "given_prior": ledger.Posterior}
    for name, kind in kinds.items():
        part = getattr(task, name)
        is_missing = part is None and name != "posterior"
        if not is_missing and (isinstance(part, type) or not isinstance(part, kind)):
            raise FileFormatError(f"the question has a {type(part).__name__} for its {name}")
    return task


def encode_answer(answer: LocalResult | Failure) -> bytes:
    """An answer as a message; of a failure its code, and its text only where that may be told."""
    if isinstance(answer, Failure) and not answer.is_open:
        answer = replace(answer, text="")
    return serialization.packed(KIND, answer, serialization.registered_classes())


def decode_answer(message: bytes) -> LocalResult | Failure:
    """The answer that :func:`encode_answer` made a message of."""
    return serialization.unpacked("the message", message, KIND, serialization.registered_classes())


# ---- update rules ----


@runtime_checkable
class UpdateRule(Protocol):
    """How a client turns a question into a factor: a frozen dataclass that is called.

    It may have these attributes besides, and without one it is as its default says:

    - ``checks = None``: the limits of its honest answers (:class:`~streaming_gp.pvi.Checks`), if
      they are not the default ones
    - ``server_damping = None``: ρ in (0, 1] where the schedule does not say; 1 if the rule has
      damped its answers already
    - ``wants_prior = False``: whether it divides by the server's prior, which it is told where it
      is another one than the model's
    - ``is_discreet = False``: whether its answers tell of the data what it says itself, and nothing
      beside: neither how many rows there are, nor anything else that is not the rule's
    - ``is_paid_for = False``: whether its answers have cost privacy, so that one that would make
      the posterior improper is shortened, and not refused
    - ``is_summed = False``: whether its answers are shares of one sum, which enter the ledger
      together or not at all
    - ``keeps_state = False``: whether it keeps anything from fit to fit, but in a worker
    - ``require_begun(client_id)``: refuses to start a site whose record of what was told is not
      there, and was never begun in so many words
    - ``caution = None``: a sentence that whoever starts a run is warned by
    - ``worker()``: a rule for one client of a session, which remembers, and knows nothing yet; a
      :class:`~streaming_gp.pvi.Worker` if it goes on between questions
    """

    def __call__(self, task: LocalTask, /) -> LocalResult:
        """Fit the task's data under its cavity.

        :raises InvalidDataError: if the model lacks what the rule asks for.
        """


@runtime_checkable
class Worker(Protocol):
    """A rule at work in one client, which goes on between two questions.

    What it keeps is a cache: a worker that has just begun answers as well.
    """

    def __call__(self, task: LocalTask, /) -> LocalResult: ...

    def advance(self, iterations: int) -> bool:
        """Go on without a question, under the newest cavity.

        :param iterations: The number of iterations to make.
        :returns: whether there is something to go on with before the next question.
        """


class RuleAround:
    """A rule made around another, which says of answers, prior and damping what that one does."""

    rule: UpdateRule

    def __post_init__(self) -> None:
        require_strategy("rule", self.rule, UpdateRule, "pvi.VariationalUpdate()")

    @property
    def checks(self) -> Any:
        """Those of the rule, if it has any."""
        return getattr(self.rule, "checks", None)

    @property
    def server_damping(self) -> float | None:
        """That of the rule, if it knows."""
        return getattr(self.rule, "server_damping", None)

    @property
    def wants_prior(self) -> bool:
        """Whether the rule does."""
        return getattr(self.rule, "wants_prior", False)


def refuse_private_within(rule: Any) -> None:
    """Refuse a rule made around a private one that tells more than that one does.

    :raises InvalidDataError: saying how the two go together.
    """
    inner = getattr(rule, "rule", None)
    if inner is None:
        return
    if getattr(inner, "is_discreet", False) and not getattr(rule, "is_discreet", False):
        outer, within = type(rule).__name__, type(inner).__name__
        raise InvalidDataError(
            f"{outer} around {within} would tell more of the data than {within} says: put the "
            f"private rule around {outer}, as in PrivateChanges({outer}(...), ...)"
        )
    refuse_private_within(inner)


def require_begun(rule: Any, client_id: str) -> None:
    """Refuse to start a site whose rule, or one that it is made around, keeps a record that is not
    there.

    :raises FileFormatError: saying how a record begins.
    """
    if hasattr(rule, "require_begun"):
        rule.require_begun(client_id)
    elif hasattr(rule, "rule"):
        require_begun(rule.rule, client_id)


def have_same_natural(a: Any, b: Any) -> bool:
    """Whether two factors, or distributions, have the same natural parameters, to the last bit;
    None is like None.
    """
    if a is None or b is None:
        return a is b
    return all(np.array_equal(x, y) for x, y in zip(a.natural, b.natural, strict=True))


def factor_of(q: ExponentialFamily, cavity: Factor, free_energy: float) -> Factor:
    """``exp(F) q / cavity``, so that the ledger's normalisers add up to the free energy.

    :param free_energy: The local free energy F in nats; one that is not finite counts as zero.
    """
    factor = q.as_factor() / cavity
    scale = float(factor.log_scale) + (free_energy if np.isfinite(free_energy) else 0.0)
    return Factor(factor.family, factor.natural, scale).as_arrays()
