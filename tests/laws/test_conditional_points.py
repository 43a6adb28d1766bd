"""The paper's conditional form: earlier points frozen (PVI 2018, eqs. 89 and 94)."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.oracles.builders import (
    FIXED,
    assert_same_arrays,
    assert_same_predictions,
    known_model,
    predicted,
)
from tests.oracles.reference import smooth_data
from tests.tolerances import THROUGH_CHOLESKY

SHORT = sgp.LocalOptimiser(max_iterations=24, rounds=3)


def short(pseudo_points, hyperparameters=FIXED, likelihood=None):
    return known_model(pseudo_points, likelihood, hyperparameters, optimiser=SHORT)


@pytest.fixture(scope="module")
def compiled():
    still = {"optimise_locations": False}
    return tuple(
        short(points(8, **still))
        for points in (sgp.ConditionalPseudoPoints, sgp.PrivatePseudoPoints)
    )


@pytest.fixture
def conditional_and_private(compiled):
    """Two models without any batch."""
    yield compiled
    for model in compiled:
        for name in reversed(list(model.factors)):
            model.remove(name)


@pytest.fixture
def conditional(conditional_and_private):
    return conditional_and_private[0]


def test_the_first_batch_is_private_and_so_is_one_out_of_reach(rng, conditional_and_private):
    X, Y = smooth_data(rng, 60)
    conditional, private = conditional_and_private
    for shift in (0.0, 50.0):  # nothing that lies 50 lengthscales away can correct the first
        a, b = (fitted.update((X + shift, Y)) for fitted in (conditional, private))
        assert a.free_energy == pytest.approx(b.free_energy, abs=THROUGH_CHOLESKY)
    inputs = np.concatenate([X[:20], X[:20] + 50.0]) + 0.1
    assert_same_predictions(conditional, private, inputs)


def test_earlier_points_stay_frozen_and_the_bound_lies_below_the_private_one(
    rng, conditional_and_private
):
    X, Y = smooth_data(rng, 60)
    order = np.argsort(X[:, 0])
    first, second = order[:30], order[30:]
    conditional, private = conditional_and_private
    for fitted in (conditional, private):
        fitted.update((X[first], Y[first]), batch_id="first")
    Z = conditional.factors["first"].Z
    before = predicted(conditional, Z)
    gap = [fitted.update((X[second], Y[second])).free_energy for fitted in (conditional, private)]
    nugget = conditional.factors["first"].pseudo_observations[0].nugget
    for a, b in zip(conditional.predict_f(Z), before, strict=True):
        np.testing.assert_allclose(a, b, atol=10.0 * nugget)  # q(u) is frozen; f is u but for it
    assert np.abs(private.predict_f(Z)[0] - before[0]).max() > 1e-3  # private points do learn
    assert gap[0] < gap[1]


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", ["regression", "classification"])
@pytest.mark.parametrize(
    "hyperparameters",
    [sgp.VariationalHyperparameters(), sgp.PointHyperparameters()],
    ids=["variational", "point"],
)
def test_conditional_points_learn_hyperparameters(rng, likelihood, hyperparameters):
    X, Y = smooth_data(rng, 90)
    regression = likelihood == "regression"
    chosen = gpflow.likelihoods.Gaussian(0.5) if regression else gpflow.likelihoods.Bernoulli()
    fitted = short(sgp.ConditionalPseudoPoints(10), hyperparameters, chosen)
    targets = Y if regression else (Y > 0).astype(float)
    for rows in np.array_split(np.argsort(X[:, 0]), 3):
        fitted.update((X[rows], targets[rows]))
    mean = np.asarray(fitted.predict_y(X)[0])
    if regression:
        assert np.mean((mean - Y) ** 2) < 0.1 * np.var(Y)
    else:
        assert np.mean((mean > 0.5) == (targets > 0.5)) > 0.9


def test_only_the_newest_batch_can_be_taken_back(rng, conditional):
    X, Y = smooth_data(rng, 40)
    fitted = conditional
    fitted.update((X[:20], Y[:20]), batch_id="first")
    before = predicted(fitted, X)
    fitted.update((X[20:], Y[20:]), batch_id="second")
    for refused in (
        lambda: fitted.remove("first"),
        lambda: fitted.revisit("first", (X[:20], Y[:20])),
    ):
        with pytest.raises(InvalidDataError, match="only the newest factor"):
            refused()
    with pytest.raises(InvalidDataError, match="cannot be compressed"):
        fitted.compress(3)
    with pytest.raises(InvalidDataError, match="cannot be damped"):
        fitted.revisit("second", (X[20:], Y[20:]), damping=0.5)
    after = predicted(fitted, X)
    fitted.revisit("second", (X[20:], Y[20:]))
    assert_same_arrays(fitted.predict_f(X), after, THROUGH_CHOLESKY)
    fitted.remove("second")
    assert_same_arrays(fitted.predict_f(X), before, 0.0)


@pytest.mark.slow
def test_one_datum_does_not_overrule_the_frozen_points(rng):
    """The fit goes to its end: without the memory the variance collapses, but by little a step."""
    X = rng.uniform(-3, 3, (61, 1))
    Y = np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
    variances = {}
    for remember in (True, False):
        fitted = sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
            pseudo_points=sgp.ConditionalPseudoPoints(10),
            hyperparameters=sgp.PointHyperparameters(remember=remember),
            optimiser=sgp.LocalOptimiser(tolerance=0.0),
        )  # fmt: skip
        fitted.update((X[:60], Y[:60]))
        before = fitted.kernel.variance.numpy()
        fitted.update((X[60:], Y[60:]))
        variances[remember] = fitted.kernel.variance.numpy() / before
    assert 0.5 < variances[True] < 2.0
    assert variances[False] < 0.1


def test_other_bounds_are_refused():
    with pytest.raises(InvalidDataError, match="takes no other bound"):
        sgp.StreamingGP(
            gpflow.kernels.Matern52(), gpflow.likelihoods.Gaussian(0.1),
            pseudo_points=sgp.ConditionalPseudoPoints(5), alpha=0.5,
        )  # fmt: skip
