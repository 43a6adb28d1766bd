"""The paper's own private points (PVI 2018, eqs. 89 and 94): earlier points are frozen.

q(u) = N(m, S Sᵀ) over all points so far is kept as it is, whatever ε; a batch adds q(b | a), and
(a, b) are independent of ε in the posterior. Given ε, the process is
``f = m(x) + k(x, Z) K⁻¹ (u − m(Z))`` with u ~ q(u), plus what the points leave open.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from streaming_gp.errors import NumericalError
from streaming_gp.gp import covariances as cov
from streaming_gp.gp import local_bound as lb
from streaming_gp.gp import sites as site_rules
from streaming_gp.gp.compiled import at_each_sample, compiled, spec
from streaming_gp.gp.factor import ConditionalRow
from streaming_gp.gp.local_functions import LocalFunctions
from streaming_gp.gp.problem import Problem
from streaming_gp.gp.process import Conditioned, GaussianProcess
from streaming_gp.gp.sites import Sites
from streaming_gp.linalg import (
    add_to_diagonal,
    logdet_from_cholesky,
    solve_lower,
    solve_lower_transposed,
)

_SAYS_NOTHING = 1e20
"""Nugget of the one point that stands in for no points at all."""


class FrozenStack(NamedTuple):
    """q(u): Z [R, D], mean [G, R, C], scale S [G, R, R], nugget [R]."""

    Z: tf.Tensor
    mean: tf.Tensor
    scale: tf.Tensor
    nugget: tf.Tensor


class FrozenGaussianProcess(GaussianProcess):
    """A process that rests on frozen points: ``u = m + S η`` with η ~ N(0, I).

    A projection is [V; U] with ``V = L⁻¹ k(Z, X)``, ``K = L Lᵀ`` and ``U = Sᵀ L⁻ᵀ V``: the
    covariance is ``k(x, x') − VᵀV + UᵀU``.
    """

    def stack(self, rows: tuple[ConditionalRow, ...], input_dim: int) -> FrozenStack:
        if not rows:
            G, C = self.num_groups, self.num_latent // self.num_groups
            arrays = np.zeros((1, input_dim)), np.zeros((G, 1, C)), np.zeros((G, 1, 1))
            return FrozenStack(*map(tf.constant, (*arrays, np.array([_SAYS_NOTHING]))))
        Z = np.concatenate([row.Z for row in rows])
        mean = np.concatenate([row.intercept for row in rows], axis=1)
        nugget = np.concatenate([np.full(len(row.Z), row.nugget) for row in rows])
        scale, start = np.zeros((self.num_groups, len(Z), len(Z))), 0
        for row in rows:
            stop = start + len(row.Z)
            scale[:, start:stop, :start], scale[:, start:stop, start:stop] = row.slope, row.scale
            start = stop
        return FrozenStack(*map(tf.constant, (Z, mean, scale, nugget)))

    def stack_spec(self, input_dim: int) -> FrozenStack:
        G, C = self.num_groups, self.num_latent // self.num_groups
        return FrozenStack(spec(None, input_dim), spec(G, None, C), spec(G, None, None), spec(None))

    def condition(self, stack: FrozenStack) -> Conditioned:
        K = add_to_diagonal(cov.covariance(self.kernel, stack.Z), stack.nugget)
        chol = tf.linalg.cholesky(K)
        residual = stack.mean - cov.to_groups(self.prior_mean(stack.Z), self.num_groups)
        return Conditioned(chol, solve_lower(chol, residual))

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

    def covariance(
        self, V: tf.Tensor, X: tf.Tensor, V2: tf.Tensor | None = None, X2: tf.Tensor | None = None
    ) -> tf.Tensor:
        lost, kept = open_and_frozen(V)
        lost2, kept2 = (lost, kept) if V2 is None else open_and_frozen(V2)
        given = super().covariance(lost, X, lost2, X2)
        return given + tf.matmul(kept, kept2, transpose_a=True)

    def log_normaliser(self, conditioned: Conditioned) -> tf.Tensor:
        """q(u) is normalised."""
        return tf.zeros([], tf.float64)


def open_and_frozen(projection: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """V and U [G, R, N] of a projection [G, 2R, N]."""
    R = tf.shape(projection)[1] // 2
    return projection[:, :R], projection[:, R:]


class _View(NamedTuple):
    """Batch and new points given the frozen ones, at one ε.

    p(b | η) = N(mean_b + T η, L Lᵀ) and f_n = mean_f + Uᵀη + Jᵀ(b − mean_b − T η) + noise of
    variance ``left``: mean_b, mean_f [G, ·, C], T [G, M, R], U [G, R, N], L [G, M, M], J [G, M, N],
    left [G, N]; site precision w [G, 1, N] and λ [G, N, C].
    """

    mean_b: tf.Tensor
    mean_f: tf.Tensor
    T: tf.Tensor
    U: tf.Tensor
    chol: tf.Tensor
    J: tf.Tensor
    left: tf.Tensor
    w: tf.Tensor
    site_mean: tf.Tensor


class _Conditional(NamedTuple):
    """q(b | a) = N(c + A η, Λ⁻¹): lower factor of Λ [G, M, M], c [G, M, C], A [G, M, R]."""

    chol: tf.Tensor
    intercept: tf.Tensor
    slope: tf.Tensor


class ConditionalFunctions(LocalFunctions):
    """The bound of eq. 94, with q(b | a) at its optimum.

    That optimum is free-form: ``q(b | a) ∝ exp E_q(ε)[log p(b | a, ε) + Σ_n E log t_n(f_n)]`` is
    Gaussian for Gaussian sites, its precision and its regression on a averaged over q(ε).
    """

    def __init__(self, *arguments, **options) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*arguments, **options)
        problem = self._problem_spec(self.input_dim, self.output_dim)
        sites = Sites(*(spec(None, self.gp.num_latent) for _ in range(2)))
        self.conditional = compiled(self._conditional_at, spec(None), problem, sites)

    @property
    def relocates(self) -> bool:
        return False

    def _views(self, variables: tf.Tensor, problem: Problem, sites: Sites) -> _View:
        """Views at all samples of ε, stacked."""
        Z, rest = self.locations(variables, problem)
        draws = self.hyperparameters.draw(rest, problem.location, problem.scale, problem.noise)
        return at_each_sample(lambda e: self._view_of(e, Z, problem, sites), draws)

    def _view_of(self, epsilon: tf.Tensor, Z: tf.Tensor, problem: Problem, sites: Sites) -> _View:
        gp, X, stack = self.gp, problem.X, problem.stack
        with self.epsilon.substituted(epsilon):
            conditioned = gp.condition(stack)
            projected_b, projected_f = (gp.project(stack, conditioned, P) for P in (Z, X))
            (V_b, U_b), (V_f, U_f) = map(open_and_frozen, (projected_b, projected_f))
            K_b = cov.covariance(gp.kernel, Z) - tf.matmul(V_b, V_b, transpose_a=True)
            chol = tf.linalg.cholesky(add_to_diagonal(K_b, problem.nugget * tf.ones_like(Z[:, 0])))
            K_bf = cov.covariance(gp.kernel, Z, X) - tf.matmul(V_b, V_f, transpose_a=True)
            A = solve_lower(chol, K_bf)
            left = cov.variance(gp.kernel, X) - tf.reduce_sum(tf.square(V_f), axis=-2)
            left = tf.maximum(left - tf.reduce_sum(tf.square(A), axis=-2), 0.0)
            if self.conjugate:
                sites = site_rules.conjugate_sites(self.likelihood, X, problem.Y)
            means = (gp.mean(conditioned, V, P) for V, P in ((projected_b, Z), (projected_f, X)))
            parts = [cov.to_groups(part, gp.num_groups) for part in (*means, *sites)]
        mean_b, mean_f, site_mean, w = parts
        w = tf.linalg.matrix_transpose(w[:, :, :1])
        T = tf.linalg.matrix_transpose(U_b)
        J = solve_lower_transposed(chol, A)
        return _View(mean_b, mean_f, T, U_f, chol, J, left, w, site_mean)

    def _optimum(self, views: _View) -> _Conditional:
        """q(b | a) where the bound, averaged over ε, is largest."""
        natural = at_each_sample(lambda *parts: _natural_parameters(_View(*parts)), *views)
        precision, mean, slope = (tf.reduce_mean(part, axis=0) for part in natural)
        chol = tf.linalg.cholesky(precision)
        c, A = (tf.linalg.cholesky_solve(chol, part) for part in (mean, slope))
        return _Conditional(chol, c, A)

    def _free_energy(self, variables: tf.Tensor, problem: Problem, sites: Sites) -> tf.Tensor:
        views = self._views(variables, problem, sites)
        q_b = self._optimum(views)
        _, rest = self.locations(variables, problem)
        draws = self.hyperparameters.draw(rest, problem.location, problem.scale, problem.noise)

        def bound(epsilon: tf.Tensor, *parts: tf.Tensor) -> tf.Tensor:
            with self.epsilon.substituted(epsilon):
                view = _View(*parts)
                return self._expected_at(self._at_data(view, q_b), problem) - self._kl(view, q_b)

        values = at_each_sample(bound, draws, *views)
        with self.epsilon.substituted(draws[0]):
            return tf.reduce_mean(values) - self.hyperparameters.penalty(rest, self.epsilon)

    def _average_sites(self, variables: tf.Tensor, problem: Problem, sites: Sites) -> Sites:
        views = self._views(variables, problem, sites)
        q_b = self._optimum(views)

        def step(*parts: tf.Tensor) -> Sites:
            q = self._at_data(_View(*parts), q_b)
            return site_rules.fixed_point_sites(
                self.likelihood, problem.X, q.mean, q.variance, problem.Y
            )

        steps = at_each_sample(step, *views)
        return Sites(*(tf.reduce_mean(part, axis=0) for part in steps))

    def _at_data(self, view: _View, q_b: _Conditional) -> lb.LocalPosterior:
        """q(f) at the data, η and b integrated out."""
        J, L = view.J, self.gp.num_latent
        mean = view.mean_f + tf.matmul(J, q_b.intercept - view.mean_b, transpose_a=True)
        slope = view.U + tf.matmul(q_b.slope - view.T, J, transpose_a=True)
        spread = tf.square(solve_lower(q_b.chol, J))
        variance = view.left + tf.reduce_sum(tf.square(slope), 1) + tf.reduce_sum(spread, 1)
        spread_out = cov.spread_over_latents(variance, L)
        return lb.LocalPosterior(cov.from_groups(mean, L), spread_out, tf.zeros([], J.dtype))

    def _kl(self, view: _View, q_b: _Conditional) -> tf.Tensor:
        """``E_q(a) KL(q(b | a) ‖ p(b | a, ε))``: []."""
        C = tf.cast(self.gp.num_latent // self.gp.num_groups, view.J.dtype)
        ones = tf.ones_like(view.mean_b[0, :, 0])
        root = solve_lower_transposed(q_b.chol, tf.linalg.diag(ones)[None])
        trace = tf.reduce_sum(tf.square(solve_lower(view.chol, root)))
        slope = tf.reduce_sum(tf.square(solve_lower(view.chol, q_b.slope - view.T)))
        mean = tf.reduce_sum(tf.square(solve_lower(view.chol, q_b.intercept - view.mean_b)))
        logdets = tf.reduce_sum(logdet_from_cholesky(view.chol) + logdet_from_cholesky(q_b.chol))
        size = tf.reduce_sum(ones) * tf.cast(self.gp.num_groups, ones.dtype)
        return 0.5 * (C * (trace + slope + logdets - size) + mean)

    def _conditional_at(
        self, variables: tf.Tensor, problem: Problem, sites: Sites
    ) -> tuple[tf.Tensor, _Conditional]:
        q_b = self._optimum(self._views(variables, problem, sites))
        return self.locations(variables, problem)[0], q_b

    def row(
        self, epsilon: np.ndarray, variables: np.ndarray, problem: Problem, sites: Sites
    ) -> ConditionalRow:
        Z, q_b = self.conditional(variables, problem, sites)
        identity = tf.eye(tf.shape(Z)[0], batch_shape=[self.gp.num_groups], dtype=Z.dtype)
        scale = solve_lower_transposed(q_b.chol, identity)
        if not (np.isfinite(scale).all() and np.isfinite(q_b.slope).all()):
            raise NumericalError("the conditional covariance of the pseudo-points is not positive")
        earlier = np.any(problem.stack.nugget < _SAYS_NOTHING) * q_b.slope.shape[2]
        slope = q_b.slope.numpy()[:, :, :earlier]
        return ConditionalRow(
            Z.numpy(), q_b.intercept.numpy(), slope, scale.numpy(), float(problem.nugget)
        )


def _natural_parameters(view: _View) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Precision of b [G, M, M], its precision-mean at η = 0 [G, M, C] and by η [G, M, R]."""
    J, w = view.J, view.w
    weighted = J * w
    K, M = tf.shape(view.chol)[0], tf.shape(view.chol)[1]
    prior = tf.linalg.cholesky_solve(view.chol, tf.eye(M, batch_shape=[K], dtype=J.dtype))
    centred = view.site_mean - tf.linalg.matrix_transpose(w) * view.mean_f
    precision = prior + tf.matmul(weighted, J, transpose_b=True)
    mean = tf.matmul(precision, view.mean_b) + tf.matmul(J, centred)
    slope = tf.matmul(precision, view.T) - tf.matmul(weighted, view.U, transpose_b=True)
    return precision, mean, slope
