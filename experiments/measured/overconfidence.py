"""Too few pseudo-points for the noise: how far from the truth are predictions at the points?

Streams of six points a batch of a smooth function of one input, and of a hundred points a batch of
one of two inputs, with noise from next to nothing to as much as the function. For each strategy:
the largest error at its pseudo-points and at the data, in predicted standard deviations, those of
the exact GP at the same hyperparameters beside it; what the updates themselves said of it; and
whether the model warned.

Every stream is kept in OUT/runs and never repeated. --quick makes two streams.
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import gpflow
import numpy as np
from common import Results, parser, run, write_json, write_results

import streaming_gp as sgp
from streaming_gp.errors import OverconfidenceWarning

FIXED: Any = sgp.FixedHyperparameters()
POINT: Any = sgp.PointHyperparameters()
PRIVATE, SHARED = sgp.PrivatePseudoPoints, sgp.SharedPseudoPoints
LINE: dict[str, tuple[Any, float, Any]] = {
    "3 private": (PRIVATE(3), 0.0, FIXED),
    "6 private": (PRIVATE(6), 0.0, FIXED),
    "3 private, alpha 1": (PRIVATE(3), 1.0, FIXED),
    "6 shared": (SHARED(6), 0.0, FIXED),
    "6 shared, learned": (SHARED(6), 0.0, POINT),
}
PLANE: dict[str, tuple[Any, float, Any]] = {
    "10 private": (PRIVATE(10), 0.0, FIXED),
    "30 shared": (SHARED(30), 0.0, FIXED),
}
NOISES = {"line": (1e-8, 1e-6, 1e-4, 1e-2, 1.0), "plane": (1e-4, 1e-2)}


def truth(X: np.ndarray) -> np.ndarray:
    return np.sin(2.0 * X) if X.shape[1] == 1 else np.sin(X[:, :1]) * np.cos(X[:, 1:])


def batches(place: str, noise: float, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng, found = np.random.default_rng(seed), []
    shape, reach, number = ((6, 1), 2.0, 4) if place == "line" else ((100, 2), 3.0, 6)
    for _ in range(number):
        X = rng.uniform(-reach, reach, shape)
        found.append((X, truth(X) + np.sqrt(noise) * rng.standard_normal((len(X), 1))))
    return found


def begun(place: str, strategy: tuple[Any, float, Any], noise: float) -> sgp.StreamingGP:
    points, alpha, hyperparameters = strategy
    likelihood = gpflow.likelihoods.Gaussian(variance_lower_bound=1e-12)
    likelihood.variance.assign(noise)
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=0.7 if place == "line" else 1.5),
        likelihood,
        pseudo_points=points,
        hyperparameters=hyperparameters,
        alpha=alpha,
        optimiser=sgp.LocalOptimiser(max_iterations=10, projection_iterations=10),
    )


def exact(model: sgp.StreamingGP, X: np.ndarray, Y: np.ndarray, at: np.ndarray) -> Any:
    """Mean and variance of f at the model's own hyperparameters (Rasmussen & Williams 2006)."""
    noise = float(model.likelihood.variance.numpy())
    L = np.linalg.cholesky(model.kernel(X).numpy() + noise * np.eye(len(X)))
    V = np.linalg.solve(L, model.kernel(X, at).numpy())
    variance = model.kernel(at, full_cov=False).numpy() - np.sum(V**2, axis=0)
    return (V.T @ np.linalg.solve(L, Y))[:, 0], variance


def largest(moments: Any, at: np.ndarray) -> float:
    """The largest error, in predicted standard deviations."""
    mean, variance = map(np.ravel, moments)
    return float(np.max(np.abs(mean - truth(at)[:, 0]) / np.sqrt(variance)))


def perform(place: str, name: str, noise: float, seed: int) -> Results:
    model = begun(place, {**LINE, **PLANE}[name], noise)
    data = batches(place, noise, seed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        infos = [model.update(batch) for batch in data]
    X, Y = (np.concatenate(parts) for parts in zip(*data, strict=True))
    factors = model.factors.values()
    Z = np.concatenate([one.Z for factor in factors for one in factor.pseudo_observations])
    return {
        "points": name,
        "noise": noise,
        "at_points": largest(model.predict_f(Z), Z),
        "exact_at_points": largest(exact(model, X, Y, Z), Z),
        "at_data": largest(model.predict_f(X), X),
        "exact_at_data": largest(exact(model, X, Y, X), X),
        "shown_error": max(info.shown_error or 0.0 for info in infos),
        "unexplained": max(info.unexplained for info in infos),
        "warned": any(one.category is OverconfidenceWarning for one in caught),
    }


def main(arguments: argparse.Namespace) -> None:
    names = {"line": LINE, "plane": PLANE}
    asked = [(p, n, v) for p, chosen in names.items() for n in chosen for v in NOISES[p]]
    if arguments.quick:
        asked = [("line", "3 private", 1e-4), ("line", "6 private", 1e-4)]
    rows = []
    for place, name, noise in asked:
        path = arguments.out / "runs" / f"{name} at {noise:g} seed {arguments.seed}.json"
        if not path.exists():
            write_json(path, perform(place, name, noise, arguments.seed))
        rows.append(json.loads(path.read_text()))
        print(rows[-1], flush=True)
        write_results(arguments.out, {"summary": rows})


if __name__ == "__main__":
    run(main, parser(__doc__))
