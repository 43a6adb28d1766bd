"""Partitioned generalised VI of networks on images: PGVI 2024, figures 5.6 and 5.7.

Kuzushiji-49 or CIFAR-10, divided among ten clients, and a network of 200 hidden units: VI and PVI
beside PGVI with a Rényi divergence, of α = 2.5 for characters and α = 1.5 for photographs. Where a
set is not to be had, Fashion-MNIST stands in for it, and the results say so.

Every run is kept in OUT/runs and never repeated. --quick trains on 6,000 images for a few rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import parser, run, save_figure, write_results
from federated_runs import fewer_images, kept, perform_missing
from generalised_mnist import Setting, Task, error_figure, perform, summary

from streaming_gp import datasets
from streaming_gp.datasets import DataNotFoundError, Split

Loader = Callable[[Path | None], Split]
SETS: dict[str, tuple[Loader, tuple[Setting, ...]]] = {
    "kuzushiji-49": (datasets.load_kuzushiji49, (Setting(clients=1), Setting(alpha=2.5))),
    "cifar-10": (datasets.load_cifar10, (Setting(), Setting(alpha=1.5))),
}


def images(name: str, folder: Path | None) -> tuple[str, Split]:
    """The set, or what stands in for it, by name."""
    try:
        return name, SETS[name][0](folder)
    except DataNotFoundError as error:
        print(f"Fashion-MNIST stands in for {name}: {error}")
        return "fashion-mnist", datasets.load_fashion_mnist(folder)


def main(arguments: argparse.Namespace) -> None:
    name, data = images(arguments.dataset, arguments.data)
    settings = SETS[arguments.dataset][1]
    data = fewer_images(data, arguments.quick)
    common = {"rule": "natural", "dataset": name, "seed": arguments.seed, "quick": arguments.quick}
    tasks = [Task(setting, **common) for setting in settings]
    perform_missing(tasks, partial(perform, data), arguments.out / "runs")
    runs = [
        one
        for one in kept(arguments.out / "runs", **common)
        if Setting(**one["setting"]) in settings
    ]
    figure = error_figure(runs, x="seconds", with_rate=False)
    save_figure(figure, arguments.out, f"{name}_divergence.png")
    flags = " --quick" * arguments.quick
    command = (
        f"python examples/generalised_images.py --dataset {arguments.dataset} "
        f"--seed {arguments.seed}{flags}"
    )
    results = {"command": command, "dataset": name, "summary": summary(runs), "runs": runs}
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--dataset", choices=list(SETS), default="kuzushiji-49")
    run(main, options)
