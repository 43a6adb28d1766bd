"""The words in which a client says that it does not answer, and nothing of its data.

An error's text is data: ``got nan at row 3`` tells what the row was. What leaves a site is a code
of a fixed list, and the coordinator knows the sentence that belongs to it. The text, with all that
it was raised from, stays in the site's own log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from streaming_gp.errors import InvalidDataError
from streaming_gp.serialization import storable

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
    """A question that a client does not answer, by a code of the list.

    :param code: The code.
    :param detail: What its own log says besides.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{CODES[code]}: {detail}" if detail else CODES[code])
        self.code = code


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

    def for_message(self) -> Failure:
        """What may leave the process."""
        return self if self.is_open else replace(self, text="")


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
