"""Oracles in plain NumPy and GPflow: slow, obvious, and independent of the package; random members
of the package's exponential families; and small problems for servers and clients.
"""

from functools import cache

import gpflow
import numpy as np
import scipy.stats

from streaming_gp import expfam, linear, pvi

FAMILY_DIMENSION, FAMILY_COMPONENTS = 3, 2


@cache
def conjugate_model():
    """Of :func:`regression_data`: one for all tests that do not change it, which trace once."""
    return linear.BayesianLinearRegression(3, 0.09)


def random_member(family, seed):
    """A proper member of an exponential family, by its seed."""
    rng = np.random.default_rng(seed)
    if family in expfam.GAUSSIANS:
        return _random_gaussian(family, rng)
    if family is expfam.Dirichlet:
        return expfam.Dirichlet(rng.uniform(0.5, 5.0, FAMILY_DIMENSION))
    components = _random_normal_wishart(rng)
    if family is expfam.NormalWishart:
        return components
    weights = expfam.Dirichlet(rng.uniform(0.5, 5.0, FAMILY_COMPONENTS))
    return expfam.DirichletNormalWishart.of(weights, components)


def _random_positive_definite(rng):
    root = rng.standard_normal((FAMILY_DIMENSION, FAMILY_DIMENSION))
    return root @ root.T + np.eye(FAMILY_DIMENSION)


def _random_gaussian(family, rng):
    precision = _random_positive_definite(rng)
    if family is expfam.MeanFieldNormal:
        precision = np.diag(precision)
    if family is expfam.IsotropicNormal:
        precision = np.trace(precision)
    return family(rng.standard_normal(FAMILY_DIMENSION), precision)


def _random_normal_wishart(rng):
    mean = rng.standard_normal((FAMILY_COMPONENTS, FAMILY_DIMENSION))
    strength = rng.uniform(0.5, 3.0, FAMILY_COMPONENTS)
    dof = rng.uniform(4.0, 12.0, FAMILY_COMPONENTS)
    scale_inverse = np.stack([_random_positive_definite(rng) for _ in range(FAMILY_COMPONENTS)])
    return expfam.NormalWishart.from_standard(mean, strength, dof, scale_inverse).as_arrays()


def conditioned_process(kernel, mean_function, observations, X):
    """Mean [N, L] and covariance [G, N, N] by the textbook formula, one dense B for each group."""
    Z = np.concatenate([one.Z for one in observations])
    nugget = np.concatenate([np.full(len(one.Z), one.nugget) for one in observations])
    K = kernel(Z).numpy() + np.diag(nugget)
    kxz, kxx = kernel(X, Z).numpy(), kernel(X).numpy()
    means, covariances = [], []
    for g in range(observations[0].precision_factor.shape[0]):
        size = sum(len(one.Z) for one in observations)
        R, start = np.zeros((size, size)), 0
        for one in observations:
            stop = start + len(one.Z)
            R[start:stop, start:stop] = one.precision_factor[g]
            start = stop
        B_inverse = np.linalg.inv(np.eye(size) + R.T @ K @ R)
        s = np.concatenate([one.pseudo_targets[g] for one in observations])
        mean_Z, mean_X = (np.asarray(mean_function(points)) for points in (Z, X))
        means.append(mean_X + kxz @ R @ B_inverse @ (s - R.T @ mean_Z))
        covariances.append(kxx - kxz @ R @ B_inverse @ R.T @ kxz.T)
    return np.concatenate(means, axis=1), np.stack(covariances)


