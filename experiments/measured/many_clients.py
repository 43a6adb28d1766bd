"""Clients a second, the driver's memory and bytes, where there are very many clients.

Linear regression on ten inputs, twenty rows a client: with a full covariance (exact updates) and
with a mean field (natural gradients). In each round a thousand clients, drawn anew, answer under
one posterior. Every row of the table is a process of its own, so that its memory is its own; every
run is stopped in the middle and goes on from its checkpoint.

--quick has 2,000 clients and two rounds.
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
from common import parser, run, write_results

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


def measure(engine: str, model: str, clients: int, rounds: int, seed: int) -> dict[str, Any]:
    """One row of the table; the first round, in which clients are loaded, is apart."""
    family, rule = MODELS[model]
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((NUM_INPUTS, 1))
    X = rng.standard_normal((clients, NUM_ROWS, NUM_INPUTS))
    Y = X @ weights + 0.3 * rng.standard_normal((clients, NUM_ROWS, 1))
    regression = linear.BayesianLinearRegression(NUM_INPUTS, 0.09, family=family)
    own = pvi.make_clients(regression, list(zip(X, Y, strict=True)), rule)
    server, before = pvi.Server(regression.prior(), own, seed=seed), megabytes()
    schedule = pvi.Synchronous(fraction=min(1.0, A_ROUND / clients), seed=seed)
    path, half = Path(tempfile.mkdtemp()) / "run.npz", 1 + rounds // 2
    start = time.perf_counter()
    chosen: pvi.Engine = engines.Ray() if engine == "Ray" else engines.Serial()
    pvi.fit(server, schedule, half, chosen)
    server.save(path)
    server = pvi.Server.load(path, regression.prior(), own, seed=seed)
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


def main(arguments: argparse.Namespace) -> None:
    if arguments.row:
        print(json.dumps(measure(**json.loads(arguments.row), seed=arguments.seed)))
        return
    sizes = {"Serial": [10_000, 100_000], "Ray": [10_000]}
    rows: list[dict[str, Any]] = []
    for engine in sizes:
        for clients in [2000] if arguments.quick else sizes[engine]:
            for model in MODELS:
                asked: dict[str, Any] = {
                    "engine": engine,
                    "model": model,
                    "clients": clients,
                    "rounds": 2 if arguments.quick else 10,
                }
                command = [sys.executable, "-m", "experiments.measured.many_clients"]
                options = ["--row", json.dumps(asked), "--seed", str(arguments.seed)]
                done = subprocess.run([*command, *options], capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(done.stderr[-2000:])
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                print({name: rows[-1][name] for name in (*asked, "clients_a_second")}, flush=True)
    results = {
        "command": "python -m experiments.measured.many_clients" + " --quick" * arguments.quick,
        "rows": rows,
    }
    write_results(arguments.out, results)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--row", default="", help="one row of the table, as JSON")
    run(main, options)
