"""What travels between server and clients: values of plain arrays, natural parameters only."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from streaming_gp import serialization
from streaming_gp.pvi.ledger import Factor, Posterior
from streaming_gp.pvi.task import LocalResult
from streaming_gp.serialization import storable

KIND, QUESTION = "answer of a client", "question to a client"


@storable
@dataclass(frozen=True, eq=False)
class Ask:
    """The server asks one client to refine its factor.

    :param client_id: The client that is asked.
    :param sequence: The number of this question to this client; an answer carries it back.
    :param version: The version of the server's posterior.
    :param posterior: q now.
    :param own: The part of q that the client takes out for its cavity; None if it has no factor.
    :param seed: The seed of everything random in the local fit.
    :param untouched: Whether q is still the prior, so that a fit had better start elsewhere.
    :param hyperparameters: The likelihood's parameters, unconstrained, where they are learned: [H].
    :param nonce: What nobody can guess who has not been asked; an answer carries it back.
    :param prior: The server's prior, where it is another one than the model's.
    """

    client_id: str
    sequence: int
    version: int
    posterior: Posterior
    own: Factor | None
    seed: int
    untouched: bool
    hyperparameters: np.ndarray | None = None
    nonce: str = ""
    prior: Posterior | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the arrays in it."""
        parts = [self.posterior, self.own, self.prior]
        return sum(part.num_bytes for part in parts if part is not None)


@storable
@dataclass(frozen=True, eq=False)
class Answer:
    """A client's proposal for its factor.

    :param client_id: The client that answers.
    :param sequence: The number of the question.
    :param version: The version of the posterior that the factor was fitted under.
    :param num_data: The number of data points that it speaks for; 0 where it does not say.
    :param result: What the local fit arrived at; its factor is as it was before any damping.
    :param hyperparameters: What its data say of ε after the fit, where ε is learned: a ``Normal``
        factor of unconstrained numbers [H].
    :param nonce: That of the question.
    """

    client_id: str
    sequence: int
    version: int
    num_data: int
    result: LocalResult
    hyperparameters: Factor | None = None
    nonce: str = ""

    @property
    def num_bytes(self) -> int:
        """Size of the arrays in its factor; nothing if that is none, or broken."""
        with suppress(Exception):
            return int(self.result.factor.num_bytes)
        return 0


@storable
@dataclass(frozen=True)
class Failure:
    """A client's news that there will be no answer.

    :param reason: What went wrong.
    """

    reason: str


def encoded_question(ask: Ask) -> bytes:
    """A question in the package's own format.

    :raises InvalidDataError: if it holds what files do not hold.
    """
    plain = replace(ask, posterior=ask.posterior.as_arrays())
    return serialization.packed(QUESTION, plain, serialization.registered_classes())


def decoded_question(message: bytes) -> Ask:
    """The question that :func:`encoded_question` made a message of.

    :raises FileFormatError: if the message is damaged, foreign, or of another version.
    """
    ask: Ask = serialization.unpacked(
        "the question", message, QUESTION, serialization.registered_classes(), Ask
    )
    return ask


def encoded(answer: Answer | Failure) -> bytes:
    """An answer in the package's own format, which holds values and nothing that can run.

    :raises InvalidDataError: if it holds what files do not hold.
    """
    return serialization.packed(KIND, answer, serialization.registered_classes())


def decoded(message: bytes) -> Answer | Failure:
    """The answer that :func:`encoded` made a message of.

    :raises FileFormatError: if the message is damaged, foreign, or of another version.
    """
    answer: Answer | Failure = serialization.unpacked(
        "the message", message, KIND, serialization.registered_classes()
    )
    return answer
