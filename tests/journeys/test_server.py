"""The server in the user's hands, and its files."""

import warnings

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import bnn, datasets, engines, linear, mixture, pvi, samplers
from streaming_gp.errors import ImproperError, InvalidDataError, NoAnswerError
from streaming_gp.expfam import Factor, MeanFieldNormal, Normal
from streaming_gp.pvi.fit import default_update
from tests.oracles.builders import regressor
from tests.oracles.reference import (
    assert_same,
    conjugate_model,
    labelled_data,
    pooled,
    regression_data,
    server,
)
from tests.tolerances import ALGEBRA

GP = gpflow.kernels.Matern32(), gpflow.likelihoods.Gaussian()
LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())


def test_one_call_is_what_most_people_do(rng, tmp_path):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    shards, path = datasets.partition_iid(X, Y, 3), tmp_path / "run.npz"

    def evaluate(q):
        return {"error": float(np.mean((X @ np.asarray(q.mean)[:, None] - Y) ** 2))}

    found = pvi.run(model, shards, 1, "sequential", evaluate=evaluate, checkpoint=path)
    assert_same(found.posterior, pooled(model, X, Y), 1e-9)
    again = pvi.run(model, shards, 3, evaluate=evaluate, checkpoint=path)
    assert len(again.history) == 3
    assert [axes.get_ylabel() for axes in again.history.plot().axes] == ["error"]
    assert again.history.plot(["free_energy"], against="bytes").axes[0].get_xlabel() == "bytes"
    with pytest.raises(InvalidDataError, match=r"no \['loss'\] to plot"):
        again.history.plot(["loss"])
    with pytest.raises(InvalidDataError, match="got 'parallel'"):
        pvi.run(model, shards, schedule="parallel")
    with pytest.raises(InvalidDataError, match="own rules: update must be None, got AnalyticUp"):
        pvi.run(model, found.clients, update=pvi.AnalyticUpdate())


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (regressor(), sgp.GPUpdate),
        (linear.logistic_regression(2), pvi.FixedPointUpdate),
        (linear.BayesianLinearRegression(2), pvi.AnalyticUpdate),
        (mixture.GaussianMixture(2, 2), pvi.FixedPointUpdate),
        (bnn.MomentNetwork(2), pvi.VariationalUpdate),
    ],
)
def test_a_model_knows_the_rule_that_it_is_made_for(model, rule):
    assert type(default_update(model)) is rule


def test_a_client_that_leaves_takes_what_it_said_with_it(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    shards = datasets.partition_iid(X, Y, 3)
    found = server(model, shards, pvi.AnalyticUpdate())
    pvi.fit(found, pvi.Sequential())
    cavity, before = found.cavity("c1"), found.ledger
    found.remove("c1")
    assert_same(found.posterior, cavity, ALGEBRA)
    with pytest.raises(InvalidDataError, match="no client 'c1'"):
        found.remove("c1")
    with pytest.raises(InvalidDataError, match="no client 'stranger'"):
        found.cavity("stranger")
    with pytest.raises(InvalidDataError, match=r"factors of \['c1'\], which are no clients"):
        found.adopt(before)
    assert found.ledger.factors.keys() == {"c0", "c2"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: pvi.Ledger(linear.BayesianLinearRegression(2).prior()), "wanted a ledger of"),
        (lambda one: one.replaced("c0", one.factors["c0"].natural), "'c0': it is no factor of the"),
        (
            lambda one: one.replaced("c0", Factor(Normal, (np.ones(1), np.eye(1)))),
            r"the factor of 'c0': .* shapes \[\(1,\), \(1, 1\)\], wanted \[\(3,\), \(3, 3\)\]",
        ),
        (
            lambda one: one.replaced("c0", Factor(MeanFieldNormal, (np.ones(3), np.ones(3)))),
            "the factor of 'c0': it is no factor of the family Normal",
        ),
    ],
)
def test_a_ledger_that_is_not_of_the_prior_is_not_taken_over(rng, change, message):
    found = server(conjugate_model(), [regression_data(rng)], pvi.AnalyticUpdate())
    pvi.fit(found)
    before = found.ledger
    with pytest.raises(InvalidDataError, match=message):
        found.adopt(change(before))
    assert found.ledger is before


