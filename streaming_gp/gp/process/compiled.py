"""Compiles a function once, for unknown data shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

FLOAT = tf.float64


def spec(*shape: int | None) -> tf.TensorSpec:
    """A float64 argument; None for sizes that may vary from call to call."""
    return tf.TensorSpec(shape, FLOAT)


def compiled(function: Callable[..., Any], *signature: Any) -> Any:
    """``function`` as a graph, traced once for ``signature``.

    The ``partial`` gives every model a function object of its own; TensorFlow otherwise counts
    the first traces of several models as retracing of one function, and warns. Where functions are
    run eagerly, to look for an error, arguments are tensors all the same.
    """

    def of_tensors(*arguments: Any) -> Any:
        return function(*tf.nest.map_structure(tf.convert_to_tensor, arguments))

    return tf.function(partial(of_tensors), input_signature=signature, autograph=False)


def at_each_sample(function: Callable[..., Any], *samples: Any) -> Any:
    """``function`` at each of S samples, results stacked; S is known when tracing.

    Vectorised, unless S = 1: then the function is simply called.
    """
    if samples[0].shape[0] == 1:
        value = function(*(sample[0] for sample in samples))
        return tf.nest.map_structure(lambda part: part[None], value)
    return tf.vectorized_map(lambda sample: function(*sample), samples)


def mean_over_samples(function: Callable[..., Any], *samples: Any) -> Any:
    """Average of ``function`` over S samples."""
    values = at_each_sample(function, *samples)
    return tf.nest.map_structure(lambda value: tf.reduce_mean(value, axis=0), values)
