"""ε from the evidence of random rows, each given what is near among the rows before it.

The objective is that of a random order of all rows so far (Vecchia 1988),

``log p(ε) + (n/s) Σ_{i ∈ S} w_i log p(y_i | nearest of the rows before i, ε)``,

for s random rows S and weights w, which are below one for what has faded. Few rows with Gaussian
noise have their exact log evidence. As the order is random, every prefix of it is a random sample:
of very many rows a sample of them stands for all.

Other likelihoods have the largest bound of their evidence, with sites at rest at ε, whose
derivative is that with the sites held. Of many rows some stand for all, chosen by their inputs
alone: random ones, and those near some of these. Where other data are known before, ``p(y_i | ·)``
of many rows is integrated over f_i given the sites of the others.

What s rows say of ε is all that q(ε) may know, so that its precision is their curvature and the
prior's, and not n/s times as much. Where rows are few it is that of steps of q's own width, by a
cubature of 2E points, so that q(ε) is the Gaussian that the objective is nearest to, not its peak
alone (Opper & Archambeau 2009, "The variational Gaussian approximation revisited").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.errors import NumericalError
from streaming_gp.gp.fit import sites as site_rules
from streaming_gp.gp.fit.bounds import LEAST_VARIANCE
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.optimiser import Report
from streaming_gp.gp.hyperparameters.strategies import WIDTH_OF_PERIODS
from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.graphs import Compiled, spec
from streaming_gp.gp.process.nearest import (
    JITTERS,
    SILENT,
    NearestAt,
    Rows,
    conditional_moments,
    crowding,
)
from streaming_gp.gp.process.observations import DataObservations, concatenated
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.numerics.bars import long_work
from streaming_gp.numerics.linalg import (
    LOG_TWO_PI,
    add_to_diagonal,
    logdet_from_cholesky,
    solve_lower,
    solve_lower_transposed,
)

EXACT_ROWS = 600
"""So few rows with Gaussian noise have their exact evidence, and so few values of f under other
likelihoods their bound."""
RANDOM, NEAR = 10, 5
"""Of many rows whose bound counts, so many random ones, and so many near one of these, in turn."""
LATER = 1e20
"""The noise of a row that comes later, and says nothing: the first rows have fewer before them."""
FEWEST, MOST, SHARE = 300, 1000, 0.25
"""Starts take this share of all rows, within these limits; the rounds that follow from the best of
them take twice as many."""
MOST_POOL = 2**17
"""Of more rows a random sample of so many stands for all."""
START_ITERATIONS, ROUND_ITERATIONS = 15, 8
"""Of the optimiser from each start, and in each of the rounds with fresh rows that follow."""
LEAST_ROUNDS, MOST_ROUNDS = 2, 8
"""Rounds end where one is no better than the one before it on the rows of the next; not at once, as
starts end on fewer rows, and to be no better is also chance."""
LEAST_STEP = 0.02
"""In nats of the rows at hand: an iteration on random rows that gains less is the last one."""
EXACT_ITERATIONS = 50
"""The same of exact evidence, which has no rounds."""
WIDEST = 16.0
"""Standard deviations of the prior that ε may lie from its mean."""
SHORTEST = np.exp(-3.0)
"""Of the lengthscales of one start, as a part of the prior mean: near twins of inputs draw others
to where the noise collapses."""
LEAST_FEWER = 1.5
"""Rows are joined where they become fewer by this factor."""
MUCH_FADED = 2.0
"""Where weights differ by this factor rows are drawn by them."""
WORST = 1e10
"""In nats: the place of infinity."""
LEAST_SHARE, LEAST_GAIN = 0.1, 1e-2
"""Of a step of q(ε), and in nats, at which steps end, and by which one value of ε is better than
another."""
WIDTH_ROWS = 10_000
"""The curvature is that of so many rows over the number of hyperparameters, within the limits of
starts: it takes as many gradients as there are of them, and one."""
MOST_DIFFERENCES = 100
"""Of more hyperparameters it is the one that the optimiser's steps have shown."""
MOST_EXPECTED = 50
"""More hyperparameters than these get the curvature at the mode: expectations would ask for the
evidence at thousands of values."""
PASSES = 6
"""The largest number of steps of q(ε), where rows are few."""


class Learned(NamedTuple):
    """What rows say of ε: the mean or the point [E], q(ε) or None where ε is a point, and the
    number of the optimiser's iterations.
    """

    epsilon: np.ndarray
    q: expfam.Gaussian | None
    iterations: int


class Sample(NamedTuple):
    """Random rows with their nearest among those before them.

    :param arguments: Those of :func:`sum_of`; none for all rows as one.
    :param scale: How many rows each of them stands for: n/s, or Σ w / s where rows that have faded
        were drawn by their weights w.
    :param number: Of rows as one.
    """

    arguments: tuple[np.ndarray, ...]
    scale: float
    number: int = 0


