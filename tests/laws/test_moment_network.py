"""A network through which moments are passed on: against draws, quadrature and exact limits."""

import gpflow
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf

from streaming_gp import bnn, linear, pvi
from streaming_gp.bnn.moment_network import relu_moments
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.pvi.updates import power_ep, stochastic_ep
from streaming_gp.pvi.updates.power_ep import sweep
from tests.conftest import ALGEBRA
from tests.oracles.reference import assert_same, labelled_data, server, task_of

NOISE = 0.09


def regression(rng, number=30):
    X = rng.standard_normal((number, 2))
    return X, np.sin(2.0 * X[:, :1]) + 0.3 * rng.standard_normal((number, 1))


def some_q(model, rng, variance=0.3):
    mean = rng.standard_normal(model.num_parameters)
    return MeanFieldNormal.from_mean_variance(mean, variance * rng.uniform(0.5, 1.5, len(mean)))


# ---- the forward pass ----


@pytest.mark.parametrize("r", [-6.0, -1.0, 0.0, 0.4, 3.0, 8.0])
def test_relu_moments_are_integrals(r):
    sd = 0.7
    found = relu_moments(tf.constant(r * sd, tf.float64), tf.constant(sd**2, tf.float64))

    def moment(power):
        def integrand(a):
            return (sd * (r + a)) ** power * scipy.stats.norm.pdf(a)

        return scipy.integrate.quad(integrand, -r, -r + 40.0, epsabs=0.0, epsrel=1e-12, limit=500)[
            0
        ]

    mean = moment(1)
    np.testing.assert_allclose(found[0], mean, rtol=1e-9)
    np.testing.assert_allclose(found[1], moment(2) - mean**2, rtol=1e-7)


@pytest.mark.parametrize("r", [30.0, 1e4, 1e8])
def test_a_unit_that_is_surely_active_passes_its_moments_on(r):
    found = relu_moments(tf.constant(r, tf.float64), tf.constant(1.0, tf.float64))
    np.testing.assert_allclose(found, [r, 1.0], rtol=1e-14)


@pytest.mark.parametrize("r", [-10.0, -20.0, -30.0])
def test_moments_of_a_unit_that_is_hardly_ever_active_keep_their_digits(r):
    """Of the series of Mills' ratio: sd φ(r) / r² (1 − 3/r² + 15/r⁴), and twice that over |r|."""
    found = relu_moments(tf.constant(r, tf.float64), tf.constant(1.0, tf.float64))
    density = scipy.stats.norm.pdf(r)
    mean = density / r**2 * (1.0 - 3.0 / r**2 + 15.0 / r**4 - 105.0 / r**6)
    variance = 2.0 * density / abs(r) ** 3 * (1.0 - 6.0 / r**2 + 45.0 / r**4)
    np.testing.assert_allclose(found[0], mean, rtol=1000.0 / r**8)
    np.testing.assert_allclose(found[1], variance, rtol=500.0 / r**6)


@pytest.mark.parametrize("r", [-1e8, -1e3, -30.0, 30.0, 1e3, 1e8])
def test_gradients_are_finite_however_sure_a_unit_is(r):
    given = tf.constant(r, tf.float64), tf.constant(1.0, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(given)
        total = tf.add_n(relu_moments(*given))
    by_mean, by_variance = tape.gradient(total, given)
    np.testing.assert_allclose(by_mean, float(r > 0), atol=1e-12)
    np.testing.assert_allclose(by_variance, float(r > 0), atol=1e-12)


def drawn_outputs(model, q, X, num, rng):
    """Of networks with drawn weights, by NumPy: [S, N]."""
    theta = rng.normal(q.mean, np.sqrt(q.variance), (num, model.num_parameters))
    h, start = np.broadcast_to(X, (num, *X.shape)), 0
    for m, n in zip(model.sizes[:-1], model.sizes[1:], strict=True):
        W = theta[:, start : start + (m + 1) * n].reshape(num, m + 1, n)
        h = (h if start == 0 else np.maximum(h, 0.0)) @ W[:, :-1] + W[:, -1:]
        h, start = h / np.sqrt(m + 1), start + (m + 1) * n
    return h[..., 0]


def test_with_one_hidden_layer_moments_are_those_of_drawn_networks(rng):
    """Hidden units are independent there, so that nothing is neglected."""
    model, num = bnn.MomentNetwork(2, (4,), NOISE), 200_000
    q, X = some_q(model, rng), rng.standard_normal((3, 2))
    mean, variance = (moment.numpy()[:, 0] for moment in model.predictor(q, X))
    drawn = drawn_outputs(model, q, X, num, rng)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * np.sqrt(variance.max() / num))
    centred = (drawn - drawn.mean(0)) ** 2
    np.testing.assert_array_less(np.abs(centred.mean(0) - variance), 5 * centred.std(0) / num**0.5)


