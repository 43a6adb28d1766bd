"""Coordinators, sites and processes of Ray that are killed at any moment: the same result."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from streaming_gp import datasets, engines, linear, pvi
from tests.oracles.reference import assert_same

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, KILLS = 40, 20


def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 2))
    Y = (rng.uniform(size=(120, 1)) < 1.0 / (1.0 + np.exp(-X[:, :1]))).astype(float)
    return linear.logistic_regression(2), datasets.partition_iid(X, Y, 4)


KILLED = """
import os, random, signal, sys, time, warnings
warnings.simplefilter("ignore")
from streaming_gp import pvi
from streaming_gp.pvi import privacy
from tests.hostile.test_killed_federations import KILLS, ROUNDS, problem

folder, dice, deaths = sys.argv[1], random.Random(0), 0
while True:
    child = os.fork()  # before TensorFlow has computed anything
    if child == 0:
        model, shards = problem()
        pvi.run(model, shards, ROUNDS, checkpoint=f"{folder}/run.npz")
        os._exit(0)
    if deaths < KILLS:
        time.sleep(dice.uniform(0.0, 2.0))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if status == 0:
        break
    deaths += 1
print(deaths)
"""


@pytest.mark.slow
def test_a_coordinator_with_its_clients_killed_twenty_times_ends_the_same(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    model, shards = problem()
    killed = pvi.run(model, shards, ROUNDS, checkpoint=tmp_path / "run.npz")
    whole = pvi.run(model, shards, ROUNDS)
    assert len(killed.history) == ROUNDS
    assert_same(killed.posterior, whole.posterior, 0.0)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.xdist_group("one cluster")
@pytest.mark.parametrize("kills", [3, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_processes_of_ray_killed_at_any_moment_change_no_bit(kills):
    psutil, ray = pytest.importorskip("psutil"), pytest.importorskip("ray")
    model, shards = problem()
    over, deaths = threading.Event(), []

    def kill():
        dice = np.random.default_rng(0)
        while not over.is_set():
            time.sleep(dice.uniform(0.0, 1.0))
            workers = [
                one
                for one in psutil.Process().children(recursive=True)
                if "ray::_Pool" in " ".join(one.cmdline())
            ]
            if workers and len(deaths) < kills:
                victim = dice.choice(workers)
                os.kill(victim.pid, signal.SIGKILL)
                deaths.append(victim.pid)

    def wait(one):
        if one.round > 2 and len(deaths) < kills:
            time.sleep(0.5)  # rounds are short beside the start of a process

    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    threading.Thread(target=kill, daemon=True).start()
    try:
        server = pvi.Server(model.prior(), pvi.make_clients(model, shards, pvi.FixedPointUpdate()))
        engine = engines.Ray(max_restarts=10 * kills, pause=0.01)
        while len(deaths) < kills or len(server.history) < ROUNDS:
            pvi.fit(server, pvi.Synchronous(), 10, engine, callback=wait)
    finally:
        over.set()
        ray.shutdown()
    assert not any(one.unheard for one in server.history)
    whole = pvi.Server(model.prior(), pvi.make_clients(model, shards, pvi.FixedPointUpdate()))
    pvi.fit(whole, pvi.Synchronous(), len(server.history))
    assert_same(server.posterior, whole.posterior, 0.0)
