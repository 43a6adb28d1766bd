"""Every built-in schedule and engine passes the check that those of one's own are checked by."""

from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from streaming_gp import engines, pvi, testing


def slow(one):
    return pytest.param(one, marks=pytest.mark.slow)


SCHEDULES = [
    slow(pvi.Sequential()),
    pvi.Sequential(order="random", damping=0.5, seed=3),
    slow(pvi.Sequential(order=["c2", "c0"])),
    slow(pvi.Synchronous()),
    pvi.Synchronous(damping=pvi.Momentum(), fraction=0.5),
    slow(pvi.Synchronous(damping=pvi.OpinionPool(), durations=1.0)),
    pvi.Arrivals([["c2", "c0"], ["c1"]]),
    slow(pvi.Asynchronous()),
    pvi.Asynchronous(durations={"c0": 5.0, "c1": 1.0, "c2": 1.0}, staleness_power=1.0),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_schedules_keep_to_the_rules_of_a_round(schedule):
    testing.check_schedule(schedule)


@dataclass(frozen=True)
class Wrong:
    """A schedule that does one thing wrong."""

    how: str

    def round(self, server, session, number, progress):
        if self.how == "waits":
            session.next()
        ask = server.ask("c0")
        if self.how == "stranger":
            session.submit(replace(ask, client_id="c9"), None)
        session.submit(ask, None)
        if self.how == "twice":
            session.submit(ask, None)
        while self.how == "endless":
            session.next()
            session.submit(ask, None)
        raise NotImplementedError


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("waits", "waits for open questions only"),
        ("stranger", "only clients that exist are asked"),
        ("twice", "one open question at a time"),
        ("endless", "a round ends"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said(how, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_schedule(Wrong(how))


@pytest.mark.parametrize("engine", [engines.Serial(), engines.Serial(latency=3)])
def test_the_serial_engine_runs_clients(engine):
    testing.check_engine(engine)


@pytest.mark.ray
@pytest.mark.xdist_group("one cluster")
@pytest.mark.slow
def test_the_ray_engine_runs_clients():
    pytest.importorskip("ray")
    testing.check_engine(engines.Ray())


@dataclass(frozen=True)
class Losing:
    """An engine on which one client's answers are lost."""

    @contextmanager
    def session(self, clients):
        with engines.Serial().session(clients) as session:
            deliver = session.next
            session.next = lambda: lost(deliver(), "c1")
            yield session


def lost(delivery, name):
    return engines.Delivery(name, None, "lost") if delivery.client_id == name else delivery


def test_what_is_wrong_with_an_engine_is_said():
    with pytest.raises(AssertionError, match="the posterior that it has on the serial engine"):
        testing.check_engine(Losing())
    with pytest.raises(AssertionError, match="an engine has the method session"):
        testing.check_engine(object())
