"""DP-SGD inside of update rules: sums of the gradients of single rows, each of them clipped, under
noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import KL, Divergence, ExponentialFamily, Factor, MeanFieldNormal
from streaming_gp.inputs import Fraction, typed
from streaming_gp.pvi.model import Model, compiled_for, factor_tensors, tensors
from streaming_gp.pvi.privacy.accountant import Release
from streaming_gp.pvi.privacy.rule import Draws, PrivateRule
from streaming_gp.pvi.task import LocalTask
from streaming_gp.pvi.updates.baselines import AveragingUpdate, SplitPriorUpdate
from streaming_gp.pvi.updates.fixed_point import FixedPointUpdate
from streaming_gp.pvi.updates.variational import (
    LBFGS,
    GradientOptimiser,
    StochasticOptimiser,
    VariationalUpdate,
    expected_log_likelihood_of,
)

ROWS_AT_ONCE = 250


@typed
@dataclass(frozen=True, kw_only=True)
class PrivateGradients(PrivateRule):
    """A rule whose gradients of the data terms are clipped row by row, and noisy (DP-SGD).

    Abadi et al. (2016) for gradients; Jälkö, Dikmen & Honkela (2017) for variational inference;
    Sharma et al. (2019) and Heikkilä et al. (2023) for partitioned variational inference. The rule
    makes as many steps as it says, each on a Poisson sample: a visit of ``VariationalUpdate`` has
    ``epochs ⌈1 / sampling_rate⌉`` of them, one of ``FixedPointUpdate`` as many as its ``steps``;
    ``batch_size`` has no part in it.

    What is protected is each row: answers are nearly as likely if a client has one row more, or one
    less. :class:`~streaming_gp.pvi.privacy.NoisyGradients` has the proof.

    :param rule: ``VariationalUpdate``, ``FixedPointUpdate``, or ``AveragingUpdate`` or
        ``SplitPriorUpdate`` around one of them.
    :param clip: The largest norm C that the gradient of one row has a say with; infinity for none.
    :param noise_multiplier: The standard deviation σ of the noise over C.
    :param sampling_rate: The probability with which each row takes part in a step.
    :param means_only: Whether q keeps the spread that it starts with, so that all of the budget
        goes to its means: for mean-field Gaussians. Noise says little of many thousand spreads.
    :raises InvalidDataError: for rules that look at data in other ways, and for noise without a
        bound to scale it by.
    """

    sampling_rate: Fraction = 1.0
    means_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_known(self._inner, self.means_only)
        if isinstance(self.rule, AveragingUpdate) and self.rule.proximal > 0.0:
            raise InvalidDataError("FedProx's term tells the number of rows: proximal must be 0")

    @property
    def release(self) -> Release:
        return Release(self.noise_multiplier, self.sampling_rate)

    @property
    def releases_per_answer(self) -> int:
        inner = self._inner
        if isinstance(inner, VariationalUpdate):
            return num_steps(inner, self.sampling_rate)
        return int(inner.steps)

    def require_task(self, task: LocalTask) -> None:
        super().require_task(task)
        if self.means_only and not isinstance(task.posterior, MeanFieldNormal):
            family = type(task.posterior).__name__
            raise InvalidDataError(f"means_only is for mean-field Gaussians, got a {family}")
        if self.means_only and task.own is None and isinstance(self._inner, FixedPointUpdate):
            raise InvalidDataError(
                "fixed-point steps of means alone want a warm start, but the client has no factor"
            )

    def private_factor(self, task: LocalTask, draws: Draws) -> Factor:
        inner: Any = self._inner
        kind: Any = NoisyVariational if isinstance(inner, VariationalUpdate) else NoisyFixedPoint
        settings = {one.name: getattr(inner, one.name) for one in fields(inner)}
        gradients = NoisyGradients(self.clip, self.release, draws, self.means_only)
        noisy = kind(**settings, gradients=gradients)
        rule = noisy if inner is self.rule else replace(self.rule, rule=noisy)
        return rule(task).factor

    @property
    def _inner(self) -> Any:
        """The rule that looks at data."""
        outer = isinstance(self.rule, (AveragingUpdate, SplitPriorUpdate))
        return self.rule.rule if outer else self.rule


def num_steps(rule: VariationalUpdate, sampling_rate: float) -> int:
    """So many that a row comes as often as the rule says, on average."""
    return rule.epochs * math.ceil(1.0 / sampling_rate)


def _require_known(rule: Any, means_only: bool) -> None:
    """Refuse rules that look at data without noise."""
    if isinstance(rule, FixedPointUpdate):
        if rule.divergence != KL():
            raise InvalidDataError("noisy fixed-point steps are for the KL divergence only")
    elif not isinstance(rule, VariationalUpdate):
        raise InvalidDataError(
            "PrivateGradients is for VariationalUpdate, FixedPointUpdate, or AveragingUpdate or "
            f"SplitPriorUpdate around one, got {rule!r}"
        )
    elif isinstance(rule.optimiser, LBFGS):
        raise InvalidDataError("LBFGS wants exact gradients: private ones are noisy; take Adam")
    elif rule.stopping is not None:
        raise InvalidDataError("when a visit stops would tell about data: stopping must be None")
    elif rule.stateful:
        raise InvalidDataError("private fits begin anew with each visit: stateful must be False")
    elif means_only and not isinstance(rule.stochastic_optimiser, GradientOptimiser):
        name = type(rule.optimiser).__name__
        raise InvalidDataError(f"means_only is for Adam and SGD, not for {name}")


@dataclass(frozen=True)
class NoisyGradients:
    """``(Σ_{n ∈ B} g_n min(1, C / ‖g_n‖) + σ C ξ) / rate``, ξ standard normal (Abadi et al. 2016).

    Each row is in B with this rate, alone (Poisson sampling), and the sum over B is divided by the
    rate: by what is known of all rows, not by how many came.

    Sensitivity: let a data set have one row more than another. In any step both draw the same B of
    the rows that they share, and the same random numbers for each of these rows, with the same
    probability, as rows are drawn alone and random numbers belong to rows. If the further row is
    not in B the sums are the same. If it is, they differ by its clipped gradient, of norm C at
    most. So the sum is a Gaussian mechanism with noise multiplier σ on a Poisson sample, which is
    what the accountant is told. The start, the cavity and all that is done with the sum since
    depend on data through such sums only.

    :param clip: The bound C; infinity for none.
    :param release: σ and the rate.
    :param draws: Where the random numbers come from: neither the server nor anyone else knows them.
    :param means_only: Whether what a gradient says of q's spread is left out.
    """

    clip: float
    release: Release
    draws: Draws
    means_only: bool

    def __call__(self, task: LocalTask, loss: Any, q: Any) -> tf.Tensor:
        """An estimate of ``∂ E_q[log p(Y | θ)]`` by q's unconstrained numbers, of their shape."""
        numbers = tf.convert_to_tensor(q.unconstrained())
        total = compiled_for(
            task.model, ("clipped sum", loss), lambda model: clipped_sum_of(model, loss)
        )
        clip, by_spread = (tf.cast(x, numbers.dtype) for x in (self.clip, not self.means_only))
        sums = [
            total(type(q), numbers, X, Y, weights, self.draws.seed(), clip, by_spread)
            for X, Y, weights in self._sample(task, numbers.dtype.as_numpy_dtype)
        ]
        noise = np.zeros(numbers.shape)
        scale = self.release.noise_multiplier * self.clip if self.release.noise_multiplier else 0.0
        if scale > 0.0 and self.means_only:  # what is always zero needs no noise
            noise[0] = scale * self.draws.normal(*numbers.shape[1:])
        elif scale > 0.0:
            noise = scale * self.draws.normal(*numbers.shape)
        return tf.add_n([*sums, tf.cast(noise, numbers.dtype)]) / self.release.sampling_rate

    def _sample(self, task: LocalTask, dtype: Any) -> Iterator[tuple[Any, Any, np.ndarray]]:
        """The rows of B in parts of one size, the last of them filled up with rows of weight 0."""
        rate = self.release.sampling_rate
        rows = np.arange(task.num_data)
        if rate < 1.0:
            rows = self.draws.sample(task.num_data, rate)
        size, (X, Y) = min(ROWS_AT_ONCE, task.num_data), task.data
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            weights = np.zeros(size, dtype)
            weights[: len(part)] = 1.0
            part = np.resize(part, size)
            yield X[part], Y[part], weights


