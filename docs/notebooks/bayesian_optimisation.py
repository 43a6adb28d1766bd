# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Optimise with pending experiments
#
# Three experiments run at once, and each takes its time. The model must know of those that are on
# their way, or it would ask for the same again, and it must forget what it assumed of them when
# their results come. A factor that is divided out does that exactly.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np

import streaming_gp as sgp
from streaming_gp.surrogate import StreamingSurrogate


def branin(X):
    """The Branin function on the unit square, standardised."""
    u, v = 15.0 * X[:, 0] - 5.0, 15.0 * X[:, 1]
    bowl = (v - 5.1 * u**2 / (4.0 * np.pi**2) + 5.0 * u / np.pi - 6.0) ** 2
    return ((bowl + (10.0 - 10.0 / (8.0 * np.pi)) * np.cos(u) - 44.81) / 51.95)[:, None]


LEAST = -1.0473

# %% [markdown]
# ## A surrogate
#
# A model with a point at every input and Gaussian noise is an exact GP. `update` absorbs new rows
# in milliseconds; `optimize` learns hyperparameters when rows have become a quarter more.

# %%
surrogate = StreamingSurrogate(
    sgp.StreamingGP(
        gpflow.kernels.Matern52(lengthscales=[0.3, 0.3]),
        gpflow.likelihoods.Gaussian(1e-4),
        pseudo_points=sgp.PrivatePseudoPoints("all"),
        hyperparameters=sgp.PointHyperparameters(),
    )
)
rng = np.random.default_rng(0)
X = rng.uniform(size=(6, 2))
Y = branin(X)
surrogate.optimize((X, Y))

# %% [markdown]
# ## Three at a time
#
# The next point is where the lower confidence bound is least. While it is measured it is
# *pending*: the model takes what it expects there for the result. Results come in the order in
# which they were asked for, three steps later.

# %%
running, best = {}, []
for step in range(24):
    near = X[np.argmin(Y)] + 0.05 * rng.standard_normal((500, 2))
    candidates = np.vstack([rng.uniform(size=(1500, 2)), np.clip(near, 0.0, 1.0)])
    mean, variance = map(np.asarray, surrogate.predict(candidates))
    chosen = candidates[[np.argmin(mean - 2.0 * np.sqrt(variance))]]
    running[f"run-{step}"] = chosen
    surrogate.add_pending(f"run-{step}", chosen)
    if len(running) == 3:
        name = next(iter(running))
        asked = running.pop(name)
        surrogate.remove_pending(name)
        X, Y = np.vstack([X, asked]), np.vstack([Y, branin(asked)])
        surrogate.optimize((X, Y))
    best.append(float(Y.min()))
print(f"best of {len(Y)}: {Y.min():.4f}; the least value is {LEAST}")

# %%
side = np.linspace(0.0, 1.0, 60)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
mean = np.asarray(surrogate.predict(grid)[0]).reshape(60, 60)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
shades = left.contourf(side, side, mean, levels=20, cmap="viridis")
left.plot(*X.T, "w.", ms=6, label="measured")
left.plot(*np.concatenate([*running.values()]).T, "r^", ms=7, label="pending")
left.legend(loc="upper right")
figure.colorbar(shades, ax=left)
right.semilogy(np.maximum(np.array(best) - LEAST, 1e-6), marker=".")
right.set(xlabel="step", ylabel="regret")
plt.show()

# %% [markdown]
# ## Forgotten exactly
#
# At fixed hyperparameters a model from which pending points were removed is the one that never
# had them, to rounding.

# %%
before = np.sqrt(surrogate.predict(grid)[1])
surrogate.add_pending("a guess", [[0.9, 0.9], [0.1, 0.1]])
meanwhile = np.sqrt(surrogate.predict(grid)[1])
surrogate.remove_pending("a guess")
after = np.sqrt(surrogate.predict(grid)[1])
print(f"two pending points lower standard deviations by up to {(before - meanwhile).max():.3f};")
print(f"without them these differ by {np.abs(after - before).max():.1e}")
