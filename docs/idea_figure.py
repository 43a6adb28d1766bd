"""Draws the picture of the one idea."""

import gpflow
import matplotlib.pyplot as plt
import numpy as np

import streaming_gp as sgp


def make_model():
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=1.0, lengthscales=0.7),
        gpflow.likelihoods.Gaussian(0.05),
        pseudo_points=sgp.PrivatePseudoPoints(4),
        hyperparameters=sgp.FixedHyperparameters(),
        num_latent_gps=1,
    )


def draw(axes, model, batch, color, title):
    grid = np.linspace(-3.2, 3.2, 200)[:, None]
    mean, variance = (np.asarray(part)[:, 0] for part in model.predict_f(grid))
    width = 2.0 * np.sqrt(variance)
    axes.fill_between(grid[:, 0], mean - width, mean + width, color=color, alpha=0.2, linewidth=0)
    axes.plot(grid[:, 0], mean, color=color)
    axes.scatter(*batch, s=6, color="0.3", linewidths=0)
    axes.set_title(title, fontsize=9)
    axes.set_ylim(-2.6, 2.6)


rng = np.random.default_rng(1)
figure, (top, bottom) = plt.subplots(
    2, 3, figsize=(9, 4.2), sharex=True, sharey=True, layout="constrained"
)
stream = make_model()
for number, left in enumerate((-3.0, -1.0, 1.0), start=1):
    X = rng.uniform(left, left + 2.0, (25, 1))
    Y = np.sin(2.0 * X) + 0.2 * rng.standard_normal(X.shape)
    info = stream.update((X, Y))
    product = " × ".join(f"$t_{i}$" for i in range(1, number + 1))
    draw(top[number - 1], stream, (X, Y), "tab:blue", f"prior × {product}")
    alone = make_model()
    alone.update((X, Y))
    draw(bottom[number - 1], alone, (X, Y), "tab:orange", f"prior × $t_{number}$")
    for axes in (top[number - 1], bottom[number - 1]):
        Z = stream.factors[info.batch_id].Z
        axes.plot(Z, np.full_like(Z, -2.4), "k^", markersize=4)
