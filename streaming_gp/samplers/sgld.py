"""Stochastic gradient Langevin dynamics with an adaptive mass matrix."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from streaming_gp.inputs import require_decay, require_positive, require_positive_integer, typed
from streaming_gp.numerics.draws import standard_normal
from streaming_gp.pvi.updates.sampling import Chain, Target
from streaming_gp.samplers.chain import transitions


@typed
@dataclass(frozen=True)
class AdaptiveSGLD:
    """``x ← x + κ g + N(0, 2κ)`` with ``κ = ε / (√M + δ)`` (Hasenclever et al. 2017, appendix B.1).

    g is the gradient of the log density on a minibatch, and M the debiased moving average of its
    squares, ``v_t / (1 − decay^t)``: where the appendix prints ``1 − β²`` it means ``1 − β^t``, as
    in Adam.

    :param step_size: The step size ε.
    :param batch_size: The number of rows of a minibatch; all if None.
    :param num_samples: The number of draws that a step gives, one after another, each on a
        minibatch of its own.
    :param decay: The decay of the moving average, in [0, 1).
    :param offset: The offset δ of the mass.
    :param max_noise: The largest standard deviation of the injected noise; ε if None, as in the
        appendix. Below ``√(2κ)`` the chain is narrower than its target, down to an optimiser's
        noise: ``float("inf")`` makes it Langevin dynamics.
    :raises InvalidDataError: if a setting is out of its range.
    """

    step_size: float = 1e-3
    batch_size: int | None = 100
    num_samples: int = 1
    decay: float = 0.999
    offset: float = 1e-8
    max_noise: float | None = None

    def __post_init__(self) -> None:
        require_positive("step_size", self.step_size)
        require_positive_integer("num_samples", self.num_samples)
        if self.batch_size is not None:
            require_positive_integer("batch_size", self.batch_size)
        require_decay("decay", self.decay)

    def begin(self, theta: tf.Tensor) -> Chain:
        """Position [D], moving average [D] and number of transitions []."""
        return theta, tf.zeros_like(theta), tf.zeros([], theta.dtype)

    def step(self, chain: Chain, target: Target, seed: tf.Tensor) -> tuple[Chain, tf.Tensor]:
        def one(chain: Chain, seed: tf.Tensor) -> Chain:
            return self._transition(chain, target, seed)

        if self.num_samples == 1:
            chain = one(chain, seed)
            return chain, chain[0][None]
        return transitions(one, chain, self.num_samples, seed)

    def _transition(self, chain: Chain, target: Target, seed: tf.Tensor) -> Chain:
        position, squares, count = chain
        for_rows, for_noise = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        with tf.GradientTape() as tape:
            tape.watch(position)
            value = target.log_density(position[None], for_rows)
        gradient = tape.gradient(value, position)
        count = count + 1.0
        squares = self.decay * squares + (1.0 - self.decay) * tf.square(gradient)
        mass = squares / (1.0 - self.decay**count)
        rate = self.step_size / (tf.sqrt(mass) + self.offset)
        noise = standard_normal(tf.shape(position), for_noise, position.dtype)
        largest = self.step_size if self.max_noise is None else self.max_noise
        sd = tf.minimum(tf.sqrt(2.0 * rate), tf.cast(largest, position.dtype))
        return position + rate * gradient + sd * noise, squares, count
