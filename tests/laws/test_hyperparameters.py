"""ε as one value or a distribution over it: what is learned of it, and how it is averaged over."""

from dataclasses import dataclass, replace

import gpflow
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp

import streaming_gp as sgp
from streaming_gp import expfam
from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.gp import ParameterVector
from streaming_gp.gp.fit.optimiser import minimise
from streaming_gp.serialization import storable
from tests.laws import eager, slow
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    QUICK,
    classifier,
    kernel,
    labelled,
    model_of,
    regressor,
)
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY


def test_any_kernel_reads_from_the_substituted_vector(rng):
    shared = gpflow.kernels.SquaredExponential()
    k = gpflow.kernels.Periodic(shared, period=2.0) * gpflow.kernels.Linear() + shared
    vector, X = ParameterVector(k), rng.standard_normal((6, 1))
    epsilon = vector.value() + np.linspace(0.1, 0.5, vector.size)  # none like another
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


def test_widths_stay_finite_at_the_lower_bound_of_a_parameter():
    likelihood = gpflow.likelihoods.Gaussian(0.1)
    likelihood.variance.unconstrained_variable.assign(-700.0)
    np.testing.assert_array_equal(ParameterVector(likelihood).unit_log_widths(), [2.0])


def test_periods_are_told_from_other_parameters():
    seasons = gpflow.kernels.Periodic(gpflow.kernels.SquaredExponential())
    waves = gpflow.kernels.Cosine(lengthscales=[1.0, 2.0])
    vector = ParameterVector(seasons * gpflow.kernels.Matern32() + waves)
    of_entries = [path for path, p in vector.parameters.items() for _ in np.ravel(p)]
    found = [path for path, is_one in zip(of_entries, vector.are_periods(), strict=True) if is_one]
    of_waves = "kernels[1].lengthscales"
    assert found == ["kernels[0].kernels[0].period", of_waves, of_waves]
    alone = ParameterVector(waves)
    np.testing.assert_array_equal(alone.are_periods(), [True, True, False])
    strategy = sgp.VariationalHyperparameters()
    start = strategy.location_scale(strategy.prior(alone), alone)
    q = strategy.posterior(np.ravel(strategy.initial(alone, False)), *start)
    widths = np.sqrt(q.variance) / np.diag(start[1])
    assert (widths[:2] < 0.1 * widths[2]).all()  # of q, where it starts


def test_mixing_weights_have_a_prior_by_which_outputs_are_like_the_functions():
    W = np.array([[1.0, -3.0, 0.0, 0.5], [0.2, 0.0, 7.0, 1.0]])
    mixing = gpflow.kernels.LinearCoregionalization([kernel() for _ in range(4)], W)
    for part in mixing.kernels:
        gpflow.set_trainable(part, False)
    prior = sgp.VariationalHyperparameters(prior_log_scale=3.0).prior(ParameterVector(mixing))
    np.testing.assert_array_equal(prior.mean, W.ravel())
    np.testing.assert_allclose(prior.variance, 0.25)
    mixing.W.prior = tfp.distributions.Normal(np.float64(0.0), np.float64(2.0))
    prior = sgp.VariationalHyperparameters().prior(ParameterVector(mixing))
    np.testing.assert_allclose(prior.mean, 0.0, atol=0.1)
    np.testing.assert_allclose(prior.variance, 4.0, rtol=0.05)


class Modules(tf.Module):
    """What a model has parameters of."""

    def __init__(self, kernel, mean_function):
        super().__init__()
        self.kernel, self.mean_function = kernel, mean_function


@pytest.mark.parametrize(
    ("offset", "unit"),
    [(0.0, 2.0), (-1.0, 2.0), (7.0, 7.0), (-7.0, 7.0), (30.0, 20.0), (1e5, 20.0)],
)
def test_an_offset_counts_as_known_to_some_standard_deviations_of_f(offset, unit):
    k = gpflow.kernels.SquaredExponential(variance=3.0) + gpflow.kernels.Matern12(variance=1.0)
    gpflow.set_trainable(k.kernels[1].variance, False)
    vector = ParameterVector(Modules(k, gpflow.functions.Constant(offset)))
    mean, scale = vector.prior_moments(3.0)
    assert mean[-1] == offset
    np.testing.assert_allclose(scale[-1], 3.0 * unit)
    np.testing.assert_allclose(vector.unit_log_widths()[-1], unit)


