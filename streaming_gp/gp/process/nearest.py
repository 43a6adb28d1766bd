"""A process conditioned on what is near: each prediction on its nearest observations.

With z the observations and r the variances of their noise, a prediction at x conditions on the set
N(x) of the k rows that would each alone reduce its variance most, which are those of the largest
``k(x, x_j)² / (k(x_j, x_j) + r_j)``:

- ``w = (K_NN + diag r_N)⁻¹ k_N``
- mean ``m(x) + wᵀ (z_N − m_N)``, variance ``k(x, x) − wᵀ k_N``.

This is the Vecchia approximation or nearest-neighbour GP (Vecchia 1988; Datta et al. 2016; Katzfuss
& Guinness 2021). What it costs does not grow with the stream. Observations that are not of points
one by one, such as merged ones, are conditioned on as a whole (*far*), and k is then the covariance
given them: the residual process has neighbours, too.

Rows that lie together beside much noise say more as one: k cells reach further than k rows. A cell
counts as one row at the mean of its own, with their precisions added up. What is linear in f
cancels there; the rest, by which the mean of f over a cell differs from f at its mean, counts as
noise. Cells are as wide as leaves the least variance at places that are not conditioned on, and
there are none where rows as they are leave less. That is of the index alone. Factors hold what they
held, and removing or fading one is exact.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import takewhile
from typing import Any, Protocol, runtime_checkable

import numpy as np
import tensorflow as tf
from gpflow.kernels import Kernel, Product, Static, Sum

from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.dense import DenseProcess, Member
from streaming_gp.gp.process.graphs import in_numpy, spec
from streaming_gp.gp.process.observations import DataObservations, PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.inputs import require_count, require_positive_integer, typed
from streaming_gp.numerics.bars import long_work
from streaming_gp.numerics.neighbors import Index, cells, nearest_earlier
from streaming_gp.serialization import storable

JITTERS = 1e-10, 1e-8, 1e-6, 1e-4
"""Noise that makes up for rounding, as parts of the prior variance: the least that does."""
SMALLEST_VARIANCE = 1e-12
"""As a part of the prior variance: rounding below is cut off."""
PROBED = 64
"""The places at which cells of some side are tried."""
SPREAD = 64
"""The points that stand for the rows of a cell where it is said what is lost."""
SIDES = np.geomspace(0.05, 1.0, 14)
"""Of cells, in lengthscales."""
LEAST_JOINED = 4
"""Cells are tried that are fewer than rows by this factor."""
INDISTINGUISHABLE = 0.07
"""Where ε is learned, rows of one cell have ``var(f(a) − f(b))`` below this part of their noise."""
ONE_PLACE = 0.1
"""The side of a place, in lengthscales."""
SILENT = 1e-10
"""The root of a precision, as a part of the largest, below which a row says nothing."""
MOST_JOINT = 4000
"""Joint predictions condition on so many rows at most."""
GROWTH = 1.5
"""Cells are chosen anew when rows have become more by this factor."""
WAITING = 1 / 64
"""Rows that follow are joined when they have become more by this part of those before them, so that
the time for a row does not grow."""
AT_ONCE = 2**22
"""The largest number of elements of the covariances that are factorised at once."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Observations of points one by one, at one ε.

    :param Z: Their inputs [n, D].
    :param targets: z [G, n, C].
    :param noise: r [G, n].
    """

    Z: np.ndarray
    targets: np.ndarray
    noise: np.ndarray

    @classmethod
    def of(cls, members: Sequence[PseudoObservations]) -> Rows:
        """Those of members whose R is diagonal; what says nothing has very much noise."""
        root = np.concatenate([one.precision_factor for one in members], axis=1)
        targets = np.concatenate([one.pseudo_targets for one in members], axis=1)
        root = np.maximum(root, SILENT * (root.max() or 1.0))
        Z = np.concatenate([one.Z for one in members])
        return cls(Z, targets / root[:, :, None], root**-2.0)

    def joined(self, cell: np.ndarray, lost: float = 0.0) -> Rows:
        """One row for each cell, at the mean of its rows by their precision.

        :param cell: The number of the cell of each row [n].
        :param lost: The variance of what the mean of f over a cell is beside f at its mean.
        """
        precision = 1.0 / self.noise
        number = int(cell.max()) + 1

        def sums(values: np.ndarray) -> np.ndarray:
            return np.bincount(cell, values, number)

        mean_precision = precision.mean(axis=0)
        total = sums(mean_precision)
        Z = self.Z[np.unique(cell, return_index=True)[1]]  # equal inputs stay equal to it
        offsets = (self.Z - Z[cell]).T
        Z = Z + np.stack([sums(mean_precision * column) / total for column in offsets], axis=1)
        precisions = np.stack([sums(one) for one in precision])
        targets = np.stack(
            [
                np.stack([sums(w * column) / t for column in z.T], axis=1)
                for w, z, t in zip(precision, self.targets, precisions, strict=True)
            ]
        )
        return Rows(Z, targets, 1.0 / precisions + np.where(np.bincount(cell) > 1, lost, 0.0))

    @property
    def is_silent(self) -> np.ndarray:
        """Which of them say nothing [G, n]."""
        return self.noise > 0.5 * SILENT**-2.0 * self.noise.min()

    def some(self, which: Any) -> Rows:
        """Some of them."""
        return Rows(self.Z[which], self.targets[:, which], self.noise[:, which])

    def as_observations(self) -> PseudoObservations:
        """The same as pseudo-observations."""
        root = self.noise**-0.5
        return PseudoObservations(self.Z, root, root[:, :, None] * self.targets, 0.0)

    def __add__(self, other: Rows) -> Rows:
        return Rows(
            np.concatenate([self.Z, other.Z]),
            np.concatenate([self.targets, other.targets], axis=1),
            np.concatenate([self.noise, other.noise], axis=1),
        )


@dataclass(frozen=True, eq=False)
class NearestProcess:
    """A Gaussian process at S values of ε, conditioned at each place on what is near.

    It has the methods of :class:`.DenseProcess` that predictions ask for.

    :param prior: The prior at these ε.
    :param number: k, the number of neighbours of a prediction.
    :param members: All that it is conditioned on.
    :param each: The process at each ε.
    """

    prior: PriorAt
    number: int
    members: tuple[Member, ...] = ()
    each: tuple[NearestAt, ...] = ()

    def conditioned_on(self, members: Sequence[Member]) -> NearestProcess:
        """The process conditioned on these and nothing else; the index of a part in front that
        both have is extended.

        :raises NumericalError: if a covariance of pseudo-observations is not positive.
        """
        members = tuple(members)
        pairs = zip(self.members, members, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
        if self.each and shared == len(self.members):
            before, new = self.each, members[shared:]
        else:
            before, new = tuple(NearestAt(self._at(s), self.number) for s in self._draws), members
        observed = self.prior.observed(new)
        each = tuple(
            one.extended(part) if part else one for one, part in zip(before, observed, strict=True)
        )
        return replace(self, members=members, each=each)

    @property
    def _draws(self) -> range:
        return range(len(self.prior.draws))

    def _at(self, index: int) -> PriorAt:
        return replace(self.prior, draws=self.prior.draws[index : index + 1])

    @property
    def size(self) -> int:
        """The number of rows that are looked at, joined ones counted once."""
        return self.each[0].size if self.each else 0

    def predict(self, X: np.ndarray, full_cov: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Mean [S, N, L] and variance [S, N, L], or covariance [S, L, N, N], of f(X) for each ε.

        :raises InvalidDataError: if a covariance would condition on too many rows.
        :raises NumericalError: if a covariance is not positive.
        """
        pieces = [one.joint(X) if full_cov else one.marginals(X) for one in self.each]
        mean, variance = zip(*pieces, strict=True)
        return np.stack(mean), np.stack(variance)

    def tensors(self, X: tf.Tensor, full_cov: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """The same at a tensor of inputs, with gradients by it; its neighbours are taken as they
        are.
        """
        pieces = [one.joint_of_tensor(X) if full_cov else one.of_tensor(X) for one in self.each]
        mean, variance = zip(*pieces, strict=True)
        return tf.stack(mean), tf.stack(variance)

    @property
    def log_normaliser(self) -> float:
        """``log 𝒵`` of the members under the Vecchia posterior, without the log constants of
        factors, in nats: at one ε.

        Rows count one after another in a random order, each given the nearest of those before.
        """
        return self.each[0].log_normaliser() + self.prior.constant(self.members)


@dataclass(frozen=True, eq=False)
class NearestAt:
    """The process at one ε.

    :param prior: The prior at it.
    :param number: k.
    :param far: The process given all that is not observed point by point.
    :param rows: The others as they came.
    :param joined: The rows that are looked at.
    :param seen: So many of ``rows`` are joined among themselves, and so are those that follow.
    :param settled: Up to which; the latest stand for themselves.
    :param side: The side of the cells in which they are, in lengthscales; 0 for equal inputs.
    :param front: The process of the rows seen.
    :param indices: An index of ``joined`` for each kernel, where there is one.
    :param projection: What the far observations know of the joined rows [G, M, n].
    """

    prior: PriorAt
    number: int
    far: DenseProcess | None = None
    rows: Rows | None = None
    joined: Rows | None = None
    seen: int = 0
    settled: int = 0
    side: float = 0.0
    indices: tuple[Index | None, ...] = ()
    projection: np.ndarray | None = None
    front: NearestAt | None = None

    def extended(self, members: Sequence[PseudoObservations], join: bool = True) -> NearestAt:
        """Conditioned on more members.

        :param join: Whether rows that cannot be told apart count as one.
        """
        process = self
        whole = [one for one in members if not one.is_diagonal or one.nugget > 0.0]
        if whole:
            far = self.far or DenseProcess(self.prior)
            process = replace(process, far=far.conditioned_on([*far.members, *whole]))
            process = process if process.joined is None else process._projected(process.joined)
        pointwise = [one for one in members if one.is_diagonal and one.nugget == 0.0]
        return process.with_rows(Rows.of(pointwise), join) if pointwise else process

    def with_rows(self, more: Rows, join: bool = True) -> NearestAt:
        """Conditioned on further rows; what is joined is that of all rows, however they came."""
        rows = more if self.rows is None else self.rows + more
        number, process = len(rows.Z), replace(self, rows=rows)
        since, seen = number - len(more.Z), _seen(number) if join else self.seen
        if self.joined is None or len(process._kernels) > len(self.indices) or seen != self.seen:
            since = seen if join else number
            process = process._begun(since, join)
        waiting = (number - process.seen) % max(1, int(WAITING * process.seen))
        if join and number - waiting > process.settled:
            since = number - waiting
            process = process._settled(since)
        return process._appended(rows.some(slice(since, None)))

    def _begun(self, seen: int, join: bool) -> NearestAt:
        """Conditioned on the first of the rows alone, by an index of their own."""
        assert self.rows is not None
        first, side = self.rows.some(slice(0, seen)), 0.0
        if join and len(first.Z) > self.number + PROBED and self.can_join(first):
            side = self._side(self._kernels[0], first)
        joined = self._joined(first, side) if join else first
        indices = tuple(self._index(kernel, joined.Z) for kernel in self._kernels)
        start = replace(self, joined=joined, indices=indices, projection=None)
        process = replace(start, seen=seen, settled=seen, side=side)._projected(joined)
        return replace(process, front=replace(process, rows=None))

    def _settled(self, number: int) -> NearestAt:
        """Conditioned on so many rows, of which those that follow are in cells of their own."""
        assert self.rows is not None
        assert self.front is not None
        front, size = self.front.joined, self.front.size
        assert front is not None
        following = self._joined(self.rows.some(slice(self.seen, number)), self.side)
        joined = self._joined(front + following, 0.0)
        known = None if self.projection is None else self.projection[:, :, :size]
        start = replace(self, joined=joined.some(slice(0, size)), indices=self.front.indices)
        start = replace(start, projection=known, settled=number)
        return start._appended(joined.some(slice(size, None)))

    def _appended(self, more: Rows) -> NearestAt:
        """Conditioned on further rows as they are."""
        if not len(more.Z):
            return self
        assert self.joined is not None
        pairs = zip(self._kernels, self.indices, strict=True)
        indices = tuple(
            None if index is None else index.extended(coordinates(self.prior, kernel, more.Z))
            for kernel, index in pairs
        )
        process = replace(self, joined=self.joined + more, indices=indices)
        return process._projected(more)

    def _projected(self, more: Rows) -> NearestAt:
        if self.far is None:
            return self
        new = self.far.project(more.Z)
        known = self.projection
        whole = known is None or known.shape[1] != new.shape[1]
        return replace(self, projection=new if whole else np.concatenate([known, new], axis=2))

    def replace_rows(self, places: np.ndarray, rows: Rows) -> None:
        """Change observations of some joined rows, in place."""
        assert self.joined is not None
        self.joined.targets[:, places] = rows.targets
        self.joined.noise[:, places] = rows.noise

    # ---- kernels ----

    @cached_property
    def _kernels(self) -> list[Kernel]:
        """One for all groups, unless each has neighbours of its own: where kernels differ, or some
        entries of observations are missing.
        """
        gp, rows = self.prior.functions.gp, self.rows
        kernels = cov.latent_kernels(gp.kernel)
        if len(kernels) == gp.num_groups or gp.likelihood is None or rows is None:
            return kernels
        is_silent = rows.is_silent
        some_are_missing = (is_silent.any(axis=0) & ~is_silent.all(axis=0)).any()
        return kernels * gp.num_groups if some_are_missing else kernels

    @property
    def size(self) -> int:
        return 0 if self.joined is None else len(self.joined.Z)

    def _index(self, kernel: Kernel, Z: np.ndarray) -> Index | None:
        return None if metric_of(kernel) is None else Index.of(coordinates(self.prior, kernel, Z))

    def _joined(self, rows: Rows, side: float) -> Rows:
        """Rows that say more as one, as those of one input do."""
        can_join = self.can_join(rows)
        A = coordinates(self.prior, self._kernels[0], rows.Z) if can_join else rows.Z
        cell = cells(A, side)
        if side == 0.0 and cell.max() + 1 == len(cell):
            return rows
        return rows.joined(cell, self._lost(side, A.shape[1]) if side else 0.0)

    def can_join(self, rows: Rows) -> bool:
        """Whether rows that are near each other can count as one: those of one kernel, and one of
        distances in all columns that anything reads.
        """
        kernel, *more = self._kernels
        if more or metric_of(kernel) is None:
            return False
        return cov.is_zero(self.prior.functions.gp.mean_function) or _reads_all(kernel, rows.Z)

    def indistinguishable(self, rows: Rows) -> Rows:
        """Rows as one that no ε near this one tells apart beside their noise, so that learning ε
        looks further than k rows of one place.
        """
        of_distance = correlations(self.prior, self._kernels[0])
        lengths = np.geomspace(1e-6, 1.0, 61)
        drop = 2.0 * (of_distance(np.zeros(1)) - of_distance(lengths**2))
        short = lengths[drop <= INDISTINGUISHABLE * rows.noise.min()]
        A = coordinates(self.prior, self._kernels[0], rows.Z)
        return rows.joined(cells(A, float(short.max(initial=0.0))))

    def _side(self, kernel: Kernel, rows: Rows) -> float:
        """The side of cells that leaves least of the mean of ``log(v + r)`` at rows that are not
        conditioned on; 0 where all others had better be as they are.
        """
        order = np.random.default_rng(0).permutation(len(rows.Z))
        places, others = rows.some(order[:PROBED]), rows.some(np.sort(order[PROBED:]))
        A, noise = coordinates(self.prior, kernel, others.Z), rows.noise.min()
        empty = replace(self, rows=None, joined=None, indices=(), projection=None, seen=0)

        def left(some: Rows) -> float:
            variance = empty.with_rows(some, join=False).marginals(places.Z)[1]
            return float(np.mean(np.log(variance + noise)))

        best, least = 0.0, np.inf
        for side in SIDES:
            cell = cells(A, side)
            if (cell.max() + 1) * LEAST_JOINED > len(A):
                continue
            least = left(others) if least == np.inf else least
            found = left(others.joined(cell, self._lost(side, A.shape[1])))
            if found >= least:
                break
            best, least = side, found
        return best

    def _lost(self, side: float, columns: int) -> float:
        """``var(mean f(a) − f(mean a))`` for points a that are spread over a cell."""
        spread = side * np.random.default_rng(0).uniform(size=(SPREAD, columns))
        spread -= spread.mean(axis=0)
        own = np.sum(spread**2, axis=1)
        pairs = np.maximum(own[:, None] + own - 2.0 * spread @ spread.T, 0.0)
        of_distance = correlations(self.prior, self._kernels[0])
        among, centre = of_distance(pairs), of_distance(own)
        return float(np.mean(among) - 2.0 * np.mean(centre) + of_distance(np.zeros(1))[0])

    # ---- neighbours ----

    def neighbors(self, X: np.ndarray, number: int) -> np.ndarray:
        """The rows that predictions at X [B, D] condition on: [K, B, k] for K kernels."""
        assert self.joined is not None
        number = min(number, self.size)
        return np.stack(
            [self._near(place, kernel, X, number) for place, kernel in enumerate(self._kernels)]
        )

    def _near(self, place: int, kernel: Kernel, X: np.ndarray, number: int) -> np.ndarray:
        index, joined = self.indices[place], self.joined
        assert joined is not None
        noise = joined.noise[min(place, len(joined.noise) - 1)]
        if index is None:
            return self._of_largest_correlation(place, X, noise, number)
        places = coordinates(self.prior, kernel, X)
        differs = number < self.size and noise.max() > 1.5 * noise.min()
        most = min(2 * number if differs else number, self.size)
        found = index.nearest(places, most)
        if not differs:
            return found
        is_silent = joined.is_silent[min(place, len(joined.noise) - 1)]
        while most < self.size and ((~is_silent[found]).sum(axis=1) < number).any():
            most = min(2 * most, self.size)
            found = index.nearest(places, most)
        gaps = places[:, None] - index.coordinates[found]
        squares = np.einsum("bkd,bkd->bk", gaps, gaps)
        k = correlations(self.prior, kernel)(squares)
        gain = k**2 / (correlations(self.prior, kernel)(np.zeros(1)) + noise[found])
        chosen = np.argpartition(-gain, number - 1, axis=1)[:, :number]
        return np.take_along_axis(found, chosen, axis=1)

    def _of_largest_correlation(
        self,
        place: int,
        X: np.ndarray,
        noise: np.ndarray,
        number: int,
        before: np.ndarray | None = None,
    ) -> np.ndarray:
        """Those that reduce the variance most at each of X [B, D], of all rows or of so many first
        ones as ``before`` says [B], which are more than ``number``.
        """
        assert self.joined is not None
        Z, functions, draws = self.joined.Z, self.prior.functions, self.prior.draws
        (variances,) = np.asarray(functions.variance(draws, Z))
        place = min(place, len(variances) - 1)
        variance = variances[place]
        found = np.empty((len(X), number), int)
        step = max(1, AT_ONCE // len(Z))
        for start in range(0, len(X), step):
            some = slice(start, start + step)
            k = np.asarray(functions.covariance(draws, X[some], Z))[0][place]
            gain = k**2 / (variance + noise)
            if before is not None:
                gain[np.arange(len(Z)) >= before[some, None]] = -1.0
            found[some] = np.argpartition(-gain, number - 1, axis=1)[:, :number]
        return found

    # ---- predictions ----

    def marginals(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [N, L] of f(X)."""
        if self.size == 0:
            far = self.far or DenseProcess(self.prior)
            mean, variance = far.predict(X)
            return mean[0], np.array(variance[0])
        return self.by_pieces(
            lambda some: self.given(X[some], self.neighbors(X[some], self.number)), len(X)
        )

    def by_pieces(
        self, moments_of: Callable[[slice], tuple[np.ndarray, np.ndarray]], number: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of a number of places, of so many at once as memory takes."""
        step = max(1, AT_ONCE // (min(self.number, self.size) + 1) ** 2)
        starts = long_work(range(0, number, step), "near rows")
        pieces = [moments_of(slice(start, start + step)) for start in starts]
        mean, variance = (np.concatenate(part) for part in zip(*pieces, strict=True))
        return mean, variance

    def given(self, X: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance [B, L] of f(X) given some joined rows of each: [K, B, k]."""
        return moments(self.prior, X, self.rows_at(found), self._projections(X, found))

    def rows_at(self, found: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Z [K, B, k, D], z [G, B, k, C] and r [G, B, k] of some joined rows [K, B, k]."""
        rows = self.joined
        assert rows is not None
        G = len(rows.noise)
        by_group = np.broadcast_to(found, (G, *found.shape[1:]))
        targets = np.stack([rows.targets[g][by_group[g]] for g in range(G)])
        noise = np.stack([rows.noise[g][by_group[g]] for g in range(G)])
        return rows.Z[found], targets, noise

    def _projections(self, X: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, ...] | None:
        """What far observations know of the rows [G, B, k, M] and of X [G, B, M], and their white
        targets [G, M, C].
        """
        if self.far is None:
            return None
        assert self.projection is not None
        V, G = self.projection, self.prior.functions.gp.num_groups
        by_group = np.broadcast_to(found, (G, *found.shape[1:]))
        at_rows = np.stack([V[g].T[by_group[g]] for g in range(G)])
        return at_rows, np.swapaxes(self.far.project(X), 1, 2), np.stack(self.far.white)

    def of_tensor(self, X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [N, L] at a tensor, with gradients by it."""

        def gathered(values: np.ndarray) -> tuple[np.ndarray, ...]:
            return self.rows_at(self.neighbors(values, self.number))

        def moments(*rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            jitter = tf.constant(JITTERS[1], tf.float64)
            Z, targets, noise = rows
            return conditional_moments(self.prior.functions.gp, X, Z, targets, noise, jitter)

        return self._of_tensor(X, gathered, 1, moments)

    def joint_of_tensor(self, X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [N, L] and covariance [L, N, N] at a tensor, with gradients by it."""

        def gathered(values: np.ndarray) -> tuple[np.ndarray, ...]:
            assert self.joined is not None
            rows = self.joined.some(self.union(values))
            return rows.Z, rows.targets, rows.noise

        def moments(*rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return joint_moments(self.prior.functions.gp, X, *rows)

        return self._of_tensor(X, gathered, 0, moments)

    def _of_tensor(
        self,
        X: tf.Tensor,
        gathered: Callable[[np.ndarray], tuple[np.ndarray, ...]],
        axes: int,
        moments: Callable[..., tuple[tf.Tensor, tf.Tensor]],
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Moments given rows that are found in NumPy.

        :param axes: How many axes these have in front that joined rows have not, but for kernels.
        """
        if self.far is not None or self.size == 0:
            raise NotImplementedError(
                "predictions at tensors want Dense() conditioning where points were merged"
            )
        functions = self.prior.functions
        gp, D, (epsilon,) = functions.gp, functions.input_dim, self.prior.draws
        front = [None] * axes
        like = (
            spec(*[None] * (2 * axes), None, D),
            spec(None, *front, None, gp.num_latent // gp.num_groups),
            spec(None, *front, None),
        )
        rows = in_numpy(gathered, (tf.stop_gradient(X),), like)
        with functions.parameters.substituted(tf.constant(epsilon)):
            return moments(*rows)

    def union(self, X: np.ndarray) -> np.ndarray:
        """The joined rows that joint predictions at X condition on.

        :raises InvalidDataError: if these are too many.
        """
        found = self.near_any(X)
        if len(found) > MOST_JOINT:
            raise InvalidDataError(
                f"joint predictions condition on all neighbours of {len(X)} inputs together, "
                f"which are {len(found)} rows: wanted inputs with at most {MOST_JOINT}, or fewer "
                "neighbours"
            )
        return found

    def near_any(self, X: np.ndarray) -> np.ndarray:
        """The joined rows that are near any of X, however many."""
        if self.size == 0:
            return np.zeros(0, int)
        return np.unique(self.neighbors(X, self.number))

    def joint(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean [N, L] and covariance [L, N, N] of f(X), given all neighbours of any of them.

        :raises InvalidDataError: if these are too many.
        """
        mean, covariance = self._given_all(self.union(X)).predict(X, full_cov=True)
        return mean[0], np.array(covariance[0])

    def around(self, X: np.ndarray, but: Sequence[int] | np.ndarray = ()) -> DenseProcess:
        """The process given all neighbours of any of X [B, D] together, but for some rows."""
        return self._given_all(np.setdiff1d(self.near_any(X), but))

    def _given_all(self, rows: np.ndarray) -> DenseProcess:
        """The process given some of the joined rows, and what is far."""
        base = self.far or DenseProcess(self.prior)
        if not len(rows):
            return base
        assert self.joined is not None
        return base.extended(self.joined.some(rows).as_observations())

    def log_normaliser(self) -> float:
        """``Σ_i log N(z_i; m_i, v_i + r_i) + ½ log(2π r_i)`` over rows in a random order, each
        given the nearest before it; and that of far observations.
        """
        total = 0.0 if self.far is None else self.far.log_normaliser
        if self.rows is None:
            return total
        order = np.random.default_rng(0).permutation(len(self.rows.Z))
        ordered = self.rows.some(order)
        process = replace(self, rows=ordered, joined=ordered, projection=None)._projected(ordered)
        gp, base = self.prior.functions.gp, self.far or DenseProcess(self.prior)
        first = min(self.number, len(order))
        head = ordered.some(slice(0, first)).as_observations()
        total += base.extended(head).log_normaliser - base.log_normaliser
        step = max(1, AT_ONCE // (self.number + 1) ** 2)
        for start in range(first, len(order), step):
            some = np.arange(start, min(start + step, len(order)))
            found = process.earlier(some)
            mean, variance = process.given(ordered.Z[some], found)
            shape = len(some), gp.num_groups, -1
            mean, variance = (np.reshape(m, shape).swapaxes(0, 1) for m in (mean, variance))
            noise = ordered.noise[:, some, None]
            v, error = variance + noise, ordered.targets[:, some] - mean
            total += float(-0.5 * np.sum(np.log(v / noise) + error**2 / v))
        return total

    def earlier(self, some: np.ndarray) -> np.ndarray:
        """The nearest of those before each of some rows [K, B, k]."""
        assert self.joined is not None
        Z = self.joined.Z
        found = []
        for place, kernel in enumerate(self._kernels):
            if metric_of(kernel) is None:
                noise = self.joined.noise[min(place, len(self.joined.noise) - 1)]
                later = some > self.number  # others get the first rows
                of_kernel = np.tile(np.arange(self.number), (len(some), 1))
                of_kernel[later] = self._of_largest_correlation(
                    place, Z[some[later]], noise, self.number, before=some[later]
                )
                found.append(of_kernel)
            else:
                is_silent = self.joined.is_silent[min(place, len(self.joined.noise) - 1)]
                places = coordinates(self.prior, kernel, Z)
                found.append(nearest_earlier(places, some, self.number, is_silent))
        return np.stack(found)


# ---- kernels as functions of distances ----


def metric_of(kernel: Kernel) -> Any:
    """The stationary kernel in whose lengthscales distances say all of a kernel's correlations; or
    None where there is none, as of sums of several, or of what is not stationary.
    """
    if isinstance(kernel, (Sum, Product)):
        parts = [one for one in kernel.kernels if not isinstance(one, Static)]
        return metric_of(parts[0]) if len(parts) == 1 else None
    return kernel if cov.is_of_distances(kernel) else None


def coordinates(prior: PriorAt, kernel: Kernel, Z: np.ndarray) -> np.ndarray:
    """Inputs in lengthscales, in which the kernel is a function of distances."""
    metric = metric_of(kernel)
    assert metric is not None
    (epsilon,) = prior.draws
    with prior.functions.parameters.substituted(tf.constant(epsilon)):
        scales = np.asarray(metric.lengthscales)
    columns = np.asarray(metric.slice(Z, Z)[0])
    return np.ascontiguousarray(columns / scales)


def crowding(prior: PriorAt, Z: np.ndarray) -> np.ndarray:
    """How many of some inputs lie at the place of each [n]: within a tenth of a lengthscale, or
    where distances say nothing of correlations, at the very same one.
    """
    kernel = cov.latent_kernels(prior.functions.gp.kernel)[0]
    if metric_of(kernel) is None:
        place = cells(Z, 0.0)
    else:
        place = cells(coordinates(prior, kernel, Z), ONE_PLACE)
    return np.bincount(place)[place]


def _reads_all(kernel: Kernel, Z: np.ndarray) -> bool:
    """Whether the kernel depends on all columns of Z."""
    metric = metric_of(kernel)
    return bool(np.asarray(metric.slice(Z[:1], Z[:1])[0]).shape[1] == Z.shape[1])


def correlations(prior: PriorAt, kernel: Kernel) -> Callable[[np.ndarray], np.ndarray]:
    """The covariance that a kernel of distances gives to squares of distances in lengthscales."""
    metric = metric_of(kernel)
    place = cov.latent_kernels(prior.functions.gp.kernel).index(kernel)
    parameters = prior.functions.parameters

    def at(epsilon: tf.Tensor, squares: tf.Tensor) -> tf.Tensor:
        with parameters.substituted(epsilon):
            return metric.K_r2(squares)

    compiled = prior.functions.graphs.compiled(
        at, spec(parameters.size), spec(None), of=("correlations", place)
    )
    (epsilon,) = prior.draws

    def function(squares: np.ndarray) -> np.ndarray:
        return np.asarray(compiled(epsilon, squares.ravel())).reshape(squares.shape)

    return function


def batched(kernel: Kernel, Z: tf.Tensor, X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Covariances of B inputs X [B, D], each with k rows of its own Z [B, k, D].

    Differences are taken first, so that they keep their digits at any offset.

    :returns: that among the rows [B, k, k], whose diagonal may be rounded; that of rows and input
        [B, k]; and the variance at the inputs [B].
    """
    if isinstance(kernel, (Sum, Product)):
        parts = zip(*(batched(part, Z, X) for part in kernel.kernels), strict=True)
        join = operator.add if isinstance(kernel, Sum) else operator.mul
        among, between, own = (reduce(join, part) for part in parts)
        return among, between, own
    own = kernel(X, full_cov=False)
    if cov.is_of_distances(kernel):
        among, between = (
            kernel.scale(kernel.slice(Z - origin, Z)[0])
            for origin in (tf.reduce_mean(Z, 1, keepdims=True), X[:, None])
        )
        squares = tf.reduce_sum(tf.square(between), -1)
        return kernel.K_r2(_squared_gaps(among)), kernel.K_r2(squares), own
    points = tf.concat([Z, X[:, None]], 1)
    if cov.depends_on_differences(kernel):
        points -= tf.stop_gradient(X)[:, None]
    K = tf.vectorized_map(lambda one: kernel(one), points)
    return K[:, :-1, :-1], K[:, :-1, -1], own


def _squared_gaps(A: tf.Tensor) -> tf.Tensor:
    """Squares of distances [B, k, k] among B sets of rows [B, k, D], each about its mean.

    Rows in few columns may lie in places far apart, as in times with a gap: those are subtracted
    before they are squared.
    """
    if A.shape[2] is not None and A.shape[2] <= cov.FARTHEST:
        columns = (one[:, None] for one in tf.unstack(A, axis=2))
        transposed = ((tf.transpose(one, [0, 2, 1]), one) for one in columns)
        return reduce(operator.add, (tf.math.squared_difference(*pair) for pair in transposed))
    squares = tf.reduce_sum(tf.square(A), -1, keepdims=True)
    ones = tf.ones_like(squares)
    left, right = tf.concat([-2.0 * A, squares, ones], -1), tf.concat([A, ones, squares], -1)
    return tf.matmul(left, right, transpose_b=True)


def conditional_moments(
    gp: Any,
    X: tf.Tensor,
    Z: tf.Tensor,
    targets: tf.Tensor,
    noise: tf.Tensor,
    jitter: tf.Tensor,
    far: tuple[tf.Tensor, tf.Tensor, tf.Tensor] | None = None,
    is_linear: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance [B, L] of f at X [B, D] given rows of its own, at the parameters' values.

    :param gp: Kernel and mean function.
    :param Z: [K, B, k, D].
    :param targets: z [G, B, k, C].
    :param noise: r [G, B, k].
    :param jitter: As a part of the prior variance.
    :param far: What far observations know of the rows [G, B, k, M] and of X [G, B, M], and their
        white targets [G, M, C].
    :param is_linear: Whether first derivatives are enough, which are cheaper alone.
    """
    means, variances = [], []
    kernels = cov.latent_kernels(gp.kernel)
    columns = targets.shape[3] or tf.shape(targets)[3]
    for group in range(gp.num_groups):
        place = min(group, len(kernels) - 1)
        rows = Z[tf.minimum(group, tf.shape(Z)[0] - 1)]
        among, k, own = batched(kernels[place], rows, X)
        shape = tf.shape(rows)
        of_rows = kernels[place](tf.reshape(rows, [-1, rows.shape[2]]), full_cov=False)
        diagonal = tf.reshape(of_rows, shape[:2])
        at_rows, at_place = (_mean(gp, group, points, columns) for points in (rows, X[:, None]))
        if far is not None:
            V, v, white = (part[group] for part in far)
            among -= tf.matmul(V, V, transpose_b=True)
            k -= tf.linalg.matvec(V, v)
            own -= tf.reduce_sum(tf.square(v), -1)
            diagonal -= tf.reduce_sum(tf.square(V), -1)
            at_rows += tf.reshape(
                tf.matmul(tf.reshape(V, [-1, tf.shape(V)[2]]), white), tf.shape(at_rows)
            )
            at_place += tf.matmul(v, white)[:, None]
        among = tf.linalg.set_diag(among, diagonal * (1.0 + jitter) + noise[group])
        both = tf.concat([k[..., None], targets[group] - at_rows], -1)
        if is_linear:
            known, left = _linear(among, both)
        else:
            solved = tf.linalg.triangular_solve(tf.linalg.cholesky(among), both)
            known = tf.reduce_sum(solved[..., :1] * solved[..., 1:], 1)
            left = -tf.reduce_sum(tf.square(solved[..., 0]), -1)
        means.append(at_place[:, 0] + known)
        variances.append(tf.maximum(own + left, SMALLEST_VARIANCE * own)[:, None])
    C = gp.num_latent // gp.num_groups
    mean = tf.concat(means, -1)
    variance = tf.concat([tf.repeat(one, C, axis=-1) for one in variances], -1)
    return mean, variance


def joint_moments(
    gp: Any, X: tf.Tensor, Z: tf.Tensor, targets: tf.Tensor, noise: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean [N, L] and covariance [L, N, N] of f at X [N, D] given the same rows for all of them, at
    the parameters' values.

    :param Z: [n, D].
    :param targets: z [G, n, C].
    :param noise: r [G, n].
    """
    root = tf.math.rsqrt(noise)
    K, k = cov.among(gp.kernel, Z), cov.between(gp.kernel, Z, X)
    B = tf.eye(tf.shape(Z)[0], dtype=K.dtype) + root[:, :, None] * K * root[:, None]
    centred = targets - cov.to_groups(gp.prior_mean(Z), gp.num_groups)
    right = tf.concat([k + tf.zeros_like(root)[..., None], centred], -1)
    solved = tf.linalg.triangular_solve(tf.linalg.cholesky(B), root[:, :, None] * right)
    number = tf.shape(X)[0]
    V, white = solved[:, :, :number], solved[:, :, number:]
    mean = cov.to_groups(gp.prior_mean(X), gp.num_groups) + tf.matmul(V, white, transpose_a=True)
    covariance = cov.among(gp.kernel, X) - tf.matmul(V, V, transpose_a=True)
    spread = tf.repeat(covariance, gp.num_latent // gp.num_groups, axis=0)
    shape = gp.num_latent, X.shape[0], X.shape[0]
    return cov.from_groups(mean, gp.num_latent), tf.ensure_shape(spread, shape)


def _linear(K: tf.Tensor, both: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """``kᵀ K⁻¹ z`` and ``−kᵀ K⁻¹ k`` for both = [k, z], whose first derivatives are right.

    With ``w = K⁻¹ k`` and ``a = K⁻¹ z`` held, ``kᵀa + wᵀ(z − K a)`` and ``wᵀK w − 2 wᵀk`` have the
    values and the first derivatives of these, and nothing is differentiated through a Cholesky
    factor, which would cost three times as much.
    """
    solved = tf.stop_gradient(tf.linalg.cholesky_solve(tf.linalg.cholesky(K), both))
    w, a = solved[..., :1], solved[..., 1:]
    product = tf.matmul(K, solved)
    known = tf.reduce_sum(both[..., :1] * a + w * (both[..., 1:] - product[..., 1:]), 1)
    return known, tf.reduce_sum((w * (product[..., :1] - 2.0 * both[..., :1]))[..., 0], -1)


def _mean(gp: Any, group: int, points: tf.Tensor, columns: Any) -> tf.Tensor:
    """The prior mean [B, k, C] of one group at points [B, k, D].

    :param columns: C, which may be fewer where the mean is zero.
    """
    shape = tf.shape(points)
    if cov.is_zero(gp.mean_function):
        return tf.zeros([shape[0], shape[1], columns], points.dtype)
    values = gp.prior_mean(tf.reshape(points, [-1, shape[2]]))
    C = gp.num_latent // gp.num_groups
    mine = values[:, group * C : (group + 1) * C]
    return tf.reshape(mine, [shape[0], shape[1], C])


def moments(
    prior: PriorAt, X: np.ndarray, rows: tuple[np.ndarray, ...], far: tuple[np.ndarray, ...] | None
) -> tuple[np.ndarray, np.ndarray]:
    """:func:`conditional_moments` in NumPy at one ε, with as little jitter as goes.

    :param rows: Z, targets and noise.
    :raises NumericalError: if a covariance is not positive.
    """
    functions, (epsilon,) = prior.functions, prior.draws
    D, C = functions.input_dim, functions.gp.num_latent // functions.gp.num_groups

    def near_moments(epsilon: tf.Tensor, *arguments: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with functions.parameters.substituted(epsilon):
            return conditional_moments(functions.gp, *arguments[:5], far=arguments[5:] or None)  # type: ignore

    signature = [
        spec(functions.parameters.size), spec(None, D), spec(None, None, None, D),
        spec(None, None, None, C), spec(None, None, None), spec(),
    ]  # fmt: skip
    if far is not None:
        signature += [spec(None, None, None, None), spec(None, None, None), spec(None, None, C)]
    compiled = functions.graphs.compiled(near_moments, *signature)
    for jitter in JITTERS:
        try:
            mean, variance = compiled(epsilon, X, *rows, np.asarray(jitter), *(far or ()))
        except tf.errors.InvalidArgumentError:
            continue
        if np.isfinite(np.sum(mean)) and np.isfinite(np.sum(variance)):
            return np.asarray(mean), np.asarray(variance)
    raise NumericalError("the covariance of neighbours is not positive")


def _seen(number: int) -> int:
    """How many of so many rows are joined among themselves: it stays while few more come."""
    return int(GROWTH ** int(np.log(number) / np.log(GROWTH)))


def data_of(members: Sequence[Any]) -> list[DataObservations]:
    """Those members that are data themselves."""
    return [one for one in members if isinstance(one, DataObservations)]


@runtime_checkable
class Conditioning(Protocol):
    """How a process is conditioned: a frozen dataclass of plain fields."""

    def unconditioned(self, prior: PriorAt, num_points: int) -> DenseProcess | NearestProcess:
        """The prior at some ε, which will be conditioned on so many points."""
        ...


@storable
@dataclass(frozen=True)
class Dense:
    """Every prediction conditions on all points: exact, at a cost that grows with their number.

    n points cost n³/3 operations once, n² for each new one and each prediction, and n² numbers of
    memory for each value of ε.

    >>> dense = sgp.StreamingGP(*parts, conditioning=sgp.Dense())
    """

    def unconditioned(self, prior: PriorAt, num_points: int) -> DenseProcess:
        return DenseProcess(prior)


@storable
@typed
@dataclass(frozen=True)
class NearestNeighbors:
    """Every prediction conditions on the points near it (Vecchia 1988; Datta et al. 2016).

    What a prediction costs does not depend on how long the stream is, and nothing is thrown away.
    What is approximate: a prediction knows of the points far from it only what the near ones say.
    Smooth functions of many inputs with much noise want more neighbours, or :class:`Dense`.

    It wants a point at every input, ``PrivatePseudoPoints("all")``, the default. Points that
    were merged, by a budget or by ``compress``, are all conditioned on.

    :param num_neighbors: The number of neighbours by which ε is learned, and the sites of
        likelihoods whose noise is not Gaussian.
    :param num_neighbors_pred: The number of neighbours of a prediction.
    :param dense_up_to: Up to so many points all of them are conditioned on, as :class:`Dense`; 0
        for never. Otherwise each update that learns from more than 600 rows asks how many
        neighbours predict random rows better, by a fiftieth of a nat each at least: where they are
        as few as ``num_neighbors``, so many are conditioned on from then on; and more than 2,000
        points are all conditioned on only where it is four times ``num_neighbors_pred``.
    :raises InvalidDataError: if a number is not a positive integer.

    >>> near = sgp.StreamingGP(*parts, conditioning=sgp.NearestNeighbors(num_neighbors_pred=200))
    """

    num_neighbors: int = 30
    num_neighbors_pred: int = 100
    dense_up_to: int = 0

    def __post_init__(self) -> None:
        require_positive_integer("num_neighbors", self.num_neighbors)
        require_positive_integer("num_neighbors_pred", self.num_neighbors_pred)
        require_count("dense_up_to", self.dense_up_to)

    def unconditioned(self, prior: PriorAt, num_points: int) -> DenseProcess | NearestProcess:
        if num_points <= max(self.dense_up_to, self.num_neighbors_pred):
            return DenseProcess(prior)
        return NearestProcess(prior, self.num_neighbors_pred)
