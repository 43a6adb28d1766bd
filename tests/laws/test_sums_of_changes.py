"""Sites whose changes leave them within sums only: what they keep, refuse, and add up to."""

import logging
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest

from streaming_gp import linear, pvi, serialization
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.expfam import Factor, MeanFieldNormal
from streaming_gp.pvi import privacy
from streaming_gp.pvi.desk import Desk
from streaming_gp.pvi.privacy.sums import (
    KIND,
    Shares,
    SiteRecord,
    change_between,
    own_factor,
    rule_of_sums,
)
from streaming_gp.pvi.task import encode_task
from tests.oracles.reference import assert_same

SITES = 4
PLAIN = pvi.FixedPointUpdate()


def shards():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((SITES, 30, 2)) + np.arange(SITES)[:, None, None] - 1.5
    logits = X @ np.array([[2.0], [-1.0]])
    return list(
        zip(X, (logits + rng.logistic(size=(SITES, 30, 1)) > 0.0).astype(float), strict=True)
    )


def rule_in(folder, rule=PLAIN, **options):
    return privacy.SummedChanges(rule, sites=SITES, record=str(folder), **options)


def server_of(rule):
    model = linear.logistic_regression(2)
    return pvi.Server(model.prior(), pvi.make_clients(model, shards(), rule))


def plain(rounds):
    server = server_of(PLAIN)
    pvi.fit(server, pvi.Synchronous(damping=1.0 / SITES), rounds)
    return server


@dataclass(frozen=True)
class Together:
    """An engine that sums in the open: the server gets shares of the sum of changes.

    Answers of sites that are absent are lost on their way.
    """

    absent: tuple = ()

    @contextmanager
    def session(self, clients):
        with pvi.Serial().session(clients) as session:
            yield TogetherSession(session, Shares(clients), self.absent)


class TogetherSession:
    def __init__(self, session, shares, absent):
        self._session, self._shares, self._absent = session, shares, absent
        self._asks, self._arrived = {}, []

    @property
    def now(self):
        return self._session.now

    @property
    def open(self):
        return frozenset(self._asks)

    def submit(self, ask, duration):
        self._shares.require_whole(ask)
        self._asks[ask.client_id] = ask
        self._session.submit(ask, duration)

    def next(self):
        if not self._arrived:
            self._arrived = self._summed([self._session.next() for _ in self._asks])
        delivery = self._arrived.pop()
        del self._asks[delivery.client_id]
        return delivery

    def _summed(self, deliveries):
        lost = [
            d
            for d in deliveries
            if not isinstance(d.answer, pvi.LocalResult) or d.client_id in self._absent
        ]
        heard = [d for d in deliveries if d not in lost]
        asks = [self._asks[d.client_id] for d in heard]
        changes = [
            change_between(ask.own, answer.factor)
            for ask, answer in zip(asks, (d.answer for d in heard), strict=True)
        ]
        mean = [
            np.mean(parts, axis=0) for parts in zip(*(one.natural for one in changes), strict=True)
        ]
        spent = {ask.client_id: {} for ask in asks}
        lost = [replace(d, answer=None) if d.client_id in self._absent else d for d in lost]
        return lost + self._shares.deliveries(asks, mean, spent)


def kept_in(folder, name):
    classes = serialization.registered_classes()
    return serialization.read(folder / f"{name}.npz", KIND, classes, SiteRecord)


@pytest.mark.parametrize("engine", [pvi.Serial(), Together()], ids=["one by one", "summed"])
def test_a_run_is_the_plain_one_to_the_resolution(engine, tmp_path):
    rule = rule_in(tmp_path)
    server = server_of(rule)
    history = pvi.fit(server, pvi.Synchronous(), 4, engine)
    assert not any(one.failed or one.refused for one in history)
    assert_same(server.posterior, plain(4).posterior, 10 * SITES * rule.resolution)


def test_the_server_has_equal_shares_and_the_sites_their_own_factors(tmp_path):
    server, by_themselves = server_of(rule_in(tmp_path)), plain(1)
    pvi.fit(server, pvi.Synchronous(), 1, Together())
    first, *others = server.factors.values()
    for other in others:
        assert_same(first, other, 1e-12)
    for name, factor in by_themselves.factors.items():
        assert_same(kept_in(tmp_path, name).change, factor, rule_in(tmp_path).resolution)


def test_factors_of_sites_make_the_posterior_whatever_gets_lost(tmp_path):
    """Answers that are lost, or come from sites that were started again, leave no error behind."""
    rule, path = rule_in(tmp_path / "kept"), tmp_path / "run.npz"
    server_of(rule).save(path)
    for absent in [(), ("c1",), ("c0", "c2"), ("c1",), ()]:
        server = pvi.Server.load(path, server_of(rule).prior, server_of(rule).clients)
        pvi.fit(server, pvi.Synchronous(), 1, Together(absent))
        server.save(path)
    product = server.prior.times(counted(rule.record, server, name) for name in server.clients)
    assert_same(server.posterior, product, 1e-12)


