"""Learning ε: maximum likelihood, MAP and a distribution, against GPflow and NUTS."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.noise import standard_noise
from streaming_gp.gp.parameters import ParameterVector
from tests.reference import smooth_data

EXACT = sgp.PrivatePseudoPoints("all")
LONG = sgp.LocalOptimiser(max_iterations=300)


def kernel():
    return gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0])


def model_of(hyperparameters, the_kernel=None, **options):
    return sgp.StreamingGP(
        the_kernel or kernel(), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=EXACT, hyperparameters=hyperparameters, **options,
    )  # fmt: skip


def test_maximum_likelihood_is_that_of_the_exact_gp(rng):
    X, Y = smooth_data(rng)
    model = model_of(sgp.PointHyperparameters(), optimiser=LONG)
    info = model.update((X, Y))
    oracle = gpflow.models.GPR((X, Y), kernel(), noise_variance=0.1)
    gpflow.optimizers.Scipy().minimize(oracle.training_loss, oracle.trainable_variables)
    np.testing.assert_allclose(info.free_energy, oracle.log_marginal_likelihood(), rtol=1e-5)
    np.testing.assert_allclose(model.kernel.lengthscales, oracle.kernel.lengthscales, rtol=1e-2)


@pytest.mark.parametrize("prior_on", ["constrained", "unconstrained"])
def test_map_adds_gpflow_priors_once(rng, prior_on):
    X, Y = smooth_data(rng)

    def with_prior():
        k = kernel()
        k.lengthscales.prior = tfp.distributions.Normal(np.float64(3.0), np.float64(0.1))
        k.lengthscales.prior_on = prior_on
        return k

    model = model_of(sgp.PointHyperparameters(), with_prior(), optimiser=LONG)
    model.update((X, Y))
    oracle = gpflow.models.GPR((X, Y), with_prior(), noise_variance=0.1)
    gpflow.optimizers.Scipy().minimize(oracle.training_loss, oracle.trainable_variables)
    np.testing.assert_allclose(model.kernel.lengthscales, oracle.kernel.lengthscales, rtol=1e-2)
    np.testing.assert_allclose(model.kernel.variance, oracle.kernel.variance, rtol=2e-2)


def test_fixed_hyperparameters_stay(rng):
    model = model_of(sgp.FixedHyperparameters())
    before = model._parameters().value()
    model.update(smooth_data(rng))
    np.testing.assert_array_equal(model._parameters().value(), before)


def test_parameters_that_are_not_trainable_stay(rng):
    k = kernel()
    gpflow.set_trainable(k.variance, False)
    model = model_of(sgp.VariationalHyperparameters(), k)
    model.update(smooth_data(rng))
    assert k.variance.numpy() == 1.0
    assert "kernel.variance" not in model.hyperparameter_samples(3)


def nuts(log_density, start, scale, num_samples=600, seed=3):
    """Draws from ``log_density`` by NUTS, preconditioned by ``scale``."""
    kernel_ = tfp.mcmc.DualAveragingStepSizeAdaptation(
        tfp.mcmc.NoUTurnSampler(log_density, step_size=0.3 * scale, max_tree_depth=6), 300
    )

    @tf.function(autograph=False)
    def run():
        return tfp.mcmc.sample_chain(
            num_samples, start, kernel=kernel_, num_burnin_steps=400, trace_fn=None,
            seed=tf.constant([seed, 0], tf.int32),
        )  # fmt: skip

    return run().numpy()


def test_the_variational_posterior_of_exact_regression_is_that_of_nuts(rng):
    """With Z = X the structured q(ε) is plain VI on the exact marginal likelihood."""
    X, Y = smooth_data(rng, 100, noise=0.3)
    model = model_of(sgp.VariationalHyperparameters(full_covariance=True), optimiser=LONG)
    prior = model.hyperparameter_posterior
    model.update((X, Y))
    q = model.hyperparameter_posterior

    oracle = gpflow.models.GPR((X, Y), kernel(), noise_variance=0.1)
    vector = ParameterVector(oracle)
    assert list(vector.parameters) == list(model._parameters().parameters)

    def log_density(epsilon):
        with vector.substituted(epsilon):
            log_prior = tfp.distributions.MultivariateNormalTriL(prior.mean, prior.scale)
            return oracle.log_marginal_likelihood() + log_prior.log_prob(epsilon)

    draws = nuts(log_density, tf.constant(q.mean), np.sqrt(q.variance))
    mean, sd = draws.mean(axis=0), draws.std(axis=0)
    assert (np.abs(q.mean - mean) < 0.3 * sd).all()
    ratio = np.sqrt(q.variance) / sd
    assert (ratio > 0.7).all()
    assert (ratio < 1.3).all()


def test_gpflow_priors_become_the_prior_of_epsilon():
    k = kernel()
    k.variance.prior = tfp.distributions.Gamma(np.float64(80.0), np.float64(20.0))
    k.lengthscales.prior = tfp.distributions.Normal(np.float64(-1.0), np.float64(0.2))
    k.lengthscales.prior_on = "unconstrained"
    model = model_of(sgp.VariationalHyperparameters(), k)
    paths = list(model._parameters().parameters)
    q = model.hyperparameter_posterior
    i = paths.index("kernel.lengthscales")
    np.testing.assert_allclose(q.mean[i : i + 2], -1.0, atol=0.01)
    np.testing.assert_allclose(np.sqrt(q.variance)[i : i + 2], 0.2, rtol=0.02)
    draws = model.hyperparameter_samples(50_000)["kernel.variance"]
    np.testing.assert_allclose(draws.mean(), 4.0, rtol=0.01)
    np.testing.assert_allclose(draws.std(), 80.0**0.5 / 20.0, rtol=0.02)


def test_the_default_prior_is_as_wide_in_the_logarithm_as_asked():
    k = gpflow.kernels.SquaredExponential(variance=1e-3, lengthscales=[30.0, 1.0])
    model = model_of(sgp.VariationalHyperparameters(prior_log_scale=0.05), k)
    for path, draws in model.hyperparameter_samples(50_000).items():
        np.testing.assert_allclose(np.std(np.log(draws), axis=0), 0.05, rtol=0.05, err_msg=path)


def test_earlier_batches_say_less_of_epsilon_and_the_same_of_f(rng):
    """What a batch finds is prior × Π t_a(ε)^(λ^age) over ε, and every row as it was."""
    share = 0.5
    model = model_of(sgp.VariationalHyperparameters(forgetting_factor=share))
    prior = model.ledger.prior.hyperparameters
    written = []
    for number in range(3):
        X, Y = smooth_data(rng, 12)
        before = model.factors
        model.update((X, Y))
        newest = model.factors[f"batch-{number}"].hyperparameters
        written = [factor**share for factor in written] + [newest]
        for name, factor in before.items():
            assert model.factors[name].rows is factor.rows
    q = model.hyperparameter_posterior
    expected = prior.times(written)
    np.testing.assert_allclose(q.mean, expected.mean, rtol=1e-10)
    np.testing.assert_allclose(q.variance, expected.variance, rtol=1e-10)


def test_epsilon_follows_a_change_that_exact_memory_averages_over(rng):
    """The noise rises tenfold halfway: with a forgetting factor the model comes to believe it."""

    def noise_believed_in(share):
        model = sgp.StreamingGP(
            kernel(), gpflow.likelihoods.Gaussian(0.1), pseudo_points=sgp.PrivatePseudoPoints(8),
            hyperparameters=sgp.VariationalHyperparameters(num_samples=4, forgetting_factor=share),
            optimiser=sgp.LocalOptimiser(max_iterations=15),
        )  # fmt: skip
        for scale in [0.1] * 3 + [1.0] * 2:
            X = rng.uniform(-2, 2, (60, 2))
            Y = np.sin(X.sum(axis=1, keepdims=True)) + scale * rng.standard_normal((60, 1))
            model.update((X, Y))
        return float(np.mean(model.hyperparameter_samples(1000)["likelihood.variance"]))

    assert 0.7 < noise_believed_in(0.1) < 1.4
    assert noise_believed_in(1.0) < 0.5


@pytest.mark.parametrize("share", [0.0, 1.1, float("nan")])
def test_senseless_forgetting_is_refused(share):
    with pytest.raises(InvalidDataError, match="forgetting_factor must lie in"):
        sgp.VariationalHyperparameters(forgetting_factor=share)


def test_predictions_integrate_over_epsilon(rng):
    X, Y = smooth_data(rng, 30)
    model = model_of(sgp.VariationalHyperparameters())
    model.update((X, Y))
    Xnew = rng.uniform(-3, 3, (7, 2))
    vector = model._parameters()
    means, variances, log_densities = [], [], []
    Ynew = rng.standard_normal((7, 1))
    for epsilon in model._draws(vector):
        twin = sgp.StreamingGP(
            model.kernel, model.likelihood, pseudo_points=EXACT,
            hyperparameters=sgp.FixedHyperparameters(), num_latent_gps=1,
        )  # fmt: skip
        twin._ledger = twin.ledger.replaced("rows", model.factors["batch-0"] ** 1.0)
        before = vector.value()
        vector.assign(epsilon)
        mean, variance = twin.predict_f(Xnew)
        log_densities.append(twin.predict_log_density((Xnew, Ynew)))
        vector.assign(before)
        means.append(mean)
        variances.append(variance)
    mean, variance = model.predict_f(Xnew)
    np.testing.assert_allclose(mean, np.mean(means, axis=0), rtol=1e-8)
    total = np.mean(variances, axis=0) + np.var(means, axis=0)
    np.testing.assert_allclose(variance, total, rtol=1e-8)
    mixture = np.log(np.mean(np.exp(log_densities), axis=0))
    np.testing.assert_allclose(model.predict_log_density((Xnew, Ynew)), mixture, rtol=1e-8)


@pytest.mark.parametrize(
    ("num_samples", "size", "whiten"), [(8, 3, False), (16, 3, True), (2, 5, False), (9, 2, False)]
)
def test_common_random_numbers_have_unit_second_moments(num_samples, size, whiten):
    noise = standard_noise(num_samples, size, seed=1, whiten=whiten)
    assert noise.shape == (num_samples, size)
    np.testing.assert_allclose(noise.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose((noise**2).mean(axis=0), 1.0)
    if whiten:
        np.testing.assert_allclose(noise.T @ noise / num_samples, np.eye(size), atol=1e-9)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        (sgp.VariationalHyperparameters, {"num_samples": 3}),
        (sgp.VariationalHyperparameters, {"num_samples": 0}),
        (sgp.VariationalHyperparameters, {"prior_log_scale": 0.0}),
        (sgp.PointHyperparameters, {"max_log_decrease": -1.0}),
    ],
)
def test_senseless_settings_are_refused(strategy, options):
    with pytest.raises(InvalidDataError, match=next(iter(options))):
        strategy(**options)


def test_one_point_batches_do_not_trap_maximum_likelihood(rng):
    """One point's likelihood is largest without noise; later batches must find back from there."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(4), hyperparameters=sgp.PointHyperparameters(),
    )  # fmt: skip
    noise = []
    for size in (50, 1, 50, 50):
        X = rng.uniform(-3, 3, (size, 1))
        model.update((X, np.sin(X) + 0.1 * rng.standard_normal(X.shape)))
        noise.append(model.likelihood.variance.numpy())
    assert noise[1] < 1e-3 < noise[-1] < 0.1


