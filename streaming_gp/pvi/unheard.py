"""Clients that fail or are refused: when a run says so, and when it ends for it."""

from __future__ import annotations

import warnings
from itertools import islice

from streaming_gp.errors import NoAnswerError
from streaming_gp.pvi.history import Round
from streaming_gp.pvi.reading import says_it_does_not_fit
from streaming_gp.pvi.server import Server

NAMED = 3
"""So many clients are named where all went wrong."""
SILENT = 3
"""So many answers of a client that was never heard make a warning."""


def warn_of_failures(server: Server, rounds: tuple[Round, ...]) -> None:
    """After each round of a run: where nobody is heard, and of clients that never are."""
    _warn_if_unheard(rounds)
    _warn_of_the_silent(server, rounds)


def _warn_if_unheard(rounds: tuple[Round, ...]) -> None:
    """At the first round without an accepted answer, and not again."""
    if not rounds[-1].accepted and all(one.accepted for one in rounds[:-1]):
        warnings.warn(f"no answer was accepted in {_what_came(rounds[-1])}", stacklevel=4)


def _warn_of_the_silent(server: Server, rounds: tuple[Round, ...]) -> None:
    """Of clients without a factor after a third failure, while others are heard."""
    if not any(one.accepted for one in rounds):
        return
    for name, why in rounds[-1].unheard.items():
        silent = (one for one in rounds if name in one.refused or name in one.failed)
        number = len(list(islice(silent, SILENT + 1)))  # no need to look on in a long run
        if number == SILENT and name not in server.factors:
            warnings.warn(
                f"nothing has been learned from the data of {name!r}: its first {SILENT} answers "
                f"failed or were refused; the last time: {why}",
                stacklevel=4,
            )


def warn_of_the_unheard(server: Server, rounds: tuple[Round, ...]) -> None:
    """At the end, of clients that have no factor yet and were not warned of."""
    reasons: dict[str, list[str]] = {}
    for one in rounds:
        for name, why in one.unheard.items():
            reasons.setdefault(name, []).append(why)
    for name, whys in reasons.items():
        if name not in server.factors and len(whys) < SILENT:
            warnings.warn(
                f"nothing has been learned from the data of {name!r}, none of whose answers was "
                f"taken; the last time: {whys[-1]}",
                stacklevel=3,
            )


def none_fits(server: Server, rounds: tuple[Round, ...]) -> bool:
    """Whether each client has failed by a mistake in the set-up, and none has ever answered.

    All clients have to say so, not only those of one round: where a round asks a few, a single one
    that is broken or hostile would else end the run of all.
    """
    if any(one.accepted or one.refused for one in rounds):
        return False
    failed = {name: why for one in rounds for name, why in one.failed.items()}
    return failed.keys() == server.clients.keys() and all(
        map(says_it_does_not_fit, failed.values())
    )


def require_heard(rounds: tuple[Round, ...]) -> None:
    """Refuse a run in which nobody was heard.

    :raises NoAnswerError: if no answer was accepted in any round.
    """
    if not any(one.accepted for one in rounds):
        raise NoAnswerError(
            f"no answer was accepted in any of {len(rounds)} rounds, and the posterior is what it "
            f"was; in {_what_came(rounds[-1])}"
        )


def _what_came(one: Round) -> str:
    """What went wrong with the first clients of a round."""
    reasons = [f"{name!r} failed: {why}" for name, why in one.failed.items()]
    reasons += [f"{name!r} was refused: {why}" for name, why in one.refused.items()]
    left = len(reasons) - NAMED
    more = [f"and {left} more"] if left > 0 else []
    return f"round {one.round}: " + "; ".join([*reasons[:NAMED], *more])
