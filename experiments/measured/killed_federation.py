"""Federations whose processes are killed (``kill -9``) at random moments, twenty times a kind.

A coordinator together with its clients goes on from its checkpoint; coordinators and sites of
organisations are started again, and connect again over NVFlare; Ray starts its processes again by
itself. In the end the posterior is compared, bit for bit, with that of one process that nobody
killed.

Every finished federation is kept in OUT/runs and never repeated: stop and start again at will.
--quick makes two kills of each kind; --only takes one kind. Coordinators and sites need the extra
nvflare.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import Results, parser, run, write_json, write_results

from experiments.measured import organisations, organisations_world
from experiments.measured.killed_stream import GLANCE, used
from experiments.measured.organisations_coordinator import server_of
from experiments.measured.organisations_site import PLACES
from streaming_gp import datasets, engines, linear, pvi

WANTED = 20
LONGEST = {
    "coordinator and clients": 2.0,
    "coordinator": 30.0,
    "site": 20.0,
    "process of Ray": 15.0,
}
"""The most seconds that a process lives, by kind; of the first those of its own processor time."""


def forked(work: Callable[..., Any], *arguments: Any) -> int:
    """A process at work that is a fork of this one, in which TensorFlow has computed nothing."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        work(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def is_same(one: pvi.Server, other: pvi.Server) -> bool:
    """Whether two posteriors are equal, bit for bit."""
    pairs = zip(one.posterior.natural, other.posterior.natural, strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def problem() -> tuple[pvi.Model, list[pvi.Data]]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 2))
    Y = (rng.uniform(size=(120, 1)) < 1.0 / (1.0 + np.exp(-X[:, :1]))).astype(float)
    return linear.logistic_regression(2), datasets.partition_iid(X, Y, 4)


def coordinator_and_clients(kind: str, most: int, rounds: int, dice: random.Random) -> Results:
    """One process, which goes on from its checkpoint in its next life."""
    kills = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"

        def live() -> None:
            pvi.run(*problem(), rounds, checkpoint=path)

        while True:
            process, end = forked(live), dice.uniform(0.0, LONGEST[kind])
            while kills < most and not os.waitid(
                os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT
            ):
                if used(process) > end:
                    os.kill(process, signal.SIGKILL)
                    kills += 1
                    break
                time.sleep(GLANCE)
            _, status = os.waitpid(process, 0)
            if status == 0:
                break
            if status != signal.SIGKILL:
                raise SystemExit(f"its process ended with {status}")
        model, shards = problem()
        server = pvi.run(model, shards, rounds, checkpoint=path)
    return {"kills": kills, "same": is_same(server, pvi.run(model, shards, rounds))}


def of_organisations(kind: str, most: int, rounds: int, dice: random.Random) -> Results:
    """The coordinator, or one of three sites."""
    organisations.one_thread_as_the_sites()
    kills, options = 0, ("logistic", "--rounds", str(rounds))
    with (
        tempfile.TemporaryDirectory() as scratch,
        organisations_world.world(
            Path(scratch) / "world", organisations_world.provision(Path(scratch) / "kits")
        ) as found,
    ):
        coordinator = found.begin_coordinator(*options)
        while kills < most:
            time.sleep(dice.uniform(0.0, LONGEST[kind]))
            if coordinator.poll() is not None:
                break
            if kind == "coordinator":
                found.kill(kind)
                coordinator = found.begin_coordinator(*options)
            else:
                place = dice.choice(PLACES)
                found.kill(place)
                found.begin_site(place)
            kills += 1
        organisations.finish(coordinator)
        server = server_of("logistic", found.checkpoint)
    return {"kills": kills, "same": is_same(server, organisations.serial("logistic", rounds))}


def process_of_ray(kind: str, most: int, rounds: int, dice: random.Random) -> Results:
    """One process of the pool after another, while a run goes on until there were enough."""
    import ray

    model, shards = problem()
    over = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not over.wait(dice.uniform(0.0, LONGEST[kind])) and len(killed) < most:
            family = psutil.Process().children(recursive=True)
            pool = [one for one in family if "ray::_Pool" in " ".join(one.cmdline())]
            if pool:
                victim = dice.choice(pool)
                victim.kill()
                killed.append(victim.pid)

    def wait(one: pvi.Round) -> None:
        if one.round > 2 and len(killed) < most:
            time.sleep(0.5)  # rounds are short beside the start of a process

    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    threading.Thread(target=kill, daemon=True).start()
    try:
        server = pvi.Server(model.prior(), pvi.make_clients(model, shards, pvi.FixedPointUpdate()))
        engine = engines.Ray(max_restarts=10 * most, pause=0.0)
        while len(killed) < most or len(server.history) < rounds:
            number = 10 if len(killed) < most else rounds - len(server.history)
            pvi.fit(server, pvi.Synchronous(), number, engine, callback=wait)
    finally:
        over.set()
        ray.shutdown()
    whole = pvi.run(model, shards, len(server.history), update=pvi.FixedPointUpdate())
    is_heard = not any(one.unheard for one in server.history)
    return {"kills": len(killed), "same": is_heard and is_same(server, whole)}


KINDS: dict[str, Callable[[str, int, int, random.Random], Results]] = {
    "coordinator and clients": coordinator_and_clients,
    "coordinator": of_organisations,
    "site": of_organisations,
    "process of Ray": process_of_ray,
}


def perform(path: Path, kind: str, most: int, rounds: int, seed: int) -> None:
    """One federation, whose result is kept."""
    result = KINDS[kind](kind, most, rounds, random.Random(seed))
    write_json(path, {"kind": kind, "rounds": rounds, **result})


def main(arguments: argparse.Namespace) -> None:
    wanted, rounds = (2, 60) if arguments.quick else (WANTED, 200)
    rows = []
    for kind, part in KINDS.items():
        is_wanted = arguments.only in (None, kind)
        if is_wanted and part is of_organisations and not find_spec("nvflare"):
            print(f"{kind}: needs the extra nvflare")
            is_wanted = False
        done: list[Results] = []
        while (kills := sum(one["kills"] for one in done)) < wanted:
            seed = arguments.seed * 1000 + len(done)
            name = f"{kind.replace(' ', '-')}-{seed}{'-quick' * arguments.quick}.json"
            path = arguments.out / "runs" / name
            if not path.exists():
                if not is_wanted:
                    break
                process = forked(perform, path, kind, wanted - kills, rounds, seed)
                if os.waitpid(process, 0)[1]:
                    raise SystemExit(f"{kind}: a federation failed")
            done.append(json.loads(path.read_text()))
            print(done[-1], flush=True)
        if done:
            same = sum(one["same"] for one in done)
            rows.append({"kind": kind, "kills": kills, "federations": len(done), "same": same})
    write_results(arguments.out, {"rows": rows})


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--only", choices=list(KINDS), help="one kind")
    run(main, options)
