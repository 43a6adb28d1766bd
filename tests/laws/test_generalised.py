"""Divergences and losses: closed forms against quadrature, limits from both sides."""

import gpflow
import gpflow.likelihoods as gl
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp import bnn, datasets, expfam, linear, losses, pvi
from streaming_gp.errors import ImproperError, InvalidDataError, NoAnswerError
from streaming_gp.expfam import MeanFieldNormal, Normal
from streaming_gp.expfam.divergences import require_domain, require_gradient
from tests.laws import slow
from tests.oracles.reference import random_member as member
from tests.tolerances import ALGEBRA, STANDARD_ERRORS, THROUGH_CHOLESKY

QUADRATURE = 1e-8
LIMIT = 1e-6
GRID = np.linspace(-15.0, 15.0, 200_001)


def univariate(mean, variance):
    return MeanFieldNormal.from_mean_variance(np.array([mean]), np.array([variance]))


Q, P = univariate(0.3, 0.5), univariate(-0.2, 1.5)


def density(q):
    return scipy.stats.norm(q.mean[0], np.sqrt(q.variance[0])).pdf(GRID)


def integral(values):
    return scipy.integrate.simpson(values, x=GRID)


@pytest.mark.parametrize("alpha", [-0.2, 0.3, 0.75, 1.2])
def test_renyi_is_its_integral(alpha):
    expected = np.log(integral(density(Q) ** alpha * density(P) ** (1 - alpha)))
    found = expfam.Renyi(alpha)(Q, P.as_factor())
    np.testing.assert_allclose(found, expected / (alpha * (alpha - 1)), rtol=QUADRATURE)


@pytest.mark.parametrize("beta", [1.2, 2.0])
def test_beta_and_gamma_divergences_are_their_integrals(beta):
    q, p = density(Q), density(P)
    own, other, both = (integral(part) for part in (q**beta, p**beta, q * p ** (beta - 1)))
    expected = own / (beta * (beta - 1)) + other / beta - both / (beta - 1)
    np.testing.assert_allclose(
        expfam.BetaDivergence(beta)(Q, P.as_factor()), expected, rtol=QUADRATURE
    )
    expected = np.log(own) / (beta * (beta - 1)) + np.log(other) / beta
    expected -= np.log(both) / (beta - 1)
    found = expfam.GammaDivergence(beta)(Q, P.as_factor())
    np.testing.assert_allclose(found, expected, rtol=QUADRATURE)


