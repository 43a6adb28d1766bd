"""The server: a ledger of factors by client, and the round of PVI 2018, algorithm 1, around it."""

from __future__ import annotations

import os
import secrets
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from streaming_gp import serialization
from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.expfam import ExponentialFamily, Normal
from streaming_gp.inputs import make_read_only, require_count, require_strategy, typed
from streaming_gp.pvi import guards
from streaming_gp.pvi import step as algorithm
from streaming_gp.pvi.client import Client, Clients, Site, by_name, require_client
from streaming_gp.pvi.damping import DampingRule, State, damped
from streaming_gp.pvi.engine import Session
from streaming_gp.pvi.guards import Checks, FailedError, RefusedError
from streaming_gp.pvi.history import History, Round
from streaming_gp.pvi.ledger import Factor, Ledger, Posterior
from streaming_gp.pvi.model import set_values, values
from streaming_gp.pvi.step import BacktrackDamping, PropernessPolicy
from streaming_gp.pvi.task import EPSILON, Delivery, LocalResult, LocalTask, have_same_natural
from streaming_gp.serialization import storable

KIND = "federated server"
SILENCES = 3
"""So often may nothing come of a client before it is dropped."""
SHORTEST_STEP = 1e-3
"""Of an answer that has cost privacy, which is shortened where all of it would be improper."""
NOT_OPEN = "question {} is not open: answered before, or out of date"
Durations = float | Mapping[str, float] | None
"""The simulated seconds of a visit, for all or by client; None for those that it really takes. A
client that came later, and is not among them, has their mean."""


@storable
@typed
@dataclass(frozen=True, eq=False)
class ServerState:
    """All that a server knows, as a value: this is in its file. Fields are as those of the server.

    :param sequences: The number of the last question, by client.
    :param numbers: The number of each client, in the order in which they joined; none is given
        twice.
    :param run: Its name in questions, which no other server has.
    :param seed: The seed; None in files that are older than that.
    """

    prior: Posterior
    factors: Mapping[str, Factor] = field(default_factory=dict)
    version: int = 0
    sequences: Mapping[str, int] = field(default_factory=dict)
    damping: State = None
    history: History = field(default_factory=History)
    hyperparameters: np.ndarray | None = None
    hyperparameter_factors: Mapping[str, Factor] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    run: str = ""
    seed: int | None = None


