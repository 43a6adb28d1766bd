"""Clients by name, read by whoever answers, in groups, without the systems of other engines."""

import sys
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from streaming_gp import engines, linear, pvi
from streaming_gp.engines.remote import keep, place_of, refuse_missed
from streaming_gp.errors import InvalidDataError, NoAnswerError, NumericalError
from streaming_gp.testing.rounds import regression, server_of_regression, shards_of_regression
from tests.oracles.reference import assert_same
from tests.oracles.site_of_tests import known

NUM_DATA = 8


@dataclass
class Loader:
    """Reads a shard, and counts how often."""

    shard: tuple
    reads: list = field(default_factory=list)

    def __call__(self):
        self.reads.append(1)
        return self.shard


@pytest.fixture
def loaders():
    return [Loader(shard) for shard in shards_of_regression()]


def sites(loaders, update=None, model=None):
    model, update = model or regression(), update or pvi.AnalyticUpdate()
    return [pvi.Site(f"c{i}", model, update, NUM_DATA, load) for i, load in enumerate(loaders)]


def server_of(clients, **options):
    return pvi.Server(clients[0].model.prior(), clients, **options)


def test_sites_are_the_clients_of_their_data(loaders):
    found, wanted = server_of(sites(loaders)), server_of_regression()
    for server in (found, wanted):
        pvi.fit(server, pvi.Synchronous(), 3)
    assert_same(found.posterior, wanted.posterior, 0.0)


def test_data_are_read_by_the_first_question_and_once(loaders):
    server = server_of(sites(loaders))
    pvi.fit(server, pvi.Sequential(order=["c0", "c2"]), 3)
    assert [len(loader.reads) for loader in loaders] == [1, 0, 1]


def missing():
    raise OSError("the disk of this clinic is on fire")


def hello():
    return np.zeros((NUM_DATA, 5)), np.zeros((NUM_DATA, 1))


