"""Oracles in plain NumPy and GPflow: slow, obvious, and independent of the package."""

import gpflow
import numpy as np
import scipy.stats


def conditioned_process(kernel, mean_function, rows, X):
    """Mean [N, L] and covariance [G, N, N] by the textbook formula, one dense B for each group."""
    Z = np.concatenate([row.Z for row in rows])
    nugget = np.concatenate([np.full(len(row.Z), row.nugget) for row in rows])
    K = kernel(Z).numpy() + np.diag(nugget)
    kxz, kxx = kernel(X, Z).numpy(), kernel(X).numpy()
    means, covariances = [], []
    for g in range(rows[0].root.shape[0]):
        size = sum(len(row.Z) for row in rows)
        R, start = np.zeros((size, size)), 0
        for row in rows:
            stop = start + len(row.Z)
            R[start:stop, start:stop] = row.root[g]
            start = stop
        B_inverse = np.linalg.inv(np.eye(size) + R.T @ K @ R)
        s = np.concatenate([row.targets[g] for row in rows])
        mean_Z, mean_X = (np.asarray(mean_function(points)) for points in (Z, X))
        means.append(mean_X + kxz @ R @ B_inverse @ (s - R.T @ mean_Z))
        covariances.append(kxx - kxz @ R @ B_inverse @ R.T @ kxz.T)
    return np.concatenate(means, axis=1), np.stack(covariances)


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


def moments_on_a_grid(log_density, size=401, reach=8.0):
    """Mean, covariance and log normaliser of a density of two coordinates, on a dense grid."""
    axis = np.linspace(-reach, reach, size)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    log_values = log_density(points)
    weights = np.exp(log_values - log_values.max())
    log_normaliser = np.log(weights.sum() * (axis[1] - axis[0]) ** 2) + log_values.max()
    mean = weights @ points / weights.sum()
    centred = points - mean
    return mean, (centred.T * weights) @ centred / weights.sum(), log_normaliser