def test_widths_stay_finite_at_the_lower_bound_of_a_parameter():
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    likelihood.variance.unconstrained_variable.assign(-700.0)
    np.testing.assert_array_equal(ParameterVector(likelihood).unit_log_widths(), [2.0])


@pytest.mark.parametrize(
    "strategy",
    [sgp.VariationalHyperparameters(), sgp.PointHyperparameters()],
    ids=["VI", "ML"],
)
def test_mean_functions_are_learned(rng, strategy):
    """Their parameters have no transform, and start at zero."""
    X = rng.uniform(-2, 2, (60, 2))
    Y = 2.0 * X[:, :1] + 3.0 + 0.1 * rng.standard_normal((60, 1))
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=0.1), gpflow.likelihoods.Gaussian(0.1),
        gpflow.functions.Linear(np.zeros((2, 1)), np.zeros(1)), hyperparameters=strategy,
    )  # fmt: skip
    for rows in (slice(0, 30), slice(30, 60)):
        model.update((X[rows], Y[rows]))
    far = model.predict_f(np.array([[20.0, 0.0]]))[0]
    np.testing.assert_allclose(far, [[43.0]], atol=3.0)


def coregionalised():
    return gpflow.kernels.Matern32(active_dims=[0]) * gpflow.kernels.Coregion(2, 1, active_dims=[1])


