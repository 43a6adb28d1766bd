"""The coordinator's program: python -m experiments.measured.organisations_coordinator KIT PROBLEM.

It runs rounds over three organisations and saves after each. Started again after a crash, it goes
on from the file.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from experiments.measured.organisations_site import PROBLEMS, known_sites
from streaming_gp import engines, pvi

SCHEDULES: dict[str, pvi.Schedule] = {
    "synchronous": pvi.Synchronous(),
    "asynchronous": pvi.Asynchronous(damping=0.5),
}


def server_of(problem: str, path: Path | None = None) -> pvi.Server:
    """A server as it is in a file, or at its beginning."""
    sites = known_sites(problem)
    prior = sites[0].model.prior()
    if path is not None and path.exists():
        return pvi.Server.load(path, prior, {site.client_id: site for site in sites})
    return pvi.Server(prior, sites)


def say(one: pvi.Round) -> None:
    """One line for each round, with whoever failed or was refused."""
    print(f"round {one.round}", dict(one.failed), dict(one.refused), flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("kit", type=Path)
    options.add_argument("problem", choices=PROBLEMS)
    options.add_argument("--rounds", type=int, default=10, help="rounds in all")
    options.add_argument("--schedule", choices=SCHEDULES, default="synchronous")
    options.add_argument("--checkpoint", type=Path, default=Path("run.npz"))
    options.add_argument("--address", default=None, help="host:port to listen at")
    arguments = options.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    server = server_of(arguments.problem, arguments.checkpoint)
    left = arguments.rounds - len(server.history)
    if left > 0:
        pvi.fit(
            server,
            SCHEDULES[arguments.schedule],
            left,
            engines.NVFlare(arguments.kit, address=arguments.address),
            callback=say,
            checkpoint=arguments.checkpoint,
        )


if __name__ == "__main__":
    main()
