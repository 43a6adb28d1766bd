"""DP-SGD inside of update rules."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal
from streaming_gp.inputs import require_positive, typed
from streaming_gp.pvi.privacy.accountant import Release
from streaming_gp.pvi.privacy.draws import Draws
from streaming_gp.pvi.privacy.noisy_fixed_point import NoisyFixedPoint, require_divergence
from streaming_gp.pvi.privacy.noisy_gradients import NoisyGradients
from streaming_gp.pvi.privacy.noisy_variational import (
    NoisyVariational,
    num_steps,
    require_steps,
)
from streaming_gp.pvi.privacy.private_rule import PrivateRule
from streaming_gp.pvi.task import LocalTask, UpdateRule
from streaming_gp.pvi.updates.committee import AveragingUpdate, SplitPriorUpdate
from streaming_gp.pvi.updates.fixed_point import FixedPointUpdate
from streaming_gp.pvi.updates.variational import VariationalUpdate

KNOWN = "VariationalUpdate, FixedPointUpdate, or AveragingUpdate or SplitPriorUpdate around one"


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
    less. :class:`~streaming_gp.pvi.privacy.noisy_gradients.NoisyGradients` has the
    proof.

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

    clip: float = 1.0
    noise_multiplier: float = 1.0
    sampling_rate: float = 1.0
    means_only: bool = False

    def __post_init__(self) -> None:
        require_positive("clip", self.clip)
        if math.isinf(self.clip) and self.noise_multiplier != 0.0:
            raise InvalidDataError("noise is scaled by clip, which is infinite")
        Release(self.noise_multiplier, self.sampling_rate)
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
        gradients = NoisyGradients(self.clip, self.release, draws, self.means_only)

        def noisy(rule: Any) -> UpdateRule:
            kind: Any = NoisyVariational if isinstance(rule, VariationalUpdate) else NoisyFixedPoint
            given = {one.name: getattr(rule, one.name) for one in fields(rule)}
            return kind(**given, gradients=gradients)

        inner = noisy(self._inner)
        rule = inner if self._inner is self.rule else replace(self.rule, rule=inner)
        factor: Factor = rule(task).factor
        return factor

    @property
    def _inner(self) -> Any:
        """The rule that looks at data."""
        outer = isinstance(self.rule, (AveragingUpdate, SplitPriorUpdate))
        return self.rule.rule if outer else self.rule


def _require_known(rule: Any, means_only: bool) -> None:
    if isinstance(rule, VariationalUpdate):
        require_steps(rule, means_only)
    elif isinstance(rule, FixedPointUpdate):
        require_divergence(rule)
    else:
        raise InvalidDataError(f"PrivateGradients is for {KNOWN}, got {rule!r}")
