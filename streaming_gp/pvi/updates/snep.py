"""Stochastic natural-gradient expectation propagation (SNEP; Hasenclever et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.expfam import Factor, Gaussian
from streaming_gp.inputs import (
    NotNegativeFinite,
    PositiveFinite,
    PositiveInteger,
    require_decay,
    require_positive,
    require_strategy,
    typed,
)
from streaming_gp.pvi.model import compiled_for, tensors
from streaming_gp.pvi.task import LocalResult, LocalTask, have_same_natural
from streaming_gp.pvi.updates.sampling import (
    Chain,
    Sampler,
    Target,
    log_density,
    log_likelihood_of,
    require_gaussian,
)

Natural = tuple[tf.Tensor, ...]
"""Natural parameters."""
SMALLEST_SHARE = 0.5  # of its variance that a factor keeps in one iteration, in every direction


@dataclass(frozen=True)
class StabilisedLoop:
    """The factor is held, so that θ' takes part in every change of the cavity: with a θ' that lags
    behind, workers that have moved together all move back. A factor keeps at least half its
    variance in one iteration, so that it stays proper.
    """

    def anchor(self, cavity: Natural, factor: Natural) -> Natural:
        """The natural parameters that are held from an outer iteration to the next.

        :param cavity: The natural parameters of the cavity θ_{-i}.
        :param factor: Those of the factor λ.
        """
        return factor

    def auxiliary(self, cavity: Natural, anchor: Natural) -> Natural:
        """θ' under this cavity."""
        return add(cavity, anchor)

    def limit(self, family: type[Gaussian], covariance: Any, before: Any) -> Any:
        """The covariance of the factor after an iteration.

        :param covariance: The one that the natural gradient leads to.
        :param before: The one before.
        """
        return family.raised(covariance, SMALLEST_SHARE * before)


@dataclass(frozen=True)
class PublishedLoop:
    """Algorithm 1 of Hasenclever et al. (2017) to the letter: θ' itself is held, and the variance
    is left as the gradient makes it, but for ``min_variance``. A factor that a step makes improper
    is lost, and its client begins anew.
    """

    def anchor(self, cavity: Natural, factor: Natural) -> Natural:
        return add(cavity, factor)

    def auxiliary(self, cavity: Natural, anchor: Natural) -> Natural:
        return anchor

    def limit(self, family: type[Gaussian], covariance: Any, before: Any) -> Any:
        return covariance


def add(a: Natural, b: Natural, weight: float = 1.0) -> Natural:
    """``a + weight · b`` of natural parameters."""
    return tuple(x + weight * y for x, y in zip(a, b, strict=True))


@typed
@dataclass(frozen=True)
class SNEPUpdate:
    """``γ ← γ + ε (s(x) − E_q[s])`` with x from the tilted distribution (eq. 22).

    γ are the mean parameters of the client's factor λ taken for a distribution, so that a factor
    is always proper. The tilted distribution is ``θ' − λ/β`` times the likelihood to the power 1/β
    (eq. 20), its auxiliary θ' what q was at the newest outer iteration (eq. 23). A noisy moment
    enters linearly, and so its noise averages away, where expectation propagation inverts it.
    Convergence is slow in directions in which a client knows much less than all others together.
    Steps are stable for ε well below ``(λ's sd / distance of its mean from q's)²``; with θ' held
    for many iterations ``ε · outer`` should not be much above one, or a factor that grows faster
    than θ' leaves no proper tilted distribution.

    A worker of this rule keeps chain, γ and θ' between questions, and goes on while its message
    travels (algorithm 1). Without a worker each question starts anew from the ledger's factor.
    Answers are whole factors, which the rate has damped already: schedules that name no damping
    take them as they are.

    :param sampler: The sampler of the tilted distribution.
    :param beta: The power β > 0. 1 is EP, for large values VI; with 1/K the K clients
        target, each for itself, about the whole posterior (p-SNEP).
    :param learning_rate: The rate ε in (0, 1), or a function of the iteration, a tensor [].
    :param sync: The number of iterations between two answers.
    :param outer: The number of iterations between two renewals of θ'.
    :param min_variance: The least variance of a factor in any direction (section 6.2.1).
    :param loop: What θ' is when the cavity changes between outer iterations, and what keeps a
        factor proper: :class:`~streaming_gp.pvi.StabilisedLoop`, or the paper's own,
        :class:`~streaming_gp.pvi.PublishedLoop`.
    :raises InvalidDataError: if a setting is out of its range.
    """

    sampler: Sampler
    beta: PositiveFinite = 1.0
    learning_rate: float | Callable[[tf.Tensor], Any] = 0.02
    sync: PositiveInteger = 10
    outer: PositiveInteger = 10
    min_variance: NotNegativeFinite = 0.0
    loop: StabilisedLoop | PublishedLoop = field(default_factory=StabilisedLoop)
    server_damping: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        require_strategy("sampler", self.sampler, Sampler, "samplers.NUTS()")
        loops = StabilisedLoop, PublishedLoop
        require_strategy("loop", self.loop, loops, "pvi.StabilisedLoop()")
        if not callable(self.learning_rate):
            require_positive("learning_rate", self.learning_rate)
            require_decay("learning_rate", self.learning_rate)

    def __call__(self, task: LocalTask) -> LocalResult:
        """Answer without a memory.

        :raises InvalidDataError: if the model has no ``log_likelihood`` or no Gaussian posterior.
        :raises ImproperError: if there is no q to begin with.
        :raises NumericalError: if the chain or the factor are lost.
        """
        return self.worker()(task)

    def worker(self) -> SNEPWorker:
        """The rule with a memory, for one client."""
        return SNEPWorker(self)


