"""The prior: covariances and means of latent functions, for any GPflow kernel and mean function.

Latent functions come in G groups of C columns: functions that share kernel and precision form one
group of C = L columns; otherwise there are G = L groups of one column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.kernels import (
    IsotropicStationary,
    Kernel,
    MultioutputKernel,
    Periodic,
    Product,
    SeparateIndependent,
    SharedIndependent,
    Static,
    Stationary,
    Sum,
)
from gpflow.utilities.ops import square_distance

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.process.graphs import Graphs, at_each_sample, spec, take_shortcut
from streaming_gp.gp.process.observations import DataObservations, PseudoObservations
from streaming_gp.numerics.linalg import LOG_TWO_PI
from streaming_gp.numerics.shapes import check_shapes

if TYPE_CHECKING:
    from streaming_gp.gp.process.tensors import GaussianProcess

MOST_ELEMENTS = 2**24
"""The largest number of elements of covariances that are computed in one call."""
FAR = 1e3
"""In lengthscales: 10⁻¹⁰ of the square of a distance is less than any noise that is learned."""
FARTHEST = 3
"""So many columns are subtracted before they are squared, so that derivatives, too, keep their
digits: each costs as much as a covariance."""

# ---- covariances ----


def latent_kernels(kernel: Kernel) -> list[Kernel]:
    """One kernel if all latent functions share it, else one for each.

    :raises InvalidDataError: for other kernels of several outputs.
    """
    if not isinstance(kernel, MultioutputKernel):
        return [kernel]
    if isinstance(kernel, SharedIndependent):
        return [kernel.kernel]
    if isinstance(kernel, SeparateIndependent):
        return list(kernel.kernels)
    raise InvalidDataError(
        "wanted a kernel of one output, SharedIndependent, SeparateIndependent or "
        f"LinearCoregionalization, got {type(kernel).__name__}"
    )


@check_shapes("X: [N, D]", "X2: [N2, D]", "return: [K, N, N2] if X2 is not None")
def covariance(kernel: Kernel, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
    """Prior covariance [1 or L, N, N2] between inputs [N, D] and [N2, D]."""
    return tf.stack([_of_one(k, X, X2) for k in latent_kernels(kernel)])


def _of_one(kernel: Kernel, X: tf.Tensor, X2: tf.Tensor | None) -> tf.Tensor:
    """The covariance [N, N2] of one kernel: GPflow's, but for the distances of isotropic kernels.

    Distances lose digits where inputs lie far from zero in lengthscales: so every part that depends
    on differences has them moved there, which a column that never changes needs most.
    """
    if isinstance(kernel, Sum):
        return tf.add_n([_of_one(part, X, X2) for part in kernel.kernels])
    if isinstance(kernel, Product):
        return reduce(tf.multiply, (_of_one(part, X, X2) for part in kernel.kernels))
    if not depends_on_differences(kernel):
        return kernel(X, X2)
    origin = tf.stop_gradient(tf.reduce_sum(X[:1], axis=0))
    X, X2 = X - origin, None if X2 is None else X2 - origin
    if not is_of_distances(kernel):
        return kernel(X, X2)
    X, X2 = (kernel.scale(x) for x in kernel.slice(X, X if X2 is None else X2))
    return of_squared_distances(kernel.K_r2, X, X2)


def is_of_distances(kernel: Kernel) -> bool:
    """Whether a kernel is a function of GPflow's own distance, and has not another of its own."""
    return isinstance(kernel, IsotropicStationary) and all(
        getattr(type(kernel), name) is getattr(IsotropicStationary, name)
        for name in ("__call__", "K", "scaled_squared_euclid_dist")
    )


def depends_on_differences(kernel: Kernel) -> bool:
    """Whether covariances stay the same when all inputs move by as much."""
    if isinstance(kernel, (Sum, Product)):
        return all(depends_on_differences(part) for part in kernel.kernels)
    return isinstance(kernel, (Stationary, Static, Periodic))


