"""One Gaussian process over three places whose data may not be moved.

Each place has the values of one function in a region of its own and owns a factor, which is all
that it sends. In each round the server asks every place to fit its data under what all others say.
The result is drawn beside a model that was given all data at once; then one place withdraws.

--quick has three rounds in place of ten.
"""

from __future__ import annotations

import argparse

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from common import Results, parser, run, save_figure, write_results

import streaming_gp as sgp
from streaming_gp import engines, pvi
from streaming_gp.metrics import smse

PLACES = {"north": -3.0, "middle": -1.5, "south": 0.0}
GRID = np.linspace(-3.0, 3.0, 200)[:, None]
Shards = dict[str, tuple[np.ndarray, np.ndarray]]


def measured(seed: int) -> Shards:
    """Sixty values at each place, of the same function."""
    rng, shards = np.random.default_rng(seed), {}
    for place, left in PLACES.items():
        X = rng.uniform(left, left + 3.0, (60, 1))
        shards[place] = X, np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
    return shards


def gaussian_process(num_points: int, seed: int) -> sgp.StreamingGP:
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(num_points),
        hyperparameters=sgp.VariationalHyperparameters(),
        seed=seed,
    )


def draw_band(axes: plt.Axes, model: sgp.StreamingGP, label: str) -> None:
    mean, variance = (np.asarray(moment)[:, 0] for moment in model.predict_f(GRID))
    (line,) = axes.plot(GRID[:, 0], mean, label=label)
    width = 2.0 * np.sqrt(variance)
    axes.fill_between(GRID[:, 0], mean - width, mean + width, color=line.get_color(), alpha=0.2)


def main(arguments: argparse.Namespace) -> None:
    shards = measured(arguments.seed)
    gp = gaussian_process(10, arguments.seed)
    clients = pvi.make_clients(gp, shards, update=sgp.GPUpdate(), seed=arguments.seed)
    server = pvi.Server(gp.prior(), clients)
    records: list[Results] = []

    def note(one: pvi.Round) -> None:
        gp.adopt(server.ledger)
        error = smse(gp.predict_f(GRID)[0], np.sin(2.0 * GRID))
        records.append({"round": len(records) + 1, "messages": one.messages, "test_smse": error})
        print(f"round {len(records)}: test SMSE {error:.5f}, {one.messages} messages", flush=True)

    rounds = 3 if arguments.quick else 10
    pvi.fit(server, pvi.Synchronous(), rounds, engine=engines.Serial(), callback=note)

    pooled = gaussian_process(30, arguments.seed)
    X, Y = (np.concatenate(parts) for parts in zip(*shards.values(), strict=True))
    pooled.update((X, Y))
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5), sharey=True, layout="constrained")
    for place, (X, Y) in shards.items():
        left.plot(X[:, 0], Y[:, 0], ".", alpha=0.4, label=place)
    draw_band(left, gp, "three places")
    draw_band(left, pooled, "all data at once")
    left.legend()
    server.remove("south")  # divides out what this place has said
    gp.adopt(server.ledger)
    draw_band(right, gp, "without the south")
    right.legend()
    deviation = np.sqrt(gp.predict_f(np.array([[2.0]]))[1])[0, 0]
    print(f"without the south: standard deviation {deviation:.2f} at 2")
    save_figure(figure, arguments.out, "federated_gp.png")
    removed = {"client": "south", "deviation_at_2": float(deviation)}
    write_results(arguments.out, {"seed": arguments.seed, "rounds": records, "removed": removed})


if __name__ == "__main__":
    run(main, parser(__doc__))
