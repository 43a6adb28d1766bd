"""Bounds on sparse points, and on every input, against the same Gaussians in dense matrices."""

from types import SimpleNamespace

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import multivariate_normal

import streaming_gp as sgp
from streaming_gp.gp import Exact, PowerEP, PseudoObservations, Variational
from streaming_gp.gp.bounds import Sites
from streaming_gp.gp.bounds.problem import Earlier, Problem
from streaming_gp.gp.bounds.sites import fixed_point_sites
from streaming_gp.gp.bounds.whitening import on_points
from tests.oracles.builders import FIXED, mean_of_two
from tests.oracles.reference import conditioned_process
from tests.tolerances import THROUGH_CHOLESKY

pytestmark = pytest.mark.usefixtures("eager")
N, M, INPUTS, COLUMNS, NUGGET, NOISE = 9, 4, 2, 2, 0.05, 0.3
LIKELIHOODS = {  # one group of two columns, and two groups of one
    "gaussian": lambda: gpflow.likelihoods.Gaussian(NOISE),
    "probit": gpflow.likelihoods.Bernoulli,
}


def pseudo_observations(rng, Z, groups, nugget):
    """Random ones, around what the mean function says."""
    R = np.tril(rng.standard_normal((groups, len(Z), len(Z)))) + np.eye(len(Z))
    u = 2.0 + 0.5 * rng.standard_normal((groups, len(Z), COLUMNS // groups))
    return PseudoObservations(Z, R, np.swapaxes(R, 1, 2) @ u, nugget)


def setting(rng, name, takes_over=False, hyperparameters=FIXED, variance=1.0, sizes=(N, M, INPUTS)):
    """A batch, new points, sites, a cavity of three points, and four earlier ones if wanted."""
    (N, M, D), likelihood = sizes, LIKELIHOODS[name]()
    k = gpflow.kernels.SquaredExponential(variance, np.ones(D))
    gp = sgp.StreamingGP(
        k, likelihood, mean_of_two(), sgp.PrivatePseudoPoints(M), hyperparameters, COLUMNS
    )
    local = gp._compile(D, COLUMNS).local
    groups = local.gp.num_groups
    X, Z, Z_cavity = (rng.uniform(-2.0, 2.0, (size, D)) for size in (N, M, 3))
    Y = 2.0 + rng.standard_normal((N, COLUMNS))
    Y = Y if name == "gaussian" else (Y > 2.0).astype(float)
    w = np.full((N, COLUMNS), 1.0 / NOISE)
    if name == "probit":
        w = rng.uniform(0.2, 2.0, (N, COLUMNS))
    known = pseudo_observations(rng, Z_cavity, groups, 0.02)
    earlier = pseudo_observations(rng, Z, groups, NUGGET) if takes_over else None
    stacked = (
        ()
        if earlier is None
        else Earlier(local.gp.stack((earlier,), D), tf.constant(NUGGET, tf.float64))
    )
    empty = tf.zeros([0], tf.float64)
    problem = Problem(
        tf.constant(X), tf.constant(Y), local.gp.stack((known,), D), empty, empty, empty,
        tf.constant(Z), tf.ones([D], tf.float64), tf.constant(NUGGET, tf.float64), stacked,
    )  # fmt: skip
    sites = Sites(tf.constant(w * (Y if name == "gaussian" else 3.0 * Y - 1.0)), tf.constant(w))
    return SimpleNamespace(
        local=local, problem=problem, sites=sites, known=known, earlier=earlier, groups=groups,
        kernel=k, draws=tf.constant(local.parameters.value()[None]),
    )  # fmt: skip


def under_the_cavity(at, Z, nugget):
    """For each group what new points b and batch f are: p(b), and f given b."""
    X = at.problem.X.numpy()
    mean, covariance = conditioned_process(
        at.kernel, mean_of_two(), [at.known], np.concatenate([Z, X])
    )
    found = []
    for columns, S in zip(np.split(mean, at.groups, axis=1), covariance, strict=True):
        b, f = slice(len(Z)), slice(len(Z), None)
        K = S[b, b] + nugget * np.eye(len(Z))
        J = np.linalg.solve(K, S[b, f])
        left = np.diag(S[f, f]) - np.sum(S[b, f] * J, axis=0)
        found.append(SimpleNamespace(K=K, J=J, left=left, m_b=columns[b], m_f=columns[f]))
    return found


def dense(at, Z, nugget):
    """The free energy at these sites: value, q(f) at the data, and what the sites say of b."""
    λ, w = (np.split(part.numpy(), at.groups, axis=1) for part in at.sites)
    value, means, variances, said = 0.0, [], [], []
    for g, one in enumerate(under_the_cavity(at, Z, nugget)):
        prior = np.linalg.inv(one.K)
        of_sites = one.J * w[g][:, 0] @ one.J.T
        by_sites = one.J @ (λ[g] - w[g] * (one.m_f - one.J.T @ one.m_b))
        precision, precision_mean = prior + of_sites, prior @ one.m_b + by_sites
        if at.earlier is not None:  # the same points with the same white noise: u is b
            R, s = at.earlier.precision_factor[g], at.earlier.pseudo_targets[g]
            precision, precision_mean = precision + R @ R.T, precision_mean + R @ s
        covariance = np.linalg.inv(precision)
        mean = covariance @ precision_mean
        off, columns = mean - one.m_b, mean.shape[1]
        kl = np.trace(prior @ covariance) - len(Z) + np.linalg.slogdet(one.K @ precision)[1]
        value -= 0.5 * (columns * kl + np.sum(off * (prior @ off)))
        if at.earlier is not None:
            value += expected_less_evidence(R, s, mean, covariance, one)
        means.append(one.m_f + one.J.T @ off)
        spread = one.left + np.sum(one.J * (covariance @ one.J), axis=0)
        variances.append(np.repeat(spread[:, None], columns, axis=1))
        said.append((of_sites, by_sites))
    mean, variance = np.concatenate(means, axis=1), np.concatenate(variances, axis=1)
    X, Y = at.problem.X, at.problem.Y
    value += np.sum(at.local.likelihood.variational_expectations(X, mean, variance, Y))
    return value, (mean, variance), said


def expected_less_evidence(R, s, mean, covariance, one):
    """``E_q log t(b) − log ∫ t(b) p(b) db`` of one group."""
    trace = mean.shape[1] * np.trace(R.T @ covariance @ R)
    expected = -0.5 * (np.sum((s - R.T @ mean) ** 2) + trace)
    return expected - log_evidence(R, s, one.K, one.m_b)


def log_evidence(R, s, K, mean):
    """``log ∫ t(u) N(u; mean, K) du`` of one group."""
    B, residual = np.eye(len(R)) + R.T @ K @ R, s - R.T @ mean
    square = np.sum(residual * np.linalg.solve(B, residual))
    return -0.5 * (s.shape[1] * np.linalg.slogdet(B)[1] + square)


@pytest.mark.parametrize("takes_over", [False, True], ids=["alone", "takes over"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_variational_bound_and_what_is_kept_of_it(rng, name, takes_over):
    at = setting(rng, name, takes_over)
    given = at.draws, at.problem.Z_start, at.problem, at.sites
    wanted, q_f, said = dense(at, at.problem.Z_start.numpy(), NUGGET)
    bound = Variational()
    assert float(bound.free_energy(at.local, *given)) == pytest.approx(wanted, abs=THROUGH_CHOLESKY)
    X, Y = at.problem.X, at.problem.Y
    moved = fixed_point_sites(at.local.likelihood, X, *map(tf.constant, q_f), Y)
    for mine, other in zip(bound.next_sites(at.local, *given), moved, strict=True):
        np.testing.assert_allclose(mine, other, atol=THROUGH_CHOLESKY)
    summary = bound.summary(at.local, at.draws, at.draws[0], *given[1:])
    kept = bound.pseudo_observations(at.local, summary, at.problem, at.sites)
    for g, (precision, precision_mean) in enumerate(said):
        np.testing.assert_allclose(kept.precision[g], precision, atol=THROUGH_CHOLESKY)
        np.testing.assert_allclose(kept.precision_mean[g], precision_mean, atol=THROUGH_CHOLESKY)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_with_a_point_at_every_input(rng, name):
    at = setting(rng, name)
    given = at.draws, at.problem.Z_start, at.problem, at.sites
    wanted, q_f, _ = dense(at, at.problem.X.numpy(), 0.0)
    assert float(Exact().free_energy(at.local, *given)) == pytest.approx(
        wanted, abs=THROUGH_CHOLESKY
    )
    moved = fixed_point_sites(
        at.local.likelihood, at.problem.X, *map(tf.constant, q_f), at.problem.Y
    )
    for mine, other in zip(Exact().next_sites(at.local, *given), moved, strict=True):
        np.testing.assert_allclose(mine, other, atol=THROUGH_CHOLESKY)
    kept = Exact().pseudo_observations(at.local, at.problem.X, at.problem, at.sites)
    mean, precision = (part.numpy() for part in at.sites)
    for column in range(COLUMNS):
        g, c = divmod(column, COLUMNS // at.groups)
        np.testing.assert_allclose(kept.precision[g], np.diag(precision[:, column]), rtol=1e-9)
        np.testing.assert_allclose(kept.precision_mean[g, :, c], mean[:, column], rtol=1e-9)


@pytest.mark.parametrize(
    "options", [{"variance": 1e-8}, {"sizes": (1, 1, 1)}], ids=["small variances", "one datum"]
)
@pytest.mark.parametrize("bound", [Exact(), Variational()])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_at_the_smallest_scale_and_sizes(rng, name, bound, options):
    """Variances are compared with the prior's; and a single datum has one input and one point."""
    at = setting(rng, name, **options)
    given = at.draws, at.problem.Z_start, at.problem, at.sites
    Z, nugget = (at.problem.X, 0.0) if isinstance(bound, Exact) else (at.problem.Z_start, NUGGET)
    wanted, _, _ = dense(at, Z.numpy(), nugget)
    assert float(bound.free_energy(at.local, *given)) == pytest.approx(wanted, abs=THROUGH_CHOLESKY)


def test_points_move_by_their_offsets_in_units_of_each_input(rng):
    problem = setting(rng, "gaussian").problem._replace(Z_unit=tf.constant([0.5, 3.0], tf.float64))
    offsets = rng.standard_normal((M, 2))
    wanted = problem.Z_start + np.array([0.5, 3.0]) * offsets
    np.testing.assert_allclose(problem.moved(tf.constant(offsets.ravel())), wanted)


@pytest.mark.parametrize(
    ("bound", "takes_over"), [(Exact(), False), (Variational(), False), (Variational(), True)]
)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_point_that_remembers_answers_to_the_evidence_of_all_that_is_known(
    name, bound, takes_over
):
    def at_a_point(remember):
        rng, point = np.random.default_rng(1), sgp.PointHyperparameters(remember=remember)
        at = setting(rng, name, takes_over, point)
        given = at.draws, at.problem.Z_start, at.problem, at.sites
        return at, float(bound.free_energy(at.local, *given))

    (at, remembering), (_, forgetful) = at_a_point(True), at_a_point(False)
    wanted, Z = 0.0, at.known.Z
    K = at.kernel(Z).numpy() + at.known.nugget * np.eye(len(Z))
    for g, one in enumerate(under_the_cavity(at, at.problem.Z_start.numpy(), NUGGET)):
        observations = at.known.precision_factor[g], at.known.pseudo_targets[g]
        wanted += log_evidence(*observations, K, np.full_like(observations[1], 2.0))
        if takes_over:
            observations = at.earlier.precision_factor[g], at.earlier.pseudo_targets[g]
            wanted += log_evidence(*observations, one.K, one.m_b)
    assert remembering - forgetful == pytest.approx(wanted, abs=THROUGH_CHOLESKY)


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_the_energy_of_power_ep(rng, alpha):
    """``log N(y; m̃, Q̃ + σ² I + α diag r) − (1 − α)/(2α) Σ log(1 + α r/σ²)``, for each column."""
    at = setting(rng, "gaussian")
    (one,) = under_the_cavity(at, at.problem.Z_start.numpy(), NUGGET)
    covariance = one.J.T @ one.K @ one.J + np.diag(NOISE + alpha * one.left)
    wanted = sum(
        multivariate_normal(mean, covariance).logpdf(y)
        for mean, y in zip(one.m_f.T, at.problem.Y.numpy().T, strict=True)
    )
    wanted -= COLUMNS * (1 - alpha) / (2 * alpha) * np.sum(np.log1p(alpha * one.left / NOISE))
    found = PowerEP(alpha).free_energy(at.local, at.draws, at.problem.Z_start, at.problem, at.sites)
    assert float(found) == pytest.approx(wanted, abs=THROUGH_CHOLESKY)
    w = 1.0 / (NOISE + alpha * one.left[:, None])
    sites = PowerEP(alpha).known_sites(at.local, at.draws[0], at.problem.Z_start, at.problem)
    np.testing.assert_allclose(sites.precision, np.repeat(w, COLUMNS, axis=1), rtol=1e-9)
    np.testing.assert_allclose(sites.precision_mean, w * at.problem.Y, rtol=1e-9)


@pytest.mark.parametrize("takes_over", [False, True], ids=["alone", "takes over"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_errors_that_data_show(rng, name, takes_over):
    """White's variance of b over the predicted one: rows are data, in units of their noise."""
    at = setting(rng, name, takes_over)
    bound, Z = Variational(), at.problem.Z_start
    summary = bound.summary(at.local, at.draws, at.draws[0], Z, at.problem, at.sites)
    λ, w = (np.split(part.numpy(), at.groups, axis=1) for part in at.sites)
    ratios, left = [], []
    for g, one in enumerate(under_the_cavity(at, Z.numpy(), NUGGET)):
        root = np.sqrt(w[g][:, :1])
        rows, y = root * one.J.T, λ[g] / root - root * (one.m_f - one.J.T @ one.m_b)
        if takes_over:
            rows = np.concatenate([rows, at.earlier.precision_factor[g].T])
            y = np.concatenate([y, at.earlier.pseudo_targets[g]])
        y = y - rows @ one.m_b
        covariance = np.linalg.inv(np.linalg.inv(one.K) + rows.T @ rows)
        error = y - rows @ covariance @ rows.T @ y
        weights = covariance @ rows.T
        shown = weights * np.mean(error**2, axis=1) @ weights.T
        ratios.append(np.diag(shown) / (np.diag(covariance) + NUGGET))
        left.append(np.mean(one.left[:, None] / (1.0 / w[g] + NUGGET)))
    found = bound.shown_error(at.local, summary, at.problem, at.sites)
    assert found == pytest.approx(np.sqrt(np.max(ratios)), rel=1e-6)
    found = bound.unexplained(at.local, summary, at.problem, at.sites)
    assert found == pytest.approx(np.mean(left), rel=1e-6)


def test_observations_of_whitened_points_are_those_of_the_points_and_a_constant(rng):
    """``−½ ‖t − D L⁻¹ (b − m)‖²`` of many rows at any b, by as many rows as there are points."""
    L = np.tril(rng.standard_normal((2, M, M))) + 2.0 * np.eye(M)
    Z, mean = rng.standard_normal((M, 2)), rng.standard_normal((2, M, 1))
    design, targets = rng.standard_normal((2, N, M)), rng.standard_normal((2, N, 1))
    kept, constant = on_points(Z, L, mean, design, targets, NUGGET)
    assert kept.pseudo_targets.shape == (2, M, 1)
    for _ in range(3):
        b = rng.standard_normal((2, M, 1))
        c = np.linalg.solve(L, b - mean)
        wanted = -0.5 * np.sum((targets - design @ c) ** 2)
        Rtb = np.swapaxes(kept.precision_factor, 1, 2) @ b
        found = constant - 0.5 * np.sum((kept.pseudo_targets - Rtb) ** 2)
        assert found == pytest.approx(wanted, rel=1e-9)
