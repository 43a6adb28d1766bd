"""Power expectation propagation with one site a datum (Minka 2004; PVI 2018, algorithms 2 and 3),
or one for all data (Li et al. 2015; algorithm 4), and assumed density filtering, which keeps none.

A site approximates the likelihood of one datum. The sites of many data are one ``Factor`` whose
tensors have a leading axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, Normal
from streaming_gp.inputs import (
    Fraction,
    PositiveFinite,
    PositiveInteger,
    require_power,
    require_strategy,
    typed,
)
from streaming_gp.pvi.damping import damped
from streaming_gp.pvi.model import TiltedModel, compiled_for, factor_tensors, require
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule

map_structure = tf.nest.map_structure


@typed
@dataclass(frozen=True)
class PowerEPUpdate:
    """``t_n ← t_n^(1−ρ) (proj[q_n p(y_n | θ)^α] / q_n)^(ρ/α)`` under ``q_n = q / t_n^α``.

    This is algorithm 2 of PVI 2018 with ``q_n t_n^α`` written for q. A visit sweeps over the
    client's data, and its answer is the product of their sites. As a client keeps nothing between
    visits, sites start at an equal share of its factor. Data whose cavity or tilted distribution is
    improper keep their sites in that sweep, and are counted.

    - One datum a client, ``PowerEPUpdate.one_step(alpha)``: power EP as it stands (algorithm 2),
      with the server's damping. Then α = 1 is expectation propagation, a single sequential round of
      which is assumed density filtering; α → 0 is ``FixedPointUpdate`` (property 6).
    - All data in one client and ``PowerEPUpdate(damping=1.0, sequential=True)``: the same, as
      one compiled loop.
    - One datum a client, sweeps to convergence: the q of least α-divergence from the tilted
      distribution (algorithm 3), of which the sweeps are the fixed-point iteration.
    - Many data a client: sweeps to convergence, so that the answer forgets the start. One sweep of
      damping 1 ties the sites to their mean, as ``StochasticEPUpdate`` does.

    :param alpha: The power α > 0; not so small that rounding is more than sites.
    :param sweeps: The number of sweeps over the client's data in one visit.
    :param damping: The damping ρ in (0, 1] of each site.
    :param sequential: Whether each site is refined under the q that the one before led to, in one
        random order; else all are refined under one q.
    :param filtered_start: Whether sites are found one after another before the first of several
        sweeps, while the client has no factor: refined under the prior all at once, many of them
        overshoot where the prior is far wider than the posterior.
    """

    alpha: PositiveFinite = 1.0
    sweeps: PositiveInteger = 20
    damping: Fraction = 0.5
    sequential: bool = False
    filtered_start: bool = True

    def __post_init__(self) -> None:
        require_power("alpha", self.alpha, "FixedPointUpdate")

    @classmethod
    def one_step(cls, alpha: float = 1.0) -> PowerEPUpdate:
        """One undamped moment match of each datum (PVI 2018, algorithm 2).

        :param alpha: The power α > 0; 1 is expectation propagation.
        """
        return cls(alpha, sweeps=1, damping=1.0)

    def __call__(self, task: LocalTask) -> LocalResult:
        all_at_once = np.arange(task.num_data)[None]
        rows = minibatches(task, 1, task.num_data) if self.sequential else all_at_once
        filtered = self.filtered_start and task.own is None and task.num_data > 1
        if filtered and not self.sequential and self.sweeps > 1:
            sites = self._filtered_sites(task)
        else:
            sites = repeated(own_factor(task) ** (1.0 / task.num_data), *rows.shape)
        factor, skipped = product(sites, axes=2), 0
        step = _RefineSites(self.alpha, self.damping)
        for _ in range(self.sweeps):
            _, sites, improper = sweep(step, task, factor, rows, sites)
            factor, skipped = product(sites, axes=2), skipped + improper
        return answered(task, factor, self.sweeps, skipped)

    def _filtered_sites(self, task: LocalTask) -> Any:
        """Each datum's site [1, N] under the cavity and the sites of those before it."""
        rows, unit = np.arange(task.num_data)[:, None], task.cavity**0.0
        step = _RefineSites(self.alpha, damping=1.0)
        _, sites, _ = sweep(step, task, unit, rows, repeated(unit, *rows.shape))
        firsts = map_structure(lambda eta: eta[:, 0][None], factor_tensors(sites))
        return Factor(sites.family, *firsts)


