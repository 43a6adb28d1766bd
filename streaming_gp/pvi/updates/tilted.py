"""What single data are worth by moment matching: the step that all expectation propagation shares.

A site approximates the likelihood of one datum. The sites of many data are one ``Factor`` whose
tensors have a leading axis.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import islice
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.pvi.updates.compiled import compiled_for
from streaming_gp.pvi.updates.task import LocalTask

Kept = tuple[Factor, ...]
"""What a rule keeps from step to step."""


class TiltedModel(Protocol):
    """What expectation propagation asks of a model beyond a prior."""

    def log_tilted(self, cavity: Any, x: tf.Tensor, y: tf.Tensor, alpha: float) -> tf.Tensor:
        """``log ∫ cavity(θ) p(y | θ, x)^α dθ`` of one datum.

        :param cavity: a Gaussian; the integral is differentiable in its moments.
        :param x: [D].
        :param y: [P].
        :param alpha: α.
        :returns: a scalar.
        :raises InvalidDataError: where it has no form for this α.
        """
        ...


class Step(Hashable, Protocol):
    """What a rule makes of one minibatch, in TensorFlow's operations."""

    def __call__(
        self, model: Any, cavity: Factor, kept: Any, X: tf.Tensor, Y: tf.Tensor, rows: tf.Tensor
    ) -> tuple[Any, tf.Tensor]:
        """What is kept now, and how many sites stayed as they were.

        :param cavity: of the client, without anything of its own.
        :param kept: so far.
        :param X: [N, D].
        :param Y: [N, P].
        :param rows: of the minibatch [B].
        """
        ...


def swept(
    step: Step, task: LocalTask, kept: Kept, batch_size: int | None, steps: int
) -> tuple[Kept, int]:
    """So many steps over the task's minibatches, compiled as one loop.

    :returns: what is kept in the end, and how many sites stayed as they were, over all steps.
    :raises InvalidDataError: if the model has no ``log_tilted``.
    """
    if not hasattr(task.model, "log_tilted"):
        name = type(task.model).__name__
        raise InvalidDataError(f"{name} has no log_tilted, which expectation propagation asks for")
    jit = batch_size is not None  # XLA wants shapes that do not change
    compiled = compiled_for(task.model, (step, jit), lambda model: _compiled(model, step, jit))
    rows = np.stack(list(islice(task.minibatches(batch_size), steps)))
    family, given = task.cavity.family, [_tensors(factor) for factor in (task.cavity, *kept)]
    found, skipped = compiled(family, given, *task.data, rows)
    return tuple(Factor(family, *parts) for parts in found), int(skipped)


def _compiled(model: Any, step: Step, jit: bool) -> Callable[..., Any]:
    @tf.function(jit_compile=jit, reduce_retracing=not jit)
    def compiled(family: Any, given: Any, X: Any, Y: Any, rows: Any) -> Any:
        cavity = Factor(family, *given[0])

        def one(number: Any, kept: Any, skipped: Any) -> Any:
            factors = tuple(Factor(family, *parts) for parts in kept)
            factors, without = step(model, cavity, factors, X, Y, rows[number])
            return number + 1, [_tensors(factor) for factor in factors], skipped + without

        start = (tf.constant(0), given[1:], tf.constant(0))
        return tf.while_loop(lambda number, *_: number < tf.shape(rows)[0], one, start)[1:]

    return compiled


def _tensors(factor: Factor) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
    """Natural parameters and log constant, all of one dtype."""
    natural = tuple(tf.convert_to_tensor(eta) for eta in factor.natural)
    return natural, tf.cast(factor.log_scale, natural[0].dtype)


def tilted_factors(model: TiltedModel, alpha: float, cavities: Factor, X: Any, Y: Any) -> Factor:
    """``(proj[q_n(θ) p(y_n | θ)^α] / q_n(θ))^(1/α)`` for N data: N sites.

    A site whose cavity or tilted distribution is improper is NaN, its constant always.

    :param alpha: α.
    :param cavities: q_n, one for each datum, or a single one for all of them.
    :param X: [N, D].
    :param Y: [N, P].
    """

    def of_one(given: Any) -> Any:
        natural, x, y = given
        matched = cavities.family(*natural).moment_match(
            lambda cavity: model.log_tilted(cavity, x, y, alpha)
        )
        return _tensors(matched ** (1.0 / alpha))

    natural, scale = tf.vectorized_map(of_one, (cavities.natural, X, Y))
    return Factor(cavities.family, natural, scale)


def refined(old: Factor, new: Factor) -> tuple[Factor, tf.Tensor]:
    """New sites, or old ones where there is no new one; and how many of these there are.

    :param old: N sites, or one for all.
    :param new: N sites, NaN where there is none.
    """
    finite = tf.math.is_finite(new.log_scale)

    def chosen(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.where(tf.reshape(finite, [-1, *[1] * (len(a.shape) - 1)]), a, b)

    natural = tuple(chosen(a, b) for a, b in zip(new.natural, old.natural, strict=True))
    scale = chosen(new.log_scale, old.log_scale)
    return Factor(new.family, natural, scale), tf.reduce_sum(tf.cast(~finite, tf.int32))


def stacked(site: Factor, number: int = 1) -> Factor:
    """So many times the same site."""
    natural = tuple(tf.repeat(tf.convert_to_tensor(eta)[None], number, 0) for eta in site.natural)
    return Factor(site.family, natural, tf.repeat(site.log_scale, number))


def product(sites: Factor) -> Factor:
    """Of all sites."""
    natural = tuple(tf.reduce_sum(eta, axis=0) for eta in sites.natural)
    return Factor(sites.family, natural, tf.reduce_sum(sites.log_scale))


def own_factor(task: LocalTask) -> Factor:
    """The client's factor, or the unit factor."""
    return task.cavity**0.0 if task.own is None else task.own


def evidence(cavity: Factor, factor: Factor) -> float:
    """``log ∫ cavity(θ) t(θ) dθ``, NaN where that is not finite."""
    both = cavity * factor
    return float(both.log_integral()) if cavity.is_proper and both.is_proper else float("nan")
