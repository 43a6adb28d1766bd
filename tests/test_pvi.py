"""The loop on exponential families, where it is exact."""

import numpy as np
import pytest

from streaming_gp import pvi
from streaming_gp.errors import ImproperError, InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal, Normal
from tests.conftest import ALGEBRA


def linear_regression(rng, num_clients=4):
    """Prior, and one local fit for each client: conjugate, so exact."""
    X = rng.standard_normal((40, 3)) @ np.array([[1, 0.8, 0], [0, 0.6, 0], [0, 0, 1.0]])
    y = X @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.standard_normal(40)
    prior = Normal(np.zeros(3), np.eye(3))

    def fit_for(rows):
        likelihood = Factor(Normal, (X[rows].T @ y[rows] / 0.09, X[rows].T @ X[rows] / 0.09))
        return lambda cavity: (cavity.times([likelihood]), "exact")

    fits = {
        f"c{i}": fit_for(rows) for i, rows in enumerate(np.array_split(np.arange(40), num_clients))
    }
    pooled = Normal(X.T @ y / 0.09, np.eye(3) + X.T @ X / 0.09)
    return prior, fits, pooled


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
def test_one_pass_of_conjugate_clients_gives_the_pooled_posterior(rng, order):
    prior, fits, pooled = linear_regression(rng)
    ledger = pvi.Ledger(prior)
    for client_id in [f"c{i}" for i in order]:
        ledger = pvi.client_pass(ledger, client_id, fits[client_id]).ledger
    for a, b in zip(ledger.posterior.natural, pooled.natural, strict=True):
        np.testing.assert_allclose(a, b, rtol=ALGEBRA, atol=ALGEBRA)


def test_a_second_pass_replaces_the_factor_and_changes_nothing(rng):
    prior, fits, pooled = linear_regression(rng)
    ledger = pvi.Ledger(prior)
    for client_id in [*fits, *fits]:
        ledger = pvi.client_pass(ledger, client_id, fits[client_id]).ledger
    assert len(ledger.factors) == 4
    np.testing.assert_allclose(ledger.posterior.precision, pooled.precision, rtol=ALGEBRA)


def test_damped_passes_converge_to_the_same_posterior(rng):
    prior, fits, pooled = linear_regression(rng)
    ledger = pvi.Ledger(prior)
    for _ in range(60):
        for client_id, fit in fits.items():
            ledger = pvi.client_pass(ledger, client_id, fit, damping=0.4).ledger
    np.testing.assert_allclose(ledger.posterior.precision, pooled.precision, rtol=ALGEBRA)


def test_the_cavity_leaves_out_one_factor_only(rng):
    prior, fits, _ = linear_regression(rng)
    ledger = pvi.Ledger(prior)
    for client_id, fit in fits.items():
        ledger = pvi.client_pass(ledger, client_id, fit).ledger
    without = ledger.without("c1")
    assert list(without.factors) == ["c0", "c2", "c3"]
    np.testing.assert_allclose(ledger.cavity("c1").precision, without.posterior.precision)
    assert ledger.cavity("new") is ledger.posterior
    assert list(ledger.factors) == ["c0", "c1", "c2", "c3"]


def test_a_pass_that_raises_leaves_the_ledger_as_it_was(rng):
    prior, fits, _ = linear_regression(rng)
    ledger = pvi.client_pass(pvi.Ledger(prior), "c0", fits["c0"]).ledger

    def broken(cavity):
        raise RuntimeError("client died")

    with pytest.raises(RuntimeError, match="died"):
        pvi.client_pass(ledger, "c0", broken)
    assert list(ledger.factors) == ["c0"]


@pytest.mark.parametrize("damping", [0.0, -0.5, 1.5, float("nan")])
def test_damping_outside_its_range_is_refused(rng, damping):
    prior, fits, _ = linear_regression(rng)
    with pytest.raises(InvalidDataError, match="damping"):
        pvi.client_pass(pvi.Ledger(prior), "c0", fits["c0"], damping=damping)


def improper_ledger():
    """Two factors: "a" holds more precision than the posterior without it has left."""
    prior = MeanFieldNormal(np.zeros(1), np.array([1.0]))
    strong = Factor(MeanFieldNormal, (np.zeros(1), np.array([5.0])))
    negative = Factor(MeanFieldNormal, (np.zeros(1), np.array([-3.0])))
    return pvi.Ledger(prior, {"a": strong, "b": negative})


def unchanged(cavity):
    return cavity, None


def test_an_improper_cavity_raises_by_default():
    with pytest.raises(ImproperError):
        pvi.client_pass(improper_ledger(), "a", unchanged)


def test_the_largest_proper_fraction_is_removed():
    result = pvi.client_pass(
        improper_ledger(), "a", unchanged, policy=pvi.LargestProperFraction(1e-6)
    )
    assert result.removed_fraction == pytest.approx(0.6, abs=1e-5)  # 1 + 5 (1 − κ) − 3 > 0
    # q was the cavity itself, so the client keeps exactly what stayed in it
    np.testing.assert_allclose(result.ledger.posterior.precision, [0.0], atol=1e-4)


def test_backtracking_shrinks_the_step_until_everything_is_proper():
    prior = MeanFieldNormal(np.zeros(1), np.array([1.0]))
    too_far = Factor(MeanFieldNormal, (np.zeros(1), np.array([-3.0])))

    class Bold(MeanFieldNormal):
        def __truediv__(self, other):
            return too_far

    result = pvi.client_pass(
        pvi.Ledger(prior),
        "a",
        lambda _: (Bold(*prior.natural), None),
        policy=pvi.BacktrackDamping(),
    )
    assert result.damping == 0.25
    np.testing.assert_allclose(result.ledger.posterior.precision, [0.25])


def test_backtracking_that_finds_no_step_keeps_the_old_factor():
    ledger = pvi.Ledger(MeanFieldNormal(np.zeros(1), np.array([1.0])))
    hopeless = Factor(MeanFieldNormal, (np.zeros(1), np.array([-1e9])))

    class Bold(MeanFieldNormal):
        def __truediv__(self, other):
            return hopeless

    result = pvi.client_pass(
        ledger, "a", lambda q: (Bold(*q.natural), None), policy=pvi.BacktrackDamping()
    )
    assert result.damping == 0.0
    assert result.ledger is ledger