class Server:
    """Holds ``q ∝ prior × Π_k t_k`` for clients that may be anywhere (PVI 2018, figure 1).

    A factor is replaced, never added to; an answer that is refused, or that comes a second time,
    leaves everything as it was. Clients join and leave at any time, also from other threads and in
    the middle of a run.

    :param prior: The prior over the parameters, or over functions and hyperparameters.
    :param clients: The clients, as ``make_clients`` gives them, or sites.
    :param policy: The policy on improper cavities and posteriors.
    :param checks: The limits of answers. If None, the ``checks`` that a client's model has, or its
        rule, or the defaults.
    :param seed: The seed that all questions' seeds are made from.
    :raises InvalidDataError: if there are no clients, or the prior is not of the kind that their
        models have.

    :ivar clients: The clients by name, read-only; what it shows follows who joins and leaves.
    :ivar ledger: Prior and factors.
    :ivar version: The number of times that the posterior has changed.
    :ivar history: The rounds so far, which :func:`~streaming_gp.pvi.fit` extends.
    :ivar hyperparameters: The likelihood's parameters, unconstrained, where they are learned: [H].
    :ivar hyperparameter_factors: The newest data term of each client of them, by client.
    :ivar open_tasks: The open question to each client that has one, without its arrays.
    :ivar damping: The state of the damping rule after its last step; None before the first.
    :ivar dropped: Clients that are asked no more in this run, as nothing came of them so often.
    :ivar failures: Why the newest question to a client came to nothing, by client: in full where
        that may be told in this process.

    >>> clients = sgp.pvi.make_clients(line, shards, sgp.pvi.AnalyticUpdate())
    >>> server = sgp.pvi.Server(line.prior(), clients)
    >>> sgp.pvi.fit(server, sgp.pvi.Sequential(), rounds=1).column("round")
    [1]
    """

    ledger: Ledger[Any]
    version: int
    history: History
    hyperparameters: np.ndarray | None
    hyperparameter_factors: dict[str, Factor]
    damping: State
    _sequences: dict[str, int]
    _numbers: dict[str, int]
    _run: str

    def __init__(
        self,
        prior: Posterior,
        clients: Clients | Iterable[Client | Site],
        policy: PropernessPolicy | None = None,
        checks: Checks | None = None,
        seed: int = 0,
    ) -> None:
        self._clients = by_name(clients)
        self.clients = MappingProxyType(self._clients)
        self._lock = threading.RLock()
        _require_prior(prior, self.clients)
        self.policy = BacktrackDamping(cavities=False) if policy is None else policy
        require_strategy("policy", self.policy, PropernessPolicy, "pvi.RaiseImproper()")
        if checks is not None:
            require_strategy("checks", checks, Checks, "pvi.Checks()")
        self.checks = checks
        require_count("seed", seed)
        self.seed = seed
        self.open_tasks: dict[str, LocalTask] = {}
        self.failures: dict[str, str] = {}
        self.dropped: set[str] = set()
        self._silences: dict[str, int] = {}
        self._restore(ServerState(prior.as_arrays(), run=secrets.token_hex(16), seed=seed))

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

        Open questions to clients whose factors change with it are void. With a factor that is gone
        goes what its client said of hyperparameters.

        :raises InvalidDataError: if its prior is of another form, or a new factor is none of it, or
            it has factors of who is no client, and none here either: of one that has left, which
            would come back so; nothing has changed then.
        :raises ImproperError: if its posterior is no distribution; nothing has changed then.
        """
        require_strategy("ledger", ledger, Ledger, "Server.ledger")
        with self._lock:
            old, new = self.factors, ledger.factors
            if ledger.prior.form != self.prior.form:
                raise InvalidDataError(
                    f"wanted a ledger of a {self.prior.form}, got one of a {ledger.prior.form}"
                )
            for name in [one for one in new if new[one] is not old.get(one)]:
                objection = ledger.prior.objection_to(new[name])
                if objection is not None:
                    raise InvalidDataError(f"the factor of {name!r}: {objection}")
            _ = ledger.posterior
            make_read_only(dict(new))
            strangers = sorted(new.keys() - old.keys() - self.clients.keys())
            if strangers:
                raise InvalidDataError(
                    f"the ledger has factors of {strangers}, which are no clients: add them, or "
                    "take Ledger.without them"
                )
            open_still = {k: t for k, t in self.open_tasks.items() if old.get(k) is new.get(k)}
            self.open_tasks = open_still
            for name in old.keys() - new.keys():
                self.hyperparameter_factors.pop(name, None)
            self.ledger, self.version = ledger, self.version + 1

    # ---- who takes part ----

    def knows(self, client_id: str) -> bool:
        """Whether there is a client of this name, or was one."""
        return client_id in self._numbers

    def add(self, client: Client | Site) -> None:
        """A client joins: it is asked from now on, and what was learned stays.

        Of one that had left and has a factor here still, that is its factor again.

        :raises InvalidDataError: if there is a client of this name, or the prior is not of the kind
            that its model has.
        """
        require_client(client)
        with self._lock:
            if client.client_id in self.clients:
                raise InvalidDataError(f"there is a client {client.client_id!r} already")
            _require_prior(self.prior, by_name([client]))
            self._clients[client.client_id] = client
            self._number(client.client_id)

    def remove(self, client_id: str) -> None:
        """A client leaves, and so does what it said: its factor becomes one.

        It is asked no more, and an answer that still comes of it is refused. Rounds of the others
        lead to where they would have led without it; its factor alone is gone at once.

        :raises InvalidDataError: if there is no such client, and no factor of that name.
        :raises ImproperError: if the rest is no distribution; nothing has changed then.
        """
        with self._lock:
            if client_id not in self.factors:
                self._require_client(client_id)
            else:
                self.adopt(self.ledger.without(client_id))
            self._clients.pop(client_id, None)
            for known in (self.open_tasks, self.hyperparameter_factors, self._silences):
                known.pop(client_id, None)
            self.dropped.discard(client_id)

    def warm_start(self, q: Any) -> None:
        """Begin at q: every client gets an equal part of ``q / prior`` as its factor.

        :raises InvalidDataError: if there are factors already, or q is of another family or shape.
        """
        if self.factors:
            raise InvalidDataError("a warm start is for a server without factors")
        require_strategy("q", q, Posterior, "net.initial(seed)")
        if q.form != self.prior.form:
            raise InvalidDataError(f"wanted a {self.prior.form}, got a {q.form}")
        part = ((q / self.prior) ** (1.0 / len(self.clients))).as_arrays()
        part = _as_wide(part, self.prior)
        self.adopt(self.ledger.with_factors(dict.fromkeys(self.clients, part)))

    # ---- PVI 2018, algorithm 1 ----

    def visit(
        self,
        session: Session,
        names: Sequence[str],
        rule: DampingRule,
        progress: float = 0.0,
        durations: Durations = None,
    ) -> Round:
        """Ask these clients under one posterior, and let answers enter the ledger together.

        :param session: The clients at work.
        :param names: The clients that are asked.
        :param rule: How their factors enter the ledger.
        :param progress: The fraction of all rounds that is over, in [0, 1).
        :param durations: The seconds of each visit on a simulated clock.
        :returns: the report of messages, of what was refused, and of the step.
        """
        # each client takes its own factor out of q: the cavity
        asked = self.put(session, names, durations)
        # each client fits q to its data under the cavity, and answers by the factor q / cavity
        deliveries = [self._unpacked(session.next()) for _ in range(asked.messages)]
        # in the server's order, so that rounding does not depend on who was first
        deliveries.sort(key=lambda delivery: self._numbers.get(delivery.client_id, -1))
        # the factors replace the old ones, damped
        return asked + self.accept(deliveries, rule, progress)

    def put(self, session: Session, names: Sequence[str], durations: Durations = None) -> Round:
        """Ask these clients, and do not wait. Who has left, or is dropped, is not asked.

        :param durations: The seconds of each visit on a simulated clock.
        :returns: the report of messages.
        :raises InvalidDataError: if a name was never a client's.
        """
        for name in names:
            if not self.knows(name):
                self._require_client(name)
        with self._lock:  # nobody leaves meanwhile
            there = [name for name in names if name in self.clients and name not in self.dropped]
            tasks = [self.ask(name) for name in there]
        for task in tasks:
            session.submit(task, duration_of(durations, task.client_id))
        return Round(
            messages=len(tasks),
            bytes_down=sum(task.num_bytes for task in tasks),
            removed_fraction=min((task.removed_fraction for task in tasks), default=1.0),
        )

    def ask(self, client_id: str) -> LocalTask:
        """The next question to a client. An earlier one to the same client is void from now on.

        :raises InvalidDataError: if there is no such client.
        :raises ImproperError: as the policy decides.
        """
        self._require_client(client_id)
        with self._lock:
            sequence = self._sequences.get(client_id, -1) + 1
            task = replace(
                algorithm.ask(self.ledger, client_id, self.policy),
                seed=seed_of(self.seed, self._number(client_id), sequence),
                given_prior=self._prior_for(self.clients[client_id]),
                client_id=client_id,
                sequence=sequence,
                version=self.version,
                nonce=secrets.token_hex(16),
                untouched=not self.factors,
                hyperparameters=self.hyperparameters,
                largest_answer=self.largest_answer(client_id),
                run=self._run,
            )
            self._sequences[client_id] = sequence
            self.open_tasks[client_id] = replace(task, posterior=None, own=None, given_prior=None)
            return task

    def largest_answer(self, client_id: str) -> int:
        """The number of bytes that an answer of this client has at most."""
        number = 0 if self.hyperparameters is None else len(self.hyperparameters)
        return guards.largest_answer(self.prior, self.clients[client_id], number)

    def accept(
        self,
        deliveries: Iterable[Any],
        rule: DampingRule,
        progress: float = 0.0,
        share: float = 1.0,
        staleness_power: float = 0.0,
    ) -> Round:
        """Put answers into the ledger, all at once; the guards refuse those that must not enter.

        Whatever comes as an answer is refused with the reason, or accepted; nothing of it raises.

        :param deliveries: Of an engine, or answers of clients in this process.
        :param rule: How proposals enter the ledger.
        :param progress: The fraction of all rounds that is over, in [0, 1).
        :param share: The share of the full step, in (0, 1].
        :param staleness_power: Where s versions have overtaken the oldest answer, the share is
            multiplied by (1 + s)^−power.
        :returns: the report of answers that were accepted, refused, or missing, and of the step.
        """
        with self._lock:
            deliveries = list(deliveries)
            answers, refused, report = self._receive(deliveries)
            self._note_silence(deliveries)
            staleness = max((self.version - answer.version for answer in answers), default=0)
            share *= (1.0 + staleness) ** -staleness_power
            state = rule.init(self.ledger) if self.damping is None else self.damping
            accepted, beyond = self._examine(answers, rule, state, share)
            report = replace(report, refused={**refused, **beyond})
            if not accepted:
                return report
            proposals = {name: answer.factor for name, answer in accepted.items()}
            ledger, taken, state = algorithm.replace(
                self.ledger, proposals, rule, self.policy, share, progress, state
            )
            self.open_tasks = {k: t for k, t in self.open_tasks.items() if k not in accepted}
            if taken > 0.0:
                make_read_only({name: ledger.factors[name] for name in accepted})
                self.ledger, self.damping, self.version = ledger, state, self.version + 1
            if self.hyperparameters is not None:
                terms = {name: answer.hyperparameters for name, answer in accepted.items()}
                self.hyperparameter_factors |= {
                    k: term for k, term in terms.items() if term is not None
                }
            return replace(
                report,
                accepted=len(accepted),
                free_energy=float(sum(answer.free_energy for answer in accepted.values())),
                skipped=sum(answer.skipped for answer in accepted.values()),
                share=taken / share,
                staleness=staleness,
            )

    def _note_silence(self, deliveries: Iterable[Any]) -> None:
        """Drop clients of which nothing has come for the third time in a row."""
        for one in deliveries:
            if type(one) is not Delivery or one.answer is not None:
                self._silences.pop(getattr(one, "client_id", ""), None)
                continue
            count = self._silences[one.client_id] = self._silences.get(one.client_id, 0) + 1
            if count == SILENCES and one.client_id in self.clients:
                self.dropped.add(one.client_id)
                warnings.warn(
                    f"{one.client_id!r} is asked no more in this run: nothing came of it {count} "
                    f"times in a row; the last time: {one.error}",
                    stacklevel=3,
                )

    # ---- the guards: which answers may enter the ledger ----

    def _receive(
        self, deliveries: Iterable[Any]
    ) -> tuple[list[LocalResult], dict[str, str], Round]:
        """Answers to open questions; why others are refused; messages and failures."""
        answers: list[LocalResult] = []
        refused, failed, epsilon, messages, num_bytes = {}, {}, {}, 0, 0
        came = [guards.delivery_of(one) for one in deliveries]
        left = {one.client_id for one in came if one.answer is not None} - self.clients.keys()
        for delivery in came:
            name = delivery.client_id
            try:
                if name not in self.clients:
                    raise RefusedError("there is no such client")
                if left and getattr(self.clients[name].update, "is_summed", False):
                    raise RefusedError(f"{sorted(left)} has left, and its sum cannot enter in part")
                answer = guards.read(delivery, self.largest_answer(name))
                num_bytes += answer.num_bytes
                self._require_question(answer)
            except FailedError as error:
                failed[name] = str(error)
                self.failures[name] = error.text or str(error)
                continue
            except RefusedError as error:
                refused[name] = str(error)
            else:
                answers.append(answer)
                if EPSILON in answer.diagnostics:
                    epsilon[name] = float(answer.diagnostics[EPSILON])
            messages += 1
        report = Round(messages=messages, bytes_up=num_bytes, failed=failed, epsilon=epsilon)
        return answers, refused, report

    def _unpacked(self, delivery: Any) -> Any:
        """With the answer in the place of its message, so that of a round not both are held; one
        that is refused is left as it is.
        """
        if type(delivery) is not Delivery or type(delivery.answer) is not bytes:
            return delivery
        try:
            answer = guards.read(delivery, self.largest_answer(delivery.client_id))
        except (FailedError, KeyError, RefusedError):
            return delivery
        return Delivery(delivery.client_id, answer)

    def _require_question(self, answer: LocalResult) -> None:
        """Refuse what nobody waits for."""
        task = self.open_tasks.get(answer.client_id)
        if task is None or answer.sequence != task.sequence:
            raise RefusedError(NOT_OPEN.format(answer.sequence))
        if not secrets.compare_digest(answer.nonce.encode(), task.nonce.encode()):
            reason = f"it does not carry the nonce of question {task.sequence} of this run"
            raise RefusedError(reason)
        if answer.version != task.version:
            raise RefusedError(
                f"it speaks of version {answer.version}, asked under version {task.version}"
            )
        number = self.clients[answer.client_id].num_data
        if answer.num_data not in (0, number):
            raise RefusedError(
                f"it speaks for {answer.num_data} data points, of which its client has {number}"
            )

    def _examine(
        self, answers: Iterable[LocalResult], rule: DampingRule, state: State, share: float
    ) -> tuple[dict[str, LocalResult], dict[str, str]]:
        """Answers that may enter, by client; and why others are refused. Each is judged alone, and
        a second one is refused.
        """
        accepted: dict[str, LocalResult] = {}
        refused: dict[str, str] = {}
        for answer in answers:
            name = answer.client_id
            try:
                if name in accepted:
                    raise RefusedError(NOT_OPEN.format(answer.sequence))
                accepted[name] = self._with_whole_factor(answer, rule, state, share)
            except RefusedError as error:
                refused[name] = str(error)
        return accepted, refused

    def _with_whole_factor(
        self, answer: LocalResult, rule: DampingRule, state: State, share: float
    ) -> LocalResult:
        """The answer with the part of the factor that had stayed in the cavity."""
        name, client = answer.client_id, self.clients[answer.client_id]
        checks = guards.checks_of(client, self.checks)
        with guards.readable():
            self._require_content(answer, checks)
            removed = self.open_tasks[name].removed_fraction
            factor = _as_wide(answer.factor, self.prior)
            whole = algorithm.complete(self.ledger, name, factor, removed)

        def objection_to(factor: Any) -> str | None:
            # at progress 0, where steps are largest: a rule that remembers would else take in late
            # an answer that it had refused early
            with guards.readable(InvalidDataError):  # the rule's, if it is none for this ledger
                changes, _ = rule.update(self.ledger, {name: factor}, state, share, 0.0)
            with guards.readable():
                objection = checks.objection_to_step(self.ledger, changes)
            return objection

        old, full, step = self.factors.get(name), whole, 1.0
        objection = objection_to(whole)
        is_paid_for = getattr(client.update, "is_paid_for", False)
        while objection == guards.IMPROPER and is_paid_for and step > SHORTEST_STEP:
            step *= 0.5
            whole = damped(old, full, step).as_arrays()
            objection = objection_to(whole)
        if objection is not None:
            raise RefusedError(objection)
        return replace(answer, factor=whole)

    def _require_content(self, answer: LocalResult, checks: Checks) -> None:
        """Refuse what is implausible whatever it would do to the posterior."""
        client = self.clients[answer.client_id]
        objection = checks.objection(self.ledger, answer.factor, client.num_data)
        if objection is None and self.hyperparameters is not None:
            objection = checks.objection_to_hyperparameters(
                answer.hyperparameters, self.hyperparameters, client.num_data
            )
        if objection is None:  # what could not travel is refused wherever it comes from
            serialization.encode(answer.factor, serialization.registered_classes())
        of_model = getattr(client.model, "objection_to_answer", None)
        if objection is None and of_model is not None:
            objection = of_model(answer.factor, client.num_data)
        if objection is not None:
            raise RefusedError(objection)

    # ---- clients and their numbers ----

    def _require_client(self, client_id: str) -> None:
        if client_id not in self.clients:
            there = f"{list(self.clients)!s:.1000}"
            raise InvalidDataError(f"no client {client_id!r}: there are {there}")

    def _number(self, client_id: str) -> int:
        """That of a client, given as it joins: seeds and the order of sums go by it."""
        return self._numbers.setdefault(client_id, len(self._numbers))

    def _prior_for(self, client: Client | Site) -> Any | None:
        """The prior, for a rule that divides by it, where it is not the model's own."""
        wants_prior = getattr(client.update, "wants_prior", False)
        is_other = wants_prior and not have_same_natural(client.model.prior(), self.prior)
        return self.prior if is_other else None

    # ---- files ----

    @property
    def state(self) -> ServerState:
        """All that it knows, as a value."""
        return ServerState(
            self.prior, dict(self.factors), self.version, dict(self._sequences),
            self.damping, self.history, self.hyperparameters, dict(self.hyperparameter_factors),
            dict(self._numbers), self._run, self.seed,
        )  # fmt: skip

    def _restore(self, state: ServerState) -> None:
        make_read_only((state.prior, dict(state.factors)))
        self.ledger = Ledger(state.prior, MappingProxyType(dict(state.factors)))
        self.seed = self.seed if state.seed is None else state.seed
        self.version = state.version
        self.history = state.history
        self.hyperparameters = state.hyperparameters
        self.hyperparameter_factors = dict(state.hyperparameter_factors)
        self._sequences = dict(state.sequences)
        self.damping = state.damping
        self._numbers, self._run = dict(state.numbers), state.run
        for name in self.clients:
            self._number(name)

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
        seed: int | None = None,
    ) -> Server:
        """A server that goes on from a file; questions still open when it was written are void.

        :param prior: The model's prior, to compare with: a prior that was learned is in the file.
        :param clients: The clients that go on. Factors of others stay: :meth:`remove` forgets them.
        :param seed: The seed, to compare with; it is in the file.
        :raises FileFormatError: if the file is damaged, foreign or of another version.
        :raises InvalidDataError: if the prior, the seed or the model's likelihood does not fit the
            file.
        """
        state = serialization.read(path, KIND, serialization.registered_classes(), ServerState)
        server = cls(prior, clients, policy, checks, seed or 0)
        try:
            _require_fit(state, server.prior)
            if None not in (seed, state.seed) and seed != state.seed:
                raise InvalidDataError(f"the file has the seed {state.seed}, got {seed}")
            server._restore(state)
            _ = server.posterior
        except InvalidDataError:
            raise
        except Exception as error:  # arrays may hold anything
            raise FileFormatError(f"{path} holds no sound server: {error}") from error
        if state.hyperparameters is not None:
            model, number = next(iter(server.clients.values())).model, len(state.hyperparameters)
            if len(values(model)) != number:
                raise InvalidDataError(
                    f"the file has {number} parameters of a likelihood, but the model has "
                    f"{len(values(model))}"
                )
            set_values(model, state.hyperparameters)
        return server


