"""What private clients answer, what they have spent, and when they decline."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import linear, pvi
from streaming_gp.errors import FileFormatError, InvalidDataError, NoAnswerError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.pvi import privacy
from streaming_gp.pvi.privacy.accountant import epsilon_of, read_spent
from tests.oracles.reference import regression_data, server, task_of

FREE = privacy.Budget(np.inf)
STEPS = pvi.FixedPointUpdate(steps=2)


@pytest.fixture
def told(monkeypatch):
    """An accountant that is quick, and needs no further library: ε is a tenth of the releases."""

    def counted(spent, delta):
        return 0.1 * sum(number for _, number in spent)

    monkeypatch.setattr("streaming_gp.pvi.privacy.rule.epsilon_of", counted)


def problem(rng, number=3):
    X, Y = regression_data(rng)
    model = linear.BayesianLinearRegression(3, 0.09, family=MeanFieldNormal)
    return model, [(X[k::number], Y[k::number]) for k in range(number)]


def private(epsilon=np.inf, **settings):
    return privacy.PrivateGradients(
        STEPS, budget=privacy.Budget(epsilon), clip=1.0, noise_multiplier=1e-3, **settings
    )


def test_history_says_what_each_client_has_spent_and_one_that_has_nothing_left_declines(rng, told):
    model, shards = problem(rng)
    clients = {
        f"c{k}": pvi.Client(f"c{k}", model, shards[k], private(epsilon))
        for k, epsilon in enumerate([0.5, 1.0, np.inf])
    }
    found = pvi.Server(model.prior(), clients, checks=pvi.NO_LIMITS)
    history = pvi.fit(found, pvi.Synchronous(), rounds=4)
    spent = [[round(one.epsilon[name], 9) for one in history] for name in clients]
    assert spent == [[0.2, 0.4, 0.4, 0.4], [0.2, 0.4, 0.6, 0.8], [0.2, 0.4, 0.6, 0.8]]
    assert [list(one.failed) for one in history] == [[], [], ["c0"], ["c0"]]
    assert "budget is spent" in history[2].failed["c0"]
    assert [one.accepted for one in history] == [3, 3, 2, 2]
    assert history.to_records()[-1]["epsilon"] == dict(history[-1].epsilon)


def test_what_a_server_refuses_has_been_told_all_the_same(rng, told):
    model, shards = problem(rng)
    found = server(model, shards, private(), checks=pvi.Checks(max_shift=1e-9))
    with pytest.warns(UserWarning, match="no answer"), pytest.raises(NoAnswerError):
        pvi.fit(found, rounds=1)
    assert found.history[-1].refused
    assert set(found.history[-1].epsilon.values()) == {0.2}


def test_a_saved_server_remembers_what_was_spent(rng, told, tmp_path):
    model, shards = problem(rng)
    clients = pvi.make_clients(model, shards, private())
    found = pvi.Server(model.prior(), clients, checks=pvi.NO_LIMITS)
    pvi.fit(found, rounds=2, checkpoint=tmp_path / "run.npz")
    again = pvi.Server.load(tmp_path / "run.npz", model.prior(), clients, checks=pvi.NO_LIMITS)
    history = pvi.fit(again, rounds=1)
    assert {round(value, 9) for value in history[-1].epsilon.values()} == {0.6}


def test_a_record_counts_whatever_a_server_says(rng, told, tmp_path):
    """A second server asks from the beginning; the client knows better."""
    model, shards = problem(rng)
    rule = private(0.5, record=str(tmp_path / "spent"))
    for _ in range(2):
        pvi.fit(server(model, shards, rule, checks=pvi.NO_LIMITS), rounds=1)
    assert read_spent(str(tmp_path / "spent"), "c0") == ((rule.release, 4),)
    with pytest.warns(UserWarning, match="no answer"), pytest.raises(NoAnswerError, match="spent"):
        pvi.fit(server(model, shards, rule), rounds=1)
    for path in (tmp_path / "spent").iterdir():
        path.write_text("{}")
    with pytest.warns(UserWarning, match="no answer"), pytest.raises(NoAnswerError, match="record"):
        pvi.fit(server(model, shards, rule), rounds=1)
    with pytest.raises(FileFormatError):
        read_spent(str(tmp_path / "spent"), "c0")


def test_nothing_but_the_factor_and_what_was_spent_leaves(rng, told):
    model, shards = problem(rng)
    client = pvi.Client("c0", model, shards[0], private())
    ask = pvi.Server(model.prior(), {"c0": client}).ask("c0")
    answer = client.answer(ask)
    assert answer.num_data == 0
    assert answer.factor.log_scale == 0.0
    assert np.isnan(answer.free_energy)
    assert (answer.steps, answer.skipped, dict(answer.diagnostics)) == (2, 0, {"epsilon": 0.2})


def test_errors_say_nothing_of_the_data(rng, told):
    def broken(task):
        raise InvalidDataError(f"row {task.data[0][0]} is odd")

    model, shards = problem(rng)
    rule = privacy.PrivateChanges(broken, budget=FREE)
    with pytest.raises(privacy.PrivateFitError) as error:
        rule(task_of(model, *shards[0]))
    assert "row" not in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


def test_hyperparameters_are_not_learned_from_private_data(rng, told):
    model, shards = problem(rng)
    found = server(model, shards, private(), checks=pvi.NO_LIMITS)
    with pytest.warns(UserWarning, match="no answer"), pytest.raises(NoAnswerError, match="noise"):
        pvi.fit(found, rounds=1, hyperparameters=pvi.LikelihoodParameters())


def test_pseudo_inputs_that_were_chosen_among_data_do_not_leave(rng):
    X = rng.standard_normal((20, 1))
    gp = sgp.StreamingGP(
        kernel=gpflow.kernels.SquaredExponential(),
        likelihood=gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(3),
        hyperparameters=sgp.FixedHyperparameters(),
    )
    rule = privacy.PrivateChanges(sgp.GPUpdate(), budget=FREE, noise_multiplier=0.0)
    found = pvi.Server(gp.prior(), pvi.make_clients(gp, [(X, np.sin(X))], rule))
    with pytest.warns(UserWarning, match="no answer"), pytest.raises(NoAnswerError, match="grid"):
        pvi.fit(found, rounds=1)


def test_noise_is_another_one_each_time_unless_a_seed_is_given(rng, told):
    model, shards = problem(rng)
    task = task_of(model, *shards[0])
    secure, seeded = private(), private(insecure_seed=3)
    assert not np.array_equal(*(secure(task).factor.natural[0] for _ in range(2)))
    np.testing.assert_array_equal(*(seeded(task).factor.natural[0] for _ in range(2)))


def test_the_accountant_is_told_the_rule_s_own_noise(rng):
    pytest.importorskip("dp_accounting", reason="the privacy extra is not installed")
    model, shards = problem(rng)
    rule = privacy.PrivateGradients(
        pvi.VariationalUpdate(epochs=1), budget=FREE, noise_multiplier=2.0, sampling_rate=0.25
    )
    found = server(model, shards, rule, checks=pvi.NO_LIMITS)
    history = pvi.fit(found, rounds=2)
    wanted = epsilon_of(((privacy.Release(2.0, 0.25), 8),), 1e-5)
    assert set(history[-1].epsilon.values()) == {wanted}
    assert rule.epsilon_after(2) == wanted


def answers_of(rule, model, data, number):
    task = task_of(model, *data)
    return [rule(task).factor.natural for _ in range(number)]


def accuracy(with_row, without, direction):
    """Of the best threshold on the first halves, on the second: how often it tells who was in."""
    first, second = (
        np.concatenate([np.asarray([a @ direction for a, _ in side]) for side in pair])
        for pair in ((with_row[::2], without[::2]), (with_row[1::2], without[1::2]))
    )
    label = np.repeat([True, False], len(first) // 2)
    best = max(first, key=lambda bar: np.mean((first >= bar) == label))
    return float(np.mean((second >= best) == label))


@pytest.mark.parametrize(
    ("sigma", "is_hidden"), [(3.73, True), pytest.param(0.2, False, marks=pytest.mark.slow)]
)
def test_membership_is_told_no_better_than_epsilon_allows(rng, told, sigma, is_hidden):
    """ε = 1 at δ = 1e-5 for one release with σ = 3.73. Whoever guesses is right for a share of
    ``(e^ε + δ) / (1 + e^ε)`` at most (Kairouz, Oh & Viswanath 2015); with less noise for a larger
    one.
    """
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    X, Y = rng.standard_normal((12, 3)), rng.integers(0, 2, (12, 1)).astype(float)
    X[-1], Y[-1] = [50.0, 0.0, 0.0], 1.0
    rule = privacy.PrivateGradients(
        pvi.FixedPointUpdate(), budget=FREE, clip=1.0, noise_multiplier=sigma
    )
    runs = 300
    sides = [answers_of(rule, model, (X[:rows], Y[:rows]), runs) for rows in (12, 11)]
    right, bound = accuracy(*sides, np.array([1.0, 0.0, 0.0])), np.exp(1.0) / (1.0 + np.exp(1.0))
    error = 0.5 / np.sqrt(runs)
    assert (right < bound + 4.0 * error) == is_hidden
