"""Natural gradients of the local free energy (PVI 2018, section 3.3), and where they are exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import KL, Divergence, ExponentialFamily, Factor
from streaming_gp.expfam.divergences import require_gradient
from streaming_gp.inputs import Fraction, PositiveInteger, typed
from streaming_gp.pvi.damping import damped
from streaming_gp.pvi.guards import NO_LIMITS, Checks
from streaming_gp.pvi.model import (
    ConjugateModel,
    Model,
    NaturalGradientModel,
    compiled_for,
    tensors,
)
from streaming_gp.pvi.task import LocalResult, LocalTask
from streaming_gp.pvi.updates.power_ep import answered
from streaming_gp.pvi.updates.variational import expected_log_likelihood_of, require_objective


@dataclass(frozen=True)
class AnalyticUpdate:
    """The factor is the likelihood itself, which a conjugate model gives as ``likelihood_factor``
    (PVI 2018, section 3.1).

    :raises InvalidDataError: for a model that has no such method.

    >>> server = sgp.pvi.run(line, shards, rounds=1, update=sgp.pvi.AnalyticUpdate())
    """

    def __call__(self, task: LocalTask) -> LocalResult:
        if not isinstance(task.model, ConjugateModel):
            name = type(task.model).__name__
            raise InvalidDataError(f"{name} is not conjugate: it has no likelihood_factor")
        return answered(task, task.model.likelihood_factor(*task.data), steps=1)


@typed
@dataclass(frozen=True)
class FixedPointUpdate:
    """``t ← (1 − ρ) t + ρ ∂/∂μ E_q[log p(y | θ)]`` in natural parameters (eqs. 9, 10).

    With one step of ρ = 1, the default, the answer is the gradient at the server's q: whatever the
    partition, parallel answers sum to the same step (property 5). That makes it the rule for data
    that differ much between clients, together with ``Momentum`` at the server. With more steps
    each client goes on towards the optimum of its local free energy.

    With a loss and a divergence D (PGVI, eq. 4.5) a step goes to
    ``t + ∂/∂μ (−E_q[loss] − D(q ‖ q/t))``. The last term is −t for KL, and so the two agree; a
    Rényi divergence differs from it in second order of t, and then the partition matters.

    :param steps: The number of fixed-point steps of one visit.
    :param damping: The damping ρ in (0, 1] of each step.
    :param batch_size: The number of random rows that each step sees, scaled to all (section 3.4.1);
        all if None.
    :param loss: The loss in the place of ``−log p(y | θ)``, for models with ``expected_loss``.
    :param divergence: The divergence in the place of ``KL(q ‖ cavity)``.
    :raises InvalidDataError: if steps, damping or batch_size are out of their range.
    """

    steps: PositiveInteger = 1
    damping: Fraction = 1.0
    batch_size: PositiveInteger | None = None
    loss: Any = None
    divergence: Divergence = field(default_factory=KL)

    def __post_init__(self) -> None:
        require_objective(self.loss, self.divergence)

    @property
    def checks(self) -> Checks | None:
        """Limits of its honest answers: a likelihood's curvature, and what a minibatch makes of it,
        takes hardly any precision away. A local fit may, from a start that is too sure.
        """
        honest = self.loss is None and self.divergence == KL()
        return Checks(max_precision_loss=1e-3) if honest else None

    def __call__(self, task: LocalTask) -> LocalResult:
        batches = task.minibatches(self.batch_size)
        factor, q = task.own, task.start
        for step, rows in enumerate(islice(batches, self.steps)):
            if step > 0:
                q = (task.cavity * factor).normalised()
            target = self.target(task, q, factor, rows, step)
            if self.divergence != KL():
                target = target * _excess(self.divergence, q, task.cavity)
            factor = damped(factor, target, self.damping)
        return LocalResult(factor, steps=self.steps)

    def target(self, task: LocalTask, q: Any, own: Any, rows: np.ndarray, step: int) -> Factor:
        """``∂/∂μ E_q[log p(y | θ)]`` of all data, by a minibatch.

        :param own: The client's factor at this step, or None.
        :param rows: The numbers of the minibatch's rows.
        """
        (X, Y), scale = task.data, task.num_data / len(rows)
        in_numpy = vars(type(task.model)).get("natural_gradient_in_numpy")  # of no other class
        if in_numpy is not None and self.loss is None:
            return in_numpy(task.model, q, X[rows], Y[rows]) ** scale
        jit = self.batch_size is not None  # XLA wants shapes that do not change
        gradient = compiled_for(
            task.model,
            ("natural gradient", self.loss, jit),
            lambda model: natural_gradient(model, self.loss, jit),
        )
        return gradient(q, X[rows], Y[rows], np.array([task.seed, step], np.int32), scale)


def natural_gradient(model: Model, loss: Any, jit: bool) -> Callable[..., Factor]:
    """``scale · ∂/∂μ`` of the expected log-likelihood, by the model's own formula if it has one.

    :param loss: A loss in the place of the negative log-likelihood, or None.
    :param jit: Whether XLA compiles it.
    :returns: a compiled function of (q, X, Y, seed, scale).
    """
    given = model if loss is None and isinstance(model, NaturalGradientModel) else None
    expected = expected_log_likelihood_of(model, loss)

    @tf.function(autograph=False, jit_compile=jit, reduce_retracing=not jit)
    def compiled(family: Any, natural: Any, X: Any, Y: Any, seed: Any, scale: Any) -> Any:
        q = family(*natural)
        if given is not None:
            return (given.natural_gradient(q, X, Y, seed) ** scale).natural
        return q.natural_gradient(lambda q: scale * expected(q, X, Y, seed)).natural

    def gradient(q: ExponentialFamily, X: Any, Y: Any, seed: Any, scale: float) -> Factor:
        natural = tensors(q.natural)
        by_mean = compiled(type(q), natural, X, Y, seed, tf.cast(scale, natural[0].dtype))
        return Factor(type(q), by_mean).as_arrays()

    return gradient


def _excess(divergence: Divergence, q: ExponentialFamily, cavity: Factor) -> Factor:
    """``t − ∂/∂μ D(q ‖ cavity)`` with t = q / cavity: nothing for KL."""
    require_gradient(divergence, q, cavity)
    slope = type(q)(*tensors(q.natural)).natural_gradient(lambda q: divergence(q, cavity))
    natural = zip(q.natural, cavity.natural, slope.natural, strict=True)
    return Factor(type(q), tuple(np.asarray(a - b - c) for a, b, c in natural))


@typed
@dataclass(frozen=True)
class StochasticNaturalGradientUpdate:
    """A worker of stochastic natural-gradient descent (SNGD; PVI 2018, appendix E.6).

    Each visit answers with the natural gradient of one minibatch, scaled to all the client's data.
    In synchronous rounds the server's damping ρ is the rate: with λ the natural parameters of q and
    λ₀ those of the prior, ``λ ← (1 − ρ) λ + ρ (λ₀ + Σ_m (N_m / B) ∂/∂μ E_q[Σ log p(y | θ)])``. The
    answer is that of ``FixedPointUpdate(batch_size=batch_size)``. But the rule sets the server's
    limits on answers aside, as gradients of few rows of one class may well take away what others
    know; and ``Momentum`` is not for it.

    :param batch_size: The number B of rows of a minibatch; all if None, or if there are fewer.
    :raises InvalidDataError: if it is not positive.
    """

    batch_size: PositiveInteger | None = 100
    checks: ClassVar[Checks] = NO_LIMITS

    def __call__(self, task: LocalTask) -> LocalResult:
        return FixedPointUpdate(batch_size=self.batch_size)(task)
