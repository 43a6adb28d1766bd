"""As many clients in Flower's own simulation: python -m experiments.measured.many_clients_flower.

The model of ``many_clients`` with a full covariance, whose exact factor every client gives. Clients
compute it by NumPy alone, and import nothing of this package: that is less work than ours do. For
an environment with the extra flower and Ray; one row of the table goes to the
standard output, as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from typing import Any

import numpy as np

NUM_ROWS, NUM_INPUTS, NOISE_VARIANCE = 20, 10, 0.09


def rows_of(client: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [N, D] and targets [N] of a client; weights are those of all."""
    weights = np.random.default_rng(seed).standard_normal(NUM_INPUTS)
    rng = np.random.default_rng([seed, client])
    X = rng.standard_normal((NUM_ROWS, NUM_INPUTS))
    return X, X @ weights + 0.3 * rng.standard_normal(NUM_ROWS)


def record_of(*arrays: np.ndarray) -> Any:
    from flwr.app import Array, ArrayRecord, RecordDict

    return RecordDict({"natural": ArrayRecord({str(i): Array(a) for i, a in enumerate(arrays)})})


def arrays_in(message: Any) -> list[np.ndarray]:
    return [array.numpy() for array in message.content["natural"].values()]


def client_app(seed: int) -> Any:
    """A client that answers a question of natural parameters with its own."""
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.query()
    def answer(message: Any, context: Any) -> Any:
        arrays_in(message)  # the posterior, which an exact factor does not depend on
        X, Y = rows_of(int(context.node_config["partition-id"]), seed)
        record = record_of(X.T @ Y / NOISE_VARIANCE, X.T @ X / NOISE_VARIANCE)
        return Message(record, reply_to=message)

    return app


def server_app(clients: int, a_round: int, rounds: int, seed: int) -> Any:
    """A server that asks clients, drawn anew in each round, and keeps the factor of each."""
    from flwr.app import Message
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        begin, dice = time.perf_counter(), random.Random(seed)
        while len(nodes := sorted(grid.get_node_ids())) < clients:
            time.sleep(0.1)
        natural = [np.zeros(NUM_INPUTS), np.eye(NUM_INPUTS)]
        factors: dict[int, list[np.ndarray]] = {}
        seconds, failed, num_bytes = [], 0, 0
        for _ in range(rounds):
            start, question = time.perf_counter(), record_of(*natural)
            asked = dice.sample(nodes, a_round)
            messages = [Message(question, node, "query") for node in asked]
            for reply in grid.send_and_receive(messages):
                if reply.has_error():
                    failed += 1
                    continue
                new = arrays_in(reply)
                old = factors.get(reply.metadata.src_node_id, [0.0, 0.0])
                natural = [a + b - c for a, b, c in zip(natural, new, old, strict=True)]
                factors[reply.metadata.src_node_id] = new
                num_bytes += 2 * sum(array.nbytes for array in new)
            seconds.append(time.perf_counter() - start)
        weights = np.random.default_rng(seed).standard_normal(NUM_INPUTS)
        row = {
            "engine": "Flower's simulation",
            "model": "full covariance",
            "clients": clients,
            "rounds": rounds,
            "first_round": seconds[0],
            "clients_a_second": (rounds - 1) * a_round / sum(seconds[1:]),
            "seconds": time.perf_counter() - begin,
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0 - memory,
            "bytes": num_bytes / max(1, rounds * a_round - failed),
            "file": None,
            "failed": failed,
            "error": float(np.abs(np.linalg.solve(natural[1], natural[0]) - weights).max()),
        }
        print(json.dumps(row), flush=True)

    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    return app


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--clients", type=int, default=10_000)
    options.add_argument("--a-round", type=int, default=1000, help="clients asked in a round")
    options.add_argument("--rounds", type=int, default=11)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    from flwr.simulation import run_simulation

    run_simulation(
        server_app(arguments.clients, arguments.a_round, arguments.rounds, arguments.seed),
        client_app(arguments.seed),
        arguments.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )


if __name__ == "__main__":
    main()
