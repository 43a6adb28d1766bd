"""Small batches that learn ε together: the stream is as good as one batch of the same data."""

import copy

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.gp.fitting import compression, fit
from streaming_gp.gp.fitting.factorisations import Factorisations
from streaming_gp.gp.fitting.problem import ProblemBuilder
from streaming_gp.gp.hyperparameters.variational import FEWEST_SAMPLES
from streaming_gp.gp.strategies import together
from streaming_gp.gp.strategies.learning_sample import LearningSample
from tests.gp.builders import EVERY_INPUT, THAT_FORGET, forgotten_is_not_learned_again
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY


def many_inputs(rng, number):
    """Of four inputs the function depends on two."""
    X = rng.standard_normal((number, 4))
    Y = np.sin(1.5 * X[:, :1]) + X[:, 1:2] ** 2 / 2.0 + 0.1 * rng.standard_normal((number, 1))
    return X, Y


def stream(data, size, **settings):
    """A model that starts far from the data, and has seen them in batches of a size."""
    X, Y = data
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.full(X.shape[1], 2.0))
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    settings = {"pseudo_points": EVERY_INPUT, "seed": 0} | settings
    model = sgp.StreamingGP(kernel, likelihood, **settings)
    infos = [model.update((X[i : i + size], Y[i : i + size])) for i in range(0, len(X), size)]
    return model, infos


def of_epsilon(model, name):
    return model.factors[name].hyperparameters.natural


@pytest.fixture
def early(rng):
    return many_inputs(rng, 60)


def test_early_batches_learn_what_one_batch_of_all_learns(early):
    one, _ = stream(early, 60)
    many, _ = stream(early, 15)
    ours, its = many.hyperparameter_posterior, one.hyperparameter_posterior
    # other random numbers over ε, the same evidence
    assert np.all(np.abs(ours.mean - its.mean) < np.sqrt(its.variance))
    np.testing.assert_allclose(np.sqrt(ours.variance), np.sqrt(its.variance), rtol=0.3)


