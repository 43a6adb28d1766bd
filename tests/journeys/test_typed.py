"""A user's program that uses the public names passes ``mypy --strict``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import gpflow
import numpy as np
from numpy.typing import NDArray

import streaming_gp as sgp
from streaming_gp import evaluate, pvi, runtime
from streaming_gp.surrogate import StreamingSurrogate
from streaming_gp.tables import read_csv

Array = NDArray[np.float64]


def stream(X: Array, Y: Array) -> tuple[Array, float]:
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints("all", budget=100),
        hyperparameters=sgp.VariationalHyperparameters(),
        learning=sgp.UntilSettled(),
    )
    info: sgp.UpdateInfo = model.update((X, Y))
    model.remove(info.batch_id)
    online = model.online(budget=50)
    online.update(X[0], Y[0])
    name: str | None = model.absorb(online)
    print(name, [factor.Z.shape for factor in model.factors.values()])
    model.export("predictor.npz")
    mean, _ = runtime.load("predictor.npz").predict_f(X)
    steps = list(evaluate.prequential(model, [(X, Y)]))
    return np.asarray(mean), evaluate.Summary(tuple(steps)).nlpd


def table(model: sgp.StreamingGP) -> int:
    known = sgp.TableGP(model, target="y")
    report = sgp.stream(read_csv("data.csv"), known)
    mean, deviation = known.predict({"x": [1.0]})
    print(mean + deviation)
    return report.num_rows


def minimise(model: sgp.StreamingGP, X: Array, Y: Array) -> None:
    surrogate = StreamingSurrogate(model)
    surrogate.update((X, Y))
    with surrogate.given(X, Y):
        print(surrogate.predict_joint(X)[0])


def federated(gp: sgp.StreamingGP, shards: list[tuple[Array, Array]]) -> None:
    clients = pvi.make_clients(gp, shards, update=sgp.GPUpdate())
    server = pvi.Server(gp.prior(), clients)
    pvi.fit(server, pvi.Synchronous(), rounds=2)
    gp.adopt(server.ledger)
"""


def checked(folder, program):
    """What mypy says; like any installed package, this one is read but not judged."""
    path = folder / "program.py"
    path.write_text(program)
    options = ["--strict", "--follow-imports=silent", "--config-file=", "--no-incremental"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(path)],
        env={**os.environ, "MYPYPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_strict_users_program_passes_and_a_wrong_one_does_not(tmp_path):
    pytest.importorskip("mypy")
    assert (ROOT / "streaming_gp" / "py.typed").is_file()
    right = checked(tmp_path, PROGRAM)
    assert right.returncode == 0, right.stdout
    wrong = checked(tmp_path, PROGRAM + "\n\nrows: str = table(sgp.StreamingGP)\n")
    assert wrong.returncode == 1
    assert "Incompatible types in assignment" in wrong.stdout
