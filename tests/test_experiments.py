"""The parts of experiments, and the figures of the paper as bounds."""

import argparse
import dataclasses
from itertools import islice

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from experiments.measured import active_learning, bayesian_optimisation, posterior_averaging
from experiments.papers import (
    federated_sweep_methods,
    federated_sweeps,
    generalised_mnist,
    generalised_stopping,
    posterior_server_networks,
)
from streaming_gp import bnn, pvi
from streaming_gp.datasets import Split, load_banana
from streaming_gp.metrics import error_rate, mean_negative_log_density, smse


def stream_banana(hyperparameters, sizes, seed=0):
    """Test error and NLPD after every batch."""
    data = load_banana()
    order = np.argsort(data.X[:, 0], kind="stable")
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Bernoulli(),
        pseudo_points=sgp.PrivatePseudoPoints(10),
        hyperparameters=hyperparameters,
        seed=seed,
    )
    scores = []
    for rows in np.split(order, np.cumsum(sizes)[:-1]):
        model.update((data.X[rows], data.Y[rows]))
        probability = model.predict_y(data.X_test)[0]
        density = model.predict_log_density((data.X_test, data.Y_test))
        scores.append((error_rate(probability, data.Y_test), mean_negative_log_density(density)))
    return np.array(scores)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_three_ordered_banana_batches_are_learned(seed):
    error, nlpd = stream_banana(sgp.VariationalHyperparameters(), [134, 133, 133], seed)[-1]
    assert error <= 0.102
    assert nlpd <= 0.243


@pytest.mark.slow
def test_ten_points_mislead_maximum_likelihood_of_the_newest_batch_alone():
    sizes = [134, 10, 256]
    vi = stream_banana(sgp.VariationalHyperparameters(), sizes)
    ml = stream_banana(sgp.PointHyperparameters(), sizes)
    newest = stream_banana(sgp.PointHyperparameters(remember=False), sizes)
    assert vi[-1, 0] <= 0.13
    assert vi[1, 1] < vi[0, 1] + 0.01  # ten points do no harm
    assert ml[1, 1] < ml[0, 1] + 0.05  # and little to a point that answers to what is known
    assert newest[1, 1] > newest[0, 1] + 0.1  # but to one that does not


@pytest.mark.slow
def test_a_barrett_stream_reaches_the_paper(barrett):
    X_mean, X_sd = barrett.X.mean(axis=0), barrett.X.std(axis=0)
    y = barrett.Y[:, 2:3]
    X, X_test = (barrett.X - X_mean) / X_sd, (barrett.X_test - X_mean) / X_sd
    Y, Y_test = ((a - y.mean()) / y.std() for a in (y, barrett.Y_test[:, 2:3]))
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=np.full(21, 4.0)),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(10),
    )
    for rows in np.array_split(np.argsort(X[:, 0], kind="stable"), 24):
        model.update((X[rows], Y[rows]))
    assert model.posterior_process.num_pseudo_points == 240
    assert smse(model.predict_f(X_test)[0], Y_test) <= 0.085


@pytest.mark.slow
def test_a_sweep_that_was_stopped_ends_as_if_it_had_not_been(tmp_path):
    rng = np.random.default_rng(0)
    X, Y = rng.random((40, 784), np.float32), rng.integers(10, size=(40, 1)).astype(float)
    data = Split(X, Y, X, Y)
    task = federated_sweeps.Task(
        "pvi-sync", "iid", 1e-3, 0.1, 0, "mnist", quick=True, choose=True, longer=8
    )

    def stop(one):
        raise KeyboardInterrupt

    whole = federated_sweeps.perform(data, tmp_path / "whole", task, lambda one: None)
    with pytest.raises(KeyboardInterrupt):
        federated_sweeps.perform(data, tmp_path / "halves", task, stop)
    halves = federated_sweeps.perform(data, tmp_path / "halves", task, lambda one: None)
    assert halves["round"] == whole["round"] == [1, 2]
    assert halves["test_nll"] == whole["test_nll"]
    assert not list((tmp_path / "halves").iterdir())


def test_minibatches_of_one_class_are_a_whole_epoch():
    labels = np.repeat([0.0, 1.0, 2.0], [10, 20, 30])[:, None]
    task = federated_sweep_methods.OneClassTask(
        None, (np.zeros((60, 1)), labels), None, None, None, seed=3
    )
    epoch = list(islice(task.minibatches(10), 6))
    assert sorted(np.concatenate(epoch)) == list(range(60))
    assert all(len(np.unique(labels[rows])) == 1 for rows in epoch)


def test_only_what_is_fast_is_run_by_more_seeds(tmp_path):
    arguments = argparse.Namespace(
        studies="methods", epochs=1.0, quick=False, full=False, seed=3, under=300.0, out=tmp_path
    )

    def keep(task):
        seconds = 100.0 if task.method == "adam" else 300.0
        record = {"label": task.method, "seed": task.seed, "epochs": 1.0, "seconds": [seconds]}
        posterior_server_networks.write_json(tmp_path / "runs" / task.name, record)

    first = posterior_server_networks.tasks_of(3, arguments)
    assert len(first) == 5
    assert not posterior_server_networks.tasks_of(4, arguments)  # before anything was run
    for task in first[:-1]:
        keep(task)
    assert not posterior_server_networks.kept(arguments)  # one setting was not run
    keep(first[-1])
    (repeated,) = posterior_server_networks.tasks_of(4, arguments)
    assert repeated == dataclasses.replace(first[-1], seed=4)
    assert repeated.method == "adam"
    keep(repeated)
    runs = posterior_server_networks.kept(arguments)
    assert [one["seed"] for one in runs["methods"]] == [3, 3, 3, 3, 3, 4]
    once, more = posterior_server_networks.command(arguments, runs).split("; ")
    assert "--repetitions 1 --studies methods" in once
    assert "--repetitions 2 --under 300 --studies methods" in more


