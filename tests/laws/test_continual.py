"""Variational continual learning is sequential PVI; a coreset is a client that is visited again."""

import gpflow
import numpy as np
import pytest

from streaming_gp import bnn, linear, mixture, pvi
from streaming_gp.errors import InvalidDataError
from tests.laws import LBFGS
from tests.oracles.reference import (
    assert_same,
    conjugate_model,
    labelled_data,
    pooled,
    regression_data,
    task_of,
)
from tests.tolerances import ALGEBRA


def learned(model, tasks, update, coreset_size=0, seed=0):
    """The server after each task has come."""
    clients = pvi.continual_clients(model, tasks, update, coreset_size, seed)
    server = pvi.Server(model.prior(), clients)
    pvi.fit(server, pvi.Continual(), rounds=len(tasks))
    return server


def in_tasks(data, number=3):
    return [*zip(*(np.array_split(part, number) for part in data), strict=True)]


@pytest.mark.parametrize("coreset_size", [0, 5])
def test_of_a_conjugate_model_the_posterior_is_that_of_all_tasks(rng, coreset_size):
    (X, Y), model = regression_data(rng), conjugate_model()
    server = learned(model, in_tasks((X, Y)), pvi.AnalyticUpdate(), coreset_size)
    assert_same(server.posterior, pooled(model, X, Y), ALGEBRA)
    names = [f"task {n}" for n in range(3)] + ["coreset 2"] * (coreset_size > 0)
    assert list(server.factors) == names


def test_what_a_coreset_said_of_the_noise_goes_with_its_factor(rng):
    """Its rows are in the next coreset, and would count twice."""
    model = linear.BayesianLinearRegression(3)
    clients = pvi.continual_clients(model, in_tasks(regression_data(rng)), pvi.AnalyticUpdate(), 5)
    server = pvi.Server(model.prior(), clients)
    pvi.fit(server, pvi.Continual(), 3, hyperparameters=pvi.LikelihoodParameters())
    assert server.hyperparameter_factors.keys() == server.factors.keys()


def test_without_coresets_it_is_one_pass_of_sequential_pvi(rng):
    model, tasks = linear.logistic_regression(3), in_tasks(labelled_data(rng))
    rule = pvi.FixedPointUpdate(steps=5, damping=0.5)
    server = pvi.Server(model.prior(), pvi.make_clients(model, tasks, rule))
    pvi.fit(server, pvi.Sequential())
    assert_same(learned(model, tasks, rule).posterior, server.posterior, ALGEBRA)


def test_a_coreset_is_what_its_task_lacks_and_is_fitted_under_all_tasks(rng):
    (X, Y), model = labelled_data(rng), linear.logistic_regression(3)
    server = learned(model, in_tasks((X, Y), 2), LBFGS, coreset_size=4)
    parts = [server.clients[name].data for name in ("task 0", "task 1", "coreset 1")]
    rows = np.concatenate([part[0] for part in parts])
    np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(X, axis=0))
    assert [len(server.clients[f"coreset {n}"].data[0]) for n in range(2)] == [4, 8]
    before = server.cavity("coreset 1")
    task = pvi.LocalTask(model, parts[-1], before, None, before, seed=0)
    assert_same(LBFGS(task).factor, server.factors["coreset 1"], 1e-4)


def test_more_rounds_than_tasks_and_too_large_coresets_are_refused(rng):
    model, tasks = linear.logistic_regression(3), in_tasks(labelled_data(rng))
    server = learned(model, tasks, pvi.FixedPointUpdate())
    with pytest.raises(InvalidDataError, match="all tasks have been learned"):
        pvi.fit(server, pvi.Continual())
    with pytest.raises(InvalidDataError, match="task 0 has 20 rows, and 20 go aside"):
        pvi.continual_clients(model, tasks, pvi.FixedPointUpdate(), coreset_size=20)
    with pytest.raises(InvalidDataError, match="no tasks"):
        pvi.continual_clients(model, [], pvi.FixedPointUpdate())


def test_tasks_are_data_that_the_model_takes(rng):
    (X, Y), model, rule = regression_data(rng), conjugate_model(), pvi.AnalyticUpdate()
    rest = pvi.continual_clients(model, [(X.tolist(), Y.tolist())], rule, 2)["task 0"]
    assert rest.num_data == len(X) - 2
    points = pvi.continual_clients(mixture.GaussianMixture(2, 3), [(None, X)], rule, 2)
    assert points["coreset 0"].data[1].shape == (2, 3)
    wrong = [((X[:-1], Y), "as many rows, got"), (X, r"must be a pair \(X, Y\), got ndarray")]
    for task, message in wrong:
        with pytest.raises(InvalidDataError, match=f"task 0: .*{message}"):
            pvi.continual_clients(model, [task], rule, 2)
        with pytest.raises(InvalidDataError, match=f"shard 'c0': .*{message}"):
            pvi.make_clients(model, [task], rule)
    with pytest.raises(InvalidDataError, match=r"coreset_size must be an integer.*got 2\.5"):
        pvi.continual_clients(model, [(X, Y)], rule, 2.5)


