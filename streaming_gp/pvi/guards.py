"""The guards around the algorithm: which answers may touch the ledger, and why others are refused.

An answer may hold anything. It is decoded and its form is checked before anything else looks at it
(:func:`read`); it must be the first to an open question, over the channel of the client that was
asked (:func:`receive`); and its factor, and the step that it would make alone, must lie within
limits (:func:`examine`, :class:`Checks`). A refusal has its reason, and the round goes on.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from streaming_gp import serialization
from streaming_gp.errors import ImproperError, InvalidDataError
from streaming_gp.expfam import Factor, Gaussian, Normal
from streaming_gp.inputs import typed
from streaming_gp.pvi.damping import DampingRule, State, damped
from streaming_gp.pvi.history import Round
from streaming_gp.pvi.hyperparameters import slope_and_precision
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.step import complete
from streaming_gp.pvi.task import (
    EPSILON,
    Delivery,
    Failure,
    LocalResult,
    decode_answer,
    describe,
    printable,
)

if TYPE_CHECKING:
    from streaming_gp.pvi.client import Client, Site
    from streaming_gp.pvi.server import Server

_INTEGERS = tuple(np.dtype(code).type for code in np.typecodes["AllInteger"])
_FLOATS = tuple(np.dtype(code).type for code in np.typecodes["Float"])
LARGEST_COUNT = 2**53
"""Beyond it a count is a lie, and no number that files and sums can do with."""
HEADING = 2**16
"""The bytes that an answer may have besides its arrays: names, numbers, and what a file adds."""
IMPROPER = "the posterior with it would be improper"
SHORTEST_STEP = 1e-3
"""Of an answer that has cost privacy, which is shortened where all of it would be improper."""
SLACK = 4
"""So many times what a factor is known to hold, as kinds of numbers differ."""


class FailedError(Exception):
    """A client's news that it gives no answer."""

    text: str = ""  # the error in words, where it happened in this process and may be told


class RefusedError(Exception):
    """The reason why an answer is refused."""


# ---- limits ----


@typed
@dataclass(frozen=True)
class Checks:
    """Limits of a sane answer. An answer beyond them is refused and reported; the round goes on.

    A broken or hostile client is stopped where its factor is malformed or implausible; one that
    lies within these limits is not noticed. For posteriors that are not Gaussians, only what is
    malformed or improper is refused.

    :param max_shift: The number of standard deviations by which the posterior mean may move at
        most, as root mean square over coordinates, measured by the wider of the old and the new
        posterior.
    :param max_precision_per_datum: No coordinate may gain more precision for each of the client's
        data points than so many times its prior precision.
    :param max_precision_loss: The fraction of the posterior's precision that a factor may take away
        at most, as a mean over coordinates. Single coordinates of an honest factor may be negative,
        and all of them a little, where a minibatch is noisy or a start surer than it should be.
    :param max_slope_per_datum: Where hyperparameters are learned: the expected log-likelihood of
        one data point may change by at most so many nats for one unit of an unconstrained
        hyperparameter, and so may its slope. How far a round goes is bounded anyway.
    """

    max_shift: float = 100.0
    max_precision_per_datum: float = 1e6
    max_precision_loss: float = 0.05
    max_slope_per_datum: float = 1e9

    def objection(self, ledger: Ledger[Any], factor: Any, num_data: int) -> str | None:
        """Why a factor is refused whatever it would do to the posterior, or None.

        :param num_data: The number of the client's data points.
        """
        malformed = ledger.posterior.objection_to(factor)
        if malformed or not isinstance(ledger.prior, Gaussian):
            return malformed
        precision = _diagonal(factor.natural[1])
        certainty = float(np.max(precision / _diagonal(ledger.prior.precision)) / num_data)
        if not certainty <= self.max_precision_per_datum:
            return (
                f"it holds {certainty:.3g} prior precisions for each data point, at most "
                f"{self.max_precision_per_datum:g}; honest answers are so sure where inputs have "
                "large units or the prior is vague: scale the inputs, or raise the limit of "
                "pvi.Checks"
            )
        fraction = float(np.mean(precision / _diagonal(ledger.posterior.precision)))
        if not fraction >= -self.max_precision_loss:
            return (
                f"it takes away {-fraction:.3g} of the posterior's precision in the mean over "
                f"coordinates, at most {self.max_precision_loss:g}"
            )
        return None

    def objection_to_step(self, ledger: Ledger[Any], changes: Mapping[str, Any]) -> str | None:
        """Why the ledger may not take over these factors, or None.

        :param changes: New factors by client, as they would stand in the ledger.
        """
        try:
            old, new = ledger.posterior, ledger.posterior_with(changes)
        except ImproperError:
            return IMPROPER
        if not isinstance(old, Gaussian):
            return None
        variance = np.maximum(np.asarray(old.variance), np.asarray(new.variance))
        shift = np.asarray(new.mean) - np.asarray(old.mean)
        size = float(np.sqrt(np.mean(np.square(shift) / variance)))
        if size <= self.max_shift:
            return None
        return f"it moves the mean by {size:.3g} standard deviations, at most {self.max_shift:g}"

    def objection_to_hyperparameters(
        self, factor: Any, hyperparameters: np.ndarray, num_data: int
    ) -> str | None:
        """Why an answer's factor of hyperparameters is refused, or None.

        :param hyperparameters: Where they are now [H].
        :param num_data: The number of the client's data points.
        """
        size = len(hyperparameters)
        malformed = Normal(np.zeros(size), np.eye(size)).objection_to(factor)
        if malformed:
            return f"its factor of hyperparameters: {malformed}"
        slope, precision = slope_and_precision(factor, hyperparameters)
        steepest = max(np.max(np.abs(slope)), np.max(np.abs(precision))) / num_data
        if steepest <= self.max_slope_per_datum:
            return None
        return (
            f"its factor of hyperparameters has a slope or curvature of {steepest:.3g} for each "
            f"data point, at most {self.max_slope_per_datum:g}"
        )


