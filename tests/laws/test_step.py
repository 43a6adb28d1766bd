"""The loop on exponential families, where it is exact."""

import numpy as np
import pytest

from streaming_gp import pvi
from streaming_gp.errors import ImproperError, InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal, Normal
from tests.tolerances import ALGEBRA


def linear_regression(rng, num_clients=4):
    """Prior, and one local fit for each client: conjugate, so exact."""
    X = rng.standard_normal((40, 3)) @ np.array([[1, 0.8, 0], [0, 0.6, 0], [0, 0, 1.0]])
    y = X @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.standard_normal(40)
    prior = Normal(np.zeros(3), np.eye(3))

    def fit_for(rows):
        likelihood = Factor(Normal, (X[rows].T @ y[rows] / 0.09, X[rows].T @ X[rows] / 0.09))
        return fit_to(likelihood, "exact")

    fits = {
        f"c{i}": fit_for(rows) for i, rows in enumerate(np.array_split(np.arange(40), num_clients))
    }
    pooled = Normal(X.T @ y / 0.09, np.eye(3) + X.T @ X / 0.09)
    return prior, fits, pooled


UNIT = Factor(MeanFieldNormal, (np.zeros(1), np.zeros(1)))


def fit_to(factor, report=None):
    """A local fit that arrives at this factor, whatever the cavity."""
    return lambda question: (None, factor, report)


def one_step(ledger, client_id, fit, rho=1.0, policy=None):
    return pvi.step(ledger, {client_id: fit}, pvi.Damping(rho, 1), policy)


@pytest.mark.parametrize(
    ("order", "passes", "rho"),
    [([0, 1, 2, 3], 1, 1.0), ([3, 1, 0, 2], 2, 1.0), (range(4), 60, 0.4)],
)
def test_one_pass_of_conjugate_clients_gives_the_pooled_posterior(rng, order, passes, rho):
    """In any order; a second pass replaces factors, and damped ones converge."""
    prior, fits, pooled = linear_regression(rng)
    ledger = pvi.Ledger(prior)
    for client_id in passes * [f"c{i}" for i in order]:
        ledger = one_step(ledger, client_id, fits[client_id], rho).ledger
    assert len(ledger.factors) == 4
    for a, b in zip(ledger.posterior.natural, pooled.natural, strict=True):
        np.testing.assert_allclose(a, b, rtol=ALGEBRA, atol=ALGEBRA)


def test_the_cavity_leaves_out_one_factor_only(rng):
    prior, fits, _ = linear_regression(rng)
    ledger = pvi.Ledger(prior)
    for client_id, fit in fits.items():
        ledger = one_step(ledger, client_id, fit).ledger
    without = ledger.without("c1")
    assert list(without.factors) == ["c0", "c2", "c3"]
    np.testing.assert_allclose(ledger.cavity("c1").precision, without.posterior.precision)
    assert ledger.cavity("new") is ledger.posterior
    assert list(ledger.factors) == ["c0", "c1", "c2", "c3"]


def test_a_pass_that_raises_leaves_the_ledger_as_it_was(rng):
    prior, fits, _ = linear_regression(rng)
    ledger = one_step(pvi.Ledger(prior), "c0", fits["c0"]).ledger

    def broken(question):
        raise RuntimeError("client died")

    with pytest.raises(RuntimeError, match="died"):
        one_step(ledger, "c0", broken)
    assert list(ledger.factors) == ["c0"]


@pytest.mark.parametrize("damping", [0.0, -0.5, 1.5, float("nan")])
def test_damping_outside_its_range_is_refused(rng, damping):
    prior, fits, _ = linear_regression(rng)
    with pytest.raises(InvalidDataError, match="damping"):
        one_step(pvi.Ledger(prior), "c0", fits["c0"], rho=damping)


def improper_ledger():
    """Two factors: "a" holds more precision than the posterior without it has left."""
    prior = MeanFieldNormal(np.zeros(1), np.array([1.0]))
    strong = Factor(MeanFieldNormal, (np.zeros(1), np.array([5.0])))
    negative = Factor(MeanFieldNormal, (np.zeros(1), np.array([-3.0])))
    return pvi.Ledger(prior, {"a": strong, "b": negative})


def test_an_improper_cavity_raises_by_default():
    with pytest.raises(ImproperError):
        one_step(improper_ledger(), "a", fit_to(UNIT))


def test_the_largest_proper_fraction_is_removed():
    policy = pvi.LargestProperFraction(1e-6)
    result = one_step(improper_ledger(), "a", fit_to(UNIT), policy=policy)
    # 1 + 5 (1 − κ) − 3 > 0
    assert result.removed_fractions == {"a": pytest.approx(0.6, abs=1e-5)}
    # the fit added nothing, so the client keeps exactly what stayed in its cavity
    np.testing.assert_allclose(result.ledger.posterior.precision, [0.0], atol=1e-4)


def test_the_cavity_of_a_partial_removal_leaves_out_that_part_only():
    seen = []

    def fit(question):
        seen.append(question)
        return None, UNIT, None

    one_step(improper_ledger(), "a", fit, policy=pvi.LargestProperFraction(1e-6))
    (question,) = seen
    np.testing.assert_allclose(question.posterior.precision, [3.0])
    np.testing.assert_allclose(question.own.natural[1], [5.0 * question.removed_fraction])
    np.testing.assert_allclose(question.cavity.natural[1], [0.0], atol=1e-4)


def test_backtracking_shrinks_the_step_until_everything_is_proper():
    ledger = pvi.Ledger(MeanFieldNormal(np.zeros(1), np.array([1.0])))
    too_far = Factor(MeanFieldNormal, (np.zeros(1), np.array([-3.0])))
    result = one_step(ledger, "a", fit_to(too_far), policy=pvi.BacktrackDamping())
    assert result.share == 0.25
    np.testing.assert_allclose(result.ledger.posterior.precision, [0.25])


def test_backtracking_that_finds_no_step_keeps_the_old_factor():
    ledger = pvi.Ledger(MeanFieldNormal(np.zeros(1), np.array([1.0])))
    hopeless = Factor(MeanFieldNormal, (np.zeros(1), np.array([-1e9])))
    result = one_step(ledger, "a", fit_to(hopeless), policy=pvi.BacktrackDamping())
    assert result.share == 0.0
    assert result.ledger is ledger


def test_clients_of_one_step_fit_under_one_posterior_and_are_replaced_together(rng):
    prior, fits, pooled = linear_regression(rng)
    result = pvi.step(pvi.Ledger(prior), fits, pvi.Damping(1.0, len(fits)))
    assert list(result.ledger.factors) == list(fits)
    assert result.reports == dict.fromkeys(fits, "exact")
    np.testing.assert_allclose(result.ledger.posterior.precision, pooled.precision, rtol=ALGEBRA)


def test_what_is_no_factor_of_the_ledger_is_refused(rng):
    prior, _, _ = linear_regression(rng)
    with pytest.raises(InvalidDataError, match="'c0' gave no factor of this ledger"):
        one_step(pvi.Ledger(prior), "c0", fit_to(UNIT))


def test_one_of_several_fits_may_not_project_the_other_factors(rng):
    prior, fits, _ = linear_regression(rng)
    factor = fits["c0"](None)[1]
    fits["c0"] = lambda question: (pvi.Ledger(prior), factor, None)
    with pytest.raises(InvalidDataError, match="no other client can fit"):
        pvi.step(pvi.Ledger(prior), fits, pvi.Damping(1.0, len(fits)))
