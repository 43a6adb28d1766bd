"""Rules of distributed optimisers: workers move one point each, and the server another.

They are maximum likelihood, written as factors so that the same server, schedules and engines run
them. Begin with ``Server.warm_start`` at a q that is narrower than the prior, and take the damping
rule that each of them names.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal
from streaming_gp.inputs import typed
from streaming_gp.pvi.compiled import compiled_for
from streaming_gp.pvi.guards import NO_LIMITS, Checks
from streaming_gp.pvi.task import LocalResult, LocalTask
from streaming_gp.pvi.updates.committee import mean_of
from streaming_gp.pvi.updates.optimisers import Adam, GradientOptimiser, State
from streaming_gp.pvi.updates.sampling import log_likelihood_of


@dataclass(frozen=True)
class PointRule(abc.ABC):
    """Each worker keeps a point and the state of its optimiser.

    :param optimiser: The optimiser of the log-likelihood of all the client's data, estimated by a
        minibatch.
    :param sync: The number of steps between two answers.
    :param batch_size: The number of rows of a minibatch; all if None.
    :raises InvalidDataError: if they are not positive.
    """

    optimiser: GradientOptimiser = field(default_factory=Adam)
    sync: int = 10
    batch_size: int | None = 100
    checks: ClassVar[Checks] = NO_LIMITS

    def __post_init__(self) -> None:
        if self.sync < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise InvalidDataError(
                f"sync and batch_size must be positive, got {self.sync} and {self.batch_size}"
            )

    def __call__(self, task: LocalTask) -> LocalResult:
        """Answer without a memory.

        :raises InvalidDataError: if the model has no ``log_likelihood``, the posterior is no
            mean-field Gaussian, or the client has no factor.
        """
        return self.worker()(task)

    def worker(self) -> PointWorker:
        """The rule with a memory, for one client."""
        return PointWorker(self)

    @abc.abstractmethod
    def meet(self, point: tf.Tensor, server: tf.Tensor) -> tf.Tensor:
        """A worker's point [D] once it has seen the server's [D]."""

    @abc.abstractmethod
    def factor(self, task: LocalTask, point: np.ndarray, gradients: np.ndarray) -> Factor:
        """The answer.

        :param point: The worker's point after its steps [D].
        :param gradients: The sum of the gradients of all steps since the last answer [D].
        """


class PointWorker:
    """Lives next to one client's data; all that it keeps is a cache."""

    def __init__(self, rule: PointRule) -> None:
        self._rule = rule
        self._state: State | None = None
        self._since = 0
        self._gradients: Any = 0.0

    def __call__(self, task: LocalTask) -> LocalResult:
        """Meet the server's point, complete ``sync`` steps since the newest answer, answer.

        :raises InvalidDataError: as the rule says.
        """
        if self._state is None:
            self._begin(task)
        else:
            server = tf.convert_to_tensor(mean_of(task))
            self._state = (self._rule.meet(self._state[0], server), *self._state[1:])
        self.advance(max(0, self._rule.sync - self._since))
        assert self._state is not None
        factor = self._rule.factor(task, self._state[0].numpy(), np.asarray(self._gradients))
        steps, self._since, self._gradients = self._since, 0, 0.0
        return LocalResult(factor.as_arrays(), steps=steps)

    def advance(self, iterations: int) -> bool:
        """Go on from where it is; nothing before the first question.

        :param iterations: The number of steps to make.
        :returns: whether there is a point to go on from.
        """
        if self._state is None:
            return False
        X, Y = self._data
        for rows in islice(self._batches, iterations):
            self._state, gradient = self._step(self._state, X[rows], Y[rows], self._scale)
            self._gradients = self._gradients + gradient
        self._since += iterations
        return True

    def _begin(self, task: LocalTask) -> None:
        if task.own is None:
            name = type(self._rule).__name__
            raise InvalidDataError(f"{name} wants a warm start, but the client has no factor")
        log_likelihood_of(task.model)
        mean = tf.convert_to_tensor(mean_of(task))
        batch_size, optimiser = self._rule.batch_size, self._rule.optimiser
        self._state = optimiser.begin_at(mean)
        self._data, self._batches = task.data, task.minibatches(batch_size)
        self._scale = tf.constant(task.num_data / task.size_of(batch_size), mean.dtype)
        self._step = compiled_for(
            task.model, ("point", optimiser), lambda model: _compiled_step(model, optimiser)
        )


def _compiled_step(model: Any, optimiser: GradientOptimiser) -> Callable[..., Any]:
    """One step of the optimiser on one minibatch, and its gradient."""

    @tf.function(reduce_retracing=True)
    def step(state: State, X: Any, Y: Any, scale: Any) -> tuple[State, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(state[0])
            value = scale * tf.cast(model.log_likelihood(state[0][None], X, Y)[0], scale.dtype)
        gradient = tape.gradient(value, state[0])
        return optimiser.ascend(state, gradient), gradient

    return step


@typed
@dataclass(frozen=True)
class ElasticUpdate(PointRule):
    """A worker of elastic averaging SGD (Zhang, Choromanska & LeCun 2015), data divided among them.

    A worker has weights x of its own. The server's weights x̃ pull at them with each question,
    ``x ← x + α (x̃ − x)``, and the answer pulls at x̃ if the damping rule is ``FedAvg(α)``. It is
    ``(q / prior)^share`` with q of a fixed width about x, as that of ``AveragingUpdate``. One
    client with α = 1, there and here, is the optimiser on one machine.

    :param moving_rate: The rate α in (0, 1] at which worker and server pull at one another.
    :param share: The client's share of the data; the shares of all clients sum to one.
    :param width: The standard deviation of q.
    :raises InvalidDataError: if they are not that.
    """

    moving_rate: float = 0.25
    share: float = 1.0
    width: float = 0.03
    wants_prior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0.0 < self.moving_rate <= 1.0 and 0.0 < self.share <= 1.0 and self.width > 0.0):
            raise InvalidDataError(
                "moving_rate and share must lie in (0, 1] and width be positive, got "
                f"{self.moving_rate}, {self.share} and {self.width}"
            )

    def meet(self, point: tf.Tensor, server: tf.Tensor) -> tf.Tensor:
        return point + self.moving_rate * (server - point)

    def factor(self, task: LocalTask, point: np.ndarray, gradients: np.ndarray) -> Factor:
        q = MeanFieldNormal.from_mean_variance(point, np.full_like(point, self.width**2))
        return (q.as_factor() / task.prior.as_factor()) ** self.share


@typed
@dataclass(frozen=True)
class DownpourUpdate(PointRule):
    """A worker of asynchronous SGD (Dean et al. 2012): it sends the gradients of its steps.

    Each question replaces the worker's weights by the server's. The answer is its factor times
    ``exp(gᵀθ)``, with g the sum of the gradients of ``sync`` steps, which ``ServerAdam`` reads.
    """

    def meet(self, point: tf.Tensor, server: tf.Tensor) -> tf.Tensor:
        return server

    def factor(self, task: LocalTask, point: np.ndarray, gradients: np.ndarray) -> Factor:
        assert task.own is not None
        return task.own * Factor(MeanFieldNormal, (gradients, np.zeros_like(gradients)))