NO_LIMITS = Checks(max_shift=np.inf, max_precision_per_datum=np.inf, max_precision_loss=np.inf)
"""For point estimates, which are surer than any posterior: only what is malformed or improper is
refused. Rules of federated averaging and of distributed optimisers bring it."""


def _diagonal(precision: Any) -> np.ndarray:
    precision = np.asarray(precision)
    return np.diagonal(precision) if precision.ndim == 2 else np.atleast_1d(precision)


def checks_of(client: Client | Site, given: Checks | None = None) -> Checks:
    """The limits of this client's answers: those given, or its model's, its rule's, the defaults.

    :param given: Limits that hold for all clients; None if each has its own.
    """
    if given is not None:
        return given
    return checks_among(client.model, client.update)


def checks_among(*owners: Any) -> Checks:
    """The ``checks`` of the first, a model or a rule, that has any; else the defaults."""
    own = (getattr(owner, "checks", None) for owner in owners)
    return next((checks for checks in own if checks is not None), Checks())


def largest_answer(prior: Any, client: Client | Site, num_hyperparameters: int) -> int:
    """The number of bytes that an answer of this client has at most, known before it comes."""
    of_model = getattr(client.model, "largest_factor", None)
    factor = prior.num_bytes if of_model is None else of_model(client.num_data)
    hyperparameters = 8 * num_hyperparameters * (num_hyperparameters + 1)
    return HEADING + SLACK * int(factor + hyperparameters)


# ---- the channel, and the question ----


def receive(
    server: Server, deliveries: Iterable[Any]
) -> tuple[list[LocalResult], dict[str, str], Round]:
    """Sort deliveries by whether they are answers to open questions; nothing of them raises.

    :param deliveries: Of an engine, or answers of clients in this process.
    :returns: the answers; why others are refused, by client; and a report of messages and failures.
    """
    answers: list[LocalResult] = []
    refused, failed, epsilon, messages, num_bytes = {}, {}, {}, 0, 0
    for came in deliveries:
        delivery = _delivery(came)
        name = delivery.client_id
        if name not in server.clients:
            messages, refused[name] = messages + 1, "there is no such client"
            continue
        try:
            answer = read(delivery, server.largest_answer(name))
        except FailedError as error:
            failed[name] = str(error)
            server.failures[name] = error.text or str(error)
            continue
        except RefusedError as error:
            messages, refused[name] = messages + 1, str(error)
            continue
        messages, num_bytes = messages + 1, num_bytes + answer.num_bytes
        objection = _objection_to_question(server, answer)
        if objection is None:
            answers.append(answer)
            if EPSILON in answer.diagnostics:
                epsilon[name] = float(answer.diagnostics[EPSILON])
        else:
            refused[name] = objection
    report = Round(messages=messages, bytes_up=num_bytes, failed=failed, epsilon=epsilon)
    return answers, refused, report