def test_the_units_of_offsets_follow_the_variance_that_is_asked_about():
    k = gpflow.kernels.SquaredExponential(variance=4.0)
    vector = ParameterVector(Modules(k, gpflow.functions.Constant(0.0)))
    at = vector.value()
    k.variance.assign(9.0)
    np.testing.assert_allclose(vector.unit_log_widths()[-1], 3.0)
    np.testing.assert_allclose(vector.unit_log_widths(at)[-1], 2.0)
    linear = Modules(gpflow.kernels.Cosine(), gpflow.functions.Constant(0.0))
    gpflow.set_trainable(linear.kernel, False)
    np.testing.assert_allclose(ParameterVector(linear).unit_log_widths(), [1.0])


@pytest.mark.slow
def test_a_stream_far_from_zero_is_learned_with_a_constant_that_starts_there(rng):
    X = rng.uniform(-3.0, 3.0, (60, 1))
    Y = 1e5 + np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
    noise, mean = gpflow.likelihoods.Gaussian(0.1), gpflow.functions.Constant(1e5)
    model = sgp.StreamingGP(gpflow.kernels.SquaredExponential(), noise, mean)
    for rows in (slice(0, 30), slice(30, 60)):
        model.update((X[rows], Y[rows]))
    at = np.linspace(-2.5, 2.5, 20)[:, None]
    np.testing.assert_allclose(model.predict_f(at)[0], 1e5 + np.sin(2.0 * at), atol=0.15)
    assert 0.005 < model.likelihood.variance.numpy() < 0.02


@pytest.mark.parametrize(
    "strategy",
    [slow(sgp.VariationalHyperparameters()), sgp.PointHyperparameters()],
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


@pytest.mark.slow
@pytest.mark.parametrize("make", [coregionalised, changing, mixed])
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


@eager
@pytest.mark.parametrize("full_covariance", [False, slow(True)])
def test_nothing_to_learn_is_allowed(rng, full_covariance):
    k, likelihood = kernel(), gpflow.likelihoods.Gaussian(0.1)
    gpflow.set_trainable(k, False)
    gpflow.set_trainable(likelihood, False)
    strategy = sgp.VariationalHyperparameters(full_covariance=full_covariance)
    data = smooth_data(rng, 10)
    means = []
    for hyperparameters in (strategy, FIXED):
        model = sgp.StreamingGP(
            k, likelihood, pseudo_points=EVERY_INPUT, hyperparameters=hyperparameters
        )
        model.update(data)
        means.append(model.predict_f(data[0])[0])
    np.testing.assert_allclose(*means, rtol=10.0 * ALGEBRA)


def test_what_is_trainable_cannot_change_under_a_distribution(rng):
    model, data = regressor(pseudo_points=EVERY_INPUT), smooth_data(rng, 10)
    model.update(data, learn=False)
    gpflow.set_trainable(model.kernel.variance, False)
    with pytest.raises(InvalidDataError, match="trainable"):
        model.update(data)


def test_the_default_is_eight_values_of_epsilon():
    default, four = sgp.VariationalHyperparameters(), sgp.VariationalHyperparameters(num_samples=4)
    assert len(default.noise(21, 0)) == 8
    assert len(default.noise(21, 0, full=False)) == 4
    assert len(four.noise(21, 0)) == 4
    both = sgp.VariationalHyperparameters(full_covariance=True)
    assert len(both.noise(3, 0)) == 8
    assert len(both.noise(21, 0)) == 42


def test_the_optimiser_turns_back_from_where_the_loss_is_not_finite():
    def loss(point):
        x = point[0]
        return (np.nan if x > 2.0 else -x), np.array([-1.0])

    start, free, seen = np.zeros(1), [(None, None)], []
    best, iterations = minimise(loss, start, free, "L-BFGS-B", 50, lambda *one: seen.append(one))
    assert 1.0 < best[0] <= 2.0
    assert [i for i, _ in seen] == list(range(1, iterations + 1))
    assert seen[-1][1] == pytest.approx(best[0])


@pytest.mark.parametrize("tolerance", [0.0, 0.1, 2.0])
def test_five_iterations_that_gain_too_little_are_the_last(tolerance):
    def valley(x):
        return scipy.optimize.rosen(x), scipy.optimize.rosen_der(x)

    seen = []
    start, free = np.array([-1.2, 1.0]), [(None, None)] * 2
    _, iterations = minimise(
        valley, start, free, "L-BFGS-B", 100, lambda _, f: seen.append(f), tolerance
    )
    gains = np.array(seen[5:]) - seen[:-5]
    assert len(seen) == iterations
    assert (gains[:-1] >= tolerance).all()
    assert (gains[-1] < tolerance) == (tolerance > 0.0)
    assert (seen[-1] > -1e-6) == (tolerance == 0.0)


def test_the_optimiser_refuses_a_start_that_is_not_finite():
    start, free = np.zeros(2), [(None, None)] * 2
    with pytest.raises(NumericalError, match="cavity covariance"):
        minimise(lambda x: (np.nan, x), start, free, "L-BFGS-B", 5, lambda *_: None)


@pytest.mark.slow
def test_the_width_of_q_does_not_halve_with_every_batch(rng):
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(lengthscales=np.ones(4)),
        gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.SharedPseudoPoints(30),
        optimiser=sgp.LocalOptimiser(max_iterations=5),
        seed=0,
    )
    for X in rng.uniform(-2.0, 2.0, (4, 50, 4)):
        model.update((X, np.sin(X[:, :1]) + 0.3 * rng.standard_normal((50, 1))))
    of_inputs_that_do_not_matter = np.sqrt(model.hyperparameter_posterior.variance)[2:4]
    assert (of_inputs_that_do_not_matter > 0.6).all()  # 0.3 if q(ε) takes no steps of its own


