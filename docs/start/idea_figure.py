"""Draws the picture of the one idea."""

import copy

import gpflow
import matplotlib.pyplot as plt
import numpy as np

import streaming_gp as sgp

GRID = np.linspace(-3.2, 3.2, 200)[:, None]


def draw(axes, model, batch, color, title):
    """A model's posterior on the grid, with the newest batch's data and pseudo-points."""
    mean, variance = (np.asarray(part)[:, 0] for part in model.predict_f(GRID))
    width = 2.0 * np.sqrt(variance)
    axes.fill_between(GRID[:, 0], mean - width, mean + width, color=color, alpha=0.2, linewidth=0)
    axes.plot(GRID[:, 0], mean, color=color)
    axes.scatter(*batch, s=6, color="0.3", linewidths=0)
    Z = list(model.factors.values())[-1].Z
    axes.plot(Z, np.full_like(Z, -2.4), "k^", markersize=4)
    axes.set_title(title, fontsize=9)
    axes.set_ylim(-2.6, 2.6)


def newest_alone(model):
    """Prior × the newest factor."""
    alone = copy.deepcopy(model)
    for batch_id in list(model.factors)[:-1]:
        alone.remove(batch_id)
    return alone


model = sgp.StreamingGP(
    gpflow.kernels.SquaredExponential(variance=1.0, lengthscales=0.7),
    gpflow.likelihoods.Gaussian(0.05),
    pseudo_points=sgp.PrivatePseudoPoints(4),
    hyperparameters=sgp.FixedHyperparameters(),
)
rng = np.random.default_rng(1)
figure, (top, bottom) = plt.subplots(
    2, 3, figsize=(9, 4.2), sharex=True, sharey=True, layout="constrained"
)
for number, left in enumerate((-3.0, -1.0, 1.0), start=1):
    X = rng.uniform(left, left + 2.0, (25, 1))
    Y = np.sin(2.0 * X) + 0.2 * rng.standard_normal(X.shape)
    model.update((X, Y))
    product = " × ".join(f"$t_{i}$" for i in range(1, number + 1))
    draw(top[number - 1], model, (X, Y), "tab:blue", f"prior × {product}")
    draw(bottom[number - 1], newest_alone(model), (X, Y), "tab:orange", f"prior × $t_{number}$")
