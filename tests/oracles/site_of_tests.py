"""The program of a place: python -m tests.oracles.site_of_tests ENGINE PLACE FLAG ADDRESS FILE.

FILE is the kit of NVFlare, or the secret of a SuperNode of Flower.
"""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from streaming_gp import engines, pvi
from streaming_gp.pvi.desk import Desk
from streaming_gp.pvi.task import decode_answer
from streaming_gp.testing.rounds import (
    Failing,
    regression,
    server_of_regression,
    shards_of_regression,
)
from tests.hostile import bad_data
from tests.oracles import traced

PLACES = "clinic-a", "clinic-b", "clinic-c"
NUM_DATA = 8


@dataclass(frozen=True)
class Killed:
    """A rule that ends its own process in the middle of a fit, the first time."""

    flag: str

    def __call__(self, task):
        if not Path(self.flag).exists():
            Path(self.flag).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return pvi.AnalyticUpdate()(task)


class Replaying(Desk):
    """Repeats the first answer of one site for ever."""

    first = None

    def _answer_to(self, task):
        if task.client_id != "replayed":
            return super()._answer_to(task)
        self.first = self.first or super()._answer_to(task)
        return self.first


def known(name, number, update=None, load=None):
    """A site with the shard of this number, at the place of this number."""
    rule = update or pvi.AnalyticUpdate()
    return pvi.Site(name, regression(), rule, NUM_DATA, load, place=PLACES[number])


def server_of(names):
    """A coordinator of sites of these names, one at each place."""
    sites = [known(name, number) for number, name in enumerate(names)]
    return pvi.Server(sites[0].model.prior(), sites)


def wanted(rounds):
    """Where as many rounds end in one process that has all data."""
    server = server_of_regression()
    pvi.fit(server, pvi.Synchronous(), rounds)
    return server


def patients(number, seed):
    """Rows that a clinic of the docs' page might have."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((number, 4))
    return X, (X[:, :1] - X[:, 1:2] + rng.logistic(size=(number, 1)) > 0.0).astype(float)


def sites_at(number, flag):
    def load():
        return shards_of_regression()[number]

    rules = {f"c{number}": pvi.AnalyticUpdate(), f"killed{number}": Killed(flag)}
    if number == 1:
        rules["replayed"] = pvi.AnalyticUpdate()
    if number == 2:
        rules["c1"] = Failing()
    plain = [known(name, number, rule, load) for name, rule in rules.items()]
    bad = bad_data.sites(PLACES[0]) if number == 0 else []
    return plain + bad + traced.sites(number, PLACES[number])


def answers_of_bad_data(engine):
    """What comes of every kind of bad data at the first place."""
    server = pvi.Server(bad_data.MODEL.prior(), bad_data.sites(PLACES[0], is_here=False))
    with engine.session(server.clients) as session:
        for name in server.clients:
            session.submit(server.ask(name), None)
        return [decode_answer(session.next().answer) for _ in server.clients]


def main(engine, place, flag, address, file):
    desk = Replaying(sites_at(PLACES.index(place), f"{flag}-{place}"))
    inbox = f"{flag}-result" if place == PLACES[0] else None
    connections = {
        "nvflare": lambda: engines.NVFlare(file, address=address, inbox=inbox),
        "flower": lambda: engines.Flower(address, file, inbox=inbox),
    }
    with connections[engine]().open(desk):
        desk.work()


if __name__ == "__main__":
    main(*sys.argv[1:])
