"""The objective of a local fit: the free energy of a batch, by ε's variables and places of points.

One graph of TensorFlow has the prior at S values of ε, the expected log likelihood, and the
gradients of both. Between them stands linear algebra in NumPy, which the graph calls: the batch
under its cavity, a bound of it, and both backwards. Each graph is traced once for a kind of model,
with unknown sizes, so that a stream of any length neither retraces nor leaks. TensorFlow's graphs
take arrays alone; an evaluation is what its parts in NumPy share, and they know it by a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.fit.bounds import (
    ClosedForm,
    LocalBound,
    LocalFunction,
    SparseBound,
    Variational,
)
from streaming_gp.gp.fit.cavity import (
    Conditioned,
    Memory,
    Observed,
    PriorValues,
    TakenOver,
    UnderCavity,
    prior_values,
)
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.sites import Look, Rest, Sites, expected_log_density, is_conjugate, rest
from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.graphs import FLOAT, at_each_sample, in_numpy, spec
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.numerics.linalg import solve_lower
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

    def moved(self, offsets: Any) -> Any:
        """The points [M, D], from their offsets [M D]."""
        return self.Z + self.unit * np.reshape(offsets, self.Z.shape)

    @cached_property
    def earlier_Z(self) -> np.ndarray:
        """Points of what is earlier [R, D]."""
        nothing = np.zeros((0, self.X.shape[1]))
        return np.concatenate([nothing, *(one.Z for one in self.earlier)])

    def tensors(self) -> tuple[np.ndarray, ...]:
        """The arrays that graphs take."""
        return (
            self.X, self.Y, self.earlier_Z, self.Z, self.unit,
            self.location, self.scale, self.noise,
        )  # fmt: skip


def memory_of(local: LocalModel) -> Memory:
    """The terms of what is known already in the objectives of a model."""
    memory = local.hyperparameters.memory
    evidence, divergence = memory(lambda: 1.0, lambda: 0.0), memory(lambda: 0.0, lambda: 1.0)
    return Memory(float(evidence), float(divergence))


def observed_by(
    local: LocalModel, earlier: tuple[PseudoObservations, ...], epsilon: np.ndarray, memory: Memory
) -> list[Observed]:
    """Earlier pseudo-observations in each group; with q of their points at ε [E] if it is asked
    for.
    """
    groups, columns = local.gp.num_groups, local.gp.num_latent // local.gp.num_groups
    observed = [Observed.of(earlier, group, columns) for group in range(groups)]
    if not memory.divergence or not earlier:
        return observed
    Z = np.concatenate([one.Z for one in earlier])
    prior = PriorAt(local.prior, epsilon[None])
    return [
        replace(one, q=one.held(k, m))
        for one, k, m in zip(observed, prior.covariance(Z), prior.mean(Z), strict=True)
    ]


@dataclass(eq=False)
class _Evaluation:
    """One evaluation of an objective, in NumPy: arrays of the prior in, arrays of a bound out."""

    bound: LocalBound
    problem: Problem
    sites: Sites
    observed: list[Observed]
    memory: Memory
    groups: list[Conditioned | TakenOver] = field(default_factory=list)
    batches: list[UnderCavity] = field(default_factory=list)
    posteriors: list[Any] = field(default_factory=list)
    remembered: float = 0.0
    """The memory's terms, in nats, summed over ε."""
    is_lost: bool = False
    """Whether a covariance was not positive."""

    @property
    def num_taken_over(self) -> int:
        """The number of earlier pseudo-observations that the points take over."""
        return len(self.problem.earlier_Z) if self.problem.takes_over else 0

    def look(self, values: PriorValues) -> None:
        """The batch under its cavity in every group.

        :raises numpy.linalg.LinAlgError: if a covariance is not positive.
        """
        problem, has_points = self.problem, self.bound.has_points
        self.groups = []
        for index, one in enumerate(self.observed):
            prior = values.of_group(index)
            if problem.takes_over:
                R = len(one.nugget)
                shared = problem.shared_nugget * np.eye(R, prior.among.shape[1] - R)
                self.groups.append(TakenOver(one, prior, shared))
            else:
                self.groups.append(Conditioned(one, prior, has_points))
        nugget = problem.nugget if has_points else 0.0
        self.batches = [group.batch(nugget) for group in self.groups]

    def constant(self) -> float:
        """The constant beside the bound of the batch, in nats, summed over ε."""
        evidence = sum(group.log_evidence for group in self.groups)
        self.remembered = self.memory.evidence * evidence
        if self.memory.divergence and self.num_points:
            self.remembered += sum(self._divergence(group)[0] for group in self.groups)
        return self.remembered - (evidence if self.problem.takes_over else 0.0)

    @property
    def num_points(self) -> int:
        """The number of earlier points."""
        return len(self.problem.earlier_Z)

    def _divergence(self, group: Conditioned | TakenOver) -> tuple[float, np.ndarray, np.ndarray]:
        R, prior = self.num_points, group.prior
        return group.observed.minus_divergence(prior.among[:, :R, :R], prior.mean_points[:, :R])

    def back(self, values: PriorValues, by: list[UnderCavity]) -> PriorValues:
        """Derivatives by the prior's values, from those by the batch in every group."""
        by_evidence = self.memory.evidence - float(self.problem.takes_over)
        parts, R = [], self.num_points
        for group, one in zip(self.groups, by, strict=True):
            part = group.pulled_back(one, by_evidence)
            if self.memory.divergence and R:
                _, by_K, by_mean = self._divergence(group)
                part.among[:, :R, :R] += self.memory.divergence * by_K
                part.mean_points[:, :R] += self.memory.divergence * by_mean
            parts.append(part)
        return values.gathered(parts)

    def targets(self, index: int, columns: np.ndarray) -> np.ndarray:
        """Observations of a group, those that are taken over after the data."""
        if not self.problem.takes_over:
            return columns
        return np.concatenate([columns, self.observed[index].targets])

    def sites_of(self, sites: Sites, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Sites [1, N + R] of one latent function; last those of what is taken over."""
        parts = [part[:, index] for part in sites]
        if self.problem.takes_over:
            earlier = self.observed[index].targets[:, 0], np.ones(self.num_points)
            parts = [np.concatenate(pair) for pair in zip(parts, earlier, strict=True)]
        return parts[0][None], parts[1][None]

    # ---- what graphs call ----

    def collapsed(self, values: PriorValues) -> tuple[Any, PriorValues]:
        """The bound for Gaussian noise, summed over ε, and derivatives."""
        assert isinstance(self.bound, ClosedForm)
        self.look(values)
        columns = np.split(self.problem.Y, len(self.groups), axis=1)
        parts = [
            self.bound.value_and_gradient(f, self.targets(index, Y), self.num_taken_over)
            for index, (f, Y) in enumerate(zip(self.batches, columns, strict=True))
        ]
        total = self.constant() + sum(value for value, _ in parts)
        return np.float64(total), self.back(values, [by for _, by in parts])

    def posterior(self, values: PriorValues) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances [S, N, L] of q(f) at the data for the sites."""
        assert isinstance(self.bound, ClosedForm)
        self.look(values)
        return self.moments([self.bound.prepared(f) for f in self.batches], self.sites)

    def moments(self, prepared: list[UnderCavity], sites: Sites) -> tuple[np.ndarray, np.ndarray]:
        """The same for other sites."""
        assert isinstance(self.bound, ClosedForm)
        self.posteriors = [
            self.bound.posterior(f, *self.sites_of(sites, index))
            for index, f in enumerate(prepared)
        ]
        N = len(self.problem.X)
        mean = np.stack([q.mean[:, :N] for q in self.posteriors], axis=2)
        return mean, np.stack([q.variance[:, :N] for q in self.posteriors], axis=2)

    def without_data(
        self, values: PriorValues, by_mean: np.ndarray, by_variance: np.ndarray
    ) -> tuple[Any, PriorValues]:
        """The free energy without what is expected of the data, and all derivatives.

        :param by_mean: Those of what is expected of the data [S, N, L].
        :param by_variance: Likewise.
        """
        assert isinstance(self.bound, ClosedForm)
        total, by, N = self.constant(), [], len(self.problem.X)
        for index, q in enumerate(self.posteriors):
            of_mean, of_variance = by_mean[:, :, index], by_variance[:, :, index]
            if self.problem.takes_over:
                error = self.observed[index].targets[:, 0] - q.mean[:, N:]
                total -= 0.5 * float(np.sum(error**2) + np.sum(q.variance[:, N:]))
                of_mean = np.concatenate([of_mean, error], axis=1)
                of_variance = np.concatenate([of_variance, np.full_like(error, -0.5)], axis=1)
            total -= q.kl
            sites = self.sites_of(self.sites, index)
            by.append(self.bound.pulled_back(q, *sites, of_mean, of_variance))
        return np.float64(total), self.back(values, by)

    def function(self, values: PriorValues) -> list[np.ndarray]:
        """f at points and data [S, G, ...]; the targets of what is taken over [G, R, C]."""
        self.look(values)
        number = self.num_taken_over
        targets = np.stack([one.targets[:number] for one in self.observed])
        return [*(np.stack(part, axis=1) for part in zip(*self.batches, strict=True)), targets]

    def of_function(self, values: PriorValues, *by: np.ndarray) -> tuple[Any, PriorValues]:
        """The free energy without the bound, and all derivatives from those of the bound."""
        groups = [UnderCavity(*(one[:, g] for one in by)) for g in range(len(self.groups))]
        return np.float64(self.constant()), self.back(values, groups)


_evaluations: dict[int, _Evaluation] = {}
_numbers = count()


def _part(name: str) -> Callable[..., Any]:
    """A part of an evaluation, by the evaluation's number.

    Where a covariance is not positive, this and all later parts are such that the free energy is
    minus infinity.
    """

    def part(number: np.ndarray, values: PriorValues, *rest: np.ndarray) -> Any:
        evaluation = _evaluations[int(number)]
        with np.errstate(all="ignore"):  # a line search may ask for any ε
            try:
                if not evaluation.is_lost:
                    return getattr(evaluation, name)(values, *rest)
            except np.linalg.LinAlgError:
                evaluation.is_lost = True
        if name == "posterior":
            shape = len(values.among), *evaluation.sites.precision.shape
            return np.zeros(shape), np.ones(shape)
        if name == "function":
            return _anything(evaluation, values)
        return np.float64(-np.inf), PriorValues(*map(np.zeros_like, values))

    return part


def _anything(evaluation: _Evaluation, values: PriorValues) -> list[np.ndarray]:
    """Arrays of the right shapes."""
    S, R, C = len(values.among), len(evaluation.problem.earlier_Z), values.mean_data.shape[3]
    G, M = len(evaluation.observed), values.among.shape[2] - R
    N = len(evaluation.problem.X) + evaluation.num_taken_over
    among, between = np.broadcast_to(np.eye(M), (S, G, M, M)), np.zeros((S, G, M, N))
    ones = np.ones((S, G, N))
    targets = np.zeros((G, evaluation.num_taken_over, C))
    return [among.copy(), between, ones, np.zeros((S, G, N, C)), ones.copy(), targets]


_COLLAPSED, _POSTERIOR, _WITHOUT_DATA, _FUNCTION, _OF_FUNCTION = map(
    _part, ("collapsed", "posterior", "without_data", "function", "of_function")
)


class Objective:
    """The objective of one bound for one model.

    Places of points are offsets [M D] from ``problem.Z``, and ε is the optimiser variables [V] of
    the hyperparameter strategy.

    :param bound: The local bound.
    :param local: The model.
    :ivar remembered: The memory's terms in the last value, in nats.
    """

    def __init__(self, bound: LocalBound, local: LocalModel) -> None:
        self.bound = bound
        self.local = local
        self.memory = memory_of(local)
        self.remembered = 0.0
        self._observed: tuple[Any, list[Observed]] = (None, [])

    @one_blas_thread()
    def __call__(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites, move: bool
    ) -> tuple[float, np.ndarray]:
        """The negative free energy, which is infinite where a covariance is not positive, and its
        gradient.

        :param sites: Those on the data; of Gaussian noise none are asked for.
        :param move: Whether the gradient is by the offsets and the variables, one after another;
            otherwise it is by the variables alone.
        """
        evaluation = self._evaluation(problem, sites)
        graph = self._graph(self._by_all if move else self._by_epsilon)
        loss, gradient = self._run(evaluation, graph, offsets, variables)
        self.remembered = evaluation.remembered / len(problem.noise)
        return float(loss), gradient.numpy()

    @one_blas_thread()
    def rest(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites, most: int
    ) -> Rest:
        """Sites after at most so many fixed-point steps, averaged over ε.

        :raises NumericalError: if a step is not finite, or a covariance not positive.
        """
        evaluation = self._evaluation(problem, sites)
        if isinstance(self.bound, SparseBound):  # with steps of ordinary sparse inference
            evaluation.bound = Variational()
        _, draws, values = self._run(evaluation, self._graph(self._prior), offsets, variables)
        arrays = PriorValues(*(one.numpy() for one in values))
        try:
            evaluation.look(arrays)
            assert isinstance(evaluation.bound, ClosedForm)
            prepared = [evaluation.bound.prepared(f) for f in evaluation.batches]

            def step(now: Sites) -> Look:
                moments = evaluation.moments(prepared, now)
                look = self.local.at_data.look(draws, problem.X, problem.Y, *moments)
                return look._replace(expected=look.expected / len(problem.noise))

            return rest(step, sites, most)
        except np.linalg.LinAlgError:
            raise NumericalError("the local posterior covariance is not positive") from None

    def _evaluation(self, problem: Problem, sites: Sites) -> _Evaluation:
        if self._observed[0] is not problem.earlier:
            observed = observed_by(self.local, problem.earlier, problem.location, self.memory)
            self._observed = problem.earlier, observed
        return _Evaluation(self.bound, problem, sites, self._observed[1], self.memory)

    def _run(
        self, evaluation: _Evaluation, graph: Any, offsets: np.ndarray, variables: np.ndarray
    ) -> Any:
        """The output of a graph, while it can find the evaluation by its number."""
        number = next(_numbers)
        _evaluations[number] = evaluation
        try:
            problem, sites = evaluation.problem, evaluation.sites
            return graph(float(number), offsets, variables, *sites, *problem.tensors())
        finally:
            del _evaluations[number]

    # ---- graphs ----

    def _graph(self, function: Callable[..., Any]) -> Any:
        local = self.local
        E, D, L = local.parameters.size, local.input_dim, local.gp.num_latent
        data, points = (spec(None, D), spec(None, local.output_dim)), spec(None, D)
        draws = spec(E), spec(E, E), spec(local.hyperparameters.num_draws, E)
        signature = (
            spec(), spec(None), spec(None), spec(None, L if self._has_sites else 0),
            spec(None, L if self._has_sites else 0), *data, points, points, spec(D), *draws,
        )  # fmt: skip
        own = self.bound if isinstance(self.bound, SparseBound) else self.bound.has_points
        return local.graphs_of_fits.compiled(function, *signature, of=own)

    @property
    def _has_sites(self) -> bool:
        return not is_conjugate(self.local.likelihood)

    def _prior(self, number: Any, offsets: Any, variables: Any, *arrays: Any) -> Any:
        """The cost of q(ε), in nats; its values of ε [S, E]; and the prior at these."""
        _, _, X, _, earlier_Z, Z, unit, location, scale, noise = arrays
        local, has_points = self.local, self.bound.has_points
        own = Z + unit * tf.reshape(offsets, tf.shape(Z)) if has_points else X
        points = tf.concat([earlier_Z, own], 0)
        draws = local.hyperparameters.draw(variables, location, scale, noise)

        def at(epsilon: tf.Tensor) -> PriorValues:
            with local.parameters.substituted(epsilon):
                return prior_values(local, points, X, has_points)

        values: PriorValues = at_each_sample(at, draws)
        with local.parameters.substituted(draws[0]):
            penalty = local.hyperparameters.penalty(variables, local.parameters)
        return penalty, draws, values

    def _by_all(self, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss, gradients = self._differentiated(slice(1, 3), *arguments)
        return loss, tf.concat(gradients, 0)

    def _by_epsilon(self, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        loss, (gradient,) = self._differentiated(slice(2, 3), *arguments)
        return loss, gradient

    def _differentiated(self, by: slice, *arguments: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        number, *_, noise = arguments
        with tf.GradientTape() as tape:
            tape.watch(arguments[by])
            penalty, draws, values = self._prior(*arguments)
        if isinstance(self.bound, SparseBound):
            total, by_draws, by_values = self._of_own(self.bound, draws, values, *arguments)
        elif self._has_sites:
            total, by_draws, by_values = self._at_sites(draws, values, *arguments)
        else:
            by_draws = tf.zeros_like(draws)
            total, by_values = in_numpy(_COLLAPSED, (number, values), (number, values))
        share = -1.0 / tf.cast(tf.shape(noise)[0], FLOAT)
        by_prior = [share * one for one in (by_draws, *by_values)]
        gradients = tape.gradient(
            [penalty, draws, *values], arguments[by], unconnected_gradients="zero",
            output_gradients=[tf.ones_like(penalty), *by_prior],
        )  # fmt: skip
        return penalty + share * tf.reshape(total, []), gradients

    def _at_sites(self, draws: Any, values: Any, number: Any, *arrays: Any) -> Any:
        """The free energy at given sites in closed form, and its derivatives by ε and the prior."""
        X, Y = arrays[4:6]
        moments = in_numpy(_POSTERIOR, (number, values), (None, None))
        shape = [None, None, self.local.gp.num_latent]
        moments = [tf.ensure_shape(one, shape) for one in moments]
        expected, by_draws, *by_moments = self.local.at_data.differentiated(draws, X, Y, *moments)
        given = number, values, *by_moments
        rest, by_values = in_numpy(_WITHOUT_DATA, given, (number, values))
        return tf.reduce_sum(expected) + tf.reshape(rest, []), by_draws, by_values

    def _of_own(
        self, bound: SparseBound, draws: Any, values: Any, number: Any, *arrays: Any
    ) -> Any:
        """The free energy of a bound of one's own, which TensorFlow differentiates."""
        _, _, precision_mean, precision, X, Y = arrays[:6]
        *parts, targets = in_numpy(_FUNCTION, (number, values), [None] * 6)
        S, G = draws.shape[0], self.local.gp.num_groups
        ranks = (4, 4, 3, 4, 3)
        parts = [
            tf.ensure_shape(one, [S, G, *[None] * (rank - 2)])
            for one, rank in zip(parts, ranks, strict=True)
        ]
        C = self.local.gp.num_latent // G
        targets = tf.ensure_shape(targets, [G, None, C])
        sites = Sites(precision_mean, precision)

        def at(epsilon: tf.Tensor, *f: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.GradientTape() as tape:
                tape.watch((epsilon, *f))
                with self.local.parameters.substituted(epsilon):
                    given = local_function(self.local, bound, UnderCavity(*f), targets, sites, X, Y)
                    value = bound.free_energy(given)
            return value, *tape.gradient(value, (epsilon, *f), unconnected_gradients="zero")

        value, by_draws, *by_f = at_each_sample(at, draws, *parts)
        rest, by_values = in_numpy(_OF_FUNCTION, (number, values, *by_f), (number, values))
        return tf.reduce_sum(value) + tf.reshape(rest, []), by_draws, by_values


def local_function(
    local: LocalModel,
    bound: SparseBound,
    f: UnderCavity,
    targets: tf.Tensor,
    sites: Sites,
    X: tf.Tensor,
    Y: tf.Tensor,
) -> LocalFunction:
    """The arguments of a bound of one's own, at the ε that the parameters hold.

    :param f: f at points and data [G, ...], as tensors.
    :param targets: Of earlier pseudo-observations that the points take over [G, R, C].
    :param sites: Those on the data, unless their noise is Gaussian.
    """
    N, groups = tf.shape(X)[0], local.gp.num_groups
    if is_conjugate(local.likelihood):
        A = solve_lower(tf.linalg.cholesky(f.among), f.between)
        left = tf.maximum(f.variance - tf.reduce_sum(tf.square(A), -2), 0.0)
        w = bound.site_precision(f.noise[:, :N], left[:, :N])
        precision_mean = w[..., None] * cov.to_groups(Y, groups)
    else:
        precision_mean = cov.to_groups(tf.convert_to_tensor(sites.precision_mean), groups)
        w = cov.to_groups(tf.convert_to_tensor(sites.precision), groups)[:, :, 0]

    def expected(mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
        moments = (
            cov.from_groups(mean, local.gp.num_latent),
            cov.spread_over_latents(variance, local.gp.num_latent),
        )
        return expected_log_density(local.likelihood, X, *moments, Y)

    return LocalFunction(
        f.among, f.between, f.variance, f.mean,
        tf.concat([w, tf.ones_like(targets[:, :, 0])], 1),
        tf.concat([precision_mean, targets], 1), expected, N,
    )  # fmt: skip