@pytest.mark.parametrize("mean", [0.3, 2.0])
@pytest.mark.parametrize("variance", [0.1, 0.5, 0.5 + 1e-9, 1.5])
def test_fisher_and_total_variation_are_their_integrals(mean, variance):
    other = univariate(mean, variance)
    q, p = density(Q), density(other)
    apart = (GRID - mean) / variance - (GRID - Q.mean[0]) / Q.variance[0]
    found = expfam.Fisher()(Q, other.as_factor())
    np.testing.assert_allclose(found, integral(q * apart**2), rtol=QUADRATURE, atol=1e-15)
    found = expfam.TotalVariation()(Q, other.as_factor())
    np.testing.assert_allclose(found, 0.5 * integral(np.abs(q - p)), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("family", expfam.GAUSSIANS)
def test_fisher_is_an_average_of_squared_slopes(family):
    q, p = member(family, 3), member(family, 4)
    x = tf.constant(q.sample(100_000, seed=1))
    with tf.GradientTape() as tape:
        tape.watch(x)
        ratio = q.log_prob(x) - p.log_prob(x)
    squares = tf.reduce_sum(tf.square(tape.gradient(ratio, x)), axis=1).numpy()
    error = squares.std() / np.sqrt(len(squares))
    for weight in (1.0, 0.5):  # Fisher and Hyvärinen
        found = float(expfam.Fisher(weight)(q, p.as_factor()))
        assert abs(found - weight * squares.mean()) < STANDARD_ERRORS * weight * error


def test_total_variation_has_the_gradient_of_its_integral():
    def value(numbers):
        return expfam.TotalVariation()(MeanFieldNormal.from_unconstrained(numbers), P.as_factor())

    start = tf.constant([[0.3], [-0.4]], tf.float64)
    start = tf.reshape(start, MeanFieldNormal.unconstrained_shape(1))
    with tf.GradientTape() as tape:
        tape.watch(start)
        at = value(start)
    gradient = np.ravel(tape.gradient(at, start))
    for place, one in enumerate(1e-5 * np.eye(2)):
        step = one.reshape(start.shape)
        slope = float(value(start + step) - value(start - step)) / 2e-5
        np.testing.assert_allclose(gradient[place], slope, rtol=1e-6)
    with pytest.raises(InvalidDataError, match="univariate"):
        expfam.TotalVariation()(member(Normal, 1), member(Normal, 2).as_factor())


OF_MATRICES = {expfam.NormalWishart, expfam.DirichletNormalWishart}
IN_EVERY_FAMILY = pytest.mark.parametrize(
    "family", [slow(one) if one in OF_MATRICES else one for one in expfam.FAMILIES]
)


@IN_EVERY_FAMILY
def test_divergences_are_averages_over_draws(family):
    q = member(family, 3)
    near = (
        q.as_factor() ** 0.8 * member(family, 4).as_factor() ** 0.2
    )  # or weights have no variance
    p = near.normalised()
    x = q.sample(200_000, seed=1)
    ratio = (q.log_prob(x) - p.log_prob(x)).numpy()

    def agree(found, values):
        error = values.std() / np.sqrt(len(values))
        assert abs(float(found) - values.mean()) < STANDARD_ERRORS * error

    agree(expfam.KL()(q, p.as_factor()), ratio)
    agree(tf.exp(-0.25 * expfam.Renyi(0.5)(q, p.as_factor())), np.exp(-0.5 * ratio))
    agree(expfam.ReverseKL()(p, q.as_factor()), ratio)


@IN_EVERY_FAMILY
def test_renyi_tends_to_both_kl_from_both_sides(family):
    q, p = member(family, 1), member(family, 2)
    kl, reverse = q.kl_divergence(p), p.kl_divergence(q)
    for step in (-1e-7, -1e-9, 0.0, 1e-9, 1e-7):
        np.testing.assert_allclose(expfam.Renyi(1.0 + step)(q, p.as_factor()), kl, rtol=LIMIT)
        np.testing.assert_allclose(expfam.Renyi(step)(q, p.as_factor()), reverse, rtol=LIMIT)
    values = [float(expfam.Renyi(a)(q, p.as_factor())) for a in np.linspace(0.999, 1.001, 21)]
    assert np.abs(np.diff(values, 2)).max() < LIMIT  # no jump where the formula changes


@pytest.mark.parametrize("limit", [0.0, 1.0])
def test_renyi_goes_on_through_its_limits_with_one_slope(limit):
    q, p = member(expfam.MeanFieldNormal, 1), member(expfam.MeanFieldNormal, 2).as_factor()

    def slope(step):
        high, low = (float(expfam.Renyi(limit + one)(q, p)) for one in (step, -step))
        return (high - low) / (2.0 * step)

    assert slope(1e-2) != pytest.approx(0.0, abs=1e-3)
    np.testing.assert_allclose(slope(5e-5), slope(1e-2), rtol=1e-2)


@pytest.mark.parametrize("family", expfam.GAUSSIANS)
@pytest.mark.parametrize(
    "divergence",
    [expfam.Renyi(0.5), expfam.Renyi(1.1), expfam.BetaDivergence(1.2), expfam.GammaDivergence(1.2)],
)
def test_divergences_keep_their_digits_far_from_the_origin(family, divergence):
    """No divergence depends on where the origin is; nor does its gradient by a width."""

    def at(place):
        means = np.array([0.01, -0.02]) + place, np.array([0.0, 0.005]) + place
        q, p = map(family.from_mean_scale, means, (0.01 * np.eye(2), 0.02 * np.eye(2)))
        _, _, by_width = q.by_moments(lambda q: divergence(q, p.as_factor()))
        return float(divergence(q, p.as_factor())), by_width

    for found, wanted in zip(at(1e6), at(0.0), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("beta", [1.0 + 1e-5, 1.0 + 1e-6])
def test_beta_and_gamma_divergences_tend_to_kl(beta):
    kl = Q.kl_divergence(P)
    slack = 5.0 * (beta - 1.0) + 1e-6
    for divergence in (expfam.BetaDivergence(beta), expfam.GammaDivergence(beta)):
        # β divergence: ∫q^β/(β(β−1)) ... carries 1/β at its minimum
        value = divergence(Q, P.as_factor()) - divergence(Q, Q.as_factor())
        np.testing.assert_allclose(value, kl, atol=slack)


def test_fisher_rao_is_a_distance_that_grows_with_the_shift():
    distance = expfam.FisherRao()
    np.testing.assert_allclose(distance(Q, Q.as_factor()), 0.0, atol=1e-7)
    np.testing.assert_allclose(distance(Q, P.as_factor()), distance(P, Q.as_factor()))
    # between equal means: √2 |log(σ₁/σ₂)|
    wide = univariate(0.0, 4.0)
    found = distance(univariate(0.0, 1.0), wide.as_factor())
    np.testing.assert_allclose(found, np.sqrt(2.0) * np.log(2.0))
    # infinitesimally ds² = dμ²/σ² + 2 dσ²/σ²
    np.testing.assert_allclose(
        distance(univariate(1e-4, 1.0), univariate(0.0, 1.0).as_factor()), 1e-4, rtol=1e-4
    )
    with pytest.raises(InvalidDataError, match="univariate"):
        distance(member(Normal, 1), member(Normal, 2).as_factor())


@pytest.mark.parametrize("apart", [3.0, 5e3])
def test_total_variation_of_equal_widths_however_far_apart(apart):
    found = expfam.TotalVariation()(univariate(0.0, 1.0), univariate(apart, 1.0).as_factor())
    np.testing.assert_allclose(found, 2.0 * scipy.stats.norm.cdf(0.5 * apart) - 1.0)


@pytest.mark.parametrize(
    ("divergence", "optimiser"),
    [
        (expfam.FisherRao(), pvi.Adam(0.1)),
        (expfam.TotalVariation(), pvi.LBFGS()),
        slow(expfam.FisherRao(), pvi.LBFGS()),
        slow(expfam.TotalVariation(), pvi.Adam(0.1)),
    ],
)
def test_a_fit_may_begin_where_a_distance_has_its_kink(divergence, optimiser):
    """At the cavity, where every first visit begins."""
    model = linear.BayesianLinearRegression(1)
    update = pvi.VariationalUpdate(
        batch_size=None, epochs=20, optimiser=optimiser, divergence=divergence
    )
    shards = {"c0": (np.ones((8, 1)), np.full((8, 1), 2.0))}
    found = pvi.run(model, shards, rounds=1, update=update).posterior
    assert found.mean[0] > 0.5


def test_a_fit_that_has_no_slope_where_it_begins_is_refused():
    def rooted(q, cavity):
        return tf.sqrt(tf.reduce_sum(tf.square(q.mean - cavity.family(*cavity.natural).mean)))

    update = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS(), divergence=rooted)
    shards = {"c0": (np.ones((8, 1)), np.full((8, 1), 2.0))}
    with pytest.raises(NoAnswerError, match="gradient is not finite where the fit starts"):
        pvi.run(linear.BayesianLinearRegression(1), shards, rounds=1, update=update)


def test_which_divergences_are_defined_under_an_improper_cavity():
    """Of Rényi's only the gradient, where ``α η_q + (1 − α) η_cavity`` is proper."""
    q = univariate(0.0, 1.0)
    proper, improper = P.as_factor(), q.as_factor() ** -0.25
    for needs in (
        expfam.ReverseKL(),
        expfam.BetaDivergence(2.0),
        expfam.FisherRao(),
        expfam.TotalVariation(),
    ):
        for require in (require_domain, require_gradient):
            require(needs, q, proper)
            with pytest.raises(ImproperError, match="needs a cavity that is a distribution"):
                require(needs, q, improper)
    for require in (require_domain, require_gradient):
        require(expfam.KL(0.5), q, improper)
        require(expfam.Fisher(), q, improper)
        require(expfam.Renyi(0.1), q, proper)
    require_gradient(expfam.Renyi(0.5), q, improper)
    with pytest.raises(ImproperError, match="needs a cavity that is a distribution"):
        require_domain(expfam.Renyi(0.5), q, improper)
    with pytest.raises(ImproperError, match="mixture"):
        require_gradient(expfam.Renyi(0.1), q, improper)


# ---- losses ----

LIKELIHOODS = {
    "Gaussian": (gpflow.likelihoods.Gaussian(0.4), [[0.3], [-2.0]], [[0.1], [1.0]]),
    "Bernoulli": (gpflow.likelihoods.Bernoulli(), [[0.3], [-2.0]], [[1.0], [0.0]]),
    "Softmax": (gpflow.likelihoods.Softmax(3), [[0.3, -1.0, 0.2], [2.0, 0.0, 1.0]], [[2.0], [1.0]]),
}


def rows(name):
    likelihood, F, Y = LIKELIHOODS[name]
    return likelihood, tf.constant(F, tf.float64), tf.constant(Y, tf.float64)


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("make", [losses.BetaLoss, losses.GammaLoss])
def test_robust_losses_tend_to_the_log_likelihood_from_both_sides(name, make):
    likelihood, F, Y = rows(name)
    wanted = losses.NegativeLogLikelihood()(likelihood, F, Y)
    for step in (-1e-7, -1e-8, 0.0, 1e-8, 1e-7):
        np.testing.assert_allclose(
            make(1.0 + step)(likelihood, F, Y), wanted, rtol=LIMIT, atol=LIMIT
        )
    np.testing.assert_allclose(
        losses.GeneralisedCrossEntropy(0.0)(likelihood, F, Y), wanted, atol=LIMIT
    )


def test_losses_outside_their_domain_are_refused():
    zero = tf.zeros([1, 1], tf.float64)
    with pytest.raises(InvalidDataError):
        losses.BetaLoss(1.5)(gpflow.likelihoods.Poisson(), zero, zero)


# ---- in the local free energy ----


def labelled(rng, number=60):
    X = rng.standard_normal((number, 2))
    probability = 1.0 / (1.0 + np.exp(-2.0 * X[:, :1]))
    return X, (rng.uniform(size=(number, 1)) < probability).astype(float)


def fitted(model, data, rounds=6, **settings):
    update = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS(), **settings)
    return reached(update, model, data, rounds)


