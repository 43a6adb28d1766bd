"""While all labels are of one class hyperparameters are not learned."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import datasets, pvi
from tests.oracles.builders import EVERY_INPUT, classifier


@pytest.fixture
def labels(rng):
    X = rng.uniform(-3.0, 3.0, (60, 1))
    return X, (np.sin(2.0 * X) > 0.0).astype(float)


def of_class(data, number):
    X, Y = data
    return X[Y[:, 0] == number], Y[Y[:, 0] == number]


def at_every_input(**options):
    """Of one kind, which is compiled once."""
    return classifier(pseudo_points=EVERY_INPUT, **options)


def test_q_of_the_hyperparameters_stays_the_prior_until_there_are_two_classes(labels):
    strategy = sgp.VariationalHyperparameters(num_samples=2)
    model = at_every_input(hyperparameters=strategy, learning=sgp.EveryUpdate())
    prior, (X, Y) = model.hyperparameter_posterior, of_class(labels, 1.0)
    found = [model.update((X[rows], Y[rows])) for rows in (slice(0, 10), slice(10, None))]
    assert [one.iterations for one in found] == [0, 0]
    np.testing.assert_array_equal(model.hyperparameter_posterior.mean, prior.mean)
    assert model.state.only_class == 1.0
    assert model.update(of_class(labels, 0.0)).iterations > 0
    assert model.state.only_class is None
    assert model.update((X, Y)).iterations > 0
    assert not np.allclose(model.hyperparameter_posterior.mean, prior.mean)


def test_the_two_classes_may_have_come_in_different_batches_of_one_label(labels):
    X, Y = labels
    model = at_every_input()
    rows = [np.flatnonzero(Y[:, 0] == number)[:1] for number in (1, 1, 0, 1)]
    assert [model.update((X[i], Y[i])).iterations > 0 for i in rows] == [False, False, True, True]


def test_what_is_asked_for_is_done(labels):
    assert at_every_input().update(of_class(labels, 1.0), learn=True).iterations > 0
    model = at_every_input(learning=sgp.NeverLearn())
    model.update(of_class(labels, 1.0))
    assert model.update(of_class(labels, 0.0)).iterations == 0


def test_the_second_class_is_learned_from_whatever_the_schedule_says_of_its_number(labels):
    model = at_every_input(learning=sgp.EveryUpdate(every=3))
    model.update(of_class(labels, 1.0))
    assert model.update(of_class(labels, 0.0)).iterations > 0
    assert model.update(labels).iterations == 0


def test_points_move_all_the_same_where_hyperparameters_are_known(labels):
    model = classifier(hyperparameters=sgp.FixedHyperparameters())
    assert model.update(of_class(labels, 1.0)).iterations > 0


def test_several_classes_are_held_alike_and_numbers_never(labels):
    X, Y = labels
    softmax = at_every_input(likelihood=gpflow.likelihoods.Softmax(3), num_latent_gps=3)
    assert softmax.update((X, np.full_like(Y, 2.0))).iterations == 0
    counts = classifier(likelihood=gpflow.likelihoods.Poisson())
    assert counts.update((X, np.ones_like(Y))).iterations > 0


def test_a_loaded_model_and_one_from_a_journal_go_on_holding(labels, tmp_path):
    X, Y = of_class(labels, 1.0)
    model = at_every_input(journal=tmp_path / "journal")
    model.update((X[:10], Y[:10]))
    model.save(tmp_path / "model.npz")

    def modules():
        return gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli()

    loaded = sgp.StreamingGP.load(tmp_path / "model.npz", *modules())
    resumed = sgp.StreamingGP.resume(tmp_path / "journal", *modules())
    for one in (loaded, resumed):
        assert one.update((X[10:], Y[10:])).iterations == 0
    np.testing.assert_array_equal(resumed.predict_f(X)[0], loaded.predict_f(X)[0])


def test_an_adopted_ledger_may_hold_any_class(labels):
    model = at_every_input()
    model.update(of_class(labels, 1.0))
    model.adopt(pvi.Ledger(model.prior()).with_factors(model.factors))
    assert model.update(of_class(labels, 1.0), batch_id="next").iterations > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "points", [sgp.PrivatePseudoPoints(10), sgp.SharedPseudoPoints(40)], ids=["own", "shared"]
)
def test_a_stream_that_is_sorted_by_class_is_learned(points):
    """q(ε) of one class alone is a constant function, and of that nothing came back: 0.55, 0.40."""
    banana = datasets.load_banana()
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]),
        gpflow.likelihoods.Bernoulli(), pseudo_points=points,
    )  # fmt: skip
    for rows in np.array_split(np.argsort(banana.Y[:, 0], kind="stable"), 8):
        model.update((banana.X[rows], banana.Y[rows]))
    wrong = (model.predict_y(banana.X_test)[0] > 0.5) != (banana.Y_test > 0.5)
    assert np.mean(wrong) < 0.2