SCHEDULES = {
    "sequential": pvi.Sequential(),
    "synchronous": pvi.Synchronous(damping=0.5),
    "asynchronous": pvi.Asynchronous(damping=0.5),
    "simulated": pvi.Asynchronous(damping=0.5, durations={"c0": 1.0, "c1": 2.0, "c2": 3.0}),
}


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("sequential", "simulated")),
        "synchronous",
        "asynchronous",
    ],
)
def test_rounds_end_where_they_would_without_who_left_and_with_who_came(rng, name, tmp_path):
    """In the middle of a run, with questions open; and from a file, whoever is there."""
    (X, Y), model = regression_data(rng), conjugate_model()
    clients = pvi.make_clients(model, datasets.partition_iid(X, Y, 4), pvi.AnalyticUpdate())
    late, there = clients["c3"], {name: clients[name] for name in ("c0", "c1", "c2")}
    found, path = pvi.Server(model.prior(), there), tmp_path / "run.npz"

    def change(one):
        if one.round == 2:
            found.save(path)
            found.remove("c1")
            found.add(late)

    history = pvi.fit(found, SCHEDULES[name], 60, callback=change)
    wanted = pvi.Server(model.prior(), {k: c for k, c in clients.items() if k != "c1"})
    pvi.fit(wanted, pvi.Sequential())
    assert found.factors.keys() == wanted.factors.keys()
    assert_same(found.posterior, wanted.posterior, 1e-9)
    assert {why for one in history for why in one.refused.values()} <= {"there is no such client"}
    loaded = pvi.Server.load(path, model.prior(), wanted.clients)
    assert "c1" in loaded.factors  # until somebody says that it is to be forgotten
    loaded.remove("c1")
    pvi.fit(loaded, SCHEDULES[name], 60)
    assert_same(loaded.posterior, wanted.posterior, 1e-9)


def test_nothing_false_is_said_of_a_client_that_has_left(rng):
    """Its last answer comes when it is gone; those before it were taken."""
    found = server(
        conjugate_model(), datasets.partition_iid(*regression_data(rng), 3), pvi.AnalyticUpdate()
    )

    def leave(one):
        if one.round == 2:
            found.remove("c1")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = pvi.fit(found, pvi.Asynchronous(), 4, callback=leave)
    assert any("c1" in one.refused for one in history)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_client_that_leaves_while_questions_are_put_is_asked_nothing(rng, name):
    (X, Y), model = regression_data(rng), conjugate_model()
    clients = pvi.make_clients(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())

    def sends_another_away(task):
        if "c1" in found.clients:
            found.remove("c1")
        return pvi.AnalyticUpdate()(task)

    first = pvi.Client("c0", model, clients["c0"].data, sends_another_away)
    found = pvi.Server(model.prior(), {**clients, "c0": first})
    history = pvi.fit(found, SCHEDULES[name], 10)
    assert found.factors.keys() == {"c0", "c2"}
    assert set().union(*(one.unheard for one in history)) <= {"c1"}


def test_a_client_of_which_nothing_comes_is_dropped_until_it_joins_anew(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 2), pvi.AnalyticUpdate())
    client, silence = found.clients["c1"], pvi.Delivery("c1", None, "no answer within 1 s")
    rule = pvi.Damping(None, 2)
    for _ in range(2):
        found.accept([silence], rule)
    with pytest.warns(UserWarning, match="'c1' is asked no more in this run.*within 1 s"):
        found.accept([silence], rule)
    with engines.Serial().session(found.clients) as session:
        assert found.put(session, ["c0", "c1"]).messages == 1
        found.remove("c1")
        found.add(client)
        assert found.put(session, ["c1"]).messages == 1


