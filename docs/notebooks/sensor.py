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
# # Stream a sensor
#
# A thermometer sends a packet of readings every few hours, and keeps none of them. The model
# learns each packet when it comes, holds at most 200 points, and answers at any time.

# %%
import gpflow
import matplotlib.pyplot as plt
import numpy as np

import streaming_gp as sgp
from streaming_gp import plotting
from streaming_gp.evaluate import Summary, prequential

# %% [markdown]
# ## The sensor
#
# A day's swing, a slow drift over two weeks, and noise of half a degree. Two packets a day for
# twelve days; the sixth day is lost.


# %%
def temperature(day):
    return 15.0 + 5.0 * np.sin(2.0 * np.pi * day) + 3.0 * np.sin(2.0 * np.pi * day / 14.0)


def packets(rng):
    for start in np.arange(0.0, 12.0, 0.5):
        if not 5.0 <= start < 6.0:
            day = np.sort(rng.uniform(start, start + 0.5, (40, 1)), axis=0)
            yield day, temperature(day) + 0.5 * rng.standard_normal(day.shape)


# %% [markdown]
# ## The model
#
# A kernel for the day's swing and one for the weather. Noise, lengthscales and variances are
# learned on the way. A point is kept at every input until there are 200 of them, and from then on
# those that matter most.

# %%
kernel = gpflow.kernels.Periodic(
    gpflow.kernels.SquaredExponential(variance=10.0), period=1.0
) + gpflow.kernels.SquaredExponential(variance=10.0, lengthscales=5.0)
gpflow.set_trainable(kernel.kernels[0].period, False)  # a day is a day

model = sgp.StreamingGP(
    kernel,
    gpflow.likelihoods.Gaussian(1.0),
    mean_function=gpflow.functions.Constant(15.0),
    pseudo_points=sgp.PrivatePseudoPoints("all", budget=200),
    learning=sgp.UntilSettled(),
)

# %% [markdown]
# ## Test, then train
#
# Every packet is predicted before it is learned, so that the stream scores itself.

# %%
steps = list(prequential(model, packets(np.random.default_rng(0)), keep=20))
summary = Summary(tuple(steps))
print(
    f"error before learning: {summary.smse:.3f} of the variance; {summary.nlpd:.2f} nats a reading"
)
print(f"noise: {np.sqrt(float(model.likelihood.variance.numpy())):.2f} degrees; it is 0.50")

# %%
figure, axes = plt.subplots(figsize=(9, 3.5), layout="constrained")
plotting.posterior(model, axes, limits=(0.0, 14.0))
day = np.linspace(0.0, 14.0, 400)
axes.plot(day, temperature(day), color="0.3", lw=0.8, ls=":")
axes.set(xlabel="day", ylabel="degrees")
plt.show()

# %% [markdown]
# The lost day is filled in by what the other days say of a day, with more uncertainty. The same
# holds for the two days to come. The dotted line is the truth.
#
# ## What it holds
#
# Factors: one for all older packets, which were merged and whose readings are gone, and those of
# the newest packets, which hold their readings.

# %%
plotting.ledger(model)
plt.show()

# %% [markdown]
# ## One reading at a time
#
# Where a packet has one reading and the next is due in a millisecond, an online object predicts
# and learns at the present hyperparameters.

# %%
online = model.online(budget=200)
rng = np.random.default_rng(1)
for moment in np.linspace(12.0, 13.0, 48)[:, None]:
    expected, variance = online.predict(moment)
    online.update(moment, temperature(moment) + 0.5 * rng.standard_normal(1))
name = model.absorb(online)
mean, variance = model.predict_f([[12.5]])
print(f"{name}: {float(mean[0, 0]):.1f} ± {2 * float(variance[0, 0]) ** 0.5:.1f} degrees at noon;")
print(f"the truth is {temperature(12.5):.1f}")