class State(NamedTuple):
    """A worker's, which its iterations change.

    :param iteration: The iteration t, from 0.
    :param mean: The factor's mean [D]; with the covariance these are γ, to all their digits.
    :param covariance: The factor's covariance, as far as its family keeps it.
    :param anchor: Natural parameters that the loop holds from the newest outer iteration.
    :param chain: The state of the sampler's chain.
    """

    iteration: tf.Tensor
    mean: tf.Tensor
    covariance: tf.Tensor
    anchor: Natural
    chain: Chain


class SNEPWorker:
    """Lives next to one client's data. All that it keeps is a cache: a new one in its place starts
    from the ledger's factor, and so does this one if its newest answer has not entered the ledger.
    """

    def __init__(self, rule: SNEPUpdate) -> None:
        self._rule = rule
        self._state: State | None = None
        self._own: Factor | None = None
        self._cavity: Natural = ()
        self._since = 0

    def __call__(self, task: LocalTask) -> LocalResult:
        """Take up the new cavity, complete ``sync`` iterations since the newest answer, answer.

        :raises InvalidDataError: if the model has no ``log_likelihood`` or no Gaussian posterior.
        :raises ImproperError: if there is no q to begin with.
        :raises NumericalError: if the chain or the factor are lost; the next question starts anew.
        """
        cavity = tensors(task.cavity.natural)
        has_entered = task.own is not None and not have_same_natural(task.own, self._own)
        if self._state is None or not has_entered:
            self._begin(task)
        else:
            self._state = shift_chain(self._family, self._state, self._cavity, cavity)
        self._own, self._cavity = task.own, cavity
        self.advance(max(0, self._rule.sync - self._since))
        if self._state is None:
            raise NumericalError("the chain left the tilted distribution, or the factor its family")
        steps, self._since = self._since, 0
        member = self._family.from_moments(self._state.mean, self._state.covariance)
        return LocalResult(Factor(self._family, member.natural).as_arrays(), steps=steps)

    def advance(self, iterations: int) -> bool:
        """Go on under the cavity that it has. If the chain or the factor are lost all is forgotten.

        :returns: whether there is something to go on with before the next question.
        """
        if self._state is not None and iterations > 0:
            iterate = compiled_for(
                self._model,
                ("snep", self._rule, self._family),
                lambda model: _compiled(model, self._rule, self._family),
            )
            state = self._state
            try:
                for _ in range(iterations):
                    state = iterate(state, self._cavity, *self._data, self._seed)
                self._state = state if _is_sound(state) else None
            except tf.errors.InvalidArgumentError:  # a decomposition of what is not finite
                self._state = None
            self._since += iterations
        return self._state is not None

    def _begin(self, task: LocalTask) -> None:
        family = require_gaussian(task)
        log_likelihood_of(task.model)
        own = task.own if task.own is not None and task.own.is_proper else task.start.as_factor()
        q = (task.cavity * own).normalised()
        chain = self._rule.sampler.begin(q.sample(1, task.seed)[0])
        self._family, self._model, self._data = family, task.model, tensors(task.data)
        self._seed, self._since = tf.constant([task.seed, 0]), 0
        factor = family(*tensors(own.natural))
        anchor = self._rule.loop.anchor(tensors(task.cavity.natural), factor.natural)
        self._state = State(tf.constant(0), *factor.moments(), anchor, chain)