def conditional_bound(kernel, mean_function, noise_variance, frozen, added, data):
    """The bound of PVI 2018, eq. 94, at one ε, of a batch on points beside frozen ones.

    ``frozen`` is N(m, S Sᵀ) of the points a, ``added`` is N(c + A η, W Wᵀ) of the points b, where
    ``a = m + S η`` with η ~ N(0, I); both on f(Z) plus nugget noise.
    """
    (X, Y), (Z_a, Z_b) = data, (frozen.Z, added.Z)
    m, S = frozen.intercept[0], frozen.scale[0]
    c, A, W = added.intercept[0], added.slope[0], added.scale[0]
    K_aa = kernel(Z_a).numpy() + frozen.nugget * np.eye(len(Z_a))
    K_ba, K_xa = kernel(Z_b, Z_a).numpy(), kernel(X, Z_a).numpy()
    mean_a, mean_b, mean_x = (np.asarray(mean_function(points)) for points in (Z_a, Z_b, X))
    mean_b, mean_x = (
        mean + np.linalg.solve(K_aa, K.T).T @ (m - mean_a)
        for mean, K in ((mean_b, K_ba), (mean_x, K_xa))
    )
    T, U = (np.linalg.solve(K_aa, K.T).T @ S for K in (K_ba, K_xa))
    P = kernel(Z_b).numpy() + added.nugget * np.eye(len(Z_b)) - K_ba @ np.linalg.solve(K_aa, K_ba.T)
    K_bx = kernel(Z_b, X).numpy() - K_ba @ np.linalg.solve(K_aa, K_xa.T)
    J = np.linalg.solve(P, K_bx)
    left = np.diag(kernel(X).numpy() - K_xa @ np.linalg.solve(K_aa, K_xa.T) - K_bx.T @ J)
    mean = mean_x + J.T @ (c - mean_b)
    deviation = np.concatenate([U + J.T @ (A - T), J.T @ W], axis=1)
    square = (Y - mean)[:, 0] ** 2 + left + np.sum(deviation**2, axis=1)
    expected = -0.5 * np.sum(np.log(2.0 * np.pi * noise_variance) + square / noise_variance)
    off = np.concatenate([W, A - T, c - mean_b], axis=1)
    logdets = np.linalg.slogdet(P)[1] - np.linalg.slogdet(W @ W.T)[1]
    kl = 0.5 * (np.sum(off * np.linalg.solve(P, off)) + logdets - len(Z_b))
    return expected - kl


def expected_log_prior(kernel, mean_function, frozen):
    """``E[log p(a)]`` under N(m, S Sᵀ) of the points a = f(Z) plus nugget noise, without its 2π."""
    K = kernel(frozen.Z).numpy() + frozen.nugget * np.eye(len(frozen.Z))
    off = np.column_stack(
        [frozen.intercept[0] - np.asarray(mean_function(frozen.Z)), frozen.scale[0]]
    )
    return -0.5 * (np.linalg.slogdet(K)[1] + np.sum(off * np.linalg.solve(K, off)))


def independent_bound(
    kernel, mean_function, noise_variance, earlier, added, data, prior_of_earlier=None
):
    """The bound of PVI 2018, app. C.3, at one ε, of a batch on points b in the place of points a.

    ``earlier`` is q(a) = N(m, S Sᵀ), ``added`` is q(b) = N(c, W Wᵀ), both of f(Z) and nugget noise.
    What earlier data say is ``q(a) / p(a | ε)``, or with another prior of a what app. C.1 has.
    """
    (X, Y), (Z_a, Z_b) = data, (earlier.Z, added.Z)
    K_aa = kernel(Z_a).numpy() + earlier.nugget * np.eye(len(Z_a))
    K_bb = kernel(Z_b).numpy() + added.nugget * np.eye(len(Z_b))
    mean_a, mean_b, mean_x = (np.asarray(mean_function(points))[:, 0] for points in (Z_a, Z_b, X))
    c, C = added.intercept[0, :, 0], added.scale[0] @ added.scale[0].T
    m, S = earlier.intercept[0, :, 0], earlier.scale[0] @ earlier.scale[0].T

    def given_b(points, mean, K):
        """Mean and covariance under q of f at the points, or of a."""
        J = np.linalg.solve(K_bb, kernel(Z_b, points).numpy())
        return mean + J.T @ (c - mean_b), K - J.T @ (K_bb - C) @ J

    def expected(q, p):
        """``E_q[log p]`` of two Gaussians."""
        off = q[0] - p[0]
        square = np.trace(np.linalg.solve(p[1], q[1])) + off @ np.linalg.solve(p[1], off)
        return -0.5 * (square + np.linalg.slogdet(2.0 * np.pi * p[1])[1])

    mean, covariance = given_b(X, mean_x, kernel(X).numpy())
    square = (Y[:, 0] - mean) ** 2 + np.diag(covariance)
    data_term = -0.5 * np.sum(np.log(2.0 * np.pi * noise_variance) + square / noise_variance)
    kl = expected((c, C), (c, C)) - expected((c, C), (mean_b, K_bb))
    q_a = given_b(Z_a, mean_a, K_aa)
    prior_a = (mean_a, K_aa) if prior_of_earlier is None else prior_of_earlier
    return data_term - kl + expected(q_a, (m, S)) - expected(q_a, prior_a)


def svgp_at_optimum(data, kernel, likelihood, Z):
    """GPflow's SVGP at fixed Z and hyperparameters, its q(u) optimised; the model and its ELBO."""
    model = gpflow.models.SVGP(
        kernel, likelihood, inducing_variable=Z, num_data=len(data[0]),
        num_latent_gps=likelihood.latent_dim or data[1].shape[1],
    )  # fmt: skip
    variables = [*model.q_mu.trainable_variables, *model.q_sqrt.trainable_variables]
    loss = model.training_loss_closure(data, compile=True)
    gpflow.optimizers.Scipy().minimize(loss, variables, options={"maxiter": 2000, "ftol": 1e-12})
    return model, float(model.elbo(data))


