"""Bounds of the paper's own forms, whose earlier points are frozen: q(u) is kept whatever ε.

q(u) = N(m, S Sᵀ) over all points so far. Given ε, f is ``m(x) + k(x, Z) K⁻¹ (u − m(Z))`` with
u ~ q(u), plus what the points leave open (PVI 2018, eq. 89). What is new is the Gaussian
q(b | a) of new points given frozen ones that is best for all values of ε at once:
``q(b | a) ∝ exp E_q(ε)[log p(b | a, ε) + Σ_n E log t_n(f_n)]``, whose natural parameters are
averages over q(ε) for Gaussian sites. TensorFlow differentiates these bounds.

Two have this form. Conditional points (eqs. 89 and 94) add q(b | a) for each batch, and (a, b) are
independent of ε in the posterior. Independent points (app. C.3) have new points b in the place of
a, where the posterior so far is ``p(f | a, ε) q(a) q(ε)`` and says ``q(a) / p(a | ε)`` of all
earlier data.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp.fit.bounds import LocalBound
from streaming_gp.gp.fit.cavity import PriorValues, prior_values
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.objective import Problem
from streaming_gp.gp.fit.points import Inputs
from streaming_gp.gp.fit.sites import Look, Rest, Sites, expected_log_density, is_conjugate, rest
from streaming_gp.gp.process import prior as cov
from streaming_gp.gp.process.graphs import at_each_sample, spec
from streaming_gp.gp.process.observations import ConditionalPseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.tensors import Conditioned, GaussianProcess
from streaming_gp.numerics import stacks
from streaming_gp.numerics.linalg import (
    add_to_diagonal,
    logdet_from_cholesky,
    solve_lower,
    solve_lower_transposed,
)
from streaming_gp.numerics.shapes import check_shapes
from streaming_gp.numerics.stacks import transposed
from streaming_gp.serialization import storable

SAYS_NOTHING = 1e20
"""Nugget of a point that stands in for none at all, and its variance under q(u)."""


class FrozenStack(NamedTuple):
    """q(u) that is kept whatever ε: Z [R, D], mean [G, R, C], scale S [G, R, R], nugget [R]."""

    Z: tf.Tensor
    mean: tf.Tensor
    scale: tf.Tensor
    nugget: tf.Tensor


class PriorBlocks(NamedTuple):
    """The prior of new points b, frozen ones a and the batch f at S values of ε, and the sites.

    Covariances [S, G, ·, ·], of which those of b and a have their nuggets, the variance of f
    [S, G, N], means [S, G, ·, C], and the sites: w [S, G, 1, N] and λ [S, G, N, C]. Those of noise
    that is not Gaussian are the same for all ε: their S is one.
    """

    K_b: tf.Tensor
    K_ab: tf.Tensor
    K_a: tf.Tensor
    K_bf: tf.Tensor
    K_af: tf.Tensor
    variance: tf.Tensor
    mean_b: tf.Tensor
    mean_a: tf.Tensor
    mean_f: tf.Tensor
    w: tf.Tensor
    site_mean: tf.Tensor


def prior_blocks(
    local: LocalModel, draws: tf.Tensor, Z: tf.Tensor, problem: FrozenProblem, sites: Sites
) -> PriorBlocks:
    """The blocks at values of ε [S, E], for new points Z [M, D].

    Only the prior is asked for one ε after another: the algebra of stacks is a smaller graph.
    """
    stack, M = problem.stack, tf.shape(Z)[0]
    points = tf.concat([Z, stack.Z], 0)

    def at(epsilon: tf.Tensor) -> PriorValues:
        with local.parameters.substituted(epsilon):
            return prior_values(local, points, problem.X)

    groups = local.gp.num_groups
    *covariances, mean_points, mean_f, noise = at_each_sample(at, draws)
    among, between, variance = (_of_every_group(part, groups) for part in covariances)
    if is_conjugate(local.likelihood):
        w = 1.0 / noise
        site_mean = cov.to_groups(problem.Y, groups) * w[..., None]
    else:
        site_mean, precision = (cov.to_groups(part, groups)[None] for part in sites)
        w = precision[..., 0]
    sizes = [M, tf.shape(stack.Z)[0]]
    of_b, of_a = tf.split(among, sizes, axis=2)
    K_ab, K_a = tf.split(of_a, sizes, axis=3)
    K_bf, K_af = tf.split(between, sizes, axis=2)
    mean_b, mean_a = tf.split(mean_points, sizes, axis=2)
    K_b = add_to_diagonal(of_b[..., :M], problem.nugget * tf.ones([M], among.dtype))
    K_a = add_to_diagonal(K_a, stack.nugget)
    means = mean_b, mean_a, mean_f
    return PriorBlocks(
        K_b, K_ab, K_a, K_bf, K_af, variance, *means, tf.expand_dims(w, 2), site_mean
    )


def _of_every_group(covariance: tf.Tensor, groups: int) -> tf.Tensor:
    """[S, K, ...] → [S, G, ...], also where all groups have one kernel."""
    return covariance if covariance.shape[1] == groups else tf.repeat(covariance, groups, axis=1)


class GivenPoints(NamedTuple):
    """Batch and new points given the frozen ones, at each of S values of ε [S, ...].

    p(b | η) = N(at_b, L Lᵀ) and f_n = at_f + Jᵀ(b − at_b) + noise of variance ``left``, for
    L [G, M, M], J [G, M, N] and left [G, N]; site precision w [G, 1, N] and λ [G, N, C].
    Regressions on (1, η) are held as their C intercepts and R slopes: at_b [G, M, C + R] and
    at_f [G, N, C + R].
    """

    at_b: tf.Tensor
    at_f: tf.Tensor
    chol: tf.Tensor
    J: tf.Tensor
    left: tf.Tensor
    w: tf.Tensor
    site_mean: tf.Tensor

    @property
    def num_columns(self) -> int:
        """C, the number of latent functions of a group."""
        return int(self.site_mean.shape[-1])


class FreeForm(NamedTuple):
    """q(b | a): lower factor of its precision [G, M, M], and the regression of its mean on (1, η)
    [G, M, C + R].
    """

    chol: tf.Tensor
    regression: tf.Tensor


def natural_parameters(given: GivenPoints) -> tuple[tf.Tensor, tf.Tensor]:
    """Precision of b [..., G, M, M], and its product with the mean, as a regression on (1, η)
    [..., G, M, C + R].
    """
    J, w = given.J, given.w
    ones = tf.ones_like(tf.linalg.diag_part(given.chol))
    prior = tf.linalg.cholesky_solve(given.chol, tf.linalg.diag(ones))
    precision = prior + tf.matmul(J * w, J, transpose_b=True)
    slopes = tf.shape(given.at_f)[-1] - given.num_columns
    site = tf.pad(given.site_mean, [[0, 0], [0, 0], [0, 0], [0, slopes]])
    shown = site - tf.linalg.matrix_transpose(w) * given.at_f
    return precision, tf.matmul(precision, given.at_b) + tf.matmul(J, shown)


def moments_at_data(given: GivenPoints, q_b: FreeForm) -> tuple[tf.Tensor, tf.Tensor]:
    """Means [..., G, N, C] and variances [..., G, N] of f at the data, η and b integrated out."""
    J, C = given.J, given.num_columns
    at = given.at_f + tf.matmul(J, q_b.regression - given.at_b, transpose_a=True)
    spread = tf.reduce_sum(tf.square(solve_lower(q_b.chol, J)), -2)
    return at[..., :C], given.left + tf.reduce_sum(tf.square(at[..., C:]), -1) + spread


def divergence(given: GivenPoints, q_b: FreeForm) -> tf.Tensor:
    """``E_q(a) KL(q(b | a) ‖ p(b | a, ε))`` [...], in nats."""
    C = given.num_columns
    ones = tf.ones_like(tf.linalg.diag_part(q_b.chol))
    root = solve_lower_transposed(q_b.chol, tf.linalg.diag(ones))
    moved = tf.square(solve_lower(given.chol, q_b.regression - given.at_b))
    trace, slope, mean = (
        tf.reduce_sum(part, [-3, -2, -1])
        for part in (tf.square(solve_lower(given.chol, root)), moved[..., C:], moved[..., :C])
    )
    logdets = logdet_from_cholesky(given.chol) + logdet_from_cholesky(q_b.chol)
    return 0.5 * (C * (trace + slope + tf.reduce_sum(logdets, -1) - tf.reduce_sum(ones)) + mean)


class FrozenGaussianProcess(GaussianProcess):
    """A process that rests on frozen points: ``u = m + S η`` with η ~ N(0, I).

    A projection is [V; U] with ``V = L⁻¹ k(Z, X)``, ``K = L Lᵀ`` and ``U = Sᵀ L⁻ᵀ V``: the
    covariance is ``k(x, x') − VᵀV + UᵀU``.
    """

    def stack(
        self, observations: tuple[ConditionalPseudoObservations, ...], input_dim: int
    ) -> FrozenStack:
        if not observations:
            G, C = self.num_groups, self.num_latent // self.num_groups
            scale = np.full((G, 1, 1), np.sqrt(SAYS_NOTHING))
            arrays = np.zeros((1, input_dim)), np.zeros((G, 1, C)), scale
            return FrozenStack(*map(tf.constant, (*arrays, np.array([SAYS_NOTHING]))))
        Z = np.concatenate([one.Z for one in observations])
        mean = np.concatenate([one.intercept for one in observations], axis=1)
        nugget = np.concatenate([np.full(len(one.Z), one.nugget) for one in observations])
        scale, start = np.zeros((self.num_groups, len(Z), len(Z))), 0
        for one in observations:
            stop = start + len(one.Z)
            scale[:, start:stop, :start], scale[:, start:stop, start:stop] = one.slope, one.scale
            start = stop
        return FrozenStack(*map(tf.constant, (Z, mean, scale, nugget)))

    def stack_spec(self, input_dim: int) -> FrozenStack:
        G, C = self.num_groups, self.num_latent // self.num_groups
        return FrozenStack(spec(None, input_dim), spec(G, None, C), spec(G, None, None), spec(None))

    @check_shapes("stack.Z: [R, D]", "return.chol: [., R, R]", "return.white: [G, R, C]")
    def condition(self, stack: FrozenStack) -> Conditioned:
        """The factor of p(u | ε), and by it the whitened mean of q(u)."""
        K = add_to_diagonal(cov.covariance(self.kernel, stack.Z), stack.nugget)
        chol = tf.linalg.cholesky(K)
        residual = stack.mean - cov.to_groups(self.prior_mean(stack.Z), self.num_groups)
        return Conditioned(chol, solve_lower(chol, residual))

    def expected_log_prior(self, stack: FrozenStack) -> tf.Tensor:
        """``E_q(u)[log p(u | ε)]``, but for its 2π (PVI 2018, eq. 93): [], in nats."""
        chol, white = self.condition(stack)
        spread = tf.reduce_sum(tf.square(solve_lower(chol, stack.scale)))
        columns = tf.cast(self.num_latent // self.num_groups, chol.dtype)
        logdet = tf.reduce_sum(logdet_from_cholesky(tf.broadcast_to(chol, tf.shape(stack.scale))))
        return -0.5 * (columns * (logdet + spread) + tf.reduce_sum(tf.square(white)))

    def project(self, stack: FrozenStack, conditioned: Conditioned, X: tf.Tensor) -> tf.Tensor:
        V = solve_lower(conditioned.chol, cov.covariance(self.kernel, stack.Z, X))
        K_solved = solve_lower_transposed(conditioned.chol, V)
        U = tf.matmul(stack.scale, K_solved, transpose_a=True)
        return tf.concat([tf.broadcast_to(V, tf.shape(U)), U], axis=1)

    def mean(self, conditioned: Conditioned, V: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        return super().mean(conditioned, open_and_frozen(V)[0], X)

    def variance(self, V: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        lost, kept = open_and_frozen(V)
        return super().variance(lost, X) + tf.reduce_sum(tf.square(kept), axis=-2)

    def covariance(self, V: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
        lost, kept = open_and_frozen(V)
        return super().covariance(lost, X) + tf.matmul(kept, kept, transpose_a=True)

    def log_normaliser(self, stack: Any, conditioned: Conditioned) -> tf.Tensor:
        """q(u) is normalised."""
        return tf.zeros([], tf.float64)


def open_and_frozen(projection: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """V and U [G, R, N] of a projection [G, 2R, N]."""
    of_open, of_frozen = tf.split(projection, 2, axis=1)
    return of_open, of_frozen


# ---- the bounds, and their objectives ----


class FrozenProblem(NamedTuple):
    """A batch of X [N, D] and Y [N, P] whose points have this nugget [], beside frozen ones; ε was
    at a location [E] before.
    """

    X: tf.Tensor
    Y: tf.Tensor
    stack: FrozenStack
    nugget: tf.Tensor
    location: tf.Tensor


class FrozenBound(LocalBound, abc.ABC):
    """A bound of q(b | a) at its free-form optimum. Its functions are compiled."""

    def gaussian_process(
        self,
        kernel: Any,
        mean_function: Any,
        num_latent: int,
        num_groups: int,
        likelihood: Any = None,
    ) -> GaussianProcess:
        return FrozenGaussianProcess(kernel, mean_function, num_latent, num_groups)

    @abc.abstractmethod
    def optimum(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        Z: tf.Tensor,
        problem: FrozenProblem,
        sites: Sites,
    ) -> tuple[GivenPoints, FreeForm, Callable[[FreeForm], tf.Tensor]]:
        """Batch and points at S values of ε; q(b | a) where the bound, averaged over them, is
        largest; and what this says of all else than the data, in nats, of all of them [S].
        """


class FrozenObjective:
    """The objective of such a bound for one model; as :class:`.Objective`."""

    def __init__(self, bound: FrozenBound, local: LocalModel) -> None:
        self.bound = bound
        self.local = local
        self.remembered = 0.0  # these report what is known as a part of the bound

    def __call__(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> tuple[float, np.ndarray]:
        loss, gradient = self._call(self._with_gradient, offsets, variables, problem, sites)
        return float(loss), gradient.numpy()

    def rest(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites, most: int
    ) -> Rest:
        """:raises NumericalError: if a step is not finite."""

        def step(now: Sites) -> Look:
            draws, *moments = self._call(self._moments, offsets, variables, problem, now)
            return self.local.look(draws, problem.X, problem.Y, *map(np.asarray, moments))

        return rest(step, sites, most)

    def pseudo_observations(
        self, offsets: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> tuple[ConditionalPseudoObservations, float]:
        """The pseudo-observations q(b | a) = N(c + A η, W Wᵀ) of a solution, and the variance of f
        at the data that the points leave, over that of the sites: a mean.

        :raises NumericalError: if a covariance was not positive.
        """
        parts = self._call(self._summary, offsets, variables, problem, sites)
        chol, regression, left, w = (one.numpy() for one in parts)
        if not all(np.isfinite(one).all() for one in (chol, regression)):
            raise NumericalError("the conditional covariance of the pseudo-points is not positive")
        identity = np.broadcast_to(np.eye(chol.shape[1]), chol.shape)
        scale = stacks.solve(chol, identity, transposed=True)
        intercept, slope = np.split(regression, [self.local.gp.num_latent // len(chol)], axis=2)
        slope = slope[:, :, : len(problem.earlier_Z)]  # of no earlier points there is one in place
        said = ConditionalPseudoObservations(
            problem.moved(offsets), intercept, slope, scale, problem.nugget
        )
        return said, float(np.mean(left / (1.0 / w + problem.nugget)))

    # ---- graphs ----

    def _call(
        self,
        function: Callable[..., Any],
        offsets: np.ndarray,
        variables: np.ndarray,
        problem: Problem,
        sites: Sites,
    ) -> Any:
        local = self.local
        D, E, L = local.input_dim, local.parameters.size, local.gp.num_latent
        stack = local.gp.stack(problem.earlier, D)
        frozen = FrozenProblem(
            spec(None, D), spec(None, local.output_dim), local.gp.stack_spec(D), spec(), spec(E)
        )
        site = spec(None, 0 if is_conjugate(local.likelihood) else L)
        signature = (
            spec(None, D), spec(None), frozen, Sites(site, site), spec(None, D), spec(D),
            spec(E, E), spec(local.hyperparameters.num_draws, E),
        )  # fmt: skip
        graph = local.graphs_of_fits.compiled(function, *signature, of=self.bound)
        given = FrozenProblem(
            problem.X, problem.Y, stack, np.float64(problem.nugget), problem.location
        )
        start = problem.Z, problem.unit, problem.scale, problem.noise
        places = np.reshape(offsets, problem.Z.shape)
        return graph(places, variables, given, sites, *start)

    def _optimum(
        self, offsets: Any, variables: Any, problem: FrozenProblem, sites: Sites,
        Z: Any, unit: Any, scale: Any, noise: Any,
    ) -> Any:  # fmt: skip
        local = self.local
        draws = local.hyperparameters.draw(variables, problem.location, scale, noise)
        points = Z + unit * offsets
        return draws, *self.bound.optimum(local, draws, points, problem, sites)

    def _free_energy(self, offsets: Any, variables: Any, *given: Any) -> tf.Tensor:
        local, problem = self.local, given[0]
        draws, points, q_b, rest_of = self._optimum(offsets, variables, *given)
        if is_conjugate(local.likelihood):  # the derivative by q(b | a) is zero at its optimum
            q_b = FreeForm(*map(tf.stop_gradient, q_b))

        def expected(epsilon: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor) -> tf.Tensor:
            with local.parameters.substituted(epsilon):
                data = problem.X, mean, variance, problem.Y
                return expected_log_density(local.likelihood, *data)

        moments = _of_latents(local.gp, *moments_at_data(points, q_b))
        bound = tf.reduce_mean(at_each_sample(expected, draws, *moments) + rest_of(q_b))
        with local.parameters.substituted(draws[0]):
            return bound - local.hyperparameters.penalty(variables, local.parameters)

    def _with_gradient(self, *arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(arguments[:2])
            loss = -self._free_energy(*arguments)
        places, variables = tape.gradient(loss, arguments[:2], unconnected_gradients="zero")
        return loss, tf.concat([tf.reshape(places, [-1]), variables], 0)

    def _moments(self, *arguments: Any) -> tuple[tf.Tensor, ...]:
        """Values of ε, and means and variances of f at the data at each of them [S, N, L]."""
        draws, points, q_b, _ = self._optimum(*arguments)
        return draws, *_of_latents(self.local.gp, *moments_at_data(points, q_b))

    def _summary(self, *arguments: Any) -> tuple[tf.Tensor, ...]:
        """q(b | a), and of each group at the data what points leave and the sites' precision."""
        _, points, q_b, _ = self._optimum(*arguments)
        left, w = (tf.reduce_mean(part, 0) for part in (points.left, points.w[..., 0, :]))
        return *q_b, left, w


def _of_latents(
    gp: GaussianProcess, mean: tf.Tensor, variance: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Moments [S, N, L] of latent functions, from means [S, G, N, C] and variances [S, G, N]."""
    S, N = tf.shape(mean)[0], tf.shape(mean)[2]
    of_latents = tf.reshape(tf.transpose(mean, [0, 2, 1, 3]), [S, N, gp.num_latent])
    spread = tf.repeat(tf.transpose(variance, [0, 2, 1]), gp.num_latent // gp.num_groups, axis=2)
    return of_latents, tf.ensure_shape(spread, [None, None, gp.num_latent])


class FrozenPlaces:
    """Inputs under a process that rests on frozen points, at one ε; as :class:`.Places`."""

    def __init__(self, prior: PriorAt, stack: FrozenStack) -> None:
        self._prior = prior
        self._Z, self._mean, self._scale, nugget = (np.asarray(one) for one in stack)
        self._chol = stacks.cholesky(prior.covariance(self._Z), nugget)

    @cached_property
    def _white(self) -> np.ndarray:
        return stacks.solve(self._chol, self._mean - self._prior.mean(self._Z))

    def inputs(self, X: np.ndarray) -> Inputs:
        V = stacks.solve(self._chol, self._prior.covariance(self._Z, X))
        U = transposed(self._scale) @ stacks.solve(self._chol, V, transposed=True)
        variance = self._prior.variance(X) + np.sum(U**2, axis=1) - np.sum(V**2, axis=1)
        mean = self._prior.mean(X) + transposed(V) @ self._white
        return Inputs(X, np.concatenate([V, U], axis=1), mean, variance)

    def covariance(self, one: Inputs, other: Inputs) -> np.ndarray:
        (V, U), (V2, U2) = (np.split(inputs.V, 2, axis=1) for inputs in (one, other))
        prior = self._prior.covariance(one.X, other.X)
        return np.asarray(prior - transposed(V) @ V2 + transposed(U) @ U2)


# ---- conditional points ----


@storable
@dataclass(frozen=True)
class Conditional(FrozenBound):
    """``F = E_q(ε)[Σ_n E log p(y_n | f_n) − E_q(a) KL(q(b | a) ‖ p(b | a, ε))]`` (eq. 94).

    Where a point ε remembers, ``−KL(q(a) ‖ p(a | ε))`` is added, less its value at the ε before
    (eq. 93).

    With ``K_a = L Lᵀ``, ``V = L⁻¹ K_a·`` and q(a) = N(m, S Sᵀ), what is frozen are ``Sᵀ L⁻ᵀ V``.
    """

    def optimum(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        Z: tf.Tensor,
        problem: FrozenProblem,
        sites: Sites,
    ) -> tuple[GivenPoints, FreeForm, Callable[[FreeForm], tf.Tensor]]:
        prior, q_a = prior_blocks(local, draws, Z, problem, sites), problem.stack
        sizes = [tf.shape(Z)[0], tf.shape(problem.X)[0]]
        chol_a = tf.linalg.cholesky(prior.K_a)
        V = solve_lower(chol_a, tf.concat([prior.K_ab, prior.K_af], -1))
        U = tf.matmul(q_a.scale, solve_lower_transposed(chol_a, V), transpose_a=True)
        white = solve_lower(chol_a, q_a.mean - prior.mean_a)
        mean = tf.concat([prior.mean_b, prior.mean_f], -2) + tf.matmul(V, white, transpose_a=True)
        at = tf.concat([mean, tf.linalg.matrix_transpose(U)], -1)
        V_b, V_f = tf.split(V, sizes, axis=-1)
        chol_b = tf.linalg.cholesky(prior.K_b - tf.matmul(V_b, V_b, transpose_a=True))
        A = solve_lower(chol_b, prior.K_bf - tf.matmul(V_b, V_f, transpose_a=True))
        left = prior.variance - tf.reduce_sum(tf.square(V_f), axis=-2)
        left = tf.maximum(left - tf.reduce_sum(tf.square(A), axis=-2), 0.0)
        J = solve_lower_transposed(chol_b, A)
        at_b, at_f = tf.split(at, sizes, axis=-2)
        given = GivenPoints(at_b, at_f, chol_b, J, left, prior.w, prior.site_mean)
        natural = natural_parameters(given)
        precision, regression = (tf.reduce_mean(part, axis=0) for part in natural)
        chol = tf.linalg.cholesky(precision)
        q_b = FreeForm(chol, tf.linalg.cholesky_solve(chol, regression))
        return given, q_b, lambda q: _memory(local, draws, problem) - divergence(given, q)


def _memory(local: LocalModel, draws: tf.Tensor, problem: FrozenProblem) -> tf.Tensor:
    """``KL(q(a) ‖ p(a | ε_old)) − KL(q(a) ‖ p(a | ε))`` where a point ε remembers, else 0 [S].

    By Jensen's inequality the log evidence of what the points say changes by as much or more.
    """
    gp = local.gp
    assert isinstance(gp, FrozenGaussianProcess)

    def gained_at(epsilon: tf.Tensor) -> tf.Tensor:
        with local.parameters.substituted(epsilon):
            now = gp.expected_log_prior(problem.stack)
        with local.parameters.substituted(problem.location):
            return now - gp.expected_log_prior(problem.stack)

    if local.hyperparameters.memory is None:
        return tf.zeros([], tf.float64)
    return at_each_sample(gained_at, draws)


# ---- independent points ----


class _EarlierGivenPoints(NamedTuple):
    """``p(a | b, ε) = N(mean + Jᵀ(b − mean_b), left)`` and ``p(a | ε) = N(mean, chol cholᵀ)``.

    mean [G, R, C], chol [G, R, R], J [G, M, R], left [G, R, R].
    """

    mean: tf.Tensor
    chol: tf.Tensor
    J: tf.Tensor
    left: tf.Tensor


@storable
@dataclass(frozen=True)
class Independent(FrozenBound):
    """``F = E_q(ε)[Σ_n E log p(y_n | f_n) − KL(q(b) ‖ p(b | ε)) + E_q log(q(a) / p(a | ε))]``."""

    has_shared_points: ClassVar[bool] = True

    def optimum(
        self,
        local: LocalModel,
        draws: tf.Tensor,
        Z: tf.Tensor,
        problem: FrozenProblem,
        sites: Sites,
    ) -> tuple[GivenPoints, FreeForm, Callable[[FreeForm], tf.Tensor]]:
        prior, stack = prior_blocks(local, draws, Z, problem, sites), problem.stack
        chol, K_ba = tf.linalg.cholesky(prior.K_b), tf.linalg.matrix_transpose(prior.K_ab)
        A_f, A_a = (solve_lower(chol, K) for K in (prior.K_bf, K_ba))
        left = tf.maximum(prior.variance - tf.reduce_sum(tf.square(A_f), axis=-2), 0.0)
        J_f, J_a = (solve_lower_transposed(chol, A) for A in (A_f, A_a))
        given = GivenPoints(prior.mean_b, prior.mean_f, chol, J_f, left, prior.w, prior.site_mean)
        left_a = prior.K_a - tf.matmul(A_a, A_a, transpose_a=True)
        earlier = _EarlierGivenPoints(prior.mean_a, tf.linalg.cholesky(prior.K_a), J_a, left_a)

        def rest(q_b: FreeForm) -> tf.Tensor:
            past = _expected_log_earlier(local.gp, given, earlier, q_b, stack)
            return past - divergence(given, q_b)

        return given, _optimum(given, earlier, stack), rest


def _optimum(given: GivenPoints, earlier: _EarlierGivenPoints, stack: FrozenStack) -> FreeForm:
    """q(b) where the bound, averaged over ε, is largest."""
    # E[log q(a) − log p(a | ε) | b] by b − mean_b has this precision and precision-mean
    J = tf.linalg.matrix_transpose(earlier.J)
    by_prior, by_q = solve_lower(earlier.chol, J), _solve_scale(stack, J)
    off = _solve_scale(stack, stack.mean - earlier.mean)
    known = tf.matmul(by_q, by_q, transpose_a=True)
    known -= tf.matmul(by_prior, by_prior, transpose_a=True)
    precision, mean = natural_parameters(given)
    shown = mean + known @ given.at_b + tf.matmul(by_q, off, transpose_a=True)
    precision, mean = (tf.reduce_mean(part, axis=0) for part in (precision + known, shown))
    chol = tf.linalg.cholesky(precision)
    return FreeForm(chol, tf.linalg.cholesky_solve(chol, mean))


def _expected_log_earlier(
    gp: GaussianProcess,
    one: GivenPoints,
    past: _EarlierGivenPoints,
    q_b: FreeForm,
    stack: FrozenStack,
) -> tf.Tensor:
    """``E[log q(a) − log p(a | ε)]`` under ``q(a | ε) = ∫ p(a | b, ε) q(b) db`` [S]."""
    shift = tf.matmul(past.J, q_b.regression - one.at_b, transpose_a=True)
    spread = tf.linalg.matrix_transpose(solve_lower(q_b.chol, past.J))
    columns = tf.cast(gp.num_latent // gp.num_groups, shift.dtype)

    def log_density(solve: Any, mean: tf.Tensor, logdet: tf.Tensor) -> tf.Tensor:
        """Of N(mean, ·), but for its 2π."""
        half = tf.linalg.matrix_transpose(solve(past.left))
        trace = tf.reduce_sum(tf.linalg.trace(solve(half)), -1)
        trace += tf.reduce_sum(tf.square(solve(spread)), [-3, -2, -1])
        error = tf.reduce_sum(tf.square(solve(past.mean + shift - mean)), [-3, -2, -1])
        return -0.5 * (columns * (tf.reduce_sum(logdet, -1) + trace) + error)

    diagonal = tf.abs(tf.linalg.diag_part(stack.scale))
    of_q = log_density(
        lambda rhs: _solve_scale(stack, rhs),
        stack.mean,
        2.0 * tf.reduce_sum(tf.math.log(diagonal), axis=-1),
    )
    of_prior = log_density(
        lambda rhs: solve_lower(past.chol, rhs), past.mean, logdet_from_cholesky(past.chol)
    )
    return of_q - of_prior


def _solve_scale(stack: FrozenStack, rhs: tf.Tensor) -> tf.Tensor:
    """``S⁻¹ rhs`` for q(a) = N(m, S Sᵀ), where the bound leaves an upper triangle S."""
    scale = tf.broadcast_to(
        stack.scale, tf.concat([tf.shape(rhs)[:-2], tf.shape(stack.scale)[-2:]], 0)
    )
    return tf.linalg.triangular_solve(scale, rhs, lower=False)