BROKEN = {
    "no loader": (None, "site 'c1' has no loader: its data are elsewhere"),
    "no file": (missing, "the disk of this clinic is on fire"),
    "wrong shape": (hello, "the data of site 'c1'"),
    "other number": (Loader(shards_of_regression(num_data=6)[0]), "has 6 data points, but says 8"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_site_that_cannot_read_its_data_costs_its_own_answer(loaders, name, caplog):
    load, message = BROKEN[name]
    clients = sites(loaders)
    clients[1] = replace(clients[1], load=load)
    server = server_of(clients)
    (one,) = pvi.fit(server, pvi.Synchronous(), 1)
    assert set(one.failed) == {"c1"}
    assert one.failed["c1"].startswith("DataError: its data cannot be read")
    assert message in caplog.text
    assert message not in str(one)
    assert set(server.factors) == {"c0", "c2"}


def test_sites_and_clients_are_of_one_server(loaders):
    model = regression()
    mixed = sites(loaders, model=model)
    mixed[1] = pvi.Client("c1", model, loaders[1].shard, pvi.AnalyticUpdate())
    server = server_of(mixed)
    pvi.fit(server, pvi.Synchronous(), 1)
    assert set(server.factors) == {"c0", "c1", "c2"}


def test_what_a_site_says_it_holds_is_what_it_is_checked_by(loaders):
    bold = [
        replace(one, update=Sure(one.update), num_data=number, load=loader)
        for one, number, loader in zip(sites(loaders), (1, 8, 8), loaders, strict=True)
    ]
    loaders[0].shard = tuple(part[:1] for part in loaders[0].shard)
    server = server_of(bold, checks=pvi.Checks(max_precision_per_datum=20.0))
    (one,) = pvi.fit(server, pvi.Synchronous(), 1)
    assert set(one.refused) == {"c0"}
    assert "prior precisions for each data point" in one.refused["c0"]


@dataclass(frozen=True)
class Sure:
    """A rule that speaks for eight data points whatever it was given."""

    rule: object

    def __call__(self, task):
        X, Y = (np.resize(part, (NUM_DATA, part.shape[1])) for part in task.data)
        return self.rule(replace(task, data=(X, Y)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_data": 0}, "num_data"),
        ({"client_id": 3}, "a site's name"),
        ({"place": 3}, "a place's name"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_site_says_what_is_wrong_with_it(options, message):
    settings = {"client_id": "a", "num_data": 3} | options
    model = regression()
    with pytest.raises(InvalidDataError, match=message):
        pvi.Site(model=model, update=pvi.AnalyticUpdate(), **settings)


def test_two_sites_of_one_name_are_refused(loaders):
    first, second, _ = sites(loaders)
    with pytest.raises(InvalidDataError, match="two clients of one name"):
        server_of([first, replace(second, client_id="c0")])
    with pytest.raises(InvalidDataError, match="no clients"):
        pvi.Server(first.model.prior(), [])


def test_hyperparameters_are_learned_from_sites_as_from_clients(loaders):
    """The model of the server's process is told; that of a site is told by questions."""

    def learned(make):
        model = linear.BayesianLinearRegression(2, noise_variance=1.0)
        server = pvi.Server(model.prior(), make(model))
        pvi.fit(server, rounds=4, hyperparameters=pvi.LikelihoodParameters())
        return model.noise_variance

    far = linear.BayesianLinearRegression(2, noise_variance=1.0)

    def elsewhere(model):
        return [Elsewhere(one, far) for one in sites(loaders, model=model)]

    shards = shards_of_regression()
    wanted = learned(lambda model: pvi.make_clients(model, shards, pvi.AnalyticUpdate()))
    assert learned(elsewhere) == wanted
    assert far.noise_variance != 1.0


class Elsewhere(pvi.Site):
    """A site whose answering process has a model of its own."""

    def __init__(self, site, model):
        super().__init__(site.client_id, site.model, site.update, site.num_data, site.load)
        object.__setattr__(self, "far", model)

    def at_work(self):
        return replace(super().at_work(), model=self.far)


def test_nobody_answers_where_no_data_are():
    server = server_of(sites([None, None]))
    with pytest.raises(NoAnswerError, match="its data are elsewhere"):
        pvi.fit(server, engine=engines.Serial())


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


def test_first_answers_stay_until_further_rounds_visit_groups_one_client_after_another():
    seen, rounds = [], []
    arrivals = pvi.Arrivals(GROUPS, again=False)
    pvi.fit(watched(seen), arrivals, 4, callback=lambda one: rounds.append(names(seen)))
    assert rounds[1] == ["c0", "c1", "c2"]
    assert rounds[3] == rounds[1] * 2


def test_who_failed_at_first_is_new_when_it_is_asked_again():
    seen = []
    server = watched(seen, failing="c0")
    history = pvi.fit(server, pvi.Arrivals([["c0", "c1", "c2"]]), 2)
    assert names(seen) == ["c0", "c1", "c2", "c1", "c2", "c0", "c1", "c2"]
    assert set(history[0].failed) == {"c0"}
    assert set(server.factors) == {"c0", "c1", "c2"}


def test_without_its_extra_an_engine_says_what_to_install(monkeypatch, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    monkeypatch.setitem(sys.modules, "flwr", None)
    site = known("c0", 0)
    with pytest.raises(InvalidDataError, match=r"'.\[flower\]'"):
        pvi.serve(site, engines.Flower("127.0.0.1:9094", secret))
    engine = engines.Flower("localhost:8000", secret, secret, {"clinic-a": secret})
    with pytest.raises(InvalidDataError, match=r"'.\[flower\]'"):
        pvi.fit(pvi.Server(site.model.prior(), [site]), engine=engine)


def test_sites_are_known_by_place_and_data_are_not_sent():
    site = known("c0", 0)
    elsewhere = pvi.Site("elsewhere", site.model, site.update, 8)
    assert [place_of(one) for one in (site, elsewhere)] == ["clinic-a", "elsewhere"]
    with pytest.raises(InvalidDataError, match="got data of 'c0'"):
        place_of(server_of_regression().clients["c0"])


def test_the_newest_result_takes_the_place_of_the_one_before(tmp_path):
    inbox = tmp_path / "result"
    for content in (b"first", b"second"):
        keep(content, inbox)
    assert inbox.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [inbox]
    with pytest.raises(InvalidDataError, match="it has no inbox"):
        keep(b"third", None)


def test_where_a_result_did_not_come_is_said():
    refuse_missed({})
    with pytest.raises(NoAnswerError, match="'clinic-a': 'no inbox'"):
        refuse_missed({"clinic-a": "no inbox"})
