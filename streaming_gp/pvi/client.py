"""A client: data that do not move, and the rule by which they speak."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from streaming_gp.errors import ImproperError, InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.inputs import as_name, require_count
from streaming_gp.pvi.messages import Answer, Ask
from streaming_gp.pvi.model import Data, Model
from streaming_gp.pvi.model_parameters import hyperparameter_factor, set_values
from streaming_gp.pvi.task import Discreet, LocalResult, LocalTask, ResidentRule, UpdateRule, Worker


@dataclass(frozen=True, eq=False)
class Client:
    """One shard of data with a local update rule. It keeps nothing between two questions, so that
    a client restarted anywhere with its data answers as if nothing had happened. At work in a
    session, the worker of its rule takes the place of the rule, if there is one.

    :param client_id: The name of its factor.
    :param model: The model that gives the likelihood.
    :param data: Inputs X [N, D] and observations Y [N, P]; they stay here.
    :param update: The rule by which it answers.
    :param seed: The seed of the start of the very first fit, the same for all clients of one model.
    """

    client_id: str
    model: Model
    data: Data
    update: UpdateRule
    seed: int = 0

    @property
    def num_data(self) -> int:
        """N."""
        return len(self.data[0])

    def at_work(self) -> Client:
        """This client with a worker of its own, for as long as a session lasts."""
        if isinstance(self.update, ResidentRule):
            return replace(self, update=self.update.worker())
        return self

    def advance(self, iterations: int) -> bool:
        """Go on without a question; False if there is nothing to do before the next one."""
        return isinstance(self.update, Worker) and self.update.advance(iterations)

    def answer(self, ask: Ask) -> Answer:
        """Fit q to the data under the cavity, and give the factor that comes of it."""
        discreet = isinstance(self.update, Discreet) and self.update.is_discreet
        if discreet and ask.hyperparameters is not None:
            raise InvalidDataError(
                "what data say of the likelihood's parameters would leave without noise"
            )
        if ask.hyperparameters is not None:
            set_values(self.model, ask.hyperparameters)
        start = self.model.initial(self.seed) if ask.untouched else ask.posterior
        task = LocalTask(
            self.model, self.data, ask.posterior, ask.own, start, ask.seed, ask.prior,
            self.client_id, ask.sequence,
        )  # fmt: skip
        result = _plain(self.update(task))
        learned = None if ask.hyperparameters is None else self._of_hyperparameters(task, result)
        rows = 0 if discreet else self.num_data
        return Answer(ask.client_id, ask.sequence, ask.version, rows, result, learned, ask.nonce)

    def _of_hyperparameters(self, task: LocalTask, result: LocalResult) -> Factor:
        """At q after the fit: before the first one q is the prior, which says nothing of ε. A rule
        whose full step goes astray is no guide either, so that the q asked under stays a candidate.
        """
        candidates = [task.posterior]
        with suppress(ImproperError):  # some rules answer with steps that only damping makes proper
            own = [] if task.own is None else [task.own]
            candidates.append(task.posterior.exchanged(own, [result.factor]))
        return hyperparameter_factor(self.model, candidates, self.data, task.seed)


def _plain(found: LocalResult) -> LocalResult:
    """In arrays and numbers, as messages want it."""
    energy = float(found.free_energy)
    return LocalResult(
        found.factor.as_arrays(),
        energy if math.isfinite(energy) else math.nan,
        int(found.steps),
        int(found.skipped),
        {name: float(value) for name, value in found.diagnostics.items()},
    )


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
    :raises InvalidDataError: if there is no shard, or one that the model cannot take.
    """
    named = (
        shards
        if isinstance(shards, Mapping)
        else {f"c{number}": shard for number, shard in enumerate(shards)}
    )
    if not named:
        raise InvalidDataError("no shards: there must be at least one client")
    require_count("seed", seed)
    shards_by_name = {as_name("a client's name", name): shard for name, shard in named.items()}
    return {
        name: Client(name, model, _checked(model, name, shard), update, seed)
        for name, shard in shards_by_name.items()
    }


def _checked(model: Model, name: str, shard: tuple[Any, Any]) -> Data:
    try:
        return model.as_data(*shard)
    except InvalidDataError as error:
        raise InvalidDataError(f"shard {name!r}: {error}") from error
