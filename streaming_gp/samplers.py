"""Markov chain kernels for rules that sample tilted distributions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf
import tensorflow_probability as tfp

from streaming_gp.inputs import (
    Decay,
    Fraction,
    NotNegative,
    NotNegativeFinite,
    PositiveFinite,
    PositiveInteger,
    typed,
)
from streaming_gp.numerics.quadrature import standard_normal
from streaming_gp.pvi.updates.sampling import Chain, Target

__all__ = ["NUTS", "AdaptiveSGLD"]


@typed
@dataclass(frozen=True)
class NUTS:
    """Transitions of NUTS (Hoffman & Gelman 2014) where the target's approximation is white.

    The step size follows the acceptance by stochastic approximation, for as long as the chain
    lasts, as its target changes: gain ``t^−0.6``, but never below 0.1.

    :param num_samples: The number of transitions that a step makes, all of which are draws.
    :param step_size: The first step size, in standard deviations of the approximation.
    :param acceptance: The rate of acceptance to aim at, in (0, 1].
    :param max_tree_depth: The largest depth of the tree of one transition.
    :raises InvalidDataError: if a setting is out of its range.
    """

    num_samples: PositiveInteger = 1
    step_size: PositiveFinite = 0.3
    acceptance: Fraction = 0.8
    max_tree_depth: PositiveInteger = 8

    @property
    def batch_size(self) -> None:
        """It sees all data."""
        return None

    def begin(self, theta: tf.Tensor) -> Chain:
        """Position [D], logarithm of the step size [] and number of transitions []."""
        log_step = tf.math.log(tf.cast(self.step_size, theta.dtype))
        return theta, log_step, tf.zeros([], theta.dtype)

    def step(self, chain: Chain, target: Target, seed: tf.Tensor) -> tuple[Chain, tf.Tensor]:
        q = target.approximation
        centre, root = q.mean, q.scale

        def log_density(white: tf.Tensor) -> tf.Tensor:
            theta = centre + tf.linalg.matvec(root, white)
            return target.log_density(theta[None], seed)[0]

        def one(chain: Chain, seed: tf.Tensor) -> Chain:
            white, log_step, count = chain
            kernel = tfp.mcmc.NoUTurnSampler(
                log_density, tf.exp(log_step), max_tree_depth=self.max_tree_depth
            )
            white, made = kernel.one_step(white, kernel.bootstrap_results(white), seed=seed)
            accepted = tf.exp(tf.minimum(made.log_accept_ratio, 0.0))
            accepted = tf.where(tf.math.is_finite(accepted), accepted, 0.0)
            count = count + 1.0
            gain = tf.maximum(count**-0.6, 0.1)
            return white, log_step + gain * (accepted - self.acceptance), count

        white = (q.to_white(chain[0][None])[0], *chain[1:])
        white, draws = transitions(one, white, self.num_samples, seed)
        draws = q.from_white(draws)
        return (draws[-1], *white[1:]), draws


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

    step_size: PositiveFinite = 1e-3
    batch_size: PositiveInteger | None = 100
    num_samples: PositiveInteger = 1
    decay: Decay = 0.999
    offset: NotNegativeFinite = 1e-8
    max_noise: NotNegative | None = None

    def begin(self, theta: tf.Tensor) -> Chain:
        """Position [D], moving average [D] and number of transitions []."""
        return theta, tf.zeros_like(theta), tf.zeros([], theta.dtype)

    def step(self, chain: Chain, target: Target, seed: tf.Tensor) -> tuple[Chain, tf.Tensor]:
        if self.num_samples == 1:
            chain = self._transition(chain, target, seed)
            return chain, chain[0][None]
        return transitions(
            lambda chain, seed: self._transition(chain, target, seed), chain, self.num_samples, seed
        )

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


def transitions(
    one: Callable[[Chain, tf.Tensor], Chain], chain: Chain, number: int, seed: tf.Tensor
) -> tuple[Chain, tf.Tensor]:
    """Several transitions: the chain after them, and its positions [number, D].

    :param one: The transition, a function of a chain and a seed [2].
    :param chain: The chain before the transitions.
    :param number: The number of transitions.
    :param seed: The seed of all of them, two integers [2].
    """

    def step(i: tf.Tensor, chain: Chain, visited: tf.TensorArray) -> tuple:
        chain = one(chain, tf.random.experimental.stateless_fold_in(seed, i))
        return i + 1, chain, visited.write(i, chain[0])

    visited = tf.TensorArray(chain[0].dtype, number, element_shape=chain[0].shape)
    _, chain, visited = tf.while_loop(
        lambda i, *_: i < number, step, (tf.constant(0), chain, visited)
    )
    return chain, visited.stack()
