"""Sites of labels that are found anew: what was known of one class survives the next."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp import datasets
from streaming_gp.errors import NumericalError
from streaming_gp.gp.strategies import every_input
from streaming_gp.gp.strategies.sites_anew import GROWTH, MOST_POINTS, _is_due
from streaming_gp.gp.strategies.together import ENOUGH


def sorted_labels(rng, number):
    """Inputs [N, 1] of one class, and then as many of another between them."""
    X = np.concatenate([rng.uniform(-2.0, 2.0, (number, 1)), rng.uniform(-0.7, 0.7, (number, 1))])
    return X, np.repeat([[0.0], [1.0]], number, axis=0)


def classifier():
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli(), seed=0
    )


def streamed(data, size):
    model, (X, Y) = classifier(), data
    for start in range(0, len(X), size):
        model.update((X[start : start + size], Y[start : start + size]))
    return model


def off_rest(model, Y):
    """How far precisions of sites are from their fixed point at the mean of q(ε), at most.

    ``λ_n = −2 ∂/∂v_n E_N(m_n, v_n) log p(y_n | f)`` at the marginals of the posterior that all
    sites make together (PVI 2018, eq. 10).
    """
    said = [one for factor in model.factors.values() for one in factor.pseudo_observations]
    Z = np.concatenate([one.Z for one in said])
    precision = np.concatenate([np.diagonal(one.precision[0]) for one in said])
    shift = np.concatenate([one.precision_mean[0, :, 0] for one in said])
    K = model.kernel(Z).numpy()
    covariance = K - K @ np.linalg.solve(K + np.diag(1.0 / precision), K)
    mean, variance = tf.constant(covariance @ shift), tf.constant(np.diagonal(covariance))
    with tf.GradientTape() as tape:
        tape.watch(variance)
        expected = model.likelihood.variational_expectations(Z, mean[:, None], variance[:, None], Y)
    return np.abs(precision + 2.0 * tape.gradient(expected, variance).numpy()).max()


@pytest.fixture(scope="module")
def with_and_without():
    """Labels, and their models where sites are found anew and where they are left."""
    data = sorted_labels(np.random.default_rng(20181127), 150)
    found = streamed(data, 75)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streaming_gp.gp.strategies.sites_anew.MOST_POINTS", 0)
        left = streamed(data, 75)
    return data[1], found, left


def test_sites_of_all_batches_are_at_rest_together(with_and_without):
    Y, found, left = with_and_without
    assert off_rest(found, Y) < 1e-3
    assert off_rest(left, Y) > 0.05


@pytest.mark.slow
def test_free_energies_add_up_where_sites_were_found_anew(rng):
    X = rng.uniform(-2.0, 2.0, (400, 1))
    Y = (rng.uniform(size=(400, 1)) < 1.0 / (1.0 + np.exp(-4.0 * np.sin(2.0 * X)))).astype(float)
    order = np.argsort(Y[:, 0], kind="stable")
    X, Y = X[order], Y[order]
    model = classifier()
    batches = [(X[i : i + 50], Y[i : i + 50]) for i in range(0, 400, 50)]
    infos = [model.update(batch, learn=True) for batch in batches]  # of one class alone, too
    alone = classifier().update((X, Y))
    total = sum(info.free_energy for info in infos)
    assert total == pytest.approx(alone.free_energy, abs=5.0)


def test_what_factors_say_of_the_hyperparameters_stays(with_and_without):
    _, found, wanted = with_and_without
    for name, factor in found.factors.items():
        for own, its in zip(
            factor.hyperparameters.natural,
            wanted.factors[name].hyperparameters.natural,
            strict=True,
        ):
            np.testing.assert_array_equal(own, its)
        np.testing.assert_array_equal(factor.targets, wanted.factors[name].targets)


def test_a_covariance_that_is_not_positive_leaves_the_sites(rng, monkeypatch):
    X, Y = sorted_labels(rng, 150)
    model = streamed((X[:225], Y[:225]), 75)
    fitted, before, asked = every_input.at_one_epsilon, model.factors["batch-0"], []

    def refused(fitter, cavity, batch, epsilon):
        asked.append(len(batch.data[0]))
        if asked[-1] > 75:
            raise NumericalError("not positive")
        return fitted(fitter, cavity, batch, epsilon)

    monkeypatch.setattr(every_input, "at_one_epsilon", refused)
    model.update((X[225:], Y[225:]), learn=False)
    assert asked == [75, 300]
    assert model.factors["batch-0"] is before


def test_sites_are_found_as_often_as_data_grow_by_a_share():
    due = [held + 10 for held in range(0, 4000, 10) if _is_due(held, 10)]
    np.testing.assert_allclose(np.diff(np.log(due)), np.log(1.0 + GROWTH), atol=0.05)
    assert ENOUGH < min(due) < ENOUGH * (1.0 + GROWTH)
    assert MOST_POINTS / (1.0 + GROWTH) < max(due) <= MOST_POINTS


@pytest.mark.slow
def test_a_stream_that_is_sorted_by_class_is_learned_as_well(rng):
    """The banana data: the last batches of one class had taken the other's place, at 0.23."""
    banana = datasets.load_banana()
    X, Y = (
        np.concatenate(parts)
        for parts in ((banana.X, banana.X_test[:400]), (banana.Y, banana.Y_test[:400]))
    )
    order = np.argsort(Y[:, 0], kind="stable")
    model = streamed((X[order], Y[order]), 50)
    probability, _ = model.predict_y(banana.X_test[400:])
    error = np.mean((np.asarray(probability) > 0.5) != (banana.Y_test[400:] > 0.5))
    assert error < 0.12
