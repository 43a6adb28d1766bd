"""A local bound of one's own, beside the package's; strategies of one's own, in everything that
the package's own do.
"""

import shutil
from dataclasses import dataclass, replace

import gpflow
import numpy as np
import pytest
from sklearn.cluster import KMeans

import streaming_gp as sgp
from streaming_gp import expfam
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import LocalBound, PseudoPointStrategy, SparseBound, Variational
from streaming_gp.serialization import storable
from tests.oracles.builders import (
    NOISE,
    BoundOfOnesOwn,
    known_model,
    labelled,
    predicted,
    regressor,
)
from tests.oracles.reference import smooth_data
from tests.oracles.trees import same
from tests.tolerances import ALGEBRA, PREDICTIONS_AT_OPTIMUM, THROUGH_CHOLESKY


@storable
@dataclass(frozen=True)
class DeterministicTraining(SparseBound):
    """The energy of DTC: f at the data is what the points say it is, without the trace term."""

    def free_energy(self, f):
        q = f.posterior()
        return f.expected_log_likelihood(q.mean, q.variance - q.left) - q.kl


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


@storable
@dataclass(frozen=True)
class KMeansPoints(sgp.OwnPseudoPoints):
    """Points that start at the centres of clusters of the inputs."""

    def place(self, candidates):
        number = min(self.number, len(candidates.inputs))
        return KMeans(number, n_init=1, random_state=0).fit(candidates.inputs).cluster_centers_


STILL = KMeansPoints(4, optimise_locations=False)


def own_model(**options):
    options.setdefault("hyperparameters", sgp.VariationalHyperparameters(num_samples=2))
    return regressor(**options)


def learn(fitted, rng, number):
    for _ in range(number):
        fitted.update(smooth_data(rng, 20))
    return fitted


def loaded_again(fitted, path):
    fitted.save(path)
    fresh = own_model()
    return sgp.StreamingGP.load(path, fresh.kernel, fresh.likelihood)


def test_points_start_where_the_strategy_says(rng):
    X, Y = smooth_data(rng, 20)
    fitted = own_model(pseudo_points=STILL)
    fitted.update((X, Y), learn=False)
    centres = KMeans(4, n_init=1, random_state=0).fit(X).cluster_centers_
    np.testing.assert_array_equal(fitted.factors["batch-0"].Z, centres)
    assert isinstance(STILL, PseudoPointStrategy)


@pytest.mark.slow
def test_a_budget_a_journal_and_a_file_hold_them(rng, tmp_path):
    points = KMeansPoints(4, optimise_locations=False, budget=10)
    fitted = own_model(pseudo_points=points, journal=tmp_path / "journal")
    for _ in range(4):
        learn(fitted, rng, 1)
        assert fitted.posterior_process.num_pseudo_points <= 10
    fresh, copied = (own_model(), shutil.copytree(tmp_path / "journal", tmp_path / "copied"))
    resumed = sgp.StreamingGP.resume(copied, fresh.kernel, fresh.likelihood)
    loaded = loaded_again(fitted, tmp_path / "stream.npz")
    assert loaded.settings.pseudo_points == points
    batch = smooth_data(rng, 20)
    for each in (fitted, resumed, loaded):
        each.update(batch)
    assert same(resumed.state, fitted.state)
    assert same(loaded.state, fitted.state)


@pytest.mark.slow
def test_a_synchronous_round_takes_them(rng):
    shards = {name: smooth_data(rng, 20) for name in "ab"}
    fitted = own_model(pseudo_points=replace(STILL, budget=8))
    for _ in range(2):
        infos = fitted.synchronous_round(shards)
    assert {name: info.num_pseudo_points for name, info in infos.items()} == {"a": 4, "b": 4}


def test_what_no_points_can_be_made_of_is_refused():
    with pytest.raises(InvalidDataError, match="positive integer, got 0"):
        KMeansPoints(0)
    with pytest.raises(InvalidDataError, match="budget must hold at least twice"):
        KMeansPoints(4, budget=7)
    with pytest.raises(TypeError, match="abstract"):
        sgp.OwnPseudoPoints(4)


@storable
@dataclass(frozen=True, eq=False)
class OwnNormal(expfam.Normal):
    """Gaussians with full covariance, by another name."""


def streamed(rng_seed, **options):
    rng = np.random.default_rng(rng_seed)
    return learn(own_model(pseudo_points=STILL, **options), rng, 2)


@pytest.mark.slow
def test_a_family_of_ones_own_is_the_family_that_it_is(tmp_path):
    own, known = (
        streamed(5, hyperparameters=sgp.VariationalHyperparameters(num_samples=2, **options))
        for options in ({"family": OwnNormal}, {"full_covariance": True})
    )
    assert type(own.hyperparameter_posterior) is OwnNormal
    for ours, theirs in zip(
        own.hyperparameter_posterior.natural, known.hyperparameter_posterior.natural, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert_it_continues(own, tmp_path)


@pytest.mark.slow
def test_one_width_for_all_hyperparameters_is_a_family_too(tmp_path):
    strategy = sgp.VariationalHyperparameters(num_samples=2, family=expfam.IsotropicNormal)
    fitted = streamed(5, hyperparameters=strategy)
    q, prior = fitted.hyperparameter_posterior, fitted.prior().hyperparameters
    assert q.precision > prior.precision
    assert fitted.revisit("batch-0", smooth_data(np.random.default_rng(5), 20)).damping == 1.0
    assert_it_continues(fitted, tmp_path)


def assert_it_continues(fitted, folder):
    loaded = loaded_again(fitted, folder / "stream.npz")
    batch = smooth_data(np.random.default_rng(6), 20)
    for each in (fitted, loaded):
        each.update(batch)
    assert same(loaded.state, fitted.state)
    np.testing.assert_array_equal(*(predicted(each, batch[0])[1] for each in (fitted, loaded)))
