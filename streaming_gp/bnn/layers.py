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

Shape = tuple[int, ...]


class Layer(Protocol):
    """One layer, with weights and one bias for each of its outputs, or without either."""

    def weights_shape(self, inputs: Shape) -> Shape | None:
        """Of its weights, the last two axes for what comes in and what goes out; None without."""
        ...

    def output_shape(self, inputs: Shape) -> Shape:
        """Of what it puts out; raises ``InvalidDataError`` where inputs do not fit."""
        ...

    def __call__(self, h: tf.Tensor, weights: tf.Tensor, biases: tf.Tensor) -> tf.Tensor:
        """[S, N, ...] of h [S or 1, N, ...]; weights and biases are None where it has none."""
        ...


@dataclass(frozen=True)
class Dense:
    """``vec(h) W + b``.

    :param units: outputs.
    """

    units: int

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

    :param filters: outputs at each pixel.
    :param size: pixels along each side of a filter.
    """

    filters: int
    size: int = 5

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

    :param size: pixels along each side.
    """

    size: int = 2

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