LONG = sgp.LocalOptimiser(max_iterations=300)
EVIDENCE, WHERE_IT_IS_FLAT = 1e-5, 2e-2
"""Relative differences of two optimisers: in the evidence, and in parameters at its flat top."""


def test_maximum_likelihood_is_that_of_the_exact_gp(rng):
    X, Y = smooth_data(rng, 30)
    model = model_of(sgp.PointHyperparameters(), optimiser=LONG)
    info = model.update((X, Y))
    oracle = gpflow.models.GPR((X, Y), kernel(), noise_variance=0.1)
    gpflow.optimizers.Scipy().minimize(oracle.training_loss, oracle.trainable_variables)
    np.testing.assert_allclose(info.free_energy, oracle.log_marginal_likelihood(), rtol=EVIDENCE)
    np.testing.assert_allclose(
        model.kernel.lengthscales, oracle.kernel.lengthscales, rtol=0.5 * WHERE_IT_IS_FLAT
    )
    assert info.nugget == 0.0
    there = gpflow.models.GPR((X, Y), model.kernel, likelihood=model.likelihood)
    for ours, theirs in zip(model.predict_f(X[:9]), there.predict_f(X[:9]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=THROUGH_CHOLESKY)


def labels(rng, X):
    return (rng.uniform(size=X.shape) < scipy.special.expit(3.0 * np.sin(2.0 * X))).astype(float)


def waits(rng, X):
    return rng.gamma(2.0, 0.5 * np.exp(np.sin(2.0 * X)))


@pytest.mark.parametrize(
    ("observe", "likelihood"),
    [
        (waits, lambda: gpflow.likelihoods.Gamma(shape=1.0)),  # which has a parameter
        slow(labels, gpflow.likelihoods.Bernoulli),
    ],
)
def test_few_data_of_any_likelihood_have_the_largest_bound(observe, likelihood):
    """That of GPflow's VGP, whose q(f) and parameters are optimised together."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-3.0, 3.0, (30, 1))
    data, (k, noise) = (X, observe(rng, X)), (gpflow.kernels.SquaredExponential(), likelihood())
    mean = gpflow.functions.Constant(0.5)
    gpflow.set_trainable(mean, False)
    oracle = gpflow.models.VGP(data, gpflow.kernels.SquaredExponential(), likelihood(), mean)
    options = {"hyperparameters": sgp.PointHyperparameters()}
    model = sgp.StreamingGP(k, noise, mean_function=mean, **options)
    found = model.update(data).free_energy
    optimiser = gpflow.optimizers.Scipy()
    optimiser.minimize(oracle.training_loss, oracle.trainable_variables, options={"maxiter": 1000})
    assert found == pytest.approx(float(oracle.elbo()), abs=1e-3)
    for one, other in ((k, oracle.kernel), (noise, oracle.likelihood)):
        pairs = zip(one.trainable_parameters, other.trainable_parameters, strict=True)
        for learned, wanted in pairs:
            np.testing.assert_allclose(learned, wanted, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("observe", "likelihood"),
    [
        (waits, lambda: gpflow.likelihoods.Gamma(shape=1.0)),
        (labels, gpflow.likelihoods.Bernoulli),
    ],
)
def test_many_data_of_any_likelihood_have_nearly_the_largest_bound(observe, likelihood):
    """That of GPflow's SVGP on enough points; a sample of the data falls short by chance."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-3.0, 3.0, (800, 1))
    data, (k, noise) = (X, observe(rng, X)), (gpflow.kernels.SquaredExponential(), likelihood())
    model = sgp.StreamingGP(k, noise, hyperparameters=sgp.PointHyperparameters())
    model.update(data)

    def bound(one, other, variables):
        oracle = gpflow.models.SVGP(one, other, np.linspace(-3.0, 3.0, 30)[:, None])
        gpflow.set_trainable(oracle.inducing_variable, False)
        loss = oracle.training_loss_closure(data)
        free = [oracle.q_mu.unconstrained_variable, oracle.q_sqrt.unconstrained_variable]
        free = [*free, *variables]
        gpflow.optimizers.Scipy().minimize(loss, free, options={"maxiter": 2000})
        return -float(loss())

    found = bound(k, noise, [])
    best = bound(k, noise, [*k.trainable_variables, *noise.trainable_variables])
    assert best - found < 2.0


@pytest.mark.slow
def test_two_batches_of_half_a_weight_say_of_epsilon_what_one_says():
    """With labels, whose evidence has a bound, and after another batch has gone."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-3.0, 3.0, (20, 1))
    once, twice = (
        sgp.StreamingGP(gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli())
        for _ in range(2)
    )
    data = X, labels(rng, X)
    once.update(data)
    for _ in range(2):
        twice.update(data, learn=False)
    twice.fade(0.5)
    twice.update((X[:5] + 0.1, labels(rng, X[:5])))
    twice.remove("batch-2")
    q, p = (one.hyperparameter_posterior for one in (twice, once))
    np.testing.assert_allclose(q.mean, p.mean, atol=1e-3)
    np.testing.assert_allclose(q.variance, p.variance, rtol=1e-3)


@pytest.mark.slow
def test_a_batch_of_labels_that_is_fitted_again_says_of_epsilon_what_it_said():
    rng = np.random.default_rng(5)
    X = rng.uniform(-3.0, 3.0, (40, 1))
    Y, model = (
        labels(rng, X),
        sgp.StreamingGP(gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli()),
    )
    for part in np.split(np.arange(40), 2):
        model.update((X[part], Y[part]))
    before = model.hyperparameter_posterior
    model.revisit("batch-0", (X[:20], Y[:20]))
    moved = model.hyperparameter_posterior.mean - before.mean
    assert np.abs(moved / np.sqrt(before.variance)).max() < 0.3


@pytest.mark.parametrize("prior_on", ["constrained", slow("unconstrained")])
def test_map_adds_gpflow_priors_once(rng, prior_on):
    X, Y = smooth_data(rng, 30)

    def with_prior():
        k = kernel()
        k.lengthscales.prior = tfp.distributions.Normal(np.float64(3.0), np.float64(0.1))
        k.lengthscales.prior_on = prior_on
        return k

    model = model_of(sgp.PointHyperparameters(), with_prior(), optimiser=LONG)
    model.update((X, Y))
    oracle = gpflow.models.GPR((X, Y), with_prior(), noise_variance=0.1)
    gpflow.optimizers.Scipy().minimize(oracle.training_loss, oracle.trainable_variables)
    np.testing.assert_allclose(
        model.kernel.lengthscales, oracle.kernel.lengthscales, rtol=0.5 * WHERE_IT_IS_FLAT
    )
    np.testing.assert_allclose(model.kernel.variance, oracle.kernel.variance, rtol=WHERE_IT_IS_FLAT)


def test_one_point_batches_do_not_trap_maximum_likelihood(rng):
    """One point's likelihood is largest without noise; later batches must find back from there."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(4), hyperparameters=sgp.PointHyperparameters(),
    )  # fmt: skip
    noise = []
    for size in (20, 1, 20, 20):
        X = rng.uniform(-3, 3, (size, 1))
        model.update((X, np.sin(X) + 0.1 * rng.standard_normal(X.shape)))
        noise.append(model.likelihood.variance.numpy())
    assert noise[1] < 1e-3 < noise[-1] < 0.1


