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
# # A robot arm in real time
#
# A controller needs the torques that a movement will take, a thousand times a second, from a
# model that learns while the arm moves. Here is an arm with two joints, computed from its
# equations of motion; the measured pages have a real arm with seven.

# %%
import time

import gpflow
import matplotlib.pyplot as plt
import numpy as np

import streaming_gp as sgp

GRAVITY, LENGTH, MASS = 9.81, 0.4, 1.0


def torques(q, speed, acceleration):
    """Of a planar arm of two equal links with point masses at their ends: [N, 2] each."""
    inertia, bend = MASS * LENGTH**2, q[:, 1]
    m11, m12 = inertia * (3.0 + 2.0 * np.cos(bend)), inertia * (1.0 + np.cos(bend))
    h = inertia * np.sin(bend)
    weight = MASS * GRAVITY * LENGTH
    lower = weight * np.cos(q[:, 0] + bend)
    first = m11 * acceleration[:, 0] + m12 * acceleration[:, 1]
    first -= h * (2.0 * speed[:, 0] + speed[:, 1]) * speed[:, 1]
    second = m12 * acceleration[:, 0] + inertia * acceleration[:, 1] + h * speed[:, 0] ** 2
    return np.stack([first + 2.0 * weight * np.cos(q[:, 0]) + lower, second + lower], axis=1)


# %% [markdown]
# ## The movement
#
# Ten seconds of a smooth movement, sampled at 200 Hz. Inputs are positions, speeds and
# accelerations; the output is the torque of the first joint, measured with noise.

# %%
rng = np.random.default_rng(0)
moment = np.arange(0.0, 10.0, 0.005)[:, None]
rate = 2.0 * np.pi * np.array([[0.31, 0.47], [0.83, 0.59]])
phase = rng.uniform(0.0, 2.0 * np.pi, (2, 2))
waves = [0.6 * np.sin(rate[k] * moment + phase[k]) for k in range(2)]
slopes = [0.6 * rate[k] * np.cos(rate[k] * moment + phase[k]) for k in range(2)]
q, speed = sum(waves), sum(slopes)
acceleration = sum(-(rate[k] ** 2) * waves[k] for k in range(2))
X = np.hstack([q, speed, acceleration])
exact = torques(q, speed, acceleration)[:, :1]
X = (X - X.mean(axis=0)) / X.std(axis=0)
scale = exact.std()
Y = (exact + 0.02 * scale * rng.standard_normal(exact.shape)) / scale

# %% [markdown]
# ## One second to learn what kind of function it is
#
# The first second comes as a batch, from which hyperparameters are learned.

# %%
model = sgp.StreamingGP(
    gpflow.kernels.SquaredExponential(lengthscales=np.full(6, 2.0)),
    gpflow.likelihoods.Gaussian(0.01),
    pseudo_points=sgp.PrivatePseudoPoints("all", budget=300),
)
model.update((X[:200], Y[:200]))

# %% [markdown]
# ## Nine seconds, one sample at a time
#
# Each torque is predicted before it is learned.

# %%
online = model.online(budget=300)
predicted, seconds = [], []
for x, y in zip(X[200:], Y[200:], strict=True):
    start = time.perf_counter()
    mean, variance = online.predict(x)
    between = time.perf_counter()
    online.update(x, y)
    predicted.append((float(mean[0]), float(variance[0])))
    seconds.append((between - start, time.perf_counter() - between))
mean, variance = np.array(predicted).T
print("predict and update, median: {:.3f} and {:.3f} ms".format(*1e3 * np.median(seconds, axis=0)))

# %%
figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 5), sharex=True, layout="constrained")
top.plot(moment[200:], Y[200:], color="0.5", lw=2, label="measured")
top.plot(moment[200:], mean, color="tab:blue", lw=1, label="predicted")
top.set_ylabel("torque, standardised")
top.legend()
bottom.semilogy(moment[200:], np.abs(mean - Y[200:, 0]), ".", ms=2, label="error")
bottom.semilogy(moment[200:], 2.0 * np.sqrt(variance), lw=1, label="2 sd of the model")
bottom.set(xlabel="seconds", ylabel="error")
bottom.legend()
plt.show()

# %% [markdown]
# The error falls as the movement comes back to where it has been.
#
# ## Back into the model
#
# What was learned on the way becomes one factor, and the model can learn hyperparameters anew
# from the next batch.

# %%
name = model.absorb(online)
error = np.mean((np.asarray(model.predict_f(X)[0]) - exact / scale) ** 2)
print(f"{name}: {error:.5f} of the variance is left, over the whole movement")
