"""The objective of a local fit: the free energy of a batch, by ε's variables and places of points.

One graph of TensorFlow has the prior at S values of ε, the expected log likelihood, and the
gradients of both. Between them stands linear algebra in NumPy, which the graph calls: the batch
under its cavity, a bound of it, and both backwards. Each graph is traced once for a kind of model,
with unknown sizes, so that a stream of any length neither retraces nor leaks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.fit.bounds import (
    AtData,
    LocalBound,
    LocalFunction,
    OnPoints,
    SparseBound,
    Variational,
)
from streaming_gp.gp.fit.cavity import (
    Conditioned,
    Observed,
    PriorValues,
    TakenOver,
    UnderCavity,
    prior_values,
)
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.sites import (
    Look,
    Rest,
    Sites,
    expected_log_density,
    is_conjugate,
    rest,
    tilted_log_density,
)
from streaming_gp.gp.hyperparameters import DIVERGENCE, EVIDENCE
from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.graphs import at_each_sample, in_numpy, spec
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.numerics.linalg import solve_lower
from streaming_gp.numerics.stacks import tiled
from streaming_gp.numerics.threads import one_blas_thread

NO_SITES = Sites(np.zeros((0, 0)), np.zeros((0, 0)))
"""Of Gaussian noise, whose sites are known at each ε."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A batch under its cavity.

    :param X: The inputs [N, D].
    :param Y: The observations [N, P].
    :param earlier: Earlier pseudo-observations, one member for each set of points.
    :param location: The value of ε at which its whitened variables are zero [E].
    :param scale: The unit of these variables, a lower factor [E, E].
    :param noise: Common random numbers [S, E].
    :param Z: The points at the start [M, D].
    :param unit: The unit of their offsets [D].
    :param nugget: The variance of the white noise of the points, in squared units of f.
    :param takes_over: Whether the points take over what is earlier, which is the cavity otherwise.
    :param shared_nugget: The variance of white noise that they have in common with earlier points,
        where they are the same variables.
    """

    X: np.ndarray
    Y: np.ndarray
    earlier: tuple[Any, ...]
    location: np.ndarray
    scale: np.ndarray
    noise: np.ndarray
    Z: np.ndarray
    unit: np.ndarray
    nugget: float
    takes_over: bool = False
    shared_nugget: float = 0.0

    def moved(self, offsets: np.ndarray) -> np.ndarray:
        """The points [M, D], from their offsets [M D]."""
        return np.asarray(self.Z + self.unit * np.reshape(offsets, self.Z.shape))

    @cached_property
    def earlier_Z(self) -> np.ndarray:
        """Points of what is earlier [R, D]."""
        nothing = np.zeros((0, self.X.shape[1]))
        return np.concatenate([nothing, *(one.Z for one in self.earlier)])


@dataclass(eq=False)
class BatchBound:
    """The bound of one batch, by f under its cavity at S values of ε.

    :param bound: The local bound.
    :param local: The model.
    :param draws: The values of ε [S, E].
    :param X: The inputs [N, D].
    :param Y: The observations [N, P].
    :param f: f at points and data [S G, ...], of Gaussian noise or of none.
    :param targets: Of earlier pseudo-observations that the points take over, which are the last
        data of ``f`` [G, R, C].
    """

    bound: LocalBound
    local: LocalModel
    draws: np.ndarray
    X: np.ndarray
    Y: np.ndarray
    f: UnderCavity
    targets: np.ndarray
    _q: AtData | None = field(default=None, init=False)

    def value(self, sites: Sites = NO_SITES) -> float:
        """The bound in nats, summed over ε.

        :param sites: Those on the data; of Gaussian noise none are asked for.
        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        inputs, local = self.inputs(sites), self.local
        if not inputs:
            return self.of_gaussian_noise()[0]
        if isinstance(self.bound, SparseBound):
            graph = local.graphs_of_fits.compiled(
                partial(_of_own, local, self.bound), *_signature(local), of=self.bound
            )
            parts = graph(self.draws, sites, self.X, self.Y, *inputs)
        else:
            parts = local.expected(self.draws, self.X, self.Y, *inputs)
        value, _, *by = (np.asarray(one) for one in parts)
        return float(np.sum(value)) + self.pulled_back(sites, by)[0]

    def of_gaussian_noise(self) -> tuple[float, UnderCavity]:
        """The same in closed form, and its derivatives by ``f``."""
        Y = np.concatenate([self.local.grouped(self.Y), self.targets], axis=1)
        earlier = self.targets.shape[1]
        return self._form.value_and_gradient(self.f, tiled(Y, len(self.f.mean)), earlier)

    def inputs(self, sites: Sites) -> list[np.ndarray]:
        """The part that TensorFlow has is a function of these; of Gaussian noise there is none.

        Moments of q(f) at the data [S, N, L]; of a bound of one's own f and ``targets``.
        """
        if isinstance(self.bound, SparseBound):
            G = self.local.gp.num_groups
            f = (one.reshape(len(self.draws), G, *one.shape[1:]) for one in self.f)
            return [*f, self.targets]
        if is_conjugate(self.local.likelihood):
            return []
        self._q = self._posterior(sites)
        return list(self._moments(self._q))

    def pulled_back(self, sites: Sites, by: Sequence[np.ndarray]) -> tuple[float, UnderCavity]:
        """The rest of the bound, in nats, and derivatives of all by ``f``.

        :param by: Derivatives by :meth:`inputs`.
        """
        if isinstance(self.bound, SparseBound):
            return 0.0, UnderCavity(*(one.reshape(-1, *one.shape[2:]) for one in by))
        q, N = self._q, len(self.X)
        assert q is not None
        by_mean, by_variance = (one.swapaxes(1, 2).reshape(-1, N) for one in by)
        error = tiled(self.targets[:, :, 0], len(self.f.mean)) - q.mean[:, N:]
        earlier = 0.5 * float(np.sum(error**2) + np.sum(q.variance[:, N:]))
        by_mean = np.concatenate([by_mean, error], axis=1)
        by_variance = np.concatenate([by_variance, np.full_like(error, -0.5)], axis=1)
        by_f = self._form.pulled_back(q, *self._stacked(sites), by_mean, by_variance)
        return -q.kl - earlier, by_f

    def look(self, sites: Sites) -> Look:
        """What the likelihood says of sites, averaged over ε.

        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        q = self._posterior(sites)
        given = self.draws, self.X, self.Y, *self._moments(q)
        A = self._prepared.between
        left = np.maximum(self.f.variance - np.einsum("smn,smn->sn", A, A), 0.0)
        left = self._moments(q._replace(mean=left))[0]
        return self.bound.look(self.local, given, left, sites)

    @property
    def _form(self) -> OnPoints:
        """For sites of a bound of one's own, that of ordinary sparse inference."""
        return self.bound if isinstance(self.bound, OnPoints) else Variational()

    @cached_property
    def _prepared(self) -> UnderCavity:
        return self._form.prepared(self.f)

    def _posterior(self, sites: Sites) -> AtData:
        return self._form.posterior(self._prepared, *self._stacked(sites))

    def _stacked(self, sites: Sites) -> tuple[np.ndarray, np.ndarray]:
        """Sites as stacks [S G, N + R]; last those of what is taken over."""
        earlier = self.targets[:, :, 0]
        pairs = zip(sites, (earlier, np.ones_like(earlier)), strict=True)
        mean, w = (np.concatenate([own.T, other], axis=1) for own, other in pairs)
        return tiled(mean, len(self.f.mean)), tiled(w, len(self.f.mean))

    def _moments(self, q: AtData) -> tuple[np.ndarray, np.ndarray]:
        """Of latent functions at the data [S, N, L]."""
        N, S = len(self.X), len(self.draws)
        mean, variance = (
            part[:, :N].reshape(S, -1, N).swapaxes(1, 2) for part in (q.mean, q.variance)
        )
        return mean, variance


