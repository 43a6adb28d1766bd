"""A noisy estimate of the gradient of all data, of which each row can have moved it only so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.pvi.compiled import compiled_for
from streaming_gp.pvi.privacy.accountant import Release
from streaming_gp.pvi.privacy.clipping import clipped_sum_of
from streaming_gp.pvi.privacy.draws import Draws
from streaming_gp.pvi.task import LocalTask

ROWS_AT_ONCE = 250


@dataclass(frozen=True)
class NoisyGradients:
    """``(Σ_{n ∈ B} g_n min(1, C / ‖g_n‖) + σ C ξ) / rate``, ξ standard normal (Abadi et al. 2016).

    Each row is in B with this rate, alone (Poisson sampling), and the sum over B is divided by the
    rate: by what is known of all rows, not by how many came.

    Sensitivity: let a data set have one row more than another. In any step both draw the same B of
    the rows that they share, and the same random numbers for each of these rows, with the same
    probability, as rows are drawn alone and random numbers belong to rows. If the further row is
    not in B the sums are the same. If it is, they differ by its clipped gradient, of norm C at
    most. So the sum is a Gaussian mechanism with noise multiplier σ on a Poisson sample, which is
    what the accountant is told. The start, the cavity and all that is done with the sum since
    depend on data through such sums only.

    :param clip: The bound C; infinity for none.
    :param release: σ and the rate.
    :param draws: Where the random numbers come from: neither the server nor anyone else knows them.
    :param means_only: Whether what a gradient says of q's spread is left out.
    """

    clip: float
    release: Release
    draws: Draws
    means_only: bool

    def __call__(self, task: LocalTask, loss: Any, q: Any) -> tf.Tensor:
        """An estimate of ``∂ E_q[log p(Y | θ)]`` by q's unconstrained numbers, of their shape."""
        numbers = tf.convert_to_tensor(q.unconstrained())
        total = compiled_for(
            task.model, ("clipped sum", loss), lambda model: clipped_sum_of(model, loss)
        )
        clip, by_spread = (tf.cast(x, numbers.dtype) for x in (self.clip, not self.means_only))
        sums = [
            total(type(q), numbers, X, Y, weights, self.draws.seed(), clip, by_spread)
            for X, Y, weights in self._sampled(task, numbers.dtype.as_numpy_dtype)
        ]
        noise = self._noise(numbers)
        return (tf.add_n([*sums, noise]) if sums else noise) / self.release.sampling_rate

    def _noise(self, numbers: tf.Tensor) -> tf.Tensor:
        if self.release.noise_multiplier == 0.0:
            return tf.zeros_like(numbers)
        scale = self.release.noise_multiplier * self.clip
        if self.means_only:  # what is always zero needs no noise
            noise = np.zeros(numbers.shape)
            noise[0] = scale * self.draws.normal(*numbers.shape[1:])
        else:
            noise = scale * self.draws.normal(*numbers.shape)
        return tf.cast(noise, numbers.dtype)

    def _sampled(self, task: LocalTask, dtype: Any) -> Iterator[tuple[Any, Any, np.ndarray]]:
        """The rows of B in parts of one size, the last of them filled up with rows of weight 0."""
        rate = self.release.sampling_rate
        rows = np.arange(task.num_data)
        if rate < 1.0:
            rows = self.draws.chosen(task.num_data, rate)
        size, (X, Y) = min(ROWS_AT_ONCE, task.num_data), task.data
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            weights = np.zeros(size, dtype)
            weights[: len(part)] = 1.0
            filled = np.resize(part, size)
            yield X[filled], Y[filled], weights
