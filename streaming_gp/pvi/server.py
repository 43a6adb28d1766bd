"""The server: a ledger of factors by client, what has been asked, and what is accepted."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from streaming_gp import serialization
from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.inputs import make_read_only, require_count
from streaming_gp.pvi import model_parameters
from streaming_gp.pvi import step as steps
from streaming_gp.pvi.acceptance import Acceptance, OpenQuestion, staleness
from streaming_gp.pvi.checks import Checks
from streaming_gp.pvi.client import Client
from streaming_gp.pvi.damping import DampingRule, State
from streaming_gp.pvi.history import History, Outcome
from streaming_gp.pvi.ledger import Factor, Ledger, Posterior
from streaming_gp.pvi.messages import Ask
from streaming_gp.pvi.properness import BacktrackDamping, PropernessPolicy
from streaming_gp.pvi.reading import read
from streaming_gp.pvi.server_state import ServerState, require_fit
from streaming_gp.pvi.site import Clients, Site, by_name
from streaming_gp.pvi.task import told_prior

KIND = "federated server"


class Server:
    """Holds ``q ∝ prior × Π_k t_k`` for clients that may be anywhere (PVI 2018, figure 1).

    A factor is replaced, never added to; an answer that is refused, or that comes a second time,
    leaves everything as it was.

    :param prior: The prior over the parameters, or over functions and hyperparameters.
    :param clients: The clients, as ``make_clients`` gives them, or sites.
    :param policy: What to do about improper cavities and posteriors.
    :param checks: What answers must be. If None, the ``checks`` that a client's model has, or its
        rule, or the defaults.
    :param seed: The seed that all questions' seeds are made from.
    :raises InvalidDataError: if there are no clients, or the prior is not of the kind that their
        models have.

    :ivar ledger: Prior and factors.
    :ivar version: The number of times that the posterior has changed.
    :ivar history: The rounds so far, which :func:`~streaming_gp.pvi.fit` extends.
    :ivar hyperparameters: The likelihood's parameters, unconstrained, where they are learned: [H].
    :ivar hyperparameter_factors: What the newest answer of each client says of them, by client.
    """

    ledger: Ledger[Any]
    version: int
    history: History
    hyperparameters: np.ndarray | None
    hyperparameter_factors: dict[str, Factor]
    _sequences: dict[str, int]
    _state: State  # of the damping rule

    def __init__(
        self,
        prior: Posterior,
        clients: Clients | Iterable[Client | Site],
        policy: PropernessPolicy | None = None,
        checks: Checks | None = None,
        seed: int = 0,
    ) -> None:
        self.clients = MappingProxyType(by_name(clients))
        _require_prior(prior, self.clients)
        self.policy = policy or BacktrackDamping(cavities=False)
        self.checks = checks
        require_count("seed", seed)
        self.seed = seed
        self._open: dict[str, OpenQuestion] = {}
        self._restore(ServerState(prior.as_arrays()))

    # ---- what it holds ----

    @property
    def prior(self) -> Any:
        """p(θ)."""
        return self.ledger.prior

    @property
    def posterior(self) -> Any:
        """q(θ), normalised; its arrays are read-only, as all that the ledger holds."""
        make_read_only(self.ledger.posterior)
        return self.ledger.posterior

    @property
    def factors(self) -> Mapping[str, Factor]:
        """The factor of each client, in order of arrival."""
        return self.ledger.factors

    def cavity(self, client_id: str) -> Any:
        """Prior times all factors but this client's.

        :raises InvalidDataError: if there is no such client.
        :raises ImproperError: if that is no distribution.
        """
        self._require_client(client_id)
        return self.ledger.cavity(client_id)

    def adopt(self, ledger: Ledger[Any]) -> None:
        """Hold this ledger from now on: a new version.

        Open questions to clients whose factors change with it are void.

        :raises ImproperError: if its posterior is no distribution; nothing has changed then.
        """
        _ = ledger.posterior
        make_read_only(dict(ledger.factors))
        old, new = self.factors, ledger.factors
        self._open = {k: q for k, q in self._open.items() if old.get(k) is new.get(k)}
        self.ledger, self.version = ledger, self.version + 1

    def remove(self, client_id: str) -> None:
        """Forget what a client has said: its factor becomes one.

        :raises InvalidDataError: if it has no factor.
        :raises ImproperError: if the rest is no distribution; nothing has changed then.
        """
        if client_id not in self.factors:
            raise InvalidDataError(f"no factor {client_id!r}: there are {list(self.factors)}")
        self.adopt(self.ledger.without(client_id))
        self.hyperparameter_factors.pop(client_id, None)

    def warm_start(self, q: Any) -> None:
        """Begin at q: every client gets an equal part of ``q / prior`` as its factor.

        :raises InvalidDataError: if there are factors already, or q is of another family or shape.
        """
        if self.factors:
            raise InvalidDataError("a warm start is for a server without factors")
        if q.form != self.prior.form:
            raise InvalidDataError(f"wanted a {self.prior.form}, got a {q.form}")
        part = ((q / self.prior) ** (1.0 / len(self.clients))).as_arrays()
        self.adopt(self.ledger.with_factors(dict.fromkeys(self.clients, part)))

    # ---- questions and answers ----

    def ask(self, client_id: str) -> tuple[Ask, float]:
        """The next question to a client, and the fraction of its factor that is taken out of q.

        An earlier question to the same client is void from now on.

        :raises InvalidDataError: if there is no such client.
        :raises ImproperError: as the policy decides.
        """
        self._require_client(client_id)
        question = steps.ask(self.ledger, client_id, self.policy)
        sequence = self._sequences.get(client_id, -1) + 1
        self._sequences[client_id] = sequence
        nonce = secrets.token_hex(16)
        fraction = question.removed_fraction
        self._open[client_id] = OpenQuestion(sequence, fraction, self.version, nonce)
        ask = Ask(
            client_id, sequence, self.version, question.posterior, question.own,
            seed_of(self.seed, list(self.clients).index(client_id), sequence),
            not self.factors, self.hyperparameters, nonce,
            told_prior(self.clients[client_id], self.prior),
        )  # fmt: skip
        return ask, fraction

    def accept(
        self,
        answers: Iterable[Any],
        rule: DampingRule,
        progress: float = 0.0,
        share: float = 1.0,
        staleness_power: float = 0.0,
    ) -> Outcome:
        """Validate answers, and put those that pass into the ledger, all at once.

        Whatever comes as an answer is refused with the reason, or accepted; nothing of it raises.

        :param answers: Deliveries of an engine, or answers of clients in this process.
        :param rule: How proposals enter the ledger.
        :param progress: The fraction of all rounds that is over, in [0, 1).
        :param share: The share of the full step, in (0, 1].
        :param staleness_power: Where s versions have overtaken the oldest answer, the share is
            multiplied by (1 + s)^−power.
        """
        readings = [read(one) for one in answers]
        stale = staleness(readings, self._open, self.version)
        share *= (1.0 + stale) ** -staleness_power
        state = rule.init(self.ledger) if self._state is None else self._state
        verdict = Acceptance(
            self.clients, self._open, self.checks, self.ledger, rule, share,
            state, self.hyperparameters,
        ).verdict(readings)  # fmt: skip
        accepted, proposals = verdict.accepted, verdict.proposals
        if not accepted:
            return Outcome(verdict.refused, {})
        done = steps.replace(self.ledger, proposals, rule, self.policy, share, progress, state)
        self._open = {name: q for name, q in self._open.items() if name not in accepted}
        if done.share > 0.0:
            make_read_only({name: done.ledger.factors[name] for name in accepted})
            self.ledger, self._state = done.ledger, done.state
            self.version += 1
        if self.hyperparameters is not None:
            learned = {name: answer.hyperparameters for name, answer in accepted.items()}
            self.hyperparameter_factors |= {k: f for k, f in learned.items() if f is not None}
        results = {name: answer.result for name, answer in accepted.items()}
        return Outcome(verdict.refused, results, done.share / share, stale)

    def _require_client(self, client_id: str) -> None:
        if client_id not in self.clients:
            raise InvalidDataError(f"no client {client_id!r}: there are {list(self.clients)}")

    # ---- files ----

    @property
    def state(self) -> ServerState:
        """All that it knows, as a value."""
        return ServerState(
            self.prior, dict(self.factors), self.version, dict(self._sequences),
            self._state, self.history, self.hyperparameters, dict(self.hyperparameter_factors),
        )  # fmt: skip

    def _restore(self, state: ServerState) -> None:
        make_read_only((state.prior, dict(state.factors)))
        self.ledger = Ledger(state.prior, MappingProxyType(dict(state.factors)))
        self.version = state.version
        self.history = state.history
        self.hyperparameters = state.hyperparameters
        self.hyperparameter_factors = dict(state.hyperparameter_factors)
        self._sequences = dict(state.sequences)
        self._state = state.damping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write factors, versions and history to a file, atomically. No data are in it.

        :raises OSError: if the file cannot be written; a file that was there is as it was.
        """
        serialization.write(path, KIND, self.state, serialization.registered_classes())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        prior: Posterior,
        clients: Clients | Iterable[Client | Site],
        policy: PropernessPolicy | None = None,
        checks: Checks | None = None,
        seed: int = 0,
    ) -> Server:
        """A server that goes on from a file; questions still open when it was written are void.

        :param prior: The model's prior, to compare with: a prior that was learned is in the file.
        :param clients: The clients that go on; they must include all that have factors.
        :raises FileFormatError: if the file is damaged, foreign or of another version.
        :raises InvalidDataError: if prior or clients do not fit the file.
        """
        state = serialization.read(path, KIND, serialization.registered_classes(), ServerState)
        server = cls(prior, clients, policy, checks, seed)
        try:
            require_fit(state, server.prior, server.clients)
            server._restore(state)
            _ = server.posterior
        except InvalidDataError:
            raise
        except Exception as error:  # what passes for numbers may be none
            raise FileFormatError(f"{path} holds no sound server: {error}") from error
        if state.hyperparameters is not None:
            model = next(iter(server.clients.values())).model
            model_parameters.set_values(model, state.hyperparameters)
        return server


def seed_of(*numbers: int) -> int:
    """A seed for these numbers: another one for any other numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def _require_prior(prior: Posterior, clients: Clients) -> None:
    """Each model is asked once: most clients share one."""
    models = {id(client.model): name for name, client in clients.items()}
    for name in models.values():
        form = clients[name].model.prior().form
        if form != prior.form:
            raise InvalidDataError(
                f"the model of client {name!r} has as prior a {form}, "
                f"but the prior is a {prior.form}"
            )
