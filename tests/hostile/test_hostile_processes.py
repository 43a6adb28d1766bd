"""Clients in processes of their own that want to run code on the server, or to bring it down."""

import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from streaming_gp import engines, pvi
from streaming_gp.pvi.client import Resident
from tests.hostile.test_answers import MODEL, clients

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("one cluster")]
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Touches:
    """Whoever unpickles it makes a file, with the number of its own process."""

    path: str

    def __reduce__(self):
        code = f"open({self.path!r}, 'a').write(str(__import__('os').getpid()))"
        return exec, (code,)


class HeldBackError(Exception):
    """Cannot be unpickled: its arguments are not those that it was made with."""

    def __init__(self, one, two):
        super().__init__(one)


@dataclass(frozen=True)
class Hostile:
    """A rule that has its process answer with something else than a message."""

    kind: str
    path: str = ""
    home: int = field(default_factory=os.getpid)

    def __call__(self, task):
        if self.kind == "error":
            raise HeldBackError("one", "two")
        if self.kind == "exit":
            raise SystemExit(3)
        if self.kind == "death":
            os._exit(3)
        return pvi.AnalyticUpdate()(task)

    def __setstate__(self, state):
        """It begins where the client is, and changes how answers are sent from there."""
        self.__dict__.update(state)
        if os.getpid() == self.home:
            return
        honest = Resident.message

        def message(resident, task):
            if task.client_id != "c1":
                return honest(resident, task)
            if self.kind == "error that runs":
                raise RuntimeError(Touches(self.path))
            noise = {"noise": os.urandom(1000), "size": bytes(10**7)}
            return noise.get(self.kind) or Touches(self.path)

        if self.kind in ("object", "error that runs", "noise", "size"):
            Resident.message = message


KINDS = {
    "error": "HeldBackError: one",
    "exit": "SystemExit: 3",
    "death": "its process died 1 times",
    "size": "too large: 10000000 bytes",
    "object": "no message",
    "error that runs": "OtherError",
    "noise": "no npz archive",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_process_costs_its_own_answer_alone(tmp_path, kind):
    path, some = tmp_path / "touched", clients()
    some["c1"] = replace(some["c1"], update=Hostile(kind, str(path)))
    server = pvi.Server(MODEL.prior(), some)
    schedule = pvi.Synchronous(damping=1.0)
    pvi.fit(server, schedule, 1, engines.Ray(max_restarts=0))
    last = server.history[-1]
    assert KINDS[kind] in {**last.failed, **last.refused}["c1"]
    assert not path.exists() or str(os.getpid()) not in path.read_text()
    honest = pvi.Server(MODEL.prior(), {k: c for k, c in clients().items() if k != "c1"})
    pvi.fit(honest, schedule, 1)
    for one, other in zip(server.posterior.natural, honest.posterior.natural, strict=True):
        np.testing.assert_array_equal(one, other)


LISTENERS = """
import ipaddress, psutil
from streaming_gp import engines
from tests.hostile.test_answers import clients, pvi, MODEL

server = pvi.Server(MODEL.prior(), clients())
with engines.Ray().session(server.clients) as session:
    session.submit(server.ask("c1"), None)
    session.next()
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    found = {
        connection.laddr.ip
        for process in family
        for connection in process.net_connections("inet")
        if connection.status == "LISTEN"
    }
print(len(family), *found)
"""


@pytest.mark.slow
def test_a_cluster_of_our_own_listens_to_this_machine_alone():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("RAY_ADDRESS", None)
    run = subprocess.run(
        [sys.executable, "-c", LISTENERS], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    _, *addresses = run.stdout.splitlines()[-1].split()
    assert addresses
    assert all(address.removeprefix("::ffff:").startswith("127.") for address in addresses)
