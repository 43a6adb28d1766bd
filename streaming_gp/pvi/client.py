"""Clients: data that do not move, and the rule by which they answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from streaming_gp.errors import ImproperError, InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.inputs import (
    as_name,
    as_pair,
    require_count,
    require_positive_integer,
    require_strategy,
)
from streaming_gp.pvi.model import Data, Model, hyperparameter_factor, set_values
from streaming_gp.pvi.task import (
    DataError,
    Failure,
    LocalResult,
    LocalTask,
    RefusedQuestionError,
    UpdateRule,
    encode_answer,
    failure_of,
    refuse_private_within,
    require_begun,
)

Load = Callable[[], tuple[Any, Any]]
"""Reads the data: X [N, D] and Y [N, P]."""


@dataclass(frozen=True, eq=False)
class Client:
    """One shard of data with a local update rule. It keeps nothing between two questions, so that
    a client restarted anywhere with its data answers as if nothing had happened. At work in a
    session, the worker of its rule takes the place of the rule, if there is one.

    :param client_id: The name of its factor.
    :param model: The model that gives the likelihood.
    :param data: Inputs X [N, D] and observations Y [N, P], as the model takes them; they stay here.
    :param update: The rule by which it answers.
    :param seed: The seed of the start of the very first fit, the same for all clients of one model.
    :raises InvalidDataError: if the name is no text, the seed no integer from 0 on, the data none
        that the model takes, or the rule is made around a private one and tells more than that.
    """

    client_id: str
    model: Model
    data: Data
    update: UpdateRule
    seed: int = 0

    def __post_init__(self) -> None:
        as_name("a client's name", self.client_id)
        require_count("seed", self.seed)
        refuse_private_within(self.update)
        data = data_for(self.model, f"shard {self.client_id!r}", self.data)
        object.__setattr__(self, "data", data)

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.data[0])

    def at_work(self) -> Client:
        """This client with a worker of its own, for as long as a session lasts."""
        worker = getattr(self.update, "worker", None)
        rule = self.update if worker is None else worker()
        return self if rule is self.update else replace(self, update=rule)

    def advance(self, iterations: int) -> bool:
        """Go on without a question; False if there is nothing to do before the next one."""
        worker: Any = self.update
        return hasattr(worker, "advance") and worker.advance(iterations)

    def answer(self, task: LocalTask) -> LocalResult:
        """Fit q to the data under the cavity, and give the factor that comes of it."""
        is_discreet = getattr(self.update, "is_discreet", False)
        if task.hyperparameters is not None:
            if is_discreet:
                raise RefusedQuestionError("NeedsNoHyperparameters")
            set_values(self.model, task.hyperparameters)
        start = self.model.initial(self.seed) if task.untouched else task.posterior
        task = replace(
            task, model=self.model, data=self.data, start=start, client_id=self.client_id
        )
        result = self.update(task)
        energy = float(result.free_energy)
        return LocalResult(
            factor=result.factor.as_arrays(),
            free_energy=energy if math.isfinite(energy) else math.nan,
            steps=int(result.steps),
            skipped=int(result.skipped),
            diagnostics={name: float(value) for name, value in result.diagnostics.items()},
            client_id=self.client_id,
            sequence=task.sequence,
            version=task.version,
            num_data=0 if is_discreet else self.num_data,
            hyperparameters=self._data_term(task, result.factor),
            nonce=task.nonce,
        )

    def _data_term(self, task: LocalTask, factor: Any) -> Factor | None:
        """Of ε, where it is learned, at q after the fit: before the first one q is the prior, which
        says nothing of ε. A rule whose full step goes astray is no guide either, so that the q
        asked under stays a candidate.
        """
        if task.hyperparameters is None:
            return None
        candidates = [task.posterior]
        with suppress(ImproperError):  # some rules answer with steps that only damping makes proper
            own = [] if task.own is None else [task.own]
            candidates.append(task.posterior.exchanged(own, [factor]))
        return hyperparameter_factor(self.model, candidates, self.data, task.seed)


@dataclass(frozen=True, eq=False)
class Site:
    """A client that server and engine know by name, by its rule, and by how much data it holds.

    Its data are read when it is first asked, by the process that answers: a Ray actor, or the
    program that an organisation runs behind its own door. No other process reads a row of them.

    :param client_id: The name of its factor.
    :param model: The model that gives the likelihood.
    :param update: The rule by which it answers.
    :param num_data: The number of data points that it speaks for, by which its answers are checked.
    :param load: Reads X [N, D] and Y [N, P]; None where the data are elsewhere.
    :param seed: The seed of the start of the very first fit, the same for all clients of one model.
    :param place: The name, in its certificate, of the place where it is; that of its factor if
        None. A place may hold several sites, such as one for each batch of a stream.
    :raises InvalidDataError: if a name is no text, the number of data points no positive one, or
        the rule is made around a private one and tells more than that.
    """

    client_id: str
    model: Model
    update: UpdateRule
    num_data: int
    load: Load | None = None
    seed: int = 0
    place: str | None = None

    def __post_init__(self) -> None:
        as_name("a site's name", self.client_id)
        require_positive_integer("num_data", self.num_data)
        require_count("seed", self.seed)
        refuse_private_within(self.update)
        if self.place is not None:
            as_name("a place's name", self.place)

    def at_work(self) -> Client:
        """The client with its data, and with a worker of its own where its rule has workers.

        :raises InvalidDataError: if the data cannot be read here, are none that the model takes, or
            are not as many as the site says.
        :raises FileFormatError: if its rule keeps a record of what was told, and that is not there.
        """
        if self.load is None:
            raise DataError(f"site {self.client_id!r} has no loader: its data are elsewhere")
        require_begun(self.update, self.client_id)
        try:
            client = Client(self.client_id, self.model, self.load(), self.update, self.seed)
        except Exception as error:  # a loader may run anything
            raise DataError(f"the data of site {self.client_id!r}: {error}") from error
        if client.num_data != self.num_data:
            number = client.num_data
            raise DataError(
                f"site {self.client_id!r} has {number} data points, but says {self.num_data}"
            )
        return client.at_work()


Clients = Mapping[str, Client | Site]
"""Clients by name, with their data or by name alone."""


class Resident:
    """A client in the process that answers for it: put to work by its first question, and kept
    from then on, so that data, worker and traces stay.

    :param client: The client, or a site whose data can be read here.
    """

    def __init__(self, client: Client | Site) -> None:
        self.client = client
        self._at_work: Client | None = None

    def answer(self, task: LocalTask) -> LocalResult | Failure:
        """The client's answer, or the news that it, or its loader, failed."""
        try:
            if self._at_work is None:
                self._at_work = self.client.at_work()
            return self._at_work.answer(task)
        except KeyboardInterrupt:  # that of the user
            raise
        except BaseException as error:  # a client may run anything, and costs its own answer only
            return self._failure(error)

    def message(self, task: LocalTask) -> bytes:
        """The same as a message; of what no message can hold, or is too large, that it is so."""
        try:
            message = encode_answer(self.answer(task))
            if len(message) > task.largest_answer:
                raise RefusedQuestionError("TooLarge", f"{len(message)} bytes")
            return message
        except Exception as error:
            return encode_answer(self._failure(error))

    def advance(self, iterations: int) -> bool:
        """Go on without a question; False if there is nothing to do before the next one."""
        try:
            return self._at_work is not None and self._at_work.advance(iterations)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # what a worker keeps is a cache: the next question begins
            self._at_work = None
            self._failure(error)
            return False

    def _failure(self, error: BaseException) -> Failure:
        is_discreet = getattr(self.client.update, "is_discreet", False)
        is_open = isinstance(self.client, Client)
        return failure_of(error, self.client.client_id, is_open, is_discreet)


