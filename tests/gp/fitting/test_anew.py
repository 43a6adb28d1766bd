"""ε and points that are fitted to data anew, against GPflow's sparse regression."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import NumericalError
from streaming_gp.gp.fitting.anew import onto
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.pseudo_observations import PseudoObservations
from streaming_gp.gp.process.single_observations import SingleObservations
from streaming_gp.numerics.linalg import LOG_TWO_PI
from tests.gp.builders import (
    EVERY_INPUT,
    NOISE,
    kernel,
    known_model,
    mean_of_two,
    regressor,
    sparse_bound,
)
from tests.reference import smooth_data
from tests.tolerances import THROUGH_CHOLESKY

NUGGET = 1e-6
"""As large as the jitter that GPflow adds."""


def fitter_of(model, P=1):
    return model._compile(2, P).fitter


def at(Z):
    return PseudoObservations(Z, np.zeros((1, len(Z), len(Z))), np.zeros((1, len(Z), 1)), NUGGET)


@pytest.fixture
def few_points(rng):
    return smooth_data(rng, 40), rng.uniform(-2.0, 2.0, (8, 2))


def test_data_on_few_points_say_what_sparse_regression_says(few_points):
    """The same posterior, and the same bound on the evidence, constants and all."""
    (X, Y), Z = few_points
    fitter = fitter_of(known_model(EVERY_INPUT))
    epsilon = fitter.local.parameters.value()
    prior = PriorAt(fitter.local.prior, epsilon[None])
    precision = np.full_like(Y, 1.0 / NOISE)
    said, constant = onto(prior, SingleObservations.of_data(X, Y, precision, 1), Z, NUGGET)
    process = Process(()).times([PseudoPointFactor((said,), None, constant)])
    found = fitter.factorisations.at(epsilon, process)
    wanted = gpflow.models.SGPR(
        (X, Y), kernel(), Z, mean_function=mean_of_two(), noise_variance=NOISE
    )
    bound = found.log_normaliser + process.log_scale
    bound += 0.5 * np.sum(np.log(precision) - LOG_TWO_PI)
    np.testing.assert_allclose(bound, wanted.elbo(), rtol=1e-6)
    mean, variance = found.marginals(X)
    for one, other in zip((mean[0], variance[0][:, None]), wanted.predict_f(X), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_functions_of_their_own_kernels_are_projected_one_by_one(few_points):
    (X, Y), Z = few_points
    kernels = [gpflow.kernels.SquaredExponential(lengthscales=each) for each in (0.7, 2.0)]
    model = sgp.StreamingGP(
        gpflow.kernels.SeparateIndependent(kernels), gpflow.likelihoods.Gaussian(NOISE),
        hyperparameters=sgp.FixedHyperparameters(), pseudo_points=EVERY_INPUT,
    )  # fmt: skip
    both = np.hstack([Y, Y**2])
    fitter = fitter_of(model, 2)
    prior = PriorAt(fitter.local.prior, fitter.local.parameters.value()[None])
    data = SingleObservations.of_data(X, both, np.full_like(both, 1.0 / NOISE), 2)
    _, constant = onto(prior, data, Z, NUGGET)
    zero = gpflow.functions.Zero()
    alone = [
        onto(
            PriorAt(own.local.prior, own.local.parameters.value()[None]),
            SingleObservations.of_data(X, y, np.full_like(y, 1.0 / NOISE), 1), Z, NUGGET,
        )[1]
        for k, y in zip(kernels, (Y, Y**2), strict=True)
        for own in [fitter_of(sgp.StreamingGP(
            k, gpflow.likelihoods.Gaussian(NOISE), zero, pseudo_points=EVERY_INPUT,
            hyperparameters=sgp.FixedHyperparameters(),
        ))]
    ]  # fmt: skip
    np.testing.assert_allclose(constant, sum(alone), rtol=THROUGH_CHOLESKY)


def test_points_that_rounding_makes_one_are_refused(few_points):
    (X, Y), Z = few_points
    fitter = fitter_of(known_model(EVERY_INPUT))
    prior = PriorAt(fitter.local.prior, fitter.local.parameters.value()[None])
    data = SingleObservations.of_data(X, Y, np.ones_like(Y), 1)
    with pytest.raises(NumericalError, match="covariance of the points"):
        onto(prior, data, np.vstack([Z, Z]), -NUGGET)


def test_the_bound_rises_and_places_stay_within_the_data(few_points):
    (X, Y), Z = few_points
    anew = fitter_of(regressor(pseudo_points=EVERY_INPUT)).anew
    start = anew._local.parameters.value()
    bounds = []
    for iterations in (1, 4, 20):
        places, epsilon = anew.best((X, Y), at(Z), start, iterations)
        np.testing.assert_array_equal(places, np.clip(places, X.min(0), X.max(0)))
        bounds.append(sparse_bound((X, Y), places, epsilon))
    assert sparse_bound((X, Y), Z, start) < bounds[0] < bounds[1] < bounds[2]


def test_what_is_held_stays(few_points):
    (X, Y), Z = few_points
    anew = fitter_of(regressor(pseudo_points=EVERY_INPUT)).anew
    start = anew._local.parameters.value()
    places, epsilon = anew.best((X, Y), at(Z), start, 3, move=False, hold_noise=True)
    np.testing.assert_array_equal(places, Z)
    np.testing.assert_array_equal(epsilon[-1], start[-1])
    assert np.all(epsilon[:-1] != start[:-1])
    _, epsilon = anew.best((X, Y), at(Z), start, 3, move=False)
    assert epsilon[-1] != start[-1]


def test_noise_that_is_not_gaussian_has_no_such_bound(rng):
    model = sgp.StreamingGP(
        kernel(), gpflow.likelihoods.Bernoulli(), pseudo_points=EVERY_INPUT,
    )  # fmt: skip
    assert not fitter_of(model).anew.is_possible
    assert fitter_of(regressor()).anew.is_possible
