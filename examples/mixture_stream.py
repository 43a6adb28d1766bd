"""A stream of clusters: a Bayesian Gaussian mixture that grows with its data.

Batches arrive one after another, each from one cluster mostly, so that new clusters turn up as time
goes on. Each batch is one client of PVI with its own factor. A first pass is online variational
Bayes; further passes over the kept batches reach the posterior of all data at once, which stands
beside it. Components that no data have claimed yet keep their prior; ``mixture.BirthUpdate`` tries
one of them on data that the others explain badly. Draws data and components as the stream goes on.

--quick takes half of the batches, and one further pass.
"""

from __future__ import annotations

import argparse
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results
from matplotlib.patches import Ellipse
from tqdm import tqdm

from streaming_gp import mixture, pvi

CENTRES = np.array([[0.0, 0.0], [5.0, 1.0], [-3.0, 4.0], [3.0, 6.0], [-4.0, -3.0]])
SPREADS = (0.5, 0.8, 0.6, 0.7, 0.9)
COMPONENTS, PER_BATCH, PER_CLUSTER, PASSES, TEST = 8, 40, 4, 5, 500


def draw_points(rng: np.random.Generator, clusters: np.ndarray) -> np.ndarray:
    """One point of each of these clusters."""
    noise = rng.standard_normal((len(clusters), 2))
    found: np.ndarray = CENTRES[clusters] + np.take(SPREADS, clusters)[:, None] * noise
    return found


def stream(rng: np.random.Generator, number: int) -> list[np.ndarray]:
    """Batches: clusters appear one by one, and are seen now and then afterwards."""
    batches = []
    for batch in range(number):
        newest = min(batch // PER_CLUSTER, len(CENTRES) - 1)
        clusters = np.where(rng.uniform(size=PER_BATCH) < 0.8, newest, rng.integers(newest + 1))
        batches.append(draw_points(rng, clusters))
    return batches


def ellipses(ax: Any, model: mixture.GaussianMixture, q: Any) -> None:
    """Two standard deviations of each component in use."""
    covariances = (
        np.asarray(q.components.scale_inverse) / np.asarray(q.components.dof)[:, None, None]
    )
    for k in np.flatnonzero(model.claimed(q)):
        values, vectors = np.linalg.eigh(covariances[k])
        angle = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
        size = 4.0 * np.sqrt(values[::-1])
        ax.add_patch(
            Ellipse(q.components.mean[k], *size, angle=angle, fill=False, ec=f"C{k}", lw=2)
        )


def picture(ax: Any, model: mixture.GaussianMixture, q: Any, Y: np.ndarray, title: str) -> None:
    owner = np.argmax(model.responsibilities(q, Y), axis=1)
    ax.scatter(*Y.T, s=4, c=[f"C{k}" for k in owner], alpha=0.5)
    ellipses(ax, model, q)
    ax.set(title=title, xlim=(-8, 8), ylim=(-7, 9))


def main(arguments: argparse.Namespace) -> None:
    rng = np.random.default_rng(arguments.seed)
    batches = stream(rng, 10 if arguments.quick else 20)
    passes = 1 if arguments.quick else PASSES
    Y = np.concatenate(batches)
    test = draw_points(rng, rng.integers(len(CENTRES), size=TEST))
    model = mixture.GaussianMixture(
        COMPONENTS, 2, concentration=0.5, strength=0.05, covariance=9.0 * np.eye(2), dof=4.0
    )
    shards = [(None, batch) for batch in batches]
    clients = pvi.make_clients(model, shards, mixture.BirthUpdate(), arguments.seed)
    server = pvi.Server(model.prior(), clients)
    figure, axes = plt.subplots(2, 3, figsize=(13, 8), constrained_layout=True)
    shown = np.linspace(0, len(batches), 6, dtype=int)[1:-1] - 1
    panels = iter(axes.flat)
    records = []
    for number, name in enumerate(tqdm(clients, desc="batches")):
        pvi.fit(server, pvi.Sequential(order=[name]))
        q = server.posterior
        density = model.predict_log_density(q, test).mean()
        used = int(model.claimed(q).sum())
        records.append(
            {"batch": number + 1, "components": used, "test_log_density": float(density)}
        )
        if number in shown:
            seen = np.concatenate(batches[: number + 1])
            picture(next(panels), model, q, seen, f"after batch {number + 1}")
    picture(next(panels), model, server.posterior, Y, f"one pass over {len(batches)} batches")
    again = pvi.fit(server, pvi.Sequential(), passes)
    q = server.posterior
    picture(next(panels), model, q, Y, f"{passes} more passes")
    density = float(model.predict_log_density(q, test).mean())
    last = {"components": int(model.claimed(q).sum()), "test_log_density": density}
    print(
        f"after one pass {records[-1]}, after {passes} more {last}, {again[-1].messages} messages"
    )
    save_figure(figure, arguments.out, "mixture_stream.png")
    results: Results = {"seed": arguments.seed, "stream": records, "more_passes": last}
    write_results(arguments.out, results)


if __name__ == "__main__":
    run(main, parser(__doc__))
