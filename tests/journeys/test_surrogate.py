"""A surrogate: exact in what it conditions on and forgets, and what Trieste asks for."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from streaming_gp.surrogate import StreamingSurrogate
from tests.tolerances import THROUGH_CHOLESKY


class Rows(NamedTuple):
    """As Trieste's ``Dataset``."""

    query_points: np.ndarray
    observations: np.ndarray


@runtime_checkable
class WhatTriesteAsks(Protocol):
    """Methods of ``TrainableProbabilisticModel``, ``SupportsPredictJoint``, ``SupportsPredictY``,
    ``FastUpdateModel`` and of what its acquisition functions ask for."""

    def predict(self, query_points: Any) -> Any: ...
    def sample(self, query_points: Any, num_samples: int) -> Any: ...
    def log(self, dataset: Any = None) -> None: ...
    def update(self, dataset: Any) -> None: ...
    def optimize(self, dataset: Any) -> Any: ...
    def predict_joint(self, query_points: Any) -> Any: ...
    def predict_y(self, query_points: Any) -> Any: ...
    def conditional_predict_f(self, query_points: Any, additional_data: Any) -> Any: ...
    def conditional_predict_joint(self, query_points: Any, additional_data: Any) -> Any: ...
    def conditional_predict_f_sample(
        self, query_points: Any, additional_data: Any, num_samples: int
    ) -> Any: ...
    def conditional_predict_y(self, query_points: Any, additional_data: Any) -> Any: ...
    def get_kernel(self) -> Any: ...
    def get_mean_function(self) -> Any: ...
    def get_observation_noise(self) -> Any: ...
    def get_internal_data(self) -> Any: ...


def kernel():
    return gpflow.kernels.Matern52(lengthscales=[0.7, 1.1])


def new_surrogate(hyperparameters=None, conditioning=None, journal=None, **options):
    model = sgp.StreamingGP(
        kernel(),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints("all"),
        hyperparameters=hyperparameters or sgp.FixedHyperparameters(),
        conditioning=conditioning,
        journal=journal,
        optimiser=sgp.LocalOptimiser(max_iterations=5),
    )
    return StreamingSurrogate(model, **options)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(8)
    X = rng.uniform(-1.0, 1.0, (14, 2))
    return Rows(X, np.sin(3.0 * X[:, :1]) + X[:, 1:])


@pytest.fixture(scope="module")
def surrogate(rows):
    """Knows ten rows; tests leave it as it is."""
    return learned(rows, 6, 10)


def learned(rows, *numbers, **options):
    """A surrogate that is given more rows each time."""
    found = new_surrogate(**options)
    for number in numbers:
        found.update(first(rows, number))
    return found


@pytest.fixture(scope="module")
def query():
    return np.random.default_rng(9).uniform(-1.0, 1.0, (5, 2))


def first(rows, number):
    return Rows(rows.query_points[:number], rows.observations[:number])


def exact(rows):
    return gpflow.models.GPR(tuple(rows), kernel(), noise_variance=0.1)


def assert_close(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=THROUGH_CHOLESKY)


def test_it_is_what_trieste_asks_for(surrogate, rows):
    assert isinstance(surrogate, WhatTriesteAsks)
    assert surrogate.get_internal_data().query_points is not None
    assert surrogate.get_kernel() is surrogate.model.kernel
    assert surrogate.get_mean_function() is surrogate.model.mean_function
    np.testing.assert_allclose(surrogate.get_observation_noise(), 0.1)


def test_rows_that_come_one_after_another_are_the_exact_gp(surrogate, rows, query):
    wanted = exact(first(rows, 10))
    assert list(surrogate.model.factors) == ["observed", "rows-6"]
    assert_close(surrogate.predict(query), wanted.predict_f(query))
    assert_close(surrogate.predict_y(query), wanted.predict_y(query))
    assert_close(surrogate.predict_joint(query), wanted.predict_f(query, full_cov=True))


def test_shapes_have_any_leading_axes(surrogate, query):
    stack = np.stack([query, query + 0.1, query - 0.1])[:, None]  # [3, 1, 5, 2]
    mean, variance = surrogate.predict(stack)
    assert mean.shape == variance.shape == (3, 1, 5, 1)
    np.testing.assert_allclose(mean[0, 0], surrogate.predict(query)[0], rtol=1e-9)
    mean, covariance = surrogate.predict_joint(stack)
    assert (mean.shape, covariance.shape) == ((3, 1, 5, 1), (3, 1, 1, 5, 5))
    assert surrogate.sample(stack, 7).shape == (3, 1, 7, 5, 1)


