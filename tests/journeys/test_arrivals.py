"""Groups of clients that come at once, and are asked again in turn."""

from dataclasses import dataclass

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import NumericalError
from streaming_gp.testing.problem import regression, shards_of_regression

GROUPS = [["c0", "c1"], ["c2"]]


@dataclass(frozen=True)
class Watched:
    """The exact update of a client, which writes down how much q knew; the first one may fail."""

    name: str
    seen: list
    fails: bool

    def __call__(self, task):
        self.seen.append((self.name, float(np.linalg.det(task.posterior.precision))))
        if self.fails and names(self.seen).count(self.name) == 1:
            raise NumericalError("not yet")
        return pvi.AnalyticUpdate()(task)


def watched(seen, failing=None):
    model, shards = regression(), shards_of_regression()
    rules = {name: Watched(name, seen, name == failing) for name in ("c0", "c1", "c2")}
    clients = {
        name: pvi.Client(name, model, shard, rule)
        for (name, rule), shard in zip(rules.items(), shards, strict=True)
    }
    return pvi.Server(model.prior(), clients)


def names(seen):
    return [name for name, _ in seen]


def test_a_group_is_asked_under_one_posterior_and_then_in_turn():
    seen = []
    pvi.fit(watched(seen), pvi.Arrivals(GROUPS), 2)
    assert names(seen) == ["c0", "c1", "c1", "c2"]
    knowledge = [precision for _, precision in seen]
    assert knowledge[0] == knowledge[1] < knowledge[2] == knowledge[3]


def test_first_answers_stay_if_nobody_is_to_be_asked_again():
    seen = []
    pvi.fit(watched(seen), pvi.Arrivals(GROUPS, again=False), 2)
    assert names(seen) == ["c0", "c1", "c2"]


def test_further_rounds_visit_groups_again_one_client_after_another():
    seen = []
    pvi.fit(watched(seen), pvi.Arrivals(GROUPS, again=False), 4)
    assert names(seen)[3:] == ["c0", "c1", "c2"]


def test_who_failed_at_first_is_new_when_it_is_asked_again():
    seen = []
    server = watched(seen, failing="c0")
    history = pvi.fit(server, pvi.Arrivals([["c0", "c1", "c2"]]), 2)
    assert names(seen) == ["c0", "c1", "c2", "c1", "c2", "c0", "c1", "c2"]
    assert set(history[0].failed) == {"c0"}
    assert set(server.factors) == {"c0", "c1", "c2"}
