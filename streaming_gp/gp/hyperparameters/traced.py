"""The vector ε as compiled functions see it: in modules that nobody else reads."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import gpflow
import tensorflow as tf

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
    """A copy that shares what is not trained with the original, so that a change of it is seen."""
    leaves = gpflow.utilities.parameter_dict(module).values()
    shared = [one for one in leaves if not one.trainable]
    shared += [one.prior for one in leaves if getattr(one, "prior", None) is not None]
    return copy.deepcopy(module, {id(one): one for one in shared})
