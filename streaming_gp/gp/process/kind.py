"""Models of one kind share their compiled functions.

To trace a function takes far longer than to run it, and what comes out depends on the model only
through what does not vary: parameters that are trained come as the argument ε. So a second model
like the first one, as of another fold of a cross-validation or of another client, traces nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from enum import Enum
from threading import Lock
from types import BuiltinFunctionType, FunctionType
from typing import Any
from weakref import WeakValueDictionary

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from streaming_gp.gp.process.compiled import Graphs

MOST_KINDS = 24
"""The graphs of so many kinds are kept when the last model is gone. A model is of three at most: by
what it is, by how it learns of ε as well, and at a point ε. Graphs of labels take some 30 MB."""
_KNOWN_PACKAGES = {"gpflow", "streaming_gp", "tensorflow", "tensorflow_probability", "numpy"}
"""Functions and classes of others may depend on what cannot be seen."""
_WITH_PARAMETERS = (tfp.bijectors.Bijector, tfp.distributions.Distribution)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, slice, tf.DType, Enum)

_graphs: WeakValueDictionary[Hashable, Graphs] = WeakValueDictionary()
_latest: deque[Graphs] = deque(maxlen=MOST_KINDS)
_looking = Lock()


def graphs_of_kind(model: Sequence[Any], parameters: Sequence[gpflow.Parameter]) -> Graphs:
    """The graphs that models like this one share; new ones if there may be none like it.

    :param model: All that its graphs depend on.
    :param parameters: Those that ε is made of, in its order.
    """
    kind = kind_of(model, parameters)
    if kind is None:
        return Graphs()
    with _looking:
        found = _graphs.setdefault(kind, Graphs())
        if found in _latest:
            _latest.remove(found)
        _latest.append(found)
    return found


def kind_of(model: Sequence[Any], parameters: Sequence[gpflow.Parameter]) -> Hashable | None:
    """What is equal for models whose graphs are the same, given ε.

    :param model: As in :func:`graphs_of_kind`; and so ``parameters``.
    :returns: it, or None where there is a value that is not in ε and may change, or a class or
        function that is not of a library that is known.
    """
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    try:
        described = _described([list(model), list(parameters)], places)
    except _MayDifferError:
        return None
    return described, gpflow.config.config()


class _MayDifferError(Exception):
    """A model has something that may differ where it cannot be seen."""


def _described(value: Any, places: dict[int, int]) -> Hashable:
    """A value as nested tuples.

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
        said = value.transform, value.prior, value.prior_on
        return places[id(value)], tuple(value.shape), all_of(said)
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
    if "<" in one.__qualname__ or package not in {*_KNOWN_PACKAGES, *packages}:
        raise _MayDifferError


def _attributes(value: Any) -> dict[str, Any]:
    """All of an object's own, without the names and lists of what it tracks of a module."""
    found = getattr(value, "__dict__", None)
    if found is None:
        raise _MayDifferError
    if not isinstance(value, tf.Module):
        return found
    own = {name: part for name, part in found.items() if not name.startswith("_self_")}
    return {name: part for name, part in own.items() if name not in ("_name", "_name_scope")}
