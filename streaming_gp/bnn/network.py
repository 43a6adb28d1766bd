"""Networks whose weights have independent Gaussian posteriors.

All weights and biases are one flat vector θ [D], layer after layer, weights before biases; q has a
mean and a variance for each. S networks at once are ``theta`` [S, D]; their outputs for N inputs
are [S, N, ...], and the weights and biases of a layer [S, ...]. A shape is that of one input on its
way: ``(M,)`` of a vector, ``(height, width, channels)`` of an image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.inputs import (
    PositiveInteger,
    require_count,
    require_positive_finite,
    require_positive_integer,
    require_sizes,
    require_strategy,
    typed,
)
from streaming_gp.losses import Loss, NegativeLogLikelihood
from streaming_gp.numerics.quadrature import standard_normal
from streaming_gp.validation import Data, as_data, as_matrix, require_posterior

ACTIVATIONS = {"relu": tf.nn.relu, "tanh": tf.nn.tanh}
_ROWS_AT_ONCE = 1000
Shape = tuple[int, ...]


@runtime_checkable
class Layer(Protocol):
    """One layer, with weights and one bias for each of its outputs, or without either."""

    def weights_shape(self, inputs: Shape) -> Shape | None:
        """The shape of its weights, whose last two axes are inputs and outputs; None without.

        :param inputs: The shape of one output of the layer before.
        """

    def output_shape(self, inputs: Shape) -> Shape:
        """The shape of one output.

        :param inputs: The shape of one output of the layer before.
        :raises InvalidDataError: if the layer does not take inputs of this shape.
        """

    def __call__(self, h: tf.Tensor, weights: tf.Tensor, biases: tf.Tensor) -> tf.Tensor:
        """The outputs of S networks for N inputs [S, N, ...].

        :param h: The outputs of the layer before, [S, N, ...], or [1, N, ...] if all are the same.
        :param weights: The weights of each network [S, ...]; None where the layer has none.
        :param biases: The biases of each network [S, outputs]; None where the layer has none.
        """


@typed
@dataclass(frozen=True)
class Dense:
    """``vec(h) W + b``.

    :param units: The number of outputs.
    :raises InvalidDataError: if it is not a positive integer.
    """

    units: PositiveInteger

    def weights_shape(self, inputs: Shape) -> Shape:
        return int(np.prod(inputs)), self.units

    def output_shape(self, inputs: Shape) -> Shape:
        return (self.units,)

    def __call__(self, h: tf.Tensor, weights: tf.Tensor, biases: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(h, [*tf.unstack(tf.shape(h)[:2]), weights.shape[-2]])
        return tf.matmul(rows, weights) + biases[:, None]


@typed
@dataclass(frozen=True)
class Convolution:
    """Filters over an image, with zeros around it: the image keeps its size.

    :param filters: The number of outputs at each pixel.
    :param size: The number of pixels along each side of a filter.
    :raises InvalidDataError: if they are not positive integers.
    """

    filters: PositiveInteger
    size: PositiveInteger = 5

    def weights_shape(self, inputs: Shape) -> Shape:
        return self.size, self.size, _require_image(self, inputs)[-1], self.filters

    def output_shape(self, inputs: Shape) -> Shape:
        return *_require_image(self, inputs)[:2], self.filters

    def __call__(self, h: tf.Tensor, weights: tf.Tensor, biases: tf.Tensor) -> tf.Tensor:
        many = tf.broadcast_to(h, (tf.shape(weights)[0], tf.shape(h)[1], *h.shape[2:]))

        def convolve(one: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            return tf.nn.conv2d(*one, strides=1, padding="SAME")

        images = tf.map_fn(convolve, (many, weights), fn_output_signature=h.dtype)
        return images + biases[:, None, None, None]


@typed
@dataclass(frozen=True)
class MaxPool:
    """The largest of each square of pixels.

    :param size: The number of pixels along each side of a square.
    :raises InvalidDataError: if it is not a positive integer.
    """

    size: PositiveInteger = 2

    def weights_shape(self, inputs: Shape) -> None:
        return None

    def output_shape(self, inputs: Shape) -> Shape:
        height, width, channels = _require_image(self, inputs)
        if height % self.size or width % self.size:
            raise InvalidDataError(f"{self} does not divide images of {height} by {width} pixels")
        return height // self.size, width // self.size, channels

    def __call__(self, h: tf.Tensor, weights: None, biases: None) -> tf.Tensor:
        images = tf.reshape(h, [-1, *h.shape[2:]])
        pooled = tf.nn.max_pool2d(images, self.size, self.size, "VALID")
        return tf.reshape(pooled, [*tf.unstack(tf.shape(h)[:2]), *pooled.shape[1:]])


def _require_image(layer: Layer, inputs: Shape) -> Shape:
    if len(inputs) != 3:
        raise InvalidDataError(
            f"{layer} wants images (height, width, channels), got shape {inputs}"
        )
    return inputs


class Network:
    """Layers with an activation between, and any GPflow likelihood on the outputs; float32.

    :param input_shape: The shape of one input: ``(M,)``, or ``(height, width, channels)`` of an
        image, whose rows of X are in this order.
    :param layers: The layers from the inputs to the latent functions of the likelihood, as
        ``[Convolution(16), MaxPool(), Dense(10)]``.
    :param likelihood: A GPflow likelihood, such as ``gpflow.likelihoods.Softmax(10)``; its
        parameters stay fixed unless ``pvi.LikelihoodParameters`` learns them.
    :param prior_variance: The prior variance of each weight and bias; the prior mean is zero.
    :param initial_scale: The standard deviation of each weight where fits start.
    :param num_samples: The number of networks drawn for each estimate of the expected log
        likelihood.
    :param activation: The function between layers with weights: ``"relu"`` or ``"tanh"``, whose
        bounded values keep the gradients of single rows small, for private learning.
    :raises InvalidDataError: if a layer cannot follow the one before, or anything is not positive,
        or there is no such activation.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        layers: Sequence[Layer],
        likelihood: gpflow.likelihoods.Likelihood,
        prior_variance: float = 1.0,
        initial_scale: float = 0.03,
        num_samples: int = 1,
        activation: str = "relu",
    ) -> None:
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise InvalidDataError(f"activation must be in {list(ACTIVATIONS)}, got {activation!r}")
        require_positive_finite("prior_variance", prior_variance)
        require_positive_finite("initial_scale", initial_scale)
        require_positive_integer("num_samples", num_samples)
        require_sizes("input_shape", input_shape)
        if not isinstance(layers, Sequence):
            raise InvalidDataError(f"layers must be a list, got {layers!r:.100}")
        for layer in layers:
            require_strategy("each layer", layer, Layer, "bnn.Dense(10)")
        if not isinstance(likelihood, gpflow.likelihoods.Likelihood):
            wanted = "likelihood must be a GPflow likelihood"
            raise InvalidDataError(f"{wanted}, got {likelihood!r:.100}")
        self.input_shape = tuple(input_shape)
        self.layers = tuple(layers)
        self.likelihood = likelihood
        self.activation = activation
        self.prior_variance = prior_variance
        self.initial_scale = initial_scale
        self.num_samples = num_samples
        shape, weights_shapes = self.input_shape, []
        for layer in self.layers:
            weights_shapes.append(layer.weights_shape(shape))
            shape = layer.output_shape(shape)
        self.weights_shapes, self._outputs = tuple(weights_shapes), int(np.prod(shape))
        if not any(self.weights_shapes):
            raise InvalidDataError(f"wanted at least one layer with weights, got {self.layers}")

    @property
    def num_inputs(self) -> int:
        """Columns of X."""
        return int(np.prod(self.input_shape))

    @property
    def num_outputs(self) -> int:
        """L: of the last layer."""
        return self._outputs

    @property
    def num_parameters(self) -> int:
        """D: of all weights and biases."""
        return sum(int(np.prod(each)) + each[-1] for each in self.weights_shapes if each)

    @property
    def layer_of_weights(self) -> np.ndarray:
        """The number of the layer of each weight and bias, among layers with weights: [D]."""
        sizes = [int(np.prod(each)) + each[-1] for each in self.weights_shapes if each]
        return np.repeat(np.arange(len(sizes)), sizes)

    def split(self, theta: Any) -> Iterator[tuple[Layer, Any, Any]]:
        """Each layer with its weights and its biases, last axes first: of θ [..., D].

        Weights are [..., shape] and biases [..., outputs]; None where it has none.
        """
        shapes = [shape for shape in self.weights_shapes if shape]
        sizes = [size for shape in shapes for size in (int(np.prod(shape)), shape[-1])]
        parts = iter(tf.split(theta, sizes, axis=-1))  # its gradient is one array, not one a slice
        for layer, shape in zip(self.layers, self.weights_shapes, strict=True):
            if shape is None:
                yield layer, None, None
                continue
            weights = tf.reshape(next(parts), [*theta.shape[:-1], *shape])
            yield layer, weights, next(parts)

    def prior(self) -> MeanFieldNormal:
        """``N(θ; 0, prior_variance I)``."""
        precision = np.full(self.num_parameters, 1.0 / self.prior_variance, np.float32)
        return MeanFieldNormal(np.zeros_like(precision), precision)

    def initial(self, seed: int) -> MeanFieldNormal:
        """Where fits start: means after Glorot & Bengio (2010), biases zero, a small variance."""
        rng = np.random.default_rng(seed)
        parts = []
        for shape in filter(None, self.weights_shapes):
            fans = np.prod(shape[:-2]) * (shape[-2] + shape[-1])
            limit = np.sqrt(6.0 / fans)
            parts += [rng.uniform(-limit, limit, np.prod(shape)), np.zeros(shape[-1])]
        mean = np.concatenate(parts).astype(np.float32)
        variance = np.full_like(mean, self.initial_scale**2)
        return MeanFieldNormal.from_mean_variance(mean, variance).as_arrays()

    def as_data(self, X: Any, Y: Any) -> Data:
        """Arrays X [N, D] and Y [N, P], float32.

        :raises InvalidDataError: if shapes or entries are not what the network can take.
        """
        wanted = self.likelihood.latent_dim
        if wanted is not None and self.num_outputs != wanted:
            raise InvalidDataError(
                f"the network has {self.num_outputs} outputs, where its "
                f"{type(self.likelihood).__name__} likelihood wants {wanted}"
            )
        # where each column of Y has a function of its own; else one is broadcast to all others
        is_each_one = wanted is None and not isinstance(
            self.likelihood, gpflow.likelihoods.SwitchedLikelihood
        )
        columns = self.num_outputs if is_each_one else None
        X, Y = as_data((X, Y), self.likelihood, self.num_inputs, columns)
        return X.astype(np.float32), Y.astype(np.float32)

    def inputs(self, X: Any) -> np.ndarray:
        """X [N, D], float32.

        :raises InvalidDataError: if it is not what the network can take.
        """
        return as_matrix("X", X, self.num_inputs).astype(np.float32)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """The likelihood's, unconstrained, which only ``pvi.LikelihoodParameters`` learns."""
        return self.likelihood.trainable_variables

    # ---- of given weights ----

    def outputs(self, theta: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        """Latent functions of S networks ``theta`` [S, D] at X [N, D], logits for ``Softmax``:
        [S, N, L].
        """
        h = tf.reshape(X, [1, -1, *self.input_shape])
        last = self.layers[-1]
        for layer, weights, biases in self.split(theta):
            h = layer(h, weights, biases)
            if weights is not None and layer is not last:
                h = ACTIVATIONS[self.activation](h)
        return h

    def log_likelihood(self, theta: tf.Tensor, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """``Σ_n log p(y_n | θ_s, x_n)`` for weights ``theta`` [S, D]: [S], float32."""
        F = self.outputs(theta, X)
        if isinstance(self.likelihood, gpflow.likelihoods.Softmax):
            labels = tf.broadcast_to(tf.cast(Y[:, 0], tf.int32), tf.shape(F)[:2])
            return -tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, F), 1)
        losses = self._losses(F, Y, NegativeLogLikelihood())
        return -tf.cast(tf.reduce_sum(losses, axis=1), tf.float32)

    # ---- of drawn weights ----

    def functions(self, q: MeanFieldNormal, X: tf.Tensor, seed: tf.Tensor, num: int) -> tf.Tensor:
        """Draws of the outputs at X [N, D], [S, N, L].

        :param seed: The seed of the draws, two integers [2].
        """
        mean, variance = q.moments()
        noise = standard_normal([num, self.num_parameters], seed, mean.dtype)
        return self.outputs(mean + tf.sqrt(variance) * noise, X)

    def _losses(self, F: tf.Tensor, Y: Any, loss: Loss) -> tf.Tensor:
        """``loss(f_s(x_n), y_n)`` of functions F [S, N, L]: [S, N], float64."""
        num, rows = tf.unstack(tf.shape(F)[:2])
        flat = tf.reshape(tf.cast(F, tf.float64), [num * rows, F.shape[-1]])
        many = tf.tile(tf.cast(Y, tf.float64), [num, 1])
        return tf.reshape(loss(self.likelihood, flat, many), [num, rows])

    def expected_loss(
        self, q: MeanFieldNormal, X: tf.Tensor, Y: tf.Tensor, seed: tf.Tensor, loss: Loss
    ) -> tf.Tensor:
        """An unbiased estimate of ``Σ_n E_q[loss(f(x_n), y_n)]``, float32: []."""
        losses = self._losses(self.functions(q, X, seed, self.num_samples), Y, loss)
        return tf.cast(tf.reduce_sum(losses) / self.num_samples, tf.float32)

    def expected_log_likelihood(
        self, q: MeanFieldNormal, X: tf.Tensor, Y: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor:
        """An unbiased estimate of ``Σ_n E_q[log p(y_n | f(x_n))]``, float32: []."""
        return -self.expected_loss(q, X, Y, seed, NegativeLogLikelihood())

    # ---- predictions ----

    def predict_by(self, theta: Any, X: Any) -> np.ndarray:
        """Mean of y at X [N, D] over S networks ``theta`` [S, D]: [N, P].

        Of one network, such as that of a posterior's mean, ``theta`` is ``q.mean[None]``.

        :raises InvalidDataError: if X is not what the network takes.
        """
        theta = tf.convert_to_tensor(theta)
        X = self.inputs(X)
        parts = [self._mean_of_y(self.outputs(theta, rows)) for rows in _in_parts(X)]
        return np.concatenate(parts)

    def predict(
        self, q: MeanFieldNormal, X: Any, num_samples: int = 100, seed: int = 0
    ) -> np.ndarray:
        """Mean of y at X [N, D], over the posterior: [N, P]; class probabilities for ``Softmax``.

        :param num_samples: The number of networks drawn for each row.
        :raises InvalidDataError: if q or X is not what the network takes.
        """
        self._require_prediction(q, num_samples, seed)
        X = self.inputs(X)
        parts = [
            self._mean_of_y(self.functions(q, rows, tf.constant([seed, number]), num_samples))
            for number, rows in enumerate(_in_parts(X))
        ]
        return np.concatenate(parts)

    def predict_log_density(
        self, q: MeanFieldNormal, data: tuple[Any, Any], num_samples: int = 100, seed: int = 0
    ) -> np.ndarray:
        """``log E_q[p(y | f(x))]`` for each row of (X, Y): [N], in nats.

        :raises InvalidDataError: if q or the data are not what the network takes.
        """
        self._require_prediction(q, num_samples, seed)
        parts = []
        for number, (X, Y) in enumerate(zip(*map(_in_parts, self.as_data(*data)), strict=True)):
            F = self.functions(q, X, tf.constant([seed, number]), num_samples)
            drawn = -self._losses(F, Y, NegativeLogLikelihood())
            parts.append((tf.reduce_logsumexp(drawn, axis=0) - np.log(num_samples)).numpy())
        return np.concatenate(parts)

    def _require_prediction(self, q: Any, num_samples: int, seed: int) -> None:
        require_positive_integer("num_samples", num_samples)
        require_count("seed", seed)
        require_posterior(q, self.prior())

    def _mean_of_y(self, F: tf.Tensor) -> Any:
        """Over functions F [S, N, L]: [N, P]."""
        num, rows = F.shape[:2]
        flat = tf.reshape(tf.cast(F, tf.float64), [num * rows, -1])
        mean = self.likelihood.conditional_mean(tf.zeros([num * rows, 0], tf.float64), flat)
        return tf.reduce_mean(tf.reshape(mean, [num, rows, -1]), axis=0).numpy()


def _in_parts(rows: np.ndarray) -> Iterator[tf.Tensor]:
    return (tf.constant(rows[i : i + _ROWS_AT_ONCE]) for i in range(0, len(rows), _ROWS_AT_ONCE))
