"""The contract of a local update rule."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi import fit, make_clients
from streaming_gp.pvi.model import ConjugateModel, Model
from streaming_gp.pvi.schedule import Sequential
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule, Worker
from streaming_gp.testing.assertions import copies, ensure, ensure_same
from streaming_gp.testing.problem import regression, shards_of_regression

SHARE = 0.3  # of what one shard says, as the factor that a client already has


def check_update_rule(
    rule: UpdateRule,
    model: Model | None = None,
    shards: Sequence[tuple[Any, Any]] | None = None,
    tolerance: float | None = None,
    rounds: int = 20,
) -> None:
    """Check that a rule answers as the loop expects.

    Its factor is one of the prior's family; the same task gives the same answer, before and after
    pickling; the task stays as it is; workers answer as the rule does. If the rule is exact for
    conjugate models, sequential passes lead to the exact posterior.

    :param rule: The rule.
    :param model: The model to check with; a small linear regression with a full covariance if
        None.
    :param shards: (X, Y) of each client; those of the regression if None.
    :param tolerance: How near the posterior must come to that of a conjugate model, relative to the
        largest natural parameter; None for a rule that is not exact there.
    :param rounds: The number of passes after which it must be there.
    :raises AssertionError: on the first thing that does not hold.
    """
    ensure(isinstance(rule, UpdateRule), "a rule is called with a task")
    model = regression() if model is None else model
    shards = shards_of_regression() if shards is None else shards
    tasks = zip(_tasks(model, shards), _tasks(model, shards), strict=True)
    answered = [task for task, same in tasks if _answers(rule, same)]
    ensure(answered, "a rule answers the first question, or one to a client with a factor")
    for task in answered:
        _check_answer(rule, task)
        factor = rule(task).factor
        ensure_same(rule(task).factor, factor, "the same task has the same answer")
        _, pickled = copies(rule, "a rule")
        ensure_same(pickled(task).factor, factor, "a rule that was pickled gives the same answer")
        if hasattr(rule, "worker"):
            _check_worker(rule, task)
    if tolerance is not None and isinstance(model, ConjugateModel):
        server = Server(model.prior(), make_clients(model, shards, rule))
        for one in fit(server, Sequential(), rounds):
            ensure(not one.failed, f"clients of a conjugate model do not fail: {dict(one.failed)}")
            ensure(not one.refused, f"honest answers are not refused: {dict(one.refused)}")
        likelihoods = [model.likelihood_factor(*model.as_data(*shard)) for shard in shards]
        exact = model.prior().times(likelihoods)
        ensure_same(server.posterior, exact, "the rule finds the exact posterior", tolerance)


def _tasks(model: Any, shards: Sequence[tuple[Any, Any]]) -> list[LocalTask]:
    """The first question to a client, and one to a client that has a factor already."""
    data = copy.deepcopy(model.as_data(*shards[0]))
    prior, start = model.prior().as_arrays(), model.initial(0)
    own = ((start / prior) ** SHARE).as_arrays()
    if not any(np.any(eta) for eta in own.natural):
        own = (prior.as_factor() ** SHARE).as_arrays()
    posterior = prior.times([own])
    return [
        LocalTask(model, data, prior, None, start, seed=7),
        LocalTask(model, data, posterior, own, posterior, seed=7),
    ]


def _answers(rule: UpdateRule, task: LocalTask) -> bool:
    """Whether the rule answers such a question; rules may refuse by ``InvalidDataError``."""
    try:
        rule(task)
    except InvalidDataError:
        return False
    return True


def _check_answer(rule: UpdateRule, task: LocalTask) -> None:
    before = copy.deepcopy((task.data, task.posterior.natural, task.start.natural))
    result = rule(task)
    ensure(isinstance(result, LocalResult), "a rule gives a LocalResult")
    objection = task.posterior.objection_to(result.factor)
    ensure(objection is None, f"the answer is a factor of the prior's family: {objection}")
    ensure(result.steps >= 0 and result.skipped >= 0, "steps and skipped sites are counts")
    numbers = all(np.isscalar(value) for value in result.diagnostics.values())
    ensure(numbers, "diagnostics are numbers")
    after = task.data, task.posterior.natural, task.start.natural
    for old, new in zip(before, after, strict=True):
        same = all(np.array_equal(a, b) for a, b in zip(old, new, strict=True))
        ensure(same, "a rule leaves the task as it was")


def _check_worker(rule: Any, task: LocalTask) -> None:
    worker = rule.worker()
    if isinstance(worker, Worker):
        ensure(worker.advance(1) is False, "a worker has nothing to do before its first question")
    factor = worker(task).factor
    ensure_same(factor, rule(task).factor, "a worker that has just begun answers as the rule does")
    if isinstance(worker, Worker):
        ensure(isinstance(worker.advance(1), bool), "advance says whether there is more to do")
    second = worker(task).factor
    ensure(task.posterior.objection_to(second) is None, "a worker answers a second question")