@dataclass(frozen=True)
class NoisyFixedPoint(FixedPointUpdate):
    """The rule with these gradients in the place of its own.

    Of means alone, a step keeps the precision Λ_t of the client's factor and goes to the factor of
    that precision whose gradient at the mean m of q is the noisy one g: ``h = g + Λ_t m``.
    """

    gradients: NoisyGradients = field(kw_only=True)

    def target(self, task: LocalTask, q: Any, own: Any, rows: np.ndarray, step: int) -> Factor:
        gradient = self.gradients(task, self.loss, q)
        if self.gradients.means_only:
            precision = np.asarray(own.natural[1])
            h = gradient[0].numpy() + precision * np.asarray(q.mean)
            return Factor(MeanFieldNormal, (h, precision))
        member = type(q)(*tensors(q.natural))
        by_mean = member.natural_gradient(lambda q: tf.reduce_sum(gradient * q.unconstrained()))
        return Factor(type(q), by_mean.natural).as_arrays()


@dataclass(frozen=True)
class NoisyVariational(VariationalUpdate):
    """The rule with these gradients in the place of its minibatches'.

    The optimiser, the divergence from the cavity and what is done with q afterwards work on what
    is private already.
    """

    gradients: NoisyGradients = field(kw_only=True)

    def fit(self, task: LocalTask) -> tuple[ExponentialFamily, float, int]:
        """q, no free energy, and steps made: a number that does not depend on data."""
        optimiser = self.stochastic_optimiser
        step = compiled_for(
            task.model,
            ("noisy step", optimiser, self.divergence),
            lambda model: _compiled_step(optimiser, self.divergence),
        )
        family = type(task.posterior)
        moving: Any = _KeepingSpread if self.gradients.means_only else family
        cavity, state = factor_tensors(task.cavity), optimiser.begin(task.start)
        number = num_steps(self, self.gradients.release.sampling_rate)
        for _ in range(number):
            q = optimiser.member(family, state)
            state = step(moving, state, cavity, self.gradients(task, self.loss, q))
        return optimiser.member(family, state).as_arrays(), math.nan, number


