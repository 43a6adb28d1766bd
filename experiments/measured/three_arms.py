"""Three arms at three places, each of which streams its own batches into one Gaussian process.

A third of the Barrett data lies at each place, sorted by the position of another joint, so that the
arms move in different regions at any time. Their batches of 500 come one after another; each owns
ten private pseudo-points and is read, when its turn comes, by the place that it belongs to. The
coordinator holds the ledger and no data. Compared with one model that sees all batches, with fixed
and with variational hyperparameters: batches of the three places in turn, at once, and at once with
all but the first asked again. Each seed deals the rows anew.

--quick streams two batches of each place. --engine nvflare lets three processes answer, each with a
certificate of its own; it needs the extra nvflare. Every run is kept in OUT/runs and
never repeated.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np
from barrett_stream import standardised
from common import Results, parser, run, save_figure, write_json, write_results

import streaming_gp as sgp
from experiments.means import mean_and_error
from experiments.measured.organisations_site import PLACES
from experiments.measured.organisations_world import LOOPBACK, provision, world
from streaming_gp import datasets, engines, pvi, runtime
from streaming_gp.metrics import mean_negative_log_density, smse

JOINT, BATCH, BATCHES, QUICK_BATCHES = 2, 500, 8, 2
RULE = sgp.GPUpdate(keep_points=False)
HYPERPARAMETERS: Mapping[str, Callable[[], Any]] = {
    "fixed": sgp.FixedHyperparameters,
    "variational": sgp.VariationalHyperparameters,
}
ORDERS = ("one model", "in turn", "at once", "at once and again")


def arm(folder: Path | None) -> datasets.Split:
    """The third torque, and the inputs that it depends on, scaled."""
    return standardised(datasets.load_robot_arm("barrett", folder), JOINT)


def batch_of(folder: Path | None, seed: int, place: int, number: int) -> pvi.Data:
    """One batch of a place: its third of the rows is sorted by a joint of its own."""
    data = arm(folder)
    rows = np.random.default_rng(seed).permutation(len(data.X))[place :: len(PLACES)]
    rows = rows[np.argsort(data.X[rows, place], kind="stable")]
    chosen = rows[number * BATCH : (number + 1) * BATCH]
    return data.X[chosen], data.Y[chosen]


def gaussian_process(epsilon: str, seed: int) -> sgp.StreamingGP:
    """The model that all share."""
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=np.full(21, 4.0)),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(10),
        hyperparameters=HYPERPARAMETERS[epsilon](),
        seed=seed,
    )


def sites_at(
    place: int, epsilon: str, seed: int, number: int, folder: Path | None, gp: sgp.StreamingGP
) -> list[pvi.Site]:
    """A site for each batch of a place. Runs of other hyperparameters or seeds have their own."""
    name = PLACES[place]
    loads, rule = [partial(batch_of, folder, seed, place, i) for i in range(number)], RULE
    return [
        pvi.Site(batch_name(epsilon, seed, name, i), gp, rule, BATCH, load, place=name)
        for i, load in enumerate(loads)
    ]


def batch_name(epsilon: str, seed: int, place: str, number: int) -> str:
    """The name of a batch's factor."""
    return f"{epsilon} {seed} {place} {number}"


def schedule_of(epsilon: str, seed: int, number: int, order: str) -> pvi.Arrivals:
    """Batch by batch of each place: one after another, or those of all places together."""
    groups = [[batch_name(epsilon, seed, place, i) for place in PLACES] for i in range(number)]
    if order == "in turn":
        groups = [[name] for group in groups for name in group]
    return pvi.Arrivals(groups, again=order == "at once and again")


def scores(gp: sgp.StreamingGP, data: datasets.Split) -> Results:
    """On test points of all arms."""
    density = gp.predict_log_density((data.X_test, data.Y_test))
    found = smse(gp.predict_f(data.X_test)[0], data.Y_test)
    return {"smse": found, "nlpd": mean_negative_log_density(density)}


def together(arguments: argparse.Namespace, epsilon: str, seed: int, number: int) -> Results:
    """One model that all batches are sent to."""
    gp, data = gaussian_process(epsilon, seed), arm(arguments.data)
    curve, start = [], time.perf_counter()
    for i in range(number):
        for place in range(len(PLACES)):
            gp.update(batch_of(arguments.data, seed, place, i))
        curve.append(scores(gp, data))
    return {"curve": curve, "seconds": time.perf_counter() - start, "refused_or_failed": 0}


def apart(
    arguments: argparse.Namespace,
    epsilon: str,
    seed: int,
    number: int,
    order: str,
    engine: Any,
    publish: Callable[[sgp.StreamingGP], None],
) -> Results:
    """A coordinator, and places that keep their batches."""
    shared, merged = (gaussian_process(epsilon, seed) for _ in range(2))
    held = [
        sites_at(place, epsilon, seed, number, arguments.data, shared)
        for place in range(len(PLACES))
    ]
    data = arm(arguments.data)
    server = pvi.Server(shared.prior(), [site for place in held for site in place])

    def evaluate(_: Any) -> Results:
        merged.adopt(server.ledger)
        return scores(merged, data)

    schedule = schedule_of(epsilon, seed, number, order)
    history = pvi.fit(server, schedule, len(schedule.groups), engine, evaluate)
    publish(merged)
    every = len(schedule.groups) // number
    return {
        "curve": [dict(one.metrics) for one in history][every - 1 :: every],
        "seconds": history[-1].seconds,
        "refused_or_failed": sum(len(one.refused) + len(one.failed) for one in history),
        "kilobytes": (history[-1].bytes_up + history[-1].bytes_down) / 1024.0,
    }