@pytest.mark.parametrize("rho", [1.0, 0.5])
def test_nobody_writes_to_what_the_ledger_holds(rho, rng, tmp_path):
    (X, Y), model = regression_data(rng), conjugate_model()
    clients = pvi.make_clients(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())
    found = pvi.Server(model.prior(), clients)
    pvi.fit(found, pvi.Sequential(damping=rho))
    found.save(tmp_path / "run.npz")
    loaded = pvi.Server.load(tmp_path / "run.npz", model.prior(), clients)
    for one in (found, loaded):
        for held in (one.prior, one.posterior, *one.factors.values()):
            for array in held.natural:
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0.0


def test_a_warm_start_is_shared_out_evenly(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())
    q = Normal.from_mean_covariance(np.ones(3), 0.5 * np.eye(3)).as_arrays()
    found.warm_start(q)
    assert_same(found.posterior, q, ALGEBRA)
    assert len(found.factors) == 3
    pvi.fit(found, pvi.Sequential())
    assert_same(found.posterior, pooled(model, X, Y), 1e-9)
    with pytest.raises(InvalidDataError, match="without factors"):
        found.warm_start(q)
    fresh = server(model, [(X, Y)], pvi.AnalyticUpdate())
    with pytest.raises(
        InvalidDataError, match=r"wanted a Normal with .* shapes .* got a MeanField"
    ):
        fresh.warm_start(MeanFieldNormal(np.zeros(3), np.ones(3)))


WHOLE = pvi.VariationalUpdate(batch_size=None)
RUNS = {
    "momentum": (pvi.FixedPointUpdate(batch_size=7), pvi.Momentum()),
    "averaging": (WHOLE, pvi.FedAvg(0.5, 0.8)),
    "masked": (WHOLE, pvi.MaskedAveraging(0.5, pvi.FedYogi())),
    "chains": (pvi.SNEPUpdate(samplers.AdaptiveSGLD(0.02, 10), learning_rate=0.05), 1.0),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[pytest.mark.slow] * (one == "averaging")) for one in RUNS],
)
def test_a_resumed_run_is_the_run_that_was_never_stopped(rng, tmp_path, name):
    model = linear.logistic_regression(3, family=MeanFieldNormal)
    shards = datasets.partition_iid(*labelled_data(rng), 3)
    update, damping = RUNS[name]
    schedule = pvi.Synchronous(damping=damping)
    whole, part = (server(model, shards, update) for _ in range(2))
    for rounds in (2, 2) if name == "chains" else (4,):  # chains begin anew in each session
        pvi.fit(whole, schedule, rounds)
    pvi.fit(part, schedule, 2, checkpoint=tmp_path / "run.npz")
    resumed = pvi.Server.load(tmp_path / "run.npz", model.prior(), part.clients)
    assert len(resumed.history) == 2
    pvi.fit(resumed, schedule, 2)
    assert_same(whole.posterior, resumed.posterior, 0.0)
    assert resumed.version == whole.version
    assert resumed.history.column("messages") == whole.history.column("messages")


def test_a_round_whose_metrics_failed_has_been(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 2), pvi.AnalyticUpdate())
    scores = iter([1.0, "none", 3.0])
    with pytest.raises(InvalidDataError, match="evaluate must give numbers by name"):
        pvi.fit(found, pvi.Sequential(), 3, evaluate=lambda q: {"score": next(scores)})
    history = pvi.fit(found, pvi.Sequential(), evaluate=lambda q: {"score": next(scores)})
    assert history.column("round") == [1, 2, 3]
    assert history.column("version") == [2, 4, 6]
    assert history.column("messages") == [4, 8, 12]
    np.testing.assert_array_equal(history.column("score"), [1.0, np.nan, 3.0])
    with pytest.raises(KeyError):
        history.column("sore")


class Undefined(pvi.PriorVariance):
    """A rule of one's own, which comes to no variance."""

    def learn(self, server):
        raise ImproperError("no variance")


def test_a_round_after_which_nothing_could_be_learned_has_been(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 2), pvi.AnalyticUpdate())
    with pytest.raises(ImproperError, match="no variance"):
        pvi.fit(found, pvi.Sequential(), 3, hyperparameters=Undefined())
    assert found.history.column("version") == [found.version] == [2]
    assert pvi.fit(found, pvi.Sequential()).column("messages") == [4, 8]


