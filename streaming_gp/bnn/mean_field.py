"""Fully connected networks, whose functions are drawn by local reparameterisation; with one output
layer, or one for each task over layers that all tasks share.

Given a layer's inputs h its pre-activations are independent Gaussians with mean ``h W_m + b_m`` and
variance ``h² W_v + b_v``, and are drawn instead of the weights (Kingma, Salimans & Welling 2015):
``a = h W_m + b_m + √(h² W_v + b_v) ξ``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp.bnn.network import ACTIVATIONS, Dense, Network
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.inputs import require_positive_integer, require_sizes
from streaming_gp.losses import NegativeLogLikelihood
from streaming_gp.numerics.quadrature import standard_normal
from streaming_gp.pvi.privacy.gradients import shares
from streaming_gp.pvi.task import LocalResult, LocalTask, RuleAround, UpdateRule
from streaming_gp.validation import Data


class MeanFieldBNN(Network):
    """Dense layers, and any GPflow likelihood on the outputs; float32.

    :param sizes: The numbers of inputs, of units of each hidden layer, and of outputs (latent
        functions of the likelihood).
    :param likelihood: A GPflow likelihood, such as ``gpflow.likelihoods.Softmax(10)``; its
        parameters stay fixed unless ``pvi.LikelihoodParameters`` learns them.
    :param prior_variance: The prior variance of each weight and bias; the prior mean is zero.
    :param initial_scale: The standard deviation of each weight where fits start.
    :param num_samples: The number of networks drawn for each estimate of the expected log
        likelihood.
    :param activation: The function between layers: ``"relu"`` or ``"tanh"``, whose bounded values
        keep the gradients of single rows small, for private learning.
    :raises InvalidDataError: if there are fewer than two sizes, or anything is not positive.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        likelihood: gpflow.likelihoods.Likelihood,
        prior_variance: float = 1.0,
        initial_scale: float = 0.03,
        num_samples: int = 1,
        activation: str = "relu",
    ) -> None:
        require_sizes("sizes", sizes)
        if len(sizes) < 2:
            raise InvalidDataError(f"wanted two or more positive integers as sizes, got {sizes!r}")
        layers = [Dense(size) for size in sizes[1:]]
        super().__init__(
            sizes[:1], layers, likelihood, prior_variance, initial_scale, num_samples, activation
        )
        self.sizes = tuple(sizes)

    def functions(self, q: MeanFieldNormal, X: tf.Tensor, seed: tf.Tensor, num: int) -> tf.Tensor:
        """Draws of the outputs at X [N, D], [S, N, L]: right for each row, not jointly for rows.

        :param seed: The seed of the draws, two integers [2].
        """
        *_, (*_, drawn) = self._passes(q, self.rows(X), seed, num)
        return self.read_out(drawn, X)

    def rows(self, X: tf.Tensor) -> tf.Tensor:
        """The inputs of the first layer, of X [N, D]."""
        return X

    def read_out(self, F: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        """Outputs at X [N, D] of those of the last layer, F [S, N, O]: [S, N, L]."""
        return F

    def _passes(
        self, q: Any, rows: tf.Tensor, seed: tf.Tensor, num: int
    ) -> Iterator[tuple[tf.Tensor, ...]]:
        """Each layer of S networks at work on N rows: its inputs h [S or 1, N, I]; the variances
        W_v [I, O] and b_v [O] of its weights and biases; and sd, noise ξ and draws a of its outputs
        [S, N, O].
        """
        h = rows[None]
        means, variances = map(self.split, q.moments())
        for number, ((_, W_m, b_m), (_, W_v, b_v)) in enumerate(zip(means, variances, strict=True)):
            mean, sd = h @ W_m + b_m, tf.sqrt(tf.square(h) @ W_v + b_v)
            own_seed = tf.random.experimental.stateless_fold_in(seed, number)
            shape = [num, tf.shape(rows)[0], self.sizes[number + 1]]
            noise = standard_normal(shape, own_seed, mean.dtype)
            drawn = mean + sd * noise
            yield h, W_v, b_v, sd, noise, drawn
            h = ACTIVATIONS[self.activation](drawn)

    def clipped_gradient(
        self, q: Any, X: Any, Y: Any, weights: Any, seed: Any, clip: Any, by_spread: Any, loss: Any
    ) -> tf.Tensor:
        """``Σ_n w_n g_n min(1, C / ‖g_n‖)`` of one network drawn, by means and log standard
        deviations: [2, D]. As :class:`~streaming_gp.pvi.privacy.ClippedGradientModel` says.

        With ``δ = ∂ log p / ∂a`` and ``κ = δ ξ / (2 sd)``, a row's gradient is an outer product in
        each layer: ``h ⊗ δ`` by the means, and ``2 W_v ⊙ (h² ⊗ κ)`` by the logarithms. So the norm
        needs h, δ and κ alone (Goodfellow 2015; Lee & Kifer 2021, for weights that are not random),
        and the clipped sum is one product of matrices.
        """
        passes, draws = [], []
        with tf.GradientTape() as tape:
            for *others, drawn in self._passes(q, self.rows(X), seed, 1):
                tape.watch(drawn)
                passes.append(others)
                draws.append(drawn)
            F = self.read_out(draws[-1], X)
            value = -tf.reduce_sum(self._losses(F, Y, loss or NegativeLogLikelihood()))
        gradients, layers = tape.gradient(value, draws), []
        for (h, W_v, b_v, sd, noise), delta in zip(passes, gradients, strict=True):
            kappa = by_spread * tf.math.divide_no_nan(0.5 * delta * noise, sd)
            layers.append((h[0], W_v, b_v, delta[0], kappa[0]))

        squared_norms = []
        for h, W_v, b_v, delta, kappa in layers:
            square = tf.square(h)
            of_means = (tf.reduce_sum(square, 1) + 1.0) * tf.reduce_sum(tf.square(delta), 1)
            spread = tf.square(square) @ tf.square(W_v) + tf.square(b_v)
            squared_norms.append(of_means + 4.0 * tf.reduce_sum(spread * tf.square(kappa), axis=1))
        share = shares(tf.add_n(squared_norms), weights, clip)[:, None]

        means, spreads = [], []
        for h, W_v, b_v, delta, kappa in layers:
            h = tf.where(share > 0.0, h, 0.0)  # a share of 0 keeps a row out whatever it holds
            delta = tf.math.multiply_no_nan(delta, share)
            kappa = tf.math.multiply_no_nan(kappa, share)
            of_weights = 2.0 * W_v * tf.matmul(tf.square(h), kappa, transpose_a=True)
            means += [tf.matmul(h, delta, transpose_a=True), tf.reduce_sum(delta, axis=0)]
            spreads += [of_weights, 2.0 * b_v * tf.reduce_sum(kappa, axis=0)]
        flat = ([tf.reshape(part, [-1]) for part in parts] for parts in (means, spreads))
        return tf.stack([tf.concat(parts, 0) for parts in flat])


class MultiHeadBNN(MeanFieldBNN):
    """A :class:`~streaming_gp.bnn.MeanFieldBNN` of which each row of X says the head, in front.

    The weights of all heads are part of θ, so that one posterior serves all tasks, and a head that
    no data have spoken of is as in the prior.

    :param sizes: The numbers of inputs, of units of each hidden layer, and of outputs of one head.
    :param num_heads: The number of heads T; the first column of X is a number from 0 to T − 1.
    :param likelihood: A GPflow likelihood on the outputs of one head.
    :param settings: Further arguments of ``MeanFieldBNN``.
    :raises InvalidDataError: as ``MeanFieldBNN`` does, or if there are no heads.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        num_heads: int,
        likelihood: gpflow.likelihoods.Likelihood,
        **settings: Any,
    ) -> None:
        require_positive_integer("num_heads", num_heads)
        require_sizes("sizes", sizes)
        outputs = [num_heads * size for size in sizes[-1:]]
        super().__init__([*sizes[:-1], *outputs], likelihood, **settings)
        self.num_heads = num_heads

    @property
    def num_inputs(self) -> int:
        """Columns of X: the head, and the inputs."""
        return super().num_inputs + 1

    @property
    def num_outputs(self) -> int:
        """L: of one head."""
        return super().num_outputs // self.num_heads

    @property
    def head_of_weights(self) -> np.ndarray:
        """The head of each weight and bias, −1 of those that all tasks share: [D]."""
        inputs, outputs = self.sizes[-2:]
        of_outputs = np.repeat(np.arange(self.num_heads), outputs // self.num_heads)
        last = np.concatenate([np.tile(of_outputs, inputs), of_outputs])
        return np.concatenate([np.full(self.num_parameters - len(last), -1), last])

    def as_data(self, X: Any, Y: Any) -> Data:
        """As the network's own.

        :raises InvalidDataError: if the first column is not of numbers of heads.
        """
        X, Y = super().as_data(X, Y)
        return self.inputs(X), Y

    def inputs(self, X: Any) -> np.ndarray:
        """As the network's own.

        :raises InvalidDataError: if the first column is not of numbers of heads.
        """
        X = super().inputs(X)
        if not np.isin(X[:, 0], np.arange(self.num_heads)).all():
            wanted = f"0 to {self.num_heads - 1}"
            raise InvalidDataError(f"the first column of X says the head, {wanted}: got {X[:, 0]}")
        return X

    def outputs(self, theta: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        """Of S networks ``theta`` [S, D] at X [N, 1 + D'], each row's head: [S, N, L]."""
        return self.read_out(super().outputs(theta, self.rows(X)), X)

    def rows(self, X: tf.Tensor) -> tf.Tensor:
        """The inputs of X [N, 1 + D'], without the head."""
        return X[:, 1:]

    def read_out(self, F: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        """Each row's head, of all heads F [S, N, O]: [S, N, L]."""
        heads = tf.one_hot(tf.cast(X[:, 0], tf.int32), self.num_heads, dtype=F.dtype)
        shape = [*tf.unstack(tf.shape(F)[:2]), self.num_heads, F.shape[-1] // self.num_heads]
        return tf.einsum("snhl,nh->snl", tf.reshape(F, shape), heads)

    def start(self, q: MeanFieldNormal, heads: Any, seed: int = 0) -> MeanFieldNormal:
        """q with new heads, of those asked for that still are as in the prior: they start as a
        network's weights do.

        :param heads: The numbers of the heads asked for.
        :param seed: The seed of the new heads' means.
        """
        prior, fresh = self.prior(), self.initial(seed)
        untouched = np.asarray(q.precision_mean == prior.precision_mean)  # widths: to rounding
        new = untouched & np.isin(self.head_of_weights, heads)
        pairs = zip(fresh.natural, q.natural, strict=True)
        return MeanFieldNormal(*(np.where(new, a, b) for a, b in pairs))


@dataclass(frozen=True)
class NewHeads(RuleAround):
    """A rule for :class:`~streaming_gp.bnn.MultiHeadBNN`, which starts new heads as it should.

    Heads of other tasks start where q is, and so nothing moves them: the prior's in the first fit.

    :param rule: The rule that fits, such as ``pvi.VariationalUpdate``.
    """

    rule: UpdateRule

    def __call__(self, task: LocalTask) -> LocalResult:
        """Fit.

        :raises InvalidDataError: if the model is another one.
        """
        net = task.model
        if not isinstance(net, MultiHeadBNN):
            raise InvalidDataError(f"NewHeads is for MultiHeadBNN, got {type(net).__name__}")
        shared = net.head_of_weights < 0
        pairs = zip(task.start.natural, task.posterior.natural, strict=True)
        base = MeanFieldNormal(*(np.where(shared, a, b) for a, b in pairs))
        heads = np.unique(task.data[0][:, 0])
        return self.rule(replace(task, start=net.start(base, heads, task.seed)))
