"""Shared points, revisits, removal, compression, budgets and federated rounds."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.conftest import ALGEBRA, THROUGH_CHOLESKY
from tests.reference import smooth_data, svgp_at_optimum

NOISE = 0.05
EXACT_SITES = sgp.LocalOptimiser(rounds=1, site_steps=100)


def kernel():
    return gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0])


def model(pseudo_points, likelihood=None, hyperparameters=None, **options):
    return sgp.StreamingGP(
        kernel(),
        likelihood or gpflow.likelihoods.Gaussian(NOISE),
        mean_function=gpflow.functions.Constant(2.0),
        pseudo_points=pseudo_points,
        hyperparameters=hyperparameters or sgp.FixedHyperparameters(),
        **options,
    )


def thirds(X, Y):
    return {f"client-{i}": (X[i::3], Y[i::3]) for i in range(3)}


def stream(fitted, shards):
    for name, data in shards.items():
        fitted.update(data, batch_id=name)
    return fitted


def evidence(fitted):
    return float(fitted.maximum_log_likelihood_objective())


def assert_same_predictions(one, other, X, tolerance):
    for a, b in zip(one.predict_f(X), other.predict_f(X), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


@pytest.fixture
def data(rng):
    return smooth_data(rng, 90)


@pytest.fixture
def new_inputs(rng):
    return rng.uniform(-2.0, 2.0, (40, 2))


# ---- shared points ----


def test_fixed_shared_points_are_sgpr_on_all_data_and_stay_so(data, new_inputs):
    shards = thirds(*data)
    streamed = stream(model(sgp.SharedPseudoPoints(12, optimise_locations=False)), shards)
    oracle = gpflow.models.SGPR(
        data, kernel(), streamed.factors["client-0"].Z,
        mean_function=gpflow.functions.Constant(2.0), noise_variance=NOISE,
    )  # fmt: skip
    nugget = streamed.factors["client-0"].rows[0].nugget
    with gpflow.config.as_context(gpflow.config.Config(jitter=nugget)):
        elbo = float(oracle.elbo())
        predicted = oracle.predict_f(new_inputs)
    for visit in range(2):
        assert evidence(streamed) == pytest.approx(elbo, rel=ALGEBRA)
        for a, b in zip(streamed.predict_f(new_inputs), predicted, strict=True):
            np.testing.assert_allclose(a, b, atol=THROUGH_CHOLESKY)
        if visit == 0:
            for name, shard in shards.items():
                streamed.revisit(name, shard)


def test_revisits_on_shared_points_climb_to_svgp_on_all_data(data, new_inputs):
    X, labels = data[0], (data[1] > 0).astype(float)
    likelihood = gpflow.likelihoods.Bernoulli()
    points = sgp.SharedPseudoPoints(12, optimise_locations=False)
    streamed = sgp.StreamingGP(
        kernel(), likelihood, pseudo_points=points,
        hyperparameters=sgp.FixedHyperparameters(), optimiser=EXACT_SITES,
    )  # fmt: skip
    shards = thirds(X, labels)
    stream(streamed, shards)
    oracle, elbo = svgp_at_optimum(
        (X, labels), kernel(), likelihood, streamed.factors["client-0"].Z
    )
    after_one_pass = evidence(streamed)
    for _ in range(2):
        for name, shard in shards.items():
            streamed.revisit(name, shard)
    assert after_one_pass < elbo - 5e-5  # one pass is not enough
    assert evidence(streamed) == pytest.approx(elbo, abs=3e-5)
    for a, b in zip(streamed.predict_f(new_inputs), oracle.predict_f(new_inputs), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_moving_shared_points_bound_the_evidence_from_below(data):
    X, Y = data
    order = np.argsort(X[:, 0])
    fitted = model(sgp.SharedPseudoPoints(25, kept_batches=2))
    free_energies = [fitted.update((X[i], Y[i])).free_energy for i in np.array_split(order, 4)]
    exact = gpflow.models.GPR(
        data, kernel(), mean_function=gpflow.functions.Constant(2.0), noise_variance=NOISE
    )
    truth = float(exact.log_marginal_likelihood())
    assert truth - 20.0 < sum(free_energies) < truth
    assert evidence(fitted) == pytest.approx(sum(free_energies), abs=THROUGH_CHOLESKY)
    assert list(fitted.factors) == ["folded", "batch-2", "batch-3"]
    assert fitted.posterior_process.num_pseudo_points == 25
    with pytest.raises(InvalidDataError, match=r"no factor 'batch-0'.*folded"):
        fitted.revisit("batch-0", data)


def test_as_many_shared_points_as_data_are_exact(rng, new_inputs):
    X, Y = smooth_data(rng, 30)
    exact = stream(model(sgp.PrivatePseudoPoints("all")), thirds(X, Y))
    shared = stream(model(sgp.SharedPseudoPoints(30)), thirds(X, Y))
    assert_same_predictions(exact, shared, new_inputs, 1e-4)
    assert evidence(shared) == pytest.approx(evidence(exact), abs=1e-3)


@pytest.mark.parametrize("likelihood", ["regression", "classification"])
@pytest.mark.parametrize(
    "hyperparameters",
    [
        sgp.VariationalHyperparameters(),
        pytest.param(sgp.PointHyperparameters(remember=True), marks=pytest.mark.slow),
    ],
    ids=["variational", "point"],
)
def test_shared_points_learn_hyperparameters(data, likelihood, hyperparameters):
    X, Y = data
    regression = likelihood == "regression"
    targets = Y if regression else (Y > 0).astype(float)
    fitted = sgp.StreamingGP(
        kernel(),
        gpflow.likelihoods.Gaussian(0.5) if regression else gpflow.likelihoods.Bernoulli(),
        pseudo_points=sgp.SharedPseudoPoints(15), hyperparameters=hyperparameters,
        optimiser=sgp.LocalOptimiser(max_iterations=24, rounds=3),
    )  # fmt: skip
    for rows in np.array_split(np.argsort(X[:, 0]), 3):
        fitted.update((X[rows], targets[rows]))
    mean = np.asarray(fitted.predict_y(X)[0])
    if regression:
        assert np.mean((mean - Y) ** 2) < 0.1 * np.var(Y)
        assert 0.002 < float(fitted.likelihood.variance.numpy()) < 0.1
    else:
        assert np.mean((mean > 0.5) == (targets > 0.5)) > 0.9


# ---- removal and compression ----


def test_removing_the_newest_batch_gives_the_model_before(data, new_inputs):
    shards = thirds(*data)
    before = model(sgp.PrivatePseudoPoints(8))
    after = model(sgp.PrivatePseudoPoints(8))
    stream(before, {name: shards[name] for name in ("client-0", "client-1")})
    stream(after, shards)
    after.remove("client-2")
    assert_same_predictions(before, after, new_inputs, 0.0)
    assert evidence(before) == evidence(after)
    with pytest.raises(InvalidDataError, match="no factor 'client-2'"):
        after.remove("client-2")


def test_removal_takes_a_batch_out_of_the_hyperparameters_too(data):
    shards = thirds(*data)
    fitted = model(
        sgp.PrivatePseudoPoints(8),
        hyperparameters=sgp.VariationalHyperparameters(),
        optimiser=sgp.LocalOptimiser(max_iterations=20),
    )
    fitted.update(shards["client-0"])
    before = fitted.hyperparameter_posterior
    fitted.update(shards["client-1"])
    fitted.remove("batch-1")
    np.testing.assert_allclose(fitted.hyperparameter_posterior.mean, before.mean, rtol=1e-6)
    np.testing.assert_allclose(fitted.hyperparameter_posterior.variance, before.variance, rtol=1e-6)


def test_compression_loses_what_it_says_and_little_where_points_abound(data, new_inputs):
    fitted = stream(model(sgp.PrivatePseudoPoints(25)), thirds(*data))
    before, kept = evidence(fitted), [np.asarray(part) for part in fitted.predict_f(new_inputs)]
    lost = fitted.compress(40)
    assert list(fitted.factors) == ["folded"]
    assert fitted.posterior_process.num_pseudo_points == 40
    assert 0.0 <= lost < 0.5
    assert evidence(fitted) == pytest.approx(before - lost, abs=THROUGH_CHOLESKY)
    for a, b in zip(fitted.predict_f(new_inputs), kept, strict=True):
        np.testing.assert_allclose(a, b, atol=0.02)
    assert fitted.compress(5) > 10.0
    assert fitted.compress(50) == 0.0


def test_a_budget_is_kept_and_the_function_not_forgotten(rng):
    fitted = model(sgp.PrivatePseudoPoints(6, budget=40))
    for _ in range(20):
        X, Y = smooth_data(rng, 30)
        fitted.update((X, Y + 2.0))
        assert fitted.posterior_process.num_pseudo_points <= 40
    X, f = smooth_data(rng, 200, noise=0.0)
    assert np.mean((fitted.predict_f(X)[0] - f - 2.0) ** 2) < 0.01
    assert next(iter(fitted.factors)) == "folded"


def test_a_budget_under_variational_hyperparameters_keeps_q(rng):
    fitted = model(
        sgp.PrivatePseudoPoints(6, budget=12),
        hyperparameters=sgp.VariationalHyperparameters(),
        optimiser=sgp.LocalOptimiser(max_iterations=10),
    )
    X, Y = smooth_data(rng, 60)
    for rows in np.array_split(np.argsort(X[:, 0]), 2):
        fitted.update((X[rows], Y[rows]))
    before = fitted.hyperparameter_posterior
    fitted.compress(6)
    np.testing.assert_allclose(fitted.hyperparameter_posterior.mean, before.mean, rtol=ALGEBRA)


@pytest.mark.parametrize("options", [{"number": 10, "budget": 15}, {"number": "all", "budget": 50}])
def test_budgets_that_cannot_hold_two_batches_are_refused(options):
    with pytest.raises(InvalidDataError, match="budget must hold at least twice"):
        sgp.PrivatePseudoPoints(**options)


# ---- federated rounds ----


FIVE = [f"site-{i}" for i in range(5)]


@pytest.fixture
def five_sites(data):
    X, Y = data
    order = np.argsort(X[:, 0])  # each site sees a slice of its own
    return {name: (X[i], Y[i]) for name, i in zip(FIVE, np.array_split(order, 5), strict=True)}


def site_model():
    return model(sgp.PrivatePseudoPoints(5, optimise_locations=False))


def on_the_same_points(five_sites):
    """A model in which every site has chosen its points, whatever order comes next."""
    fitted = site_model()
    fitted.synchronous_round(five_sites)
    return fitted


@pytest.mark.slow
def test_five_sites_agree_whatever_the_order_or_schedule(five_sites, new_inputs):
    fitted = on_the_same_points(five_sites)
    for _ in range(120):
        fitted.synchronous_round(five_sites)
    for order in (FIVE, FIVE[::-1], [FIVE[i] for i in (2, 0, 4, 1, 3)]):
        sequential = on_the_same_points(five_sites)
        for _ in range(12):
            for name in order:
                sequential.revisit(name, five_sites[name])
        assert_same_predictions(sequential, fitted, new_inputs, 1e-5)


def test_with_a_point_at_every_input_one_pass_is_the_exact_gp(data, five_sites, new_inputs):
    together = model(sgp.PrivatePseudoPoints("all"))
    together.synchronous_round(five_sites, damping=1.0)
    oracle = gpflow.models.GPR(
        data, kernel(), mean_function=gpflow.functions.Constant(2.0), noise_variance=NOISE
    )
    for a, b in zip(together.predict_f(new_inputs), oracle.predict_f(new_inputs), strict=True):
        np.testing.assert_allclose(a, b, atol=ALGEBRA)


def test_synchronous_rounds_refuse_what_they_cannot_do(five_sites):
    for refused in (
        model(sgp.SharedPseudoPoints(5)),
        model(sgp.ConditionalPseudoPoints(5)),
        model(sgp.PrivatePseudoPoints(5, budget=20)),
        model(sgp.PrivatePseudoPoints(5), hyperparameters=sgp.PointHyperparameters()),
    ):
        with pytest.raises(InvalidDataError, match="synchronous rounds need private"):
            refused.synchronous_round(five_sites)
    willing = site_model()
    with pytest.raises(InvalidDataError, match="at least one shard"):
        willing.synchronous_round({})
    X, Y = five_sites["site-0"]
    with pytest.raises(InvalidDataError, match=r"X must have shape \[N, 2\].*got \[18, 1\]"):
        willing.synchronous_round({"a": (X, Y), "b": (X[:, :1], Y)})
    assert not willing.factors


# ---- names, power EP ----


def test_names_that_are_taken_or_mean_several_batches_are_refused(data):
    fitted = model(sgp.PrivatePseudoPoints(3))
    fitted.update(data, batch_id="a")
    with pytest.raises(InvalidDataError, match="there is a factor 'a' already"):
        fitted.update(data, batch_id="a")
    fitted.compress(2)
    for refused in (
        lambda: fitted.update(data, batch_id="folded"),
        lambda: fitted.revisit("folded", data),
        lambda: fitted.remove("folded"),
    ):
        with pytest.raises(InvalidDataError, match="'folded' holds several batches"):
            refused()


def power_ep(alpha, data):
    fitted = model(sgp.PrivatePseudoPoints(9), alpha=alpha)
    return fitted.update(data).free_energy


@pytest.mark.slow
def test_power_ep_tends_to_the_variational_bound_and_fitc_lies_above(data):
    from gpflow.models import GPRFITC

    bound = power_ep(0.0, data)
    gaps = [power_ep(alpha, data) - bound for alpha in (1e-3, 1e-4)]
    assert gaps[0] / gaps[1] == pytest.approx(10.0, rel=0.1)  # linear in α
    fitted = model(sgp.PrivatePseudoPoints(9, optimise_locations=False), alpha=1.0)
    info = fitted.update(data)
    fitc = GPRFITC(
        data, kernel(), fitted.factors["batch-0"].Z,
        mean_function=gpflow.functions.Constant(2.0), noise_variance=NOISE,
    )  # fmt: skip
    with gpflow.config.as_context(gpflow.config.Config(jitter=info.nugget)):
        assert info.free_energy == pytest.approx(
            float(fitc.fitc_log_marginal_likelihood()), rel=1e-6
        )
        for a, b in zip(fitted.predict_f(data[0]), fitc.predict_f(data[0]), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_power_ep_is_for_gaussian_noise():
    with pytest.raises(InvalidDataError, match="alpha must lie in"):
        model(sgp.PrivatePseudoPoints(3), gpflow.likelihoods.Bernoulli(), alpha=0.5)
