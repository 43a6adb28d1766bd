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


def probit_by_expectation_propagation(X, labels, sweeps=200):
    """Mean and covariance of weights with prior N(0, I): one scalar site a datum, one at a time."""
    signs = 2.0 * labels[:, 0] - 1.0
    precision, shift = np.zeros(len(X)), np.zeros(len(X))
    for _ in range(sweeps):
        for n, x in enumerate(X):
            covariance = np.linalg.inv(np.eye(X.shape[1]) + (X.T * precision) @ X)
            mean = covariance @ X.T @ shift
            m, v = x @ mean, x @ covariance @ x
            v_cavity = 1.0 / (1.0 / v - precision[n])
            m_cavity = v_cavity * (m / v - shift[n])
            z = signs[n] * m_cavity / np.sqrt(1.0 + v_cavity)
            hazard = np.exp(scipy.stats.norm.logpdf(z) - scipy.stats.norm.logcdf(z))
            m_new = m_cavity + signs[n] * v_cavity * hazard / np.sqrt(1.0 + v_cavity)
            v_new = v_cavity - v_cavity**2 * hazard * (z + hazard) / (1.0 + v_cavity)
            precision[n] = 1.0 / v_new - 1.0 / v_cavity
            shift[n] = m_new / v_new - m_cavity / v_cavity
    covariance = np.linalg.inv(np.eye(X.shape[1]) + (X.T * precision) @ X)
    return covariance @ X.T @ shift, covariance


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