def test_with_two_hidden_layers_the_mean_of_sure_networks_is_that_of_their_means(rng):
    model = bnn.MomentNetwork(2, (4, 3), NOISE)
    q, X = some_q(model, rng, 1e-12), rng.standard_normal((5, 2))
    drawn = drawn_outputs(model, q, X, 1, rng)
    np.testing.assert_allclose(model.predictor(q, X)[0][:, 0], drawn[0], atol=1e-4)


@pytest.mark.parametrize("alpha", [1.0, 0.5, 2.0])
def test_log_tilted_is_the_integral_over_the_output(rng, alpha):
    model = bnn.MomentNetwork(2, (4,), NOISE)
    q, x, y = some_q(model, rng), np.array([0.5, -1.0]), np.array([0.2])
    mean, variance = (float(moment[0, 0]) for moment in model.predictor(q, x[None]))
    f = mean + np.sqrt(variance) * np.linspace(-12.0, 12.0, 20_001)
    log_power = alpha * scipy.stats.norm.logpdf(0.2, f, np.sqrt(NOISE))
    density = scipy.stats.norm.pdf(f, mean, np.sqrt(variance)) * np.exp(log_power)
    wanted = np.log(scipy.integrate.trapezoid(density, f))
    np.testing.assert_allclose(model.log_tilted(q, x, y, alpha), wanted, rtol=1e-8)


def test_predictions_are_of_y(rng):
    model, (X, Y) = bnn.MomentNetwork(2, (4,), NOISE), regression(rng)
    q = some_q(model, rng)
    mean, variance = model.predict(q, X)
    np.testing.assert_allclose(variance, model.predictor(q, X)[1] + NOISE, rtol=ALGEBRA)
    wanted = scipy.stats.norm.logpdf(Y, mean, np.sqrt(variance))[:, 0]
    np.testing.assert_allclose(model.predict_log_density(q, (X, Y)), wanted, rtol=1e-9)
    for x, y, log_density in zip(X[:3], Y[:3], wanted[:3], strict=True):
        np.testing.assert_allclose(model.log_tilted(q, x, y, 1.0), log_density, rtol=1e-9)


# ---- learning ----


SEQUENTIAL = pvi.PowerEPUpdate(sweeps=1, damping=1.0, sequential=True)


def one_weight_at_a_time(rng, number=12):
    """Inputs that are zero but for one entry, without bias: then a mean-field q is exact."""
    X = np.eye(3)[rng.integers(0, 3, number)]
    return X, rng.standard_normal((number, 1))


@pytest.mark.parametrize(
    "update",
    [
        pytest.param(SEQUENTIAL, marks=pytest.mark.slow),
        pvi.PowerEPUpdate(0.5, 1, 1.0, sequential=True),
        pvi.AssumedDensityUpdate(),
    ],
)
def test_of_a_linear_model_with_separate_weights_one_pass_is_exact(rng, update):
    X, Y = one_weight_at_a_time(rng)
    model = linear.BayesianLinearRegression(3, NOISE, family=MeanFieldNormal)
    full = linear.BayesianLinearRegression(3, NOISE)
    wanted = full.prior().as_factor() * full.likelihood_factor(X, Y)
    found = update(task_of(model, X, Y))
    q = model.prior().times([found.factor])
    np.testing.assert_allclose(q.mean, wanted.normalised().mean, rtol=1e-9)
    np.testing.assert_allclose(q.variance, wanted.normalised().variance, rtol=1e-9)
    np.testing.assert_allclose(found.free_energy, wanted.log_integral(), rtol=1e-9)


