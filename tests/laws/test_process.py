"""A Gaussian process on pseudo-observations: predictions and evidence of any ledger, and the
algebra of its factors.
"""

import copy

import gpflow
import numpy as np
import pytest
from gpflow import kernels as gk
from hypothesis import given, settings
from hypothesis import strategies as st

import streaming_gp as sgp
from streaming_gp import expfam, pvi
from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.gp import Process, PseudoObservations, PseudoPointFactor
from tests.oracles.builders import FIXED, evidence
from tests.oracles.dense_bounds import log_evidence
from tests.oracles.reference import conditioned_process
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

LAWS = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**31 - 1)


def observed(rng, num, num_groups=1, num_columns=1, nugget=1e-6, kind="full"):
    R = rng.standard_normal((num_groups, num, num))
    R = {"diagonal": R * np.eye(num), "triangular": np.tril(R), "full": R}[kind]
    targets = rng.standard_normal((num_groups, num, num_columns))
    return PseudoObservations(rng.uniform(-2, 2, (num, 2)), R, targets, nugget)


def model_of(num_latent=1, kernel=None):
    """Separate noise makes a group of every column."""
    kernel = kernel or gk.Matern52(variance=1.5, lengthscales=[0.7, 1.2])
    return sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(), gpflow.functions.Constant(0.8),
        hyperparameters=FIXED, num_latent_gps=num_latent,
    )  # fmt: skip


def holding(model, members):
    """The model, with a ledger of a factor for each of these observations."""
    factors = {str(number): PseudoPointFactor((one,)) for number, one in enumerate(members)}
    model.adopt(pvi.Ledger(model.prior()).with_factors(factors))
    return model


def predicted(model, X):
    return [np.asarray(part) for full in (True, False) for part in model.predict_f(X, full)]


def test_predictions_and_evidence_are_those_of_the_dense_formula(rng):
    num_columns = 3
    kinds = "diagonal", "full", "triangular"
    members = [
        observed(rng, m, 1, num_columns, kind=k) for m, k in zip((4, 1, 6), kinds, strict=True)
    ]
    model, X = holding(model_of(num_columns), members), rng.uniform(-2, 2, (5, 2))
    wanted, (covariance,) = conditioned_process(model.kernel, model.mean_function, members, X)
    mean, joint, _, variance = predicted(model, X)
    np.testing.assert_allclose(mean, wanted, atol=THROUGH_CHOLESKY)
    np.testing.assert_allclose(joint, np.stack([covariance] * num_columns), atol=THROUGH_CHOLESKY)
    np.testing.assert_allclose(variance, np.diagonal(joint, axis1=1, axis2=2).T, atol=ALGEBRA)
    R = np.zeros((1, 11, 11))
    for start, one in zip((0, 4, 5), members, strict=True):
        stop = start + len(one.Z)
        R[:, start:stop, start:stop] = one.precision_factor
    together = PseudoObservations(
        np.concatenate([one.Z for one in members]), R,
        np.concatenate([one.pseudo_targets for one in members], axis=1), 1e-6,
    )  # fmt: skip
    K = model.kernel(together.Z).numpy() + 1e-6 * np.eye(11)
    total = log_evidence(together, K, np.full((11, num_columns), 0.8))
    assert evidence(model) == pytest.approx(total, abs=THROUGH_CHOLESKY)


@settings(LAWS, max_examples=3)
@given(seeds)
def test_the_order_of_factors_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    members, X = [observed(rng, m) for m in (3, 5, 2)], rng.uniform(-2, 2, (4, 2))
    for a, b in zip(
        *(predicted(holding(model_of(), some), X) for some in (members, members[::-1])), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=THROUGH_CHOLESKY)


