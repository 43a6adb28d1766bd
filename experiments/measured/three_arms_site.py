"""The program of one arm's place.

``python -m experiments.measured.three_arms_site KIT --batches N``
"""

from __future__ import annotations

import argparse
import logging
import sys
from itertools import product
from pathlib import Path

from experiments.measured.organisations_site import PLACES
from experiments.measured.three_arms import HYPERPARAMETERS, gaussian_process, sites_at
from streaming_gp import engines, pvi
from streaming_gp.engines.nvflare import read_kit


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("kit", type=Path)
    options.add_argument("--address", default=None, help="host:port of the coordinator")
    options.add_argument("--batches", type=int, default=8)
    options.add_argument("--seeds", type=int, nargs="+", default=[0])
    options.add_argument("--data", type=Path, default=None, help="folder to look for data in first")
    options.add_argument("--folder", type=Path, default=Path(), help="where results are kept")
    arguments = options.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    name = read_kit(arguments.kit).name
    sites = [
        site
        for epsilon, seed in product(HYPERPARAMETERS, arguments.seeds)
        for site in sites_at(
            PLACES.index(name), epsilon, seed, arguments.batches, arguments.data,
            gaussian_process(epsilon, seed),
        )
    ]  # fmt: skip
    inbox = arguments.folder / f"{name}.npz"
    pvi.serve(sites, engines.NVFlare(arguments.kit, address=arguments.address, inbox=inbox))


if __name__ == "__main__":
    main()
