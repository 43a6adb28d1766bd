"""Lies within the limits: how far one client can move a posterior that refuses nothing of it.

Ten clients with a hundred rows each of a linear regression, whose exact posterior is known. One of
them learns from targets of the other sign, or answers as surely, and as far away, as the checks
allow. For each way to combine answers: how far the posterior's mean then is from the exact one, in
the exact posterior's standard deviations, and how wide the posterior is; and the same with honest
clients, whose shards are iid, sorted by an input, or have one input each that is not zero, which
two clients have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from common import Results

from experiments.means import mean_and_error
from streaming_gp import datasets, linear, pvi
from streaming_gp.expfam import Factor

LIAR, CLIENTS, ROWS, INPUTS, NOISE, ROUNDS, DAMPING = "c3", 10, 100, 5, 0.25, 12, 0.7
RULES: dict[str, Any] = {
    "sum": DAMPING,
    "trimmed mean, a fifth": pvi.TrimmedMean(DAMPING, fraction=0.2),
    "median": pvi.Median(DAMPING),
    "bounded influence, 0.5": pvi.BoundedInfluence(DAMPING, max_shift=0.5),
    "agreement, 3": pvi.Agreement(DAMPING, max_disagreement=3.0),
    "agreement, then influence 0.5": pvi.BoundedInfluence(pvi.Agreement(DAMPING), max_shift=0.5),
}


@dataclass(frozen=True)
class Flipped:
    """Learns from targets of the other sign."""

    rule: pvi.AnalyticUpdate

    def __call__(self, task: pvi.LocalTask) -> pvi.LocalResult:
        X, Y = task.data
        return self.rule(replace(task, data=(X, -Y)))


@dataclass(frozen=True)
class Surest:
    """As sure as the checks allow, and nearly as far as they allow from where the posterior is."""

    rule: pvi.AnalyticUpdate

    def __call__(self, task: pvi.LocalTask) -> pvi.LocalResult:
        q, checks = task.posterior, pvi.Checks()
        far = 0.99 * checks.max_shift * np.sqrt(q.variance)
        most = 0.99 * checks.max_precision_per_datum * task.num_data
        precision = most * np.asarray(task.model.prior().precision)
        factor = Factor(type(q), (precision @ (np.asarray(q.mean) + far), precision))
        return replace(self.rule(task), factor=factor)


WAYS: dict[str, Any] = {"honest": None, "flipped": Flipped, "surest": Surest}
PARTS = ("iid", "sorted by an input", "one input each")


def shards_of(partition: str, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((CLIENTS * ROWS, INPUTS))
    Y = X @ rng.standard_normal((INPUTS, 1)) + np.sqrt(NOISE) * rng.standard_normal((len(X), 1))
    if partition == "iid":
        return datasets.partition_iid(X, Y, CLIENTS)
    if partition == "one input each":
        weights, noise = rng.standard_normal((INPUTS, 1)), rng.standard_normal(Y.shape)
        X = X * np.eye(INPUTS)[np.arange(len(X)) % CLIENTS % INPUTS]
        Y = X @ weights + np.sqrt(NOISE) * noise
        return [(X[client::CLIENTS], Y[client::CLIENTS]) for client in range(CLIENTS)]
    return [(X[rows], Y[rows]) for rows in np.array_split(np.argsort(X[:, 0]), CLIENTS)]


def perform(rule: Any, partition: str, way: str, seed: int) -> Results:
    """One run, with the default checks."""
    model, shards = linear.BayesianLinearRegression(INPUTS, NOISE), shards_of(partition, seed)
    clients = pvi.make_clients(model, shards, pvi.AnalyticUpdate())
    exact = pvi.Server(model.prior(), clients)
    pvi.fit(exact, pvi.Sequential())
    if WAYS[way] is not None:
        clients = {**clients, LIAR: replace(clients[LIAR], update=WAYS[way](pvi.AnalyticUpdate()))}
    server = pvi.Server(model.prior(), clients)
    history = pvi.fit(server, pvi.Synchronous(damping=rule), ROUNDS)
    q, p = server.posterior, exact.posterior
    moved = (np.asarray(q.mean) - np.asarray(p.mean)) ** 2 / np.asarray(p.variance)
    return {
        "moved": float(np.sqrt(np.mean(moved))),
        "width": float(np.sqrt(np.mean(np.asarray(q.variance) / np.asarray(p.variance)))),
        "refused": sum(len(one.refused) for one in history),
    }


def lies(seed: int, repetitions: int) -> list[Results]:
    """One row for each rule and partition, means over repetitions."""
    rows = []
    for partition in PARTS:
        for name, rule in RULES.items():
            row: Results = {"shards": partition, "rule": name}
            for way in WAYS:
                runs = [perform(rule, partition, way, seed + k) for k in range(repetitions)]
                for key in ("moved", "width"):
                    row[f"{way}_{key}"] = mean_and_error(runs, key)[0]
                row[f"{way}_refused"] = sum(one["refused"] for one in runs)
            print(row, flush=True)
            rows.append(row)
    return rows
