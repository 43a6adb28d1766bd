"""What a normal-Wishart says of a Gaussian's log density, against draws of SciPy and its own."""

import numpy as np
import pytest
import scipy.stats

from streaming_gp.expfam import NormalWishart
from tests.conftest import STANDARD_ERRORS, THROUGH_CHOLESKY
from tests.oracles.reference import FAMILY_COMPONENTS as COMPONENTS
from tests.oracles.reference import FAMILY_DIMENSION as DIMENSION
from tests.oracles.reference import random_member

DRAWS = 20_000


@pytest.fixture(scope="module")
def q():
    return random_member(NormalWishart, 3)


@pytest.fixture(params=["scipy", "own"])
def draws(q, request):
    """Means [S, K, D] and precisions [S, K, D, D]."""
    if request.param == "own":
        x = np.asarray(q.sample(DRAWS, seed=1))
        return x[:, :, :DIMENSION], x[:, :, DIMENSION:].reshape(DRAWS, COMPONENTS, DIMENSION, -1)
    rng = np.random.default_rng(0)
    mu, precision = np.empty((DRAWS, COMPONENTS, DIMENSION)), []
    for k in range(COMPONENTS):
        scale = np.linalg.inv(q.scale_inverse[k])
        own = scipy.stats.wishart(float(q.dof[k]), scale).rvs(DRAWS, random_state=rng)
        root = np.linalg.cholesky(np.linalg.inv(q.strength[k] * own))
        noise = rng.standard_normal((DRAWS, DIMENSION, 1))
        mu[:, k] = q.mean[k] + (root @ noise)[:, :, 0]
        precision.append(own)
    return mu, np.stack(precision, axis=1)


def assert_is_mean(found, values):
    """Within standard errors of the mean of draws [S, ...]."""
    error = values.std(axis=0) / np.sqrt(len(values))
    np.testing.assert_array_less(np.abs(found - values.mean(axis=0)), STANDARD_ERRORS * error)


def test_the_expected_log_determinant(q, draws):
    assert_is_mean(q.expected_log_determinant(), np.linalg.slogdet(draws[1])[1])


def test_the_expected_squared_distance(q, draws, rng):
    mu, precision = draws
    for y in rng.standard_normal((3, DIMENSION)):
        values = np.einsum("ski,skij,skj->sk", y - mu, precision, y - mu)
        assert_is_mean(q.expected_squared_distance(y[None])[0], values)


def test_the_distance_scaled_by_the_mean_precision_of_one_degree_of_freedom(q, rng):
    Y = rng.standard_normal((4, DIMENSION))
    away = Y[:, None] - np.asarray(q.mean)
    wanted = np.einsum("nki,kij,nkj->nk", away, np.linalg.inv(q.scale_inverse), away)
    np.testing.assert_allclose(q.scaled_distance(Y), wanted, rtol=THROUGH_CHOLESKY)


def test_no_random_number_is_in_a_draw_twice(q):
    """Those of the mean beside those below the diagonal of Bartlett's root."""
    x = np.asarray(q.sample(1, seed=1))[0]
    mu, precision = x[:, :DIMENSION], x[:, DIMENSION:].reshape(COMPONENTS, DIMENSION, DIMENSION)
    root = np.linalg.cholesky(precision)
    bartlett = np.linalg.solve(np.linalg.cholesky(np.linalg.inv(q.scale_inverse)), root)
    away = np.sqrt(q.strength)[:, None] * (mu - np.asarray(q.mean))
    noise = np.einsum("kij,ki->kj", root, away)
    rows, columns = np.tril_indices(DIMENSION, -1)
    numbers = np.concatenate([noise.ravel(), bartlett[:, rows, columns].ravel()])
    assert len(np.unique(np.round(numbers, 6))) == len(numbers)


@pytest.mark.parametrize(
    ("place", "factor"),
    [(0, np.nan), (0, -0.5), (2, -1.0), (3, np.inf), (3, 0.5)],
    ids=["shape not a number", "shape", "strength", "scatter infinite", "scatter of the mean"],
)
def test_what_is_improper(place, factor):
    """Each change is one that no other condition refuses."""
    mean = np.array([[3.0, -2.0]])
    fine = NormalWishart.from_standard(mean, np.ones(1), np.full(1, 4.0), 0.1 * np.eye(2)[None])
    natural = [np.asarray(eta) for eta in fine.natural]
    assert NormalWishart.is_proper_natural(*natural)
    natural[place] = factor * natural[place]
    assert not NormalWishart.is_proper_natural(*natural)