# ---- memory ----


def remembering(memory, pseudo_points, **options):
    point = sgp.PointHyperparameters(remember=memory)
    return regressor(hyperparameters=point, pseudo_points=pseudo_points, **options)


@pytest.mark.parametrize(
    ("memory", "points", "why"),
    [
        ("evidence", sgp.ConditionalPseudoPoints(5), "Conditional.* no factor that is free of ε"),
        ("divergence", EVERY_INPUT, "with a point at every input.* no white noise"),
    ],
)
def test_a_memory_that_points_cannot_have_is_refused(memory, points, why):
    with pytest.raises(InvalidDataError, match=f"'{memory}' .*{why}"):
        remembering(memory, points)


@pytest.mark.slow
def test_other_likelihoods_have_both_memories_and_a_file_keeps_the_name(rng, tmp_path):
    X, Y = labelled(rng, 30)
    learned = []
    for memory in ("evidence", "divergence"):
        model = classifier(hyperparameters=sgp.PointHyperparameters(remember=memory))
        model.update((X[:15, :1], Y[:15]))
        path = tmp_path / f"{memory}.npz"
        model.save(path)
        loaded = sgp.StreamingGP.load(
            path, gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli()
        )
        assert loaded.settings.hyperparameters.remember == memory
        energies = [one.update((X[15:, :1], Y[15:])).free_energy for one in (model, loaded)]
        assert energies[0] == energies[1]
        learned.append(model.parameter_vector.value())
    assert not np.allclose(*learned)