def _signature(local: LocalModel) -> tuple[Any, ...]:
    """Of :func:`_of_own`."""
    S, G, L = local.hyperparameters.num_draws, local.gp.num_groups, local.gp.num_latent
    site = spec(None, 0 if is_conjugate(local.likelihood) else L)
    square, row = spec(S, G, None, None), spec(S, G, None)
    return (
        spec(S, local.parameters.size), Sites(site, site), spec(None, local.input_dim),
        spec(None, local.output_dim), square, square, row, spec(S, G, None, L // G), row,
        spec(G, None, L // G),
    )  # fmt: skip


def _of_own(
    local: LocalModel,
    bound: SparseBound,
    draws: tf.Tensor,
    sites: Sites,
    X: tf.Tensor,
    Y: tf.Tensor,
    *inputs: tf.Tensor,
) -> Any:
    """A bound of one's own at each ε, and its derivatives by ε and f, by TensorFlow."""
    *f, targets = inputs

    def at(*by: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch(by)
            with local.parameters.substituted(by[0]):
                given = _local_function(local, bound, UnderCavity(*by[1:]), targets, sites, X, Y)
                value = bound.free_energy(given)
        return value, *tape.gradient(value, by, unconnected_gradients="zero")

    return at_each_sample(at, draws, *f)


def _local_function(
    local: LocalModel,
    bound: SparseBound,
    f: UnderCavity,
    targets: tf.Tensor,
    sites: Sites,
    X: tf.Tensor,
    Y: tf.Tensor,
) -> LocalFunction:
    """The arguments of a bound of one's own, at the ε that the parameters hold."""
    N, groups = tf.shape(X)[0], local.gp.num_groups
    if is_conjugate(local.likelihood):
        A = solve_lower(tf.linalg.cholesky(f.among), f.between)
        left = tf.maximum(f.variance - tf.reduce_sum(tf.square(A), -2), 0.0)
        w = bound.site_precision(f.noise[:, :N], left[:, :N])
        precision_mean = w[..., None] * cov.to_groups(Y, groups)
    else:
        precision_mean, w = (cov.to_groups(part, groups) for part in sites)
        w = w[:, :, 0]

    def of_latents(mean: tf.Tensor, variance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        L = local.gp.num_latent
        return cov.from_groups(mean, L), cov.spread_over_latents(variance, L)

    def expected(*moments: tf.Tensor) -> tf.Tensor:
        return expected_log_density(local.likelihood, X, *of_latents(*moments), Y)

    def tilted(alpha: float, *moments: tf.Tensor) -> tf.Tensor:
        about = of_latents(*moments[2:])
        return tilted_log_density(local.likelihood, X, *of_latents(*moments[:2]), Y, about, alpha)

    return LocalFunction(
        f.among, f.between, f.variance, f.mean,
        tf.concat([w, tf.ones_like(targets[:, :, 0])], 1),
        tf.concat([precision_mean, targets], 1), expected, tilted, N,
    )  # fmt: skip


@dataclass(eq=False)
class _Evaluation:
    """One evaluation of an objective, in NumPy: what a graph calls between prior and gradient."""

    objective: Objective
    problem: Problem
    sites: Sites
    cavity: Conditioned | TakenOver | None = None
    batch: BatchBound | None = None
    remembered: float = 0.0
    is_lost: bool = False
    """Whether a covariance was not positive."""

    def look(self, draws: np.ndarray, values: PriorValues) -> BatchBound:
        """The batch under its cavity.

        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        bound, local, problem = self.objective.bound, self.objective.local, self.problem
        observed, prior = self.objective.observed(problem), values.stacked()
        targets = observed.targets
        if problem.takes_over:
            R = len(problem.earlier_Z)
            shared = problem.shared_nugget * np.eye(R, prior.among.shape[1] - R)
            self.cavity = TakenOver(observed, prior, shared)
        else:
            self.cavity = Conditioned(observed, prior)
            targets = targets[:, :0]
        f = self.cavity.batch(problem.nugget)
        self.batch = BatchBound(bound, local, draws, problem.X, problem.Y, f, targets)
        return self.batch

    def inputs(self, draws: np.ndarray, values: PriorValues) -> list[np.ndarray]:
        """As of :class:`BatchBound`; where a covariance is not positive, of the right shapes."""
        try:
            return self.look(draws, values).inputs(self.sites)
        except np.linalg.LinAlgError:
            self.is_lost = True
        S, N = len(draws), len(self.problem.X)
        if not isinstance(self.objective.bound, SparseBound):
            return [np.zeros((S, N, self.sites.precision.shape[1])) + add for add in (0.0, 1.0)]
        R, (_, G, T, C) = len(self.problem.earlier_Z), values.mean_points.shape
        earlier = R if self.problem.takes_over else 0
        among, between = np.tile(np.eye(T - R), (S, G, 1, 1)), np.zeros((S, G, T - R, N + earlier))
        ones = np.ones((S, G, N + earlier))
        mean, targets = np.zeros((S, G, N + earlier, C)), np.zeros((G, earlier, C))
        return [among, between, ones, mean, ones.copy(), targets]

    def total(
        self, draws: np.ndarray, values: PriorValues, *by: np.ndarray
    ) -> tuple[Any, PriorValues]:
        """The free energy, summed over ε, but for what TensorFlow has of it, and all derivatives by
        the prior; where a covariance is not positive, minus infinity.
        """
        try:
            if not self.is_lost:
                return self._total(draws, values, by)
        except np.linalg.LinAlgError:
            pass
        return np.float64(-np.inf), PriorValues(*map(np.zeros_like, values))

    def _total(
        self, draws: np.ndarray, values: PriorValues, by: Sequence[np.ndarray]
    ) -> tuple[Any, PriorValues]:
        if by:
            assert self.batch is not None
            value, by_f = self.batch.pulled_back(self.sites, by)
        else:
            value, by_f = self.look(draws, values).of_gaussian_noise()
        assert self.cavity is not None
        cavity, memory = self.cavity, self.objective.local.hyperparameters.memory
        R, evidence = len(self.problem.earlier_Z), cavity.log_evidence
        by_evidence = float(memory == EVIDENCE) - float(self.problem.takes_over)
        by_prior = cavity.pulled_back(by_f, by_evidence)
        value += by_evidence * evidence
        self.remembered = evidence if memory == EVIDENCE else 0.0
        if memory == DIVERGENCE and R:
            among, mean = cavity.prior.among[:, :R, :R], cavity.prior.mean_points[:, :R]
            self.remembered, by_K, by_mean = cavity.observed.minus_divergence(among, mean)
            by_prior.among[:, :R, :R] += by_K
            by_prior.mean_points[:, :R] += by_mean
            value += self.remembered
        return np.float64(value), values.unstacked(by_prior)


_evaluations: dict[int, _Evaluation] = {}
"""Graphs take arrays alone, and know an evaluation by a number."""
_numbers = count()


def _inputs(number: np.ndarray, *arguments: Any) -> list[np.ndarray]:
    with np.errstate(all="ignore"):  # a line search may ask for any ε
        return _evaluations[int(number)].inputs(*arguments)


def _total(number: np.ndarray, *arguments: Any) -> tuple[Any, PriorValues]:
    with np.errstate(all="ignore"):
        return _evaluations[int(number)].total(*arguments)


class Objective:
    """The objective of one bound for one model.

    Places of points are offsets [M D] from ``problem.Z``, and ε is the optimiser variables [V] of
    the hyperparameter strategy.

    :ivar remembered: The part of the last value that is no bound of the batch but what a point ε
        remembers, in nats.
    """

    def __init__(self, bound: LocalBound, local: LocalModel) -> None:
        self.bound = bound
        self.local = local
        self.remembered = 0.0
        self._observed: tuple[Any, Observed | None] = None, None

    @one_blas_thread()
    def __call__(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> tuple[float, np.ndarray]:
        """The negative free energy, which is infinite where a covariance is not positive, and its
        gradient by offsets and variables, one after another.

        :param sites: Those on the data; of Gaussian noise none are asked for.
        """
        number, evaluation = next(_numbers), _Evaluation(self, problem, sites)
        self.observed(problem)  # here, as graphs that wait for one another may do so for ever
        _evaluations[number] = evaluation
        try:
            graph = self._graph(self._value_and_gradient)
            loss, gradient = graph(
                float(number), *self._arguments(offsets, variables, problem, sites)
            )
        finally:
            del _evaluations[number]
        self.remembered = evaluation.remembered / len(problem.noise)
        return float(loss), gradient.numpy()

    @one_blas_thread()
    def rest(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites, most: int
    ) -> Rest:
        """Sites after at most so many fixed-point steps, averaged over ε.

        :raises NumericalError: if a step is not finite, or a covariance not positive.
        """
        given = self._arguments(offsets, variables, problem, sites)
        _, draws, values = self._graph(self._prior)(0.0, *given)
        try:
            evaluation = _Evaluation(self, problem, sites)
            arrays = PriorValues(*map(np.asarray, values))
            return rest(evaluation.look(np.asarray(draws), arrays).look, sites, most)
        except np.linalg.LinAlgError:
            raise NumericalError("the local posterior covariance is not positive") from None

    def observed(self, problem: Problem) -> Observed:
        """Earlier pseudo-observations, with q of their points if a point ε remembers by it."""
        if self._observed[0] is not problem.earlier or self._observed[1] is None:
            gp = self.local.gp
            observed = Observed.of(problem.earlier, gp.num_groups, gp.num_latent // gp.num_groups)
            if self.local.hyperparameters.memory == DIVERGENCE and problem.earlier:
                prior, Z = PriorAt(self.local.prior, problem.location[None]), problem.earlier_Z
                observed = replace(observed, q=observed.held(prior.covariance(Z), prior.mean(Z)))
            self._observed = problem.earlier, observed
            return observed
        return self._observed[1]

    # ---- graphs ----

    @staticmethod
    def _arguments(
        offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> tuple[Any, ...]:
        return (
            offsets, variables, *sites, problem.X, problem.Y, problem.earlier_Z, problem.Z,
            problem.unit, problem.location, problem.scale, problem.noise,
        )  # fmt: skip

    def _graph(self, function: Callable[..., Any]) -> Any:
        local = self.local
        E, D = local.parameters.size, local.input_dim
        site = spec(None, 0 if is_conjugate(local.likelihood) else local.gp.num_latent)
        own = self.bound if isinstance(self.bound, SparseBound) else None
        return local.graphs_of_fits.compiled(
            function, spec(), spec(None), spec(None), site, site, spec(None, D),
            spec(None, local.output_dim), spec(None, D), spec(None, D), spec(D), spec(E),
            spec(E, E), spec(local.hyperparameters.num_draws, E), of=own,
        )  # fmt: skip

    def _prior(self, number: Any, offsets: Any, variables: Any, *arrays: Any) -> Any:
        """The cost of q(ε), in nats; its values of ε [S, E]; and the prior at these."""
        _, _, X, _, earlier_Z, Z, unit, *given = arrays
        local = self.local
        points = tf.concat([earlier_Z, Z + unit * tf.reshape(offsets, tf.shape(Z))], 0)
        draws = local.hyperparameters.draw(variables, *given)

        def at(epsilon: tf.Tensor) -> PriorValues:
            with local.parameters.substituted(epsilon):
                return prior_values(local, points, X)

        values: PriorValues = at_each_sample(at, draws)
        with local.parameters.substituted(draws[0]):
            penalty = local.hyperparameters.penalty(variables, local.parameters)
        return penalty, draws, values

    def _value_and_gradient(self, number: Any, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        by, (precision_mean, precision, X, Y) = arguments[:2], arguments[2:6]
        with tf.GradientTape() as tape:
            tape.watch(by)
            penalty, draws, values = self._prior(number, *arguments)
        expected, by_draws, *by_inputs = self._of_data(
            number, draws, values, Sites(precision_mean, precision), X, Y
        )
        total, by_values = in_numpy(_total, (number, draws, values, *by_inputs), (number, values))
        total += tf.reduce_sum(expected)
        share = -1.0 / tf.cast(tf.shape(draws)[0], draws.dtype)
        gradients = tape.gradient(
            [penalty, draws, *values], by, unconnected_gradients="zero",
            output_gradients=[tf.ones_like(penalty), *(share * g for g in (by_draws, *by_values))],
        )  # fmt: skip
        return penalty + share * tf.reshape(total, []), tf.concat(gradients, 0)

    def _of_data(
        self, number: Any, draws: Any, values: Any, sites: Sites, X: Any, Y: Any
    ) -> list[tf.Tensor]:
        """TensorFlow's part of the bound [S], and its derivatives by ε and its other arguments."""
        local = self.local
        is_own = isinstance(self.bound, SparseBound)
        if is_conjugate(local.likelihood) and not is_own:
            return [tf.zeros_like(draws[:, 0]), tf.zeros_like(draws)]
        moment = spec(None, None, local.gp.num_latent)
        forms = _signature(local)[4:] if is_own else (moment, moment)
        inputs = in_numpy(_inputs, (number, draws, values), [None] * len(forms))
        inputs = [
            tf.ensure_shape(*pair)
            for pair in zip(inputs, (one.shape for one in forms), strict=True)
        ]
        if isinstance(self.bound, SparseBound):
            return list(_of_own(local, self.bound, draws, sites, X, Y, *inputs))
        return list(local.expected_tensors(draws, X, Y, *inputs))