def shift_chain(family: type[Gaussian], state: State, old: Natural, new: Natural) -> State:
    """The chain moves with its target when the cavity does (appendix B.2, eq. 28).

    :param old: The natural parameters of the cavity until now.
    :param new: The natural parameters of the cavity from now on.
    """
    factor = family.from_moments(state.mean, state.covariance).natural
    before, after = family(*add(old, factor)), family(*add(new, factor))
    position = after.from_white(before.to_white(state.chain[0][None]))[0]
    return state._replace(chain=(position, *state.chain[1:]))


def _compiled(model: Any, rule: SNEPUpdate, family: type[Gaussian]) -> Callable[..., State]:
    """One iteration as one compiled function. With a loop of TensorFlow's own around it a long θ
    fails from the second call on: variables that its memory optimiser puts there stay behind.
    """
    loop, sampler, power = rule.loop, rule.sampler, 1.0 / rule.beta

    @tf.function(autograph=False, reduce_retracing=True)
    def iterate(state: State, cavity: Natural, X: Any, Y: Any, seed: tf.Tensor) -> State:
        """Outer step if it is time, draws, and the natural gradient (algorithm 1, steps 8 to 10).

        Eq. 22 in central moments: with ``δ = x̄ − E_q[x]`` and the gap ``g = E_q[x] − m`` from the
        factor's mean, ``m ← m + ε δ`` and ``V ← V + ε (g δᵀ + δ gᵀ + C − V_q) − ε² δ δᵀ``, where C
        are the draws' second moments about ``E_q[x]``. Mean parameters themselves lose the digits
        of a V much smaller than m². A step may leave the domain, which the loop may keep it from.
        """
        factor = family.from_moments(state.mean, state.covariance).natural
        is_outer, newest = state.iteration % rule.outer == 0, loop.anchor(cavity, factor)
        anchor = tuple(tf.where(is_outer, a, b) for a, b in zip(newest, state.anchor, strict=True))
        base = Factor(family, add(loop.auxiliary(cavity, anchor), factor, -power))
        density = log_density(model, base, power, X, Y, sampler.batch_size)
        q = family(*add(cavity, factor))
        own_seed = tf.random.experimental.stateless_fold_in(seed, state.iteration)
        chain, draws = sampler.step(state.chain, Target(density, q), own_seed)

        centre, spread = q.moments()
        away = draws - centre
        delta = tf.reduce_mean(away, axis=0, keepdims=True)
        epsilon = rule.learning_rate
        rate = tf.cast(epsilon(state.iteration) if callable(epsilon) else epsilon, delta.dtype)
        gap = (centre - state.mean)[None]
        change = 2.0 * family.mean_product(gap, delta) + family.mean_product(away, away) - spread
        covariance = state.covariance + rate * change
        covariance -= tf.square(rate) * family.mean_product(delta, delta)
        covariance = loop.limit(family, covariance, state.covariance)
        if rule.min_variance > 0.0:
            covariance = family.raised(covariance, float(rule.min_variance))
        return State(state.iteration + 1, state.mean + rate * delta[0], covariance, anchor, chain)

    return iterate


def _is_sound(state: State) -> bool:
    """Whether chain and mean are finite, and the covariance is one."""
    if not all(np.isfinite(part).all() for part in (state.mean, state.covariance, state.chain[0])):
        return False
    covariance = np.asarray(state.covariance)
    variances = np.linalg.eigvalsh(covariance) if covariance.ndim == 2 else covariance
    return bool(np.min(variances) > 0.0)