def reached(update, model, data, rounds):
    """Where rounds of two clients, one after another, end."""
    clients = pvi.make_clients(model, datasets.partition_iid(*data, 2), update)
    server = pvi.Server(model.prior(), clients)
    history = pvi.fit(server, pvi.Sequential(), rounds)
    assert not history[-1].failed, history[-1].failed
    return server.posterior


@pytest.mark.slow
@pytest.mark.parametrize("family", expfam.GAUSSIANS)
@pytest.mark.parametrize(
    "settings",
    [
        {"divergence": expfam.Renyi(1.0 - 1e-8)},
        {"divergence": expfam.Renyi(1.0 + 1e-8)},
        {"loss": losses.BetaLoss(1.0 - 1e-8)},
        {"loss": losses.BetaLoss(1.0 + 1e-8)},
        {"loss": losses.GammaLoss(1.0 - 1e-8)},
        {"loss": losses.GammaLoss(1.0 + 1e-8)},
    ],
)
def test_generalised_pvi_tends_to_pvi(rng, family, settings):
    model = linear.logistic_regression(2, family=family)
    data = labelled(rng)
    plain = fitted(model, data, loss=losses.NegativeLogLikelihood())
    found = fitted(model, data, **({"loss": losses.NegativeLogLikelihood()} | settings))
    for a, b in zip(plain.natural, found.natural, strict=True):
        np.testing.assert_allclose(a, b, rtol=LIMIT, atol=LIMIT)


