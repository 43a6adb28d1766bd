"""The paper's conditional form: earlier points frozen (PVI 2018, eqs. 89 and 94)."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import posing
from tests.conftest import ALGEBRA, THROUGH_CHOLESKY
from tests.reference import smooth_data

NOISE = 0.05


def model(pseudo_points, hyperparameters=None, likelihood=None, **options):
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        likelihood or gpflow.likelihoods.Gaussian(NOISE),
        mean_function=gpflow.functions.Constant(2.0),
        pseudo_points=pseudo_points,
        hyperparameters=hyperparameters or sgp.FixedHyperparameters(),
        optimiser=sgp.LocalOptimiser(max_iterations=24, rounds=3),
        **options,
    )


def conditional_and_private(number=8):
    still = {"optimise_locations": False}
    return (
        model(sgp.ConditionalPseudoPoints(number, **still)),
        model(sgp.PrivatePseudoPoints(number, **still)),
    )


def assert_same(one, other, X, tolerance):
    for a, b in zip(one.predict_f(X), other.predict_f(X), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


def test_the_first_batch_is_private_and_so_is_one_out_of_reach(rng):
    X, Y = smooth_data(rng, 60)
    conditional, private = conditional_and_private()
    for shift in (0.0, 50.0):  # nothing that lies 50 lengthscales away can correct the first
        a, b = (fitted.update((X + shift, Y)) for fitted in (conditional, private))
        assert a.free_energy == pytest.approx(b.free_energy, abs=THROUGH_CHOLESKY)
    inputs = np.concatenate([X[:20], X[:20] + 50.0]) + 0.1
    assert_same(conditional, private, inputs, THROUGH_CHOLESKY)
    covariances = [fitted.predict_f(inputs, full_cov=True)[1] for fitted in (conditional, private)]
    np.testing.assert_allclose(*covariances, atol=THROUGH_CHOLESKY)


def test_earlier_points_stay_frozen_and_the_bound_lies_below_the_private_one(rng):
    X, Y = smooth_data(rng, 60)
    order = np.argsort(X[:, 0])
    first, second = order[:30], order[30:]
    conditional, private = conditional_and_private()
    for fitted in (conditional, private):
        fitted.update((X[first], Y[first]))
    Z = conditional.factors["batch-0"].Z
    before = [np.asarray(part) for part in conditional.predict_f(Z)]
    gap = [fitted.update((X[second], Y[second])).free_energy for fitted in (conditional, private)]
    nugget = conditional.factors["batch-0"].rows[0].nugget
    for a, b in zip(conditional.predict_f(Z), before, strict=True):
        np.testing.assert_allclose(a, b, atol=10.0 * nugget)  # q(u) is frozen; f is u but for it
    assert np.abs(private.predict_f(Z)[0] - before[0]).max() > 1e-3  # private points do learn
    assert gap[0] < gap[1]


def test_the_conditional_is_where_the_bound_is_largest(rng):
    """No step away from the closed form raises the bound of eq. 94 at fixed ε."""
    import tensorflow as tf

    X, Y = smooth_data(rng, 40)
    order = np.argsort(X[:, 0])
    fitted = conditional_and_private(5)[0]
    fitted.update((X[order[:20]], Y[order[:20]]))
    functions = fitted._prepared().update.functions
    new = (X[order[20:]], Y[order[20:]])
    problem = posing.with_data(
        functions, new, np.zeros((1, functions.epsilon.size)), fitted.posterior_process.rows, (),
        None, None,
    )  # fmt: skip
    sites = functions.exact_sites(problem.location, np.zeros(0), problem)
    views = functions._views(tf.zeros([0], tf.float64), problem, sites)
    view = type(views)(*(part[0] for part in views))
    best = functions._optimum(views)

    def bound(q_b):
        expected = functions._expected_at(functions._at_data(view, q_b), problem)
        return float(expected - functions._kl(view, q_b))

    info = fitted.update(new)
    assert bound(best) == pytest.approx(info.free_energy, abs=ALGEBRA)
    for _ in range(10):
        step = [1e-3 * rng.standard_normal(part.shape) for part in best]
        step[0] = np.tril(step[0])
        ahead, behind = (
            bound(type(best)(*(p + sign * s for p, s in zip(best, step, strict=True))))
            for sign in (1.0, -1.0)
        )
        assert max(ahead, behind) < bound(best)
        assert abs(ahead - behind) < 1e-2 * (2.0 * bound(best) - ahead - behind)


@pytest.mark.parametrize("likelihood", ["regression", "classification"])
@pytest.mark.parametrize(
    "hyperparameters",
    [
        sgp.VariationalHyperparameters(),
        pytest.param(sgp.PointHyperparameters(), marks=pytest.mark.slow),
    ],
    ids=["variational", "point"],
)
def test_conditional_points_learn_hyperparameters(rng, likelihood, hyperparameters):
    X, Y = smooth_data(rng, 90)
    regression = likelihood == "regression"
    chosen = gpflow.likelihoods.Gaussian(0.5) if regression else gpflow.likelihoods.Bernoulli()
    fitted = model(sgp.ConditionalPseudoPoints(10), hyperparameters, chosen)
    targets = Y if regression else (Y > 0).astype(float)
    for rows in np.array_split(np.argsort(X[:, 0]), 3):
        fitted.update((X[rows], targets[rows]))
    mean = np.asarray(fitted.predict_y(X)[0])
    if regression:
        assert np.mean((mean - Y) ** 2) < 0.1 * np.var(Y)
    else:
        assert np.mean((mean > 0.5) == (targets > 0.5)) > 0.9


def test_only_the_newest_batch_can_be_taken_back(rng):
    X, Y = smooth_data(rng, 40)
    fitted = conditional_and_private(5)[0]
    fitted.update((X[:20], Y[:20]))
    before = [np.asarray(part) for part in fitted.predict_f(X)]
    fitted.update((X[20:], Y[20:]))
    for refused in (
        lambda: fitted.remove("batch-0"),
        lambda: fitted.revisit("batch-0", (X[:20], Y[:20])),
    ):
        with pytest.raises(InvalidDataError, match="only the newest factor"):
            refused()
    with pytest.raises(InvalidDataError, match="cannot be compressed"):
        fitted.compress(3)
    with pytest.raises(InvalidDataError, match="cannot be damped"):
        fitted.revisit("batch-1", (X[20:], Y[20:]), damping=0.5)
    after = [np.asarray(part) for part in fitted.predict_f(X)]
    fitted.revisit("batch-1", (X[20:], Y[20:]))
    assert_same_arrays(fitted.predict_f(X), after, THROUGH_CHOLESKY)
    fitted.remove("batch-1")
    assert_same_arrays(fitted.predict_f(X), before, 0.0)


def assert_same_arrays(ones, others, tolerance):
    for a, b in zip(ones, others, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


def test_what_conditional_points_cannot_do_is_refused():
    with pytest.raises(InvalidDataError, match="neither power EP nor remember"):
        model(sgp.ConditionalPseudoPoints(5), sgp.PointHyperparameters(remember=True))
