"""Budgets of pseudo-points."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streaming_gp as sgp
from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import Process, PseudoObservations, PseudoPointFactor
from streaming_gp.gp.compilation import compile_gp
from streaming_gp.gp.strategies import MERGED
from streaming_gp.gp.strategies.budget import compressed, within_budget
from tests.oracles.builders import known_model
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

ONE_STEP = sgp.LocalOptimiser(projection_iterations=1)


def test_a_budget_is_kept_and_the_function_not_forgotten(rng):
    fitted = known_model(sgp.PrivatePseudoPoints(6, budget=40))
    for _ in range(12):
        X, Y = smooth_data(rng, 30)
        fitted.update((X, Y + 2.0))
        assert fitted.posterior_process.num_pseudo_points <= 40
    X, f = smooth_data(rng, 200, noise=0.0)
    assert np.mean((fitted.predict_f(X)[0] - f - 2.0) ** 2) < 0.01
    assert next(iter(fitted.factors)) == MERGED


@pytest.mark.slow
def test_a_budget_under_variational_hyperparameters_keeps_q(rng):
    fitted = known_model(
        sgp.PrivatePseudoPoints(6, budget=12),
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
        optimiser=sgp.LocalOptimiser(max_iterations=10),
    )
    X, Y = smooth_data(rng, 60)
    for rows in np.array_split(np.argsort(X[:, 0]), 2):
        fitted.update((X[rows], Y[rows]))
    before = fitted.hyperparameter_posterior
    fitted.compress(6)
    np.testing.assert_allclose(fitted.hyperparameter_posterior.mean, before.mean, rtol=ALGEBRA)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"number": 10, "budget": 15}, "budget must hold at least twice"),
        ({"number": "auto", "budget": 50}, "budget must hold at least twice"),
    ],
)
def test_budgets_that_cannot_hold_two_batches_are_refused(options, message):
    with pytest.raises(InvalidDataError, match=message):
        sgp.PrivatePseudoPoints(**options)


@pytest.fixture(scope="module")
def fitter():
    gp = known_model(sgp.PrivatePseudoPoints(3), optimiser=ONE_STEP)
    return compile_gp(gp.modules, gp.settings, (2, 1)).fitter


def said_of(rng, num_points):
    """A factor on so many points."""
    Z, factor = (
        rng.uniform(-2, 2, (num_points, 2)),
        rng.standard_normal((1, num_points, num_points)),
    )
    targets = rng.standard_normal((1, num_points, 1))
    return PseudoPointFactor((PseudoObservations(Z, factor, targets, THROUGH_CHOLESKY),))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_budget_is_never_exceeded(fitter, data):
    largest = data.draw(st.integers(1, 6), "largest batch")
    budget = data.draw(st.integers(2 * largest, 40), "budget")
    sizes = data.draw(st.lists(st.integers(1, largest), min_size=1, max_size=25), "sizes")
    rng = np.random.default_rng(0)
    epsilon = fitter.local.parameters.value()
    ledger = pvi.Ledger(Process())
    for number, size in enumerate(sizes):
        ledger = ledger.replaced(f"batch-{number}", said_of(rng, size))
        ledger = within_budget(fitter, ledger, budget, epsilon, (), move=False)
        assert ledger.posterior.num_pseudo_points <= budget
        assert f"batch-{number}" in ledger.factors  # the newest stays apart


def test_no_room_beside_factors_that_must_stay_is_refused(fitter):
    rng = np.random.default_rng(0)
    ledger = pvi.Ledger(Process()).with_factors({name: said_of(rng, 4) for name in "abc"})
    epsilon = fitter.local.parameters.value()
    with pytest.raises(InvalidDataError, match=r"no room .* stay hold 12 of a budget of 10"):
        within_budget(fitter, ledger, 10, epsilon, tuple("abc"), move=False)


def ledger_of(rng, factors):
    """Factors as tiny batches leave them: six points each, and little said of them."""
    return pvi.Ledger(Process()).with_factors({f"{i}": said_of(rng, 6) for i in range(factors)})


@pytest.mark.parametrize("move", [False, True])
def test_a_merge_loses_what_it_reports_and_no_more_than_the_best_subset(fitter, move, rng):
    """However few iterations it has: the fixture's model has one."""
    epsilon = fitter.local.parameters.value()
    for _ in range(5):
        ledger = ledger_of(rng, 4)
        after, loss = compressed(fitter, ledger, 8, epsilon, move)
        before, now = (
            fitter.factorisations.log_normaliser(epsilon, one.posterior) for one in (ledger, after)
        )
        product = Process(ledger.posterior.pseudo_observations, None, 0.0).compact
        factor = PseudoPointFactor(product.pseudo_observations, None, product.log_scale)
        subset = fitter.merging.thinned(factor, Process(), epsilon, 8)
        process = Process(subset.pseudo_observations, None, subset.log_scale)
        of_subset = fitter.factorisations.log_normaliser(epsilon, process)
        assert before - now <= loss + THROUGH_CHOLESKY
        assert loss <= before - of_subset + 1e-3 * abs(before - of_subset)