OTHER_DIVERGENCES_AND_LOSSES = [
    {"divergence": expfam.Renyi(0.5)},
    {"divergence": expfam.Renyi(2.5)},
    {"divergence": expfam.ReverseKL()},
    {"divergence": expfam.KL(0.5)},
    {"divergence": expfam.Fisher(0.5)},
    {"loss": losses.GeneralisedCrossEntropy(0.3)},
    {"loss": losses.BetaLoss(1.3), "divergence": expfam.Renyi(1.5)},
]


QUICK_OF_THEM = [(k, MeanFieldNormal) for k in (0, 2, 3, 6)] + [(4, Normal)]


@pytest.mark.parametrize(
    ("settings", "family"),
    [
        (settings, family) if (k, family) in QUICK_OF_THEM else slow(settings, family)
        for k, settings in enumerate(OTHER_DIVERGENCES_AND_LOSSES)
        for family in expfam.GAUSSIANS
    ],
)
def test_natural_gradients_rest_where_the_generalised_local_free_energy_is_stationary(
    rng, family, settings
):
    model, data = linear.logistic_regression(2, family=family), labelled(rng)
    update = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS(), **settings)
    server = pvi.Server(model.prior(), pvi.make_clients(model, [data], update))
    pvi.fit(server, pvi.Sequential())
    ask = server.ask("c0")
    task = pvi.LocalTask(model, data, ask.posterior, ask.own, ask.posterior, seed=0)
    found = pvi.FixedPointUpdate(**settings)(task).factor
    for a, b in zip(ask.own.natural, found.natural, strict=True):
        np.testing.assert_allclose(a, b, rtol=LIMIT, atol=5 * LIMIT)


@pytest.mark.parametrize("family", expfam.GAUSSIANS)
def test_natural_gradients_of_other_divergences_tend_to_those_of_kl(rng, family):
    model, data = linear.logistic_regression(2, family=family), labelled(rng)
    server = pvi.Server(model.prior(), pvi.make_clients(model, [data], pvi.FixedPointUpdate()))
    pvi.fit(server, rounds=2)
    ask = server.ask("c0")
    task = pvi.LocalTask(model, data, ask.posterior, ask.own, ask.posterior, seed=0)
    plain = pvi.FixedPointUpdate()(task).factor
    for divergence in (expfam.Renyi(1.0 + 1e-7), expfam.Renyi(1.0), expfam.KL(1.0 + 1e-9)):
        found = pvi.FixedPointUpdate(divergence=divergence)(task).factor
        for a, b in zip(plain.natural, found.natural, strict=True):
            np.testing.assert_allclose(a, b, rtol=LIMIT, atol=LIMIT)


def test_renyi_has_a_gradient_under_an_improper_cavity(rng):
    """Where the mixture is proper: the cavity's normaliser is a constant."""
    model, data = linear.logistic_regression(2, family=MeanFieldNormal), labelled(rng)
    q = MeanFieldNormal(np.zeros(2), np.ones(2))
    own = expfam.Factor(MeanFieldNormal, (np.zeros(2), np.array([1.5, 0.5])))
    task = pvi.LocalTask(model, data, q, own, q, seed=0)
    with pytest.raises(ImproperError, match="mixture"):
        pvi.FixedPointUpdate(divergence=expfam.Renyi(0.1))(task)
    likelihood = pvi.FixedPointUpdate()(task).factor
    found = pvi.FixedPointUpdate(divergence=expfam.Renyi(0.5))(task).factor
    # of D by the variance, with equal means: (1 / (1 − α)) (1/(2v) − 1/(2v²(1/v − (1 − α)t)))
    slope = -(1.0 - 1.0 / (1.0 - 0.5 * own.natural[1])) / 0.5
    wanted = likelihood.natural[1] + own.natural[1] - slope
    np.testing.assert_allclose(found.natural[1], wanted, rtol=THROUGH_CHOLESKY)


