"""The methods of robot_arm.py: streaming GPs, and limits that see all data at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import gpflow
import numpy as np
import scipy.linalg
from common import Results

import streaming_gp as sgp
from streaming_gp.datasets import Split
from streaming_gp.gp import Candidates
from streaming_gp.gp.fit.points import greedy_variance
from streaming_gp.metrics import mean_negative_log_density, smse

NOISE_VARIANCE = 0.1
"""Where every method starts."""
POINTS_A_BATCH, POINTS_IN_ALL, MEMORY, EXACT_SUBSET = 10, 240, 1500, 2000

Batches = list[np.ndarray]
Runner = Callable[[Split, Batches, int], Iterator[Results]]


def kernel(dimension: int) -> gpflow.kernels.Kernel:
    """Where every method starts."""
    return gpflow.kernels.SquaredExponential(lengthscales=np.full(dimension, 4.0))


def scores(model: Any, data: Split) -> Results:
    density = model.predict_log_density((data.X_test, data.Y_test))
    return {
        "test_smse": smse(model.predict_f(data.X_test)[0], data.Y_test),
        "test_nlpd": mean_negative_log_density(density),
    }


# ---- streams ----


def started(
    data: Split,
    pseudo_points: Any,
    hyperparameters: Any,
    seed: int,
    optimiser: sgp.LocalOptimiser | None = None,
    alpha: float = 0.0,
) -> sgp.StreamingGP:
    """Before its first batch."""
    return sgp.StreamingGP(
        kernel(data.X.shape[1]),
        gpflow.likelihoods.Gaussian(NOISE_VARIANCE),
        pseudo_points=pseudo_points,
        hyperparameters=hyperparameters,
        optimiser=optimiser,
        seed=seed,
        alpha=alpha,
    )


def streaming(
    pseudo_points: Any,
    hyperparameters: Any,
    optimiser: sgp.LocalOptimiser | None = None,
    alpha: float = 0.0,
) -> Runner:
    def stream(data: Split, batches: Batches, seed: int) -> Iterator[Results]:
        model = started(data, pseudo_points, hyperparameters, seed, optimiser, alpha)
        for rows in batches:
            info = model.update((data.X[rows], data.Y[rows]))
            points = model.posterior_process.num_pseudo_points
            yield {"pseudo_points": points, "seconds": info.seconds, **scores(model, data)}

    return stream


def limited_memory(data: Split, batches: Batches, seed: int) -> Iterator[Results]:
    """An exact GP on the newest points, trained from scratch after every batch."""
    for number in range(1, len(batches) + 1):
        start = time.perf_counter()
        rows = np.concatenate(batches[:number])[-MEMORY:]
        model = gpflow.models.GPR((data.X[rows], data.Y[rows]), kernel(data.X.shape[1]))
        train(model, 20)
        yield {
            "pseudo_points": len(rows),
            "seconds": time.perf_counter() - start,
            **scores(model, data),
        }


# ---- limits: all data at once ----


def batch_sgpr(data: Split, batches: Batches, seed: int) -> Iterator[Results]:
    """Titsias' bound on all data, with as many points as the streams end with."""
    start = time.perf_counter()
    rows, prior = np.concatenate(batches), kernel(data.X.shape[1])
    X = data.X[rows]

    variance = prior(X, full_cov=False).numpy()
    candidates = Candidates(
        X,
        variance,
        lambda some: prior(X, X[some]).numpy(),
        lambda some: prior(X[some]).numpy(),
        lambda: np.ones(len(X)),
    )
    chosen = greedy_variance(candidates, POINTS_IN_ALL)
    model = gpflow.models.SGPR((X, data.Y[rows]), prior, X[chosen])
    train(model, 300)
    seconds = time.perf_counter() - start
    yield {"pseudo_points": POINTS_IN_ALL, "seconds": seconds, **scores(model, data)}


def sgpr_at_streamed_points(data: Split, batches: Batches, seed: int) -> Iterator[Results]:
    """The same at the points that the first stream ends with: what choosing them batch by batch
    costs, apart from what compressing batches does.
    """
    start = time.perf_counter()
    rows = np.concatenate(batches)
    rows = rows[np.argsort(data.X[rows, 0], kind="stable")]
    stream = started(data, sgp.PrivatePseudoPoints(POINTS_A_BATCH), VI, seed)
    for batch in np.array_split(rows, len(batches)):
        stream.update((data.X[batch], data.Y[batch]))
    Z = np.concatenate([one.Z for one in stream.posterior_process.pseudo_observations])
    model = gpflow.models.SGPR((data.X[rows], data.Y[rows]), kernel(data.X.shape[1]), Z)
    gpflow.set_trainable(model.inducing_variable, False)
    train(model, 100)
    seconds = time.perf_counter() - start
    yield {"pseudo_points": len(Z), "seconds": seconds, **scores(model, data)}


