"""``streaming-gp demo``: a made-up sensor in five batches, each predicted before it is learned."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from streaming_gp.gp import PrivatePseudoPoints, StreamingGP
from streaming_gp.metrics import smse
from streaming_gp.tables import TableGP

NUM_BATCHES, ROWS = 5, 60


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Print how well each batch was predicted before it was learned."""
    import gpflow

    model = StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[0.5]),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=PrivatePseudoPoints("all", budget=200),
    )
    table, rng, scores = TableGP(model, "reading"), np.random.default_rng(asked.seed), []
    for number in range(NUM_BATCHES):
        batch = _batch(rng)
        if number:
            mean, _ = table.predict(batch)
            scores.append(float(smse(mean, batch["reading"][:, None])))
        table.update(batch)
        if not asked.json:
            score = f"SMSE {scores[-1]:.4f} before it was learned" if scores else "learned"
            print(f"batch {number + 1} of {NUM_BATCHES}: {score}", flush=True)
    if not asked.json:
        print("prior × factors: it works")
    return {"smse": scores, "rows": table.num_rows}


def _batch(rng: np.random.Generator) -> dict[str, np.ndarray]:
    hour = rng.uniform(0.0, 24.0, ROWS)
    reading = 20.0 + 5.0 * np.sin(hour / 3.0) + 0.3 * rng.standard_normal(ROWS)
    return {"hour": hour, "reading": reading}