def unpacked(server: Server, delivery: Any) -> Any:
    """A delivery with the answer in the place of its message, so that of a round not both are held;
    one that is refused is left as it is.
    """
    if type(delivery) is not Delivery or type(delivery.answer) is not bytes:
        return delivery
    try:
        answer = read(delivery, server.largest_answer(delivery.client_id))
    except (FailedError, KeyError, RefusedError):
        return delivery
    return Delivery(delivery.client_id, answer)


def _delivery(came: Any) -> Delivery:
    """A delivery; an answer of this process is its own channel."""
    if type(came) is Delivery:
        return came
    name = getattr(came, "client_id", None)
    return Delivery(name if type(name) is str else "a client without a name", came)


def _objection_to_question(server: Server, answer: LocalResult) -> str | None:
    """Why nobody waits for this answer, or None."""
    task = server.open_tasks.get(answer.client_id)
    if task is None or answer.sequence != task.sequence:
        return _not_open(answer)
    if not secrets.compare_digest(answer.nonce.encode(), task.nonce.encode()):
        return f"it does not carry the nonce of question {task.sequence} of this run"
    if answer.version != task.version:
        return f"it speaks of version {answer.version}, asked under version {task.version}"
    num_data = server.clients[answer.client_id].num_data
    if answer.num_data not in (0, num_data):
        return f"it speaks for {answer.num_data} data points, of which its client has {num_data}"
    return None


def _not_open(answer: LocalResult) -> str:
    return f"question {answer.sequence} is not open: answered before, or out of date"


# ---- the factor, and its step ----


def examine(
    server: Server,
    answers: Iterable[LocalResult],
    rule: DampingRule,
    state: State,
    share: float,
) -> tuple[dict[str, LocalResult], dict[str, str]]:
    """Sort answers to open questions; each is judged alone, and a second one is refused.


    :param rule: How they would enter the ledger.
    :param state: The rule's state.
    :param share: The share of the full step, in (0, 1].
    :returns: the answers that may enter, by client, with whole factors: the part that had stayed in
        the cavity is in them; and why the others are refused.
    """
    accepted: dict[str, LocalResult] = {}
    refused: dict[str, str] = {}
    for answer in answers:
        name = answer.client_id
        if name in accepted:
            refused[name] = _not_open(answer)
            continue
        checks = checks_of(server.clients[name], server.checks)
        whole, objection = None, None
        try:
            objection = _objection_to_content(server, answer, checks)
            if objection is None:
                removed = server.open_tasks[name].removed_fraction
                whole = complete(server.ledger, name, answer.factor, removed)
        except Exception as error:  # an answer may hold anything
            objection = _unreadable(error)
        if objection is None:
            objection = _objection_to_step(server, {name: whole}, rule, state, share, checks)
        if objection == IMPROPER and getattr(server.clients[name].update, "is_paid_for", False):
            old, step = server.ledger.factors.get(name), 1.0
            while objection == IMPROPER and step > SHORTEST_STEP:
                step, shorter = 0.5 * step, damped(old, whole, 0.5 * step).as_arrays()
                objection = _objection_to_step(server, {name: shorter}, rule, state, share, checks)
            whole = shorter
        if objection is None:
            accepted[name] = replace(answer, factor=whole)
        else:
            refused[name] = objection
    return accepted, refused


def _objection_to_content(server: Server, answer: LocalResult, checks: Checks) -> str | None:
    """Why it is refused whatever it would do to the posterior, or None."""
    client = server.clients[answer.client_id]
    num_data = client.num_data
    objection = checks.objection(server.ledger, answer.factor, num_data)
    if objection is None and server.hyperparameters is not None:
        objection = checks.objection_to_hyperparameters(
            answer.hyperparameters, server.hyperparameters, num_data
        )
    if objection is None:  # what could not travel is refused wherever it comes from
        serialization.encode(answer.factor, serialization.registered_classes())
    of_model = getattr(client.model, "objection_to_answer", None)
    if objection is None and of_model is not None:
        objection = of_model(answer.factor, num_data)
    return objection


def _objection_to_step(
    server: Server,
    proposal: Mapping[str, Any],
    rule: DampingRule,
    state: State,
    share: float,
    checks: Checks,
) -> str | None:
    """Why the posterior would be refused if nobody else answered, or None."""
    try:
        # at progress 0, where steps are largest: a rule that remembers would else take in late
        # an answer that it had refused early
        changes, _ = rule.update(server.ledger, proposal, state, share, 0.0)
    except InvalidDataError:  # the rule is none for this ledger, which is no client's fault
        raise
    except Exception as error:
        return _unreadable(error)
    try:
        return checks.objection_to_step(server.ledger, changes)
    except Exception as error:
        return _unreadable(error)


