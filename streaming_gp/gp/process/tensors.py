"""The algebra of :mod:`.dense` in TensorFlow, for gradients by ε and by inputs, and in graphs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.dense import MOST_ROUNDING, SMALLEST_VARIANCE, DenseProcess
from streaming_gp.gp.process.graphs import spec
from streaming_gp.gp.process.observations import DataObservations, PseudoObservations
from streaming_gp.numerics.linalg import (
    LOG_TWO_PI,
    add_to_diagonal,
    logdet_from_cholesky,
    solve_lower,
)
from streaming_gp.numerics.shapes import check_shapes


class Stack(NamedTuple):
    """Pseudo-observations one after another: n square blocks of one size M hold their precision
    factors; R = n M.

    What is left over in a block is padded with points of zero precision, which leaves B exact.

    Where ``is_data`` is one, R and s are in units of the likelihood's Gaussian noise, which ε says.

    Z [R, D], precision_factor [G, n, M, M], pseudo_targets [G, R, C], nugget [R], is_data [R].
    """

    Z: tf.Tensor
    precision_factor: tf.Tensor
    pseudo_targets: tf.Tensor
    nugget: tf.Tensor
    is_data: tf.Tensor


class Conditioned(NamedTuple):
    """A stack factorised at one ε, for predictions: L [G, R, R] and L⁻¹(s − Rᵀm(Z)) [G, R, C]."""

    chol: tf.Tensor
    white: tf.Tensor


def stacked(
    observations: tuple[PseudoObservations | DataObservations, ...],
    input_dim: int,
    num_groups: int,
    num_columns: int,
) -> Stack:
    """Pack pseudo-observations; without any, one padded point stands in: it says nothing.

    Arrays of no size at all would be exact too, but not every kernel has a gradient for them.
    """
    starts, M, n = packed([len(one.Z) for one in observations])
    Z = np.tile(observations[0].Z[:1], (n * M, 1)) if observations else np.zeros((M, input_dim))
    factor = np.zeros((num_groups, n, M, M))
    targets = np.zeros((num_groups, n * M, num_columns))
    nugget, is_data = np.zeros(n * M), np.zeros(n * M)
    for member, start in zip(observations, starts, strict=True):
        block, first = divmod(start, M)
        one = member
        mine, inside = slice(start, start + len(one.Z)), slice(first, first + len(one.Z))
        if isinstance(one, DataObservations):
            is_data[mine] = one.is_gaussian
            one = one.observed(np.ones_like(one.Y) if one.is_gaussian else None)
        Z[mine], targets[:, mine], nugget[mine] = one.Z, one.pseudo_targets, one.nugget
        factor[:, block, inside, inside] = one.square
    arrays = Z, factor, targets, nugget, is_data
    return Stack(*(tf.constant(a, tf.float64) for a in arrays))


def packed(sizes: list[int]) -> tuple[list[int], int, int]:
    """Where members of these sizes start in blocks of the largest size; that size; how many blocks.

    They stay in order, and one large member does not pad the others.
    """
    largest = max(sizes, default=1)
    starts, end = [], 0
    for size in sizes:
        if end % largest + size > largest:
            end = -(-end // largest) * largest
        starts.append(end)
        end += size
    return starts, largest, max(1, -(-end // largest))


def padded(process: DenseProcess, num_groups: int) -> Conditioned:
    """The factorisation of a process at S values of ε, for the stack of its members.

    :param num_groups: The number G of groups.
    :returns: L [S, G, R, R] and w [S, G, R, C]; padding stands by itself and has seen nothing.
    """
    members = process.members
    starts, block, number = packed([len(one.Z) for one in members])
    places = [start + np.arange(len(one.Z)) for one, start in zip(members, starts, strict=True)]
    at = np.concatenate([np.zeros(0, int), *places])
    S, size = len(process.prior.draws), block * number
    chol = np.tile(np.eye(size), (S * num_groups, 1, 1))
    white = np.zeros((S * num_groups, size, process.prior.num_columns))
    for group, L in enumerate(process.chol):
        chol[group][np.ix_(at, at)], white[group][at] = L, process.white[group]
    return Conditioned(
        *(tf.constant(a.reshape(S, num_groups, *a.shape[1:])) for a in (chol, white))
    )


@check_shapes("matrix: [K, Q, R]", "factor: [G, n, M, M]", "return: [K_or_G, Q, R]")
def times_factor(matrix: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """``matrix @ R`` for block diagonal R: [G, Q, R] and [G, n, M, M] give [G, Q, R]."""
    shape, blocks = tf.shape(matrix), tf.shape(factor)
    split = tf.reshape(matrix, [shape[0], shape[1], blocks[1], blocks[2]])
    product = tf.matmul(tf.transpose(split, [0, 2, 1, 3]), factor)
    joined = tf.transpose(product, [0, 2, 1, 3])
    return tf.reshape(joined, [tf.shape(joined)[0], shape[1], shape[2]])


class GaussianProcess:
    """The TensorFlow side: conditions and predicts at whatever ε the parameters now hold.

    :param kernel: Any GPflow kernel with independent latent functions.
    :param mean_function: Any GPflow mean function.
    :param num_latent: The number L of latent functions.
    :param num_groups: The number G of groups, 1 or L; see :mod:`.prior`.
    :param likelihood: The likelihood, if its noise is Gaussian.
    """

    def __init__(self, kernel, mean_function, num_latent: int, num_groups: int, likelihood=None):  # type: ignore[no-untyped-def]
        self.kernel = kernel
        self.mean_function = mean_function
        self.num_latent = num_latent
        self.num_groups = num_groups
        self.likelihood = likelihood

    def noise_precision(self, X: tf.Tensor) -> tf.Tensor:
        """``1/σ²`` [N, L] of Gaussian noise; of another likelihood one."""
        values = tf.zeros([tf.shape(X)[0], self.num_latent], X.dtype)
        if self.likelihood is None:
            return values + 1.0
        return 1.0 / self.likelihood.conditional_variance(X, values)

    def _unit(self, stack: Any) -> tf.Tensor:
        """The root of the noise's precision where R and s are in units of it, elsewhere one:
        [G, R].
        """
        if self.likelihood is None:
            return tf.ones_like(stack.nugget)[None]
        root = tf.sqrt(cov.to_groups(self.noise_precision(stack.Z), self.num_groups)[:, :, 0])
        return tf.where(stack.is_data > 0.0, root, tf.ones_like(root))

    def _weighted(self, matrix: tf.Tensor, stack: Any) -> tf.Tensor:
        """``matrix @ R`` [G, Q, R]."""
        return times_factor(matrix, stack.precision_factor) * self._unit(stack)[:, None]

    def stack(self, observations: tuple[Any, ...], input_dim: int) -> Any:
        """Pseudo-observations padded for the functions below."""
        columns = self.num_latent // self.num_groups
        return stacked(observations, input_dim, self.num_groups, columns)

    def stack_spec(self, input_dim: int) -> Any:
        """Signature of a stack of any number of pseudo-observations, for compiled functions."""
        G, C = self.num_groups, self.num_latent // self.num_groups
        return Stack(
            spec(None, input_dim),
            spec(G, None, None, None),
            spec(G, None, C),
            spec(None),
            spec(None),
        )

    def prior_mean(self, X: tf.Tensor) -> tf.Tensor:
        """[N, L]."""
        return cov.prior_mean(self.mean_function, X, self.num_latent)

    @check_shapes(
        "stack.Z: [R, D]",
        "stack.precision_factor: [G, n, M, M]",
        "stack.pseudo_targets: [G, R, C]",
        "stack.nugget: [R]",
        "return.chol: [., R, R]",
        "return.white: [G, R, C]",
    )
    def condition(self, stack: Any) -> Conditioned:
        """Factorise B and whiten the residuals."""
        K = add_to_diagonal(cov.covariance(self.kernel, stack.Z), stack.nugget)
        RtKR = self._weighted(tf.linalg.matrix_transpose(self._weighted(K, stack)), stack)
        chol = tf.linalg.cholesky(add_to_diagonal(RtKR, tf.ones_like(stack.nugget)))
        mean = cov.to_groups(self.prior_mean(stack.Z), self.num_groups)
        shift = self._weighted(tf.linalg.matrix_transpose(mean), stack)
        targets = self._unit(stack)[:, :, None] * stack.pseudo_targets
        residual = targets - tf.linalg.matrix_transpose(shift)
        return Conditioned(chol, solve_lower(chol, residual))

    @check_shapes("X: [N, D]", "return: [., R, N]")
    def project(self, stack: Any, conditioned: Conditioned, X: tf.Tensor) -> tf.Tensor:
        """``V = L⁻¹ Rᵀ k(Z, X)`` [G, R, N]: what the pseudo-observations know of f(X)."""
        kxz = self._weighted(cov.covariance(self.kernel, X, stack.Z), stack)
        return solve_lower(conditioned.chol, tf.linalg.matrix_transpose(kxz))

    def mean(self, conditioned: Conditioned, V: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        """Mean [N, L] at X, from its projection V."""
        return self.prior_mean(X) + cov.from_groups(
            tf.matmul(V, conditioned.white, transpose_a=True), self.num_latent
        )

    def variance(self, V: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        """Variance [G, N] at X; rounding below zero is cut off at 1e-12 of the prior variance.

        Far below zero it is NaN: covariances with inputs so large are wrong, as a cosine of 1e300.
        """
        prior = cov.variance(self.kernel, X)
        left = prior - tf.reduce_sum(tf.square(V), axis=-2)
        is_wrong = left < -MOST_ROUNDING * prior
        nothing = tf.constant(np.nan, left.dtype)
        return tf.where(is_wrong, nothing, tf.maximum(left, SMALLEST_VARIANCE * prior))

    def covariance(self, V: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        """Covariance [G, N, N] at X, from its projection."""
        return cov.covariance(self.kernel, X) - tf.matmul(V, V, transpose_a=True)

    @check_shapes("X: [N, D]", "return[0]: [N, L]", "return[1]: [N, L]")
    def predict(
        self, stack: Any, X: tf.Tensor, chol: tf.Tensor, white: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [N, L] of f(X), from L and w."""
        conditioned = Conditioned(chol, white)
        V = self.project(stack, conditioned, X)
        variance = cov.spread_over_latents(self.variance(V, X), self.num_latent)
        return self.mean(conditioned, V, X), variance

    @check_shapes("X: [N, D]", "return[0]: [N, L]", "return[1]: [L, N, N]")
    def predict_jointly(
        self, stack: Any, X: tf.Tensor, chol: tf.Tensor, white: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [N, L] and covariance [L, N, N] of f(X), from L and w."""
        conditioned, N = Conditioned(chol, white), tf.shape(X)[0]
        V = self.project(stack, conditioned, X)
        covariance = tf.broadcast_to(self.covariance(V, X), [self.num_latent, N, N])
        return self.mean(conditioned, V, X), covariance

    @check_shapes("conditioned.chol: [., R, R]", "conditioned.white: [G, R, C]", "return: []")
    def log_normaliser(self, stack: Any, conditioned: Conditioned) -> tf.Tensor:
        """``log 𝒵`` of the stack, without the factors' log constants: a scalar."""
        columns = tf.cast(self.num_latent // self.num_groups, conditioned.white.dtype)
        logdet = tf.reduce_sum(logdet_from_cholesky(conditioned.chol))
        value = -0.5 * columns * logdet - 0.5 * tf.reduce_sum(tf.square(conditioned.white))
        return value + self.log_constants(stack)

    def log_constants(self, stack: Any) -> tf.Tensor:
        """``Σ ½ w log(1 / 2πσ²)`` of the data that the stack holds: a scalar."""
        if self.likelihood is None:
            return tf.zeros([], stack.precision_factor.dtype)
        diagonal = tf.linalg.diag_part(stack.precision_factor)
        weights = stack.is_data * tf.square(tf.reshape(diagonal, [self.num_groups, -1]))
        log_precision = tf.math.log(self.noise_precision(stack.Z)) - LOG_TWO_PI
        by_group = cov.to_groups(log_precision, self.num_groups)
        return 0.5 * tf.reduce_sum(weights[:, :, None] * by_group)
