"""Three arms at three places, each of which streams its own batches into one Gaussian process.

A third of the Barrett data lies at each place, sorted by the position of another joint, so that the
arms move in different regions at any time. Their batches of 500 come one after another; each owns
ten private pseudo-points and is read, when its turn comes, by the place that it belongs to. The
coordinator holds the ledger and no data. Compared with one model that sees all batches, with fixed
and with variational hyperparameters: batches of the three places in turn, and at once.

--quick streams two batches of each place. --engine nvflare lets three processes answer, each with a
certificate of its own; it needs the extra streaming-gp[nvflare].
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gpflow
import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from barrett_stream import standardised
from common import Results, parser, run, save_figure, write_results
from organisations_site import PLACES
from organisations_world import LOOPBACK, provision, world

import streaming_gp as sgp
from streaming_gp import datasets, engines, pvi, runtime
from streaming_gp.metrics import mean_negative_log_density, smse
from streaming_gp.pvi.history import Traffic
from streaming_gp.pvi.schedule import collect, submit

JOINT, BATCH, BATCHES, QUICK_BATCHES = 2, 500, 8, 2
HYPERPARAMETERS: Mapping[str, Callable[[], Any]] = {
    "fixed": sgp.FixedHyperparameters,
    "variational": sgp.VariationalHyperparameters,
}
ORDERS = ("one model", "in turn", "at once")


def arm(folder: Path | None) -> datasets.Split:
    """The third torque, and the inputs that it depends on, scaled."""
    return standardised(datasets.load_robot_arm("barrett", folder), JOINT)


def batch_of(folder: Path | None, place: int, number: int) -> pvi.Data:
    """One batch of a place: its third of the rows is sorted by a joint of its own."""
    data = arm(folder)
    rows = np.random.default_rng(0).permutation(len(data.X))[place :: len(PLACES)]
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
    loads = [partial(batch_of, folder, place, i) for i in range(number)]
    return [
        pvi.Site(batch_name(epsilon, seed, name, i), gp, sgp.GPUpdate(), BATCH, load, place=name)
        for i, load in enumerate(loads)
    ]


def batch_name(epsilon: str, seed: int, place: str, number: int) -> str:
    """The name of a batch's factor."""
    return f"{epsilon} {seed} {place} {number}"


@dataclass(frozen=True)
class Arrivals:
    """Round t is the t-th batch of every place, which enters the ledger in full.

    :param epsilon: Which model's batches they are.
    :param seed: And of which seed.
    :param at_once: Whether they are asked under one posterior, or each under the newest.
    """

    epsilon: str
    seed: int
    at_once: bool

    def round(
        self, server: pvi.Server, session: pvi.Session, number: int, progress: float
    ) -> Traffic:
        names = [batch_name(self.epsilon, self.seed, place, number) for place in PLACES]
        if not self.at_once:
            return pvi.Sequential(names).round(server, session, number, progress)
        traffic, rule = Traffic(), pvi.Damping(1.0, len(names))
        submit(server, session, names, traffic, None)
        collect(server, session, rule, progress, traffic, len(names))
        return traffic


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
            gp.update(batch_of(arguments.data, place, i))
        curve.append(scores(gp, data))
    return {"curve": curve, "seconds": time.perf_counter() - start, "refused_or_failed": 0}


def apart(
    arguments: argparse.Namespace,
    epsilon: str,
    seed: int,
    number: int,
    at_once: bool,
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

    history = pvi.fit(server, Arrivals(epsilon, seed, at_once), number, engine, evaluate)
    publish(merged)
    return {
        "curve": [dict(one.metrics) for one in history],
        "seconds": history[-1].seconds,
        "refused_or_failed": sum(len(one.refused) + len(one.failed) for one in history),
        "kilobytes": (history[-1].bytes_up + history[-1].bytes_down) / 1024.0,
    }


def draw(runs: list[Results]) -> plt.Figure:
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    for axis, epsilon in zip(axes, HYPERPARAMETERS, strict=True):
        for order in ORDERS:
            alike = [one for one in runs if (one["epsilon"], one["order"]) == (epsilon, order)]
            values = np.mean([[now["smse"] for now in one["curve"]] for one in alike], axis=0)
            axis.semilogy(range(1, len(values) + 1), values, label=order)
        axis.set(title=f"{epsilon} ε", xlabel="batches of each place")
    axes[0].set_ylabel("test SMSE")
    axes[0].legend()
    return figure


def all_runs(
    arguments: argparse.Namespace,
    number: int,
    engine: Any,
    publish: Callable[[sgp.StreamingGP], None] = lambda _: None,
) -> list[Results]:
    runs: list[Results] = []
    for epsilon, order, seed in product(HYPERPARAMETERS, ORDERS, seeds_of(arguments)):
        found = (
            together(arguments, epsilon, seed, number)
            if order == "one model"
            else apart(arguments, epsilon, seed, number, order == "at once", engine, publish)
        )
        last = found["curve"][-1]
        runs.append({"epsilon": epsilon, "order": order, "seed": seed, **last, **found})
        print(
            f"{epsilon} ε, {order}, seed {seed}: SMSE {last['smse']:.4f}, "
            f"NLPD {last['nlpd']:.3f}, {found['seconds']:.0f} s",
            flush=True,
        )
    return runs


def seeds_of(arguments: argparse.Namespace) -> range:
    """The seeds of all runs."""
    return range(arguments.seed, arguments.seed + arguments.seeds)


def summarised(runs: list[Results]) -> list[Results]:
    """Means over seeds of each kind of run, beside that of the one model."""
    rows: list[Results] = []
    for epsilon, order in product(HYPERPARAMETERS, ORDERS):
        alike = [one for one in runs if (one["epsilon"], one["order"]) == (epsilon, order)]
        row: Results = {"epsilon": epsilon, "order": order, "seeds": len(alike)}
        row |= {
            key: float(np.mean([one[key] for one in alike])) for key in ("smse", "nlpd", "seconds")
        }
        row["refused_or_failed"] = sum(one["refused_or_failed"] for one in alike)
        one_model = (
            row if order == "one model" else next(r for r in rows if r["epsilon"] == epsilon)
        )
        row["beyond_one_model"] = row["smse"] / one_model["smse"] - 1.0
        rows.append(row)
    return rows


def over_nvflare(arguments: argparse.Namespace, number: int) -> tuple[list[Results], list[Results]]:
    """The same, where each place is a process of its own, which is sent each result."""
    options = ["--batches", str(number), "--seeds", *map(str, seeds_of(arguments))]
    if arguments.data is not None:
        options += ["--data", str(arguments.data)]
    with tempfile.TemporaryDirectory() as scratch:
        kits = provision(Path(scratch) / "kits")
        with world(Path(scratch) / "world", kits, "three_arms_site.py", options) as found:
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
    flags = " --quick" * arguments.quick + f" --engine {arguments.engine} --seeds {arguments.seeds}"
    results = {
        "command": f"python examples/three_arms.py{flags}",
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
    options.add_argument("--engine", choices=("serial", "nvflare"), default="serial")
    run(main, options)
