"""Layers of a network as data: what they make of shapes, and of the outputs of the layer before.

Shapes are of what one input becomes: ``(M,)`` of a vector, ``(height, width, channels)`` of an
image. Arrays are of S networks: outputs for N inputs [S, N, ...], weights and biases [S, ...].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import require_positive_integer

Shape = tuple[int, ...]


class Layer(Protocol):
    """One layer, with weights and one bias for each of its outputs, or without either."""

    def weights_shape(self, inputs: Shape) -> Shape | None:
        """The shape of its weights, whose last two axes are inputs and outputs; None without.

        :param inputs: The shape of what the layer before makes of one input.
        """
        ...

    def output_shape(self, inputs: Shape) -> Shape:
        """The shape of what it makes of one input.

        :param inputs: The shape of what the layer before makes of one input.
        :raises InvalidDataError: if the layer does not take inputs of this shape.
        """
        ...

    def __call__(self, h: tf.Tensor, weights: tf.Tensor, biases: tf.Tensor) -> tf.Tensor:
        """The outputs of S networks for N inputs [S, N, ...].

        :param h: The outputs of the layer before, [S, N, ...], or [1, N, ...] if all are the same.
        :param weights: The weights of each network [S, ...]; None where the layer has none.
        :param biases: The biases of each network [S, outputs]; None where the layer has none.
        """
        ...


@dataclass(frozen=True)
class Dense:
    """``vec(h) W + b``.

    :param units: The number of outputs.
    :raises InvalidDataError: if it is not a positive integer.
    """

    units: int

    def __post_init__(self) -> None:
        require_positive_integer("Dense.units", self.units)

    def weights_shape(self, inputs: Shape) -> Shape:
        return int(np.prod(inputs)), self.units

    def output_shape(self, inputs: Shape) -> Shape:
        return (self.units,)

    def __call__(self, h: tf.Tensor, weights: tf.Tensor, biases: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(h, [*tf.unstack(tf.shape(h)[:2]), weights.shape[-2]])
        return tf.matmul(rows, weights) + biases[:, None]


@dataclass(frozen=True)
class Convolution:
    """Filters over an image, with zeros around it: the image keeps its size.

    :param filters: The number of outputs at each pixel.
    :param size: The number of pixels along each side of a filter.
    :raises InvalidDataError: if they are not positive integers.
    """

    filters: int
    size: int = 5

    def __post_init__(self) -> None:
        require_positive_integer("Convolution.filters", self.filters)
        require_positive_integer("Convolution.size", self.size)

    def weights_shape(self, inputs: Shape) -> Shape:
        return self.size, self.size, _require_image(self, inputs)[-1], self.filters

    def output_shape(self, inputs: Shape) -> Shape:
        return *_require_image(self, inputs)[:2], self.filters

    def __call__(self, h: tf.Tensor, weights: tf.Tensor, biases: tf.Tensor) -> tf.Tensor:
        shape = tf.shape(weights)[0], tf.shape(h)[1], *h.shape[2:]
        many = tf.broadcast_to(h, shape)
        found = tf.map_fn(_convolved, (many, weights), fn_output_signature=h.dtype)
        return found + biases[:, None, None, None]


def _convolved(one: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    return tf.nn.conv2d(*one, strides=1, padding="SAME")


@dataclass(frozen=True)
class MaxPool:
    """The largest of each square of pixels.

    :param size: The number of pixels along each side of a square.
    :raises InvalidDataError: if it is not a positive integer.
    """

    size: int = 2

    def __post_init__(self) -> None:
        require_positive_integer("MaxPool.size", self.size)

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