def draw(runs: list[Results]) -> plt.Figure:
    kinds = [epsilon for epsilon in HYPERPARAMETERS if of(runs, epsilon, "one model")]
    figure, (axes,) = plt.subplots(
        1,
        len(kinds),
        figsize=(max(5.5, 4 * len(kinds)), 3.4),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for axis, epsilon in zip(axes, kinds, strict=True):
        for order in ORDERS:
            alike = of(runs, epsilon, order)
            if not alike:
                continue
            values = np.mean([[now["smse"] for now in one["curve"]] for one in alike], axis=0)
            axis.semilogy(range(1, len(values) + 1), values, label=order)
        axis.set(title=f"{epsilon} ε", xlabel="batches of each place")
    axes[0].set_ylabel("test SMSE")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def all_runs(
    arguments: argparse.Namespace,
    number: int,
    engine: Any,
    publish: Callable[[sgp.StreamingGP], None] = lambda _: None,
) -> list[Results]:
    def perform(epsilon: str, order: str, seed: int) -> Results:
        if order == "one model":
            return together(arguments, epsilon, seed, number)
        return apart(arguments, epsilon, seed, number, order, engine, publish)

    folder = arguments.out / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    for epsilon, order, seed in product(arguments.epsilon, ORDERS, seeds_of(arguments)):
        what = {"epsilon": epsilon, "order": order, "seed": seed}
        what |= {"batches": number, "engine": arguments.engine}
        path = folder / f"{'-'.join(map(str, what.values())).replace(' ', '-')}.json"
        if not path.exists():
            found = perform(epsilon, order, seed)
            write_json(path, {**what, **found["curve"][-1], **found})
        print(described(json.loads(path.read_text())), flush=True)
    wanted = {"batches": number, "engine": arguments.engine}
    every = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [one for one in every if wanted.items() <= one.items()]


def described(one: Results) -> str:
    return (
        f"{one['epsilon']} ε, {one['order']}, seed {one['seed']}: SMSE {one['smse']:.4f}, "
        f"NLPD {one['nlpd']:.3f}, {one['seconds']:.0f} s"
    )


def seeds_of(arguments: argparse.Namespace) -> range:
    """The seeds of all runs."""
    return range(arguments.seed, arguments.seed + arguments.seeds)


def summarised(runs: list[Results]) -> list[Results]:
    """Means over seeds of each kind of run, and how far it is from the one model of each seed."""
    rows: list[Results] = []
    for epsilon, order in product(HYPERPARAMETERS, ORDERS):
        one_model = {one["seed"]: one["smse"] for one in of(runs, epsilon, "one model")}
        alike = [one for one in of(runs, epsilon, order) if one["seed"] in one_model]
        if not alike:
            continue
        row: Results = {"epsilon": epsilon, "order": order, "seeds": len(alike)}
        row |= {
            key: float(np.mean([one[key] for one in alike])) for key in ("smse", "nlpd", "seconds")
        }
        row["refused_or_failed"] = sum(one["refused_or_failed"] for one in alike)
        relative = [{"beyond": one["smse"] / one_model[one["seed"]] - 1.0} for one in alike]
        row["smse_error"] = mean_and_error(alike, "smse")[1]
        row["beyond_one_model"], row["beyond_error"] = mean_and_error(relative, "beyond")
        rows.append(row)
    return rows


def of(runs: list[Results], epsilon: str, order: str) -> list[Results]:
    """Runs of one kind."""
    return [one for one in runs if (one["epsilon"], one["order"]) == (epsilon, order)]


def over_nvflare(arguments: argparse.Namespace, number: int) -> tuple[list[Results], list[Results]]:
    """The same, where each place is a process of its own, which is sent each result."""
    options = ["--batches", str(number), "--seeds", *map(str, seeds_of(arguments))]
    if arguments.data is not None:
        options += ["--data", str(arguments.data)]
    with tempfile.TemporaryDirectory() as scratch:
        kits = provision(Path(scratch) / "kits")
        with world(Path(scratch) / "world", kits, "three_arms_site", options) as found:
            address = f"{LOOPBACK}:{found.port}"
            engine = engines.NVFlare(found.kits / "coordinator", address=address)

            def publish(gp: sgp.StreamingGP) -> None:
                gp.export(found.folder / "predictor.npz")
                engine.publish(PLACES, (found.folder / "predictor.npz").read_bytes())

            runs, data = all_runs(arguments, number, engine, publish), arm(arguments.data)
            return runs, [received(found.folder, place, data) for place in PLACES]


def received(folder: Path, place: str, data: datasets.Split) -> Results:
    """How what a place has in its inbox predicts."""
    predictor = runtime.load(folder / f"{place}.npz")
    return {"place": place, "smse": smse(predictor.predict_f(data.X_test)[0], data.Y_test)}


def main(arguments: argparse.Namespace) -> None:
    number = QUICK_BATCHES if arguments.quick else BATCHES
    if arguments.engine == "serial":
        places: list[Results] = []
        runs = all_runs(arguments, number, engines.Serial())
    else:
        runs, places = over_nvflare(arguments, number)
    results = {
        "seed": arguments.seed,
        "summary": summarised(runs),
        "places": places,
        "runs": runs,
    }
    save_figure(draw(runs), arguments.out, "three_arms.png")
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=1, help="runs of each kind")
    options.add_argument("--epsilon", nargs="+", default=list(HYPERPARAMETERS), help="which runs")
    options.add_argument("--engine", choices=("serial", "nvflare"), default="serial")
    run(main, options)
