"""Influence of an outlier: PGVI thesis (2024), figure 4.1.

Two clients hold 100 points of Student's t with four degrees of freedom and unit variance; the model
takes them for draws of N(θ, 1), and θ for one of N(1, 2.5) (section 4.5.1). One more point at 2 to
14 standard deviations goes to the second client. Its influence is the Fisher-Rao distance between
the posteriors with it and without it.
Under the negative log likelihood it grows, whatever the divergence; under a robust loss it is
bounded and falls (theorem 19: losses bring robustness to the likelihood, divergences do not).

--quick takes half of the distances.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results
from tqdm import tqdm

from streaming_gp import losses, mixture, pvi
from streaming_gp.expfam import FisherRao, Renyi

DISTANCES = (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0)
NUMBER, DOF, PRIOR_MEAN, PRIOR_VARIANCE, ROUNDS = 100, 4.0, 1.0, 2.5, 10
METHODS: dict[str, dict[str, Any]] = {
    "KL, log likelihood": {},
    "Renyi 0.5, log likelihood": {"divergence": Renyi(0.5)},
    "KL, beta loss 1.5": {"loss": losses.BetaLoss(1.5)},
    "KL, gamma loss 1.5": {"loss": losses.GammaLoss(1.5)},
    "Renyi 0.5, beta loss 1.5": {"divergence": Renyi(0.5), "loss": losses.BetaLoss(1.5)},
}


def posterior(model: mixture.ClutterModel, shards: list[Any], settings: dict[str, Any]) -> Any:
    rule = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS(), **settings)
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule))
    pvi.fit(server, pvi.Sequential(), ROUNDS)
    return server.posterior


def influence(
    settings: dict[str, Any], prior_mean: float, Y: np.ndarray, distances: tuple[float, ...]
) -> list[float]:
    """Of one more point at each distance."""
    likelihood = mixture.Clutter([[1.0]])
    model = mixture.ClutterModel(likelihood, PRIOR_VARIANCE, prior_mean=prior_mean)
    first, second = np.array_split(Y, 2)
    base = posterior(model, [(None, first), (None, second)], settings)
    found = []
    for distance in distances:
        spoiled = np.concatenate([second, [[distance]]])
        q = posterior(model, [(None, first), (None, spoiled)], settings)
        found.append(float(FisherRao()(q, base.as_factor())))
    return found


def draw(results: Results, out: Path) -> None:
    figure, ax = plt.subplots(figsize=(7, 4.5), constrained_layout=True)
    for name, values in results["influence"].items():
        style = "--" if name.startswith("Renyi") else "-"
        ax.plot(results["distances"], values, style, marker="o", ms=4, label=name)
    ax.set(xlabel="distance of the outlier in standard deviations")
    ax.set(ylabel="influence (Fisher-Rao distance)")
    ax.legend()
    save_figure(figure, out, "influence.png")


def main(arguments: argparse.Namespace) -> None:
    distances = DISTANCES[1::2] if arguments.quick else DISTANCES
    rng = np.random.default_rng(arguments.seed)
    unit = np.sqrt((DOF - 2.0) / DOF)
    Y = unit * rng.standard_t(DOF, size=(NUMBER, 1))
    found = {
        name: influence(settings, arguments.prior_mean, Y, distances)
        for name, settings in tqdm(METHODS.items(), desc="methods")
    }
    for name, values in found.items():
        print(f"{name:26s}", " ".join(f"{value:.4f}" for value in values))
    results = {
        "seed": arguments.seed,
        "prior_mean": arguments.prior_mean,
        "distances": list(distances),
        "influence": found,
    }
    draw(results, arguments.out)
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--prior-mean", type=float, default=PRIOR_MEAN, help="of the location")
    run(main, options)
