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
# # Three hospitals, one model
#
# Three hospitals want one model of who comes back within a month, and may not pool their
# patients. Each keeps its data and owns one factor of a common posterior; only factors travel.

# %%
import matplotlib.pyplot as plt
import numpy as np

from streaming_gp import linear, pvi

NAMES = ("age", "visits", "length of stay", "medication")
TRUTH = np.array([0.8, 1.5, -1.0, 0.0])


def patients(rng, number, centre):
    X = rng.standard_normal((number, 4)) + centre
    came_back = rng.uniform(size=number) < 1.0 / (1.0 + np.exp(-(X @ TRUTH)))
    return X, came_back.astype(float)[:, None]


# %% [markdown]
# The hospitals differ: patients of the second are older, and the third is small.

# %%
rng = np.random.default_rng(0)
hospitals = {
    "city": patients(rng, 400, [0.0, 0.0, 0.0, 0.0]),
    "county": patients(rng, 300, [1.5, 0.0, 0.5, 0.0]),
    "village": patients(rng, 40, [0.0, 1.0, 0.0, 0.0]),
}

# %% [markdown]
# ## Rounds
#
# Each hospital fits its own factor under the posterior that has the factors of the others, and
# answers with natural parameters: a vector and a matrix, of the four weights, however many
# patients it has.

# %%
model = linear.logistic_regression(4, prior_variance=4.0)
update = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())


def fitted(shards, rounds):
    """The posterior after each round, and the server."""
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, update, seed=0))
    posteriors = []
    for _ in range(rounds):
        pvi.fit(server, pvi.Sequential(), rounds=1)
        posteriors.append(server.posterior)
    return posteriors, server


together, server = fitted([*hospitals.values()], rounds=4)
alone = {name: fitted([data], rounds=1)[0][-1] for name, data in hospitals.items()}
everything = tuple(np.concatenate(parts) for parts in zip(*hospitals.values(), strict=True))
(pooled,), _ = fitted([everything], rounds=1)

# %% [markdown]
# ## As if the patients were in one place
#
# Nobody may compute the pooled posterior; here it can be done for comparison. Distances are in
# its own standard deviations.

# %%
deviation = np.sqrt(np.diag(np.asarray(pooled.scale) @ np.asarray(pooled.scale).T))
for number, posterior in enumerate(together, start=1):
    distance = np.abs(np.asarray(posterior.mean) - np.asarray(pooled.mean)) / deviation
    print(f"round {number}: largest distance {distance.max():.4f}")

# %%
figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
shown = {**alone, "together": together[-1], "pooled": pooled}
for number, (name, posterior) in enumerate(shown.items()):
    scale = np.asarray(posterior.scale)
    width = 2.0 * np.sqrt(np.diag(scale @ scale.T))
    place = np.arange(4) + 0.13 * (number - 2)
    axes.errorbar(place, np.asarray(posterior.mean), width, fmt="o", ms=4, label=name)
axes.hlines(TRUTH, np.arange(4) - 0.32, np.arange(4) + 0.32, "k", lw=1, label="truth")
axes.set_xticks(np.arange(4), NAMES)
axes.set_ylabel("weight, ± 2 sd")
axes.legend(ncols=3)
plt.show()

# %% [markdown]
# The village alone knows next to nothing. Together the three know what one place with all
# patients would.
#
# ## A hospital leaves
#
# It takes its factor with it. What is left is what the others said, who had known of it when they
# said it; two more rounds without it settle that.

# %%
names = [*server.ledger.factors]
left = server.ledger.without(names[1]).posterior
print("without the county's factor:", np.round(np.asarray(left.mean), 2))
others = [data for name, data in hospitals.items() if name != "county"]
print("never asked:                ", np.round(np.asarray(fitted(others, 3)[0][-1].mean), 2))

# %% [markdown]
# Here all of it ran in one process. *Learn across organisations*, among the how-to pages,
# has the same with a process, a certificate and a door of its own for each hospital.
