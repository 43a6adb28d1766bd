"""The server: a ledger of factors by client, what has been asked, and what is accepted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from streaming_gp import serialization
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import ExponentialFamily, Factor
from streaming_gp.pvi import model_parameters
from streaming_gp.pvi.checks import Checks
from streaming_gp.pvi.client import Client
from streaming_gp.pvi.damping import DampingRule
from streaming_gp.pvi.ledger import Ledger
from streaming_gp.pvi.messages import Answer, Ask
from streaming_gp.pvi.properness import BacktrackDamping, PropernessPolicy
from streaming_gp.pvi.server_state import VALUE_TYPES, Outcome, ServerState


class Server:
    """Holds ``q ∝ prior × Π_k t_k`` for clients that may be anywhere (PVI 2018, figure 1).

    A factor is replaced, never added to; an answer that is refused, or that comes a second time,
    leaves everything as it was.

    :param prior: over the parameters.
    :param clients: by name, as ``make_clients`` gives them.
    :param policy: what to do about improper cavities and posteriors.
    :param checks: what answers must be. If None, the ``checks`` that a client's model has, or its
        rule, or the defaults.
    :param seed: of all questions' seeds.
    :raises InvalidDataError: if there are no clients.
    """

    def __init__(
        self,
        prior: ExponentialFamily,
        clients: Mapping[str, Client],
        policy: PropernessPolicy | None = None,
        checks: Checks | None = None,
        seed: int = 0,
    ) -> None:
        if not clients:
            raise InvalidDataError("no clients: a server needs at least one")
        self.clients = MappingProxyType(dict(clients))
        self.policy = policy or BacktrackDamping(cavities=False)
        self._checks = checks
        self.seed = seed
        self._outstanding: dict[str, int] = {}
        self._kept: dict[str, float] = {}
        self._take(ServerState(prior.as_arrays()))

    def _take(self, state: ServerState) -> None:
        self._ledger: Ledger[Any] = Ledger(state.prior, MappingProxyType(dict(state.factors)))
        self._version = state.version
        self._sequences = dict(state.sequences)
        self._memory = state.memory
        self.history = state.history
        self.hyperparameters = state.hyperparameters
        self._gradients: dict[str, np.ndarray] = {}

    # ---- what it holds ----

    @property
    def ledger(self) -> Ledger[Any]:
        """Prior and factors."""
        return self._ledger

    @property
    def prior(self) -> Any:
        """p(θ)."""
        return self._ledger.prior

    @property
    def posterior(self) -> Any:
        """q(θ), normalised."""
        return self._ledger.posterior

    @property
    def factors(self) -> Mapping[str, Factor]:
        """By client, in order of arrival."""
        return self._ledger.factors

    @property
    def version(self) -> int:
        """How often the posterior has changed."""
        return self._version

    def cavity(self, client_id: str) -> Any:
        """Prior times all factors but this client's.

        :raises InvalidDataError: if there is no such client.
        :raises ImproperError: if that is no distribution.
        """
        self._require_client(client_id)
        return self._ledger.cavity(client_id)

    def checks_of(self, client_id: str) -> Checks:
        """The limits of this client's answers."""
        client = self.clients[client_id]
        own: Checks | None = getattr(client.model, "checks", None)
        return self._checks or own or getattr(client.update, "checks", None) or Checks()

    def remove(self, client_id: str) -> None:
        """Forget what a client has said: its factor becomes one.

        :raises InvalidDataError: if it has no factor.
        :raises ImproperError: if the rest is no distribution; nothing has changed then.
        """
        if client_id not in self.factors:
            raise InvalidDataError(f"no factor {client_id!r}: there are {list(self.factors)}")
        self._commit(self._ledger.without(client_id))
        self._outstanding.pop(client_id, None)

    def warm_start(self, q: ExponentialFamily) -> None:
        """Begin at q: every client gets an equal share of ``q / prior`` as its factor.

        :raises InvalidDataError: if there are factors already, or q is of another family or shape.
        """
        if self.factors:
            raise InvalidDataError("a warm start is for a server without factors")
        shapes = [np.shape(eta) for eta in q.natural], [np.shape(eta) for eta in self.prior.natural]
        if type(q) is not type(self.prior) or shapes[0] != shapes[1]:
            raise InvalidDataError(
                f"wanted a {type(self.prior).__name__} of shapes {shapes[1]}, got a "
                f"{type(q).__name__} of shapes {shapes[0]}"
            )
        share = ((q / self.prior) ** (1.0 / len(self.clients))).as_arrays()
        factors = MappingProxyType(dict.fromkeys(self.clients, share))
        self._commit(Ledger(self.prior, factors))

    def learn_prior(self, prior: ExponentialFamily) -> None:
        """Replace the prior, keeping all factors (see :mod:`streaming_gp.pvi.hyperparameters`).

        :raises ImproperError: if the posterior under it is no distribution.
        """
        self._commit(Ledger(prior.as_arrays(), self.factors))

    def begin_hyperparameters(self) -> None:
        """From now on questions carry the likelihood's parameters, and answers their gradients.

        :raises InvalidDataError: if the clients' model has none to train.
        """
        if self.hyperparameters is None:
            self.hyperparameters = model_parameters.values(self._any_model())

    def step_hyperparameters(self, learning_rate: float) -> float:
        """Go along the gradient that the newest answers of all clients add up to, per data point.

        :returns: its norm before the step.
        """
        known = {name: self.clients[name].num_data for name in self._gradients}
        if self.hyperparameters is None or not known:
            return float("nan")
        mean = np.sum(list(self._gradients.values()), axis=0) / sum(known.values())
        self.hyperparameters = self.hyperparameters + learning_rate * mean
        model_parameters.set_values(self._any_model(), self.hyperparameters)
        return float(np.linalg.norm(mean))

    def _any_model(self) -> Any:
        """The clients' model, which they share in this process."""
        return next(iter(self.clients.values())).model

    # ---- questions and answers ----

    def ask(self, client_id: str) -> tuple[Ask, float]:
        """The next question to a client, and the share of its factor that is taken out of q.

        An earlier question to the same client is void from now on.

        :raises InvalidDataError: if there is no such client.
        :raises ImproperError: as the policy decides.
        """
        self._require_client(client_id)
        old = self.factors.get(client_id)
        removed = self.policy.removed_fraction(self._ledger, client_id)
        sequence = self._sequences.get(client_id, -1) + 1
        self._sequences[client_id] = self._outstanding[client_id] = sequence
        own = None if old is None else (old if removed == 1.0 else (old**removed).as_arrays())
        seed = self._seed(client_id, sequence)
        ask = Ask(
            client_id, sequence, self._version, self.posterior, own, seed, not self.factors,
            self.hyperparameters,
        )  # fmt: skip
        self._kept[client_id] = 1.0 - removed
        return ask, removed

    def accept(
        self,
        answers: Iterable[Answer],
        rule: DampingRule,
        progress: float = 0.0,
        share: float = 1.0,
    ) -> Outcome:
        """Validate answers, and put those that pass into the ledger, all at once.

        :param rule: how proposals enter the ledger.
        :param progress: share of all rounds that is over.
        :param share: of the full step.
        """
        refused: dict[str, str] = {}
        proposals: dict[str, Answer] = {}
        for answer in answers:
            objection = self._objection(answer, rule, share)
            if objection is None:
                proposals[answer.client_id] = answer
                del self._outstanding[answer.client_id]
            else:
                refused[answer.client_id] = objection
        if not proposals:
            return Outcome(refused, (), float("nan"), 1.0, 0)
        used = self._step(proposals, rule, progress, share)
        self._gradients |= {n: a.gradient for n, a in proposals.items() if a.gradient is not None}
        stale = [self._version - answer.version for answer in proposals.values()]
        if used > 0.0:
            self._version += 1
        free_energy = float(sum(answer.free_energy for answer in proposals.values()))
        skipped = sum(answer.skipped for answer in proposals.values())
        return Outcome(refused, tuple(proposals), free_energy, used / share, max(stale), skipped)

    def _step(
        self, proposals: Mapping[str, Answer], rule: DampingRule, progress: float, share: float
    ) -> float:
        """Take the step that the policy allows; returns its share."""
        factors = {name: self._whole(answer) for name, answer in proposals.items()}

        def replaced(size: float) -> Ledger[Any]:
            return rule.mixed(self._ledger, factors, size, progress, self._memory)[0]

        used = self.policy.damping(replaced, share)
        if used > 0.0:
            ledger, memory = rule.mixed(self._ledger, factors, used, progress, self._memory)
            self._ledger, self._memory = _in_arrays(ledger, factors), memory
        return used

    def _whole(self, answer: Answer) -> Factor:
        """The client's factor with what stayed in the cavity (see ``LargestProperFraction``)."""
        kept = self._kept[answer.client_id]
        old = self.factors.get(answer.client_id)
        return answer.factor if old is None or kept == 0.0 else answer.factor * old**kept

    def _objection(self, answer: Answer, rule: DampingRule, share: float) -> str | None:
        name = answer.client_id
        if name not in self.clients:
            return "there is no such client"
        if self._outstanding.get(name) != answer.sequence:
            return f"question {answer.sequence} is not open: answered before, or out of date"
        try:
            objection = self._objection_to_content(answer)
        except Exception as error:  # an answer may hold anything
            return f"it cannot be read: {type(error).__name__}: {error}"
        if objection is not None:
            return objection
        one = {name: self._whole(answer)}
        # at progress 0, where steps are largest: a rule that remembers would else take in late
        # what it had refused early
        after, _ = rule.mixed(self._ledger, one, share, 0.0, self._memory)
        return self.checks_of(name).objection_to_step(self._ledger, after)

    def _objection_to_content(self, answer: Answer) -> str | None:
        checks = self.checks_of(answer.client_id)
        num_data = self.clients[answer.client_id].num_data
        objection = checks.objection(self._ledger, answer.factor, num_data)
        if objection is None and self.hyperparameters is not None:
            objection = checks.objection_to_gradient(answer.gradient, self.hyperparameters)
        return objection

    def _require_client(self, client_id: str) -> None:
        if client_id not in self.clients:
            raise InvalidDataError(f"no client {client_id!r}: there are {list(self.clients)}")

    def _seed(self, client_id: str, sequence: int) -> int:
        entropy = [self.seed, list(self.clients).index(client_id), sequence]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)

    def _commit(self, ledger: Ledger[Any]) -> None:
        _ = ledger.posterior
        self._ledger, self._version = ledger, self._version + 1

    # ---- files ----

    @property
    def state(self) -> ServerState:
        """All that it knows, as a value."""
        return ServerState(
            self.prior, dict(self.factors), self._version, dict(self._sequences),
            self._memory, self.history, self.hyperparameters,
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write factors, versions and history to a file, atomically. No data are in it.

        :raises OSError: if the file cannot be written; a file that was there is as it was.
        """
        serialization.write(path, "federated server", self.state, VALUE_TYPES)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        prior: ExponentialFamily,
        clients: Mapping[str, Client],
        policy: PropernessPolicy | None = None,
        checks: Checks | None = None,
        seed: int = 0,
    ) -> Server:
        """A server that goes on from a file; questions still open when it was written are void.

        :param prior: of the model, to compare with: a prior that was learned is in the file.
        :param clients: those that go on; they must include all that have factors.
        :raises FileFormatError: if the file is damaged, foreign or of a later version.
        :raises InvalidDataError: if prior or clients do not fit the file.
        """
        state = serialization.read(path, "federated server", VALUE_TYPES)
        server = cls(prior, clients, policy, checks, seed)
        _require_fit(state, server)
        server._take(state)
        if state.hyperparameters is not None:
            model_parameters.set_values(server._any_model(), state.hyperparameters)
        return server


def _require_fit(state: ServerState, server: Server) -> None:
    shapes = [
        (type(p).__name__, [np.shape(eta) for eta in p.natural])
        for p in (state.prior, server.prior)
    ]
    if shapes[0] != shapes[1]:
        raise InvalidDataError(f"the file is of a {shapes[0]}, but the prior is a {shapes[1]}")
    missing = sorted(set(state.factors) - set(server.clients))
    if missing:
        raise InvalidDataError(f"the file has factors of {missing}, which are not among clients")


def _in_arrays(ledger: Ledger[Any], names: Iterable[str]) -> Ledger[Any]:
    """Factors that changed, held in NumPy arrays."""
    for name in names:
        ledger = ledger.replaced(name, ledger.factors[name].as_arrays())
    return ledger
