"""Points move to where pseudo-observations of others are kept best."""

import gpflow
import numpy as np
import pytest
from scipy.optimize import check_grad

import streaming_gp as sgp
from streaming_gp.gp.compilation import compile_gp
from streaming_gp.gp.fitting.moving import Moving
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, PseudoPointFactor
from tests.oracles.builders import FIXED, rough_kernel
from tests.tolerances import THROUGH_CHOLESKY

NUGGET = 1e-6


def kernel_of_two():
    kernels = [gpflow.kernels.SquaredExponential(), rough_kernel()]
    return gpflow.kernels.SeparateIndependent(kernels)


@pytest.fixture(scope="module", params=[rough_kernel, kernel_of_two])
def fitter(request):
    gp = sgp.StreamingGP(
        request.param(), gpflow.likelihoods.Gaussian(0.1), gpflow.functions.Constant(2.0),
        pseudo_points=sgp.PrivatePseudoPoints(3), hyperparameters=FIXED,
    )  # fmt: skip
    num_latent = 1 if request.param is rough_kernel else 2
    return compile_gp(gp.modules, gp.settings, (2, num_latent)).fitter


def said(fitter, rng, number, diagonal=False):
    groups = fitter.local.gp.num_groups
    factor = np.tril(rng.standard_normal((groups, number, number)))
    if diagonal:
        factor *= np.eye(number)
    columns = fitter.local.gp.num_latent // groups
    targets = 2.0 + rng.standard_normal((groups, number, columns))
    return PseudoObservations(rng.uniform(-2, 2, (number, 2)), factor, targets, 0.0)


@pytest.fixture(params=[False, True])
def moving(fitter, rng, request):
    members = said(fitter, rng, 7), said(fitter, rng, 5, diagonal=True)
    others = (said(fitter, rng, 4),) if request.param else ()
    prior = PriorAt(fitter.local.prior, fitter.local.parameters.value()[None])
    return Moving(prior, others, members, NUGGET)


def test_the_gradient_is_that_of_the_loss(moving, rng):
    Z = rng.uniform(-2, 2, (4, 2))
    error = check_grad(
        lambda z: moving.loss_and_gradient(z.reshape(4, 2))[0],
        lambda z: moving.loss_and_gradient(z.reshape(4, 2))[1].ravel(),
        Z.ravel(), epsilon=1e-6,
    )  # fmt: skip
    assert error <= 1e-4 * np.linalg.norm(moving.loss_and_gradient(Z)[1])


def test_the_loss_is_that_of_the_log_evidence_of_the_projected(fitter, moving, rng):
    epsilon = fitter.local.parameters.value()

    def log_evidence(Z):
        one, constant = moving.projected(Z)
        process = Process((*moving.others, one), None, constant)
        return fitter.factorisations.log_normaliser(epsilon, process)

    places = rng.uniform(-2, 2, (2, 4, 2))
    change = log_evidence(places[0]) - log_evidence(places[1])
    losses = [moving.loss_and_gradient(Z)[0] for Z in places]
    np.testing.assert_allclose(losses[1] - losses[0], change, rtol=THROUGH_CHOLESKY)


def test_on_some_of_the_same_points_it_is_the_projection_of_dropped_ones(fitter, moving):
    epsilon = fitter.local.parameters.value()
    factor, others = PseudoPointFactor(moving.members), Process(moving.others)
    subset = fitter.merging.thinned(factor, others, epsilon, 8)
    (wanted,) = subset.pseudo_observations
    found, constant = moving.projected(wanted.Z)
    np.testing.assert_allclose(constant, subset.log_scale, rtol=1e-4)
    for one, other in (
        (found.precision, wanted.precision),
        (found.precision_mean, wanted.precision_mean),
    ):
        np.testing.assert_allclose(one, other, atol=1e-4 * np.max(np.abs(other)))


def test_points_stay_where_points_were(rng):
    """Under a polynomial kernel the best places lie ever farther out."""
    gp = sgp.StreamingGP(
        gpflow.kernels.Polynomial(), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(3), hyperparameters=FIXED,
    )  # fmt: skip
    fitter = compile_gp(gp.modules, gp.settings, (2, 1)).fitter
    prior = PriorAt(fitter.local.prior, fitter.local.parameters.value()[None])
    members = (said(fitter, rng, 7),)
    (one,) = members
    found = Moving(prior, (), members, NUGGET).best_places(one.Z[:3], sgp.LocalOptimiser(), 20)
    assert np.any(found != one.Z[:3])
    assert np.all(found >= one.Z.min(axis=0) - 1e-12)
    assert np.all(found <= one.Z.max(axis=0) + 1e-12)
