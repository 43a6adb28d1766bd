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
# # Classify a stream that drifts
#
# Two kinds of messages, told apart by two measurements. The border between them turns as the
# weeks go by. A model that remembers everything falls behind; one whose past fades keeps up.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np

import streaming_gp as sgp


def week(angle, rng, number=60):
    """Measurements and labels while the border lies at an angle."""
    X = rng.uniform(-2.0, 2.0, (number, 2))
    side = X @ [np.cos(angle), np.sin(angle)] + 0.3 * np.sin(3.0 * X[:, 0])
    return X, (side + 0.2 * rng.standard_normal(number) > 0.0).astype(float)[:, None]


ANGLES = np.linspace(0.0, 0.75 * np.pi, 10)

# %% [markdown]
# ## Two models
#
# Both have Bernoulli likelihoods and ten pseudo-points a week; one of them weakens old factors
# with every new week.


# %%
def new_model(forgetting):
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=4.0, lengthscales=[1.5, 1.5]),
        gpflow.likelihoods.Bernoulli(),
        pseudo_points=sgp.PrivatePseudoPoints(10, budget=60),
        hyperparameters=sgp.FixedHyperparameters(),
        forgetting=forgetting,
    )


models = {
    "remembers": new_model(sgp.ForgetNothing()),
    "fades": new_model(sgp.Fading(power=0.6)),
}
errors = {name: [] for name in models}
for number, angle in enumerate(ANGLES):
    X, Y = week(angle, np.random.default_rng(number))
    for name, model in models.items():
        probability, _ = model.predict_y(X)
        errors[name].append(float(np.mean((np.asarray(probability) > 0.5) != Y)))
        model.update((X, Y))

# %% [markdown]
# ## Test, then train

# %%
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
for name, values in errors.items():
    axes.plot(values, marker=".", label=f"{name}: {np.mean(values[4:]):.0%} wrong from week 4 on")
axes.set(xlabel="week", ylabel="wrong before learning", ylim=(0.0, None))
axes.legend()
plt.show()

# %% [markdown]
# ## What they believe in the end
#
# Dots are the last week's messages.

# %%
side = np.linspace(-2.0, 2.0, 50)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    probability = np.asarray(model.predict_y(grid)[0]).reshape(50, 50)
    shades = ax.contourf(side, side, probability, levels=np.linspace(0, 1, 11), cmap="coolwarm")
    ax.scatter(*X.T, c=Y[:, 0], cmap="coolwarm", edgecolors="k", linewidths=0.5, s=20)
    ax.set_title(name)
figure.colorbar(shades, ax=axes, label="probability of the second kind")
plt.show()

# %% [markdown]
# Where a change comes at once and rarely, an alarm on the log density is better than fading: see
# *Follow a function that changes* among the how-to pages.
