"""The process of pseudo-observations, and the factors that condition it."""

import gpflow
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_gp import expfam
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.factor import PseudoObservations, PseudoPointFactor
from streaming_gp.gp.process import GaussianProcess, Process, packed, times_root
from tests.conftest import ALGEBRA, THROUGH_CHOLESKY
from tests.reference import conditioned_process

LAWS = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**31 - 1)


def row(rng, num, num_groups=1, num_columns=1, nugget=1e-6):
    return PseudoObservations(
        rng.uniform(-2, 2, (num, 2)),
        rng.standard_normal((num_groups, num, num)),
        rng.standard_normal((num_groups, num, num_columns)),
        nugget,
    )


def process_functions(num_latent=1, num_groups=1):
    kernel = gpflow.kernels.Matern52(variance=1.5, lengthscales=[0.7, 1.2])
    return GaussianProcess(kernel, gpflow.functions.Constant(0.8), num_latent, num_groups)


def predict(gp, rows, X, full_cov=True):
    stack = gp.stack(tuple(rows), 2)
    mean, cov = gp.predict(stack, gp.condition(stack), X, full_cov)
    return mean.numpy(), cov.numpy()


@pytest.mark.parametrize(("num_latent", "num_groups"), [(1, 1), (3, 1), (3, 3)])
def test_prediction_agrees_with_the_dense_formula(rng, num_latent, num_groups):
    gp = process_functions(num_latent, num_groups)
    rows = [row(rng, m, num_groups, num_latent // num_groups) for m in (4, 1, 6)]
    X = rng.uniform(-2, 2, (5, 2))
    mean, cov = predict(gp, rows, X)
    expected_mean, expected_cov = conditioned_process(gp.kernel, gp.mean_function, rows, X)
    np.testing.assert_allclose(mean, expected_mean, atol=THROUGH_CHOLESKY)
    np.testing.assert_allclose(cov, np.broadcast_to(expected_cov, cov.shape), atol=THROUGH_CHOLESKY)
    _, variance = predict(gp, rows, X, full_cov=False)
    np.testing.assert_allclose(variance.T, np.diagonal(cov, axis1=1, axis2=2), atol=ALGEBRA)


def test_no_rows_is_the_prior(rng):
    gp = process_functions()
    X = rng.uniform(-2, 2, (5, 2))
    mean, cov = predict(gp, [], X)
    np.testing.assert_allclose(mean, 0.8)
    np.testing.assert_allclose(cov[0], gp.kernel(X), atol=ALGEBRA)


@LAWS
@given(seeds)
def test_the_order_of_rows_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    gp, rows = process_functions(), [row(rng, m) for m in (3, 5, 2)]
    X = rng.uniform(-2, 2, (4, 2))
    for a, b in zip(predict(gp, rows, X), predict(gp, rows[::-1], X), strict=True):
        np.testing.assert_allclose(a, b, atol=THROUGH_CHOLESKY)


@LAWS
@given(seeds, st.floats(0.1, 3.0))
def test_factor_powers_and_products_act_on_natural_parameters(seed, power):
    rng = np.random.default_rng(seed)
    a = row(rng, 4, num_columns=2)
    b = PseudoObservations(
        a.Z, rng.standard_normal((1, 4, 4)), rng.standard_normal((1, 4, 2)), a.nugget
    )
    t_a, t_b = PseudoPointFactor((a,)), PseudoPointFactor((b,))
    product = t_a**power * t_b
    assert len(product.rows) == 1  # the same u: one row
    np.testing.assert_allclose(product.precision, power * t_a.precision + t_b.precision, atol=1e-9)
    expected = power * t_a.precision_mean + t_b.precision_mean
    np.testing.assert_allclose(product.precision_mean, expected, atol=1e-9)


@LAWS
@given(seeds)
def test_merging_rows_keeps_posterior_and_normaliser(seed):
    rng = np.random.default_rng(seed)
    gp, a = process_functions(), row(rng, 4)
    b = PseudoObservations(
        a.Z, rng.standard_normal((1, 4, 4)), rng.standard_normal((1, 4, 1)), a.nugget
    )
    merged = PseudoPointFactor((a,)) * PseudoPointFactor((b,))
    X = rng.uniform(-2, 2, (3, 2))
    # one u seen twice is one row; as two rows each nugget would be drawn anew, so use none
    rows = [PseudoObservations(r.Z, r.root, r.targets, 0.0) for r in (a, b, *merged.rows)]
    for x, y in zip(predict(gp, rows[:2], X), predict(gp, rows[2:], X), strict=True):
        np.testing.assert_allclose(x, y, atol=THROUGH_CHOLESKY)
    apart, together = (gp.stack(tuple(r), 2) for r in (rows[:2], rows[2:]))
    gained = gp.log_normaliser(gp.condition(together)) + merged.log_scale
    np.testing.assert_allclose(
        gp.log_normaliser(gp.condition(apart)), gained, rtol=THROUGH_CHOLESKY
    )


def test_products_of_rows_at_different_points_stack(rng):
    a, b = PseudoPointFactor((row(rng, 2),)), PseudoPointFactor((row(rng, 3),))
    product = a * b
    assert product.Z.shape == (5, 2)
    assert product.precision.shape == (1, 5, 5)
    assert product.precision_mean.shape == (1, 5, 1)
    np.testing.assert_allclose(product.precision[0, :2, 2:], 0.0)


def test_a_process_divided_by_its_cavity_gives_the_factor_back(rng):
    prior = Process((), expfam.MeanFieldNormal(np.zeros(2), np.ones(2)))
    t = PseudoPointFactor(
        (row(rng, 3),), expfam.Factor(expfam.MeanFieldNormal, (np.ones(2), np.full(2, 0.5))), 1.25
    )
    quotient = prior.times([t]) / prior
    assert quotient.rows == t.rows
    assert quotient.log_scale == 1.25
    np.testing.assert_allclose(quotient.hyperparameters.natural[1], 0.5)


def test_a_process_cannot_be_divided_by_a_stranger(rng):
    a, b = (Process().times([PseudoPointFactor((row(rng, 2),))]) for _ in range(2))
    with pytest.raises(InvalidDataError, match="conditioned from"):
        a / b


def test_times_root_is_a_block_diagonal_product(rng):
    root = rng.standard_normal((2, 3, 4, 4))
    matrix = rng.standard_normal((1, 5, 12))
    product = times_root(matrix, root).numpy()
    for g in range(2):
        for r in range(3):
            block = slice(4 * r, 4 * r + 4)
            np.testing.assert_allclose(product[g][:, block], matrix[0][:, block] @ root[g, r])


@LAWS
@given(st.lists(st.integers(1, 30), max_size=20))
def test_packed_rows_stay_apart_and_waste_little(sizes):
    starts, block, number = packed(sizes)
    places = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    taken = [place for places_of_row in places for place in places_of_row]
    assert len(taken) == len(set(taken)) == sum(sizes)
    assert all(place[0] // block == place[-1] // block < number for place in places)
    assert (number - 1) * block <= 2 * sum(sizes)
