"""Compiles a function once, for unknown data shapes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.gp.process.distances import shortcuts_allowed

FLOAT = tf.float64


def spec(*shape: int | None) -> tf.TensorSpec:
    """A float64 argument; None for sizes that may vary from call to call."""
    return tf.TensorSpec(shape, FLOAT)


class Compiled:
    """A function as a graph, traced once, at the first call.

    What is called is the one graph that there is, as to look for it by the arguments costs more
    than many a small function. Numbers come as arrays: TensorFlow keeps a tensor for every Python
    number that it has ever seen. Tensors and variables stay what they are, for gradients. Where
    functions are run eagerly, to look for an error, arguments are tensors all the same.

    If the graph takes distances the quick way, there is a careful one as well, for arguments at
    which a value is not finite.
    """

    def __init__(self, function: Callable[..., Any], *signature: Any) -> None:
        self._function = function
        self._signature = signature
        self._kinds = [kind.dtype for kind in tf.nest.flatten(signature)]
        self._is_flat = all(isinstance(one, tf.TensorSpec) for one in signature)
        self._quick: Any = None
        self._careful: Any = None
        self._takes_shortcuts = False
        self._tracing = Lock()

    def __call__(self, *arguments: Any) -> Any:
        given = arguments if self._is_flat else tf.nest.flatten(arguments)
        tensors = [_as_tensor(*pair) for pair in zip(given, self._kinds, strict=True)]
        if not self._is_flat:
            tensors = tf.nest.pack_sequence_as(self._signature, tensors)
        if tf.config.functions_run_eagerly():
            return self._function(*tensors)
        if tf.inside_function():  # where values are not known yet
            return self._carefully()(*tensors)
        found = self._quickly()(*tensors)
        if not self._takes_shortcuts or _is_finite(found):
            return found
        return self._carefully()(*tensors)

    def _quickly(self) -> Any:
        """The graph, traced by whichever thread comes first."""
        with self._tracing:
            if self._quick is None:
                with shortcuts_allowed() as shortcuts:
                    self._quick = self._traced()
                self._takes_shortcuts = shortcuts.taken
        return self._quick

    def _carefully(self) -> Any:
        """The graph that takes no shortcuts, likewise."""
        with self._tracing:
            if self._careful is None:
                self._careful = self._traced()
        return self._careful

    def _traced(self) -> Any:
        """A new graph.

        The ``partial`` gives every model a function object of its own; TensorFlow otherwise
        counts the first traces of several models as retracing of one function, and warns.
        """
        own = partial(self._function)
        function = tf.function(own, input_signature=self._signature, autograph=False)
        return function.get_concrete_function()


def _is_finite(values: Any) -> bool:
    """By their sums, which need no further arrays as large as covariances are."""
    with np.errstate(all="ignore"):
        return all(np.isfinite(np.sum(np.asarray(one))) for one in tf.nest.flatten(values))


def _as_tensor(value: Any, dtype: tf.DType) -> tf.Tensor:
    """Arrays first: to ask TensorFlow what something is takes longer than to convert it."""
    if type(value) is not np.ndarray and not tf.is_tensor(value):
        value = np.asarray(value)
    return tf.convert_to_tensor(value, dtype)


class Graphs:
    """Compiled functions of models of one kind, each made when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Compiled] = {}
        self._making = Lock()

    def compiled(self, function: Callable[..., Any], *signature: Any, of: Any = ()) -> Compiled:
        """A function as a graph for arguments of this signature.

        :param function: Known by its name; it is kept as long as the graph.
        :param of: All that it depends on beside what models of the kind have in common; hashable.
        """
        named = function.func if isinstance(function, partial) else function
        key = named.__module__, named.__qualname__, of, signature
        with self._making:
            if key not in self._made:
                self._made[key] = Compiled(function, *signature)
            return self._made[key]


def in_numpy(function: Callable[..., Any], given: Any, like: Any) -> Any:
    """A function of structures of arrays as an operation of TensorFlow, without a gradient.

    TensorFlow keeps the function for good, and what it refers to.

    :param given: What it is a function of, one argument after another.
    :param like: A structure such as it gives, all of float64: tensors of the same shapes where
        these are known, or None.
    """
    forms = tf.nest.map_structure(lambda _: None, given)

    def flat(*arrays: np.ndarray) -> list[Any]:
        return tf.nest.flatten(function(*tf.nest.pack_sequence_as(forms, arrays)))

    wanted = tf.nest.flatten(like)
    found = tf.numpy_function(flat, tf.nest.flatten(given), [FLOAT] * len(wanted))
    for one, form in zip(found, wanted, strict=True):
        one.set_shape(None if form is None else form.shape)
    return tf.nest.pack_sequence_as(like, found)


def at_each_sample(function: Callable[..., Any], *samples: Any) -> Any:
    """``function`` at each of S samples, or structures of them, results stacked; S is known when
    tracing.

    Vectorised, unless S = 1: then the function is simply called.
    """
    if tf.nest.flatten(samples)[0].shape[0] == 1:
        value = function(*tf.nest.map_structure(lambda part: tf.squeeze(part, 0), samples))
        return tf.nest.map_structure(lambda part: tf.expand_dims(part, 0), value)
    return tf.vectorized_map(lambda sample: function(*sample), samples)


def mean_over_samples(function: Callable[..., Any], *samples: Any) -> Any:
    """Average of ``function`` over S samples."""
    values = at_each_sample(function, *samples)
    return tf.nest.map_structure(lambda value: tf.reduce_mean(value, axis=0), values)
