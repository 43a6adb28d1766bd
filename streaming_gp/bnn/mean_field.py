"""A fully connected network, whose functions are drawn by local reparameterisation.

Given a layer's inputs h its pre-activations are independent Gaussians with mean ``h W_m + b_m`` and
variance ``h² W_v + b_v``, and are drawn instead of the weights (Kingma, Salimans & Welling 2015).
"""

from __future__ import annotations

from collections.abc import Sequence

import gpflow
import tensorflow as tf

from streaming_gp.arguments import is_positive_integer
from streaming_gp.bnn.layers import Dense
from streaming_gp.bnn.network import Network
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal


class MeanFieldBNN(Network):
    """ReLU layers, and any GPflow likelihood on the outputs; float32.

    :param sizes: The numbers of inputs, of units of each hidden layer, and of outputs (latent
        functions of the likelihood).
    :param likelihood: A GPflow likelihood, such as ``gpflow.likelihoods.Softmax(10)``; its
        parameters stay fixed unless ``pvi.LikelihoodParameters`` learns them.
    :param prior_variance: The prior variance of each weight and bias; the prior mean is zero.
    :param initial_scale: The standard deviation of each weight where fits start.
    :param num_samples: The number of networks drawn for each estimate of the expected log
        likelihood.
    :raises InvalidDataError: if there are fewer than two sizes, or anything is not positive.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        likelihood: gpflow.likelihoods.Likelihood,
        prior_variance: float = 1.0,
        initial_scale: float = 0.03,
        num_samples: int = 1,
    ) -> None:
        if len(sizes) < 2 or not all(map(is_positive_integer, sizes)):
            raise InvalidDataError(f"wanted two or more positive integers as sizes, got {sizes!r}")
        layers = [Dense(size) for size in sizes[1:]]
        super().__init__(sizes[:1], layers, likelihood, prior_variance, initial_scale, num_samples)
        self.sizes = tuple(sizes)

    def functions(self, q: MeanFieldNormal, X: tf.Tensor, seed: tf.Tensor, num: int) -> tf.Tensor:
        """Draws of the outputs at X [N, D], [S, N, L]: right for each row, not jointly for rows.

        :param seed: The seed of the draws, two integers [2].
        """
        h = X[None]
        means, variances = map(self.split, q.moments())
        for number, ((_, W_m, b_m), (_, W_v, b_v)) in enumerate(zip(means, variances, strict=True)):
            mean, variance = h @ W_m + b_m, tf.square(h) @ W_v + b_v
            own_seed = tf.random.experimental.stateless_fold_in(seed, number)
            shape = [num, tf.shape(X)[0], self.sizes[number + 1]]
            noise = tf.random.stateless_normal(shape, own_seed, dtype=mean.dtype)
            drawn = mean + tf.sqrt(variance) * noise
            h = tf.nn.relu(drawn)
        return drawn
