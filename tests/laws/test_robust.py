"""Robust means, bounded influence and agreement: nothing for honest clients, a limit for others."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from streaming_gp import datasets, expfam, linear, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal
from tests.laws import slow
from tests.oracles.reference import assert_same, random_member, server
from tests.tolerances import ALGEBRA

WEIGHTS = np.array([[2.0], [-1.0], [0.5]])
CLIENTS, ROWS, NOISE = 8, 60, 0.25
ALL_FAMILIES = [*expfam.GAUSSIANS, expfam.Dirichlet, expfam.NormalWishart]


def regression(rng, rows=CLIENTS * ROWS):
    X = rng.standard_normal((rows, 3))
    return X, X @ WEIGHTS + np.sqrt(NOISE) * rng.standard_normal((rows, 1))


@pytest.fixture(scope="module")
def data():
    return datasets.partition_iid(*regression(np.random.default_rng(20181127)), CLIENTS)


@pytest.fixture(scope="module")
def exact(data):
    return run(data, 1.0, rounds=1).posterior


@pytest.fixture(scope="module")
def moved(data, exact):
    """How far a hostile client moves the posterior where nothing limits it."""
    return cache(lambda how: shift(run(data, 0.7, ["c3"], how, rounds=8), exact))


@dataclass(frozen=True)
class Flipped:
    """A rule that learns from targets of the other sign."""

    rule: object

    def __call__(self, task):
        X, Y = task.data
        return self.rule(replace(task, data=(X, -Y)))


@dataclass(frozen=True)
class Surest:
    """As sure as the checks allow, and as far from where the posterior is."""

    rule: object

    def __call__(self, task):
        q, most = task.posterior, 0.99e6 * task.num_data
        mean = np.asarray(q.mean) + 99.0 * np.sqrt(q.variance)
        precision = most * np.asarray(task.model.prior().precision)
        return replace(self.rule(task), factor=Factor(type(q), (precision @ mean, precision)))


def run(data, damping, hostile=(), how=Flipped, schedule=pvi.Synchronous, rounds=20):
    found = server(linear.BayesianLinearRegression(3, NOISE), data, pvi.AnalyticUpdate())
    clients = dict(found.clients)
    for name in hostile:
        clients[name] = replace(clients[name], update=how(clients[name].update))
    found = pvi.Server(found.prior, clients)
    pvi.fit(found, schedule(damping=damping), rounds)
    return found


def shift(found, exact):
    """Of the mean, in the exact posterior's standard deviations."""
    difference = np.asarray(found.posterior.mean) - np.asarray(exact.mean)
    return np.sqrt(np.mean(difference**2 / np.asarray(exact.variance)))


def product(found):
    return found.prior.times(found.factors.values())


def proposed(family):
    """A ledger in which three clients have factors, and what four propose."""
    parts = [random_member(family, seed).as_factor() ** 0.3 for seed in range(8)]
    old = {f"c{k}": parts[k] for k in range(3)}
    return pvi.Ledger(random_member(family, 9)).with_factors(old), {
        f"c{k}": parts[4 + k] for k in range(4)
    }


def after(rule, ledger, proposals):
    factors, _ = rule.update(ledger, proposals, rule.init(ledger), 1.0, 0.0)
    return ledger.with_factors(factors)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_the_mean_of_changes_is_their_sum(family):
    ledger, proposals = proposed(family)
    plain = after(pvi.Damping(0.3, 4), ledger, proposals)
    mean = after(pvi.TrimmedMean(0.3, fraction=0.0), ledger, proposals)
    assert_same(mean.posterior, plain.posterior, ALGEBRA)


def test_the_constant_of_a_median_is_the_same_wherever_the_origin_is(rng):
    """Of factors of x, and of the same ones of x plus something."""

    def evidence_at(origin):
        prior = expfam.Normal.from_mean_covariance(origin, np.eye(2)).as_arrays()
        natural = [(b + A @ origin, A) for A, b in parts]
        scales = [-b @ origin - 0.5 * origin @ A @ origin for A, b in parts]
        proposals = {
            f"c{k}": Factor(expfam.Normal, eta, scale)
            for k, (eta, scale) in enumerate(zip(natural, scales, strict=True))
        }
        factors, _ = pvi.Median(1.0).update(pvi.Ledger(prior), proposals, None, 1.0, 0.0)
        return float(np.prod([prior.as_factor(), *factors.values()]).log_integral())

    roots = rng.standard_normal((5, 3, 2))
    parts = [(root.T @ root, rng.standard_normal(2)) for root in roots]
    far, near = evidence_at(np.array([300.0, -50.0])), evidence_at(np.zeros(2))
    assert far == pytest.approx(near, rel=1e-6)


