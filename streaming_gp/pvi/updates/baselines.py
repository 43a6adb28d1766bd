"""Rules of methods that PVI is compared with: they answer once, or without uncertainty.

Distributed optimisers are maximum likelihood, written as factors so that the same server, schedules
and engines run them: workers move one point each, and the server another. Begin with
``Server.warm_start`` at a q that is narrower than the prior, and take the damping rule that each of
them names.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import KL, Factor, MeanFieldNormal
from streaming_gp.inputs import (
    Fraction,
    NotNegativeFinite,
    PositiveFinite,
    PositiveInteger,
    require_strategy,
    typed,
)
from streaming_gp.pvi.guards import NO_LIMITS, Checks
from streaming_gp.pvi.model import compiled_for
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule
from streaming_gp.pvi.updates.sampling import log_likelihood_of
from streaming_gp.pvi.updates.variational import Adam, GradientOptimiser, State, VariationalUpdate


@typed
@dataclass(frozen=True)
class SplitPriorUpdate:
    """A member of a Bayesian committee machine with the prior split (Tresp 2000; PVI 2018, 7.1).

    Each client fits under ``prior^share``, whoever has answered before, so that the posterior is
    the product of all q, which are not damped. The committee with the same prior for all needs no
    rule of its own: it is one synchronous round with damping 1.

    :param rule: The rule that fits.
    :param share: The client's share of the prior; the shares of all clients sum to one.
    """

    rule: UpdateRule
    share: Fraction
    server_damping: ClassVar[float] = 1.0
    wants_prior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_strategy("rule", self.rule, UpdateRule, "pvi.VariationalUpdate()")

    def __call__(self, task: LocalTask) -> LocalResult:
        if task.own is not None:
            raise InvalidDataError("a committee machine answers once, before there are factors")
        others_too = task.posterior.as_factor() / task.prior.as_factor() ** self.share
        return self.rule(replace(task, own=others_too))


@typed
@dataclass(frozen=True)
class AveragingUpdate:
    """A member of federated averaging (McMahan et al. 2017): maximum likelihood, then a mean.

    The answer is ``(q / prior)^share`` with q of a small fixed width about the weights, so that
    prior times factors is the logarithmic opinion pool ``Π q^share``, whose mean is the weighted
    mean of the weights. Shares sum to one, and answers are not damped. The rule sets the server's
    limits on answers aside, as its own are surer than any posterior.

    With ``proximal`` it is a member of FedProx (Li et al. 2020): the fit is held back by
    ``N μ ‖θ − θ_server‖² / 2``, the divergence from ``N(θ_server, 1 / (N μ))``. N is the number
    of the client's rows, as log-likelihoods are sums over them.

    :param share: The client's share of the data, usually N_k / N.
    :param rule: The rule of the local fit; its divergence is left out.
    :param width: The standard deviation of q.
    :param proximal: The strength μ of FedProx's term, for one row; none if 0.
    """

    share: Fraction
    rule: VariationalUpdate
    width: PositiveFinite = 1e-3
    proximal: NotNegativeFinite = 0.0
    checks: ClassVar[Checks] = NO_LIMITS
    server_damping: ClassVar[float] = 1.0
    wants_prior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_strategy("rule", self.rule, VariationalUpdate, "pvi.VariationalUpdate()")

    def __call__(self, task: LocalTask) -> LocalResult:
        at_server = mean_of(task)  # refuses other families
        start, rule = replace(task, start=self._narrow(task.start)), self.rule
        if self.proximal > 0.0:
            held = np.full_like(at_server, task.num_data * self.proximal)
            near = MeanFieldNormal(held * at_server, held)
            start, rule = replace(start, posterior=near, own=None), replace(rule, divergence=KL())
        else:
            rule = replace(rule, divergence=KL(weight=0.0))
        q, _, steps = rule.fit(start)
        factor = self._narrow(q).as_factor() / task.prior.as_factor()
        return LocalResult(factor**self.share, steps=steps)

    def _narrow(self, q: Any) -> MeanFieldNormal:
        mean = np.asarray(q.mean)
        return MeanFieldNormal.from_mean_variance(mean, np.full_like(mean, self.width**2))


def mean_of(task: LocalTask) -> Any:
    """The posterior mean of a task [D]."""
    if not isinstance(task.posterior, MeanFieldNormal):
        family = type(task.posterior).__name__
        raise InvalidDataError(f"wanted a mean-field Gaussian posterior, got a {family}")
    return task.posterior.mean


# ---- distributed optimisers ----


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
    sync: PositiveInteger = 10
    batch_size: PositiveInteger | None = 100
    checks: ClassVar[Checks] = NO_LIMITS

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
        if not all(np.isfinite(part).all() for part in self._state):
            self._state = None  # no step leads back from there
        return LocalResult(factor.as_arrays(), steps=steps)

    def advance(self, iterations: int) -> bool:
        """Go on from where it is; nothing before the first question.

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

    @tf.function(autograph=False, reduce_retracing=True)
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

    moving_rate: Fraction = 0.25
    share: Fraction = 1.0
    width: PositiveFinite = 0.03
    wants_prior: ClassVar[bool] = True

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
