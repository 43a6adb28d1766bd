"""Sites of single data by moment matching: the step that all expectation propagation shares.

A site approximates the likelihood of one datum. The sites of many data are one ``Factor`` whose
tensors have a leading axis.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from streaming_gp.expfam import Factor, Normal
from streaming_gp.pvi.compiled import compiled_for, factor_tensors
from streaming_gp.pvi.model import TiltedModel, require
from streaming_gp.pvi.task import LocalTask

map_structure = tf.nest.map_structure


class Step(Hashable, Protocol):
    """What a rule makes of one minibatch, in TensorFlow's operations."""

    def __call__(
        self, model: Any, cavity: Factor, factor: Factor, sites: Any, data: Batch
    ) -> tuple[Factor, Any, tf.Tensor]:
        """The client's factor now, the sites, and how many of them stayed as they were.

        :param cavity: The client's cavity, without anything of its own.
        :param factor: The client's factor.
        :param sites: The B sites of the minibatch as one factor; None for a rule that keeps none.
        :param data: The minibatch.
        """
        ...


class Batch(NamedTuple):
    """X [B, D] and Y [B, P] of a minibatch, and how many data there are in all."""

    X: tf.Tensor
    Y: tf.Tensor
    num_data: tf.Tensor


def minibatches(task: LocalTask, batch_size: int | None, steps: int) -> np.ndarray:
    """Row numbers of the task's first minibatches: [S, B]."""
    return np.stack(list(islice(task.minibatches(batch_size), steps)))


def swept(
    step: Step, task: LocalTask, factor: Factor, rows: np.ndarray, sites: Factor | None = None
) -> tuple[Factor, Any, int]:
    """One step after another, compiled as one loop.

    By XLA if there is more than one, but for full covariances: its Cholesky is slow.

    :param step: What is done with each minibatch.
    :param factor: The client's factor.
    :param rows: The row numbers of each step's minibatch [S, B].
    :param sites: All sites as one factor with [S, B] in front, of which each step gets and gives
        its own; None for a rule that keeps none.
    :returns: factor, sites, and how many stayed as they were, over all steps.
    :raises InvalidDataError: if the model has no ``log_tilted``.
    """
    require(task.model, TiltedModel, "expectation propagation")
    family = task.cavity.family
    jit = len(rows) > 1 and family is not Normal
    compiled = compiled_for(task.model, (step, jit), lambda model: _compiled(model, step, jit))
    given = _parts(task.cavity), _parts(factor)
    found, new, skipped = compiled(family, given, _parts(sites), *task.data, rows)
    return Factor(family, *found), Factor(family, *new) if new else None, int(skipped)


def _compiled(model: Any, step: Step, jit: bool) -> Callable[..., Any]:
    @tf.function(jit_compile=jit, reduce_retracing=not jit)
    def compiled(family: Any, given: Any, sites: Any, X: Any, Y: Any, rows: Any) -> Any:
        cavity, factor = given

        def one(number: Any, factor: Any, written: Any, skipped: Any) -> Any:
            mine = rows[number]
            data = Batch(tf.gather(X, mine), tf.gather(Y, mine), tf.shape(X)[0])
            old = Factor(family, *map_structure(lambda eta: eta[number], sites)) if sites else None
            before = Factor(family, *cavity), Factor(family, *factor)
            now, new, kept = step(model, *before, old, data)
            written = map_structure(lambda all, eta: all.write(number, eta), written, _parts(new))
            return number + 1, _parts(now), written, skipped + kept

        start = (0, factor, map_structure(_array_like, sites), 0)
        found = tf.while_loop(lambda number, *_: number < tf.shape(rows)[0], one, start)
        return found[1], map_structure(lambda written: written.stack(), found[2]), found[3]

    return compiled


def _array_like(eta: tf.Tensor) -> tf.TensorArray:
    """To be written once: sites that a loop carried whole would be copied in every step."""
    return tf.TensorArray(eta.dtype, tf.shape(eta)[0], element_shape=eta.shape[1:])


def _parts(factor: Factor | None) -> Any:
    """The tensors of a factor; nothing for None."""
    return () if factor is None else factor_tensors(factor)


def tilted_factors(model: TiltedModel, alpha: float, cavities: Factor, data: Batch) -> Factor:
    """``(proj[q_n(θ) p(y_n | θ)^α] / q_n(θ))^(1/α)`` for a minibatch of B: B sites.

    A site whose cavity or tilted distribution is improper is NaN, its constant always.

    :param alpha: The power α > 0.
    :param cavities: The B distributions q_n as one factor, or a single one for all data.
    """

    def of_one(given: Any) -> Any:
        natural, x, y = given
        q: Any = cavities.family(*natural)
        matched = q.moment_match(lambda cavity: model.log_tilted(cavity, x, y, alpha))
        return _parts(matched ** (1.0 / alpha))

    natural, scale = tf.vectorized_map(of_one, (cavities.natural, data.X, data.Y))
    return Factor(cavities.family, natural, scale)


def refined(old: Factor, new: Factor) -> tuple[Factor, tf.Tensor]:
    """New sites, or old ones where there is no new one; and how many of these there are.

    :param old: The N sites so far as one factor, or a single one for all.
    :param new: The N new sites as one factor, NaN where there is none.
    """
    finite = tf.math.is_finite(new.log_scale)

    def chosen(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.reshape(finite, [-1, *[1] * (len(a.shape) - 1)]), a, b)

    natural = tuple(chosen(a, b) for a, b in zip(new.natural, old.natural, strict=True))
    scale = chosen(new.log_scale, old.log_scale)
    return Factor(new.family, natural, scale), tf.reduce_sum(tf.cast(~finite, tf.int32))


def stacked(site: Factor, *shape: int) -> Factor:
    """The same site in every place of a shape, [1] if none is given."""

    def repeated(eta: Any) -> tf.Tensor:
        return tf.broadcast_to(eta, [*(shape or (1,)), *np.shape(eta)])

    return Factor(site.family, tuple(map(repeated, site.natural)), repeated(site.log_scale))


def product(sites: Factor, axes: int = 1) -> Factor:
    """The product of all sites, over so many leading axes."""
    front = list(range(axes))
    natural = tuple(tf.reduce_sum(eta, axis=front) for eta in sites.natural)
    return Factor(sites.family, natural, tf.reduce_sum(sites.log_scale))


def own_factor(task: LocalTask) -> Factor:
    """The client's factor, or the unit factor."""
    return task.cavity**0.0 if task.own is None else task.own


def evidence(cavity: Factor, factor: Factor) -> float:
    """``log ∫ cavity(θ) t(θ) dθ``, NaN where that is not finite."""
    both = cavity * factor
    return float(both.log_integral()) if cavity.is_proper and both.is_proper else float("nan")