def smooth_data(rng, num=60, num_columns=1, input_dim=2, noise=0.1):
    """Inputs [N, D] in a box and noisy smooth targets [N, P]."""
    X = rng.uniform(-2.0, 2.0, (num, input_dim))
    f = np.stack([np.sin(2.0 * X[:, 0] + p) + np.cos(X[:, -1]) for p in range(num_columns)], axis=1)
    return X, f + noise * rng.standard_normal(f.shape)


def probit_by_assumed_density_filtering(X, labels):
    """Mean and covariance of weights with prior N(0, I) after one pass."""
    mean, covariance = np.zeros(X.shape[1]), np.eye(X.shape[1])
    for x, sign in zip(X, 2.0 * labels[:, 0] - 1.0, strict=True):
        along = covariance @ x
        gradient, curvature = _probit_derivatives(sign, x @ mean, x @ along)
        mean = mean + gradient * along
        covariance = covariance - curvature * np.outer(along, along)
    return mean, covariance


def probit_by_expectation_propagation(X, labels, sweeps=100):
    """Mean and covariance of weights with prior N(0, I): one scalar site a datum, one at a time."""
    precision, shift = np.zeros(len(X)), np.zeros(len(X))
    for _ in range(sweeps):
        for n, (x, sign) in enumerate(zip(X, 2.0 * labels[:, 0] - 1.0, strict=True)):
            covariance = np.linalg.inv(np.eye(X.shape[1]) + (X.T * precision) @ X)
            m, v = x @ covariance @ X.T @ shift, x @ covariance @ x
            v_cavity = 1.0 / (1.0 / v - precision[n])
            m_cavity = v_cavity * (m / v - shift[n])
            gradient, curvature = _probit_derivatives(sign, m_cavity, v_cavity)
            m_new = m_cavity + v_cavity * gradient
            v_new = v_cavity - v_cavity**2 * curvature
            precision[n] = 1.0 / v_new - 1.0 / v_cavity
            shift[n] = m_new / v_new - m_cavity / v_cavity
    covariance = np.linalg.inv(np.eye(X.shape[1]) + (X.T * precision) @ X)
    return covariance @ X.T @ shift, covariance


def _probit_derivatives(sign, mean, variance):
    """First and minus second derivative of ``log Φ(sign · mean / √(1 + variance))`` by the mean."""
    z = sign * mean / np.sqrt(1.0 + variance)
    hazard = np.exp(scipy.stats.norm.logpdf(z) - scipy.stats.norm.logcdf(z))
    return sign * hazard / np.sqrt(1.0 + variance), hazard * (z + hazard) / (1.0 + variance)


def moments_on_a_grid(log_density, size=201, reach=8.0):
    """Mean, covariance and log normaliser of a density of two coordinates, on a dense grid."""
    axis = np.linspace(-reach, reach, size)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    log_values = log_density(points)
    weights = np.exp(log_values - log_values.max())
    log_normaliser = np.log(weights.sum() * (axis[1] - axis[0]) ** 2) + log_values.max()
    mean = weights @ points / weights.sum()
    centred = points - mean
    return mean, (centred.T * weights) @ centred / weights.sum(), log_normaliser


# ---- servers and clients ----


def inputs(rng, number=60):
    return rng.standard_normal((number, 3)) @ np.array([[1, 0.8, 0], [0, 0.6, 0], [0, 0, 1.0]])


def regression_data(rng):
    X = inputs(rng)
    return X, X @ np.array([[1.0], [-2.0], [0.5]]) + 0.3 * rng.standard_normal((len(X), 1))


def labelled_data(rng):
    X = inputs(rng)
    probability = 1.0 / (1.0 + np.exp(-X @ np.array([[1.0], [-2.0], [0.5]])))
    return X, (rng.uniform(size=(len(X), 1)) < probability).astype(float)


def server(model, shards, update, **settings):
    return pvi.Server(model.prior(), pvi.make_clients(model, shards, update), **settings)


def assert_same(q, p, tolerance):
    for a, b in zip(q.natural, p.natural, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def pooled(model, X, Y):
    return model.prior().times([model.likelihood_factor(X, Y)])


def task_of(model, X, Y, own=None):
    q = model.prior() if own is None else model.prior().times([own])
    return pvi.LocalTask(model, (X, Y), q, own, q, seed=5)