def changing():
    pieces = [gpflow.kernels.Matern12(), gpflow.kernels.RationalQuadratic()]
    return gpflow.kernels.ChangePoints(pieces, [0.0])


def mixed():
    product = gpflow.kernels.Linear() * gpflow.kernels.White()
    periodic = gpflow.kernels.Periodic(gpflow.kernels.RBF(), period=3.0)
    return periodic + product + gpflow.kernels.ArcCosine()


@pytest.mark.parametrize(
    "make", [coregionalised, pytest.param(changing, marks=pytest.mark.slow), mixed]
)
def test_unusual_kernels_learn_a_distribution(rng, make):
    X = rng.uniform(-2, 2, (40, 1))
    if make is coregionalised:
        X = np.c_[X, rng.integers(0, 2, 40)]
    Y = np.sin(2.0 * X[:, :1]) * (1.0 - 2.0 * X[:, 1:].sum(axis=1, keepdims=True))
    points = sgp.PrivatePseudoPoints(8, optimise_locations=False)
    model = sgp.StreamingGP(
        make(), gpflow.likelihoods.Gaussian(0.1), pseudo_points=points,
        optimiser=sgp.LocalOptimiser(max_iterations=50),
    )  # fmt: skip
    for rows in (slice(0, 20), slice(20, 40)):
        model.update((X[rows], Y[rows]))
    assert np.mean((model.predict_f(X)[0] - Y) ** 2) < 0.7 * np.var(Y)