def test_one_factor_after_another_gives_the_same_bit_for_bit(rng):
    """And so does taking some out again: nothing is left of what was factorised before."""
    members = [observed(rng, m, kind="diagonal") for m in (5, 30, 1, 300, 40, 1, 30, 2)]
    X, grown = rng.uniform(-2, 2, (5, 2)), model_of()
    for number in range(1, len(members) + 1):
        last = predicted(holding(grown, members[:number]), X)
    for found, wanted in zip(last, predicted(holding(model_of(), members), X), strict=True):
        np.testing.assert_array_equal(found, wanted)
    fewer = [members[0], *members[2:5]]
    again = predicted(holding(grown, fewer), X)
    for found, wanted in zip(again, predicted(holding(model_of(), fewer), X), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_where_rounding_is_larger_than_the_noise_observations_are_taken_for_noisier(rng):
    """A lengthscale far below the steps of its column: squares of distances are wrong by 1e-6."""
    kernel = gk.SquaredExponential(variance=10.0, lengthscales=[1e-5, 1.0])
    steps, X = rng.integers(0, 3, 300), rng.uniform(-1.0, 1.0, 300)
    y, root = np.sin(3.0 * X), np.full(300, 1e3)
    Z = np.stack([steps, X], axis=1).astype(float)
    seen = PseudoObservations(Z, np.diag(root)[None], (root * y)[None, :, None], 0.0)
    mean, variance = holding(model_of(kernel=kernel), [seen]).predict_f(Z)
    np.testing.assert_allclose(mean[:, 0], y, atol=0.03)
    assert np.max(variance) < 0.01


def test_a_covariance_that_is_not_positive_is_refused(rng):
    model = holding(model_of(kernel=gk.Polynomial()), [observed(rng, 3)])
    model.kernel.variance.assign(1e300)
    with pytest.raises(NumericalError):
        model.predict_f(1e100 * np.ones((1, 2)))


# ---- factors ----


@LAWS
@given(seeds, st.floats(0.1, 3.0))
def test_factor_powers_and_products_act_on_natural_parameters(seed, power):
    rng = np.random.default_rng(seed)
    a = observed(rng, 4, num_columns=2)
    b = PseudoObservations(
        a.Z, rng.standard_normal((1, 4, 4)), rng.standard_normal((1, 4, 2)), a.nugget
    )
    t_a, t_b = PseudoPointFactor((a,)), PseudoPointFactor((b,))
    product = t_a**power * t_b
    assert len(product.pseudo_observations) == 1  # the same u: one member
    np.testing.assert_allclose(product.precision, power * t_a.precision + t_b.precision, atol=1e-9)
    expected = power * t_a.precision_mean + t_b.precision_mean
    np.testing.assert_allclose(product.precision_mean, expected, atol=1e-9)


def test_a_product_at_the_same_points_is_both_factors(rng):
    """One u seen twice is one member; as two, each nugget would be drawn anew: so none is used."""
    a = observed(rng, 4, nugget=0.0)
    b = PseudoObservations(a.Z, rng.standard_normal((1, 4, 4)), rng.standard_normal((1, 4, 1)), 0.0)
    product = PseudoPointFactor((a,)) * PseudoPointFactor((b,))
    apart, together, X = model_of(), model_of(), rng.uniform(-2, 2, (3, 2))
    holding(apart, [a, b])
    together.adopt(pvi.Ledger(together.prior()).replaced("0", product))
    for x, y in zip(predicted(apart, X), predicted(together, X), strict=True):
        np.testing.assert_allclose(x, y, atol=THROUGH_CHOLESKY)
    assert evidence(together) == pytest.approx(evidence(apart), rel=THROUGH_CHOLESKY)


def test_products_of_observations_at_different_points_stack(rng):
    a, b = PseudoPointFactor((observed(rng, 2),)), PseudoPointFactor((observed(rng, 3),))
    product = a * b
    assert product.Z.shape == (5, 2)
    assert product.precision.shape == (1, 5, 5)
    assert product.precision_mean.shape == (1, 5, 1)
    np.testing.assert_allclose(product.precision[0, :2, 2:], 0.0)


def half_of_epsilon():
    return expfam.Factor(expfam.MeanFieldNormal, (np.ones(2), np.full(2, 0.5)))


def test_a_cavity_is_the_process_without_the_factor(rng):
    prior = Process((), expfam.MeanFieldNormal(np.zeros(2), np.ones(2)))
    a, b = (PseudoPointFactor((observed(rng, 3),), half_of_epsilon(), 1.25) for _ in range(2))
    process = prior.times([a, b])
    for one in (a, copy.deepcopy(a)):  # one that has travelled is found as well
        cavity = process.cavity(one)
        assert cavity.pseudo_observations == b.pseudo_observations
        assert cavity.log_scale == pytest.approx(1.25)
        mine, wanted = cavity.hyperparameters, prior.times([b]).hyperparameters
        for found, expected in zip(mine.natural, wanted.natural, strict=True):
            np.testing.assert_allclose(found, expected, atol=ALGEBRA)
    assert prior.cavity(None) is prior
    with pytest.raises(InvalidDataError, match="divided by a factor that it is a product of"):
        process.cavity(PseudoPointFactor((observed(rng, 2),)))


def test_what_is_no_factor_of_a_process_is_named(rng):
    with_epsilon = Process((), expfam.MeanFieldNormal(np.zeros(2), np.ones(2)))
    sound = observed(rng, 3)
    spoiled = PseudoObservations(sound.Z, np.nan * sound.precision_factor, sound.pseudo_targets, 0)
    assert Process().objection_to(PseudoPointFactor((sound,))) is None
    assert with_epsilon.objection_to(PseudoPointFactor((sound,), half_of_epsilon())) is None
    for process, factor, objection in (
        (Process(), "text", "got a str"),
        (Process(), PseudoPointFactor((spoiled,)), "not finite"),
        (Process(), PseudoPointFactor(("text",)), "not finite arrays"),
        (Process(), PseudoPointFactor((sound,), log_scale=np.inf), "log constant is inf"),
        (Process(), PseudoPointFactor((sound,), half_of_epsilon()), "only one"),
        (with_epsilon, PseudoPointFactor((sound,)), "only one"),
    ):
        assert objection in process.objection_to(factor)
