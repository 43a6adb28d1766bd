"""Rules for expectations under standard normals are exact where they say so."""

import numpy as np
import pytest

from streaming_gp.numerics.quadrature import (
    gauss_hermite,
    normal_nodes,
    standard_normals,
    whitened_sobol,
)
from tests.conftest import ALGEBRA


@pytest.mark.parametrize("num_samples", [8, 9, 32])
@pytest.mark.parametrize("whiten", [True, False])
def test_antithetic_normals_have_exact_moments(num_samples, whiten):
    xi = standard_normals(num_samples, 3, seed=2, whiten=whiten)
    assert xi.shape == (num_samples, 3)
    np.testing.assert_array_equal(xi[: num_samples // 2], -xi[num_samples // 2 :][: len(xi) // 2])
    second = xi.T @ xi / num_samples
    np.testing.assert_allclose(np.diag(second), 1.0, rtol=ALGEBRA)
    if whiten:
        np.testing.assert_allclose(second, np.eye(3), atol=ALGEBRA)


def test_no_coordinates_or_one_sample_are_zeros():
    assert standard_normals(4, 0, seed=0).shape == (4, 0)
    np.testing.assert_array_equal(standard_normals(1, 2, seed=0), np.zeros((1, 2)))


@pytest.mark.parametrize(("num_nodes", "dimension"), [(5, 1), (4, 2), (3, 3)])
def test_gauss_hermite_is_exact_for_polynomials(num_nodes, dimension):
    nodes, weights = gauss_hermite(num_nodes, dimension)
    assert nodes.shape == (num_nodes**dimension, dimension)
    np.testing.assert_allclose(weights.sum(), 1.0, rtol=ALGEBRA)
    np.testing.assert_allclose(weights @ nodes**4, 3.0, rtol=ALGEBRA)  # E[z⁴] = 3
    np.testing.assert_allclose((weights[:, None] * nodes).T @ nodes, np.eye(dimension), atol=1e-9)


def test_the_sobol_sequence_has_exact_mean_and_covariance():
    nodes, weights = whitened_sobol(4)
    np.testing.assert_allclose(weights @ nodes, 0.0, atol=ALGEBRA)
    np.testing.assert_allclose((weights[:, None] * nodes).T @ nodes, np.eye(4), atol=ALGEBRA)


@pytest.mark.parametrize(("dimension", "number"), [(1, 100), (2, 1600), (3, 4096)])
def test_the_rule_goes_with_the_dimension(dimension, number):
    nodes, weights = normal_nodes(dimension)
    assert nodes.shape == (number, dimension)
    assert weights.shape == (number,)
