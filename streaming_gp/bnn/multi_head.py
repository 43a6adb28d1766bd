"""A network with an output layer for each task, over layers that all tasks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from streaming_gp.bnn.mean_field import MeanFieldBNN
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.inputs import is_positive_integer, require_positive_integer
from streaming_gp.pvi.guards import Checks
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule
from streaming_gp.validation import Data


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
        outputs = [num_heads * size for size in sizes[-1:] if is_positive_integer(size)]
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
        if not np.isin(X[:, 0], np.arange(self.num_heads)).all():
            wanted = f"0 to {self.num_heads - 1}"
            raise InvalidDataError(f"the first column of X says the head, {wanted}: got {X[:, 0]}")
        return X, Y

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
        untouched = (q.precision == prior.precision) & (q.precision_mean == prior.precision_mean)
        new = np.asarray(untouched) & np.isin(self.head_of_weights, heads)
        pairs = zip(fresh.natural, q.natural, strict=True)
        return MeanFieldNormal(*(np.where(new, a, b) for a, b in pairs))


@dataclass(frozen=True)
class NewHeads:
    """A rule for :class:`~streaming_gp.bnn.MultiHeadBNN`, which starts new heads as it should.

    Heads of other tasks start where q is, and so nothing moves them: the prior's in the first fit.

    :param rule: The rule that fits, such as ``pvi.VariationalUpdate``.
    """

    rule: UpdateRule

    @property
    def checks(self) -> Checks | None:
        """Those of the rule, if it has any."""
        return getattr(self.rule, "checks", None)

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