def test_samples_have_the_moments_of_the_joint(surrogate, query):
    number = 4000
    draws = surrogate.sample(query, number, seed=1)[..., 0].numpy()
    mean, covariance = surrogate.predict_joint(query)
    deviation = np.sqrt(np.diag(covariance[0]))
    error = np.abs(draws.mean(axis=0) - mean[:, 0])
    assert np.all(error < 4.0 * deviation / np.sqrt(number))
    scale = np.outer(deviation, deviation)
    assert np.all(np.abs(np.cov(draws.T) - covariance[0]) / scale < 4.0 * np.sqrt(2.0 / number))


def test_predictions_have_gradients_within_a_graph(surrogate, query):
    @tf.function
    def gradient(points):
        with tf.GradientTape() as tape:
            tape.watch(points)
            value = tf.reduce_sum(surrogate.predict(points)[0])
        return tape.gradient(value, points)

    found = gradient(tf.constant(query)).numpy()
    step = np.zeros_like(query)
    step[2, 1] = 1e-5
    difference = surrogate.predict(query + step)[0] - surrogate.predict(query - step)[0]
    np.testing.assert_allclose(found[2, 1], np.sum(difference) / 2e-5, rtol=1e-5)


@pytest.mark.usefixtures("eager")
def test_near_rows_answer_at_tensors_as_at_arrays_and_have_gradients(rows, query):
    near = sgp.NearestNeighbors(num_neighbors=5, num_neighbors_pred=6)
    found = learned(rows, 14, conditioning=near)
    mean, covariance = found.model.predict_f(query, full_cov=True)
    assert_close(found.predict_joint(query), (mean, covariance))
    assert_close(found.predict(query), found.model.predict_f(query))
    assert found.sample(query, 3).shape == (3, 5, 1)

    points = tf.constant(query)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(points)
        values = found.predict(points)[1][2, 0], found.predict_joint(points)[1][0, 2, 3]
    step = np.zeros_like(query)
    step[2, 1] = 1e-5
    up, down = (found.predict(query + s)[1][2, 0] for s in (step, -step))
    joint_up, joint_down = (found.predict_joint(query + s)[1][0, 2, 3] for s in (step, -step))
    of_variance, of_covariance = (tape.gradient(one, points)[2, 1] for one in values)
    np.testing.assert_allclose(of_variance, (up - down) / 2e-5, rtol=1e-5)
    np.testing.assert_allclose(of_covariance, (joint_up - joint_down) / 2e-5, rtol=1e-5)


def test_pending_points_are_forgotten_exactly(surrogate, rows, query):
    found = learned(rows, 6)
    before = found.predict_joint(query)
    found.add_pending("one", query[:2])
    mean, variance = found.predict(query)
    np.testing.assert_allclose(mean, before[0], atol=THROUGH_CHOLESKY)  # what was expected anyway
    assert np.all(variance[:2, 0] < 0.6 * np.diag(before[1][0])[:2])
    found.add_pending("two", query[2:], [[5.0]] * 3)
    found.update(first(rows, 10))  # observations come while others are pending
    assert found.pending == ("one", "two")
    for name in found.pending:
        found.remove_pending(name)
    assert_close(found.predict_joint(query), surrogate.predict_joint(query))
    assert_close(found.predict(query), exact(first(rows, 10)).predict_f(query))


