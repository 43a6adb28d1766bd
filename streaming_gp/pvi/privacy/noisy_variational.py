"""``VariationalUpdate`` whose gradients of the data terms are noisy (DP-SGD)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Divergence, ExponentialFamily, Factor, MeanFieldNormal
from streaming_gp.pvi.compiled import compiled_for, factor_tensors
from streaming_gp.pvi.privacy.noisy_gradients import NoisyGradients
from streaming_gp.pvi.task import LocalTask
from streaming_gp.pvi.updates.optimisers import LBFGS, SGD, Adam, StochasticOptimiser
from streaming_gp.pvi.updates.variational import VariationalUpdate


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
        family: Any = _KeepingSpread if self.gradients.means_only else type(task.posterior)
        cavity, state = factor_tensors(task.cavity), optimiser.begin(task.start)
        number = num_steps(self, self.gradients.release.sampling_rate)
        for _ in range(number):
            q = optimiser.member(type(task.posterior), state)
            state = step(family, state, cavity, self.gradients(task, self.loss, q))
        return optimiser.member(type(task.posterior), state).as_arrays(), math.nan, number


def num_steps(rule: VariationalUpdate, sampling_rate: float) -> int:
    """So many that a row comes as often as the rule says, on average."""
    return rule.epochs * math.ceil(1.0 / sampling_rate)


def require_steps(rule: VariationalUpdate, means_only: bool) -> None:
    """Refuse what looks at data without noise.

    :raises InvalidDataError: for L-BFGS, for visits that end when the fit has become good, and for
        optimisers that remember.
    """
    if isinstance(rule.optimiser, LBFGS):
        raise InvalidDataError("LBFGS wants exact gradients: private ones are noisy; take Adam")
    if rule.stopping is not None:
        raise InvalidDataError("when a visit stops would tell about data: stopping must be None")
    if rule.stateful:
        raise InvalidDataError("private fits begin anew with each visit: stateful must be False")
    if means_only and not isinstance(rule.optimiser, (Adam, SGD, type(None))):
        name = type(rule.optimiser).__name__
        raise InvalidDataError(f"means_only is for Adam and SGD, not for {name}")


def _compiled_step(optimiser: StochasticOptimiser, divergence: Divergence) -> Callable[..., Any]:
    """One step whose data term is linear, with this gradient."""

    @tf.function(reduce_retracing=True)
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
        return MeanFieldNormal.from_unconstrained(
            tf.stack([numbers[0], tf.stop_gradient(numbers[1])])
        )