def counted(folder, server, name):
    """What a site would take for its own factor, were it asked now."""
    return own_factor(folder, server.ask(name))


def test_a_server_that_was_set_back_gets_no_answer(tmp_path):
    rule, path = rule_in(tmp_path / "kept"), tmp_path / "run.npz"
    server = server_of(rule)
    pvi.fit(server, pvi.Synchronous(), 1, Together())
    server.save(path)
    pvi.fit(server, pvi.Synchronous(), 2, Together())
    back = pvi.Server.load(path, server.prior, server.clients)
    for _ in range(3):  # until its questions have numbers that are new to the sites
        failed = failed_round(back)
        assert len(failed) == SITES
        assert all("is back where it was before" in why for why in failed.values())


def test_a_run_does_not_go_on_from_what_another_has_kept_in_its_place(tmp_path):
    rule, path = rule_in(tmp_path / "kept"), tmp_path / "run.npz"
    server = server_of(rule)
    pvi.fit(server, pvi.Synchronous(), 3, Together())
    server.save(path)
    pvi.fit(server_of(rule), pvi.Synchronous(), 1, Together())
    before = server.posterior
    for one in (server, pvi.Server.load(path, server.prior, server.clients)):
        failed = failed_round(one)
        assert len(failed) == SITES
        assert all("another run has kept one in its place" in why for why in failed.values())
        assert_same(one.posterior, before, 0.0)


def failed_round(server):
    """Why each site gave no answer, in a round in which none did."""
    with pytest.warns(UserWarning, match="no answer"), pytest.raises(NoAnswerError):
        pvi.fit(server, pvi.Synchronous(), 1)
    return server.history[-1].failed


def test_a_site_that_has_lost_its_factor_gives_no_answer(tmp_path):
    rule = rule_in(tmp_path)
    server = server_of(rule)
    pvi.fit(server, pvi.Synchronous(), 1, Together())
    (tmp_path / "c2.npz").unlink()
    one = pvi.fit(server, pvi.Synchronous(), 1, Together())[-1]
    assert list(one.failed) == ["c2"]
    assert "is not kept where" in one.failed["c2"]


@dataclass(frozen=True)
class Sure:
    """A rule whose answers are surer than data can make them."""

    factor: float

    def __call__(self, task):
        found = PLAIN(task)
        return pvi.LocalResult(found.factor**self.factor)


@pytest.mark.parametrize(
    ("factor", "options", "reason"),
    [(1e9, {"limit": 2.0**40}, "prior precisions for each data point"), (1e4, {}, "the limit is")],
    ids=["checks", "limit"],
)
def test_a_site_judges_its_own_answer_and_says_why_at_home_only(
    factor, options, reason, tmp_path, caplog
):
    with caplog.at_level(logging.WARNING, "streaming_gp.privacy"):
        failed = failed_round(server_of(rule_in(tmp_path, Sure(factor), **options)))
    assert len(failed) == SITES
    assert all("does not say why" in why and reason not in why for why in failed.values())
    assert reason in caplog.text


def test_answers_hold_changes_and_nothing_beside_them(tmp_path):
    server = server_of(rule_in(tmp_path))
    for name, client in server.clients.items():
        ask = server.ask(name)
        answer = client.answer(ask)
        assert answer.num_data == answer.steps == answer.skipped == 0
        assert np.isnan(answer.free_energy)
        assert answer.factor.log_scale == 0.0
        assert not answer.diagnostics


def test_what_private_rules_spend_is_told_and_the_rest_is_not(tmp_path):
    budget = privacy.Budget(np.inf)
    inner = privacy.PrivateChanges(
        PLAIN, budget=budget, clip=np.inf, noise_multiplier=0.0, insecure_seed=0
    )
    server = server_of(rule_in(tmp_path, inner))
    one = pvi.fit(server, pvi.Synchronous(), 1)[-1]
    assert set(one.epsilon) == set(server.clients)
    assert np.isnan(list(one.epsilon.values())).all()  # no noise, no bound


def test_a_sum_enters_as_a_whole(tmp_path):
    server = server_of(rule_in(tmp_path))
    with pytest.raises(InvalidDataError, match="as a whole or not at all"):
        pvi.fit(server, pvi.Synchronous(damping=0.5), 2, Together())