def test_without_hidden_layers_a_datum_gives_the_posterior_of_linear_regression(rng):
    """Its marginals: the first datum's projection is exact."""
    model, (X, Y) = bnn.MomentNetwork(2, (), NOISE), regression(rng, 1)
    prior = model.prior()
    q = prior.times([SEQUENTIAL(task_of(model, X, Y)).factor])
    row = np.append(X[0], 1.0) / np.sqrt(3.0)
    covariance = np.eye(3) - np.outer(row, row) / (row @ row + NOISE)
    mean = prior.mean + covariance @ row * (Y[0, 0] - row @ prior.mean) / NOISE
    np.testing.assert_allclose(q.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(q.variance, np.diag(covariance), rtol=1e-9)


def by_hand(model, task, rows, passes, keeps):
    """EP, SEP and ADF of one datum after another: nothing but single moment matches.

    :param keeps: "all" sites, "one" or "none".
    """
    X, Y = task.data
    N = task.num_data
    q = task.posterior.as_factor()
    unit = q**0.0
    sites = dict.fromkeys(range(N), unit)
    shared = unit
    for row in rows.reshape(-1)[: passes * N]:
        old = {"all": sites[row], "one": shared, "none": unit}[keeps]
        cavity = (q / old).normalised()
        new = cavity.moment_match(lambda p, n=row: model.log_tilted(p, X[n], Y[n], 1.0))
        q = q / old * new
        if keeps == "one":
            fresh = shared ** (1.0 - 1.0 / N) * new ** (1.0 / N)
            q = task.posterior.as_factor() * fresh**N
            shared = fresh
        sites[row] = new
    return q


def updates(number, passes):
    return {
        "all": pvi.PowerEPUpdate(sweeps=passes, damping=1.0, sequential=True),
        "one": pvi.StochasticEPUpdate(steps=passes * number, damping=1.0 / number, batch_size=1),
        "none": pvi.AssumedDensityUpdate(passes),
    }


@pytest.fixture(scope="module")
def small_network():
    """One model, whose loops are compiled once for each size of data."""
    return bnn.MomentNetwork(2, (3,), NOISE)


@pytest.mark.parametrize("keeps", ["all", "one", "none"])
def test_the_compiled_loop_is_one_moment_match_after_another(rng, small_network, keeps):
    model, (X, Y), passes = small_network, regression(rng, 4), 2
    task = task_of(model, X, Y)
    rows = np.stack(
        [next_rows for next_rows, _ in zip(task.minibatches(1), range(8), strict=False)]
    )
    if keeps == "all":
        rows = np.tile(rows[:4], (passes, 1))  # EP keeps to one order
    wanted = by_hand(model, task, rows, passes, keeps)
    found = task.posterior.as_factor() * updates(4, passes)[keeps](task).factor
    assert_same(found, wanted, 1e-9)


def test_sequential_and_parallel_sweeps_end_at_the_same_sites(rng):
    (X, Y), model = labelled_data(rng), linear.probit_regression(3)
    task = task_of(model, X, Y)
    parallel = pvi.PowerEPUpdate(sweeps=60, damping=0.7)(task)
    sequential = pvi.PowerEPUpdate(sweeps=30, damping=1.0, sequential=True)(task)
    assert_same(sequential.factor, parallel.factor, 1e-8)
    np.testing.assert_allclose(sequential.free_energy, parallel.free_energy, rtol=1e-9)


def test_stochastic_ep_keeps_one_site_where_ep_keeps_one_for_each_datum(
    rng, small_network, monkeypatch
):
    """Counted in the arrays that a sweep is given and gives back."""
    kept = []

    def counting(step, task, factor, rows, sites=None):
        found = sweep(step, task, factor, rows, sites)
        kept.append([0 if one is None else size_of(one) for one in (found[0], found[1])])
        return found

    model, (X, Y) = small_network, regression(rng, 4)
    for module in (power_ep, stochastic_ep):
        monkeypatch.setattr(module, "sweep", counting)
    for keeps, passes in (("one", 2), ("all", 1)):  # power EP sweeps in each pass anew
        updates(4, passes)[keeps](task_of(model, X, Y))
    (shared, none), (_, sites) = kept
    assert shared == 2 * 8 * model.num_parameters
    assert none == 0
    assert sites == 4 * shared


def size_of(factor):
    return sum(np.asarray(eta).nbytes for eta in factor.natural)


@pytest.mark.slow
def test_of_one_datum_stochastic_ep_is_ep(rng):
    model, (X, Y) = bnn.MomentNetwork(2, (3,), NOISE), regression(rng, 1)
    task = task_of(model, X, Y)
    ep, sep = (updates(1, 3)[keeps](task).factor for keeps in ("all", "one"))
    assert_same(sep, ep, ALGEBRA)


@pytest.mark.slow
def test_the_first_pass_of_ep_is_assumed_density_filtering(rng):
    model, (X, Y) = bnn.MomentNetwork(2, (3,), NOISE), regression(rng)
    task = task_of(model, X, Y)
    assert_same(pvi.AssumedDensityUpdate()(task).factor, SEQUENTIAL(task).factor, 1e-9)


@pytest.mark.slow
def test_a_second_pass_of_assumed_density_filtering_counts_data_twice(rng):
    """Of one weight and conjugate data that is a factor's square."""
    X, Y = one_weight_at_a_time(rng)
    model = linear.BayesianLinearRegression(3, NOISE, family=MeanFieldNormal)
    task = task_of(model, X, Y)
    once, twice = (pvi.AssumedDensityUpdate(passes)(task).factor for passes in (1, 2))
    assert_same(twice, once**2.0, 1e-9)


@pytest.mark.parametrize(
    "keeps", ["all", *(pytest.param(name, marks=pytest.mark.slow) for name in ("one", "none"))]
)
def test_a_network_learns_a_curve(rng, keeps):
    model, (X, Y) = bnn.MomentNetwork(2, (20,), NOISE), regression(rng, 200)
    clients = pvi.make_clients(model, [(X, Y)], updates(200, 10)[keeps])
    found = pvi.Server(model.prior(), clients)
    history = pvi.fit(found, pvi.Sequential(), 1)
    assert not history[-1].failed
    assert not history[-1].refused
    X_test, Y_test = regression(rng, 300)
    error = np.mean((model.predict(found.posterior, X_test)[0] - Y_test) ** 2)
    assert error < 2.0 * NOISE < 0.4 * Y_test.var()


def test_other_rules_take_the_network_as_well(rng):
    model, (X, Y) = bnn.MomentNetwork(2, (5,), NOISE), regression(rng, 50)
    update = pvi.VariationalUpdate(epochs=30, batch_size=None, learning_rate=0.05)
    found = server(model, [(X, Y)], update)
    before = float(model.expected_log_likelihood(found.posterior, X, Y, None))
    pvi.fit(found, pvi.Sequential(), 1)
    assert float(model.expected_log_likelihood(found.posterior, X, Y, None)) > before


# ---- what may go wrong ----

PLAIN = bnn.MomentNetwork(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bnn.MomentNetwork(0), "num_inputs must be positive, got 0"),
        (lambda: bnn.MomentNetwork(2, (3, 0)), "each size of hidden must be positive, got 0"),
        (lambda: bnn.MomentNetwork(2, ("3",)), "hidden must be a positive integer, got '3'"),
        (lambda: bnn.MomentNetwork(2, noise_variance=0.0), "noise_variance"),
        (lambda: bnn.MomentNetwork(2, prior_variance=-1.0), "prior_variance must be positive"),
        (lambda: bnn.MomentNetwork(2).as_data(np.ones((3, 1)), np.ones((3, 1))), r"shape \[N, 2\]"),
        (lambda: PLAIN.predict(PLAIN.prior(), np.ones((3, 1))), r"shape \[N, 2\]"),
        (lambda: pvi.AssumedDensityUpdate(0), "passes must be positive, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(InvalidDataError, match=message):
        make()


def test_a_network_without_a_tilted_distribution_is_named():
    net = bnn.MeanFieldBNN([2, 3, 1], gpflow.likelihoods.Gaussian())
    q = net.prior()
    task = pvi.LocalTask(net, (np.ones((2, 2)), np.ones((2, 1))), q, None, q, seed=0)
    with pytest.raises(InvalidDataError, match="MeanFieldBNN has no log_tilted"):
        pvi.AssumedDensityUpdate()(task)
