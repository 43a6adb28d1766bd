"""Partitioned generalised VI of networks on photographs: PGVI 2024, section 5.2.3, figure 5.7.

CIFAR-10, divided among ten clients, a network 3072-200-10: PVI beside PGVI with a Rényi divergence
of α = 1.5. Where CIFAR-10 is not to be had, Fashion-MNIST stands in for it, and the results say so.

Every run is kept in OUT/runs and never repeated. --quick trains on 6,000 images for a few rounds.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import parser, run, save_figure, write_results
from federated_mnist import QUICK_IMAGES, perform_missing
from generalised_mnist import Setting, Task, error_figure, kept, perform, summary

from streaming_gp import datasets
from streaming_gp.datasets import DataNotFoundError, Split

SETTINGS = (Setting(), Setting(alpha=1.5))


def photographs(folder: Path | None) -> tuple[str, Split]:
    """CIFAR-10, or what stands in for it, by name."""
    try:
        return "cifar-10", datasets.load_cifar10(folder)
    except DataNotFoundError as error:
        print(f"Fashion-MNIST stands in for CIFAR-10: {error}")
        return "fashion-mnist", datasets.load_fashion_mnist(folder)


def main(arguments: argparse.Namespace) -> None:
    name, data = photographs(arguments.data)
    if arguments.quick:
        data = replace(data, X=data.X[:QUICK_IMAGES], Y=data.Y[:QUICK_IMAGES])
    common = {"rule": "natural", "dataset": name, "seed": arguments.seed, "quick": arguments.quick}
    tasks = [Task(setting, **common) for setting in SETTINGS]
    perform_missing(tasks, partial(perform, data), arguments.out / "runs")
    runs = [
        one
        for one in kept(arguments.out / "runs", **common)
        if Setting(**one["setting"]) in SETTINGS
    ]
    figure = error_figure(runs, x="seconds", with_rate=False)
    save_figure(figure, arguments.out, f"{name}_divergence.png")
    flags = " --quick" * arguments.quick
    command = f"python examples/generalised_images.py --seed {arguments.seed}{flags}"
    results = {"command": command, "dataset": name, "summary": summary(runs), "runs": runs}
    write_results(arguments.out, results)


if __name__ == "__main__":
    run(main, parser(__doc__))
