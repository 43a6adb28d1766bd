"""The process of pseudo-observations, and the factors that condition it."""

import copy

import gpflow
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_gp import expfam
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.process import GaussianProcess, Process, PseudoObservations, PseudoPointFactor
from streaming_gp.gp.process.observations import factored
from streaming_gp.gp.process.tensors import packed, times_factor
from tests.oracles.reference import conditioned_process
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY

LAWS = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**31 - 1)


def observed(rng, num, num_groups=1, num_columns=1, nugget=1e-6):
    return PseudoObservations(
        rng.uniform(-2, 2, (num, 2)),
        rng.standard_normal((num_groups, num, num)),
        rng.standard_normal((num_groups, num, num_columns)),
        nugget,
    )


def process_functions(num_latent=1, num_groups=1):
    kernel = gpflow.kernels.Matern52(variance=1.5, lengthscales=[0.7, 1.2])
    return GaussianProcess(kernel, gpflow.functions.Constant(0.8), num_latent, num_groups)


def predict(gp, observations, X, full_cov=True):
    stack = gp.stack(tuple(observations), 2)
    mean, cov = gp.predict(stack, gp.condition(stack), X, full_cov)
    return mean.numpy(), cov.numpy()


@pytest.mark.parametrize(("num_latent", "num_groups"), [(1, 1), (3, 1), (3, 3)])
def test_prediction_agrees_with_the_dense_formula(rng, num_latent, num_groups):
    gp = process_functions(num_latent, num_groups)
    observations = [observed(rng, m, num_groups, num_latent // num_groups) for m in (4, 1, 6)]
    X = rng.uniform(-2, 2, (5, 2))
    mean, cov = predict(gp, observations, X)
    expected_mean, expected_cov = conditioned_process(gp.kernel, gp.mean_function, observations, X)
    np.testing.assert_allclose(mean, expected_mean, atol=THROUGH_CHOLESKY)
    np.testing.assert_allclose(cov, np.broadcast_to(expected_cov, cov.shape), atol=THROUGH_CHOLESKY)
    _, variance = predict(gp, observations, X, full_cov=False)
    np.testing.assert_allclose(variance.T, np.diagonal(cov, axis1=1, axis2=2), atol=ALGEBRA)


def test_no_observations_is_the_prior(rng):
    gp = process_functions()
    X = rng.uniform(-2, 2, (5, 2))
    mean, cov = predict(gp, [], X)
    np.testing.assert_allclose(mean, 0.8)
    np.testing.assert_allclose(cov[0], gp.kernel(X), atol=ALGEBRA)


@LAWS
@given(seeds)
def test_the_order_of_pseudo_observations_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    gp, observations = process_functions(), [observed(rng, m) for m in (3, 5, 2)]
    X = rng.uniform(-2, 2, (4, 2))
    for a, b in zip(predict(gp, observations, X), predict(gp, observations[::-1], X), strict=True):
        np.testing.assert_allclose(a, b, atol=THROUGH_CHOLESKY)


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


@LAWS
@given(seeds)
def test_merging_observations_keeps_posterior_and_normaliser(seed):
    rng = np.random.default_rng(seed)
    gp, a = process_functions(), observed(rng, 4)
    b = PseudoObservations(
        a.Z, rng.standard_normal((1, 4, 4)), rng.standard_normal((1, 4, 1)), a.nugget
    )
    merged = PseudoPointFactor((a,)) * PseudoPointFactor((b,))
    X = rng.uniform(-2, 2, (3, 2))
    # one u seen twice is one member; as two each nugget would be drawn anew, so use none
    observations = [
        PseudoObservations(r.Z, r.precision_factor, r.pseudo_targets, 0.0)
        for r in (a, b, *merged.pseudo_observations)
    ]
    for x, y in zip(
        predict(gp, observations[:2], X), predict(gp, observations[2:], X), strict=True
    ):
        np.testing.assert_allclose(x, y, atol=THROUGH_CHOLESKY)
    apart, together = (gp.stack(tuple(r), 2) for r in (observations[:2], observations[2:]))
    gained = gp.log_normaliser(gp.condition(together)) + merged.log_scale
    np.testing.assert_allclose(
        gp.log_normaliser(gp.condition(apart)), gained, rtol=THROUGH_CHOLESKY
    )


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
    cavity = prior.times([a, b]).cavity(a)
    assert cavity.pseudo_observations == b.pseudo_observations
    assert cavity.log_scale == pytest.approx(1.25)
    for mine, expected in zip(
        cavity.hyperparameters.natural, prior.times([b]).hyperparameters.natural, strict=True
    ):
        np.testing.assert_allclose(mine, expected, atol=ALGEBRA)
    assert prior.cavity(None) is prior


def test_a_factor_that_has_travelled_is_still_found(rng):
    factor = PseudoPointFactor((observed(rng, 3),))
    process = Process().times([factor, PseudoPointFactor((observed(rng, 2),))])
    assert len(process.cavity(copy.deepcopy(factor)).pseudo_observations) == 1


def test_a_process_has_no_cavity_without_a_stranger(rng):
    process = Process().times([PseudoPointFactor((observed(rng, 2),))])
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


def test_times_factor_is_a_block_diagonal_product(rng):
    factor = rng.standard_normal((2, 3, 4, 4))
    matrix = rng.standard_normal((1, 5, 12))
    product = times_factor(matrix, factor).numpy()
    for g in range(2):
        for r in range(3):
            block = slice(4 * r, 4 * r + 4)
            np.testing.assert_allclose(product[g][:, block], matrix[0][:, block] @ factor[g, r])


@LAWS
@given(st.lists(st.integers(1, 30), max_size=20))
def test_packed_observations_stay_apart_and_waste_little(sizes):
    starts, block, number = packed(sizes)
    places = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    taken = [place for places_of_one in places for place in places_of_one]
    assert len(taken) == len(set(taken)) == sum(sizes)
    assert all(place[0] // block == place[-1] // block < number for place in places)
    assert (number - 1) * block <= 2 * sum(sizes)


@pytest.mark.parametrize("rank", [5, 3, 0])
def test_information_is_that_of_observations(rng, rank):
    R, s = rng.standard_normal((5, rank)), rng.standard_normal((rank, 2))
    factor, targets = factored(R @ R.T, R @ s)
    np.testing.assert_allclose(factor @ factor.T, R @ R.T, atol=ALGEBRA)
    np.testing.assert_allclose(factor @ targets, R @ s, atol=ALGEBRA)
    assert np.all(np.triu(factor, 1) == 0.0) == (rank in (5, 0))
    assert np.linalg.norm(targets) <= np.linalg.norm(s) + ALGEBRA