def _compiled_step(optimiser: StochasticOptimiser, divergence: Divergence) -> Callable[..., Any]:
    """One step whose data term is linear, with this gradient."""

    @tf.function(autograph=False, reduce_retracing=True)
    def step(family: Any, state: Any, given: Any, gradient: Any) -> Any:
        cavity = Factor(getattr(family, "of", family), *given)

        def data_term(q: Any) -> tf.Tensor:
            return tf.reduce_sum(gradient * q.unconstrained())

        def penalty(q: Any) -> tf.Tensor:
            return divergence(q, cavity)

        return optimiser.step(family, state, data_term, penalty, cavity)[0]

    return step


class _KeepingSpread:
    """A family for optimisers that are to move means alone."""

    of = MeanFieldNormal

    @staticmethod
    def from_unconstrained(numbers: tf.Tensor) -> MeanFieldNormal:
        spread = tf.stop_gradient(numbers[1])
        return MeanFieldNormal.from_unconstrained(tf.stack([numbers[0], spread]))


# ---- clipping ----

ClippedSum = Callable[..., tf.Tensor]
"""Of (family, numbers, X, Y, weights, seed, clip, by_spread): shaped as the numbers."""


@runtime_checkable
class ClippedGradientModel(Protocol):
    """A model that knows its clipped gradients better than differentiation row by row does."""

    def clipped_gradient(
        self, q: Any, X: Any, Y: Any, weights: Any, seed: Any, clip: Any, by_spread: Any, loss: Any
    ) -> tf.Tensor:
        """``Σ_n w_n g_n min(1, C / ‖g_n‖)``, shaped as ``q.unconstrained()``.

        Here ``g_n`` is the gradient of ``E_q[log p(y_n | θ)]``, or of an estimate of it whose
        random numbers are independent among rows, by the unconstrained numbers of q. A row whose
        gradient is not finite counts as zero.

        :param q: A member of the prior's family.
        :param X: Inputs [N, D].
        :param Y: Observations [N, P].
        :param weights: The weights w, 0 or 1: [N].
        :param seed: Two integers [2] that determine the estimate.
        :param clip: The bound C on the norm; infinity for none.
        :param by_spread: 1 for the whole gradient; 0 to leave what it says of q's spread at zero.
        :param loss: A loss in the place of ``−log p(y | θ)``; None for that.
        """


def clipped_sum_of(model: Model, loss: Any) -> ClippedSum:
    """The model's own formula if it has one; else gradients row by row."""
    own: Any = model if isinstance(model, ClippedGradientModel) else None
    expected: Any = expected_log_likelihood_of(model, loss) if own is None else None

    @tf.function(autograph=False, reduce_retracing=True)
    def clipped_sum(
        family: Any, numbers: Any, X: Any, Y: Any, w: Any, seed: Any, clip: Any, spread: Any
    ) -> tf.Tensor:
        if own is not None:
            q = family.from_unconstrained(numbers)
            return own.clipped_gradient(q, X, Y, w, seed, clip, spread, loss)

        def gradient(row: Any) -> tf.Tensor:
            x, y, number = row
            own_seed = tf.random.experimental.stateless_fold_in(seed, number)
            with tf.GradientTape() as tape:
                tape.watch(numbers)
                value = expected(family.from_unconstrained(numbers), x[None], y[None], own_seed)
            return tape.gradient(value, numbers)

        rows = tf.vectorized_map(gradient, (X, Y, tf.range(tf.shape(X)[0])))
        if numbers.shape.rank == 2 and numbers.shape[0] == 2:  # means before spreads
            rows *= tf.stack([tf.ones_like(spread), spread])[:, None]
        flat = tf.reshape(rows, [tf.shape(X)[0], -1])
        share = shares(tf.reduce_sum(tf.square(flat), axis=1), w, clip)
        clipped = tf.math.multiply_no_nan(flat, share[:, None])
        return tf.reshape(tf.reduce_sum(clipped, axis=0), tf.shape(numbers))

    return clipped_sum


def shares(squared_norms: tf.Tensor, weights: tf.Tensor, clip: tf.Tensor) -> tf.Tensor:
    """The factor of each row's gradient: ``w_n min(1, C / ‖g_n‖)``, 0 if not finite: [N].

    :param squared_norms: ``‖g_n‖²`` [N].
    :param weights: The weights w, 0 or 1: [N].
    :param clip: The bound C.
    """
    share = weights / tf.maximum(tf.ones_like(clip), tf.sqrt(squared_norms) / clip)
    return tf.where(tf.math.is_finite(squared_norms), share, tf.zeros_like(share))