@dataclass(frozen=True)
class _RefineSites:
    """Every datum has its own."""

    alpha: float
    damping: float

    def __call__(
        self, model: Any, cavity: Factor, factor: Factor, sites: Factor, X: Any, Y: Any, number: Any
    ) -> tuple[Factor, Factor, tf.Tensor]:
        cavities = repeated(cavity * factor) / sites**self.alpha
        new = tilted_factors(model, self.alpha, cavities, X, Y)
        new, skipped = refine(sites, damped(sites, new, self.damping))
        return factor * product(new / sites), new, skipped


@typed
@dataclass(frozen=True)
class AssumedDensityUpdate:
    """``q ← proj[q(θ) p(y_n | θ)]`` for one datum after another, in a random order (Minka 2001,
    section 3.2).

    The first pass is that of EP. Nothing is ever taken out again: p passes count every datum p
    times, and q becomes too sure. Probabilistic back-propagation trains so (Hernández-Lobato &
    Adams 2015). Data whose tilted distribution is improper are left out, and counted.

    :param passes: The number of passes over the client's data in one visit.
    """

    passes: PositiveInteger = 1

    def __call__(self, task: LocalTask) -> LocalResult:
        rows = minibatches(task, 1, self.passes * task.num_data)
        factor, _, skipped = sweep(_include, task, task.cavity**0.0, rows)
        return answered(task, factor, self.passes, skipped)


def _include(
    model: Any, cavity: Factor, factor: Factor, sites: None, X: Any, Y: Any, number: Any
) -> tuple[Factor, None, tf.Tensor]:
    """All sites are one product, the factor."""
    q = repeated(cavity * factor)
    new, skipped = refine(q**0.0, tilted_factors(model, 1.0, q, X, Y))
    return factor * product(new), None, skipped


@typed
@dataclass(frozen=True)
class StochasticEPUpdate:
    """``t ← t^(1−ρ) Π_n (proj[q_1 p(y_n | θ)^α] / q_1)^(ρN/(αB))`` under ``q_1 = q / t^(α/N)``.

    The client's N data share one site ``t^(1/N)``, and a minibatch of B gives that of an average
    datum. What is kept is one factor, where power EP keeps N of them; a step holds B for a
    moment. For α → 0 this is ``FixedPointUpdate`` on the same minibatches (property 7).

    - All data and damping 1, the default: averaged EP; of several clients, distributed averaged EP.
    - ``StochasticEPUpdate(steps=N, damping=1 / N, batch_size=1)``: a pass of stochastic EP; of
      several clients, distributed stochastic EP.

    :param alpha: The power α > 0; not so small that rounding is more than sites.
    :param steps: The number of steps of one visit.
    :param damping: The damping ρ in (0, 1] of each step.
    :param batch_size: The number B of random rows in each step; all if None.
    """

    alpha: PositiveFinite = 1.0
    steps: PositiveInteger = 1
    damping: Fraction = 1.0
    batch_size: PositiveInteger | None = None

    def __post_init__(self) -> None:
        require_power("alpha", self.alpha, "FixedPointUpdate")

    def __call__(self, task: LocalTask) -> LocalResult:
        step = _RefineShared(self.alpha, self.damping)
        rows = minibatches(task, self.batch_size, self.steps)
        factor, _, skipped = sweep(step, task, own_factor(task), rows)
        return answered(task, factor, self.steps, skipped)


@dataclass(frozen=True)
class _RefineShared:
    """All data share one."""

    alpha: float
    damping: float

    def __call__(
        self, model: Any, cavity: Factor, factor: Factor, sites: None, X: Any, Y: Any, number: Any
    ) -> tuple[Factor, None, tf.Tensor]:
        number = tf.cast(number, factor.log_scale.dtype)
        site = repeated(factor ** (1.0 / number))
        tied = repeated(cavity * factor) / site**self.alpha
        new, skipped = refine(site, tilted_factors(model, self.alpha, tied, X, Y))
        target = product(new) ** (number / tf.cast(tf.shape(X)[0], number.dtype))
        return damped(factor, target, self.damping), None, skipped