def test_wrong_labels_are_as_many_as_asked_for_and_uniform_among_the_others():
    Y = np.repeat(np.arange(10.0, dtype=np.float32), 5000)[:, None]
    found = generalised_mnist.contaminated(Y, 0.4, seed=1)
    wrong = found != Y
    assert found.dtype == Y.dtype
    assert abs(wrong.mean() - 0.4) < 0.01
    by_label = np.bincount(found[wrong].astype(int), minlength=10) / wrong.sum()
    np.testing.assert_allclose(by_label, 0.1, atol=0.01)
    np.testing.assert_array_equal(generalised_mnist.contaminated(Y, 0.0, seed=1), Y)


def test_random_prior_means_are_uniform_and_the_network_s_variances_stay():
    net = bnn.MeanFieldBNN([100, 100], gpflow.likelihoods.Softmax(100), prior_variance=0.5)
    setting = generalised_stopping.Stopping(prior_means=0.1)
    mean, variance = setting.prior(net, 3).moments()
    assert np.abs(mean).max() <= 0.1
    counts, _ = np.histogram(mean, 5, (-0.1, 0.1))
    np.testing.assert_allclose(counts / len(mean), 0.2, atol=0.02)
    np.testing.assert_allclose(variance, 0.5, rtol=1e-6)
    assert not np.array_equal(mean, setting.prior(net, 4).moments()[0])
    np.testing.assert_array_equal(generalised_stopping.Stopping().prior(net, 3).moments()[0], 0.0)


def test_the_functions_that_are_optimised_have_their_minima_where_they_are_known():
    problems = bayesian_optimisation.PROBLEMS
    at = {
        "Branin": [(np.pi + 5.0) / 15.0, 2.275 / 15.0],
        "Hartmann-6": [0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573],
    }
    for name, problem in problems.items():
        value = problem.function(np.array([at[name]]))
        np.testing.assert_allclose(value, problem.minimum, atol=1e-6)
        others = problem.function(np.random.default_rng(0).uniform(size=(1000, problem.dim)))
        assert others.min() > problem.minimum


def test_the_row_that_is_asked_for_is_the_one_that_tells_most(rng):
    """What it gains is what conditioning on it does, with noise."""
    candidates, references = active_learning.CANDIDATES, active_learning.REFERENCES
    root = rng.standard_normal((candidates + references, 5))
    covariance, noise = root @ root.T, 0.3
    left = [
        np.trace((covariance - np.outer(c, c) / (c[one] + noise))[candidates:, candidates:])
        for one, c in enumerate(covariance[:candidates])
    ]
    assert active_learning.best(covariance, noise) == np.argmin(left)


def test_local_sgd_takes_the_steps_of_sgd_and_averages_them(rng):
    num_rows = 3 * posterior_averaging.AT_ONCE - 4  # minibatches of two make no whole calls
    X = rng.standard_normal((num_rows, 2)).astype(np.float32)
    Y = (X[:, :1] > 0.0).astype(np.float32)
    net = bnn.MeanFieldBNN([2, 3, 2], gpflow.likelihoods.Softmax(2))
    q = net.initial(0)
    task = pvi.LocalTask(net, (X, Y), q, None, q, seed=0)
    rule = posterior_averaging.LocalSGD(epochs=2, batch_size=2, rate=0.3, proximal=0.5)
    last, means = rule.walked(task, np.asarray(q.mean))
    theta, iterates = tf.constant(q.mean), []
    for rows in islice(task.minibatches(2), len(X)):
        with tf.GradientTape() as tape:
            tape.watch(theta)
            loss = -0.5 * tf.reduce_sum(net.log_likelihood(theta[None], X[rows], Y[rows]))
        theta = theta - 0.3 * (tape.gradient(loss, theta) + 0.5 * (theta - q.mean))
        iterates.append(theta.numpy())
    np.testing.assert_allclose(last, theta, atol=1e-5)
    wanted = np.reshape(iterates, [2, len(X) // 2, -1]).mean(axis=1)
    np.testing.assert_allclose(means, wanted, atol=1e-5)


def test_posterior_averaging_solves_with_a_covariance_that_is_shrunk(rng):
    samples, start = rng.standard_normal((4, 6)), rng.standard_normal(6)
    rho = 1.0 / (1.0 + 3.0 * 0.5)
    covariance = rho * np.eye(6) + (1.0 - rho) * np.cov(samples.T)
    wanted = np.linalg.solve(covariance, start - samples.mean(axis=0))
    found = posterior_averaging.shrunk_solve(samples, start, 0.5)
    np.testing.assert_allclose(found, wanted, atol=1e-9)
    averaged = posterior_averaging.shrunk_solve(samples[:1], start, 0.5)
    np.testing.assert_allclose(averaged, start - samples[0], atol=1e-9)
