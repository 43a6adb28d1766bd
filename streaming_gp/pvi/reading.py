"""Where what clients answer is decoded, and its form checked, before anything else looks at it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.pvi.engine import Delivery
from streaming_gp.pvi.messages import Answer, Failure, decoded
from streaming_gp.pvi.task import EPSILON, LocalResult

_INTEGERS = tuple(np.dtype(code).type for code in np.typecodes["AllInteger"])
_FLOATS = tuple(np.dtype(code).type for code in np.typecodes["Float"])


@dataclass(frozen=True, eq=False)
class Reading:
    """What came over the channel of one client.

    :param channel: The client that was asked.
    :param answer: Its answer, whose fields are of their types; None if there is none.
    :param objection: Why there is none.
    """

    channel: str
    answer: Answer | None
    objection: str | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the arrays in the answer."""
        return 0 if self.answer is None else self.answer.num_bytes

    @property
    def epsilon(self) -> float | None:
        """What the client says that it has spent of its privacy; None if it says nothing."""
        if self.answer is None or EPSILON not in self.answer.result.diagnostics:
            return None
        return float(self.answer.result.diagnostics[EPSILON])


def read(came: Any) -> Reading:
    """Decode and check the form of an answer. Whatever came, this does not raise.

    :param came: A delivery, whose answer may be anything; an answer of this process, which is its
        own channel; or what has been read already.
    """
    if type(came) is Reading:
        return came
    if type(came) is Delivery:
        channel, content = came.client_id, came.answer
    else:
        channel, content = _name(came), came
    try:
        answer: Any = decoded(content) if type(content) is bytes else content
        objection = _objection_to_form(answer, channel)
    except Exception as error:  # an answer may hold anything
        return Reading(channel, None, f"it cannot be read: {described(error)}")
    return Reading(channel, None if objection else answer, objection)


def delivery_of(name: str, message: bytes) -> Delivery:
    """What a client's message delivers: an answer, or the news that there is none."""
    failure = _failure_in(message)
    return Delivery(name, None if failure else message, failure)


def _failure_in(message: bytes) -> str | None:
    """Why there is no answer, if a message says so."""
    with suppress(Exception):
        content = decoded(message)
        return printable(f"{content.reason!s:.1000}") if type(content) is Failure else None
    return None  # whatever it is, it is refused where it is read


def described(error: BaseException) -> str:
    """An error in words, even if its own are broken."""
    try:
        return printable(f"{type(error).__name__}: {error}")
    except Exception:
        return f"{type(error).__name__}, which cannot be printed"


def says_it_does_not_fit(reason: str) -> bool:
    """Whether an error that :func:`described` put in words, here or far away, is an
    ``InvalidDataError``: of a rule, a model and data that do not fit one another.
    """
    return reason.startswith(f"{InvalidDataError.__name__}: ")


def printable(text: str) -> str:
    """The text, with what no encoding can hold spelled out."""
    return text.encode(errors="backslashreplace").decode()


def _name(came: Any) -> str:
    name = getattr(came, "client_id", None)
    return name if type(name) is str else "a client without a name"


def _objection_to_form(answer: Any, channel: str) -> str | None:
    if type(answer) is Failure:
        return printable(f"it failed: {answer.reason!s:.1000}")
    if type(answer) is not Answer:
        return f"it is no Answer but a {type(answer).__name__}"
    if type(answer.client_id) is not str or answer.client_id != channel:
        return f"it came over the channel of {channel!r} in the name of {answer.client_id!r}"
    result = answer.result
    if type(result) is not LocalResult:
        return f"its result is no LocalResult but a {type(result).__name__}"
    wanted: dict[str, tuple[Any, dict[str, Any]]] = {
        "a string": (_is_text, {"nonce": answer.nonce}),
        "an integer, at least 0": (
            _is_count,
            {
                "sequence": answer.sequence,
                "version": answer.version,
                "num_data": answer.num_data,
                "steps": result.steps,
                "skipped": result.skipped,
            },
        ),
        "a number that is not infinite": (
            _is_number,
            {"free_energy": result.free_energy, **_named(result.diagnostics)},
        ),
        "a factor or None": (_is_factor_or_none, {"hyperparameters": answer.hyperparameters}),
    }
    for what, (holds, fields) in wanted.items():
        for name, value in fields.items():
            if not holds(value):
                return f"its {name} is {value!r:.100}, wanted {what}"
    return None


def _named(diagnostics: Any) -> dict[str, Any]:
    if type(diagnostics) not in (dict, MappingProxyType) or not all(map(_is_text, diagnostics)):
        return {"diagnostics": diagnostics}
    return {f"diagnostic {name!r}": value for name, value in diagnostics.items()}


def _is_text(value: Any) -> bool:
    """A string that can be written down, as one with half a surrogate pair cannot."""
    return type(value) is str and printable(value) == value


def _is_count(value: Any) -> bool:
    is_integer = type(value) is int or type(value) in _INTEGERS
    return is_integer and int(value) >= 0


def _is_number(value: Any) -> bool:
    """A number of Python or NumPy itself, and of no class beside; NaN where a rule has none."""
    is_number = type(value) in (int, float, bool) or type(value) in (*_INTEGERS, *_FLOATS)
    return is_number and not bool(np.isinf(float(value)))


def _is_factor_or_none(value: Any) -> bool:
    return value is None or type(value) is Factor