def test_quadrature_of_the_loss_agrees_with_the_expected_log_likelihood(rng):
    X, Y = labelled(rng)
    model = linear.logistic_regression(2)
    q = member(Normal, 3)
    q = Normal(q.precision_mean[:2], q.precision[:2, :2])
    loss = model.expected_loss(q, X, Y, None, losses.NegativeLogLikelihood())
    expected = model.expected_log_likelihood(q, X, Y, None)
    np.testing.assert_allclose(-loss, expected, rtol=THROUGH_CHOLESKY)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "apart"), [(1.0, 0.0), (0.5, 0.02)])
def test_only_under_kl_does_the_fixed_point_forget_the_partition(rng, alpha, apart):
    model, data = linear.logistic_regression(2), labelled(rng)
    update = pvi.VariationalUpdate(
        batch_size=None, optimiser=pvi.LBFGS(), divergence=expfam.Renyi(alpha)
    )
    together = pvi.Server(model.prior(), pvi.make_clients(model, [data], update))
    pvi.fit(together, pvi.Sequential(), 1)
    cold, warm = (
        pvi.Server(model.prior(), pvi.make_clients(model, datasets.partition_iid(*data, 2), update))
        for _ in range(2)
    )
    warm.warm_start(together.posterior)
    for server in (cold, warm):
        pvi.fit(server, pvi.Sequential(), 5)
    np.testing.assert_allclose(cold.posterior.mean, warm.posterior.mean, rtol=10 * LIMIT)
    distance = np.abs(cold.posterior.mean / together.posterior.mean - 1.0).max()
    assert (distance > apart) if apart else (distance < 10 * LIMIT)


def test_a_smaller_alpha_gives_a_wider_posterior(rng):
    model, data = linear.logistic_regression(2), labelled(rng)
    wide = fitted(model, data, rounds=1, divergence=expfam.Renyi(0.5))
    narrow = reached(pvi.FixedPointUpdate(steps=20, damping=0.5), model, data, 1)
    assert np.linalg.slogdet(wide.covariance)[1] > np.linalg.slogdet(narrow.covariance)[1]


@pytest.mark.slow
def test_loss_and_divergence_are_exchanged_apart(rng):
    """PGVI, theorem 19: the loss says whether outliers are followed, whatever the divergence; and
    the divergence how wide q is and what a prior that is wrong costs.
    """
    X = np.ones((50, 1))
    Y = 0.5 * rng.standard_normal((50, 1))
    spoiled = np.where(np.arange(50)[:, None] < 3, 14.0, Y)
    model = linear.BayesianLinearRegression(1, 0.25)
    found = {
        (name, weight): [
            fitted(model, (X, y), rounds=1, loss=loss, divergence=expfam.KL(weight))
            for y in (Y, spoiled)
        ]
        for name, loss in (("nll", None), ("beta", losses.BetaLoss(1.5)))
        for weight in (1.0, 0.25)
    }
    for (name, _), (clean, followed) in found.items():
        shift = abs(clean.mean[0] - followed.mean[0])
        assert shift > 0.5 if name == "nll" else shift < 0.05
    for name in ("nll", "beta"):
        assert found[name, 0.25][0].variance[0] < found[name, 1.0][0].variance[0]
    sure, away = linear.BayesianLinearRegression(1, 0.25, 0.01), Y + 3.0
    trusted, doubted = (
        fitted(sure, (X, away), rounds=1, divergence=expfam.KL(weight)).mean[0]
        for weight in (1.0, 0.25)
    )
    assert away.mean() - doubted < 0.5 * (away.mean() - trusted)


def test_the_network_averages_losses_over_draws(rng):
    """The scale must not depend on the number of draws."""
    net = bnn.MeanFieldBNN([2, 4, 3], gpflow.likelihoods.Softmax(3), num_samples=30)
    q = net.initial(1)
    X, Y = net.as_data(rng.standard_normal((20, 2)), rng.integers(0, 3, (20, 1)))
    many = bnn.MeanFieldBNN([2, 4, 3], gpflow.likelihoods.Softmax(3), num_samples=1000)
    for loss in (losses.BetaLoss(1.3), losses.GeneralisedCrossEntropy(0.7)):
        draws = [net.expected_loss(q, X, Y, tf.constant([s, 0]), loss).numpy() for s in range(10)]
        wanted = many.expected_loss(q, X, Y, tf.constant([9, 9]), loss).numpy()
        error = np.std(draws) / np.sqrt(len(draws)) + 1e-3
        assert abs(np.mean(draws) - wanted) < STANDARD_ERRORS * error


