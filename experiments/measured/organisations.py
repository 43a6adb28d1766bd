"""Three organisations on this machine, each a process of its own with a certificate of its own.

Compares a logistic model and a network of 784, 200 and 10 units with the serial engine; measures
what a round costs beyond the sites' own work; searches all that travelled for plain numbers; and
kills sites and coordinator and cuts the network at random, ten times in one run.

--quick leaves three mishaps, and cuts the network for 3 s instead of 30.
Needs the extra nvflare.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common import Results, parser, run, write_results

from experiments.measured.organisations_coordinator import SCHEDULES, server_of
from experiments.measured.organisations_site import NUM_DATA, PLACES, PROBLEMS
from experiments.measured.organisations_world import World, provision, world
from streaming_gp import pvi
from streaming_gp.errors import StreamingGPError

ROUNDS, ROUNDS_OF_MISHAPS, ROUNDS_TO_OPTIMUM = 10, 60, 400
OUTAGE, QUICK_OUTAGE, RESTART = 30.0, 3.0, 1.0


def serial(problem: str, rounds: int) -> pvi.Server:
    """The same run in one process that holds all data."""
    chosen = PROBLEMS[problem]
    model = chosen.model()
    shards = {f"{problem}-{place}": chosen.shard(i) for i, place in enumerate(PLACES)}
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, chosen.update))
    pvi.fit(server, pvi.Synchronous(), rounds)
    return server


def one_thread_as_the_sites() -> None:
    """Sums of single precision depend on how many threads share them, and Adam on the rounding."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def difference(found: pvi.Server, wanted: pvi.Server) -> float:
    """The largest difference of natural parameters, relative to the largest of each."""
    pairs = zip(found.posterior.natural, wanted.posterior.natural, strict=True)
    return max(float(np.max(np.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)


def finish(coordinator: Any) -> None:
    """Wait for a coordinator's end."""
    for _ in coordinator.stdout:
        pass
    if coordinator.wait() != 0:
        raise StreamingGPError("the coordinator failed; its log says why")


def work(found: World, since: int) -> tuple[np.ndarray, int]:
    """The longest work of any site in each round, in seconds, and the number of processes."""
    lines = [
        [json.loads(line) for line in found.work_of(place).read_text().splitlines()[since:]]
        for place in PLACES
    ]
    seconds = np.array([[one["end"] - one["start"] for one in place] for place in lines])
    return seconds.max(axis=0), len({one["process"] for place in lines for one in place})


def undisturbed(found: World, problem: str, since: int) -> Results:
    """One run, compared with the serial one."""
    found.checkpoint.unlink(missing_ok=True)
    finish(found.begin_coordinator(problem, "--rounds", str(ROUNDS)))
    server = server_of(problem, found.checkpoint)
    rounds = np.diff(server.history.column("seconds"))
    worked, processes = work(found, since)
    return {
        "problem": problem,
        "rounds": ROUNDS,
        "difference": difference(server, serial(problem, ROUNDS)),
        "seconds_a_round": float(np.mean(rounds)),
        "seconds_of_work": float(np.mean(worked[1:])),
        "seconds_beyond_work": float(np.max(rounds - worked[1:])),
        "processes": processes,
        "plain_numbers": plain_numbers(found.wire.recorded, problem, server),
        "plain_numbers_in_the_file": plain_numbers(found.checkpoint.read_bytes(), problem, server),
        "megabytes": len(found.wire.recorded) / 2**20,
    }


def plain_numbers(record: bytes | bytearray, problem: str, server: pvi.Server) -> int:
    """How many of some hundred pieces of data, factors and posterior, of 32 bytes each, stand in a
    record as they stand in memory.
    """
    arrays = [part for i in range(len(PLACES)) for part in PROBLEMS[problem].shard(i)]
    for held in (server.posterior, *server.factors.values()):
        arrays += [np.asarray(part) for part in held.natural]
    pieces = [piece for array in arrays for piece in _pieces(array)]
    return sum(piece in record for piece in pieces)


def _pieces(array: np.ndarray) -> list[bytes]:
    """From ten places of an array, of either precision; without zeros, which are everywhere."""
    numbers = array.ravel()
    numbers = numbers[numbers != 0.0]
    starts = np.linspace(0, max(0, len(numbers) - 8), 10).astype(int)
    pairs = [(start, kind) for start in starts for kind in (np.float32, np.float64)]
    found = [numbers[start : start + 8].astype(kind).tobytes()[:32] for start, kind in pairs]
    return [piece for piece in found if len(set(piece)) > 8]


def mishap(found: World, kind: str, outage: float) -> None:
    """Let something go wrong, and put it right again."""
    if kind == "network":
        found.wire.cut()
        time.sleep(outage)
        found.wire.mend()
    elif kind == "coordinator":
        found.kill("coordinator")
    else:
        found.kill(kind)
        time.sleep(RESTART)
        found.begin_site(kind)


def disturbed(
    found: World, schedule: str, rounds: int, number: int, outage: float, seed: int
) -> Results:
    """A run of the logistic model with so many mishaps, at random rounds."""
    rng = random.Random(seed)
    kinds = [*PLACES, "coordinator", "network"]
    due = sorted(rng.sample(range(2, rounds - 1), number))
    chosen = ["network", "coordinator", PLACES[0]][:number]
    chosen += [rng.choice(kinds) for _ in range(number - len(chosen))]
    rng.shuffle(chosen)
    plan = list(zip(due, chosen, strict=True))
    options = ("logistic", "--rounds", str(rounds), "--schedule", schedule)
    found.checkpoint.unlink(missing_ok=True)
    coordinator, start, happened = found.begin_coordinator(*options), time.perf_counter(), []
    while line := coordinator.stdout.readline() if coordinator.stdout else "":
        if plan and int(line.split()[1]) >= plan[0][0]:
            at, kind = plan.pop(0)
            print(f"{schedule}, round {at}: {kind}", flush=True)
            mishap(found, kind, outage)
            happened.append({"round": at, "what": kind})
            if kind == "coordinator":
                coordinator = found.begin_coordinator(*options)
    if coordinator.wait() != 0:
        raise StreamingGPError("the coordinator failed; its log says why")
    server = server_of("logistic", found.checkpoint)
    wanted = rounds if schedule == "synchronous" else ROUNDS_TO_OPTIMUM
    return {
        "schedule": schedule,
        "rounds": len(server.history),
        "mishaps": len(happened),
        "what": happened,
        "failed": sum(len(one.failed) for one in server.history),
        "refused": sum(len(one.refused) for one in server.history),
        "difference": difference(server, serial("logistic", wanted)),
        "minutes": (time.perf_counter() - start) / 60.0,
    }


def main(arguments: argparse.Namespace) -> None:
    one_thread_as_the_sites()
    number = 3 if arguments.quick else 10
    outage = QUICK_OUTAGE if arguments.quick else OUTAGE
    with (
        tempfile.TemporaryDirectory() as scratch,
        world(Path(scratch) / "world", provision(Path(scratch) / "kits")) as found,
    ):
        calm: list[Results] = []
        for problem in PROBLEMS:
            calm.append(undisturbed(found, problem, len(calm) * ROUNDS))
            print(calm[-1], flush=True)
        rough = []
        for schedule in SCHEDULES:
            one = disturbed(found, schedule, ROUNDS_OF_MISHAPS, number, outage, arguments.seed)
            rough.append(one)
            print(rough[-1], flush=True)
    results = {
        "seed": arguments.seed,
        "data_points": NUM_DATA,
        "undisturbed": calm,
        "disturbed": rough,
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    run(main, parser(__doc__))