@pytest.mark.parametrize("rule", [pvi.Median, pvi.TrimmedMean])
@pytest.mark.parametrize("damping", [0.3, pvi.OpinionPool()])
def test_equal_changes_are_what_they_are(rule, damping, rng):
    data = [regression(rng, ROWS)] * CLIENTS
    plain, robust = (run(data, one, rounds=2) for one in (damping, rule(damping)))
    assert_same(robust.posterior, plain.posterior, ALGEBRA)
    for name in plain.factors:
        assert_same(robust.factors[name], plain.factors[name], ALGEBRA)


@pytest.mark.parametrize("inner", [pvi.Momentum(), pvi.FedAvg(), pvi.Agreement(0.3)])
@pytest.mark.parametrize("rule", [pvi.Median, pvi.TrimmedMean, pvi.BoundedInfluence])
def test_they_go_around_other_rules(rule, inner):
    """All say the same, and nothing that would exceed a limit."""
    old, new = (random_member(MeanFieldNormal, seed).as_factor() for seed in (1, 2))
    names = [f"c{k}" for k in range(4)]
    ledger = pvi.Ledger(random_member(MeanFieldNormal, 3)).with_factors(dict.fromkeys(names, old))
    proposals = dict.fromkeys(names, new)
    plain = after(inner, ledger, proposals)
    assert_same(after(rule(inner), ledger, proposals).posterior, plain.posterior, ALGEBRA)


def test_the_median_of_changes_is_that_of_each_coordinate_about_the_posterior_s_mean(rng):
    """Where the origin is does not matter: the same data, shifted, give the same, shifted."""
    prior = MeanFieldNormal(np.zeros(2), np.ones(2))
    h, precision = rng.standard_normal((3, 2)), rng.uniform(1.0, 2.0, (3, 2))
    for origin in (0.0, 1e3):
        start = MeanFieldNormal(prior.precision * origin, prior.precision)
        proposals = {
            str(k): Factor(MeanFieldNormal, (h[k] + precision[k] * origin, precision[k]))
            for k in range(3)
        }
        ledger = pvi.Ledger(start)
        factors, _ = pvi.Median(1.0).update(ledger, proposals, None, 1.0, 0.0)
        q = ledger.with_factors(factors).posterior
        np.testing.assert_allclose(q.precision, 1.0 + 3.0 * np.median(precision, axis=0))
        about = q.precision_mean - q.precision * origin
        np.testing.assert_allclose(about, 3.0 * np.median(h, axis=0), atol=1e-9)


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_influence_is_the_divergence_of_the_posterior_from_the_cavity(family):
    cavity, factor = random_member(family, 1), random_member(family, 2).as_factor()
    nats = float(cavity.kl_divergence(cavity.times([factor])))
    size = pvi.BoundedInfluence().beside(cavity)(factor.natural)
    assert 0.5 * np.size(cavity.natural[0]) * size**2 == pytest.approx(nats, rel=ALGEBRA)


@pytest.mark.parametrize("family", expfam.GAUSSIANS)
def test_disagreement_is_measured_by_both_covariances(family):
    """``(m_k − m)ᵀ (Λ_k⁻¹ + Λ⁻¹)⁻¹ (m_k − m)``, the mean over coordinates."""
    cavity, q = random_member(family, 1), random_member(family, 2)
    away = np.asarray(q.mean) - np.asarray(cavity.mean)
    roots = (np.asarray(one.scale) for one in (cavity, q))
    total = away @ np.linalg.solve(sum(root @ root.T for root in roots), away)
    size = pvi.Agreement().beside(cavity)(q.natural)
    assert size**2 == pytest.approx(total / len(away), rel=ALGEBRA)


