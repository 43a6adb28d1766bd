"""Draws the picture of the one idea."""

import gpflow
import matplotlib.pyplot as plt
import numpy as np

import streaming_gp as sgp
from streaming_gp.gp.process import GaussianProcess

GRID = np.linspace(-3.2, 3.2, 200)[:, None]

model = sgp.StreamingGP(
    gpflow.kernels.SquaredExponential(variance=1.0, lengthscales=0.7),
    gpflow.likelihoods.Gaussian(0.05),
    pseudo_points=sgp.PrivatePseudoPoints(4),
    hyperparameters=sgp.FixedHyperparameters(),
)
process = GaussianProcess(model.kernel, model.mean_function, num_latent=1, num_groups=1)


def draw(axes, factors, batch, color, title):
    """Prior × factors on the grid, with the batch's data and pseudo-points."""
    stack = process.stack(tuple(row for factor in factors for row in factor.rows), input_dim=1)
    moments = process.predict(stack, process.condition(stack), GRID)
    mean, variance = (np.asarray(part)[:, 0] for part in moments)
    width = 2.0 * np.sqrt(variance)
    axes.fill_between(GRID[:, 0], mean - width, mean + width, color=color, alpha=0.2, linewidth=0)
    axes.plot(GRID[:, 0], mean, color=color)
    axes.scatter(*batch, s=6, color="0.3", linewidths=0)
    Z = factors[-1].Z
    axes.plot(Z, np.full_like(Z, -2.4), "k^", markersize=4)
    axes.set_title(title, fontsize=9)
    axes.set_ylim(-2.6, 2.6)


rng = np.random.default_rng(1)
figure, (top, bottom) = plt.subplots(
    2, 3, figsize=(9, 4.2), sharex=True, sharey=True, layout="constrained"
)
for number, left in enumerate((-3.0, -1.0, 1.0), start=1):
    X = rng.uniform(left, left + 2.0, (25, 1))
    Y = np.sin(2.0 * X) + 0.2 * rng.standard_normal(X.shape)
    model.update((X, Y))
    factors = list(model.factors.values())
    product = " × ".join(f"$t_{i}$" for i in range(1, number + 1))
    draw(top[number - 1], factors, (X, Y), "tab:blue", f"prior × {product}")
    draw(bottom[number - 1], factors[-1:], (X, Y), "tab:orange", f"prior × $t_{number}$")