class Evidence:
    """The evidence of some data by ε.

    :param local: The model.
    :param known: Data that are known before, in a random order, or None.
    :param data: The data whose evidence counts, likewise.
    :param num_rows: The number of rows that these stand for.
    :param number: k, the number of neighbours.
    :param rng: Draws rows.
    """

    iterations: int
    """The largest number of the optimiser's from each start."""
    num_rounds = 0
    """Of runs with fresh rows that follow from the best start."""
    round_iterations = 0
    """The same of each of these."""
    has_all = False
    """Whether rows by which values of ε are compared are all that there are: the prior counts."""

    def __init__(
        self,
        local: LocalModel,
        known: DataObservations | None,
        data: DataObservations,
        num_rows: int,
        number: int,
        rng: np.random.Generator,
    ) -> None:
        self.local, self.num_rows = local, num_rows
        self._number, self._rng = number, rng
        self._first = 0 if known is None else len(known.Z)
        self._pool = data if known is None else concatenated([known, data])
        self._num_pool = len(self._pool.Z)

    @property
    def holds_sites(self) -> bool:
        """Whether the sites of what is near stay, so that they and ε take turns."""
        return False

    # ---- samples ----

    @property
    def most_rows(self) -> int:
        """To learn from at once."""
        return FEWEST if self.has_many_columns else MOST

    @property
    def start_rows(self) -> int:
        """To learn from at each start."""
        return int(np.clip(SHARE * self.num_rows, FEWEST, self.most_rows))

    @property
    def round_rows(self) -> int:
        """To learn from in each round that follows."""
        return 2 * self.start_rows

    def width_rows(self, size: int) -> int:
        """To take the widths of so many hyperparameters from."""
        return int(np.clip(WIDTH_ROWS / size, FEWEST, self.most_rows))

    def sample(self, size: int, epsilon: np.ndarray) -> Sample:
        """Rows [s], at most so many, that stand for all, with their neighbours by the lengthscales
        of ε [E].
        """
        raise NotImplementedError

    def comparable(self, values: Sequence[np.ndarray], center: np.ndarray) -> list[Sample]:
        """Rows by which some values of ε [E] are compared, each by its share of its place.

        A place where the data rest says as much of what is not seen yet as one that they have
        passed once: by their number, rows at rest would choose a noise that explains nothing else.

        :param values: Neighbours are those by each one's own lengthscales.
        :param center: Places are those at this ε.
        """
        crowd = crowding(PriorAt(self.local.prior, center[None]), self._pool.Z)
        number = min(self._number, self._num_pool - 1)
        first = max(self._first, min(number, self._num_pool // 2))
        rows = self._compared(np.arange(first, self._num_pool))
        weights = self._pool.weights[rows] / crowd[rows]
        weights *= len(rows) / weights.sum()
        return [Sample(self._arguments(rows, weights, number, one), 1.0) for one in values]

    def _compared(self, rows: np.ndarray) -> np.ndarray:
        """Those of some rows by which values of ε are compared."""
        return rows

    def _arguments(
        self, rows: np.ndarray, weights: np.ndarray, number: int, epsilon: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Some rows, in order, and what they condition on.

        Where rows are joined, those of the second half condition on the first half of all, those
        of the second quarter on the first quarter, and so on.
        """
        pool, number = self._pool, max(1, min(number, int(rows.max())))
        prior = PriorAt(self.local.prior, epsilon[None])
        (observed,) = prior.observed([pool])
        at, start, parts = Rows.of(observed), NearestAt(prior, number), []
        left, prefix = rows, self._num_pool // 2
        joins = self._joins and start.can_join(at)
        while joins and prefix > max(4 * number, self._first):
            few = start.indistinguishable(at.some(slice(0, prefix)))
            if len(few.Z) * LEAST_FEWER > prefix or len(few.Z) < number:
                break
            near = start.with_rows(few, join=False)
            now = left[left >= prefix]
            if len(now):
                parts.append(near.rows_at(near.neighbors(pool.Z[now], number)))
            left, prefix = left[left < prefix], prefix // 2
        if len(left):
            near = NearestAt(prior, number, rows=at, joined=at)
            found = near.earlier(left)
            Z, targets, noise = near.rows_at(found)
            noise[np.broadcast_to(found >= left[:, None], noise.shape)] = LATER
            parts.append((Z, targets, noise))
        Z, targets, noise = (
            np.concatenate(some, axis=1) for some in zip(*reversed(parts), strict=True)
        )
        if pool.is_gaussian:  # in units of the noise, which is that of the ε that is asked for
            columns = pool.Y.shape[1] // len(noise)
            for group, of_group in enumerate(noise):
                points = Z[min(group, len(Z) - 1)].reshape(-1, Z.shape[-1])
                precision = self.local.noise_precision(epsilon, points)
                of_group *= precision[:, group * columns].reshape(of_group.shape)
        Y, targets = self._turned(pool.Y[rows], targets)
        return pool.Z[rows], Y, weights, Z, targets, noise

    def _turned(self, Y: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Observations [s, P] and those near each [G, s, k, C] in fewer columns, if there are more
        of them than rows: Gaussians of one covariance do not change as a row and its neighbours
        turn together, and these span so many dimensions alone.
        """
        if targets.shape[3] <= targets.shape[2] + 1 or not self.has_many_columns:
            return Y, targets
        both = np.concatenate([targets[0], Y[:, None]], axis=1)
        turned = np.swapaxes(np.linalg.qr(np.swapaxes(both, 1, 2), mode="r"), 1, 2)
        return turned[:, -1], turned[None, :, :-1]

    @property
    def has_many_columns(self) -> bool:
        """Whether a row has more values, of functions that are alike, than there are rows near it.

        So many say as much of ε from the fewest rows.
        """
        gp = self.local.gp
        are_alike = self._joins and gp.num_groups == 1 and cov.is_zero(gp.mean_function)
        return are_alike and gp.num_latent > self._number + 1

    @property
    def _joins(self) -> bool:
        likelihood = self.local.likelihood
        is_whole = not self._pool.is_missing.any()
        return self._pool.is_gaussian and is_whole and site_rules.has_one_noise(likelihood)

    # ---- values ----

    def value_and_gradient(self, epsilon: np.ndarray, sample: Sample) -> tuple[float, np.ndarray]:
        """``Σ w_i log p(y_i | ·)`` of a sample and its gradient [E]; minus infinity where a
        covariance is not positive.
        """
        try:
            value, gradient = self._value_and_gradient(epsilon, sample)
        except (tf.errors.InvalidArgumentError, np.linalg.LinAlgError, NumericalError):
            return -np.inf, np.zeros_like(epsilon)
        value, gradient = float(value), np.asarray(gradient)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return -np.inf, np.zeros_like(epsilon)
        return value, gradient

    def _value_and_gradient(self, epsilon: np.ndarray, sample: Sample) -> Any:
        local, C, P = self.local, None, None
        if not self.has_many_columns:
            C, P = local.gp.num_latent // local.gp.num_groups, local.output_dim
        near = spec(None, None, None, local.input_dim), spec(None, None, None, C)
        signature = spec(None, P), spec(None), *near, spec(None, None, None)
        return self._graph(sum_of, *signature)(epsilon, *sample.arguments)

    def _graph(self, function: Callable[..., tf.Tensor], *signature: tf.TensorSpec) -> Compiled:
        """A function of the model and of rows, and its derivative by ε."""
        local = self.local

        def evidence(epsilon: tf.Tensor, *rows: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(epsilon)
                with local.parameters.substituted(epsilon):
                    value = function(local, *rows)
            return value, tape.gradient(value, epsilon, unconnected_gradients="zero")

        by = spec(local.parameters.size), spec(None, local.input_dim)
        return local.graphs.compiled(evidence, *by, *signature, of=function.__name__)


class NearEvidence(Evidence):
    """That of many rows: random ones, each given what is near among the rows before it.

    Other likelihoods have sites for what is near, which are held.
    """

    iterations, round_iterations = START_ITERATIONS, ROUND_ITERATIONS
    num_rounds = MOST_ROUNDS

    @property
    def holds_sites(self) -> bool:
        return not self._pool.is_gaussian

    def sample(self, size: int, epsilon: np.ndarray) -> Sample:
        number = min(self._number, self._num_pool - 1)
        few = self._num_pool <= FEWEST  # all of them count, the first ones with fewer neighbours
        first = max(self._first, 0 if few else min(number, self._num_pool // 2))
        rows = np.arange(first, self._num_pool)
        weights, scale = self._pool.weights[rows], self.num_rows / len(rows)
        if len(rows) > size:
            has_faded = weights.max() > MUCH_FADED * weights.min()
            p = weights / weights.sum() if has_faded else None
            some = np.sort(self._rng.choice(len(rows), size, replace=has_faded, p=p))
            scale *= (weights.sum() if has_faded else len(rows)) / size
            rows, weights = rows[some], np.ones(size) if has_faded else weights[some]
        return Sample(self._arguments(rows, weights, number, epsilon), scale)

    def _compared(self, rows: np.ndarray) -> np.ndarray:
        size = self.start_rows
        return rows if len(rows) <= size else np.sort(self._rng.choice(rows, size, replace=False))


class ExactEvidence(Evidence):
    """That of few rows with Gaussian noise, as one."""

    iterations, has_all = EXACT_ITERATIONS, True

    def sample(self, size: int, epsilon: np.ndarray) -> Sample:
        return Sample((), 1.0, self._num_pool)

    def _value_and_gradient(self, epsilon: np.ndarray, sample: Sample) -> Any:
        if sample.arguments:
            return super()._value_and_gradient(epsilon, sample)
        value, gradient = self._of_first(epsilon, sample.number)
        if self._first:
            before = self._of_first(epsilon, self._first)
            value, gradient = value - before[0], gradient - before[1]
        return value, gradient

    def _of_first(self, epsilon: np.ndarray, number: int) -> Any:
        """Of the first rows, so many."""
        data, P = self._pool.rows(slice(0, number)), spec(None, self.local.output_dim)
        return self._graph(exact, P, spec(None))(epsilon, data.Z, data.Y, data.weights)


class LargestBound(ExactEvidence):
    """The largest bound of few values of f under other likelihoods, with sites at rest.

    :param rest: Data with their sites at another ε [E].
    """

    start_rows, round_rows = FEWEST, EXACT_ROWS
    round_iterations = EXACT_ITERATIONS

    def __init__(
        self, rest: Callable[[DataObservations, np.ndarray], DataObservations], *arguments: Any
    ) -> None:
        super().__init__(*arguments)
        self._rest = rest
        self._at_rest = dict[int, DataObservations]()
        self.num_rounds = int(self._num_of(EXACT_ROWS) > self._num_of(FEWEST))

    def _num_of(self, size: int) -> int:
        """Rows that have so many values of f."""
        few = self._num_pool if self._first else size // self.local.gp.num_latent
        return min(max(1, few), self._num_pool)

    def width_rows(self, size: int) -> int:
        return EXACT_ROWS

    def sample(self, size: int, epsilon: np.ndarray) -> Sample:
        most = self._num_of(size)
        return Sample((), self.num_rows / (most - self._first), most)

    def comparable(self, values: Sequence[np.ndarray], center: np.ndarray) -> list[Sample]:
        return [self.sample(self.start_rows, one) for one in values]

    def _of_first(self, epsilon: np.ndarray, number: int) -> Any:
        data = self._at_rest.get(number) or self._pool.rows(slice(0, number))
        data = self._at_rest[number] = self._rest(data, epsilon)
        site, P = spec(None, self.local.gp.num_latent), spec(None, self.local.output_dim)
        rows = data.Z, data.Y, data.weights, data.precision_mean, data.precision
        return self._graph(bound, P, spec(None), site, site)(epsilon, *rows)


def evidence_of(
    local: LocalModel,
    data: Sequence[DataObservations],
    others: Sequence[DataObservations],
    number: int,
    seed: int,
    rest: Callable[[DataObservations, np.ndarray], DataObservations],
) -> Evidence:
    """The evidence of some data by ε.

    :param local: The model.
    :param data: The data whose evidence counts.
    :param others: Data that are known before.
    :param number: k, the number of neighbours.
    :param seed: The seed of the order, and of the rows that are drawn.
    :param rest: Data with their sites at another ε [E].
    """
    rng = np.random.default_rng(seed)
    data, others = _heard(data), _heard(others)
    known, own = (_sample(some, MOST_POOL, rng) for some in (others, data))
    assert own is not None
    num_pool = len(own.Z) + (0 if known is None else len(known.Z))
    kind: Callable[..., Evidence] = NearEvidence
    if own.is_gaussian:
        kind = ExactEvidence if num_pool <= EXACT_ROWS else NearEvidence
    elif num_pool * local.gp.num_latent <= EXACT_ROWS:
        kind = partial(LargestBound, rest)
    elif known is None:
        kind, own = partial(LargestBound, rest), _some_near(local, own)
    return kind(local, known, own, sum(len(one.Z) for one in data), number, rng)


def _some_near(local: LocalModel, data: DataObservations) -> DataObservations:
    """Random rows and those near some of these, in turn, so that any number of the first ones are
    so, too: at most as many as have a bound.

    :param data: Rows in a random order.
    """
    prior = PriorAt(local.prior, local.parameters.value()[None])
    (observed,) = prior.observed([data])
    near = NearestAt(prior, NEAR).extended(observed, join=False)
    most = max(1, EXACT_ROWS // local.gp.num_latent)
    number = min(1 + most // RANDOM, len(data.Z) // RANDOM)
    random = np.arange(number * RANDOM).reshape(number, RANDOM)
    beside = near.neighbors(data.Z[random[:, 0]], NEAR)[0]
    chosen = np.concatenate([random, beside], axis=1).ravel()
    _, first = np.unique(chosen, return_index=True)
    return data.rows(chosen[np.sort(first)][:most])


def exact(local: LocalModel, X: tf.Tensor, Y: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """``log ∫ Π_n N(y_n; f(x_n), σ²)^{w_n} p(f) df`` at the parameters' values: a scalar, in nats.

    :param X: [n, D].
    :param Y: [n, P].
    :param weights: w [n].
    """
    gp, is_missing = local.gp, tf.math.is_nan(Y)
    K, variance = cov.covariance(gp.kernel, X), 1.0 / gp.noise_precision(X)
    zeros = tf.zeros_like(Y)
    residual = cov.to_groups(tf.where(is_missing, zeros, Y - gp.prior_mean(X)), gp.num_groups)
    noise = cov.to_groups(variance, gp.num_groups)[:, :, 0] / weights
    value = 0.0
    for group in range(gp.num_groups):
        K_group, of_group = K[min(group, K.shape[0] - 1)], noise[group]
        if gp.num_groups > 1:  # what is missing is independent of all else, and has no error
            heard = tf.cast(~is_missing[:, group], K.dtype)
            K_group *= heard[:, None] * heard
            of_group = heard * of_group + (1.0 - heard) / (2.0 * np.pi)
        value += log_density(add_to_diagonal(K_group, of_group), residual[group])
    logs = (1.0 - weights)[:, None] * (LOG_TWO_PI + tf.math.log(variance))
    logs -= tf.math.log(weights)[:, None]
    return value + 0.5 * tf.reduce_sum(tf.where(is_missing, zeros, logs))


def bound(
    local: LocalModel,
    X: tf.Tensor,
    Y: tf.Tensor,
    weights: tf.Tensor,
    precision_mean: tf.Tensor,
    precision: tf.Tensor,
) -> tf.Tensor:
    """``E_q Σ_n w_n log p(y_n | f_n) − KL(q(f) ‖ p(f))`` at the parameters' values, for q(f) of the
    prior and of sites: a scalar, in nats. Where sites are at rest it is as large as it can be, so
    that its derivative is that of the largest one.

    :param X: [n, D].
    :param Y: [n, P].
    :param weights: w [n].
    :param precision_mean: Of the sites [n, L].
    :param precision: Likewise.
    """
    gp, (rate, w) = local.gp, (tf.transpose(one) for one in (precision_mean, precision))
    K, prior_mean = cov.covariance(gp.kernel, X), tf.transpose(gp.prior_mean(X))
    root = tf.sqrt(w)
    L = tf.linalg.cholesky(add_to_diagonal(root[:, :, None] * K * root[:, None], 1.0))
    half = solve_lower(L, tf.linalg.diag(root))  # of which the square is (K + W⁻¹)⁻¹
    a = tf.linalg.matvec(half, tf.linalg.matvec(half, rate / w - prior_mean), transpose_a=True)
    shift = tf.linalg.matvec(K, a)
    prior_variance = tf.linalg.diag_part(K)
    variance = prior_variance - tf.reduce_sum(tf.matmul(half, K) ** 2, axis=1)
    variance = tf.maximum(variance, LEAST_VARIANCE * tf.abs(prior_variance))
    logs = site_rules.expected_log_densities(
        local.likelihood, X, tf.transpose(prior_mean + shift), tf.transpose(variance), Y
    )
    logdet = 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(L)))
    trace = tf.reduce_sum(half**2 / w[:, None]) - tf.cast(tf.size(w), w.dtype)
    return tf.reduce_sum(weights * logs) - 0.5 * (logdet + trace + tf.reduce_sum(a * shift))


@tf.custom_gradient
def log_density(S: tf.Tensor, residual: tf.Tensor) -> Any:
    """``log N(r; 0, S)`` of the columns of a residual [n, C], whose derivative by S [n, n] is
    ``½ (S⁻¹r rᵀS⁻¹ − C S⁻¹)``: a fifth of what that of a Cholesky factor costs.
    """
    L = tf.linalg.cholesky(S)
    white = solve_lower(L, residual)
    n, C = tf.unstack(tf.cast(tf.shape(residual), S.dtype))
    value = -0.5 * (C * (logdet_from_cholesky(L) + n * LOG_TWO_PI) + tf.reduce_sum(white**2))

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        a = solve_lower_transposed(L, white)
        inverse = tf.linalg.cholesky_solve(L, tf.eye(tf.shape(S)[0], dtype=S.dtype))
        outer = tf.matmul(a, a, transpose_b=True)
        return 0.5 * upstream * (outer - C * inverse), -upstream * a

    return value, gradient


def sum_of(
    local: LocalModel,
    X: tf.Tensor,
    Y: tf.Tensor,
    weights: tf.Tensor,
    Z: tf.Tensor,
    targets: tf.Tensor,
    noise: tf.Tensor,
) -> tf.Tensor:
    """``Σ_i w_i log p(y_i | rows near it)`` at the parameters' values: a scalar, in nats.

    :param X: [s, D].
    :param Y: [s, P], or fewer columns, where others are zero.
    :param weights: w [s].
    :param Z: Inputs of the rows near each [K, s, k, D].
    :param targets: Their observations [G, s, k, C], or likewise.
    :param noise: The variance of their noise [G, s, k]; of Gaussian noise in units of it.
    """
    gp, likelihood = local.gp, local.likelihood
    is_gaussian = gp.likelihood is not None
    G, C = gp.num_groups, gp.num_latent // gp.num_groups
    if is_gaussian and site_rules.has_one_noise(likelihood):
        noise = noise / gp.noise_precision(X[:1])[0, 0]
    elif is_gaussian:
        units = []
        for group in range(G):
            points = Z[tf.minimum(group, tf.shape(Z)[0] - 1)]
            precision = gp.noise_precision(tf.reshape(points, [-1, local.input_dim]))
            units.append(tf.reshape(precision[:, group * C], tf.shape(points)[:2]))
        noise = noise / tf.stack(units)
    jitter = tf.constant(JITTERS[0], X.dtype)
    mean, variance = conditional_moments(gp, X, Z, targets, noise, jitter, is_linear=True)
    if not is_gaussian:
        return tf.reduce_sum(
            weights * site_rules.predictive_log_density(likelihood, X, mean, variance, Y)
        )
    v = variance + 1.0 / gp.noise_precision(X)
    logs, columns = LOG_TWO_PI + tf.math.log(v), tf.shape(Y)[1]
    is_missing, zeros = tf.math.is_nan(Y), tf.zeros_like(Y)
    error = tf.where(is_missing, zeros, Y - mean)
    of_each = tf.where(is_missing, zeros, logs[:, :columns] + error**2 / v[:, :columns])
    both = tf.reduce_sum(of_each, -1) + tf.reduce_sum(logs[:, columns:], -1)
    return -0.5 * tf.reduce_sum(weights * both)


# ---- the optimum ----


class Belief:
    """The prior of ε as a function, and the range in which ε is looked for.

    :param prior: p(ε), or a cavity; None where ε is a point, whose GPflow priors count.
    :param is_own: Whether it is p(ε), so that GPflow priors count by their own densities, for which
        else Gaussians stand.
    """

    def __init__(self, local: LocalModel, prior: expfam.Gaussian | None, is_own: bool) -> None:
        self._local, self.prior = local, prior
        parameters = local.parameters
        has_density = parameters.have_priors() & is_own
        self._has_densities = bool(has_density.any())
        self._is_gaussian = ~has_density
        if prior is None:
            self.mean = parameters.value()
            self.scale = np.diag(parameters.unit_log_widths())
            limits = local.hyperparameters.limits(parameters)
            low = [-np.inf if one is None else one for one, _ in limits]
            self.low = self.mean + np.diag(self.scale) * np.asarray(low)
            self.high = np.full(len(self.mean), np.inf)
        else:
            self.mean, self.scale = np.asarray(prior.mean), np.asarray(prior.scale)
            widths = np.sqrt(np.einsum("ij,ij->i", self.scale, self.scale))
            self.low, self.high = self.mean - WIDEST * widths, self.mean + WIDEST * widths

    def __call__(self, epsilon: np.ndarray) -> tuple[float, np.ndarray]:
        """The log density, up to a constant, and its gradient."""
        if self.prior is None:
            return self._log_prior(epsilon)
        white = scipy.linalg.solve_triangular(self.scale, epsilon - self.mean, lower=True)
        value, gradient = 0.0, np.zeros_like(white)
        if self._has_densities:  # of p(ε), whose entries are independent
            value, gradient = self._log_prior(epsilon)
            white = white * self._is_gaussian
        slope = scipy.linalg.solve_triangular(self.scale, white, lower=True, trans=1)
        return value - 0.5 * float(white @ white), gradient - slope

    def _log_prior(self, epsilon: np.ndarray) -> tuple[float, np.ndarray]:
        """What a point's strategy takes for its prior; of p(ε) the densities of GPflow priors."""
        local, is_point = self._local, self.prior is None

        def log_prior(at: tf.Tensor, zero: tf.Tensor, unit: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(at)
                with local.parameters.substituted(at):
                    if is_point:
                        offsets = (at - zero) / unit
                        value = -local.hyperparameters.penalty(offsets, local.parameters)
                    else:
                        value = local.parameters.log_density_of_priors()
            return value, tape.gradient(value, at, unconnected_gradients="zero")

        size = spec(local.parameters.size)
        graph = local.graphs_of_fits.compiled(log_prior, size, size, size, of=is_point)
        value, gradient = graph(epsilon, self.mean, np.diag(self.scale))
        return float(value), np.asarray(gradient)


class Search:
    """The optimum of evidence and prior.

    From the present ε, the prior mean, and where they became short from there, the prior mean
    with lengthscales that do not; the best on fresh rows goes on in rounds of fresh rows.

    :param iterations: The largest number of the optimiser in one run.
    :param report: Called with the number of iterations so far and the objective.
    """

    def __init__(self, evidence: Evidence, belief: Belief, iterations: int, report: Report) -> None:
        self._evidence, self._belief = evidence, belief
        self._most, self._report = iterations, report
        self._iterations = 0
        self._steps_curvature = np.zeros((0, 0))

    def learned(self, only: np.ndarray | None) -> Learned:
        """ε from the data.

        :param only: The one ε [E] to start from, where it is near the optimum.
        """
        evidence, belief = self._evidence, self._belief
        floor, low = evidence.local.parameters.with_lengthscales(belief.mean, SHORTEST), belief.low

        def end(start: np.ndarray, lowest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            sample = evidence.sample(evidence.start_rows, start)
            return self._optimum(start, lowest, sample, evidence.iterations), lowest

        present = evidence.local.parameters.value() if only is None else only
        ends = [end(present, low)]
        if only is None:
            if not np.array_equal(present, belief.mean):
                ends.append(end(belief.mean, low))
            if floor is not None and (ends[-1][0] < floor).any():
                ends.append(end(belief.mean, np.maximum(floor, low)))
        epsilon, lowest = ends[self._best([one for one, _ in ends])]
        before = epsilon
        num_rounds = evidence.num_rounds if only is None else 0
        for number in long_work(range(num_rounds), "learning"):
            fresh = evidence.sample(evidence.round_rows, epsilon)
            if number >= LEAST_ROUNDS:
                here, there = (self._objective(one, fresh)[0] for one in (epsilon, before))
                if not here < there:
                    epsilon = before
                    break
            before = epsilon
            epsilon = self._optimum(epsilon, lowest, fresh, evidence.round_iterations)
        if belief.prior is None:
            return Learned(epsilon, None, self._iterations)
        mean, precision = self._gaussian(epsilon)
        return Learned(mean, _of_family(belief.prior, mean, precision), self._iterations)

    def _best(self, values: Sequence[np.ndarray]) -> int:
        """Which of some values of ε [E] scores best, of equals the first."""
        if len(values) == 1:
            return 0
        evidence, belief = self._evidence, self._belief
        scores = []
        for epsilon, sample in zip(values, evidence.comparable(values, belief.mean), strict=True):
            score = sample.scale * evidence.value_and_gradient(epsilon, sample)[0]
            scores.append(score + evidence.has_all * belief(epsilon)[0])
        return int(np.argmax(np.array(scores) >= max(scores) - LEAST_GAIN))

    def _objective(self, epsilon: np.ndarray, sample: Sample) -> tuple[float, np.ndarray]:
        """What is minimised, and its gradient; infinite where it has no value, and beyond the range
        in which ε is looked for.
        """
        belief = self._belief
        if ((epsilon < belief.low) | (epsilon > belief.high)).any():
            return np.inf, np.zeros_like(epsilon)
        value, gradient = self._evidence.value_and_gradient(epsilon, sample)
        log_prior, slope = belief(epsilon)
        if not (np.isfinite(value) and np.isfinite(log_prior) and np.isfinite(slope).all()):
            return np.inf, np.zeros_like(epsilon)
        return -sample.scale * value - log_prior, -sample.scale * gradient - slope

    def _optimum(
        self, start: np.ndarray, low: np.ndarray, sample: Sample, iterations: int
    ) -> np.ndarray:
        parameters = self._evidence.local.parameters
        unit = np.sqrt(np.einsum("ij,ij->i", self._belief.scale, self._belief.scale))
        unit = np.minimum(unit, parameters.unit_log_widths(start))
        unit[parameters.are_periods()] *= WIDTH_OF_PERIODS  # data that repeat say them so exactly
        start = np.clip(start, low, self._belief.high)
        before, values = self._iterations, list[float]()

        def function(offset: np.ndarray) -> tuple[float, np.ndarray]:
            epsilon = np.clip(start + unit * offset, self._belief.low, self._belief.high)
            value, gradient = self._objective(epsilon, sample)
            return min(value, WORST), unit * gradient  # a line search wants numbers

        def told(intermediate_result: Any) -> None:
            self._iterations += 1
            value = float(intermediate_result.fun)
            self._report(self._iterations, -value)
            values.append(value)
            gain = values[-2] - value if len(values) > 1 else np.inf
            is_random = bool(sample.arguments) or sample.scale > 1.0  # others stand for all
            if is_random and gain < LEAST_STEP * sample.scale:
                raise StopIteration

        bounds = scipy.optimize.Bounds((low - start) / unit, (self._belief.high - start) / unit)
        result = scipy.optimize.minimize(
            function, np.zeros_like(start), jac=True, method="L-BFGS-B", bounds=bounds,
            callback=told, options={"maxiter": min(iterations, self._most)},
        )  # fmt: skip
        self._iterations = before + int(result.nit)
        if len(unit) > MOST_DIFFERENCES:
            inverse = unit[:, None] * result.hess_inv.todense() * unit
            self._steps_curvature = np.linalg.inv(inverse) / sample.scale
        return np.asarray(start + unit * result.x)

    # ---- q(ε) ----

    def _gaussian(self, mode: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean [E] and precision [E, E] of q(ε)."""
        evidence = self._evidence
        sample = evidence.sample(evidence.width_rows(len(mode)), mode)
        are_few = evidence.num_rows <= FEWEST
        alone = sample._replace(scale=min(sample.scale, 1.0))

        def slope(epsilon: np.ndarray) -> np.ndarray:
            return self._objective(epsilon, alone)[1]

        prior_precision = np.linalg.inv(self._belief.scale @ self._belief.scale.T)
        if len(mode) > MOST_DIFFERENCES:
            return mode, _positive(self._steps_curvature, prior_precision)
        units = self._evidence.local.parameters.unit_log_widths(mode)
        steps = np.diag(1e-3 * units)
        precision = _positive(_curvature(slope, mode, steps), prior_precision)
        if not are_few or len(mode) > MOST_EXPECTED:
            return mode, precision
        return _variational(lambda at: self._objective(at, alone), mode, precision, prior_precision)


def _variational(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    mean: np.ndarray,
    precision: np.ndarray,
    least: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and precision of the Gaussian q by which ``E_q[objective] − entropy`` is least.

    Both steps are those of its fixed point, shorter where one goes too far.

    :param least: The precision is at least this.
    """
    precision = _narrowed(objective, mean, precision)
    value, slope, curvature = _expected(objective, mean, precision)
    if not np.isfinite(value):  # wider than where the objective has values
        return mean, precision
    share = 1.0
    for _ in range(PASSES):
        wanted, share = _positive(curvature, least), min(1.0, 2.0 * share)
        step = -np.linalg.solve(wanted, slope)
        while share > LEAST_SHARE:
            to = mean + share * step, precision + share * (wanted - precision)
            new, new_slope, new_curvature = _expected(objective, *to)
            if new < value:
                break
            share *= 0.5
        else:
            break
        gain, value = value - new, new
        (mean, precision), slope, curvature = to, new_slope, new_curvature
        if gain < LEAST_GAIN:
            break
    return mean, precision


def _narrowed(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    mean: np.ndarray,
    precision: np.ndarray,
) -> np.ndarray:
    """The precision, and more along axes on which the objective rises by over twice what it says.

    There the curvature at the mode knows nothing of what is near, such as noise that vanishes.
    """
    L, here = np.linalg.cholesky(precision), objective(mean)[0]
    width = scipy.linalg.solve_triangular(L, np.eye(len(mean)), lower=True).T
    square, shares = max(3.0, len(mean)), np.ones(len(mean))
    for axis, h in enumerate(np.sqrt(square) * width.T):
        for _ in range(np.finfo(float).nmant // 4):  # so that half of the digits are kept
            ends = (objective(mean + sign * shares[axis] * h)[0] for sign in (1.0, -1.0))
            if 0.5 * sum(ends) - here <= square:
                break
            shares[axis] *= 0.5
    return np.asarray((L / shares**2) @ L.T)


def _expected(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    mean: np.ndarray,
    precision: np.ndarray,
) -> tuple[float, np.ndarray, np.ndarray]:
    """``E_q[objective] − entropy`` but for a constant, and the expected slope [E] and curvature
    [E, E], by a cubature of the third degree; infinite where the objective is at one of its points.
    """
    L, size = np.linalg.cholesky(precision), len(mean)
    width = scipy.linalg.solve_triangular(L, np.eye(size), lower=True).T
    length = np.sqrt(max(3.0, size))
    middle = objective(mean)
    up, down = ([objective(mean + sign * length * h) for h in width.T] for sign in (1.0, -1.0))
    if not np.isfinite([one for one, _ in (middle, *up, *down)]).all():
        return np.inf, np.zeros(size), precision
    weight = 0.5 / length**2
    rest = 1.0 - 2.0 * size * weight
    value = rest * middle[0] + weight * sum(one for one, _ in (*up, *down))
    slope = rest * middle[1] + weight * np.sum([one for _, one in (*up, *down)], axis=0)
    gaps = np.stack([a - b for (_, a), (_, b) in zip(up, down, strict=True)], axis=1)
    curvature = gaps / (2.0 * length) @ L.T
    entropy = np.sum(np.log(np.diag(width)))
    return float(value - entropy), slope, 0.5 * (curvature + curvature.T)


def _curvature(
    slope: Callable[[np.ndarray], np.ndarray], at: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """The second derivative [E, E] by differences along the columns of ``steps``."""
    here = slope(at)
    gaps = np.stack([slope(at + h) - here for h in steps.T], axis=1)
    curvature = gaps @ np.linalg.inv(steps)
    return 0.5 * (curvature + curvature.T)


def _positive(precision: np.ndarray, least: np.ndarray) -> np.ndarray:
    """The precision, where it is less than the prior's that one."""
    L = np.linalg.cholesky(least)
    white = np.linalg.solve(L, np.linalg.solve(L, precision).T)
    values, vectors = np.linalg.eigh(0.5 * (white + white.T))
    rooted = L @ vectors
    return np.asarray((rooted * np.maximum(values, 1.0)) @ rooted.T)


def _of_family(prior: expfam.Gaussian, mean: np.ndarray, precision: np.ndarray) -> expfam.Gaussian:
    """The Gaussian of a family that is nearest: independent ones have the conditional widths."""
    family = type(prior)
    if family is expfam.MeanFieldNormal:
        scale = np.diag(np.diag(precision) ** -0.5)
    elif family is expfam.Normal:
        scale = np.linalg.cholesky(np.linalg.inv(precision))
    else:
        return _nearest_member(family, mean, precision)
    return family.from_mean_scale(mean, scale).as_arrays()


def _nearest_member(
    family: type[expfam.Gaussian], mean: np.ndarray, precision: np.ndarray
) -> expfam.Gaussian:
    """The member q of a family of which ``KL(q ‖ N(mean, precision⁻¹))`` is least."""
    widths = np.diag(np.diag(precision) ** -0.5)
    start = np.asarray(family.from_mean_scale(mean, widths).unconstrained())

    def divergence(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        with tf.GradientTape() as tape:
            at = tf.constant(numbers.reshape(start.shape))
            tape.watch(at)
            own, scale = family.mean_scale_of(at)
            spread = tf.concat([scale, (own - mean)[:, None]], 1)
            value = 0.5 * tf.reduce_sum(spread * tf.matmul(precision, spread))
            value -= tf.reduce_sum(tf.math.log(tf.linalg.diag_part(scale)))
        return float(value), np.ravel(tape.gradient(value, at))

    found = scipy.optimize.minimize(divergence, start.ravel(), jac=True, method="L-BFGS-B").x
    member = family.from_unconstrained(tf.constant(found.reshape(start.shape)))
    return member.as_arrays()


# ---- rows ----


def _heard(data: Sequence[DataObservations]) -> list[DataObservations]:
    """Without rows that have faded so far that they say nothing."""
    counts = [one.weights > SILENT**2 for one in data]
    return [
        one if some.all() else one.rows(some)
        for one, some in zip(data, counts, strict=True)
        if some.any()
    ]


def _sample(
    data: Sequence[DataObservations], most: int, rng: np.random.Generator
) -> DataObservations | None:
    """So many rows of all of them, or all, in a random order."""
    if not data:
        return None
    ends = np.cumsum([len(one.Z) for one in data])
    chosen = rng.permutation(int(ends[-1]))[:most]
    if len(data) == 1:
        return data[0].rows(chosen)
    owner = np.searchsorted(ends, chosen, side="right")
    starts = np.concatenate([[0], ends[:-1]])
    places = np.argsort(owner, kind="stable")
    inside = chosen - starts[owner]
    parts = [data[index].rows(inside[owner == index]) for index in np.unique(owner)]
    back = np.empty(len(chosen), int)
    back[places] = np.arange(len(chosen))
    return concatenated(parts).rows(back)
