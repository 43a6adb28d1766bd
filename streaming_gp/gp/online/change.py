"""Whether the world has changed: newest observations under what is known, or under less than that.

After a change of size c (:func:`.state.forget`) an observation has the density

    ``p_c(y) = N(y; m + √(1 − c) (μ − m), (1 − c) v + c k + σ²)``,

for the mean μ and variance v of f, and m and k of the prior. Of each size the statistic of Shiryaev
and Roberts, ``R ← (1 + R) p_c(y) / p_0(y)``, sums the likelihood ratios of a change before each of
the observations so far. While nothing changes, each ratio has the expectation one, so that
``E R_n = n``, and the mean over sizes and outputs reaches 1 / rate within n observations with a
probability of at most ``n × rate`` (Pollak 1987): that is the rule, and there is no other constant
to choose. No single observation raises an alarm, as each counts for a part of it at most.
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
        self._size = np.minimum(least, 1.0) ** np.linspace(0.0, 1.0, NUM_SIZES)  # [C, J]
        self._noise, self._group = noise, prior.group
        self._root = np.sqrt(1.0 - self._size)
        self._is_off, self._enough = rate == 0.0, -np.log(max(rate, 1e-300))
        self._limit = np.array([np.inf, self._enough / LEAST_OBSERVATIONS])[:, None, None]
        self._logs = np.full((2, *self._size.shape), -np.inf)  # as it is, and of limited ratios
        self._memory = prior.memory
        self._scale = np.ones(len(prior.group))
        self._count = np.zeros(len(prior.group))  # of observations since the first alarm
        self._has_changed = False

    def variance(self, at: Projection) -> np.ndarray:
        """The variance [C] of f(x) that is to be believed.

        Once an output has changed, what was learned of the scale of its errors before is in doubt:
        from then on the variance of an observation is multiplied by the mean square of the errors
        in predicted deviations, over as many observations as points are relevant, if that is more
        than one.
        """
        variance = at.variance[self._group]
        if not self._has_changed:
            return variance
        noise = self._noise[:, 0]
        return np.asarray(np.maximum(self._scale, 1.0) * (variance + noise) - noise)

    def see(self, at: Projection, y: np.ndarray) -> tuple[int, float] | None:
        """Look at an observation before it is learned.

        :param at: The state about its input.
        :param y: The observation [C].
        :returns: the column that has changed and the size of its change, if one has.
        """
        if self._is_off:
            return None
        variance = at.variance[self._group][:, None]
        centred, shift = (y - at.prior_mean)[:, None], (at.mean - at.prior_mean)[:, None]
        changed = variance + self._size * (at.prior_variance - variance) + self._noise
        ratio = log_densities(centred - self._root * shift, changed)
        ratio -= log_densities(centred - shift, variance + self._noise)
        if self._has_changed:
            self._follow(((centred - shift) ** 2 / (variance + self._noise))[:, 0])
        logs = np.logaddexp(0.0, self._logs) + np.minimum(ratio, self._limit)
        self._logs = logs
        if np.logaddexp.reduce(logs[1], axis=None) - np.log(ratio.size) < self._enough:
            return None
        column, place = np.unravel_index(logs[0].argmax(), ratio.shape)
        has_changed = self._group == self._group[column]
        self._count[has_changed & (self._count == 0.0)] = LEAST_OBSERVATIONS
        logs[:, has_changed], self._has_changed = -np.inf, True
        return int(column), float(self._size[column, place])

    def _follow(self, squares: np.ndarray) -> None:
        """Errors in predicted variances [C], of which none counts for more than for an alarm."""
        most = 2.0 * float(self._limit[1, 0, 0]) * np.maximum(self._scale, 1.0)
        weight = np.minimum(self._count, self._memory)
        change = (np.minimum(squares, most) - self._scale) / np.maximum(weight, 1.0)
        self._scale += np.where(self._count > 0.0, change, 0.0)
        self._count += self._count > 0.0