@pytest.mark.parametrize("full_covariance", [False, True])
def test_nothing_to_learn_is_allowed(rng, full_covariance):
    k, likelihood = kernel(), gpflow.likelihoods.Gaussian(0.1)
    gpflow.set_trainable(k, False)
    gpflow.set_trainable(likelihood, False)
    strategy = sgp.VariationalHyperparameters(full_covariance=full_covariance)
    data = smooth_data(rng, 30)
    means = []
    for hyperparameters in (strategy, sgp.FixedHyperparameters()):
        model = sgp.StreamingGP(k, likelihood, pseudo_points=EXACT, hyperparameters=hyperparameters)
        model.update(data)
        means.append(model.predict_f(data[0])[0])
    np.testing.assert_allclose(*means, rtol=1e-8)


def test_any_kernel_reads_from_the_substituted_vector(rng):
    shared = gpflow.kernels.SquaredExponential()
    k = gpflow.kernels.Periodic(shared, period=2.0) * gpflow.kernels.Linear() + shared
    vector, X = ParameterVector(k), rng.standard_normal((6, 1))
    epsilon = vector.value() + 0.3
    with vector.substituted(tf.constant(epsilon)):
        substituted = k(X).numpy()
    assert np.abs(substituted - k(X)).max() > 1e-3
    vector.assign(epsilon)
    np.testing.assert_allclose(substituted, k(X))


def test_substitution_ends_even_where_the_block_raises():
    k = kernel()
    vector = ParameterVector(k)
    with pytest.raises(RuntimeError), vector.substituted(tf.constant(vector.value() + 1.0)):
        raise RuntimeError
    np.testing.assert_allclose(k.lengthscales, 1.0)
