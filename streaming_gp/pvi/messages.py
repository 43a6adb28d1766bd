"""What travels between server and clients: values of plain arrays, natural parameters only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streaming_gp.expfam import ExponentialFamily, Factor


@dataclass(frozen=True, eq=False)
class Ask:
    """The server asks one client to refine its factor.

    :param client_id: who is asked.
    :param sequence: number of this question to this client; an answer carries it back.
    :param version: of the server's posterior.
    :param posterior: q now.
    :param own: the part of q that the client takes out for its cavity; None if it has no factor.
    :param seed: of everything random in the local fit.
    :param untouched: whether q is still the prior, so that a fit had better start elsewhere.
    :param hyperparameters: of the likelihood, unconstrained, where they are learned: [H].
    """

    client_id: str
    sequence: int
    version: int
    posterior: ExponentialFamily
    own: Factor | None
    seed: int
    untouched: bool
    hyperparameters: np.ndarray | None = None

    @property
    def num_bytes(self) -> int:
        """Of the arrays in it."""
        return _num_bytes(self.posterior) + (0 if self.own is None else _num_bytes(self.own))


@dataclass(frozen=True, eq=False)
class Answer:
    """A client's proposal for its factor.

    :param client_id: whose.
    :param sequence: of the question.
    :param version: of the posterior that it was fitted under.
    :param factor: the factor that the fit arrived at, before any damping.
    :param num_data: data points it speaks for.
    :param free_energy: local free energy in nats, NaN where the rule has none.
    :param steps: of the local optimiser.
    :param skipped: sites that an improper cavity kept as they were.
    :param gradient: ``E_q[∂ log p(y_k | θ, ε)/∂ε]`` at the server's q, where ε is learned: [H].
    """

    client_id: str
    sequence: int
    version: int
    factor: Factor
    num_data: int
    free_energy: float = float("nan")
    steps: int = 0
    skipped: int = 0
    gradient: np.ndarray | None = None

    @property
    def num_bytes(self) -> int:
        """Of the arrays in it."""
        return _num_bytes(self.factor)


def _num_bytes(parameters: ExponentialFamily | Factor) -> int:
    return sum(np.asarray(eta).nbytes for eta in parameters.natural)