def test_a_resumed_run_stops_where_it_would_have(rng, tmp_path):
    model, path = conjugate_model(), tmp_path / "run.npz"
    clients = pvi.make_clients(model, [regression_data(rng)], pvi.AnalyticUpdate())
    stopping = pvi.EarlyStopping("loss", patience=3)

    def rounds_of(one, rounds):
        def loss(q):
            return {"loss": max(0, 2 - len(one.history))}

        return len(pvi.fit(one, None, rounds, evaluate=loss, checkpoint=path, stopping=stopping))

    whole = rounds_of(pvi.Server(model.prior(), clients), 20)
    assert rounds_of(pvi.Server(model.prior(), clients), 3) == 3
    assert rounds_of(pvi.Server.load(path, model.prior(), clients), 17) == whole < 20


def test_a_loaded_server_goes_on_with_the_seed_that_it_had(rng, tmp_path):
    model, path = linear.logistic_regression(3, family=MeanFieldNormal), tmp_path / "run.npz"
    clients = server(
        model, datasets.partition_iid(*labelled_data(rng), 2), RUNS["momentum"][0]
    ).clients
    whole = pvi.Server(model.prior(), clients, seed=7)
    pvi.fit(whole, rounds=1, checkpoint=path)
    again = pvi.Server.load(path, model.prior(), clients)
    assert again.seed == 7
    pvi.fit(whole)
    pvi.fit(again)
    assert_same(whole.posterior, again.posterior, 0.0)
    with pytest.raises(InvalidDataError, match="the file has the seed 7, got 0"):
        pvi.run(model, clients.values(), checkpoint=path)