def test_divergences_outside_their_domain_are_refused(rng):
    X, Y = labelled(rng)
    model = linear.logistic_regression(2)
    q = Normal(np.zeros(2), np.eye(2))
    data = model.as_data(X, Y)
    improper = expfam.Factor(Normal, (np.zeros(2), 2.0 * np.eye(2)))
    for divergence, own, start, message in (
        (expfam.ReverseKL(), improper, q, "needs a cavity that is a distribution.*warm_start"),
        (expfam.Renyi(3.0), None, Normal(np.zeros(2), 0.1 * np.eye(2)), "must be proper"),
    ):
        task = pvi.LocalTask(model, data, q, own, start, seed=0)
        with pytest.raises(ImproperError, match=message):
            pvi.VariationalUpdate(batch_size=None, divergence=divergence)(task)


def test_models_without_losses_take_none_but_their_own():
    class Plain:
        def expected_log_likelihood(self, q, X, Y, seed):
            return tf.zeros([], tf.float64)

    q = univariate(0.0, 1.0)
    task = pvi.LocalTask(Plain(), (np.zeros((2, 1)), np.zeros((2, 1))), q, None, q, seed=0)
    with pytest.raises(InvalidDataError, match="no expected_loss"):
        pvi.VariationalUpdate(loss=losses.BetaLoss(1.5))(task)


# ---- the logarithmic opinion pool ----


def test_an_opinion_pool_multiplies_the_clients_own_fits(rng):
    """``q ← Π q_k^ρ_k`` with weights that sum to one (PGVI, section 3.2.4)."""
    model = linear.logistic_regression(2)
    shards = datasets.partition_iid(*labelled(rng), 3)
    rule = pvi.FixedPointUpdate(steps=2, damping=0.5)
    weights = {"c0": 1.0, "c1": 2.0, "c2": 5.0}
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule))
    for _ in range(2):
        product = [np.zeros(2), np.zeros((2, 2))]
        for name in server.clients:
            alone = pvi.Server(model.prior(), server.clients)
            alone.adopt(server.ledger)
            pvi.fit(alone, pvi.Sequential(order=[name]))
            for total, eta in zip(product, alone.posterior.natural, strict=True):
                total += weights[name] / 8.0 * eta
        pvi.fit(server, pvi.Synchronous(damping=pvi.OpinionPool(weights)))
        for total, eta in zip(product, server.posterior.natural, strict=True):
            np.testing.assert_allclose(eta, total, rtol=1e-6)


def test_an_opinion_pool_of_equal_weights_is_the_default_damping(rng):
    model = linear.logistic_regression(2)
    shards = datasets.partition_iid(*labelled(rng), 3)
    servers = []
    for damping in (None, pvi.OpinionPool()):
        clients = pvi.make_clients(model, shards, pvi.FixedPointUpdate())
        servers.append(pvi.Server(model.prior(), clients))
        pvi.fit(servers[-1], pvi.Synchronous(damping=damping), 3)
    for a, b in zip(*(one.posterior.natural for one in servers), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(InvalidDataError, match="no weight for client 'c1'"):
        pvi.fit(servers[-1], pvi.Synchronous(damping=pvi.OpinionPool({"c0": 1.0})))


# ---- Gaussian processes ----


def streamed(likelihood, X, Y, optimise_locations=True, optimiser=None):
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(),
        likelihood,
        pseudo_points=sgp.PrivatePseudoPoints(12, optimise_locations),
        hyperparameters=sgp.FixedHyperparameters(),
        optimiser=optimiser,
    )
    for rows in (slice(0, None, 2), slice(1, None, 2)):
        info = model.update((X[rows], Y[rows]))
    return model, info


def sine(rng):
    X = np.linspace(0.0, 6.0, 60)[:, None]
    f = np.sin(1.5 * X)
    return X, f, f + 0.1 * rng.standard_normal(X.shape)


