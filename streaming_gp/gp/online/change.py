"""Whether the world has changed: newest observations under what is known, or under less than that.

After a change of size c (:func:`.state.forget`) an observation has the density

    ``p_c(y) = N(y; m + √(1 − c) (μ − m), s (v + σ²) + c (k − v))``,

for the mean μ and variance v of f, and m and k of the prior. The factor s is the mean square of the
errors so far in predicted deviations, or one if that is less: hyperparameters of few data often say
too little noise, and errors that were as large from the start are no change. Of each size the
statistic of Shiryaev and Roberts, ``R ← (1 + R) p_c(y) / p_0(y)``, sums the likelihood ratios of a
change before each of the observations so far. While nothing changes, each ratio has the expectation
one, so that ``E R_n = n``, and the mean over sizes and outputs reaches 1 / rate within n
observations with a probability of at most ``n × rate`` (Pollak 1987): that is the rule, and there
is no other constant to choose. No single observation raises an alarm, as each counts for a part of
it at most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streaming_gp.gp.online.state import OnlinePrior, OnlineState, Projection, log_densities

NUM_SIZES = 4
"""Of changes, from that of the noise to that of the prior, in equal ratios."""
LEAST_OBSERVATIONS = 4
"""An alarm needs so many at least."""


@dataclass(frozen=True)
class Alarm:
    """A change that was noticed.

    :param observation: After how many observations: the first is 1.
    :param output: The output that showed it, by number.
    :param size: The part c of the prior's variance by which f has become another function.
    """

    observation: int
    output: int
    size: float


class Watch:
    """The newest observations of some outputs that share a kernel.

    :param prior: Their prior.
    :param state: Where it starts.
    :param rate: The probability of a false alarm at an observation; zero for no alarms.
    """

    def __init__(self, prior: OnlinePrior, state: OnlineState, rate: float) -> None:
        noise = prior.noise[prior.group][:, None]
        variances = state.scale[state.is_used] ** 2
        least = noise / (float(variances.mean()) if len(variances) else 1.0)
        sizes = np.minimum(least, 1.0) ** np.linspace(0.0, 1.0, NUM_SIZES)
        self._size = np.hstack([np.zeros_like(noise), sizes])  # [C, 1 + J], no change before all
        self._noise, self._group = noise, prior.group
        self._lost = 1.0 - np.sqrt(1.0 - self._size)  # of the mean
        self._is_off, self._enough = rate == 0.0, -np.log(max(rate, 1e-300))
        of_each = self._enough / LEAST_OBSERVATIONS
        self._limit, self._most = np.array([np.inf, of_each])[:, None, None], 2.0 * of_each
        self._logs = np.full((2, *sizes.shape), -np.inf)  # as it is, and of limited ratios
        self._memory = prior.memory
        # The mean square of errors in predicted deviations, the factor of variances that it makes,
        # and of how many observations it is: hyperparameters count for as many as the budget.
        self._scale = self._factor = np.ones((len(noise), 1))
        self._followed = np.full_like(self._scale, min(float(prior.budget), prior.memory))
        self._has_changed = np.zeros(len(noise), bool)

    def variance(self, at: Projection) -> np.ndarray:
        """The variance [C] of f(x) that is to be believed.

        Once an output has changed, what was learned of the scale of its errors before is in doubt:
        from then on the variance of an observation is multiplied by the mean square of the errors
        in predicted deviations, over as many observations as points are relevant, if that is more
        than one.
        """
        variance = at.variance[self._group]
        if not self._has_changed.any():
            return variance
        factor = np.where(self._has_changed, self._factor[:, 0], 1.0)
        return np.asarray(factor * (variance + self._noise[:, 0]) - self._noise[:, 0])

    def see(self, at: Projection, y: np.ndarray) -> tuple[int, float] | None:
        """Look at an observation before it is learned.

        :param at: The state about its input.
        :param y: The observation [C].
        :returns: the column that has changed and the size of its change, if one has.
        """
        if self._is_off:
            return None
        residual, shift = (y - at.mean)[:, None], (at.mean - at.prior_mean)[:, None]
        variance = at.variance[:, None]
        predicted = variance + self._noise
        changed = self._factor * predicted + self._size * (at.prior_variance - variance)
        densities = log_densities(residual + self._lost * shift, changed)
        self._follow(residual * residual / predicted)
        ratio = np.minimum(densities[:, 1:] - densities[:, :1], self._limit)
        self._logs = logs = np.logaddexp(0.0, self._logs) + ratio
        if logs[1].max() < self._enough:  # the mean is less than the largest
            return None
        if np.logaddexp.reduce(logs[1], axis=None) - np.log(logs[1].size) < self._enough:
            return None
        column, place = np.unravel_index(logs[0].argmax(), logs[0].shape)
        has_changed = self._group == self._group[column]
        is_first = has_changed & ~self._has_changed
        self._followed[is_first] = min(LEAST_OBSERVATIONS, self._memory)
        logs[:, has_changed], self._has_changed = -np.inf, self._has_changed | has_changed
        return int(column), float(self._size[column, 1 + place])

    def _follow(self, squares: np.ndarray) -> None:
        """Errors in predicted variances [C, 1], of which none counts for more than for an alarm."""
        bounded = np.minimum(squares, self._most * self._factor)
        self._scale = self._scale + (bounded - self._scale) / self._followed
        self._factor = np.maximum(self._scale, 1.0)
        self._followed = np.minimum(self._followed + 1.0, self._memory)
