"""The vector ε as compiled functions see it: in modules that nobody else reads."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gpflow
import tensorflow as tf
from tensorflow_probability import bijectors as tfb

from streaming_gp.gp.hyperparameters.parameters import ParameterVector


class TracedParameterVector(ParameterVector):
    """The parameters of a module, for which tensors are substituted in a copy of that module.

    Whoever reads the parameters while something is traced, in whatever thread, sees values.

    :param module: The module.
    """

    def __init__(self, module: tf.Module) -> None:
        super().__init__(module)
        self.traced = _copy_to_trace(module)
        self._inside, self._one_at_a_time = ParameterVector(self.traced), threading.RLock()
        self.traced_variables = self._inside.traced_variables
        self.traced_parameters = list(self._inside.parameters.values())

    @contextmanager
    def substituted(self, epsilon: tf.Tensor) -> Iterator[None]:
        with self._one_at_a_time, self._inside.substituted(epsilon):
            yield

    def log_prior_density(self) -> tf.Tensor:
        return self._inside.log_prior_density()

    def tensor(self) -> tf.Tensor:
        """The current ε [E] as a tensor that depends on the parameters' variables."""
        empty = tf.zeros([0], gpflow.default_float())
        values = [tf.reshape(p.unconstrained_variable, [-1]) for p in self.parameters.values()]
        return tf.concat([*values, empty], 0)


def _copy_to_trace(module: tf.Module) -> tf.Module:
    """A copy that shares what is not trained with the original, so that a change of it is seen.

    The softplus of TensorFlow Probability has a gradient of its own, which gets lost where
    functions are vectorised over values of ε: what is left of it is not finite for numbers above
    709. The copy takes TensorFlow's, which is the same function.
    """
    leaves = gpflow.utilities.parameter_dict(module).values()
    shared = [one for one in leaves if not one.trainable]
    shared += [one.prior for one in leaves if getattr(one, "prior", None) is not None]
    found = copy.deepcopy(module, {id(one): one for one in shared})
    for parameter in gpflow.utilities.parameter_dict(found).values():
        if parameter.trainable:
            for softplus in _softpluses(parameter.transform):
                softplus._forward = tf.math.softplus
    return found


def _softpluses(transform: Any) -> list[tfb.Softplus]:
    """Every plain softplus that a transform is a chain of."""
    parts = transform.bijectors if isinstance(transform, tfb.Chain) else [transform]
    if len(parts) > 1:
        return [one for part in parts for one in _softpluses(part)]
    is_plain = isinstance(parts[0], tfb.Softplus) and parts[0].hinge_softness is None
    return [parts[0]] if is_plain and parts[0].low is None else []