# ---- a head for each task ----

RULE = pvi.VariationalUpdate(epochs=20, batch_size=5, learning_rate=0.02)


def opposite_tasks(rng):
    """Two tasks whose labels say the opposite of one another, with the number of the head."""
    X = rng.standard_normal((120, 2)).astype(np.float32)
    Y = (X[:, :1] > 0.0).astype(np.float32)
    heads = np.repeat([0.0, 1.0], 60)[:, None]
    X, Y = np.hstack([heads, X]), np.abs(heads - Y)
    return [(X[:60], Y[:60]), (X[60:], Y[60:])]


@pytest.fixture(scope="module")
def net():
    return bnn.MultiHeadBNN([2, 10, 2], 2, gpflow.likelihoods.Softmax(2))


@pytest.fixture(scope="module")
def two_heads(net):
    tasks = opposite_tasks(np.random.default_rng(1))
    return tasks, learned(net, tasks, bnn.NewHeads(RULE), coreset_size=5)


def test_both_tasks_are_known_in_the_end(net, two_heads):
    tasks, server = two_heads
    for X, Y in tasks:
        right = net.predict(server.posterior, X).argmax(1) == Y[:, 0]
        assert right.mean() > 0.9


def test_a_task_says_nothing_of_the_other_s_head(net, two_heads):
    _, server = two_heads
    for number in (0, 1):
        others = net.head_of_weights == 1 - number
        for natural in server.factors[f"task {number}"].natural:
            np.testing.assert_allclose(natural[others], 0.0, atol=5e-3)  # Adam's, of rounding
            assert np.abs(natural[net.head_of_weights == number]).max() > 1.0


def test_a_head_of_which_no_data_have_spoken_is_new_whatever_the_prior():
    net = bnn.MultiHeadBNN([2, 4, 2], 2, gpflow.likelihoods.Softmax(2), prior_variance=0.7)
    tasks = opposite_tasks(np.random.default_rng(1))[:1]
    q, fresh = learned(net, tasks, bnn.NewHeads(RULE)).posterior, net.initial(seed=3)
    started = net.start(q, [0, 1], seed=3)
    for head, wanted in ((0, q), (1, fresh)):
        own = net.head_of_weights == head
        for found, eta in zip(started.natural, wanted.natural, strict=True):
            np.testing.assert_array_equal(found[own], eta[own])


def test_a_network_with_one_head_is_a_network():
    likelihood = gpflow.likelihoods.Softmax(3)
    one = bnn.MultiHeadBNN([2, 4, 3], 1, likelihood)
    plain = bnn.MeanFieldBNN([2, 4, 3], likelihood)
    X = np.random.default_rng(0).standard_normal((5, 2))
    with_head = np.hstack([np.zeros((5, 1)), X])
    q = plain.initial(0)
    np.testing.assert_array_equal(one.predict(q, with_head, 3), plain.predict(q, X, 3))
    theta = q.sample(2, 0)
    np.testing.assert_allclose(one.predict_by(theta, with_head), plain.predict_by(theta, X))


def test_heads_that_do_not_exist_are_refused(net):
    with pytest.raises(InvalidDataError, match="says the head, 0 to 1"):
        net.as_data(np.array([[2.0, 0.1, 0.2]]), np.array([[1.0]]))
    for head in (2.0, 0.5):  # all outputs would be zero, or those of head 0
        for predict, q in ((net.predict, net.prior()), (net.predict_by, net.prior().mean[None])):
            with pytest.raises(InvalidDataError, match="says the head, 0 to 1"):
                predict(q, np.array([[head, 0.1, 0.2]]))


def test_a_rule_for_heads_names_a_network_without(rng):
    model = linear.logistic_regression(3)
    with pytest.raises(InvalidDataError, match="got GeneralisedLinearModel"):
        bnn.NewHeads(RULE)(task_of(model, *labelled_data(rng)))


def test_a_rule_for_heads_has_the_checks_of_its_rule():
    natural = pvi.FixedPointUpdate()
    assert bnn.NewHeads(natural).checks == natural.checks is not None
    assert bnn.NewHeads(RULE).checks is None


def test_a_rule_for_heads_is_damped_and_told_of_the_prior_as_its_rule():
    averaging = pvi.AveragingUpdate(0.5, RULE)
    assert bnn.NewHeads(averaging).server_damping == averaging.server_damping == 1.0
    assert bnn.NewHeads(averaging).wants_prior
    assert not bnn.NewHeads(RULE).wants_prior
