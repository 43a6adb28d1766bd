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
# # How private pseudo-points work
#
# Every batch owns a few *pseudo-points*, and a factor that says what the batch told the function
# at them. A posterior is the prior times all factors. This notebook takes such a product apart.

# %%
import copy

import gpflow
import matplotlib.pyplot as plt
import numpy as np

import streaming_gp as sgp
from streaming_gp import plotting

rng = np.random.default_rng(1)


def observe(left, number=30):
    X = rng.uniform(left, left + 2.0, (number, 1))
    return X, np.sin(2.0 * X) + 0.2 * rng.standard_normal(X.shape)


def new_model(number, **options):
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=0.7),
        gpflow.likelihoods.Gaussian(0.05),
        pseudo_points=sgp.PrivatePseudoPoints(number, **options),
        hyperparameters=sgp.FixedHyperparameters(),
    )


# %% [markdown]
# ## A factor for each batch
#
# Three batches from three regions. Ticks are pseudo-inputs.

# %%
batches = {f"batch {k}": observe(left) for k, left in enumerate((-3.0, -1.0, 1.0), start=1)}
model = new_model(4)
figure, axes = plt.subplots(1, 3, figsize=(10, 3), sharey=True, layout="constrained")
for ax, (name, data) in zip(axes, batches.items(), strict=True):
    model.update(data, batch_id=name)
    plotting.posterior(model, ax, limits=(-3.5, 3.5), data=data)
    ax.set_title("prior × " + " × ".join(model.factors), fontsize=9)
plt.show()

# %% [markdown]
# ## Divide a factor out
#
# A batch leaves as it came: its factor is divided out, and nothing else changes. What remains is
# the posterior of the other two.

# %%
without = copy.deepcopy(model)
without.remove("batch 2")
never = new_model(4)
for name in ("batch 1", "batch 3"):
    never.update(batches[name], batch_id=name)
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
for ax, one, title in ((axes[0], without, "removed"), (axes[1], never, "never seen")):
    plotting.posterior(one, ax, limits=(-3.5, 3.5))
    ax.set_title(f"batch 2 {title}", fontsize=9)
plt.show()

# %% [markdown]
# They differ a little: the third batch chose its points when it knew of the second. To visit it
# again lets it choose anew, under all that is known now.

# %%
grid = np.linspace(-3.0, 3.0, 100)[:, None]
before = np.abs(without.predict_f(grid)[0] - never.predict_f(grid)[0]).max()
without.revisit("batch 3", batches["batch 3"])
after = np.abs(without.predict_f(grid)[0] - never.predict_f(grid)[0]).max()
print(f"largest difference of the means: {before:.4f}, and {after:.4f} after the revisit")

# %% [markdown]
# ## How many points?
#
# Fewer points say less of a batch, and what they cannot say stays uncertain. With one at every
# input nothing is lost. Here are 1, 2, 3, 5, 8 and all 30 for each batch.

# %%
figure, axes = plt.subplots(2, 3, figsize=(10, 5), sharex=True, sharey=True, layout="constrained")
exact = new_model("all")
for data in batches.values():
    exact.update(data)
for ax, number in zip(axes.ravel(), (1, 2, 3, 5, 8, "all"), strict=True):
    one = new_model(number)
    energies = [one.update(data).free_energy for data in batches.values()]
    plotting.posterior(one, ax, limits=(-3.5, 3.5))
    ax.plot(grid, exact.predict_f(grid)[0], color="0.3", lw=0.8, ls=":")
    ax.set_title(f"{number} a batch: free energy {sum(energies):.1f} nats", fontsize=9)
plt.show()

# %% [markdown]
# The free energy is a lower bound on the log evidence of the stream. It rises to the evidence
# itself: the distance is what the points have lost.
#
# ## A budget
#
# An endless stream needs an end to its points. Within a budget, older factors are merged onto
# fewer points, where this loses least.

# %%
bounded = new_model(4, budget=12)
for _ in range(3):
    for left in (-3.0, -2.0, -1.0, 0.0, 1.0):
        bounded.update(observe(left))
plotting.posterior(bounded, limits=(-3.5, 3.5))
plt.show()
print(f"{bounded.num_updates} batches, {bounded.posterior_process.num_pseudo_points} points")
