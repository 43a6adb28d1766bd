"""What single data are worth by moment matching: the step that all expectation propagation shares.

A site approximates the likelihood of one datum. The sites of many data are one ``Factor`` whose
arrays have a leading axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.pvi.updates.compiled import compiled_for
from streaming_gp.pvi.updates.task import LocalTask


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


def tilted_factors(model: Any, alpha: float, cavities: Factor, X: Any, Y: Any) -> Factor:
    """``(proj[q_n(θ) p(y_n | θ)^α] / q_n(θ))^(1/α)`` for N data: N sites.

    A site whose cavity or tilted distribution is improper is NaN, its constant always.

    :param model: a ``TiltedModel``.
    :param alpha: α.
    :param cavities: q_n, one for each datum, or a single one for all of them.
    :param X: [N, D].
    :param Y: [N, P].
    :raises InvalidDataError: if the model has no ``log_tilted``.
    """
    if not hasattr(model, "log_tilted"):
        name = type(model).__name__
        raise InvalidDataError(f"{name} has no log_tilted, which expectation propagation asks for")
    tied = len(cavities.natural[0]) == 1
    compiled = compiled_for(model, ("tilted", alpha, tied), lambda model: _compiled(model, alpha))
    natural, scale = compiled(cavities.family, cavities.natural, X, Y)
    return Factor(cavities.family, tuple(eta.numpy() for eta in natural), scale.numpy())


def _compiled(model: Any, alpha: float) -> Callable[..., Any]:
    @tf.function(reduce_retracing=True)
    def compiled(family: Any, cavities: Any, X: Any, Y: Any) -> Any:
        def of_one(given: Any) -> Any:
            natural, x, y = given
            matched = family(*natural).moment_match(
                lambda cavity: model.log_tilted(cavity, x, y, alpha)
            )
            site = matched ** (1.0 / alpha)
            return site.natural, site.log_scale

        return tf.vectorized_map(of_one, (cavities, X, Y))

    return compiled


def refined(old: Factor, new: Factor) -> tuple[Factor, int]:
    """New sites, or old ones where there is no new one; and how many of these there are.

    :param old: N sites, or one for all.
    :param new: N sites, NaN where there is none.
    """
    finite = np.isfinite(new.log_scale)

    def chosen(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(finite.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    natural = tuple(chosen(a, b) for a, b in zip(new.natural, old.natural, strict=True))
    scale = chosen(new.log_scale, old.log_scale)
    return Factor(new.family, natural, scale), int(np.sum(~finite))


def stacked(site: Factor, number: int = 1) -> Factor:
    """So many times the same site."""
    natural = tuple(np.repeat(np.asarray(eta)[None], number, axis=0) for eta in site.natural)
    return Factor(site.family, natural, np.repeat(np.asarray(site.log_scale), number))


def product(sites: Factor) -> Factor:
    """Of all sites."""
    natural = tuple(np.sum(eta, axis=0) for eta in sites.natural)
    return Factor(sites.family, natural, np.sum(sites.log_scale))


def own_factor(task: LocalTask) -> Factor:
    """The client's factor, or the unit factor."""
    return task.cavity**0.0 if task.own is None else task.own


def evidence(cavity: Factor, factor: Factor) -> float:
    """``log ∫ cavity(θ) t(θ) dθ``, NaN where that is not finite."""
    both = cavity * factor
    return float(both.log_integral()) if cavity.is_proper and both.is_proper else float("nan")