@typed
@dataclass(frozen=True)
class TiedUpdate:
    """Stochastic EP over pieces of data: ``t ← t^(1−1/K) t_k`` with ``t_k`` under ``q / t^(1/K)``.

    A client's data are cut into K pieces, whose factors all are ``t^(1/K)``. The rule fits piece k
    under the cavity that leaves out one of them, and ``t_k`` is its answer. So stochastic EP takes
    moments by sampling (supplement, C.2), as distributed EP does, at a K-th of its memory:
    ``TiedUpdate(MomentSharingUpdate(...), 20)``. With single data as pieces and
    ``PowerEPUpdate.one_step()`` it is ``StochasticEPUpdate``.

    :param rule: The rule that fits a piece.
    :param pieces: The number of pieces K; rows are cut where they are, in order.
    :param passes: The number of passes over all pieces in one visit.
    :param averaged: Whether all pieces are fitted under one q, and then ``t ← Π_k t_k`` (averaged
        EP); else one after another, in a random order.
    :raises InvalidDataError: if a number is not positive.
    """

    rule: UpdateRule
    pieces: PositiveInteger
    passes: PositiveInteger = 1
    averaged: bool = False

    def __post_init__(self) -> None:
        require_strategy("rule", self.rule, UpdateRule, "pvi.VariationalUpdate()")

    def __call__(self, task: LocalTask) -> LocalResult:
        """Fit piece after piece.

        :raises InvalidDataError: if there are more pieces than data.
        :raises ImproperError: if q is no distribution on the way.
        """
        if self.pieces > task.num_data:
            raise InvalidDataError(f"{task.num_data} data cannot be cut into {self.pieces} pieces")
        factor, skipped, knows_evidence = own_factor(task), 0, True
        rng, (X, Y) = np.random.default_rng(task.seed), task.data
        parts = np.array_split(np.arange(task.num_data), self.pieces)
        for _ in range(self.passes):
            total = factor**0.0
            for number in rng.permutation(self.pieces):
                rows, seed = parts[number], int(rng.integers(2**31))
                q, own = (task.cavity * factor).normalised(), factor ** (1.0 / self.pieces)
                piece = replace(
                    task, data=(X[rows], Y[rows]), posterior=q, own=own, start=q, seed=seed
                )
                result = self.rule(piece)
                skipped += result.skipped
                knows_evidence &= bool(np.isfinite(result.free_energy))
                if self.averaged:
                    total = total * result.factor
                else:
                    factor = factor ** (1.0 - 1.0 / self.pieces) * result.factor
            factor = total if self.averaged else factor
        answer = answered(task, factor, self.passes, skipped)
        return answer if knows_evidence else replace(answer, free_energy=float("nan"))


# ---- what all rules of expectation propagation share ----


def minibatches(task: LocalTask, batch_size: int | None, steps: int) -> np.ndarray:
    """Row numbers of the task's first minibatches: [S, B]."""
    return np.stack(list(islice(task.minibatches(batch_size), steps)))


def sweep(
    step: Any, task: LocalTask, factor: Factor, rows: np.ndarray, sites: Factor | None = None
) -> tuple[Factor, Any, int]:
    """One step after another, compiled as one loop.

    By XLA if there is more than one, but for full covariances: its Cholesky is slow.

    :param step: A hashable function, in TensorFlow's operations, of the model, the client's cavity,
        its factor, the B sites of a minibatch as one factor (None for a rule that keeps none), the
        minibatch X [B, D] and Y [B, P], and the number of all data. It gives the new factor, the
        new sites, and how many of them stayed as they were.
    :param factor: The client's factor.
    :param rows: The row numbers of each step's minibatch [S, B].
    :param sites: All sites as one factor with [S, B] in front, of which each step gets and gives
        its own; None for a rule that keeps none.
    :returns: factor, sites, and how many stayed as they were, over all steps.
    """
    require(task.model, TiltedModel, "expectation propagation")
    family = task.cavity.family
    jit = len(rows) > 1 and family is not Normal
    compiled = compiled_for(task.model, (step, jit), lambda model: _compiled(model, step, jit))
    given = factor_tensors(task.cavity), factor_tensors(factor)
    own = () if sites is None else factor_tensors(sites)
    after, new, skipped = compiled(family, *given, own, *task.data, rows)
    return Factor(family, *after), Factor(family, *new) if new else None, int(skipped)


