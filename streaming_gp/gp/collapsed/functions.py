"""Collapsed bounds as compiled functions of ε's variables and of the places of points."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.gp.collapsed.bounds import AtEveryInput, OnPoints
from streaming_gp.gp.collapsed.energy import energy
from streaming_gp.gp.collapsed.known import Known
from streaming_gp.gp.collapsed.prior_values import PriorValues, prior_values
from streaming_gp.gp.process.graphs import FLOAT, at_each_sample, in_numpy, spec
from streaming_gp.numerics.threads import one_blas_thread


class CollapsedFunctions:
    """Negative free energies of one model and their gradients.

    TensorFlow takes the derivatives of the prior, by ε and by the points; those of the bound by the
    prior come from :func:`energy`.

    :param local: The :class:`~streaming_gp.gp.bounds.problem.LocalModel`, whose noise is Gaussian.
    :param on_points: Whether there are points beside the data.
    """

    def __init__(self, local: Any, on_points: bool) -> None:
        self.local = local
        self.on_points = on_points
        self._compiled: dict[tuple[bool, bool], Any] = {}

    @one_blas_thread()
    def loss_and_gradient(
        self,
        alpha: float,
        offsets: np.ndarray,
        variables: np.ndarray,
        problem: Any,
        move: bool,
    ) -> tuple[float, np.ndarray]:
        """The negative free energy, which is infinite where a covariance is not positive.

        :param alpha: The power of power EP.
        :param offsets: Those of the points [M D].
        :param variables: Those of ε [V].
        :param problem: The batch under its cavity, a :class:`.Problem`, or on points that take over
            what earlier ones said.
        :param move: Whether the gradient is by offsets and variables, one after another, and not by
            the variables alone.
        """
        kind = move, bool(problem.earlier)
        if kind not in self._compiled:
            function = self._by_all if move else self._by_epsilon
            arguments = spec(), spec(None), spec(None), self.local.problem_spec(kind[1])
            graphs = self.local.graphs_of_fits
            self._compiled[kind] = graphs.compiled(function, *arguments, of=self.on_points)
        loss, gradient = self._compiled[kind](alpha, offsets, variables, problem)
        return float(loss), gradient.numpy()

    # ---- what is compiled ----

    def _by_all(self, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss, gradients = self._differentiated(slice(1, 3), *arguments)
        return loss, tf.concat(gradients, 0)

    def _by_epsilon(self, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss, (gradient,) = self._differentiated(slice(2, 3), *arguments)
        return loss, gradient

    def _differentiated(self, by: slice, *arguments: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(arguments[by])
            penalty, draws, known, values = terms(self.local, self.on_points, *arguments[1:])
        by_evidence = float(self.local.hyperparameters.memory(lambda: 1.0, lambda: 0.0))
        of = partial(_energy, self.on_points, by_evidence, bool(arguments[3].earlier))
        alpha = arguments[0]
        total, by_values = in_numpy(of, (alpha, known, values), (alpha, values))
        share = -1.0 / tf.cast(tf.shape(draws)[0], FLOAT)
        gradients = tape.gradient(
            [penalty, *values], arguments[by], unconnected_gradients="zero",
            output_gradients=[tf.ones_like(penalty), *(share * one for one in by_values)],
        )  # fmt: skip
        return penalty + share * total, gradients


def _energy(
    on_points: bool,
    by_evidence: float,
    takes_over: bool,
    alpha: np.ndarray,
    known: Known,
    values: PriorValues,
) -> tuple[np.float64, PriorValues]:
    """:func:`energy`, of a bound with this α."""
    bound = OnPoints(float(alpha)) if on_points else AtEveryInput()
    with np.errstate(all="ignore"):  # a line search may ask for an ε at which K is not finite
        total, by_values = energy(bound, values, known, by_evidence, takes_over)
    return np.float64(total), by_values


class Terms(NamedTuple):
    """What a free energy is made of, in TensorFlow.

    :param penalty: What q(ε) costs, in nats [].
    :param draws: Its values of ε [S, E].
    :param known: What does not depend on ε.
    :param values: The prior at each draw.
    """

    penalty: tf.Tensor
    draws: tf.Tensor
    known: Known
    values: PriorValues


def terms(
    local: Any, on_points: bool, offsets: tf.Tensor, variables: tf.Tensor, problem: Any
) -> Terms:
    """The terms of a batch under its cavity, or on points that take over what earlier ones said.

    :param local: The :class:`~streaming_gp.gp.bounds.problem.LocalModel`.
    :param on_points: Whether there are points beside the data, at these offsets [M D].
    """
    stack, X = problem.past, problem.X
    speaks = _rows_that_speak(stack.precision_factor)
    earlier = tf.boolean_mask(stack.Z, tf.reshape(speaks, [-1]))
    own = problem.moved(offsets) if on_points else X
    points = tf.concat([earlier, own], 0)
    draws = local.hyperparameters.draw(variables, problem.location, problem.scale, problem.noise)

    def at(epsilon: tf.Tensor) -> PriorValues:
        with local.parameters.substituted(epsilon):
            return prior_values(local, points, X, on_points)

    known = Known(
        problem.Y,
        stack.precision_factor,
        stack.pseudo_targets,
        stack.nugget,
        speaks,
        problem.nugget,
        problem.earlier.shared_nugget if problem.earlier else tf.zeros([], FLOAT),
    )
    with local.parameters.substituted(draws[0]):
        penalty = local.hyperparameters.penalty(variables, local.parameters)
    return Terms(penalty, draws, known, at_each_sample(at, draws))


def _rows_that_speak(factor: tf.Tensor) -> tf.Tensor:
    """Which rows [n, m] of the blocks [G, n, m, m] are no padding.

    Where nothing is known one row that says nothing stands for it.
    """
    said = tf.cast(factor != 0.0, tf.int32)
    found = tf.reduce_any(tf.reduce_sum(said, axis=2) + tf.reduce_sum(said, axis=3) > 0, axis=0)
    first = tf.reshape(tf.range(tf.size(found)) == 0, tf.shape(found))
    return found | (first & ~tf.reduce_any(found))
