"""What Gaussians alone have: white coordinates, moments of products, least covariances."""

import numpy as np
import pytest
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.expfam import IsotropicNormal, MeanFieldNormal, Normal
from tests.oracles.reference import FAMILY_DIMENSION as DIMENSION
from tests.oracles.reference import random_member
from tests.tolerances import THROUGH_CHOLESKY

gaussians = pytest.mark.parametrize("family", expfam.GAUSSIANS)


def dense(family, covariance):
    """The covariance matrix of what a family keeps of it."""
    if family is Normal:
        return np.asarray(covariance)
    return np.diag(np.broadcast_to(covariance, (DIMENSION,)))


def kept(family, matrix):
    """What a family keeps of a matrix."""
    if family is Normal:
        return matrix
    diagonal = np.diag(matrix)
    return diagonal if family is MeanFieldNormal else diagonal.mean()


def assert_close(a, b):
    np.testing.assert_allclose(a, b, rtol=THROUGH_CHOLESKY, atol=THROUGH_CHOLESKY)


@gaussians
def test_white_coordinates_are_those_of_the_lower_root(family, rng):
    q, x = random_member(family, 0), rng.standard_normal((4, DIMENSION))
    mean, covariance = q.moments()
    root = np.linalg.cholesky(dense(family, covariance))
    assert_close(q.scale, root)
    white = np.linalg.solve(root, (x - np.asarray(mean)).T).T
    assert_close(q.to_white(x), white)
    assert_close(q.from_white(white), x)


@gaussians
def test_variances_along_directions(family, rng):
    q, directions = random_member(family, 0), rng.standard_normal((4, DIMENSION))
    covariance = dense(family, q.moments()[1])
    assert_close(q.variance_along(directions), np.diag(directions @ covariance @ directions.T))
    assert_close(q.variance, np.diag(covariance))


@gaussians
def test_means_of_products_are_symmetric_and_over_rows(family, rng):
    a, b = rng.standard_normal((2, 5, DIMENSION))
    assert_close(family.mean_product(a, b), kept(family, (a.T @ b + b.T @ a) / 10.0))


@gaussians
def test_moments_make_the_member_that_has_them(family):
    q = random_member(family, 0)
    mean, covariance = q.moments()
    made = family.from_moments(mean, covariance)
    for found, wanted in zip(made.natural, q.natural, strict=True):
        assert_close(found, wanted)
    assert_close(made.mean, mean)
    assert_close(made.variance, q.variance)


@gaussians
def test_unconstrained_numbers_are_a_mean_and_a_root(family):
    q = random_member(family, 0)
    numbers = q.unconstrained()
    assert numbers.shape == family.unconstrained_shape(DIMENSION)
    mean, root = family.mean_scale_of(numbers)
    assert_close(mean, q.mean)
    assert_close(root, q.scale)


@pytest.mark.parametrize("of", ["a number", "a covariance"])
@gaussians
def test_a_covariance_is_raised_where_it_falls_short_and_nowhere_else(family, of):
    """In the coordinates in which the floor is white, every direction is one at least."""
    covariance = random_member(family, 0).moments()[1]
    root = np.linalg.cholesky(dense(family, covariance))
    floor, white = 0.5, np.sqrt(0.5) * np.eye(DIMENSION)
    if of == "a covariance":
        floor = tf.constant(kept(family, root @ np.diag([0.5, 1.5, 2.0]) @ root.T))
        white = np.linalg.cholesky(dense(family, floor))
    raised = dense(family, family.raised(covariance, floor))
    before, after = (
        np.linalg.solve(white, np.linalg.solve(white, matrix).T)
        for matrix in (dense(family, covariance), raised)
    )
    values, vectors = np.linalg.eigh(before)
    assert (values < 1.0).any(), "nothing falls short"
    assert_close(after, (vectors * np.maximum(values, 1.0)) @ vectors.T)


def test_an_isotropic_normal_has_the_mean_variance_of_a_root():
    root = np.array([[1.0, 0.0], [0.5, 2.0]])
    q = IsotropicNormal.from_mean_scale(np.array([1.0, -1.0]), tf.constant(root))
    assert_close(q.variance, np.full(2, np.trace(root @ root.T) / 2.0))
    assert_close(q.mean, [1.0, -1.0])


def test_a_mean_field_has_the_diagonal_of_a_root():
    q = MeanFieldNormal.from_mean_scale(np.array([1.0, -1.0]), np.diag([0.5, 2.0]))
    assert_close(q.variance, [0.25, 4.0])
    assert_close(q.mean, [1.0, -1.0])


@gaussians
def test_the_base_measure_is_that_of_lebesgue_over_a_power_of_two_pi(family):
    q, x = random_member(family, 0), np.zeros((2, DIMENSION))
    wanted = -0.5 * DIMENSION * np.log(2.0 * np.pi)
    assert_close(q.log_base_measure(x), [wanted, wanted])
    assert_close(q.expected_log_base_measure(), wanted)


@gaussians
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_single_number_that_is_not_finite_makes_no_gaussian(family, place, wrong):
    natural = [np.array(eta, float) for eta in random_member(family, 0).natural]
    assert family.is_proper_natural(*natural)
    natural[place].flat[0] = wrong
    assert not family.is_proper_natural(*natural)


@gaussians
def test_a_divergence_keeps_its_digits_where_a_width_is_much_smaller_than_a_mean(family):
    mean = np.full(DIMENSION, 20.0)
    away = family.from_mean_scale(mean, 1e-9 * np.eye(DIMENSION))
    standard = family.from_mean_scale(np.zeros(DIMENSION), np.eye(DIMENSION))
    log_widths = np.log(1e-18)
    exact = 0.5 * DIMENSION * (20.0**2 + 1e-18 - 1.0 - log_widths)
    np.testing.assert_allclose(away.kl_divergence(standard), exact, rtol=1e-12)
    np.testing.assert_allclose(
        away.entropy(), 0.5 * DIMENSION * (np.log(2.0 * np.pi) + 1.0 + log_widths), rtol=1e-12
    )