def test_additional_data_count_in_one_question_only(surrogate, rows, query):
    before = surrogate.predict(query)
    more = Rows(rows.query_points[10:], rows.observations[10:])
    wanted = exact(rows)
    assert_close(surrogate.conditional_predict_f(query, more), wanted.predict_f(query))
    assert_close(surrogate.conditional_predict_y(query, more), wanted.predict_y(query))
    joint = surrogate.conditional_predict_joint(query, more)
    assert_close(joint, wanted.predict_f(query, full_cov=True))
    assert surrogate.conditional_predict_f_sample(query, more, 3).shape == (3, 5, 1)
    for one, other in zip(surrogate.predict(query), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_additional_data_may_have_leading_axes(surrogate, rows, query):
    more = Rows(*(np.stack([part[10:12], part[12:14]]) for part in rows))
    mean, variance = surrogate.conditional_predict_f(query, more)
    assert mean.shape == variance.shape == (2, 5, 1)
    alone = surrogate.conditional_predict_f(query, Rows(more[0][1], more[1][1]))
    assert_close((mean[1], variance[1]), alone)


def test_hyperparameters_are_those_of_all_rows_and_pending_points_have_no_part(rows, query):
    one, other = (new_surrogate(sgp.PointHyperparameters(), growth=0.5) for _ in range(2))
    one.optimize(first(rows, 8))
    one.add_pending("guess", query, [[9.0]] * 5)
    start = one.model.parameter_vector.value()
    one.optimize(first(rows, 11))  # grown by less than a half
    np.testing.assert_array_equal(one.model.parameter_vector.value(), start)
    assert list(one.model.factors) == ["observed", "guess", "rows-8"]
    one.optimize(rows)
    assert not np.array_equal(one.model.parameter_vector.value(), start)
    assert list(one.model.factors) == ["observed", "guess"]
    other.optimize(first(rows, 8))
    other.optimize(rows)
    ours, theirs = (each.model.parameter_vector.value() for each in (one, other))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_other_rows_take_the_place_of_those_that_are_known(rows, query):
    found = learned(rows, 8)
    other = Rows(rows.query_points[4:], rows.observations[4:])
    found.update(other)
    assert_close(found.predict(query), exact(other).predict_f(query))
    found.update(other)
    assert list(found.model.factors) == ["observed"]


def test_learning_that_is_broken_off_midway_has_changed_nothing(rows, query, monkeypatch, tmp_path):
    """Point hyperparameters and the schedule's counts are no part of a ledger."""
    found = new_surrogate(sgp.PointHyperparameters(), journal=tmp_path / "journal")
    found.update(first(rows, 8))
    found.add_pending("guess", query, [[9.0]] * 5)
    before, answers = found.model.state, found.predict(query)

    def broken_off(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(found.model, "update", broken_off)  # as pending points come back
        with pytest.raises(KeyboardInterrupt):
            found.optimize(rows)
    again = sgp.StreamingGP.resume(tmp_path / "journal", kernel(), gpflow.likelihoods.Gaussian(0.1))
    for model in (found.model, again):
        after = model.state
        assert list(after.factors) == ["observed", "guess"]
        assert (after.num_data, after.num_data_learned) == (8 + 5, 0)
        assert after.num_updates == before.num_updates
        for path, value in before.parameters.items():
            np.testing.assert_array_equal(after.parameters[path], value)
        for one, other in zip(model.predict_f(query), answers, strict=True):
            np.testing.assert_allclose(one, other, atol=THROUGH_CHOLESKY)
    other = sgp.StreamingGP(kernel(), gpflow.likelihoods.Gaussian(0.1))
    for wrong, why in ((other.state, "got that of another one"), (3, "got a int")):
        with pytest.raises(InvalidDataError, match=why):
            found.model.go_back(wrong)


def test_what_is_refused_changes_nothing(rows, query):
    found = learned(rows, 8)
    before = found.predict(query)
    wrong = Rows(rows.query_points, np.full_like(rows.observations, np.nan))
    for act in (found.update, found.optimize):
        with pytest.raises(InvalidDataError, match="Y must be finite"):
            act(wrong)
    with pytest.raises(InvalidDataError, match=r"wanted X \[N, D\] and Y \[N, P\]"):
        found.update((rows.query_points, rows.observations[:, 0]))
    with pytest.raises(InvalidDataError, match="wanted query_points and observations"):
        found.update(3)
    with pytest.raises(InvalidDataError, match="nothing named 'x' is pending"):
        found.remove_pending("x")
    found.add_pending("x", query)
    with pytest.raises(InvalidDataError, match="there is a factor 'x' already"):
        found.add_pending("x", query)
    found.remove_pending("x")
    for one, other in zip(found.predict(query), before, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(InvalidDataError, match="wanted a model that has seen no data"):
        StreamingSurrogate(found.model)
    with pytest.raises(InvalidDataError, match="growth must not be negative"):
        new_surrogate(growth=-1.0)
