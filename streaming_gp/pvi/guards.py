"""The guards around the algorithm: the form of an answer, and the limits of a sane one.

An answer may hold anything. It is decoded and its form is checked before anything else looks at it
(:func:`read`); it must be the first to an open question, over the channel of the client that was
asked, which the server knows; and its factor, and the step that it would make alone, must lie
within limits (:class:`Checks`). A refusal has its reason, and the round goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from streaming_gp.errors import ImproperError
from streaming_gp.expfam import Factor, Gaussian, Normal
from streaming_gp.inputs import NotNegative, Positive, typed
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.model import slope_and_precision
from streaming_gp.pvi.task import (
    EPSILON,
    Delivery,
    Failure,
    LocalResult,
    decode_answer,
    describe,
    printable,
)

_INTEGERS = tuple(np.dtype(code).type for code in np.typecodes["AllInteger"])
_FLOATS = tuple(np.dtype(code).type for code in np.typecodes["Float"])
LARGEST_COUNT = 2**53
"""Beyond it a count is a lie, and no number that files and sums can do with."""
HEADING = 2**16
"""The bytes that an answer may have besides its arrays: names, numbers, and what a file adds."""
IMPROPER = "the posterior with it would be improper"
SLACK = 4
"""So many times what a factor is known to hold, as kinds of numbers differ."""


class FailedError(Exception):
    """A client's news that it gives no answer."""

    text: str = ""  # the error in words, where it happened in this process and may be told


class RefusedError(Exception):
    """The reason why an answer is refused."""


@contextmanager
def readable(*passed: type[Exception]) -> Iterator[None]:
    """An answer may hold anything: whatever looking at it raises is a refusal.

    :param passed: Errors that are no answer's fault.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (FailedError, RefusedError, *passed)):
            raise
        raise RefusedError(f"it cannot be read: {describe(error)}") from None


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

    max_shift: Positive = 100.0
    max_precision_per_datum: Positive = 1e6
    max_precision_loss: NotNegative = 0.05
    max_slope_per_datum: Positive = 1e9

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
                f"coordinates, at most {self.max_precision_loss:g}; honest ones do so from a start "
                "surer than it should be, or by another divergence than KL: begin elsewhere "
                "(Server.warm_start), or raise the limit of pvi.Checks"
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


def checks_of(client: Any, given: Checks | None = None) -> Checks:
    """The limits of this client's answers: those given, or its model's, its rule's, the defaults.

    :param given: Limits that hold for all clients; None if each has its own.
    """
    return given or checks_among(client.model, client.update)


def checks_among(*owners: Any) -> Checks:
    """The ``checks`` of the first, a model or a rule, that has any; else the defaults."""
    own = (getattr(owner, "checks", None) for owner in owners)
    return next((checks for checks in own if checks is not None), Checks())


def largest_answer(prior: Any, client: Any, num_hyperparameters: int) -> int:
    """The number of bytes that an answer of this client has at most, known before it comes."""
    of_model = getattr(client.model, "largest_factor", None)
    factor = prior.num_bytes if of_model is None else of_model(client.num_data)
    hyperparameters = 8 * num_hyperparameters * (num_hyperparameters + 1)
    return HEADING + SLACK * int(factor + hyperparameters)


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
    with readable():
        size = len(content) if type(content) is bytes else _weight(content)
        if size > largest:
            raise RefusedError(f"it is too large: {size} bytes, at most {largest}")
        answer: Any = decode_answer(content) if type(content) is bytes else content
        if type(answer) is Failure:
            failed = FailedError(answer.reason)
            failed.text = f"{answer.text!s:.1000}"
            raise failed
        objection = _objection_to_form(answer, delivery.client_id)
        if objection is not None:
            raise RefusedError(objection)
    return answer


def delivery_of(came: Any) -> Delivery:
    """A delivery; an answer of this process is its own channel."""
    if type(came) is Delivery:
        return came
    name = getattr(came, "client_id", None)
    return Delivery(name if type(name) is str else "a client without a name", came)


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
    values = {name: getattr(answer, name) for name in _FORMS} | _named(answer.diagnostics)
    for name, value in values.items():
        holds, wanted = _FORMS.get(name, (_is_number, "a number that is not infinite"))
        if not holds(value):
            return f"its {name} is {_shown(value)}, wanted {wanted}"
    spent = answer.diagnostics.get(EPSILON, 0.0)  # NaN where there is no bound
    return f"its {EPSILON} is {spent}, wanted at least 0" if float(spent) < 0.0 else None


def _named(diagnostics: Any) -> dict[str, Any]:
    if type(diagnostics) not in (dict, MappingProxyType) or not all(map(_is_text, diagnostics)):
        return {"diagnostics": diagnostics}
    return {f"diagnostic {name!r}": value for name, value in diagnostics.items()}


def _shown(value: Any) -> str:
    is_long = type(value) is int and value.bit_length() > 1000  # Python writes none that are longer
    return "a number of very many digits" if is_long else f"{value!r:.100}"


def _is_text(value: Any) -> bool:
    """A string that can be written down, as one with half a surrogate pair cannot."""
    return type(value) is str and printable(value) == value


def _is_count(value: Any) -> bool:
    is_integer = type(value) is int or type(value) in _INTEGERS
    return is_integer and 0 <= int(value) < LARGEST_COUNT


def _is_number(value: Any) -> bool:
    """A number of Python or NumPy itself, and of no class beside; NaN where a rule has none."""
    is_number = type(value) in (int, float, bool) or type(value) in (*_INTEGERS, *_FLOATS)
    return is_number and not bool(np.isinf(float(value)))


_FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "nonce": (_is_text, "a string"),
    "free_energy": (_is_number, "a number that is not infinite"),
    "hyperparameters": (lambda value: value is None or type(value) is Factor, "a factor or None"),
    **dict.fromkeys(
        ("sequence", "version", "num_data", "steps", "skipped"),
        (_is_count, "an integer, at least 0"),
    ),
}
"""Fields of an answer, and what they must be; diagnostics are numbers."""
