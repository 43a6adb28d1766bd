"""Factors on new points."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import NumericalError
from streaming_gp.gp.compilation import compile_gp
from streaming_gp.gp.fitting.projection import Projection
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import PseudoPointFactor
from tests.laws.test_process import observed
from tests.oracles.builders import FIXED
from tests.tolerances import THROUGH_CHOLESKY

MEAN, NUGGET, EARLIER_NUGGET = 2.0, 1e-2, 2e-2
KERNELS = [gpflow.kernels.Matern32(), gpflow.kernels.Matern52(variance=2.0)]


@pytest.fixture(scope="module")
def prior():
    gp = sgp.StreamingGP(
        gpflow.kernels.SeparateIndependent(KERNELS), gpflow.likelihoods.Gaussian(0.1),
        gpflow.functions.Constant(MEAN), hyperparameters=FIXED,
    )  # fmt: skip
    local = compile_gp(gp.modules, gp.settings, (2, 2)).fitter.local
    return PriorAt(local.prior, local.parameters.value()[None])


def expected_log(one, kernel, group, Z, b, shared):
    """``E[log t(a) | b]`` of one group, by the textbook formula."""
    K = kernel(Z).numpy() + NUGGET * np.eye(len(Z))
    K_ab = kernel(one.Z, Z).numpy() + shared * np.eye(len(one.Z), len(Z))
    weights = np.linalg.solve(K, K_ab.T).T
    left = kernel(one.Z).numpy() + one.nugget * np.eye(len(one.Z)) - weights @ K_ab.T
    R = one.precision_factor[group]
    a = MEAN + weights @ (b[group] - MEAN)
    return -0.5 * (np.sum((one.pseudo_targets[group] - R.T @ a) ** 2) + np.trace(R.T @ left @ R))


@pytest.mark.parametrize("shared", [0.0, 0.5 * NUGGET])
def test_it_is_the_expected_log_factor(prior, rng, shared):
    members = [observed(rng, number, 2, nugget=EARLIER_NUGGET) for number in (6, 3)]
    factor, Z = PseudoPointFactor(tuple(members), None, 0.7), rng.uniform(-2, 2, (6, 2))
    projection = Projection(prior, Z, NUGGET, shared)
    twice = [projection.of_factor(factor) for _ in range(2)]  # earlier points are known by then
    for found in twice:
        (kept,) = found.pseudo_observations
        np.testing.assert_array_equal(kept.Z, Z)
        assert kept.nugget == NUGGET
        for b in rng.standard_normal((3, 2, 6, 1)):
            parts = [
                expected_log(one, kernel, group, Z, b, shared)
                for group, kernel in enumerate(KERNELS)
                for one in members
            ]
            errors = kept.pseudo_targets - np.swapaxes(kept.precision_factor, 1, 2) @ b
            value = found.log_scale - 0.5 * np.sum(errors**2)
            assert value == pytest.approx(0.7 + sum(parts), rel=THROUGH_CHOLESKY)


def test_a_factor_of_epsilon_alone_stays_as_it_is(prior, rng):
    factor = PseudoPointFactor((), None, 0.3)
    assert Projection(prior, rng.uniform(-2, 2, (4, 2)), NUGGET).of_factor(factor) is factor


def test_points_without_a_positive_covariance_are_refused(prior):
    with pytest.raises(NumericalError, match="not positive"):
        Projection(prior, np.ones((3, 2)), -1.0)