@pytest.mark.parametrize(
    ("points", "options"),
    [
        slow(sgp.PrivatePseudoPoints(10, budget=30), {"alpha": 0.5}),
        (sgp.SharedPseudoPoints(12), {}),
    ],
    ids=["power EP within a budget", "shared"],
)
def test_a_stream_that_remembers_by_the_divergence_learns(rng, points, options):
    X, Y = smooth_data(rng, 60)
    model = remembering("divergence", points, **options)
    for i in range(3):
        model.update((X[i::3], Y[i::3]))
    assert np.mean((model.predict_f(X)[0] - Y) ** 2) < 0.1 * np.var(Y)


OF_A_FAMILY = 0.3
"""By how many standard deviations, or what share of them, a Gaussian may miss the posterior."""
BY_DRAWS = 0.02
"""Relative error of moments of some ten thousand draws."""


def variables_of(q, location, scale):
    """Optimiser variables of a Gaussian."""
    white = (np.linalg.solve(scale, part) for part in (q.mean - location, q.scale))
    return np.ravel(type(q).from_mean_scale(*white).unconstrained())


@pytest.mark.parametrize("full_covariance", [False, True])
def test_variables_of_a_gaussian_are_read_as_it(rng, full_covariance):
    strategy = sgp.VariationalHyperparameters(full_covariance=full_covariance)
    prior = strategy.prior(ParameterVector(kernel()))
    E = len(prior.mean)
    root = np.eye(E) + (0.3 * np.tril(rng.normal(size=(E, E))) if full_covariance else 0.0)
    q = type(prior).from_mean_scale(rng.normal(size=E), 0.3 * root)
    location, scale = strategy.location_scale(prior, None)
    found = strategy.posterior(variables_of(q, location, scale), location, scale)
    np.testing.assert_allclose(found.mean, q.mean, rtol=ALGEBRA)
    here, there = (one.scale @ np.transpose(one.scale) for one in (found, q))
    np.testing.assert_allclose(here, there, rtol=ALGEBRA, atol=ALGEBRA)


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


@pytest.mark.slow
def test_the_variational_posterior_of_exact_regression_is_that_of_nuts(rng):
    """With Z = X the structured q(ε) is plain VI on the exact marginal likelihood: of one batch,
    and of four.
    """
    X, Y = smooth_data(rng, 100, noise=0.3)
    found = []
    for number in (1, 4):
        model = model_of(sgp.VariationalHyperparameters(full_covariance=True), optimiser=LONG)
        prior = model.hyperparameter_posterior
        for rows in np.array_split(np.arange(100), number):
            model.update((X[rows], Y[rows]), learn=True)
        found.append(model.hyperparameter_posterior)
    q = found[0]

    oracle = gpflow.models.GPR((X, Y), kernel(), noise_variance=0.1)
    vector = ParameterVector(oracle)
    assert list(vector.parameters) == list(model.parameter_vector.parameters)

    def log_density(epsilon):
        with vector.substituted(epsilon):
            log_prior = tfp.distributions.MultivariateNormalTriL(prior.mean, prior.scale)
            return oracle.log_marginal_likelihood() + log_prior.log_prob(epsilon)

    def logs(draws):
        """Of positive numbers, of which the variance leans far where it is unconstrained."""
        parts = vector.pieces(np.arange(draws.shape[1]))
        values = [one.transform.forward(draws[:, np.ravel(i).astype(int)]) for one, i in parts]
        return np.log(np.hstack(values))

    exact = logs(nuts(log_density, tf.constant(q.mean), np.sqrt(q.variance)))
    mean, sd = exact.mean(axis=0), exact.std(axis=0)
    for q in found:
        white = rng.standard_normal((20_000, len(q.mean)))
        own = logs(np.asarray(q.mean) + white @ np.transpose(q.scale))
        assert (np.abs(own.mean(axis=0) - mean) < OF_A_FAMILY * sd).all()
        ratio = own.std(axis=0) / sd
        assert (ratio > 1.0 - OF_A_FAMILY).all()
        assert (ratio < 1.0 + OF_A_FAMILY).all()


