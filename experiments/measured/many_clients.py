"""Clients a second, the driver's memory and bytes, where there are very many clients.

Linear regression on ten inputs, twenty rows a client: with a full covariance (exact updates) and
with a mean field (natural gradients). In each round a thousand clients, drawn anew, answer under
one posterior. Every row of a table is a process of its own, so that its memory is its own; every
run is stopped in the middle and goes on from its checkpoint. --flower PYTHON runs Flower's own
simulation beside them, in an environment that has it and Ray; a second table has how long clients
take to begin on Ray.

Rows are kept in OUT/runs and never repeated: stop and start again at will. --quick has 2,000
clients and two rounds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import parser, run, write_json, write_results

from streaming_gp import engines, linear, pvi
from streaming_gp.expfam import MeanFieldNormal, Normal

NUM_ROWS, NUM_INPUTS, A_ROUND = 20, 10, 1000
MODELS: dict[str, Any] = {
    "full covariance": (Normal, pvi.AnalyticUpdate()),
    "mean field": (MeanFieldNormal, pvi.FixedPointUpdate()),
}


def megabytes() -> float:
    """The largest memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def federation(model: str, clients: int, seed: int) -> tuple[np.ndarray, pvi.Server]:
    """The weights [D, 1], and a server of so many clients that look for them."""
    family, rule = MODELS[model]
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((NUM_INPUTS, 1))
    X = rng.standard_normal((clients, NUM_ROWS, NUM_INPUTS))
    Y = X @ weights + 0.3 * rng.standard_normal((clients, NUM_ROWS, 1))
    regression = linear.BayesianLinearRegression(NUM_INPUTS, 0.09, family=family)
    own = pvi.make_clients(regression, list(zip(X, Y, strict=True)), rule)
    return weights, pvi.Server(regression.prior(), own, seed=seed)


def measure(engine: str, model: str, clients: int, rounds: int, seed: int) -> dict[str, Any]:
    """One row of the table; the first round, in which clients are loaded, is apart."""
    weights, server = federation(model, clients, seed)
    before = megabytes()
    schedule = pvi.Synchronous(fraction=min(1.0, A_ROUND / clients), seed=seed)
    path, half = Path(tempfile.mkdtemp()) / "run.npz", 1 + rounds // 2
    start = time.perf_counter()
    chosen: pvi.Engine = engines.Ray() if engine == "Ray" else engines.Serial()
    pvi.fit(server, schedule, half, chosen)
    server.save(path)
    server = pvi.Server.load(path, server.prior, server.clients, seed=seed)
    history = pvi.fit(server, schedule, rounds + 1 - half, chosen)
    answers = [one.accepted for one in history]
    steady = history[half - 1].seconds - history[0].seconds
    return {
        "engine": engine,
        "model": model,
        "clients": clients,
        "rounds": len(history),
        "first_round": history[0].seconds,
        "clients_a_second": sum(answers[1:half]) / steady if steady > 0.0 else float("nan"),
        "seconds": time.perf_counter() - start,
        "megabytes": megabytes() - before,
        "bytes": (history[-1].bytes_up + history[-1].bytes_down) / sum(answers),
        "file": path.stat().st_size / 2**20,
        "failed": sum(len(one.unheard) for one in history),
        "error": float(np.abs(np.asarray(server.posterior.mean) - weights[:, 0]).max()),
    }


def begin(clients: int, seed: int) -> dict[str, Any]:
    """The seconds until each of so many clients has answered once on Ray, the cluster's start
    included, and what the processes of the pool hold then.
    """
    _, server = federation("full covariance", clients, seed)
    start = time.perf_counter()
    with engines.Ray().session(server.clients) as session:
        report = server.visit(session, list(server.clients), pvi.Damping(None, clients))
        seconds = time.perf_counter() - start
        family = psutil.Process().children(recursive=True)
        pool = [one for one in family if "ray::_Pool" in " ".join(one.cmdline())]
        return {
            "clients": clients,
            "seconds": seconds,
            "processes": len(pool),
            "megabytes": sum(one.memory_full_info().uss for one in pool) / 2**20,
            "processor_seconds": sum(sum(one.cpu_times()[:2]) for one in pool),
            "failed": len(report.unheard),
        }


def row_of(path: Path, command: list[str]) -> dict[str, Any]:
    """What a process of its own prints last, which is kept."""
    if not path.exists():
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise SystemExit(done.stderr[-2000:])
        write_json(path, json.loads(lines[-1]))
    row: dict[str, Any] = json.loads(path.read_text())
    print(row, flush=True)
    return row


def main(arguments: argparse.Namespace) -> None:
    if arguments.row:
        asked = json.loads(arguments.row)
        row = measure(**asked, seed=arguments.seed) if "engine" in asked else begin(**asked)
        print(json.dumps(row))
        return
    runs, seed = arguments.out / ("runs-quick" * arguments.quick or "runs"), str(arguments.seed)
    sizes, rounds = {"Serial": [10_000, 100_000], "Ray": [10_000]}, 10
    if arguments.quick:
        sizes, rounds = {engine: [2000] for engine in sizes}, 2

    def kept(name: str, **asked: Any) -> dict[str, Any]:
        command = [sys.executable, "-m", "experiments.measured.many_clients", "--seed", seed]
        return row_of(runs / f"{name}.json", [*command, "--row", json.dumps(asked)])

    rows = [
        kept(f"{engine}-{model}-{n}", engine=engine, model=model, clients=n, rounds=rounds)
        for engine in sizes
        for n in sizes[engine]
        for model in MODELS
    ]
    if arguments.flower:
        options = ["--clients", str(sizes["Ray"][0]), "--rounds", str(rounds + 1), "--seed", seed]
        program = [arguments.flower, "-m", "experiments.measured.many_clients_flower"]
        rows.append(row_of(runs / "flower.json", [*program, *options]))
    begun = [kept(f"begin-{n}", clients=n, seed=arguments.seed) for n in (1, 500)]
    begun[1]["megabytes_each"] = (begun[1]["megabytes"] - begun[0]["megabytes"]) / 499
    begun[0]["megabytes_each"] = None
    write_results(arguments.out, {"rows": rows, "begin": begun})


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--row", default="", help="one row of a table, as JSON")
    options.add_argument("--flower", default="", help="the Python of an environment with Flower")
    run(main, options)
