"""Small batches of labels that learn ε together: their factors keep the targets."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.gp.process.factor import PseudoPointFactor
from streaming_gp.gp.strategies.with_targets import FactorWithTargets, with_targets
from tests.gp.builders import (
    EVERY_INPUT,
    THAT_FORGET,
    forgotten_is_not_learned_again,
    labelled,
)
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY


def stream(data, size, **settings):
    """A model that has seen labels in batches of a size."""
    X, Y = data
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.full(X.shape[1], 2.0))
    settings = {"pseudo_points": EVERY_INPUT, "seed": 0} | settings
    model = sgp.StreamingGP(kernel, gpflow.likelihoods.Bernoulli(), **settings)
    infos = [model.update((X[i : i + size], Y[i : i + size])) for i in range(0, len(X), size)]
    return model, infos


@pytest.fixture
def data(rng):
    return labelled(rng, 60)


@pytest.fixture
def many(data):
    return stream(data, 20)[0]


def test_small_batches_are_learned_as_one_batch(data, many):
    one, _ = stream(data, 60)
    ours, its = many.hyperparameter_posterior, one.hyperparameter_posterior
    np.testing.assert_allclose(ours.mean, its.mean, atol=1e-6)
    np.testing.assert_allclose(ours.variance, its.variance, rtol=1e-6)
    (joint,) = one.factors["batch-0"].pseudo_observations
    for number, factor in enumerate(many.factors.values()):
        rows = slice(20 * number, 20 * (number + 1))
        (own,) = factor.pseudo_observations
        np.testing.assert_array_equal(own.Z, data[0][rows])
        np.testing.assert_allclose(own.precision[0], joint.precision[0, rows, rows], atol=1e-6)
        np.testing.assert_allclose(own.precision_mean, joint.precision_mean[:, rows], atol=1e-6)
    total = sum(factor.log_scale for factor in many.factors.values())
    assert total == pytest.approx(one.factors["batch-0"].log_scale, abs=1e-6)


def test_free_energies_add_up_to_the_bound_of_one_batch(data):
    _, (alone,) = stream(data, 60)
    _, infos = stream(data, 12)
    assert sum(info.free_energy for info in infos) == pytest.approx(alone.free_energy, abs=0.5)
    assert alone.free_energy < 0.0  # of labels


def test_a_factor_is_worth_in_expectation_what_the_labels_of_its_batch_are(data):
    """And not a share of what all labels are: batches of one class alone are worth more."""
    order = np.argsort(data[1][:, 0], kind="stable")
    model, _ = stream([part[order] for part in data], 20)
    fitter, ledger = model._compiled.fitter, model.ledger
    posterior = fitter.factorisations.at(fitter.location(ledger.posterior), ledger.posterior)
    found, wanted = [], []
    for factor in ledger.factors.values():
        mean, variance = (part.reshape(len(factor.Z), 1) for part in posterior.marginals(factor.Z))
        (said,) = factor.pseudo_observations
        roots = np.diagonal(said.precision_factor[0])[:, None]
        squares = np.square(said.pseudo_targets[0] - roots * mean) + roots**2 * variance
        found.append(factor.log_scale - 0.5 * np.sum(squares))
        expected = gpflow.likelihoods.Bernoulli().variational_expectations(
            factor.Z, mean, variance, factor.targets
        )
        wanted.append(np.sum(expected))
    np.testing.assert_allclose(found, wanted, rtol=THROUGH_CHOLESKY)


def test_factors_keep_the_targets_until_they_are_damped(data, many):
    X, Y = data
    batch = X[:20], Y[:20]
    np.testing.assert_array_equal(many.factors["batch-0"].targets, Y[:20])
    assert many.factors["batch-0"].num_bytes > Y[:20].nbytes
    many.revisit("batch-0", batch)
    np.testing.assert_array_equal(many.factors["batch-0"].targets, Y[:20])
    many.revisit("batch-0", batch, damping=0.5)
    assert type(many.factors["batch-0"]) is PseudoPointFactor
    info = many.update((X[:20] + 0.1, Y[:20]))  # learns alone, as not all targets are there
    assert info.iterations > 0
    np.testing.assert_array_equal(many.factors["batch-3"].targets, Y[:20])


@pytest.mark.parametrize("budget", [None, 100])
def test_a_batch_that_was_absorbed_is_learned_with_the_next(data, budget):
    X, Y = data
    points = sgp.PrivatePseudoPoints("all", budget=budget)
    model, _ = stream((X[:40], Y[:40]), 40, pseudo_points=points)
    assert model.update((X[40:50], Y[40:50]), learn=False).iterations == 0
    model.update((X[50:], Y[50:]))
    one, _ = stream(data, 60)
    ours, its = model.hyperparameter_posterior, one.hyperparameter_posterior
    np.testing.assert_allclose(ours.mean, its.mean, atol=1e-6)


def test_a_batch_can_be_removed_and_the_rest_saved(data, many, tmp_path):
    X, Y = data
    many.remove("batch-1")
    many.save(tmp_path / "model.npz")
    loaded = sgp.StreamingGP.load(tmp_path / "model.npz", many.kernel, many.likelihood)
    np.testing.assert_array_equal(loaded.factors["batch-2"].targets, Y[40:])
    infos = [model.update((X[20:40], Y[20:40])) for model in (many, loaded)]
    assert infos[0].free_energy == pytest.approx(infos[1].free_energy, rel=ALGEBRA)


@pytest.mark.parametrize("settings", THAT_FORGET)
def test_what_was_forgotten_is_not_learned_again(data, settings):
    model, found, wanted = forgotten_is_not_learned_again(stream, data, settings)
    np.testing.assert_allclose(found, wanted, rtol=THROUGH_CHOLESKY)
    assert type(model.factors["batch-0"]) is PseudoPointFactor


def test_a_factor_for_someone_else_holds_no_targets(data, many):
    factor, _ = many.fit_factor(data, many.ledger.prior, None)
    assert type(factor) is PseudoPointFactor


def test_targets_are_kept_only_with_a_site_at_each_input(data, many):
    X, Y = data
    factor = many.factors["batch-0"]
    assert type(with_targets(factor, (X[:20], Y[:20]))) is FactorWithTargets
    assert with_targets(factor, (X[:19], Y[:19])) is factor
    assert type(factor**0.5) is type(factor * factor) is PseudoPointFactor
