"""The No-U-Turn sampler of TensorFlow Probability, for small models."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf
import tensorflow_probability as tfp

from streaming_gp.inputs import require_positive, require_positive_integer, typed
from streaming_gp.pvi.updates.sampling import Chain, Target
from streaming_gp.samplers.chain import transitions


@typed
@dataclass(frozen=True)
class NUTS:
    """Transitions of NUTS (Hoffman & Gelman 2014) where the target's approximation is white.

    The step size follows the acceptance by stochastic approximation, for as long as the chain
    lasts, as its target changes: gain ``t^−0.6``, but never below 0.1.

    :param num_samples: The number of transitions that a step makes, all of which are draws.
    :param step_size: The first step size, in standard deviations of the approximation.
    :param acceptance: The rate of acceptance to aim at.
    :param max_tree_depth: The largest depth of the tree of one transition.
    :raises InvalidDataError: if a setting is not positive.
    """

    num_samples: int = 1
    step_size: float = 0.3
    acceptance: float = 0.8
    max_tree_depth: int = 8

    @property
    def batch_size(self) -> None:
        """It sees all data."""
        return None

    def __post_init__(self) -> None:
        require_positive_integer("num_samples", self.num_samples)
        require_positive_integer("max_tree_depth", self.max_tree_depth)
        require_positive("step_size", self.step_size)

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