@pytest.mark.parametrize("taken", [0, 2, SITES])
def test_it_enters_for_all_sites_or_for_none(taken, tmp_path):
    server = server_of(rule_in(tmp_path))
    shares, small = Shares(server.clients), [np.full(2, 0.1), np.eye(2)]
    asks = [server.ask(name) for name in server.clients]
    deliveries = shares.deliveries(asks, small, {name: {} for name in server.clients})
    server.accept(deliveries[:taken], pvi.Damping(1.0, SITES))
    again = [server.ask(name) for name in server.clients]

    def look():
        for ask in again:
            shares.require_whole(ask)

    if taken in (0, SITES):
        look()
    else:
        with pytest.raises(InvalidDataError, match="as a whole or not at all"):
            look()


def test_a_sum_of_which_a_site_has_left_enters_for_none(tmp_path):
    server = server_of(rule_in(tmp_path))
    shares, small = Shares(server.clients), [np.full(2, 0.1), np.eye(2)]
    asks = [server.ask(name) for name in server.clients]
    deliveries = shares.deliveries(asks, small, {name: {} for name in server.clients})
    server.remove("c1")
    report = server.accept(deliveries, pvi.Damping(1.0, SITES))
    assert report.accepted == 0
    assert "['c1'] has left, and its sum cannot enter in part" in report.refused["c0"]
    assert server.version == 0
    for name in server.clients:
        shares.require_whole(server.ask(name))


def test_the_server_refuses_a_sum_for_all_at_once(tmp_path):
    """Sites that look at their own change alone can be far off together."""
    server = server_of(rule_in(tmp_path))
    asks = [server.ask(name) for name in server.clients]
    far = [np.full(2, 1e3), 1e-3 * np.eye(2)]
    deliveries = Shares(server.clients).deliveries(asks, far, {})
    assert [d.client_id for d in deliveries] == list(server.clients)
    assert all("the sum is refused: it moves the mean" in d.error for d in deliveries)
    assert all("shape" in d.error for d in Shares(server.clients).deliveries(asks, far[:1], {}))


# ---- terms ----


@pytest.mark.parametrize("sites", [3, 4, 5, 1000, 2**20])
def test_no_sum_of_sites_reaches_the_modulus(sites):
    rule = privacy.SummedChanges(PLAIN, sites=sites, record="")
    assert sites * rule.levels < 2**32
    assert rule.levels == 2**30 or 2 * sites * rule.levels >= 2**32
    assert rule.resolution * rule.levels == 2.0 * rule.limit


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_rounding_is_to_the_nearest_and_to_the_last_bit(kind, rng, tmp_path):
    rule = rule_in(tmp_path)
    change = Factor(MeanFieldNormal, tuple(rng.uniform(-1000.0, 1000.0, (2, 500)).astype(kind)))
    found = rule.rounded(change)
    assert_same(rule.rounded(found), found, 0.0)
    for eta, whole in zip(change.natural, found.natural, strict=True):
        assert whole.dtype == kind
        np.testing.assert_allclose(whole, eta, rtol=0.0, atol=0.5 * rule.resolution)
        assert np.all(np.mod(np.float64(whole) / rule.resolution, 1.0) == 0.0)


def test_sites_must_agree_on_the_terms(tmp_path):
    model, data = linear.logistic_regression(2), shards()
    rules = {
        "same": [rule_in(tmp_path)] * 2,
        "limit": [rule_in(tmp_path), rule_in(tmp_path, limit=2.0)],
        "alone": [rule_in(tmp_path), PLAIN],
        "none": [PLAIN, PLAIN],
        "many": [rule_in(tmp_path)] * 5,
    }

    def of(kind):
        named = enumerate(rules[kind])
        return rule_of_sums({str(k): pvi.Client(str(k), model, data[0], rule) for k, rule in named})

    assert of("same") == rule_in(tmp_path)
    assert of("none") is None
    for kind, message in {"limit": "same terms", "alone": "1 clients", "many": "at most 4"}.items():
        with pytest.raises(InvalidDataError, match=message):
            of(kind)


def test_a_desk_hands_out_changes_to_sums_only(tmp_path):
    rules = {"alone": PLAIN, "summed": rule_in(tmp_path)}
    model = linear.logistic_regression(2)
    sites = {name: pvi.Site(name, model, rule, 30) for name, rule in rules.items()}
    desk, server = Desk(sites.values()), pvi.Server(model.prior(), sites)
    questions = {name: encode_task(server.ask(name)) for name in sites}
    for name, way in {"alone": "by itself", "summed": "within sums only"}.items():
        with pytest.raises(InvalidDataError, match=f"site answers {way}.*: {name}"):
            desk.put(questions[name], in_sum=name == "alone")
        assert desk.put(questions[name], in_sum=name == "summed")