def exact(data: Split, batches: Batches, seed: int) -> Iterator[Results]:
    """The exact GP on all data; its hyperparameters are trained on a random subset."""
    start = time.perf_counter()
    rows = np.concatenate(batches)
    X, Y = data.X[rows], data.Y[rows]
    subset = np.random.default_rng(seed).permutation(len(X))[:EXACT_SUBSET]
    model = gpflow.models.GPR((X[subset], Y[subset]), kernel(X.shape[1]))
    train(model, 100)
    noise = float(model.likelihood.variance.numpy())
    K = model.kernel(X).numpy()
    K[np.diag_indices_from(K)] += noise
    factor = scipy.linalg.cho_factor(K, lower=True, overwrite_a=True, check_finite=False)
    cross = model.kernel(X, data.X_test).numpy()
    mean = cross.T @ scipy.linalg.cho_solve(factor, Y, check_finite=False)
    white = scipy.linalg.solve_triangular(factor[0], cross, lower=True, check_finite=False)
    prior_variance = model.kernel(data.X_test, full_cov=False).numpy()
    variance = (prior_variance - np.sum(white**2, axis=0))[:, None] + noise
    density = -0.5 * (np.log(2.0 * np.pi * variance) + (data.Y_test - mean) ** 2 / variance)
    yield {
        "pseudo_points": len(X),
        "seconds": time.perf_counter() - start,
        "test_smse": smse(mean, data.Y_test),
        "test_nlpd": mean_negative_log_density(density),
    }


def train(model: Any, max_iterations: int) -> None:
    """From the noise variance that the streams start at."""
    model.likelihood.variance.assign(NOISE_VARIANCE)
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options={"maxiter": max_iterations}
    )


VI = sgp.VariationalHyperparameters()
ML = sgp.PointHyperparameters(remember=False)
FORGETTING = sgp.VariationalHyperparameters(forgetting_factor=0.7)
"""Early batches were fitted with few points, which the bound takes for noise: let that fade."""
AT_INPUTS = sgp.PrivatePseudoPoints("all", budget=POINTS_IN_ALL)
SHARED_POINTS = sgp.SharedPseudoPoints(POINTS_IN_ALL, growth=POINTS_A_BATCH, kept_batches=1)
SHARED = sgp.LocalOptimiser(max_iterations=10, location_iterations=20)
"""Fewer iterations, more of them at the centre of q(ε): with up to 240 locations to move, this
still takes nearly as long as the private points' 50."""
ANEW = sgp.SharedPseudoPoints(POINTS_IN_ALL, kept_batches=1)
STAYING = sgp.SharedPseudoPoints(POINTS_IN_ALL, kept_batches=1, fresh=0)
"""All points from the first batch, each update starting where they are: as in the published code of
Bui et al. (2017a), which also takes 50 iterations a batch."""

INDEPENDENT = sgp.IndependentPseudoPoints(POINTS_IN_ALL, growth=POINTS_A_BATCH)
"""As the growing shared points, but for a posterior in which they do not depend on ε."""

STREAMS: dict[str, Runner] = {
    "private VI": streaming(sgp.PrivatePseudoPoints(POINTS_A_BATCH), VI),
    "private VI forgetting": streaming(sgp.PrivatePseudoPoints(POINTS_A_BATCH), FORGETTING),
    "private VI power EP": streaming(sgp.PrivatePseudoPoints(POINTS_A_BATCH), VI, alpha=0.5),
    "automatic VI": streaming(sgp.PrivatePseudoPoints("auto"), VI),
    "automatic VI forgetting": streaming(sgp.PrivatePseudoPoints("auto"), FORGETTING),
    "inputs VI": streaming(AT_INPUTS, VI),
    "inputs VI forgetting": streaming(AT_INPUTS, FORGETTING),
    "private ML": streaming(sgp.PrivatePseudoPoints(POINTS_A_BATCH), ML),
    "conditional VI": streaming(sgp.ConditionalPseudoPoints(POINTS_A_BATCH), VI),
    "independent VI": streaming(INDEPENDENT, VI, SHARED),
    "shared VI from the first batch": streaming(ANEW, VI, SHARED),
    "shared VI staying": streaming(STAYING, VI),
    "shared ML from the first batch": streaming(ANEW, sgp.PointHyperparameters()),
    "shared ML staying": streaming(STAYING, sgp.PointHyperparameters()),
    "shared VI": streaming(SHARED_POINTS, VI, SHARED),
    "shared VI forgetting": streaming(SHARED_POINTS, FORGETTING, SHARED),
    "exact GP with limited memory": limited_memory,
}
LIMITS: dict[str, Runner] = {
    "batch SGPR": batch_sgpr,
    "batch SGPR at streamed points": sgpr_at_streamed_points,
    "exact GP on all data": exact,
}
NOT_DRAWN = {
    "shared VI from the first batch",
    "shared ML from the first batch",
    "exact GP on all data",
}
"""Their errors differ from the others' by orders of magnitude: they are in the tables."""
METHODS = {**STREAMS, **LIMITS}