@pytest.mark.slow
@pytest.mark.parametrize("make", [gpflow.likelihoods.Gaussian, gpflow.likelihoods.Bernoulli])
@pytest.mark.parametrize(
    "loss", [losses.NegativeLogLikelihood(), losses.BetaLoss(1 + 1e-9), losses.GammaLoss(1 - 1e-9)]
)
def test_a_gp_under_a_loss_tends_to_that_under_the_likelihood(rng, make, loss):
    X = rng.uniform(0.0, 6.0, (60, 1))  # on a grid rounding would choose among points
    Y = np.sin(1.5 * X) + 0.1 * rng.standard_normal(X.shape)
    Y = (Y > 0.0).astype(float) if make is gpflow.likelihoods.Bernoulli else Y
    to_the_end = False, sgp.LocalOptimiser(rounds=1, site_steps=200)
    found, _ = streamed(losses.GeneralisedLikelihood(make(), loss), X, Y, *to_the_end)
    wanted, _ = streamed(make(), X, Y, *to_the_end)
    for a, b in zip(found.predict_f(X), wanted.predict_f(X), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    np.testing.assert_allclose(
        found.predict_log_density((X, Y)), wanted.predict_log_density((X, Y)), atol=1e-4
    )


@pytest.mark.slow
def test_a_robust_loss_keeps_a_gp_from_its_outliers(rng):
    X, f, Y = sine(rng)
    spoiled = Y.copy()
    spoiled[rng.choice(len(Y), 6, replace=False)] += 5.0
    plain = gpflow.likelihoods.Gaussian(0.05)
    robust = losses.GeneralisedLikelihood(plain, losses.BetaLoss(1.3))

    def error(likelihood, Y):
        mean, _ = streamed(likelihood, X, Y)[0].predict_f(X)
        return np.sqrt(np.mean((mean - f) ** 2))

    assert error(plain, spoiled) > 5.0 * error(plain, Y)
    assert error(robust, spoiled) < 1.3 * error(robust, Y)
    assert streamed(robust, X, spoiled)[1].clipped_sites > 0


def test_labels_outside_the_support_are_refused_under_a_loss_too(rng):
    X, _, Y = sine(rng)
    likelihood = losses.GeneralisedLikelihood(gpflow.likelihoods.Bernoulli(), losses.BetaLoss(1.2))
    with pytest.raises(InvalidDataError, match="support of Bernoulli"):
        streamed(likelihood, X, Y)


# ---- formulas of losses ----


NOISE = 0.4
LINE = np.linspace(-30.0, 30.0, 60_001)
F, Y = np.array([[0.3], [-2.0], [1.1]]), np.array([[0.1], [1.0], [1.1]])
LOGITS = np.array([[0.3, -1.0, 0.2], [2.0, 0.0, 1.0]])
POWERS = pytest.mark.parametrize("power", [0.6, 1.5])
ROBUST = pytest.mark.parametrize("make", [losses.BetaLoss, losses.GammaLoss])


def tensor(values):
    return tf.constant(values, tf.float64)


def beta_loss(p, integral, beta):
    """As PGVI, definition 22, with the constants by which it tends to −log p."""
    return -(p ** (beta - 1.0) - 1.0) / (beta - 1.0) + integral / beta - 1.0


def gamma_loss(p, integral, gamma):
    """As PGVI, definition 23, with the constants by which it tends to −log p."""
    ratio = p ** (gamma - 1.0) / integral ** ((gamma - 1.0) / gamma)
    return -gamma / (gamma - 1.0) * (ratio - 1.0)


FORMULAS = {losses.BetaLoss: beta_loss, losses.GammaLoss: gamma_loss}


@POWERS
@ROBUST
def test_robust_losses_of_a_gaussian_are_their_formulas(make, power):
    density = scipy.stats.norm(F, np.sqrt(NOISE)).pdf(LINE)
    integral = scipy.integrate.simpson(density**power, x=LINE)
    p = scipy.stats.norm(F, np.sqrt(NOISE)).pdf(Y)[:, 0]
    found = make(power)(gl.Gaussian(NOISE), tensor(F), tensor(Y))
    np.testing.assert_allclose(found, FORMULAS[make](p, integral, power), rtol=1e-9)


@POWERS
@pytest.mark.parametrize("variance", [0.3, [0.3, 1.2, 0.7]])
def test_the_beta_loss_of_several_outputs_is_lemma_25(power, variance):
    """PGVI: ``−p^(β−1)/(β−1) + (2π)^(−D(β−1)/2) |Σ|^(−(β−1)/2) β^(−(D+2)/2)``, from which this one
    differs by the constant that makes it tend to −log p.
    """
    D, beta = 3, power
    covariance = np.diag(np.broadcast_to(variance, D))
    mean, y = np.array([0.2, -1.0, 0.4]), np.array([0.5, -0.3, 0.1])
    p = scipy.stats.multivariate_normal(mean, covariance).pdf(y)
    wanted = -(p ** (beta - 1.0)) / (beta - 1.0)
    scale = (2.0 * np.pi) ** (0.5 * D * (beta - 1.0))
    scale *= np.linalg.det(covariance) ** (0.5 * (beta - 1.0))
    wanted += 1.0 / (scale * beta ** (0.5 * (D + 2.0)))
    wanted += 1.0 / (beta - 1.0) - 1.0
    found = losses.BetaLoss(beta)(gl.Gaussian(np.array(variance)), tensor([mean]), tensor([y]))
    np.testing.assert_allclose(found, [wanted], rtol=1e-9)


@POWERS
@ROBUST
def test_robust_losses_of_a_classifier_are_their_formulas(make, power):
    p = np.asarray(tf.nn.softmax(LOGITS))
    labels = np.array([[2.0], [1.0]])
    found = make(power)(gl.Softmax(3), tensor(LOGITS), tensor(labels))
    wanted = FORMULAS[make](p[[0, 1], [2, 1]], (p**power).sum(axis=1), power)
    np.testing.assert_allclose(found, wanted, rtol=ALGEBRA)


@POWERS
@ROBUST
@pytest.mark.parametrize("likelihood", [gl.Softmax(3), gl.Bernoulli()])
def test_robust_losses_are_least_in_expectation_at_the_truth(make, power, likelihood):
    """They are proper: ``E[loss(f, y)]`` is stationary where y is drawn from p(y | f)."""
    f = tensor(LOGITS[:1] if isinstance(likelihood, gl.Softmax) else F[:1])
    labels = range(3 if isinstance(likelihood, gl.Softmax) else 2)
    log_p = [losses.log_density(likelihood, f, tensor([[k]]))[0] for k in labels]
    with tf.GradientTape() as tape:
        tape.watch(f)
        each = [make(power)(likelihood, f, tensor([[k]]))[0] for k in labels]
        expected = tf.add_n([tf.exp(p) * loss for p, loss in zip(log_p, each, strict=True)])
    np.testing.assert_allclose(tape.gradient(expected, f), 0.0, atol=ALGEBRA)


@pytest.mark.parametrize("q", [0.3, 1.0])
def test_generalised_cross_entropy_is_its_formula(q):
    p = np.asarray(tf.nn.softmax(LOGITS))[[0, 1], [2, 1]]
    found = losses.GeneralisedCrossEntropy(q)(gl.Softmax(3), tensor(LOGITS), tensor([[2], [1]]))
    np.testing.assert_allclose(found, (1.0 - p**q) / q, rtol=ALGEBRA)


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_integral_of_a_power_counts_every_output(outputs):
    likelihood, f = gl.Gaussian(NOISE), np.tile(F, (1, outputs))
    density = scipy.stats.norm(0.0, np.sqrt(NOISE)).pdf(LINE)
    one = np.log(scipy.integrate.simpson(density**1.5, x=LINE))
    found = losses.log_power_integral(likelihood, tensor(f), 1.5)
    np.testing.assert_allclose(found, np.full(3, outputs * one), rtol=1e-9)


@pytest.mark.parametrize("power", [-3e-8, 2e-8, 1e-3, 0.5])
def test_box_cox_goes_over_into_its_limit(power):
    values = np.array([-3.0, 0.2, 2.0])
    series = values + power * values**2 / 2 + power**2 * values**3 / 6 + power**3 * values**4 / 24
    wanted = series if abs(power) < 1e-2 else (np.exp(power * values) - 1.0) / power
    np.testing.assert_allclose(losses.box_cox(tensor(values), power), wanted, rtol=1e-9)
    if abs(power) < 1e-7:  # the term of second order, which a sum of squares would drown
        excess = losses.box_cox(tensor([1e6]), power).numpy() - 1e6
        np.testing.assert_allclose(excess, 0.5 * power * 1e12, rtol=0.02)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5])