@pytest.mark.parametrize("rule", [pvi.BoundedInfluence(max_shift=50.0), pvi.Agreement(None, 50.0)])
@pytest.mark.parametrize("family", expfam.GAUSSIANS)
def test_generous_limits_let_every_factor_enter_as_it_is(rule, family):
    ledger, proposals = proposed(family)
    plain = after(pvi.Damping(0.3, 4), ledger, proposals)
    limited = after(replace(rule, damping=0.3), ledger, proposals)
    assert_same(limited.posterior, plain.posterior, 1e-12)


@pytest.mark.parametrize(
    ("rule", "schedule"),
    [
        (pvi.BoundedInfluence(max_shift=2.0), pvi.Synchronous),
        (pvi.Agreement(), pvi.Synchronous),
        (pvi.Agreement(), pvi.Asynchronous),
    ],
)
def test_limits_are_nothing_to_honest_clients(rule, schedule, data):
    plain = run(data, 0.2, schedule=schedule, rounds=3)
    limited = run(data, replace(rule, damping=0.2), schedule=schedule, rounds=3)
    assert_same(limited.posterior, plain.posterior, 1e-12)


def test_who_speaks_first_is_held_back_until_others_have_spoken(data, exact):
    rule = pvi.BoundedInfluence(1.0, max_shift=1.0)
    held = run(data, rule, schedule=pvi.Sequential, rounds=1)
    assert np.linalg.det(held.posterior.precision) < 0.5 * np.linalg.det(exact.precision)
    assert_same(run(data, rule, schedule=pvi.Sequential, rounds=8).posterior, exact, ALGEBRA)


MEDIAN, TRIMMED = pvi.Median(), pvi.TrimmedMean()
BOUNDED, AGREEING = pvi.BoundedInfluence(max_shift=0.5), pvi.Agreement()


@pytest.mark.parametrize(
    ("rule", "how"),
    [
        (MEDIAN, Surest),
        (BOUNDED, Surest),
        (AGREEING, Flipped),
        slow(MEDIAN, Flipped),
        slow(TRIMMED, Surest),
        slow(TRIMMED, Flipped),
        slow(BOUNDED, Flipped),
        slow(AGREEING, Surest),
    ],
    ids=lambda one: one.__name__ if isinstance(one, type) else type(one).__name__,
)
def test_a_hostile_client_moves_the_posterior_less_than_without(how, rule, data, exact, moved):
    robust = run(data, replace(rule, damping=0.7), ["c3"], how, rounds=8)
    assert moved(how) > 5.0
    assert shift(robust, exact) < 2.5
    assert_same(robust.posterior, product(robust), ALGEBRA)


@pytest.mark.parametrize(
    ("schedule", "how"),
    [(pvi.Sequential, Surest), (pvi.Asynchronous, Surest), (pvi.Synchronous, Flipped)],
)
def test_no_factor_has_more_influence_than_the_limit_on_any_schedule(schedule, how, data):
    rule = pvi.BoundedInfluence(max_shift=0.5)
    found = run(data, rule, ["c3"], how, schedule=schedule, rounds=4)
    nats = float(found.cavity("c3").kl_divergence(found.posterior))
    assert nats <= 0.5 * 3 * 0.5**2 * 1.05


def test_two_liars_are_found_one_after_the_other(data, exact):
    found = run(data, pvi.Agreement(), ["c3", "c5"], Flipped, rounds=12)
    assert shift(found, exact) < 1.5
    assert shift(run(data, None, ["c3", "c5"], Flipped, rounds=12), exact) > 10.0


@pytest.mark.parametrize("schedule", [pvi.Sequential, pvi.Asynchronous])
@pytest.mark.parametrize("rule", [pvi.Median(), pvi.BoundedInfluence(pvi.TrimmedMean())])
def test_a_mean_over_a_round_is_for_synchronous_rounds(schedule, rule, data):
    found = server(linear.BayesianLinearRegression(3, NOISE), data, pvi.AnalyticUpdate())
    before = found.posterior
    with pytest.raises(InvalidDataError, match=r"is for Synchronous"):
        pvi.fit(found, schedule(damping=rule))
    assert found.posterior is before