def test_over_many_data_of_earlier_batches_fewer_draws_of_epsilon_do(rng, monkeypatch):
    X, Y = many_inputs(rng, 150)
    in_one, _ = stream((X, Y), 150)
    model, _ = stream((X[:120], Y[:120]), 120)
    with_data, draws = ProblemBuilder.with_data, []

    def watched(self, data, noise, *rest):
        draws.append(len(noise))
        return with_data(self, data, noise, *rest)

    monkeypatch.setattr(ProblemBuilder, "with_data", watched)
    model.update((X[120:], Y[120:]))
    assert draws == [FEWEST_SAMPLES // 2]
    ours, its = model.hyperparameter_posterior, in_one.hyperparameter_posterior
    assert np.all(np.abs(ours.mean - its.mean) < np.sqrt(its.variance))


@pytest.mark.parametrize(("number", "is_decided"), [(80, False), (120, True)])
def test_over_many_data_of_earlier_batches_a_fit_starts_where_epsilon_was(rng, number, is_decided):
    X, Y = many_inputs(rng, number + 30)
    model, _ = stream((X[:number], Y[:number]), number)
    found = []
    model.update((X[number:], Y[number:]), callback=lambda now: found.append(now.free_energy))
    gained = found[-1] - found[0]
    assert gained < 5.0 if is_decided else gained > 20.0


@pytest.mark.slow
def test_single_points_find_the_function(rng):
    model, infos = stream(many_inputs(rng, 80), 1)
    X, Y = many_inputs(rng, 300)
    mean, _ = model.predict_f(X)
    assert np.mean((mean - Y) ** 2) < 0.25 * np.var(Y)
    assert sum(info.iterations > 0 for info in infos) < 30


def test_a_shared_factor_of_epsilon_is_divided_by_the_number_of_data(early):
    X, Y = early
    model, _ = stream((X[:30], Y[:30]), 10)
    first, third = of_epsilon(model, "batch-0"), of_epsilon(model, "batch-2")
    for one, other in zip(first, third, strict=True):
        np.testing.assert_allclose(one, other, atol=ALGEBRA)
    model.update((X[30:], Y[30:]))
    first, last = of_epsilon(model, "batch-0"), of_epsilon(model, "batch-3")
    for one, other in zip(first, last, strict=True):
        np.testing.assert_allclose(3.0 * one, other, rtol=1e-9)


def test_earlier_factors_become_likelihoods_at_the_new_noise(early):
    X, Y = early
    model, _ = stream(early, 20)
    noise = float(model.likelihood.variance.numpy())
    for number, (name, factor) in enumerate(model.factors.items()):
        rows = slice(20 * number, 20 * (number + 1))
        (one,) = factor.pseudo_observations
        assert name == f"batch-{number}"
        np.testing.assert_array_equal(one.Z, X[rows])
        np.testing.assert_allclose(one.precision[0], np.eye(20) / noise, rtol=1e-9)
        np.testing.assert_allclose(one.precision_mean[0], Y[rows] / noise, rtol=1e-9)


def test_free_energies_add_up_to_the_bound_of_one_batch(early):
    _, alone = stream(early, 60)
    _, infos = stream(early, 5)
    assert sum(info.free_energy for info in infos) == pytest.approx(alone[0].free_energy, abs=1.0)


def test_a_batch_that_waits_leaves_q_of_epsilon_as_it_is(early):
    X, Y = early
    model, _ = stream((X[:40], Y[:40]), 40)
    before = model.hyperparameter_posterior
    info = model.update((X[40:42], Y[40:42]))
    assert info.iterations == 0
    np.testing.assert_allclose(model.hyperparameter_posterior.mean, before.mean, atol=ALGEBRA)
    model.update((X[42:], Y[42:]))
    learned = of_epsilon(model, "batch-1")
    assert any(np.any(eta) for eta in learned)


@pytest.mark.parametrize("learn", [None, False])
def test_a_batch_that_learns_nothing_asks_only_for_what_is_near(rng, monkeypatch, learn):
    """All of a long stream would be factorised anew whenever ε was learned."""
    monkeypatch.setattr(together, "ENOUGH", 60)
    X = np.sort(rng.uniform(-10.0, 10.0, (100, 1)), axis=0)
    model, _ = stream((X, np.sin(X) + 0.1 * rng.standard_normal(X.shape)), 100)
    batch = X[40:45] + 0.05, np.sin(X[40:45])
    exact = copy.deepcopy(model).update(batch, learn=learn).free_energy
    monkeypatch.setattr(LearningSample, "num_earlier", 30)
    monkeypatch.setattr(compression, "MOST_ROWS", 40)
    monkeypatch.setattr(fit, "MOST_POINTS", 50)
    monkeypatch.setattr(together, "MOST_FLOPS", 1e3)
    asked = []
    at = Factorisations.at

    def spy(self, epsilon, process):
        asked.append(process.num_pseudo_points)
        return at(self, epsilon, process)

    monkeypatch.setattr(Factorisations, "at", spy)
    info = model.update(batch, learn=learn)
    assert info.iterations == 0
    assert 30 < max(asked) <= 40
    assert info.free_energy == pytest.approx(exact, abs=0.1)


def test_the_evidence_is_exact_where_nothing_was_learned(rng, monkeypatch):
    """Then ε stays what it is, and what is factorised is extended."""
    monkeypatch.setattr(together, "MOST_FLOPS", 0.0)
    monkeypatch.setattr(LearningSample, "num_earlier", 5)
    X, Y = many_inputs(rng, 40)
    _, (in_all,) = stream((X, Y), 40, learning=sgp.NeverLearn())
    _, infos = stream((X, Y), 10, learning=sgp.NeverLearn())
    total = sum(info.free_energy for info in infos)
    assert total == pytest.approx(in_all.free_energy, rel=THROUGH_CHOLESKY)


def test_once_there_are_enough_small_batches_wait_for_each_other(rng, monkeypatch):
    monkeypatch.setattr(together, "ENOUGH", 30)
    monkeypatch.setattr(together, "WORTH_LEARNING", 10)
    X, Y = many_inputs(rng, 55)
    model, _ = stream((X[:40], Y[:40]), 40)
    first = of_epsilon(model, "batch-0")
    iterations = [model.update((X[i : i + 5], Y[i : i + 5])).iterations for i in (40, 45, 50)]
    assert iterations[0] == iterations[2] == 0 < iterations[1]
    for one, other in zip(of_epsilon(model, "batch-0"), first, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(of_epsilon(model, "batch-1"), of_epsilon(model, "batch-2"), strict=True):
        np.testing.assert_allclose(one, other, atol=ALGEBRA)
        assert np.any(one)
    assert not any(np.any(eta) for eta in of_epsilon(model, "batch-3"))


def test_a_batch_of_those_that_learned_together_can_be_removed(early, rng):
    model, _ = stream(early, 20)
    X = rng.standard_normal((10, 4))
    model.remove("batch-1")
    precision = 1.0 / np.asarray(model.hyperparameter_posterior.variance)
    prior = 1.0 / np.asarray(model.settings.hyperparameters.prior(model.parameter_vector).variance)
    assert np.all(precision > 0.0)
    assert np.any(precision > prior)
    assert np.isfinite(model.predict_f(X)[0]).all()


@pytest.mark.parametrize("settings", THAT_FORGET)
def test_what_was_forgotten_is_not_learned_again(early, settings):
    _, found, wanted = forgotten_is_not_learned_again(stream, early, settings)
    np.testing.assert_allclose(found, wanted, rtol=THROUGH_CHOLESKY)


def test_a_schedule_does_not_take_a_batch_that_waits_for_a_settled_one(early):
    X, Y = early
    model, _ = stream((X[:40], Y[:40]), 40, learning=sgp.UntilSettled(every=None))
    iterations = [model.update((X[i : i + 1], Y[i : i + 1])).iterations for i in range(40, 50)]
    assert iterations[:9] == [0] * 9
    assert iterations[9] > 0
