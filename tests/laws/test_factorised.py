"""A process that grows block by block is the one that is factorised at once."""

import gpflow
import numpy as np
import pytest

from streaming_gp.errors import NumericalError
from streaming_gp.gp.hyperparameters import ParameterVector
from streaming_gp.gp.process import GaussianProcess, PseudoObservations
from streaming_gp.gp.process.dense import LEAST_PIVOT, ROW, DenseProcess
from streaming_gp.gp.process.graphs import Graphs
from streaming_gp.gp.process.prior import PriorAt, PriorFunctions
from tests.laws.test_process import observed
from tests.tolerances import ALGEBRA


def prior(num_latent=1, num_groups=1, white_noise=0.0, kernel=None):
    kernel = kernel or gpflow.kernels.Matern52(variance=1.5, lengthscales=[0.7, 1.2])
    if white_noise > 0.0:
        kernel += gpflow.kernels.White(white_noise)
    gp = GaussianProcess(kernel, gpflow.functions.Constant(0.8), num_latent, num_groups)
    parameters = ParameterVector(kernel)
    return PriorAt(PriorFunctions(gp, parameters, 2, Graphs()), parameters.value()[None])


@pytest.mark.parametrize(("num_latent", "num_groups"), [(1, 1), (3, 1), (3, 3)])
def test_a_process_that_grew_is_the_one_that_is_factorised_at_once(rng, num_latent, num_groups):
    at = prior(num_latent, num_groups, white_noise=0.2)
    gp = at.functions.gp
    members = [observed(rng, m, num_groups, num_latent // num_groups) for m in (4, 1, 6, 4)]
    grown = DenseProcess(at)
    for member in members:
        grown = grown.extended(member)
    X = rng.uniform(-2, 2, (5, 2))
    V = grown.project(X)
    stack = gp.stack(tuple(members), 2)
    conditioned = gp.condition(stack)
    mean, covariance = gp.predict(stack, conditioned, X, full_cov=True)
    np.testing.assert_allclose(np.concatenate(list(grown.mean(X, V)), axis=1), mean, atol=ALGEBRA)
    found = np.broadcast_to(grown.covariance(X, V), covariance.shape)
    np.testing.assert_allclose(found, covariance, atol=ALGEBRA)
    np.testing.assert_allclose(grown.log_normaliser, gp.log_normaliser(conditioned), rtol=ALGEBRA)


def test_what_two_processes_have_in_front_is_shared(rng):
    members = tuple(observed(rng, m) for m in (ROW, 2, ROW, 3))
    whole = DenseProcess(prior()).conditioned_on(members)
    assert [len(row.members) for row in whole.rows] == [1, 2, 1]
    longer = whole.conditioned_on((*members, observed(rng, 2)))
    assert all(a is b for a, b in zip(longer.rows[:2], whole.rows[:2], strict=True))
    shorter = longer.conditioned_on((members[0], members[2]))
    assert shorter.rows[0] is whole.rows[0]
    anew = DenseProcess(prior()).conditioned_on((members[0], members[2]))
    X = rng.uniform(-2, 2, (5, 2))
    np.testing.assert_array_equal(shorter.project(X), anew.project(X))
    assert shorter.log_normaliser == anew.log_normaliser
    assert DenseProcess(prior()).conditioned_on(()).log_normaliser == 0.0


def test_one_member_after_another_gives_the_same_bit_for_bit(rng):
    members = [observed(rng, m) for m in (5, 30, 1, ROW, 40, 1, 30, 2)]
    grown = DenseProcess(prior())
    for number in range(1, len(members) + 1):
        grown = grown.conditioned_on(members[:number])
    anew = DenseProcess(prior()).conditioned_on(members)
    X = rng.uniform(-2, 2, (5, 2))
    for found, wanted in zip(grown.marginals(X), anew.marginals(X), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("num_latent", "num_groups"), [(1, 1), (3, 1), (2, 2)])
def test_several_values_of_epsilon_are_each_by_itself(rng, num_latent, num_groups):
    one = prior(num_latent, num_groups, white_noise=0.1)
    draws = one.draws + 0.3 * rng.standard_normal((3, one.draws.shape[1]))
    members = [observed(rng, m, num_groups, num_latent // num_groups) for m in (4, 2)]
    X = rng.uniform(-2, 2, (5, 2))
    together = DenseProcess(PriorAt(one.functions, draws)).extended(members[0]).extended(members[1])
    apart = [DenseProcess(PriorAt(one.functions, each[None])).extended(*members) for each in draws]
    for found, *wanted in zip(
        together.marginals(X), *(process.marginals(X) for process in apart), strict=True
    ):
        np.testing.assert_allclose(found, np.concatenate(wanted), atol=ALGEBRA)
    V = together.project(X)
    mean, variance = together.marginals(X)
    np.testing.assert_allclose(together.mean(X, V), mean, atol=ALGEBRA)
    covariance = together.covariance(X, V)
    np.testing.assert_allclose(np.einsum("gnn->gn", covariance), variance, atol=ALGEBRA)


@pytest.mark.parametrize("kind", ["diagonal", "triangular", "full"])
def test_every_kind_of_precision_factor_is_multiplied(rng, kind):
    R = rng.standard_normal((2, 4, 4))
    R = {"diagonal": R * np.eye(4), "triangular": np.tril(R), "full": R}[kind]
    one = PseudoObservations(rng.standard_normal((4, 2)), R, rng.standard_normal((2, 4, 1)), 0.0)
    assert (one.is_diagonal, one.is_triangular) == (kind == "diagonal", kind != "full")
    B = rng.standard_normal((4, 3))
    for group in range(2):
        np.testing.assert_allclose(one.weighted(group, B), R[group].T @ B, atol=ALGEBRA)


def test_a_covariance_that_is_not_positive_is_refused(rng):
    one = observed(rng, 3)
    broken = PseudoObservations(one.Z, one.precision_factor, one.pseudo_targets, -1e9)
    with pytest.raises(NumericalError, match="not positive"):
        DenseProcess(prior()).extended(broken)


def test_where_rounding_is_larger_than_the_noise_observations_are_taken_for_noisier(rng):
    """A lengthscale far below the steps of its column: squares of distances are wrong by 1e-6."""
    kernel = gpflow.kernels.SquaredExponential(variance=10.0, lengthscales=[1e-5, 1.0])
    steps, X = rng.integers(0, 3, 300), rng.uniform(-1.0, 1.0, 300)
    y, root = np.sin(3.0 * X), np.full(300, 1e3)
    Z = np.stack([steps, X], axis=1).astype(float)
    seen = PseudoObservations(Z, np.diag(root)[None], (root * y)[None, :, None], 0.0)
    found = DenseProcess(prior(kernel=kernel)).conditioned_on((seen,))
    assert all(row.chol[0].diagonal().min() > LEAST_PIVOT for row in found.rows)
    mean, variance = found.marginals(Z)
    np.testing.assert_allclose(mean[0, :, 0], y, atol=0.03)
    assert variance.max() < 0.01