def test_no_value_of_epsilon_counts_at_which_the_data_are_impossible(rng):
    """A noise variance that is linear in x is nowhere below zero where there are data."""

    def parts():
        noise = gpflow.functions.Linear(A=np.full((1, 1), 0.2), b=np.full(1, 0.05))
        return gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(noise)

    X, Xnew = rng.uniform(0.0, 1.0, (60, 1)), np.linspace(0.02, 0.98, 40)[:, None]
    Y = np.sin(6.0 * X) + (0.05 + 0.5 * X) * rng.standard_normal(X.shape)
    model = sgp.StreamingGP(*parts())
    model.update((X, Y))
    kernel, likelihood = parts()
    exact = gpflow.models.GPR((X, Y), kernel, likelihood=likelihood)
    gpflow.optimizers.Scipy().minimize(exact.training_loss, exact.trainable_variables)
    (mean, variance), (right, spread) = model.predict_y(Xnew), exact.predict_y(Xnew)
    assert np.sqrt(np.mean((mean - right) ** 2 / spread)) < 0.5
    assert 0.8 < np.median(np.sqrt(variance / spread)) < 1.25


def test_a_stream_learns_the_same_in_any_order_and_in_any_batches(rng):
    """Where factors are the data: after all of them what is known of ε is by little another."""
    X, Y = smooth_data(rng, 40, noise=0.3)
    found = []
    for number, order in ((1, range(40)), (5, reversed(range(40)))):
        model = model_of(sgp.VariationalHyperparameters(full_covariance=True))
        batches = np.array_split(np.array(list(order)), number)
        for index, rows in enumerate(batches, 1):
            model.update((X[rows], Y[rows]), learn=index == number)
        found.append(model.hyperparameter_posterior)
    one, five = found
    np.testing.assert_allclose((five.mean - one.mean) / np.sqrt(one.variance), 0.0, atol=0.02)
    np.testing.assert_allclose(five.variance / one.variance, 1.0, atol=0.05)


@pytest.mark.parametrize("full_covariance", [False, True])
def test_a_step_that_makes_epsilon_too_narrow_to_be_squared_is_none(full_covariance):
    strategy = sgp.VariationalHyperparameters(full_covariance=full_covariance)
    parameters = ParameterVector(kernel())
    zeros, unit = np.zeros(parameters.size), np.eye(parameters.size)

    def penalty(width):
        widths = unit.copy()
        widths[-1, -1] = width
        q = type(strategy.prior(parameters)).from_mean_scale(zeros, widths)
        return strategy.penalty(tf.constant(variables_of(q, zeros, unit)), parameters).numpy()

    assert penalty(1e-14) == pytest.approx(-np.log(1e-14) - 0.5)
    assert penalty(1e-16) == np.inf


def test_gpflow_priors_become_the_prior_of_epsilon():
    k = kernel()
    k.variance.prior = tfp.distributions.Gamma(np.float64(80.0), np.float64(20.0))
    k.lengthscales.prior = tfp.distributions.Normal(np.float64(-1.0), np.float64(0.2))
    k.lengthscales.prior_on = "unconstrained"
    model = model_of(sgp.VariationalHyperparameters(), k)
    paths = list(model.parameter_vector.parameters)
    q = model.hyperparameter_posterior
    i = paths.index("kernel.lengthscales")
    np.testing.assert_allclose(q.mean[i : i + 2], -1.0, atol=0.5 * BY_DRAWS)
    np.testing.assert_allclose(np.sqrt(q.variance)[i : i + 2], 0.2, rtol=BY_DRAWS)
    draws = model.hyperparameter_samples(50_000)["kernel.variance"]
    np.testing.assert_allclose(draws.mean(), 4.0, rtol=0.5 * BY_DRAWS)
    np.testing.assert_allclose(draws.std(), 80.0**0.5 / 20.0, rtol=BY_DRAWS)


def test_the_default_prior_is_as_wide_in_the_logarithm_as_asked():
    k = gpflow.kernels.SquaredExponential(variance=1e-3, lengthscales=[30.0, 1.0])
    model = model_of(sgp.VariationalHyperparameters(prior_log_scale=0.05), k)
    for path, draws in model.hyperparameter_samples(50_000).items():
        np.testing.assert_allclose(
            np.std(np.log(draws), axis=0), 0.05, rtol=2.5 * BY_DRAWS, err_msg=path
        )


