"""A local bound of one's own, beside the package's."""

from dataclasses import dataclass

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp import LocalBound, SparseBound, Variational
from streaming_gp.gp.bounds.base import expected_log_likelihood
from streaming_gp.gp.bounds.whitening import posterior_at_data
from streaming_gp.serialization import storable
from tests.oracles.builders import NOISE, BoundOfOnesOwn, known_model, labelled
from tests.oracles.reference import smooth_data
from tests.oracles.trees import same
from tests.tolerances import ALGEBRA, PREDICTIONS_AT_OPTIMUM, THROUGH_CHOLESKY


@storable
@dataclass(frozen=True)
class DeterministicTraining(SparseBound):
    """The energy of DTC: f at the data is what the points say it is, without the trace term."""

    def expected(self, local, data, sites, c, problem):
        explained = data._replace(variance=tf.reduce_sum(tf.square(data.A), axis=-2))
        return expected_log_likelihood(local, posterior_at_data(local.gp, explained, c), problem)


def model(**options):
    points = sgp.PrivatePseudoPoints(6, optimise_locations=False)
    return known_model(points, bound=DeterministicTraining(), **options)


def test_one_batch_has_the_dtc_energy(rng):
    """``log N(y; m, Q + σ² I)`` (Quiñonero-Candela & Rasmussen 2005, section 5)."""
    X, Y = smooth_data(rng, 40)
    fitted = model()
    info = fitted.update((X, Y))
    Z = fitted.factors[info.batch_id].Z
    K_bb = fitted.kernel(Z).numpy() + info.nugget * np.eye(len(Z))
    K_bf = fitted.kernel(Z, X).numpy()
    C = K_bf.T @ np.linalg.solve(K_bb, K_bf) + NOISE * np.eye(len(X))
    centred = (Y - 2.0)[:, 0]
    quadratic = centred @ np.linalg.solve(C, centred)
    energy = -0.5 * (quadratic + np.linalg.slogdet(C)[1] + len(X) * np.log(2.0 * np.pi))
    assert info.free_energy == pytest.approx(energy, rel=THROUGH_CHOLESKY)
    assert isinstance(fitted.settings.bound, LocalBound)


@pytest.mark.slow
def test_its_posterior_is_that_of_the_variational_bound_at_the_same_points(rng):
    """Both condition on the same sites of Gaussian noise."""
    data = smooth_data(rng, 40)
    variational = known_model(sgp.PrivatePseudoPoints(6, optimise_locations=False))
    fitted = model()
    gap = fitted.update(data).free_energy - variational.update(data).free_energy
    assert gap > 0.0  # the trace term
    for a, b in zip(fitted.predict_f(data[0]), variational.predict_f(data[0]), strict=True):
        np.testing.assert_allclose(a, b, atol=ALGEBRA)


@pytest.mark.parametrize("name", ["regression", pytest.param("labels", marks=pytest.mark.slow)])
def test_a_bound_that_says_the_same_is_fitted_alike(rng, name):
    """Nothing is known of it: TensorFlow differentiates it."""
    batches = [smooth_data(rng, 20) if name == "regression" else labelled(rng, 20)] * 2
    found = []
    for bound in (Variational(), BoundOfOnesOwn()):
        make = gpflow.likelihoods.Gaussian if name == "regression" else gpflow.likelihoods.Bernoulli
        fitted = known_model(
            sgp.PrivatePseudoPoints(4), make(), sgp.PointHyperparameters(), bound=bound
        )
        infos = [fitted.update(batch) for batch in batches]
        found.append([*(info.free_energy for info in infos), *fitted.predict_f(batches[0][0])])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=PREDICTIONS_AT_OPTIMUM)


@pytest.mark.slow
def test_it_streams_and_is_saved(rng, tmp_path):
    fitted = model(
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
        optimiser=sgp.LocalOptimiser(max_iterations=10),
    )
    for _ in range(2):
        fitted.update(smooth_data(rng, 20))
    fitted.save(tmp_path / "stream.npz")
    fresh = model()
    loaded = sgp.StreamingGP.load(
        tmp_path / "stream.npz", fresh.kernel, fresh.likelihood, fresh.mean_function
    )
    assert loaded.settings.bound == DeterministicTraining()
    batch = smooth_data(rng, 20)
    for each in (fitted, loaded):
        each.update(batch)
    assert same(loaded.state, fitted.state)