def test_files_that_do_not_fit_are_refused(rng, tmp_path):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 3), pvi.AnalyticUpdate())
    pvi.fit(found)
    path = tmp_path / "run.npz"
    found.save(path)
    other = linear.BayesianLinearRegression(4).prior()
    with pytest.raises(InvalidDataError, match="but the prior is"):
        pvi.Server.load(path, other, found.clients)
    learned = server(linear.BayesianLinearRegression(3), [(X, Y)], pvi.AnalyticUpdate())
    pvi.fit(learned, hyperparameters=pvi.LikelihoodParameters(), checkpoint=path)
    scale = gpflow.functions.Linear(np.zeros((3, 1)), np.ones(1))
    model = linear.GeneralisedLinearModel(3, gpflow.likelihoods.Gaussian(scale=scale))
    clients = [pvi.Client("c0", model, (X, Y), pvi.FixedPointUpdate())]
    with pytest.raises(InvalidDataError, match=r"file has 1 parameters .* but the model has 4"):
        pvi.Server.load(path, model.prior(), clients)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, d: pvi.make_clients(m, [], pvi.AnalyticUpdate()), "at least one client"),
        (lambda m, d: pvi.Server(m.prior(), {}), "at least one"),
        (lambda m, d: pvi.make_clients(m, [(d[0], d[1][:5])], None), "shard 'c0': .*as many rows"),
        (lambda m, d: pvi.make_clients(m, {"x": (d[0] * np.nan, d[1])}, None), "shard 'x': X must"),
        *(
            (lambda m, d, of=of: pvi.make_clients(sgp.StreamingGP(*GP), [d, of(*d)], None), message)
            for of, message in [
                (
                    lambda X, Y: (X[:, :2], Y),
                    r"shard 'c1': X has shape \[\d+, 2\], .* of shard 'c0'",
                ),
                (lambda X, Y: (X, Y[:, [0, 0]]), r"shard 'c1': Y has shape \[\d+, 2\], which does"),
            ]
        ),
        (lambda m, d: pvi.fit(server(m, [d], LBFGS), rounds=0), "rounds must be positive"),
        (lambda m, d: pvi.fit(server(m, [d], LBFGS), pvi.Synchronous(2.0)), "damping must lie"),
        (lambda m, d: pvi.fit(server(m, [d], LBFGS), pvi.Sequential("up")), '"random"'),
        (lambda m, d: pvi.Sequential(np.array(["c0", "c1"])), '"random", got array'),
        *(
            (lambda m, d, rho=rho: pvi.fit(server(m, [d], LBFGS), pvi.Synchronous(rho)), message)
            for rho, message in [
                ("0.5", "damping must be a number, got '0.5'"),
                (pvi.Damping, "damping must be a number, got <class"),
                (np.float32(1.5), "damping must lie"),
            ]
        ),
        (lambda m, d: pvi.fit(server(m, [d], LBFGS), "sequential"), "schedule must be a strategy"),
        (lambda m, d: pvi.fit(server(m, [d], LBFGS), pvi.Sequential), "schedule must be a strat"),
        (lambda m, d: pvi.fit(server(m, [d], LBFGS), engine="ray"), "engine must be a strategy"),
        *(
            (lambda m, d, o=o: pvi.fit(server(m, [d], LBFGS), **o), message)
            for o, message in [
                ({"stopping": "loss"}, "stopping must be a strategy"),
                ({"hyperparameters": pvi.LikelihoodParameters}, "hyperparameters must be a strat"),
                ({"evaluate": 5}, "evaluate must be a function or None, got 5"),
                ({"callback": 5}, "callback must be a function or None, got 5"),
                ({"evaluate": lambda q: 5.0}, r"numbers by name, got 5\.0"),
                ({"evaluate": lambda q: {"loss": "low"}}, "numbers by name, got {'loss': 'low'}"),
                (
                    {"evaluate": lambda q: {"round": 1, "bytes": 2}},
                    r"gives \['bytes', 'round'\], wh",
                ),
            ]
        ),
        *(
            (lambda m, d, one=one: pvi.fit(server(m, [d], LBFGS), one), message)
            for one, message in [
                (pvi.Sequential(damping={"c0": 1.0, "C0": 0.5}), "damping of 'C0', who is no cl"),
                (pvi.Synchronous({"c1": 0.5}), "damping of 'c1', who is no client: there are"),
                (pvi.Synchronous(pvi.Annealed({"c1": 0.5})), "damping of 'c1', who is no client"),
                (pvi.Synchronous(durations={"c1": 1}), "durations of 'c1', who is no client"),
                (pvi.Asynchronous(durations={"c1": 1}), "durations of 'c1', who is no client"),
            ]
        ),
        (lambda m, d: server(m, [d], LBFGS).add(None), "wanted a client or a site, got None"),
        (lambda m, d: pvi.Server(m.prior(), [d]), "wanted a client or a site, got"),
        (lambda m, d: pvi.Server(m.prior(), {"c0": d}), "wanted a client or a site, got"),
        (
            lambda m, d: pvi.Server(m.prior(), {"c1": server(m, [d], LBFGS).clients["c0"]}),
            "the client 'c0' goes under the name 'c1'",
        ),
        (lambda m, d: pvi.Client(0, m, d, LBFGS), "a client's name must be a string, got 0"),
        (lambda m, d: pvi.Client("c0", m, d, LBFGS, -1), "seed must be an integer, at least 0"),
        (lambda m, d: pvi.Client("c0", m, (d[0], d[1][:, 0]), LBFGS), "'c0': Y must have shape"),
        (lambda m, d: pvi.Client("c0", m, (d[0], d[1][:, [0, 0]]), LBFGS), "shard 'c0': Y must"),
        (lambda m, d: server(m, [d], LBFGS).adopt({}), "ledger must be a strategy such as Server"),
        (lambda m, d: server(m, [d], LBFGS).warm_start(None), "q must be a strategy such as net"),
        (lambda m, d: server(m, [d], pvi.AnalyticUpdate), "update must be a strategy such as"),
        (lambda m, d: pvi.Server(m, server(m, [d], LBFGS).clients), "prior must be a strategy"),
        (
            lambda m, d: pvi.Server(m.prior(), server(m, [d], LBFGS).clients, policy="raise"),
            "policy must be a strategy such as pvi.RaiseImproper",
        ),
        (
            lambda m, d: pvi.Server(m.prior(), server(m, [d], LBFGS).clients, checks=0.5),
            "checks must be a strategy such as pvi.Checks",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(rng, make, message):
    with pytest.raises(InvalidDataError, match=message):
        make(linear.BayesianLinearRegression(3), regression_data(rng))


def test_groups_of_prior_variances_are_looked_at_before_anybody_is_asked(rng):
    found = server(linear.BayesianLinearRegression(3), [regression_data(rng)], LBFGS)
    for groups in ([0, 1], [0, 2, 2], "abc"):
        with pytest.raises(InvalidDataError, match=r"groups must be \[3\]"):
            pvi.fit(found, hyperparameters=pvi.PriorVariance(groups=groups))
    assert found.version == 0
    pvi.fit(found, hyperparameters=pvi.PriorVariance(groups=[0.0, 1.0, 1.0]))
    assert {"prior_variance_0", "prior_variance_1"} <= found.history[-1].metrics.keys()


def test_who_has_left_may_be_named_in_a_schedule(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    found = server(model, datasets.partition_iid(X, Y, 2), pvi.AnalyticUpdate())
    found.remove("c1")
    numbers = {"c0": 1.0, "c1": 0.5}
    assert len(pvi.fit(found, pvi.Synchronous(numbers, durations=numbers))) == 1


def test_a_damping_is_a_number_of_any_kind(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    shards = datasets.partition_iid(X, Y, 3)
    for rho in (1, np.int64(1), np.float32(1.0), np.float64(1.0)):
        found = server(model, shards, pvi.AnalyticUpdate())
        pvi.fit(found, pvi.Synchronous(damping=rho))
        assert_same(found.posterior, model.prior().times([model.likelihood_factor(X, Y)]), 1e-9)


def test_the_prior_is_of_the_kind_that_the_models_of_the_clients_have(rng):
    (X, Y), model = regression_data(rng), conjugate_model()
    clients = pvi.make_clients(model, [(X, Y)], pvi.AnalyticUpdate())
    for prior in (linear.BayesianLinearRegression(4).prior(), sgp.StreamingGP(*GP).prior()):
        with pytest.raises(InvalidDataError, match=r"client 'c0' has as prior .* but the prior is"):
            pvi.Server(prior, clients)


def test_any_prior_of_that_kind_will_do(rng):
    """With means in U[-0.1, 0.1], as PGVI takes them, and variances of their own."""
    (X, Y), model = regression_data(rng), conjugate_model()
    mean, precision = rng.uniform(-0.1, 0.1, 3), np.diag([1.0, 2.0, 3.0])
    prior = Normal(precision @ mean, precision)
    clients = pvi.make_clients(model, datasets.partition_iid(X, Y, 3), pvi.FixedPointUpdate())
    found = pvi.Server(prior, clients)
    pvi.fit(found, pvi.Sequential())
    assert_same(found.posterior, prior.times([model.likelihood_factor(X, Y)]), 1e-9)


def test_clients_of_a_gaussian_process_need_a_rule_for_it(rng):
    gp = sgp.StreamingGP(*GP)
    found = server(gp, [regression_data(rng)], pvi.VariationalUpdate())
    with pytest.raises(NoAnswerError, match="StreamingGP has no expected_log_likelihood"):
        pvi.fit(found)


def test_only_conjugate_models_have_analytic_updates(rng):
    (X, Y), model = labelled_data(rng), linear.logistic_regression(3)
    found = server(model, [(X, Y)], pvi.AnalyticUpdate())
    with pytest.raises(NoAnswerError, match="GeneralisedLinearModel is not conjugate"):
        pvi.fit(found)


def test_labels_outside_the_support_are_refused(rng):
    X, Y = labelled_data(rng)
    with pytest.raises(InvalidDataError, match="wanted 0 or 1"):
        pvi.make_clients(linear.probit_regression(3), [(X, 2.0 * Y - 1.0)], LBFGS)