def test_the_expected_power_of_a_gaussian_is_its_integral(alpha):
    f = scipy.stats.norm(0.4, np.sqrt(0.7)).pdf(LINE)
    power = scipy.stats.norm(LINE, np.sqrt(NOISE)).pdf(1.3) ** alpha
    expected = np.log(scipy.integrate.simpson(f * power, x=LINE))
    given = (tensor(x) for x in (1.3, 0.4, 0.7, NOISE))
    np.testing.assert_allclose(losses.log_gaussian_power(*given, alpha), expected, rtol=1e-9)


def test_a_generalised_likelihood_is_minus_its_loss_and_predicts_as_its_likelihood():
    inner, loss = gl.Gaussian(NOISE), losses.BetaLoss(1.5)
    likelihood = losses.GeneralisedLikelihood(inner, loss)
    X, f, y = np.zeros((3, 0)), tensor(F), tensor(Y)
    found = likelihood.log_prob(X, f, y)
    np.testing.assert_allclose(found, -loss(inner, f, y), rtol=ALGEBRA)
    wide = likelihood._scalar_log_prob(X, tf.tile(f, [1, 2]), y)  # over nodes of a quadrature
    np.testing.assert_allclose(wide, np.tile(-loss(inner, f, y)[:, None], (1, 2)), rtol=ALGEBRA)
    variance = tensor(np.full((3, 1), 0.2))
    for name in ("predict_mean_and_var", "predict_log_density"):
        given = (X, f, variance) if name == "predict_mean_and_var" else (X, f, variance, y)
        for a, b in zip(
            getattr(likelihood, name)(*given), getattr(inner, name)(*given), strict=True
        ):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(likelihood.conditional_mean(X, f), inner.conditional_mean(X, f))
    np.testing.assert_array_equal(
        likelihood.conditional_variance(X, f), inner.conditional_variance(X, f)
    )