@check_shapes("X: [N, D]", "return: [K, N]")
def variance(kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    """Prior variance [1 or L, N] at inputs [N, D]."""
    return tf.stack([k(X, full_cov=False) for k in latent_kernels(kernel)])


def between(kernel: Kernel, X: tf.Tensor, X2: tf.Tensor) -> tf.Tensor:
    """The covariance [K, N, N2], nowhere larger than the variances allow.

    At a lengthscale that is nothing beside the inputs rounding makes squares of distances negative,
    and covariances infinite.
    """
    variances = (tf.reduce_max(variance(kernel, one), axis=1) for one in (X, X2))
    largest = tf.reshape(tf.sqrt(tf.multiply(*variances)), [-1, 1, 1])
    return tf.clip_by_value(covariance(kernel, X, X2), -largest, largest)


def among(kernel: Kernel, X: tf.Tensor) -> tf.Tensor:
    """The covariance [K, N, N] of f(X), nowhere larger than the variances, which it holds."""
    diagonal = variance(kernel, X)
    largest = tf.reshape(tf.reduce_max(diagonal, axis=1), [-1, 1, 1])
    K = tf.clip_by_value(covariance(kernel, X), -largest, largest)
    return tf.linalg.set_diag(K, diagonal)


# ---- distances ----


def of_squared_distances(
    function: Callable[[tf.Tensor], tf.Tensor], X: tf.Tensor, X2: tf.Tensor
) -> tf.Tensor:
    """A function of ``‖x − x'‖²`` [N, N2] between X [N, D] and X2 [N2, D].

    As ``‖x‖² + ‖x'‖² − 2 xᵀx'`` squares lose ``10⁻¹⁶ ‖x‖²``. Where inputs are equal in one column,
    and lie thousands of its lengthscales from the origin, that is more than the noise of a function
    that is known well: and the prior of a lengthscale reaches to next to nothing. In more than
    three columns the careful way takes several times as long as this quick one, and is seldom
    wanted, so that graphs take the quick one where they can: see :func:`.take_shortcut`.

    :param X: Inputs in lengthscales, which are near zero if they can be.
    """
    if X.shape[1] is not None and X.shape[1] <= FARTHEST:
        return function(_directly(tf.transpose(X), tf.transpose(X2), X.shape[1]))
    rows = tf.stop_gradient(tf.concat([X, X2, tf.zeros_like(X[:1])], axis=0))
    reach = tf.reduce_max(tf.abs(rows), axis=0)
    if not take_shortcut():
        return function(_carefully(X, X2, reach))
    doubt = tf.where(tf.reduce_max(reach) > FAR, tf.constant(np.nan, X.dtype), 0.0)
    return function(square_distance(X, X2)) + doubt


def _carefully(X: tf.Tensor, X2: tf.Tensor, reach: tf.Tensor) -> tf.Tensor:
    """From the columns that reach farthest from zero, and from the others.

    In a graph for any number of columns derivatives do not keep their digits.
    """
    if X.shape[1] is None:
        return _split(X, X2, tf.reduce_max(reach))
    farthest = tf.math.top_k(reach, FARTHEST).indices
    others = 1.0 - tf.reduce_sum(tf.one_hot(farthest, X.shape[1], dtype=X.dtype), axis=0)
    columns, columns2 = (tf.gather(tf.transpose(x), farthest) for x in (X, X2))
    rest = _split(X * others, X2 * others, tf.reduce_max(reach * others))
    return _directly(columns, columns2, FARTHEST) + rest


def _directly(columns: tf.Tensor, columns2: tf.Tensor, number: int) -> tf.Tensor:
    """From so many columns [D, N] and [D, N2]: one after another takes half of the time."""
    left = tf.unstack(tf.expand_dims(columns, 2), number)
    right = tf.unstack(tf.expand_dims(columns2, 1), number)
    return reduce(tf.add, map(tf.math.squared_difference, left, right))


def _split(X: tf.Tensor, X2: tf.Tensor, reach: tf.Tensor) -> tf.Tensor:
    """Squares of distances by matrix products, whose values keep their digits.

    Coordinates are ``x = c + f``, where c are multiples of a unit so large that floating-point
    numbers hold sums of their squares exactly. In ``‖c − c'‖² + (f − f')ᵀ (g − g')`` with
    ``g = 2 c + f`` nothing is lost in the first, and little in the second, which is small.

    :param reach: The largest size of a coordinate.
    """
    unit = _unit(reach, tf.shape(X)[1])
    coarse, coarse2 = (tf.stop_gradient(tf.round(x / unit) * unit) for x in (X, X2))
    fine, fine2 = X - coarse, X2 - coarse2
    return _between(coarse, coarse, coarse2, coarse2) + _between(
        fine, 2.0 * coarse + fine, fine2, 2.0 * coarse2 + fine2
    )


def _unit(reach: tf.Tensor, dimension: tf.Tensor) -> tf.Tensor:
    """A power of two of whose square floating-point numbers hold ``4 D reach²``, to one."""
    info = np.finfo(reach.dtype.as_numpy_dtype)
    reach = tf.maximum(reach, math.sqrt(info.tiny))
    least = reach * tf.sqrt(4.0 * tf.cast(dimension, reach.dtype)) * 2.0 ** (-0.5 * info.nmant)
    return tf.pow(tf.constant(2.0, reach.dtype), tf.math.ceil(tf.math.log(least) / math.log(2.0)))


def _between(a: tf.Tensor, b: tf.Tensor, a2: tf.Tensor, b2: tf.Tensor) -> tf.Tensor:
    """``(a − a')ᵀ (b − b')`` [N, N2] for every row of a, b and every row of a', b'."""
    own, own2 = (tf.reduce_sum(x * y, axis=1, keepdims=True) for x, y in ((a, b), (a2, b2)))
    left = tf.concat([own, tf.ones_like(own), -a, -b], axis=1)
    right = tf.concat([tf.ones_like(own2), own2, b2, a2], axis=1)
    return tf.matmul(left, right, transpose_b=True)


# ---- means and groups ----


@check_shapes("X: [N, D]", "return: [N, L]")
def prior_mean(
    mean_function: gpflow.functions.Function, X: tf.Tensor, num_latent: int
) -> tf.Tensor:
    """Prior mean [N, L] at inputs [N, D]."""
    shape = [tf.shape(X)[0], num_latent]
    if is_zero(mean_function) and mean_function.output_dim in (1, num_latent):
        return tf.zeros(shape, X.dtype)  # what most models have, as a smaller graph
    return tf.broadcast_to(mean_function(X), shape)


def is_zero(mean_function: gpflow.functions.Function) -> bool:
    """Whether it is GPflow's own, and not another that is made of it."""
    return type(mean_function) is gpflow.functions.Zero


@check_shapes("values: [N, L]", "return: [G, N, C]")
def to_groups(values: tf.Tensor, num_groups: int) -> tf.Tensor:
    """[N, L] → [G, N, C]."""
    if num_groups == 1:
        return tf.expand_dims(values, 0)
    return tf.expand_dims(tf.transpose(values), 2)


@check_shapes("values: [G, N, C]", "return: [N, L]")
def from_groups(values: tf.Tensor, num_latent: int) -> tf.Tensor:
    """[G, N, C] → [N, L], with L = G C."""
    return tf.reshape(tf.transpose(values, [1, 0, 2]), [tf.shape(values)[1], num_latent])


@check_shapes("values: [K, N]", "return: [N, L]")
def spread_over_latents(values: tf.Tensor, num_latent: int) -> tf.Tensor:
    """[1 or L, N] shared by group → [N, L]."""
    return tf.broadcast_to(tf.transpose(values), [tf.shape(values)[1], num_latent])


# ---- values at ε ----


class PriorFunctions:
    """Compiled values of kernel and mean function at any number of values of ε.

    :param gp: Kernel and mean function.
    :param parameters: The vector ε of trainable parameters.
    :param input_dim: The number D of columns of X.
    :param graphs: Those of the models of this kind.
    """

    def __init__(
        self, gp: GaussianProcess, parameters: Any, input_dim: int, graphs: Graphs
    ) -> None:
        self.gp = gp
        self.parameters = parameters
        self.graphs = graphs
        self.input_dim = input_dim
        inputs = spec(None, input_dim)
        compiled = partial(self._at_each, graphs)
        self.covariance = compiled(
            "covariance", lambda *both: between(gp.kernel, *both), inputs, inputs
        )
        self.among = compiled("among", lambda X: among(gp.kernel, X), inputs)
        self.variance = compiled("variance", lambda X: variance(gp.kernel, X), inputs)
        self.mean = compiled("mean", lambda X: to_groups(gp.prior_mean(X), gp.num_groups), inputs)
        self.noise_precision = compiled("noise", gp.noise_precision, inputs)

        derivatives = spec(None, None, None)
        self.pullback = graphs.compiled(
            self._pullback_at, spec(parameters.size), inputs, inputs, derivatives, derivatives
        )

    def _pullback_at(
        self,
        epsilon: tf.Tensor,
        X: tf.Tensor,
        X2: tf.Tensor,
        by_among: tf.Tensor,
        by_between: tf.Tensor,
    ) -> tf.Tensor:
        """The derivative by X of what has these by cov(X) and cov(X, X2)."""
        with self.parameters.substituted(epsilon), tf.GradientTape() as tape:
            tape.watch(X)
            among = by_among * covariance(self.gp.kernel, X)
            between = by_between * covariance(self.gp.kernel, X, X2)
            value = tf.reduce_sum(among) + tf.reduce_sum(between)
        return tape.gradient(value, X, unconnected_gradients="zero")

    def _at_each(
        self, graphs: Graphs, name: str, function: Callable[..., tf.Tensor], *inputs: Any
    ) -> Any:
        """``function`` of inputs at every ε of [S, E].

        One ε has a graph of its own, which is traced several times faster than one of any number.
        """

        def at(draws: tf.Tensor, *X: tf.Tensor) -> tf.Tensor:
            def at_one(epsilon: tf.Tensor) -> tf.Tensor:
                with self.parameters.substituted(epsilon):
                    return function(*X)

            return at_each_sample(at_one, draws)

        one, many = (
            graphs.compiled(at, spec(S, self.parameters.size), *inputs, of=name) for S in (1, None)
        )
        return lambda draws, *X: (one if len(draws) == 1 else many)(draws, *X)


@dataclass(frozen=True, eq=False)
class PriorAt:
    """The prior at S values of ε.

    For each there are G groups of latent functions; the S G groups of all follow one another.

    :param functions: Its compiled values.
    :param draws: The values of ε [S, E].
    """

    functions: PriorFunctions
    draws: np.ndarray

    @property
    def groups(self) -> list[int]:
        """Which group of the latent functions each of the S G groups is."""
        return list(range(self.functions.gp.num_groups)) * len(self.draws)

    @property
    def num_columns(self) -> int:
        """C, the number of latent functions of a group."""
        return self.functions.gp.num_latent // self.functions.gp.num_groups

    def covariances(self, X: np.ndarray, X2: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """The covariance [N, N2] between f(X) and f(X2) of every group; X2 is X by default.

        White noise is shared by no two sets of inputs, even if they are equal.
        """
        number = self.functions.gp.num_groups
        size = number * len(X) * len(X if X2 is None else X2)
        at_once = max(1, MOST_ELEMENTS // max(1, size))
        for start in range(0, len(self.draws), at_once):
            draws = self.draws[start : start + at_once]
            if X2 is None:
                found = self.functions.among(draws, X)
            else:
                found = self.functions.covariance(draws, X, X2)
            for one in np.asarray(found):  # no copy, as numpy() would be
                yield from np.broadcast_to(one, (number, *one.shape[1:]))

    def covariance(self, X: np.ndarray, X2: np.ndarray | None = None) -> np.ndarray:
        """All of :meth:`covariances`: [S G, N, N2]."""
        return np.stack(list(self.covariances(X, X2)))

    def variance(self, X: np.ndarray) -> np.ndarray:
        """Variance [S G, N] of f(X)."""
        found = np.asarray(self.functions.variance(self.draws, X))
        shape = len(self.draws), self.functions.gp.num_groups, len(X)
        return np.broadcast_to(found, shape).reshape(-1, len(X))

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Mean [S G, N, C] of f(X)."""
        found = np.asarray(self.functions.mean(self.draws, X))
        return found.reshape(-1, *found.shape[2:])

    def observed(
        self, members: Sequence[PseudoObservations | DataObservations]
    ) -> list[tuple[PseudoObservations, ...]]:
        """Members as pseudo-observations at each ε: data with Gaussian noise have that of ε.

        :returns: a tuple for each of the S values of ε.
        """
        data = [one for one in members if isinstance(one, DataObservations)]
        if not data:
            return [tuple(members)] * len(self.draws)  # type: ignore[arg-type]
        sizes = np.cumsum([len(one.Z) for one in data])[:-1]
        noises: Iterator[Any] = iter([None] * len(self.draws))
        if data[0].is_gaussian:
            Z = np.concatenate([one.Z for one in data])
            noises = iter(np.asarray(self.functions.noise_precision(self.draws, Z)))
        found = []
        for noise in noises:
            parts = iter([None] * len(data) if noise is None else np.split(noise, sizes))
            found.append(
                tuple(
                    one.observed(next(parts)) if isinstance(one, DataObservations) else one
                    for one in members
                )
            )
        return found

    def constant(self, members: Sequence[Any]) -> float:
        """What the likelihood of data with Gaussian noise has in front, ``Σ ½ w log(1/(2π σ²))``,
        at one ε, in nats; other members have none.
        """
        data = [one for one in members if isinstance(one, DataObservations) and one.is_gaussian]
        if not data:
            return 0.0
        (noise,) = np.asarray(
            self.functions.noise_precision(self.draws, np.concatenate([one.Z for one in data]))
        )
        weights = np.concatenate([one.weights for one in data])
        logs = np.log(noise) - LOG_TWO_PI
        logs[np.concatenate([one.is_missing for one in data])] = 0.0
        return float(0.5 * weights @ logs.sum(axis=1))

    def pullback(
        self, X: np.ndarray, X2: np.ndarray, by_among: np.ndarray, by_between: np.ndarray
    ) -> np.ndarray:
        """The derivative [N, D] by X of what has these by cov(X) and by cov(X, X2), at one ε.

        :param by_among: [G, N, N].
        :param by_between: [G, N, N2].
        """
        (epsilon,) = self.draws
        return np.asarray(self.functions.pullback(epsilon, X, X2, by_among, by_between))