def _compiled(model: Any, step: Any, jit: bool) -> Callable[..., Any]:
    @tf.function(autograph=False, jit_compile=jit, reduce_retracing=not jit)
    def compiled(
        family: Any, cavity: Any, factor: Any, sites: Any, X: Any, Y: Any, rows: Any
    ) -> Any:
        def one(number: Any, factor: Any, written: Any, skipped: Any) -> Any:
            mine = rows[number]
            old = Factor(family, *map_structure(lambda eta: eta[number], sites)) if sites else None
            after, new, improper = step(
                model, Factor(family, *cavity), Factor(family, *factor), old,
                tf.gather(X, mine), tf.gather(Y, mine), tf.shape(X)[0],
            )  # fmt: skip
            new = factor_tensors(new) if sites else ()
            written = map_structure(lambda all, eta: all.write(number, eta), written, new)
            return number + 1, factor_tensors(after), written, skipped + improper

        # sites that a loop carried whole would be copied in every step
        written = map_structure(
            lambda eta: tf.TensorArray(eta.dtype, tf.shape(eta)[0], element_shape=eta.shape[1:]),
            sites,
        )
        start = (0, factor, written, 0)
        _, factor, written, skipped = tf.while_loop(
            lambda number, *_: number < tf.shape(rows)[0], one, start
        )
        return factor, map_structure(lambda each: each.stack(), written), skipped

    return compiled


def tilted_factors(model: TiltedModel, alpha: float, cavities: Factor, X: Any, Y: Any) -> Factor:
    """``(proj[q_n(θ) p(y_n | θ)^α] / q_n(θ))^(1/α)`` for a minibatch of B: B sites.

    A site whose cavity or tilted distribution is improper is NaN, its constant always.

    :param alpha: The power α > 0.
    :param cavities: The B distributions q_n as one factor, or a single one for all data.
    """

    def of_one(given: Any) -> Any:
        natural, x, y = given
        q: Any = cavities.family(*natural)
        match = q.moment_match(lambda cavity: model.log_tilted(cavity, x, y, alpha))
        return factor_tensors(match ** (1.0 / alpha))

    natural, scale = tf.vectorized_map(of_one, (cavities.natural, X, Y))
    return Factor(cavities.family, natural, scale)


def refine(old: Factor, new: Factor) -> tuple[Factor, tf.Tensor]:
    """New sites, or old ones where there is no new one; and how many of these there are.

    :param old: The N sites so far as one factor, or a single one for all.
    :param new: The N new sites as one factor, NaN where there is none.
    """
    finite = tf.math.is_finite(new.log_scale)

    def choose(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.reshape(finite, [-1, *[1] * (len(a.shape) - 1)]), a, b)

    natural = tuple(choose(a, b) for a, b in zip(new.natural, old.natural, strict=True))
    scale = choose(new.log_scale, old.log_scale)
    return Factor(new.family, natural, scale), tf.reduce_sum(tf.cast(~finite, tf.int32))


def repeated(site: Factor, *shape: int) -> Factor:
    """The same site in every place of a shape, [1] if none is given."""

    def fill(eta: Any) -> tf.Tensor:
        return tf.broadcast_to(eta, [*(shape or (1,)), *np.shape(eta)])

    return Factor(site.family, tuple(map(fill, site.natural)), fill(site.log_scale))


def product(sites: Factor, axes: int = 1) -> Factor:
    """The product of all sites, over so many leading axes."""
    front = list(range(axes))
    natural = tuple(tf.reduce_sum(eta, axis=front) for eta in sites.natural)
    return Factor(sites.family, natural, tf.reduce_sum(sites.log_scale))


def own_factor(task: LocalTask) -> Factor:
    """The client's factor, or the unit factor."""
    return task.cavity**0.0 if task.own is None else task.own


def answered(task: LocalTask, factor: Factor, steps: int, skipped: int = 0) -> LocalResult:
    """A factor with the evidence ``log ∫ cavity(θ) t(θ) dθ``, NaN where that is not finite."""
    both, evidence = task.cavity * factor, float("nan")
    if task.cavity.is_proper and both.is_proper:
        evidence = float(both.log_integral())
    return LocalResult(factor.as_arrays(), evidence, steps, skipped)
