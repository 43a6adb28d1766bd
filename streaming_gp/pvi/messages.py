"""What travels between server and clients: values of plain arrays, natural parameters only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streaming_gp.pvi.ledger import Factor, Posterior
from streaming_gp.pvi.task import LocalResult


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
    """

    client_id: str
    sequence: int
    version: int
    posterior: Posterior
    own: Factor | None
    seed: int
    untouched: bool
    hyperparameters: np.ndarray | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the arrays in it."""
        return self.posterior.num_bytes + (0 if self.own is None else self.own.num_bytes)


@dataclass(frozen=True, eq=False)
class Answer:
    """A client's proposal for its factor.

    :param client_id: The client that answers.
    :param sequence: The number of the question.
    :param version: The version of the posterior that the factor was fitted under.
    :param num_data: The number of data points that it speaks for.
    :param result: What the local fit arrived at; its factor is as it was before any damping.
    :param hyperparameters: What its data say of ε after the fit, where ε is learned: a ``Normal``
        factor of unconstrained numbers [H].
    """

    client_id: str
    sequence: int
    version: int
    num_data: int
    result: LocalResult
    hyperparameters: Factor | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the arrays in its factor; nothing if that is none."""
        factor = self.result.factor
        return factor.num_bytes if isinstance(factor, Factor) else 0
