"""Models other than Gaussian processes: limits, bounds, scores, and integrals over likelihoods."""

import gpflow
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

from streaming_gp import bnn, datasets, linear, metrics, mixture, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import IsotropicNormal, MeanFieldNormal, Normal
from streaming_gp.flow import FlowModel
from streaming_gp.hierarchical import HierarchicalModel
from streaming_gp.linear import log_expected_power
from tests.conftest import fitted_server
from tests.laws import LBFGS, slow
from tests.oracles.reference import pooled, server
from tests.tolerances import THROUGH_CHOLESKY

tfb = tfp.bijectors
SHEAR = np.array([[2.0, 0.0], [0.5, 0.3]])
SHIFT = np.array([0.7, -1.1])


def fitted(model, data, number=2, rounds=8, **settings):
    found = server(model, datasets.partition_iid(*data, number), LBFGS)
    pvi.fit(found, pvi.Sequential(), rounds, **settings)
    return found.posterior


def affine():
    return tfb.Chain([tfb.Shift(SHIFT), tfb.ScaleMatvecTriL(SHEAR)])


@pytest.mark.parametrize("bijector", [slow(tfb.Identity()), affine()], ids=["identity", "affine"])
def test_through_a_linear_map_the_posterior_is_the_exact_one(rng, bijector):
    """And the bound is the log evidence."""
    X = rng.standard_normal((12, 2))
    Y = X @ np.array([[1.0], [-2.0]]) + 0.3 * rng.standard_normal((12, 1))
    model = linear.BayesianLinearRegression(2, 0.09)
    flow = FlowModel(model, bijector, num_data=12)
    q = fitted(flow, (X, Y))
    product = model.prior().as_factor() * model.likelihood_factor(X, Y)
    exact = product.normalised()
    theta = exact.sample(5, seed=1)
    np.testing.assert_allclose(
        flow.log_prob(q, theta), exact.log_prob(theta), rtol=THROUGH_CHOLESKY
    )
    draws = np.asarray(flow.sample(q, 20_000))
    np.testing.assert_allclose(draws.mean(axis=0), exact.mean, atol=0.01)
    bound = flow.expected_log_likelihood(q, X, Y, None) - q.kl_divergence(flow.prior())
    np.testing.assert_allclose(bound, product.log_integral(), rtol=THROUGH_CHOLESKY)


def skewed():
    variables = tf.Variable(0.0, dtype=tf.float64), tf.Variable(0.0, dtype=tf.float64)
    tails = tfp.util.DeferredTensor(variables[1], tf.exp)
    return tfb.SinhArcsinh(skewness=variables[0], tailweight=tails)


def divergence(log_q, log_joint, theta):
    """KL(q ‖ p) on a grid."""
    step = theta[1] - theta[0]
    q, p = (np.exp(one - np.max(one)) for one in (log_q, log_joint))
    q, p = q / (step * q.sum()), p / (step * p.sum())
    return step * np.sum(q * (np.log(q) - np.log(p)))


@pytest.mark.slow
def test_a_learned_map_comes_nearer_to_a_skewed_posterior():
    X, Y = np.ones((6, 1)), np.ones((6, 1))  # six successes: the weight is large, how large unknown
    model = linear.logistic_regression(1, prior_variance=9.0)
    flow = FlowModel(model, skewed(), num_data=6, num_samples=200)
    q = fitted(flow, (X, Y), 1, rounds=5, hyperparameters=pvi.LikelihoodParameters())
    theta = np.linspace(-3.0, 14.0, 4000)
    joint = model.prior().log_prob(theta[:, None]) + model.log_likelihood(theta[:, None], X, Y)
    gaussian = fitted(model, (X, Y), 1, rounds=1).log_prob(theta[:, None])
    plain = divergence(gaussian.numpy(), joint.numpy(), theta)
    found = divergence(flow.log_prob(q, theta[:, None]).numpy(), joint.numpy(), theta)
    assert found < 0.1 * plain


def test_what_it_refuses():
    model = linear.logistic_regression(1)
    with pytest.raises(InvalidDataError, match="num_data"):
        FlowModel(model, tfb.Identity(), num_data=0)
    with pytest.raises(InvalidDataError, match="bijector"):
        FlowModel(model, np.exp, num_data=3)
    with pytest.raises(InvalidDataError, match=r"log_likelihood.*a flow"):
        FlowModel(mixture.GaussianMixture(2, 2), tfb.Identity(), num_data=3)