def duration_of(durations: Durations, client_id: str) -> float | None:
    """The seconds of a visit to this client."""
    if not isinstance(durations, Mapping):
        return durations
    return float(durations.get(client_id, np.mean(list(durations.values()))))


def seed_of(*numbers: int) -> int:
    """A seed for these numbers: another one for any other numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def _as_wide(factor: Any, prior: Any) -> Any:
    """A factor in numbers no wider than the prior's: one in float64 would make the posterior so,
    and no client's float32 model could fit under it.
    """
    kinds = [eta.dtype for eta in prior.natural] if isinstance(prior, ExponentialFamily) else []
    arrays = [np.asarray(eta) for eta in factor.natural] if kinds else []
    if all(np.can_cast(eta.dtype, kind) for eta, kind in zip(arrays, kinds, strict=True)):
        return factor
    with np.errstate(over="ignore"):  # what becomes infinite is improper
        natural = (eta.astype(kind) for eta, kind in zip(arrays, kinds, strict=True))
        return replace(factor, natural=tuple(natural))


def _require_prior(prior: Posterior, clients: Clients) -> None:
    """Each model is asked once: most clients share one."""
    models = {id(client.model): name for name, client in clients.items()}
    require_strategy("prior", prior, Posterior, "model.prior()")
    for name in models.values():
        form = clients[name].model.prior().form
        if form != prior.form:
            raise InvalidDataError(
                f"the model of client {name!r} has as prior a {form}, "
                f"but the prior is a {prior.form}"
            )


def _require_fit(state: ServerState, prior: Posterior) -> None:
    """That a state goes on with this prior."""
    if state.prior.form != prior.form:
        raise InvalidDataError(
            f"the file is of a {state.prior.form}, but the prior is a {prior.form}"
        )
    for name, factor in state.factors.items():
        objection = state.prior.objection_to(factor)
        if objection is not None:
            raise FileFormatError(f"the factor of {name!r} in the file: {objection}")
    if state.hyperparameter_factors:
        size = np.size(state.hyperparameters) if state.hyperparameters is not None else 0
        unit = Normal(np.zeros(size), np.eye(size))
        for name, factor in state.hyperparameter_factors.items():
            objection = unit.objection_to(factor)
            if objection is not None:
                raise FileFormatError(
                    f"the factor of hyperparameters of {name!r} in the file: {objection}"
                )
