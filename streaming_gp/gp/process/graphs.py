"""Compiled functions, which models of one kind share.

To trace a function takes far longer than to run it, and the graph depends on the model only through
what does not vary: parameters that are trained come as the argument ε. So a second model like the
first one, as of another fold of a cross-validation or of another client, traces nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from enum import Enum
from functools import partial
from threading import Lock, local
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import WeakValueDictionary

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

FLOAT = tf.float64
MOST_KINDS = 24
"""The graphs of so many kinds are kept when the last model is gone. A model is of three at most: by
what it is, by how it learns of ε as well, and at a point ε. Graphs of labels take some 30 MB."""


def spec(*shape: int | None) -> tf.TensorSpec:
    """A float64 argument; None for sizes that may vary from call to call."""
    return tf.TensorSpec(shape, FLOAT)


# ---- one function ----

_shortcuts: ContextVar[set[str] | None] = ContextVar("shortcuts", default=None)


def take_shortcut() -> bool:
    """Whether what is traced now may take a quick way that gives NaN where it loses digits.

    Then a careful graph takes the place of this one.
    """
    taken = _shortcuts.get()
    if taken is None:
        return False
    taken.add("taken")
    return True


_within = local()
"""Of each thread: whether it computes in NumPy what a graph waits for. No other graph runs there,
as with few threads the two would wait for one another for ever; its operations run one by one."""


class Compiled:
    """A function as a graph, traced once, at the first call.

    What is called is the one graph that there is, as to look for it by the arguments costs more
    than many a small function. Numbers come as arrays: TensorFlow keeps a tensor for every Python
    number that it has ever seen. Tensors and variables stay what they are, for gradients. Where
    functions are run eagerly, to look for an error, arguments are tensors all the same.

    If the graph takes shortcuts, there is a careful one as well, for arguments at which a value is
    not finite.
    """

    def __init__(self, function: Callable[..., Any], *signature: Any) -> None:
        self._function = function
        self._signature = signature
        self._dtypes = [one.dtype for one in tf.nest.flatten(signature)]
        self._is_flat = all(isinstance(one, tf.TensorSpec) for one in signature)
        self._quick: Any = None
        self._careful: Any = None
        self._takes_shortcuts = False
        self._tracing = Lock()

    def __call__(self, *arguments: Any) -> Any:
        given = arguments if self._is_flat else tf.nest.flatten(arguments)
        tensors = [_as_tensor(*pair) for pair in zip(given, self._dtypes, strict=True)]
        if not self._is_flat:
            tensors = tf.nest.pack_sequence_as(self._signature, tensors)
        if tf.config.functions_run_eagerly() or getattr(_within, "numpy", False):
            return self._function(*tensors)
        if tf.inside_function():  # where values are not known yet
            return self._careful_graph()(*tensors)
        values = self._quick_graph()(*tensors)
        if not self._takes_shortcuts or _is_finite(values):
            return values
        return self._careful_graph()(*tensors)

    def _quick_graph(self) -> Any:
        with self._tracing:
            if self._quick is None:
                taken: set[str] = set()
                token = _shortcuts.set(taken)
                try:
                    self._quick = self._trace()
                finally:
                    _shortcuts.reset(token)
                self._takes_shortcuts = bool(taken)
        return self._quick

    def _careful_graph(self) -> Any:
        with self._tracing:
            if self._careful is None:
                self._careful = self._trace()
        return self._careful

    def _trace(self) -> Any:
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


def in_numpy(function: Callable[..., Any], given: Any, like: Any) -> Any:
    """A function of structures of arrays as an operation of TensorFlow, without a gradient.

    TensorFlow keeps the function for good, and what it refers to.

    :param given: What it is a function of, one argument after another.
    :param like: A structure such as it gives, all of float64: tensors of the same shapes where
        these are known, or None.
    """
    forms = tf.nest.map_structure(lambda _: None, given)

    def flat(*arrays: np.ndarray) -> list[Any]:
        before, _within.numpy = getattr(_within, "numpy", False), True
        try:
            return tf.nest.flatten(function(*tf.nest.pack_sequence_as(forms, arrays)))
        finally:
            _within.numpy = before

    wanted = tf.nest.flatten(like)
    values = tf.numpy_function(flat, tf.nest.flatten(given), [FLOAT] * len(wanted))
    for one, form in zip(values, wanted, strict=True):
        one.set_shape(None if form is None else form.shape)
    return tf.nest.pack_sequence_as(like, values)


def at_each_sample(function: Callable[..., Any], *samples: Any) -> Any:
    """``function`` at each of S samples, or structures of them, results stacked.

    Vectorised, unless S = 1 is known when tracing: then the function is simply called.
    """
    if tf.nest.flatten(samples)[0].shape[0] == 1:
        value = function(*tf.nest.map_structure(lambda part: tf.squeeze(part, 0), samples))
        return tf.nest.map_structure(lambda part: tf.expand_dims(part, 0), value)
    return tf.vectorized_map(lambda sample: function(*sample), samples)


# ---- models of one kind ----

_PACKAGES = {"gpflow", "streaming_gp", "tensorflow", "tensorflow_probability", "numpy"}
"""Functions and classes of others may depend on what cannot be seen."""
_WITH_PARAMETERS = (tfp.bijectors.Bijector, tfp.distributions.Distribution)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, slice, tf.DType, Enum)


class Graphs:
    """Compiled functions of models of one kind, each made when it is first asked for."""

    def __init__(self) -> None:
        self._compiled: dict[Hashable, Compiled] = {}
        self._making = Lock()

    def compiled(self, function: Callable[..., Any], *signature: Any, of: Any = ()) -> Compiled:
        """A function as a graph for arguments of this signature.

        :param function: Told from others by its name; it is kept as long as the graph.
        :param of: All that it depends on beside what models of the kind have in common; hashable.
        """
        named = function.func if isinstance(function, partial) else function
        key = named.__module__, named.__qualname__, of, signature
        with self._making:
            if key not in self._compiled:
                self._compiled[key] = Compiled(function, *signature)
            return self._compiled[key]


_graphs: WeakValueDictionary[Hashable, Graphs] = WeakValueDictionary()
_latest: deque[Graphs] = deque(maxlen=MOST_KINDS)
_looking = Lock()


def graphs_of_kind(model: Sequence[Any], parameters: Sequence[gpflow.Parameter]) -> Graphs:
    """The graphs that models like this one share.

    They are new where there may be none like it: where there is a value that is not in ε and may
    change, or a class or function that is not of a library that is known.

    :param model: All that its graphs depend on.
    :param parameters: Those that ε is made of, in its order.
    """
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    try:
        kind = _described([list(model), list(parameters)], places), gpflow.config.config()
    except _MayDifferError:
        return Graphs()
    with _looking:
        graphs = _graphs.setdefault(kind, Graphs())
        if graphs in _latest:
            _latest.remove(graphs)
        _latest.append(graphs)
    return graphs


class _MayDifferError(Exception):
    """A model has something that may differ where it cannot be seen."""


def _described(value: Any, places: dict[int, int]) -> Hashable:
    """A value as nested tuples, equal for values of which graphs are the same, given ε.

    :param places: Of parameters in ε, by their ``id``.
    """

    def all_of(values: Any) -> tuple[Hashable, ...]:
        return tuple(_described(one, places) for one in values)

    if isinstance(value, _PLAIN):
        return type(value), repr(value)
    if isinstance(value, (list, tuple)):
        return "sequence", all_of(value)
    if isinstance(value, dict):
        return "mapping", all_of(value), all_of(value.values())
    if isinstance(value, gpflow.Parameter):
        if id(value) not in places:
            raise _MayDifferError
        about = value.transform, value.prior, value.prior_on
        return places[id(value)], tuple(value.shape), all_of(about)
    if isinstance(value, np.ndarray) or tf.is_tensor(value):
        return _array(value)
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        _refuse_unknown(value, "builtins")
        return value
    _refuse_unknown(type(value))
    if isinstance(value, _WITH_PARAMETERS):
        return type(value), all_of(value.parameters.items())
    return type(value), all_of(_attributes(value).items())


def _array(value: Any) -> Hashable:
    if isinstance(value, tf.Variable) or tf.is_symbolic_tensor(value):
        raise _MayDifferError
    array = np.asarray(value)
    if array.dtype == object:
        raise _MayDifferError
    return type(value), array.dtype.str, array.shape, array.tobytes()


def _refuse_unknown(one: Any, *packages: str) -> None:
    """Only what a library has at its top level is the same whenever it is used.

    :param one: A class or function.
    :param packages: Further ones that are known.
    """
    package = (one.__module__ or "").split(".")[0]
    if "<" in one.__qualname__ or package not in {*_PACKAGES, *packages}:
        raise _MayDifferError


def _attributes(value: Any) -> dict[str, Any]:
    """All of an object's own, without the names and lists of what it tracks of a module."""
    attributes = getattr(value, "__dict__", None)
    if attributes is None:
        raise _MayDifferError
    if not isinstance(value, tf.Module):
        return attributes
    own = {name: part for name, part in attributes.items() if not name.startswith("_self_")}
    return {name: part for name, part in own.items() if name not in ("_name", "_name_scope")}