def test_earlier_batches_say_less_of_epsilon_and_the_same_of_f(rng):
    """What a batch finds is prior × Π t_a(ε)^(λ^age) over ε, and all of f as it was. How far q(ε)
    has moved is in units of its width.
    """
    share = 0.5
    strategy = sgp.VariationalHyperparameters(num_samples=2, forgetting_factor=share)
    model = model_of(strategy, optimiser=QUICK)
    assert model.settings.learning == sgp.EveryUpdate()
    prior = model.ledger.prior.hyperparameters
    written = []
    for number in range(3):
        X, Y = smooth_data(rng, 12)
        before, mean = model.factors, model.hyperparameter_posterior.mean
        model.update((X, Y))
        q = model.hyperparameter_posterior
        shift = np.sqrt(np.mean((q.mean - mean) ** 2 / q.variance))
        assert model.state.shift == pytest.approx(shift, rel=ALGEBRA)
        newest = model.factors[f"batch-{number}"].hyperparameters
        written = [factor**share for factor in written] + [newest]
        for name, factor in before.items():
            assert model.factors[name].pseudo_observations is factor.pseudo_observations
    expected = prior.times(written)
    np.testing.assert_allclose(q.mean, expected.mean, rtol=ALGEBRA)
    np.testing.assert_allclose(q.variance, expected.variance, rtol=ALGEBRA)


@pytest.mark.slow
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


@pytest.mark.slow
def test_predictions_integrate_over_epsilon(rng):
    X, Y = smooth_data(rng, 30)
    model = model_of(sgp.VariationalHyperparameters())
    model.update((X, Y))
    Xnew = rng.uniform(-3, 3, (7, 2))
    vector = model.parameter_vector
    means, variances, log_densities = [], [], []
    Ynew = rng.standard_normal((7, 1))
    of_f = replace(model.factors["batch-0"], hyperparameters=None)
    for epsilon in model.prediction_draws:
        known = sgp.StreamingGP(
            model.kernel, model.likelihood, pseudo_points=EVERY_INPUT,
            hyperparameters=FIXED, num_latent_gps=1,
        )  # fmt: skip
        known.adopt(known.ledger.replaced("batch-0", of_f))
        before = vector.value()
        vector.assign(epsilon)
        mean, variance = known.predict_f(Xnew)
        log_densities.append(known.predict_log_density((Xnew, Ynew)))
        vector.assign(before)
        means.append(mean)
        variances.append(variance)
    mean, variance = model.predict_f(Xnew)
    np.testing.assert_allclose(mean, np.mean(means, axis=0), rtol=10.0 * ALGEBRA)
    total = np.mean(variances, axis=0) + np.var(means, axis=0)
    np.testing.assert_allclose(variance, total, rtol=10.0 * ALGEBRA)
    mixture = np.log(np.mean(np.exp(log_densities), axis=0))
    found = model.predict_log_density((Xnew, Ynew))
    np.testing.assert_allclose(found, mixture, rtol=10.0 * ALGEBRA)


PERIODS = {
    "periodic": lambda: gpflow.kernels.Periodic(gpflow.kernels.SquaredExponential(), period=1.02),
    "cosine": lambda: gpflow.kernels.Cosine(lengthscales=1.02),
}


@pytest.mark.slow
@pytest.mark.parametrize("repeats", PERIODS)
def test_a_period_is_found_in_many_of_them(rng, repeats):
    """As by maximum likelihood of all data at once, from one start. With one as wide as that of
    other parameters the log density is below -2.
    """
    X = np.sort(rng.uniform(0.0, 12.0, size=(120, 1)), axis=0)
    f = 3.0 * np.sin(2.0 * np.pi * X) + 0.5 * X
    Y = f + 0.3 * rng.normal(size=X.shape)
    (X, X_new), (Y, Y_new) = np.split(X, [100]), np.split(Y, [100])

    def seasons():
        trend = gpflow.kernels.SquaredExponential(variance=10.0, lengthscales=10.0)
        return trend + PERIODS[repeats]()

    gp = sgp.StreamingGP(seasons(), gpflow.likelihoods.Gaussian(0.5), seed=0)
    gp.update((X, Y))
    exact = gpflow.models.GPR((X, Y), seasons(), noise_variance=0.5)
    gpflow.optimizers.Scipy().minimize(exact.training_loss, exact.trainable_variables)
    found, wanted = (np.mean(m.predict_log_density((X_new, Y_new))) for m in (gp, exact))
    assert found > wanted - 0.3