NOISE = 0.09


@pytest.fixture(scope="module")
def observed():
    """Two weights that matter, and one that does not."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((80, 3))
    return X, X @ np.array([[3.0], [-2.0], [0.0]]) + np.sqrt(NOISE) * rng.standard_normal((80, 1))


def regression():
    return linear.BayesianLinearRegression(3, NOISE)


def fitted_hierarchy(model, observed, number=1, rounds=1):
    shards = datasets.partition_iid(*observed, number)
    return fitted_server(model, shards, LBFGS, pvi.Sequential(), rounds)


def test_with_scales_that_are_known_it_is_the_model_itself(observed):
    model = HierarchicalModel(regression(), scale_sd=0.0)
    found = fitted_hierarchy(model, observed)
    q = found.posterior
    exact = pooled(regression(), *observed)
    np.testing.assert_allclose(q.mean[:3], exact.mean, rtol=1e-5)
    np.testing.assert_allclose(q.covariance[:3, :3], exact.covariance, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(q.covariance[3:, :3], 0.0, atol=1e-7)
    product = regression().prior().as_factor() * regression().likelihood_factor(*observed)
    np.testing.assert_allclose(found.history[-1].free_energy, product.log_integral(), rtol=1e-6)


def scale_on_a_grid(X, Y, noise):
    """Log evidence, and mean and sd of the log scale under its posterior."""
    grid = np.linspace(-4.0, 4.0, 401)
    log_joint = scipy.stats.norm.logpdf(grid)
    for number, u in enumerate(grid):
        covariance = noise * np.eye(len(Y)) + np.exp(2.0 * u) * X @ X.T
        log_joint[number] += scipy.stats.multivariate_normal(cov=covariance).logpdf(Y[:, 0])
    density = np.exp(log_joint - log_joint.max())
    total = scipy.integrate.simpson(density, x=grid)
    mean = scipy.integrate.simpson(grid * density, x=grid) / total
    square = scipy.integrate.simpson((grid - mean) ** 2 * density, x=grid) / total
    return np.log(total) + log_joint.max(), mean, np.sqrt(square)


def test_its_free_energy_bounds_the_evidence_and_the_scale_is_near_its_posterior(observed):
    """Few and noisy data; q is too narrow, as the docstring says."""
    X, Y = observed[0][:12], observed[1][:12]
    model = HierarchicalModel(linear.BayesianLinearRegression(3, 4.0), num_samples=256)
    found = fitted_hierarchy(model, (X, Y))
    evidence, mean, sd = scale_on_a_grid(X, Y, 4.0)
    assert evidence - 0.4 < found.history[-1].free_energy < evidence
    (log_scale,), (log_sd,) = model.hyperparameters(found.posterior)["log_scale"]
    assert abs(log_scale - mean) < 0.3 * sd
    assert 0.6 * sd < log_sd < sd


@pytest.mark.slow
def test_the_fixed_point_does_not_depend_on_the_partition(observed):
    X, Y = observed[0][:12], observed[1][:12]
    noisy = linear.BayesianLinearRegression(3, 4.0)
    model = HierarchicalModel(noisy, noise_sd=0.5, num_samples=128)
    alone, three = (
        fitted_hierarchy(model, (X, Y), *split).posterior for split in ((1, 1), (3, 10))
    )
    sd = np.sqrt(alone.variance)
    np.testing.assert_allclose((three.mean - alone.mean) / sd, 0.0, atol=0.01)
    np.testing.assert_allclose(
        three.covariance / np.outer(sd, sd), alone.covariance / np.outer(sd, sd), atol=0.01
    )


@pytest.mark.slow
def test_noise_and_relevance_are_learned(observed):
    wrong = linear.BayesianLinearRegression(3, noise_variance=2.0)
    model = HierarchicalModel(wrong, groups=range(3), noise_sd=3.0, num_samples=256)
    learned = model.hyperparameters(fitted_hierarchy(model, observed, 2, 8).posterior)
    (noise,), (sd,) = learned["log_noise_variance"]
    residual = observed[1] - observed[0] @ np.linalg.lstsq(*observed, rcond=None)[0]
    assert noise == pytest.approx(np.log(np.sum(residual**2) / (80 - 3)), abs=0.1)
    assert sd == pytest.approx(np.sqrt(2.0 / 77), rel=0.2)
    scale, _ = learned["log_scale"]
    assert min(scale[:2]) > scale[2] + 0.3


def network():
    return bnn.MeanFieldBNN([2, 4, 1], gpflow.likelihoods.Gaussian(0.5), prior_variance=2.0)


def test_weights_and_noise_of_a_network_are_what_its_numbers_stand_for(rng):
    net = network()
    groups = net.layer_of_weights
    assert groups.tolist() == [0] * 12 + [1] * 5
    model = HierarchicalModel(net, groups, scale_sd=0.5, noise_sd=2.0)
    phi = rng.standard_normal((3, 17 + 2 + 1)).astype(np.float32)
    theta = np.sqrt(2.0) * np.exp(0.5 * phi[:, 17:19])[:, groups] * phi[:, :17]
    np.testing.assert_allclose(model.weights(phi), theta, rtol=1e-5)
    X, Y = net.as_data(rng.standard_normal((5, 2)), rng.standard_normal((5, 1)))
    variance = 0.5 * np.exp(2.0 * phi[:, -1])
    F = net.outputs(tf.constant(theta), X).numpy()
    wanted = scipy.stats.norm(F, np.sqrt(variance)[:, None, None]).logpdf(Y).sum(axis=(1, 2))
    np.testing.assert_allclose(model.log_likelihood(phi, X, Y), wanted, rtol=1e-4)
    known = HierarchicalModel(net, groups, scale_sd=0.5)
    np.testing.assert_allclose(
        known.log_likelihood(phi[:, :-1], X, Y), net.log_likelihood(theta, X, Y), rtol=1e-5
    )


def test_start_and_hyperparameters_of_a_network_are_in_units_of_their_priors(rng):
    net = network()
    model = HierarchicalModel(net, net.layer_of_weights, scale_sd=0.5, noise_sd=2.0)
    start, own = model.initial(0), net.initial(0)
    np.testing.assert_allclose(np.sqrt(2.0) * start.mean[:17], own.mean, rtol=1e-5)
    np.testing.assert_allclose(2.0 * start.variance[:17], own.variance, rtol=1e-4)
    mean, sd = rng.standard_normal(20), rng.uniform(0.1, 1.0, 20)
    found = model.hyperparameters(MeanFieldNormal.from_mean_variance(mean, sd**2))
    wanted = {
        "log_scale": (0.5 * mean[17:19], 0.5 * sd[17:19]),
        "log_noise_variance": (np.log(0.5) + 2.0 * mean[19:], 2.0 * sd[19:]),
    }
    assert found.keys() == wanted.keys()
    for name, moments in wanted.items():
        np.testing.assert_allclose(found[name], moments, rtol=1e-7)


@pytest.mark.slow
def test_a_network_learns_its_noise_in_q(rng):
    X = rng.uniform(-1.0, 1.0, (90, 2))
    Y = X[:, :1] + 0.1 * rng.standard_normal((90, 1))
    model = HierarchicalModel(network(), noise_sd=2.0, num_samples=4)
    rule = pvi.VariationalUpdate(epochs=150, batch_size=None, learning_rate=0.02)
    shards = datasets.partition_iid(X, Y, 2)
    found = fitted_server(model, shards, rule, pvi.Sequential(), 4)
    (noise,), _ = model.hyperparameters(found.posterior)["log_noise_variance"]
    assert np.log(0.005) < noise < np.log(0.05)
    predicted = network().predict_by(model.sample(found.posterior), X)
    assert np.sqrt(np.mean((predicted - X[:, :1]) ** 2)) < 0.15
    assert isinstance(found.posterior, MeanFieldNormal)


def test_a_large_network_has_a_prior_and_a_start_without_a_dense_matrix():
    net = bnn.MeanFieldBNN([784, 200, 10], gpflow.likelihoods.Softmax(10))
    model = HierarchicalModel(net, net.layer_of_weights, num_samples=1)
    prior, start = model.prior(), model.initial(0)
    assert prior.mean.shape == start.mean.shape == (159_012,)
    np.testing.assert_array_equal(prior.variance, 1.0)
    np.testing.assert_allclose(start.mean[:-2], net.initial(0).mean, rtol=1e-6)
    np.testing.assert_allclose(start.variance, net.initial(0).variance[0], rtol=1e-4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HierarchicalModel(regression(), groups=[0, 2, 2]), "count from 0 without gaps"),
        (lambda: HierarchicalModel(regression(), groups=[0, 1]), r"groups must be \[3\]"),
        (lambda: HierarchicalModel(regression(), scale_sd=-1.0), "scale_sd must not be negative"),
        (
            lambda: HierarchicalModel(linear.BayesianLinearRegression(3, family=IsotropicNormal)),
            "IsotropicNormal has no widths for hyperparameters",
        ),
        (
            lambda: HierarchicalModel(linear.logistic_regression(3), noise_sd=1.0),
            "only Gaussian noise can be learned, got Logistic",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(InvalidDataError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "update"),
    [
        (linear.logistic_regression, LBFGS),
        (linear.probit_regression, pvi.FixedPointUpdate(steps=5)),
        slow(linear.logistic_regression, pvi.PowerEPUpdate()),
        slow(linear.probit_regression, pvi.PowerEPUpdate()),
    ],
    ids=["LBFGS", "fixed point", "power EP", "power EP of probit"],
)
def test_a_row_of_zeros_says_nothing_of_the_weights(rng, make, update):
    X = rng.standard_normal((12, 1))
    Y = (X > 0.0).astype(float)
    model, found = make(1), []
    for rows in ((X, Y), (np.vstack([X, [[0.0]]]), np.vstack([Y, [[1.0]]]))):
        found.append(pvi.run(model, {"c0": rows}, rounds=1, update=update).posterior)
    assert np.abs(found[0].mean[0]) > 0.1
    np.testing.assert_allclose(found[1].mean, found[0].mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[1].precision, found[0].precision, rtol=1e-6, atol=1e-6)


def test_a_posterior_of_another_model_is_refused(rng):
    line, clusters = linear.BayesianLinearRegression(2), mixture.GaussianMixture(2, 2)
    X, wider = rng.standard_normal((3, 2)), linear.BayesianLinearRegression(3).prior()
    mean_field = linear.BayesianLinearRegression(2, family=MeanFieldNormal).prior()
    clutter = mixture.ClutterModel(mixture.Clutter(np.eye(2), 0.3))
    scaled = HierarchicalModel(line, noise_sd=1.0)
    for predict in (
        *(line.predict, clusters.responsibilities, clusters.predict_log_density),
        *(clutter.responsibilities, lambda q, X: scaled.hyperparameters(q)),
        lambda q, X: scaled.sample(q, 3),
    ):
        for q in (wider, mean_field, None):
            with pytest.raises(InvalidDataError, match=r"wanted as posterior a .*, got a"):
                predict(q, X)


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("make", [linear.logistic_regression, linear.probit_regression])
def test_nor_does_it_in_a_tilted_distribution(make, alpha):
    model, cavity = make(2), Normal.from_mean_scale(np.array([0.3, -0.4]), np.eye(2))
    site = cavity.moment_match(lambda q: model.log_tilted(q, np.zeros(2), np.ones(1), alpha))
    for eta in site.natural:
        np.testing.assert_allclose(eta, 0.0, atol=1e-9)
    assert float(site.log_scale) == pytest.approx(alpha * np.log(0.5))


def test_error_rate():
    assert metrics.error_rate([[0.9], [0.2], [0.6], [0.4]], [1, 0, 0, 1]) == 0.5


def test_smse_of_the_mean_is_one(rng):
    targets = rng.standard_normal((50, 2))
    predicted = np.broadcast_to(targets.mean(axis=0), targets.shape)
    assert metrics.smse(predicted, targets) == pytest.approx(1.0)
    assert metrics.smse(targets, targets) == 0.0


def test_mean_negative_log_density():
    assert metrics.mean_negative_log_density([-1.0, -3.0]) == 2.0


def test_classification_scores_by_hand():
    probabilities = [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.35, 0.65]]
    labels = [[0], [1], [1], [1]]
    assert metrics.classification_error(probabilities, labels) == 0.25
    # each alone in its bin of ten: |1 - 0.9|, |0 - 0.6|; 0.8 and 0.65 are two bins: 0.2, 0.35
    gap = metrics.expected_calibration_error(probabilities, labels, num_bins=10)
    assert gap == pytest.approx((0.1 + abs(1 - 0.6 - 0.65) + 0.2) / 4)
    assert np.isnan(
        metrics.expected_calibration_error([*probabilities, [np.nan] * 2], [*labels, [0]])
    )
    with pytest.raises(InvalidDataError, match="num_bins must be positive, got 0"):
        metrics.expected_calibration_error(probabilities, labels, num_bins=0)


def test_predictions_are_paired_with_their_own_truth_or_refused():
    column, probabilities = np.arange(4.0)[:, None], [[0.9, 0.1], [0.2, 0.8]]
    calls = [
        (metrics.smse, column, column[:, 0]),
        (metrics.error_rate, [0.9, 0.2, 0.3], [1]),
        (metrics.error_rate, [0.9], ["1"]),
        (metrics.classification_error, probabilities, [0]),
        (metrics.classification_error, probabilities, ["a", "b"]),
        (metrics.expected_calibration_error, probabilities, ["a", "b"]),
        (metrics.squared_error, column, column[:, 0]),
        (metrics.on_wrong_side, [[0.9], [0.2]], [1, 0]),
    ]
    for score, predictions, truth in calls:
        wanted = r"of one shape, got|must hold real numbers|of as many dimensions"
        with pytest.raises(InvalidDataError, match=wanted):
            score(predictions, truth)


def test_scores_refuse_what_is_no_probability_and_no_label():
    both = [[0.9, 0.1], [0.2, 0.8]]
    for score in (metrics.classification_error, metrics.expected_calibration_error):
        with pytest.raises(InvalidDataError, match=r"two classes or more, got \[2, 1\]"):
            score([[0.9], [0.2]], [1, 0])  # of label 1 alone
        with pytest.raises(InvalidDataError, match="integers from 0 to 1, got 2"):
            score(both, [1, 2])  # counted from 1
        with pytest.raises(InvalidDataError, match=r"lie in \[0, 1\], got -1 to 3"):
            score([[3.0, -1.0], [0.0, 2.0]], [0, 1])
    with pytest.raises(InvalidDataError, match="integers from 0 to 1, got nan"):
        metrics.error_rate([0.9, 0.2], [np.nan, 0.0])
    with pytest.raises(InvalidDataError, match=r"lie in \[0, 1\], got -0.4 to 2"):
        metrics.error_rate([2.0, -0.4], [1, 0])  # means of f
    assert metrics.error_rate(np.float32([1.0000001, 0.0]), [True, False]) == 0.0


def test_no_prediction_is_a_wrong_one():
    nothing = np.full((2, 2), np.nan)
    assert metrics.error_rate(nothing[0], [0, 1]) == 1.0
    assert metrics.classification_error(nothing, [0, 1]) == 1.0


def test_losses_of_single_points():
    np.testing.assert_array_equal(
        metrics.squared_error([[1.0], [2.0]], [[3.0, 1.0], [2.0, 0.0]]), [[4, 0], [0, 4]]
    )
    np.testing.assert_array_equal(
        metrics.on_wrong_side([[0.9], [0.6]], [[1], [0]]), [[False], [True]]
    )
    np.testing.assert_array_equal(
        metrics.wrong_class([[0.2, 0.8], [0.6, 0.4]], [[1], [1]]), [False, True]
    )


def log_poisson(y):
    """y f − e^f − log y!, at any f."""
    return lambda f: y * f - np.exp(np.minimum(f, 700.0)) - scipy.special.gammaln(y + 1.0)


LIKELIHOODS = {
    "logistic": (linear.logistic_regression(1).likelihood, 1.0, lambda f: -np.logaddexp(0.0, -f)),
    "probit": (linear.probit_regression(1).likelihood, 0.0, lambda f: scipy.stats.norm.logcdf(-f)),
    "Student's t": (
        gpflow.likelihoods.StudentT(0.1), 3.0, lambda f: scipy.stats.t.logpdf(f, 3.0, 3.0, 0.1),
    ),
    "counts": (gpflow.likelihoods.Poisson(), 12.0, log_poisson(12.0)),
    "a count of zero": (gpflow.likelihoods.Poisson(), 0.0, log_poisson(0.0)),
    "counts in short bins": (
        gpflow.likelihoods.Poisson(binsize=1e-3), 4000.0,
        lambda f: log_poisson(4000.0)(f + np.log(1e-3)),
    ),
    "amounts in small units": (
        gpflow.likelihoods.Exponential(), 2e5, lambda f: -f - 2e5 * np.exp(-np.maximum(f, -700.0)),
    ),
    "Gaussian": (
        gpflow.likelihoods.Gaussian(0.01), -1.0, lambda f: scipy.stats.norm.logpdf(f, -1.0, 0.1),
    ),
}  # fmt: skip


def at(number):
    return np.array([[number]])


def on_a_dense_grid(log_p, y, mean, deviation, alpha):
    """Logarithm of the integral, mean and variance of the tilted density; in steps far below the
    Gaussian's and the likelihood's own.
    """
    centre, reach = (y if y < 5.0 else np.log(y)), 12.0 * deviation
    low, high = min(mean - reach, centre - 20.0), max(mean + reach, centre + 20.0)
    f = np.linspace(low, high, int((high - low) / min(0.2 * deviation, 5e-3)) + 1)
    logs = scipy.stats.norm.logpdf(f, mean, deviation) + alpha * log_p(f)
    total = scipy.special.logsumexp(logs)
    weights = np.exp(logs - total)
    first = weights @ f
    return total + np.log(f[1] - f[0]), first, weights @ (f - first) ** 2


@pytest.mark.parametrize(
    ("deviation", "alpha"), [(0.01, 0.5), (1.0, 1.0), (30.0, 0.5), slow(200.0, 1.0)]
)
@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_value_and_gradients_are_those_of_the_tilted_density(kind, deviation, alpha):
    likelihood, y, log_p = LIKELIHOODS[kind]
    for mean in (0.3, -4.0 * deviation):
        m, v = tf.constant(at(mean)), tf.constant(at(deviation**2))
        with tf.GradientTape() as tape:
            tape.watch((m, v))
            value = log_expected_power(likelihood, at(0.0), m, v, at(y), alpha)
        by_mean, by_variance = (float(one[0, 0]) for one in tape.gradient(value, (m, v)))
        wanted, first, second = on_a_dense_grid(log_p, y, mean, deviation, alpha)
        np.testing.assert_allclose(value, [wanted], rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(by_mean * deviation, (first - mean) / deviation, atol=1e-6)
        moved = (second + (first - mean) ** 2) / deviation**2 - 1.0
        np.testing.assert_allclose(2.0 * by_variance * deviation**2, moved, atol=1e-6)


@pytest.mark.parametrize("deviation", [0.1, 100.0])
def test_gaussian_noise_has_a_closed_form(deviation):
    likelihood = gpflow.likelihoods.Gaussian(0.01)
    found = log_expected_power(likelihood, at(0.0), at(2.0), at(deviation**2), at(1.7), 1.0)
    wanted = scipy.stats.norm.logpdf(1.7, 2.0, np.hypot(deviation, 0.1))
    np.testing.assert_allclose(found, [wanted], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "update",
    [pvi.PowerEPUpdate(), pvi.PowerEPUpdate(0.5), pvi.PowerEPUpdate(1.0, sequential=True)],
    ids=["EP", "power", "sequential"],
)
def test_a_prior_far_wider_than_the_posterior_is_left(rng, update):
    """Inputs in a unit of their own, as people have them: the predictor's prior is 100 wide."""
    X = rng.normal(100.0, 15.0, (80, 1))
    Y = np.float64(rng.uniform(size=X.shape) < scipy.special.expit(0.01 * X))
    found = server(linear.logistic_regression(1), [(X, Y)], update)
    pvi.fit(found, pvi.Sequential())
    theta = np.linspace(-0.1, 0.1, 20_001)
    logs = scipy.stats.norm.logpdf(theta) - np.logaddexp(0.0, (1.0 - 2.0 * Y) * X * theta).sum(0)
    weights = np.exp(logs - scipy.special.logsumexp(logs))
    mean = weights @ theta
    deviation = np.sqrt(weights @ (theta - mean) ** 2)
    posterior = found.posterior
    np.testing.assert_allclose(posterior.mean, [mean], atol=0.02 * deviation)
    np.testing.assert_allclose(np.sqrt(posterior.variance), [deviation], rtol=0.02)
    assert not found.history[-1].refused
