"""A process that grows block by block is the one that is factorised at once."""

import gpflow
import numpy as np
import pytest

from streaming_gp.errors import NumericalError
from streaming_gp.gp.hyperparameters import ParameterVector
from streaming_gp.gp.process import GaussianProcess, PseudoObservations
from streaming_gp.gp.process.factorised import Factorised
from streaming_gp.gp.process.prior import PriorAt, PriorFunctions
from tests.gp.process.test_process import observed
from tests.tolerances import ALGEBRA


def prior(num_latent=1, num_groups=1, white_noise=0.0):
    kernel = gpflow.kernels.Matern52(variance=1.5, lengthscales=[0.7, 1.2])
    if white_noise > 0.0:
        kernel += gpflow.kernels.White(white_noise)
    gp = GaussianProcess(kernel, gpflow.functions.Constant(0.8), num_latent, num_groups)
    parameters = ParameterVector(kernel)
    return PriorAt(PriorFunctions(gp, parameters, 2), parameters.value())


@pytest.mark.parametrize(("num_latent", "num_groups"), [(1, 1), (3, 1), (3, 3)])
def test_a_process_that_grew_is_the_one_that_is_factorised_at_once(rng, num_latent, num_groups):
    at = prior(num_latent, num_groups, white_noise=0.2)
    gp = at.functions.gp
    members = [observed(rng, m, num_groups, num_latent // num_groups) for m in (4, 1, 6, 4)]
    grown = Factorised(at)
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
    members = tuple(observed(rng, m) for m in (3, 2, 4))
    whole = Factorised(prior()).conditioned_on(members)
    longer = whole.conditioned_on((*members, observed(rng, 2)))
    shorter = longer.conditioned_on((members[0], members[2]))
    assert all(a is b for a, b in zip(longer.rows, whole.rows, strict=False))
    assert shorter.rows[0] is whole.rows[0]
    anew = Factorised(prior()).conditioned_on((members[0], members[2]))
    X = rng.uniform(-2, 2, (5, 2))
    np.testing.assert_allclose(shorter.project(X), anew.project(X), atol=ALGEBRA)
    assert Factorised(prior()).conditioned_on(()).log_normaliser == 0.0


def test_a_covariance_that_is_not_positive_is_refused(rng):
    one = observed(rng, 3)
    broken = PseudoObservations(one.Z, one.precision_factor, one.pseudo_targets, -1e9)
    with pytest.raises(NumericalError, match="not positive"):
        Factorised(prior()).extended(broken)
