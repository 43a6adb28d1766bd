"""Power expectation propagation: one site a datum (Minka 2004; PVI 2018, algorithms 2 and 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.pvi.damping import damped, require_damping
from streaming_gp.pvi.updates.compiled import compiled_for
from streaming_gp.pvi.updates.task import LocalResult, LocalTask


@dataclass(frozen=True)
class PowerEPUpdate:
    """``t_n ← t_n^(1−ρ) (proj[q_n p(y_n | θ)^α] / q_n)^(ρ/α)`` under ``q_n = q / t_n^α``.

    This is algorithm 2 of PVI 2018 with ``q_n t_n^α`` written for q. A visit makes parallel sweeps
    over the client's data, and its answer is the product of their sites. As a client keeps nothing
    between visits, sites start at an equal share of its factor. Data whose cavity or tilted
    distribution is improper keep their sites in that sweep.

    - One datum a client, one sweep of damping 1: power EP as it stands, with the server's damping.
      Then α = 1 is expectation propagation, a single sequential round of which is assumed density
      filtering; α → 0 is ``FixedPointUpdate`` (property 6).
    - One datum a client, sweeps to convergence: the q of least α-divergence from the tilted
      distribution (algorithm 3), of which the sweeps are the fixed-point iteration.
    - Many data a client: sweeps to convergence, so that the answer forgets the start. One sweep of
      damping 1 ties the sites to their mean, as ``StochasticEPUpdate`` does.

    :param alpha: α > 0.
    :param sweeps: over the client's data in one visit.
    :param damping: ρ in (0, 1].
    """

    alpha: float = 1.0
    sweeps: int = 20
    damping: float = 0.5

    def __post_init__(self) -> None:
        if self.sweeps < 1 or not self.alpha > 0.0:
            raise InvalidDataError(
                f"alpha and sweeps must be positive, got {self.alpha} and {self.sweeps}"
            )
        require_damping(self.damping)

    def __call__(self, task: LocalTask) -> LocalResult:
        tilted_factors = compiled_for(
            tilted_model(task),
            ("power EP", self.alpha),
            lambda model: _tilted_factors(model, self.alpha),
        )
        sites = _equal_shares(task)
        for _ in range(self.sweeps):
            q = (task.cavity * _product(sites)).normalised()
            new = tilted_factors(q, sites, *task.data)
            refined = damped(sites, new, self.damping)
            sites = _where(np.isfinite(new.log_scale), refined, sites)
        factor = _product(sites).as_arrays()
        return LocalResult(factor, evidence(task.cavity, factor), self.sweeps)


def tilted_model(task: LocalTask) -> Any:
    """The task's model, if it has a ``log_tilted``.

    :raises InvalidDataError: if it has none.
    """
    if not hasattr(task.model, "log_tilted"):
        name = type(task.model).__name__
        raise InvalidDataError(f"{name} has no log_tilted, which expectation propagation asks for")
    return task.model


def tilted_factor(model: Any, alpha: float, cavity: Any, x: tf.Tensor, y: tf.Tensor) -> Factor:
    """``(proj[cavity · p(y | θ)^α] / cavity)^(1/α)``: what one datum is worth under a cavity."""
    matched = cavity.moment_match(lambda member: model.log_tilted(member, x, y, alpha))
    return matched ** (1.0 / alpha)


def evidence(cavity: Factor, factor: Factor) -> float:
    """``log ∫ cavity(θ) t(θ) dθ``, or NaN where that is not finite."""
    product = cavity * factor
    return float(product.log_integral()) if cavity.is_proper and product.is_proper else float("nan")


def _equal_shares(task: LocalTask) -> Factor:
    """``own^(1/N)`` for each of N data, stacked along a leading axis."""
    own = task.own or task.cavity**0.0
    share = own ** (1.0 / task.num_data)
    natural = tuple(np.repeat(np.asarray(eta)[None], task.num_data, 0) for eta in share.natural)
    return Factor(share.family, natural, np.full(task.num_data, share.log_scale, natural[0].dtype))


def _product(sites: Factor) -> Factor:
    natural = tuple(np.sum(eta, axis=0) for eta in sites.natural)
    return Factor(sites.family, natural, np.sum(sites.log_scale))


def _tilted_factors(model: Any, alpha: float) -> Callable[..., Factor]:
    """Compiled: what each datum is worth under its own cavity, for all sites at once."""

    @tf.function(reduce_retracing=True)
    def compiled(family: Any, q: Any, sites: Any, X: Any, Y: Any) -> Any:
        def of_one(given: Any) -> Any:
            site, x, y = given
            cavity = family(*(a - alpha * b for a, b in zip(q, site, strict=True)))
            factor = tilted_factor(model, alpha, cavity, x, y)
            return factor.natural, factor.log_scale

        return tf.vectorized_map(of_one, (sites, X, Y))

    def factors(q: Any, sites: Factor, X: Any, Y: Any) -> Factor:
        found = compiled(type(q), q.natural, sites.natural, X, Y)
        return Factor(type(q), *tf.nest.map_structure(np.asarray, found))

    return factors


def _where(finite: np.ndarray, new: Factor, old: Factor) -> Factor:
    """Site by site one or the other."""

    def chosen(a: Any, b: Any) -> np.ndarray:
        return np.where(np.reshape(finite, (-1, *[1] * (a.ndim - 1))), a, b)

    natural = tuple(chosen(a, b) for a, b in zip(new.natural, old.natural, strict=True))
    return Factor(new.family, natural, chosen(new.log_scale, old.log_scale))