def make_clients(
    model: Model,
    shards: Sequence[tuple[Any, Any]] | Mapping[str, tuple[Any, Any]],
    update: UpdateRule,
    seed: int = 0,
) -> dict[str, Client]:
    """One client for each shard.

    :param model: The model that all share; it gives the likelihood, and checks the data.
    :param shards: (X, Y) of each client; without names they are called "c0", "c1" and so on.
    :param update: The rule by which each of them answers.
    :param seed: The seed of the start that all fits share.
    :returns: clients by name, in order.
    :raises InvalidDataError: if there is no shard, or one that the model cannot take, or two that
        have not the same columns, or the rule is none.

    >>> [*sgp.pvi.make_clients(line, {"north": shards[0]}, sgp.pvi.AnalyticUpdate())]
    ['north']
    """
    if not isinstance(shards, Mapping):
        shards = {f"c{number}": shard for number, shard in enumerate(shards)}
    if not shards:
        raise InvalidDataError("no shards: there must be at least one client")
    require_count("seed", seed)
    clients: dict[str, Client] = {}
    for name in [as_name("a client's name", name) for name in shards]:
        client = Client(name, model, shards[name], update, seed)
        for first in islice(clients.values(), 1):
            other = f"shard {first.client_id!r}"
            _require_columns(f"shard {name!r}", client.data, other, first.data)
        clients[name] = client
    require_strategy("update", update, UpdateRule, "pvi.VariationalUpdate()")
    return clients


def _require_columns(name: str, data: Data, other: str, others: Data) -> None:
    """Refuse data that are not of the same columns as others of one model."""
    for of, mine, theirs in zip("XY", data, others, strict=True):
        if np.shape(mine)[1:] != np.shape(theirs)[1:]:
            raise InvalidDataError(
                f"{name}: {of} has shape {list(np.shape(mine))}, which does not go with "
                f"{list(np.shape(theirs))} of {other}"
            )


def data_for(model: Model, name: str, given: Any) -> Data:
    """A pair (X, Y) as the model takes it.

    :param name: What to call it in the error.
    """
    try:
        return model.as_data(*as_pair(given))
    except InvalidDataError as error:
        raise InvalidDataError(f"{name}: {error}") from error


def by_name(clients: Clients | Iterable[Client | Site]) -> dict[str, Client | Site]:
    """Clients by the names of their factors, in order."""
    together = list(clients.values() if isinstance(clients, Mapping) else clients)
    for one in together:
        require_client(one)
    named = {one.client_id: one for one in together}
    if len(named) < len(together):
        raise InvalidDataError(f"two clients of one name, among {list(named)}")
    if isinstance(clients, Mapping):
        for key, name in zip(clients, named, strict=True):
            if key != name:
                raise InvalidDataError(f"the client {name!r} goes under the name {key!r}")
    if not named:
        raise InvalidDataError("no clients: a server needs at least one")
    return named


def require_client(one: object) -> None:
    """Refuse what is neither a client nor a site."""
    if not isinstance(one, (Client, Site)):
        raise InvalidDataError(f"wanted a client or a site, got {one!r:.100}")