# ---- the form ----


def read(delivery: Delivery, largest: int = 2**63) -> LocalResult:
    """The answer in a delivery, whose fields are of their types.

    :param largest: The number of bytes beyond which it is not looked into.
    :raises FailedError: if the client says that there is none.
    :raises RefusedError: if it is none, or is damaged or too large, or speaks for another client.
    """
    content = delivery.answer
    if content is None:
        raise FailedError(delivery.error or "no answer")
    try:
        size = len(content) if type(content) is bytes else _weight(content)
        if size > largest:
            raise RefusedError(f"it is too large: {size} bytes, at most {largest}")
        answer: Any = decode_answer(content) if type(content) is bytes else content
        if type(answer) is Failure:
            failed = FailedError(answer.reason)
            failed.text = f"{answer.text!s:.1000}"
            raise failed
        objection = _objection_to_form(answer, delivery.client_id)
    except (FailedError, RefusedError):
        raise
    except Exception as error:  # an answer may hold anything
        raise RefusedError(_unreadable(error)) from None
    if objection is not None:
        raise RefusedError(objection)
    result: LocalResult = answer
    return result


def _weight(tree: Any) -> int:
    """The bytes of arrays and texts in a value of this process, about."""
    if isinstance(tree, str):
        return len(tree)
    if isinstance(tree, Mapping):
        return sum(_weight(key) + _weight(one) for key, one in tree.items())
    if isinstance(tree, tuple):
        return sum(map(_weight, tree))
    if is_dataclass(tree) and not isinstance(tree, type):
        return sum(_weight(getattr(tree, field.name)) for field in fields(tree))
    return int(getattr(tree, "nbytes", 8))


def _objection_to_form(answer: Any, channel: str) -> str | None:
    if type(answer) is not LocalResult:
        return f"it is no LocalResult but a {type(answer).__name__}"
    if type(answer.client_id) is not str or answer.client_id != channel:
        return f"it came over the channel of {channel!r} in the name of {answer.client_id!r}"
    wanted: dict[str, tuple[Any, dict[str, Any]]] = {
        "a string": (_is_text, {"nonce": answer.nonce}),
        "an integer, at least 0": (
            _is_count,
            {
                "sequence": answer.sequence,
                "version": answer.version,
                "num_data": answer.num_data,
                "steps": answer.steps,
                "skipped": answer.skipped,
            },
        ),
        "a number that is not infinite": (
            _is_number,
            {"free_energy": answer.free_energy, **_named(answer.diagnostics)},
        ),
        "a privacy that was spent, at least 0": (_is_spent, _spent(answer.diagnostics)),
        "a factor or None": (_is_factor_or_none, {"hyperparameters": answer.hyperparameters}),
    }
    for what, (holds, named) in wanted.items():
        for name, value in named.items():
            if not holds(value):
                return f"its {name} is {_shown(value)}, wanted {what}"
    return None


def _unreadable(error: Exception) -> str:
    return f"it cannot be read: {describe(error)}"


def _shown(value: Any) -> str:
    is_long = type(value) is int and value.bit_length() > 1000  # Python writes none that are longer
    return "a number of very many digits" if is_long else f"{value!r:.100}"


def _named(diagnostics: Any) -> dict[str, Any]:
    if type(diagnostics) not in (dict, MappingProxyType) or not all(map(_is_text, diagnostics)):
        return {"diagnostics": diagnostics}
    return {f"diagnostic {name!r}": value for name, value in diagnostics.items()}


def _is_text(value: Any) -> bool:
    """A string that can be written down, as one with half a surrogate pair cannot."""
    return type(value) is str and printable(value) == value


def _is_count(value: Any) -> bool:
    is_integer = type(value) is int or type(value) in _INTEGERS
    return is_integer and 0 <= int(value) < LARGEST_COUNT


def _spent(diagnostics: Any) -> dict[str, Any]:
    return {EPSILON: diagnostics[EPSILON]} if EPSILON in diagnostics else {}


def _is_spent(value: Any) -> bool:
    """NaN where there is no bound."""
    return not float(value) < 0.0


def _is_number(value: Any) -> bool:
    """A number of Python or NumPy itself, and of no class beside; NaN where a rule has none."""
    is_number = type(value) in (int, float, bool) or type(value) in (*_INTEGERS, *_FLOATS)
    return is_number and not bool(np.isinf(float(value)))


def _is_factor_or_none(value: Any) -> bool:
    return value is None or type(value) is Factor