HEAVY = {
    "half Cauchy": tfp.distributions.HalfCauchy(np.float64(0.0), np.float64(5.0)),
    "inverse gamma": tfp.distributions.InverseGamma(np.float64(0.5), np.float64(0.5)),
    "log normal": tfp.distributions.LogNormal(np.float64(0.0), np.float64(10.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_data_outweigh_a_prior_with_heavy_tails(name, rng):
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1)
    for parameter in (kernel.variance, kernel.lengthscales, likelihood.variance):
        parameter.prior = HEAVY[name]
    model = sgp.StreamingGP(kernel, likelihood)
    X = rng.uniform(-3.0, 3.0, (60, 1))
    Y = np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
    model.update((X, Y))
    assert np.sqrt(np.mean((np.asarray(model.predict_f(X)[0]) - np.sin(2.0 * X)) ** 2)) < 0.06


@pytest.mark.parametrize("name", ["inverse gamma", slow("Student t of ε")])
def test_few_data_meet_a_prior_by_its_own_density(name, rng):
    """One parameter, so that its exact posterior is a sum over a grid; the others stay."""
    X = np.linspace(0.0, 1.0, 8)[:, None]
    Y = 0.4 * rng.standard_normal(X.shape)
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1)
    gpflow.set_trainable(kernel, False)
    noise, number = likelihood.variance, np.float64
    noise.prior = tfp.distributions.InverseGamma(number(2.0), number(0.1))
    if name != "inverse gamma":
        noise.prior_on = "unconstrained"
        noise.prior = tfp.distributions.StudentT(number(2.0), number(-3.0), number(1.0))
    model = sgp.StreamingGP(kernel, likelihood, seed=0)
    for rows in (slice(0, 3), slice(3, 8)):
        model.update((X[rows], Y[rows]))
    assert set(model.hyperparameter_samples(3)) == {"likelihood.variance"}
    assert (kernel.variance.numpy(), kernel.lengthscales.numpy()) == (1.0, 1.0)
    q = model.hyperparameter_posterior
    K, grid = np.asarray(kernel(X)), np.linspace(-9.0, 3.0, 301)
    variances = noise.transform.forward(grid).numpy()
    logs = noise.prior.log_prob(grid if noise.prior_on.value == "unconstrained" else variances)
    if name == "inverse gamma":
        logs += noise.transform.forward_log_det_jacobian(grid, 0)
    logs += [
        scipy.stats.multivariate_normal(None, K + v * np.eye(8)).logpdf(Y[:, 0]) for v in variances
    ]
    weights = np.exp(logs - np.max(logs))
    weights /= weights.sum()
    mean = weights @ grid
    width = np.sqrt(weights @ (grid - mean) ** 2)
    assert abs(float(q.mean[0]) - mean) < 0.15 * width
    assert 0.85 < float(np.sqrt(q.variance[0])) / width < 1.15


@storable
@dataclass(frozen=True, eq=False)
class InPairs(expfam.Normal):
    """Correlations between coordinates 0 and 1, 2 and 3, and so on."""

    @staticmethod
    def mean_scale_of(numbers):
        mean, lower = expfam.Normal.mean_scale_of(numbers)
        pair = np.arange(lower.shape[0]) // 2
        return mean, lower * (pair[:, None] == pair)


@storable
@dataclass(frozen=True)
class StayingPoint(sgp.PointHyperparameters):
    """It hardly moves."""

    def penalty(self, variables, parameters):
        return super().penalty(variables, parameters) + 1e8 * tf.reduce_sum(variables**2)


@storable
@dataclass(frozen=True)
class DrawingPoint(sgp.PointHyperparameters):
    def draw(self, variables, location, scale, noise):
        return super().draw(variables, location, scale, noise) + 1.0


def test_with_a_point_at_every_input_families_and_penalties_of_ones_own_count(rng):
    X = rng.uniform(-2.0, 2.0, (15, 1))
    data = X, np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)

    def fitted(hyperparameters):
        parts = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1)
        model = sgp.StreamingGP(*parts, hyperparameters=hyperparameters, seed=0)
        start = model.parameter_vector.value()
        model.update(data)
        return model.hyperparameter_posterior, model.parameter_vector.value() - start

    full, pairs = (
        np.asarray(fitted(sgp.VariationalHyperparameters(family=family))[0].precision)
        for family in (expfam.Normal, InPairs)
    )
    assert pairs[:2, :2] == pytest.approx(full[:2, :2], rel=1e-3)
    assert pairs[2, 2] == pytest.approx(full[2, 2], rel=1e-3)
    assert abs(pairs[2, :2]).max() < 1e-9 < abs(full[2, :2]).max()
    _, moved = fitted(StayingPoint())
    assert 0.0 < abs(moved).max() < 1e-3
    with pytest.raises(InvalidDataError, match="with the draw of PointHyperparameters, or few"):
        fitted(DrawingPoint())


def test_a_prior_that_no_gaussian_stands_for_is_refused_by_name():
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1)
    likelihood.variance.prior = tfp.distributions.Gamma(np.float64(0.01), np.float64(0.01))
    why = r"prior Gamma of likelihood\.variance has no finite"
    with pytest.raises(InvalidDataError, match=why):
        sgp.StreamingGP(kernel, likelihood)
