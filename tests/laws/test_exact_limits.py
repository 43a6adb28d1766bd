"""Every approximation at the limit where it is exact (maths page, "Exact places")."""

from dataclasses import replace

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.laws import eager, slow
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    NOISE,
    assert_same_arrays,
    assert_same_predictions,
    evidence,
    kernel,
    known_model,
    mean_of_two,
    rough_kernel,
)
from tests.oracles.reference import smooth_data, svgp_at_optimum
from tests.tolerances import (
    ALGEBRA,
    FREE_ENERGY_AT_OPTIMUM,
    PREDICTIONS_AT_OPTIMUM,
    THROUGH_CHOLESKY,
    THROUGH_NUGGET,
)


def with_nugget(nugget):
    """GPflow's jitter set to the nugget that the update used: the same model, to rounding."""
    return gpflow.config.as_context(replace(gpflow.config.config(), jitter=nugget))


def rough(points, likelihood, mean_function=None, make=rough_kernel):
    """A model of a rough kernel whose hyperparameters are known.

    :param likelihood: Or the variance of Gaussian noise.
    """
    if isinstance(likelihood, float | np.ndarray):
        likelihood = gpflow.likelihoods.Gaussian(likelihood)
    return sgp.StreamingGP(
        make(), likelihood, mean_function, pseudo_points=points, hyperparameters=FIXED
    )


@eager
@pytest.mark.parametrize(("num_columns", "num_batches"), [(3, 3), slow(1, 1), slow(1, 20)])
def test_a_point_at_every_input_is_the_exact_gp(rng, num_batches, num_columns):
    """So is the log normaliser at other hyperparameters than those of the updates."""
    X, Y = smooth_data(rng, 30, num_columns)
    Y += 5.0
    mean = gpflow.functions.Constant(5.0)
    oracle = gpflow.models.GPR((X, Y), rough_kernel(), mean_function=mean, noise_variance=0.02)
    model, order = rough(EVERY_INPUT, 0.02, mean), rng.permutation(len(X))
    free_energy = sum(
        model.update((X[rows], Y[rows])).free_energy for rows in np.array_split(order, num_batches)
    )
    assert_same_predictions(model, oracle, rng.uniform(-3, 3, (30, 2)))
    np.testing.assert_allclose(free_energy, oracle.log_marginal_likelihood(), rtol=THROUGH_CHOLESKY)
    for one in (model, oracle):
        one.kernel.kernels[0].lengthscales.assign([1.3, 0.4])
    wanted = oracle.log_marginal_likelihood()
    assert abs(wanted - free_energy) > 1.0
    np.testing.assert_allclose(evidence(model), wanted, rtol=THROUGH_CHOLESKY)


STILL = {"optimise_locations": False}


@eager
@pytest.mark.parametrize(
    "points",
    [
        EVERY_INPUT,
        slow(sgp.PrivatePseudoPoints(1, **STILL)),
        slow(sgp.ConditionalPseudoPoints(1, **STILL)),
        slow(sgp.IndependentPseudoPoints(1, **STILL)),
    ],
    ids=lambda points: type(points).__name__,
)
@pytest.mark.parametrize("scale", [slow(1.0), 1e-4])
def test_of_a_single_datum_of_one_input_too(points, scale):
    """However small: variances are compared with the prior's."""
    data, noise = (np.array([[0.3]]), np.array([[1.2 * scale]])), 0.1 * scale**2
    kernel, likelihood = (
        gpflow.kernels.Matern52(scale**2),
        gpflow.likelihoods.Gaussian(noise, variance_lower_bound=1e-12),
    )
    model = sgp.StreamingGP(kernel, likelihood, pseudo_points=points, hyperparameters=FIXED)
    info = model.update(data)
    oracle = gpflow.models.GPR(data, kernel, likelihood=likelihood)
    assert_same_predictions(model, oracle, np.array([[-0.5], [0.3], [1.0]]), THROUGH_NUGGET * scale)
    evidence = oracle.log_marginal_likelihood()
    np.testing.assert_allclose(info.free_energy, evidence, rtol=THROUGH_NUGGET)


def sloping_noise():
    variance = gpflow.functions.Polynomial(1, input_dim=2, output_dim=1, w=[[0.3, 0.05, 0.0]])
    return gpflow.likelihoods.Gaussian(variance=variance)


def constant_noise():
    return gpflow.likelihoods.Gaussian(0.05)


@pytest.mark.parametrize(
    ("noise", "num_columns"), [slow(constant_noise, 1), slow(constant_noise, 2), (sloping_noise, 1)]
)
def test_one_batch_is_sgpr(rng, noise, num_columns):
    X, Y = smooth_data(rng, 60, num_columns)
    Y += 5.0
    mean, likelihood = gpflow.functions.Constant(5.0), noise()
    model = rough(sgp.PrivatePseudoPoints(10), likelihood, mean)
    info = model.update((X, Y), learn=False)
    oracle = gpflow.models.SGPR(
        (X, Y), rough_kernel(), model.factors[info.batch_id].Z, mean_function=mean,
        likelihood=likelihood,
    )  # fmt: skip
    with with_nugget(info.nugget):
        np.testing.assert_allclose(info.free_energy, oracle.elbo(), rtol=ALGEBRA)
        assert_same_predictions(model, oracle, rng.uniform(-3, 3, (20, 2)), ALGEBRA)


def test_the_second_batch_is_sparse_vi_under_the_cavity(rng):
    """A dense oracle: condition on what the first batch says, then Titsias' bound by hand."""
    X, Y = smooth_data(rng, 60)
    model = rough(sgp.PrivatePseudoPoints(6), 0.05, gpflow.functions.Constant(0.5))
    model.update((X[:30], Y[:30]), learn=False)
    X2, y2 = X[30:], Y[30:]
    before = lambda points: [np.asarray(t) for t in model.predict_f(points, full_cov=True)]  # noqa: E731
    cavity = model.ledger.posterior
    info = model.update((X2, y2), learn=False)
    Z2 = model.factors[info.batch_id].Z
    after = [np.asarray(t) for t in model.predict_f(X2)]
    model.adopt(model.ledger.without(info.batch_id))
    assert model.posterior_process.pseudo_observations == cavity.pseudo_observations
    joint_mean, joint_cov = before(np.concatenate([Z2, X2]))
    m = len(Z2)
    K_bb = joint_cov[0, :m, :m] + info.nugget * np.eye(m)
    K_bf, K_ff = joint_cov[0, :m, m:], joint_cov[0, m:, m:]
    Q = K_bf.T @ np.linalg.solve(K_bb, K_bf)
    residual = y2 - joint_mean[m:]
    C = Q + 0.05 * np.eye(len(y2))
    log_density = -0.5 * (
        residual.T @ np.linalg.solve(C, residual)
        + np.linalg.slogdet(C)[1]
        + len(y2) * np.log(2 * np.pi)
    )
    bound = log_density.item() - np.trace(K_ff - Q) / (2 * 0.05)
    np.testing.assert_allclose(info.free_energy, bound, rtol=THROUGH_NUGGET)
    mean = joint_mean[m:] + Q @ np.linalg.solve(C, residual)
    np.testing.assert_allclose(after[0], mean, atol=THROUGH_NUGGET)


@eager
def test_noise_that_differs_by_output_makes_separate_models_of_one_kernel(rng):
    X, Y = smooth_data(rng, 30, 2)
    noise = np.array([0.03, 0.4])
    model = rough(EVERY_INPUT, noise)
    batches = (slice(0, 9), slice(9, 30))
    energies = [model.update((X[rows], Y[rows])).free_energy for rows in batches]
    Xnew = rng.uniform(-2, 2, (15, 2))
    mean, variance = (np.asarray(part) for part in model.predict_y(Xnew))
    evidence = 0.0
    for p, column in enumerate(np.split(Y, 2, axis=1)):
        alone = gpflow.models.GPR((X, column), rough_kernel(), noise_variance=noise[p])
        evidence += float(alone.log_marginal_likelihood())
        expected = alone.predict_y(Xnew)
        np.testing.assert_allclose(mean[:, [p]], expected[0], atol=THROUGH_CHOLESKY)
        np.testing.assert_allclose(variance[:, [p]], expected[1], atol=THROUGH_CHOLESKY)
    np.testing.assert_allclose(sum(energies), evidence, rtol=THROUGH_CHOLESKY)


PROBABILITIES = 2e-3
"""By how much Monte Carlo probabilities of all classes together may miss one."""
FREE_ENERGY_BY_DRAWS = 1e-2
"""Relative error of a free energy whose expectations are Monte Carlo estimates."""


LIKELIHOODS = {
    "probit": (lambda: gpflow.likelihoods.Bernoulli(), lambda f: f > 0),
    "logit": (lambda: gpflow.likelihoods.Bernoulli(invlink=tf.math.sigmoid), lambda f: f > 0),
    "poisson": (lambda: gpflow.likelihoods.Poisson(), lambda f: np.round(np.exp(f))),
    "student": (lambda: gpflow.likelihoods.StudentT(scale=0.3, df=4.0), lambda f: f),
}


@pytest.mark.parametrize("name", ["probit", *map(slow, ["logit", "poisson", "student"])])
@pytest.mark.parametrize("number", [slow(8), "all"])
def test_one_batch_is_svgp_at_its_optimum(rng, name, number):
    make, observe = LIKELIHOODS[name]
    X, F = smooth_data(rng, 12, noise=0.3)
    Y = observe(F).astype(float)
    model = rough(sgp.PrivatePseudoPoints(number), make())
    info = model.update((X, Y))
    oracle, elbo = svgp_at_optimum((X, Y), rough_kernel(), make(), model.factors[info.batch_id].Z)
    np.testing.assert_allclose(info.free_energy, elbo, rtol=FREE_ENERGY_AT_OPTIMUM)
    Xnew = rng.uniform(-2, 2, (20, 2))
    assert_same_arrays(model.predict_y(Xnew), oracle.predict_y(Xnew), PREDICTIONS_AT_OPTIMUM)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "tolerance"),
    [
        (gpflow.likelihoods.Softmax, 0.03),  # Monte Carlo on both sides
        (gpflow.likelihoods.MultiClass, 0.08),  # not log-concave: clipped sites miss the optimum
    ],
)
def test_several_classes_agree_with_svgp(rng, make, tolerance):
    X, F = smooth_data(rng, 90, 3)
    Y = np.argmax(F, axis=1)[:, None]
    se = lambda: gpflow.kernels.SquaredExponential(variance=2.0)  # noqa: E731
    model = rough(sgp.PrivatePseudoPoints(10), make(3), make=se)
    info = model.update((X, Y))
    assert model.num_latent_gps == 3
    many_draws = make(3)  # GPflow's Softmax draws anew at each call
    many_draws.num_monte_carlo_points = 2000
    oracle, elbo = svgp_at_optimum((X, Y), se(), many_draws, model.factors[info.batch_id].Z)
    np.testing.assert_allclose(info.free_energy, elbo, rtol=FREE_ENERGY_BY_DRAWS)
    probability = np.asarray(model.predict_y(X)[0])
    np.testing.assert_allclose(probability.sum(axis=1), 1.0, atol=PROBABILITIES)
    np.testing.assert_allclose(probability, oracle.predict_y(X)[0], atol=tolerance)


def test_of_several_optima_of_classes_the_best_that_is_found_counts():
    """Steps that rest where negative precisions are left aside ended 15 nats below this optimum."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (150, 1))
    F = 2.0 * np.hstack([np.sin(2 * X), np.cos(2 * X), -np.sin(X)])
    Y = np.argmax(F + 0.5 * rng.gumbel(size=F.shape), axis=1)[:, None].astype(float)
    se = lambda: gpflow.kernels.SquaredExponential(lengthscales=0.7, variance=2.0)  # noqa: E731
    classes, fixed = gpflow.likelihoods.MultiClass(3), sgp.FixedHyperparameters()
    info = sgp.StreamingGP(se(), classes, hyperparameters=fixed).update((X, Y))
    oracle = gpflow.models.VGP((X, Y), se(), classes, num_latent_gps=3)
    gpflow.set_trainable(oracle.kernel, False)
    gpflow.set_trainable(classes, False)
    steps = {"maxiter": 100}
    minimise = gpflow.optimizers.Scipy().minimize
    minimise(oracle.training_loss, oracle.trainable_variables, options=steps)
    assert info.free_energy > float(oracle.elbo()) - 0.05 * len(X)


@pytest.mark.slow
def test_several_binary_outputs_are_several_models(rng):
    X, F = smooth_data(rng, 50, 2)
    Y = (F > 0).astype(float)
    points = sgp.PrivatePseudoPoints(8, optimise_locations=False)
    joint, *apart = (rough(points, gpflow.likelihoods.Bernoulli()) for _ in range(3))
    joint_info = joint.update((X, Y))
    infos = [model.update((X, Y[:, i : i + 1])) for i, model in enumerate(apart)]
    total = sum(info.free_energy for info in infos)
    np.testing.assert_allclose(joint_info.free_energy, total, rtol=THROUGH_CHOLESKY)
    mean = np.asarray(joint.predict_f(X)[0])
    for i, model in enumerate(apart):
        np.testing.assert_allclose(mean[:, i : i + 1], model.predict_f(X)[0], atol=THROUGH_NUGGET)


def test_likelihoods_by_monte_carlo_are_evaluated_at_fixed_points(rng):
    """GPflow's stochastic Gaussian, made deterministic, agrees with the closed form."""
    data, mean = smooth_data(rng, 30), gpflow.functions.Constant(0.5)
    models = [
        rough(EVERY_INPUT, make(0.5), mean)
        for make in (gpflow.likelihoods.GaussianMC, gpflow.likelihoods.Gaussian)
    ]
    energies = [model.update(data).free_energy for model in models]
    np.testing.assert_allclose(*energies, rtol=THROUGH_CHOLESKY)
    Xnew = rng.uniform(-2.0, 2.0, (10, 2))
    assert_same_arrays(*(model.predict_y(Xnew) for model in models), FREE_ENERGY_AT_OPTIMUM)


NUM_VALUES = 1000


def streamed(rng, pseudo_points, size):
    """A model of two hyperparameters after two small batches, the data, and its free energies."""
    kernel = gpflow.kernels.SquaredExponential()
    gpflow.set_trainable(kernel.variance, False)
    model = sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(0.1), pseudo_points=pseudo_points,
        optimiser=sgp.LocalOptimiser(max_iterations=15),
    )  # fmt: skip
    X = rng.uniform(-3, 3, (2 * size, 1))
    Y = np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
    infos = [model.update((X[i : i + size], Y[i : i + size])) for i in (0, size)]
    return model, (X, Y), [info.free_energy for info in infos]


def exact_evidences(model, draws, data):
    """``log p(y | ε)`` of exact regression at every ε."""
    (X, Y), found = data, model.parameter_vector.constrained(draws)
    squares = np.square(X - X.T)
    return [
        multivariate_normal(cov=np.exp(-0.5 * squares / ell**2) + noise * np.eye(len(X))).logpdf(
            Y.T
        )
        for ell, noise in zip(
            found["kernel.lengthscales"], found["likelihood.variance"], strict=True
        )
    ]


@pytest.mark.parametrize(
    "pseudo_points",
    [
        EVERY_INPUT,
        slow(sgp.PrivatePseudoPoints(6)),
        slow(sgp.SharedPseudoPoints(6)),
        slow(sgp.ConditionalPseudoPoints(6)),
        slow(sgp.IndependentPseudoPoints(6)),
    ],
)
def test_free_energies_add_up_to_less_than_the_log_evidence(rng, pseudo_points):
    model, data, energies = streamed(rng, pseudo_points, 10)
    prior, q = model.prior().hyperparameters, model.hyperparameter_posterior
    mean, scale = np.asarray(q.mean), 1.5 * np.diag(np.asarray(q.scale))
    draws = mean + scale * rng.standard_normal((NUM_VALUES, len(mean)))
    weights = np.array(exact_evidences(model, draws, data))
    weights += norm(np.asarray(prior.mean), np.diag(np.asarray(prior.scale))).logpdf(draws).sum(1)
    weights -= norm(mean, scale).logpdf(draws).sum(1)
    log_evidence = logsumexp(weights) - np.log(NUM_VALUES)
    assert sum(energies) < log_evidence


def power_ep(alpha, data):
    fitted = known_model(sgp.PrivatePseudoPoints(9), alpha=alpha)
    return fitted.update(data).free_energy


@pytest.mark.slow
def test_power_ep_tends_to_the_variational_bound_and_fitc_lies_above(data):
    from gpflow.models import GPRFITC

    bound = power_ep(0.0, data)
    gaps = [power_ep(alpha, data) - bound for alpha in (1e-3, 1e-4)]
    assert gaps[0] / gaps[1] == pytest.approx(10.0, rel=0.1)  # linear in α
    fitted = known_model(sgp.PrivatePseudoPoints(9, optimise_locations=False), alpha=1.0)
    info = fitted.update(data)
    fitc = GPRFITC(
        data, kernel(), fitted.factors["batch-0"].Z,
        mean_function=mean_of_two(), noise_variance=NOISE,
    )  # fmt: skip
    with gpflow.config.as_context(gpflow.config.Config(jitter=info.nugget)):
        assert info.free_energy == pytest.approx(
            float(fitc.fitc_log_marginal_likelihood()), rel=THROUGH_CHOLESKY
        )
        assert_same_arrays(fitted.predict_f(data[0]), fitc.predict_f(data[0]), THROUGH_NUGGET)


class ByQuadrature(gpflow.likelihoods.Gaussian):
    """Gaussian noise that the model does not know for Gaussian."""


GAUSSIAN_BOTH_WAYS = gpflow.likelihoods.Gaussian, ByQuadrature
STAY = sgp.PrivatePseudoPoints(9, optimise_locations=False)


@eager
@pytest.mark.parametrize(("alpha", "learn"), [(0.3, False), slow(0.3, None), slow(1.0, None)])
def test_power_ep_of_any_likelihood_is_for_gaussian_noise_its_closed_form(data, alpha, learn):
    rested = sgp.LocalOptimiser(site_steps=100)
    models = [
        known_model(STAY, kind(NOISE), alpha=alpha, optimiser=rested) for kind in GAUSSIAN_BOTH_WAYS
    ]
    for rows in (slice(0, 15), slice(15, 30)):
        batch = data[0][rows], data[1][rows]
        energies = [model.update(batch, learn=learn).free_energy for model in models]
        assert energies[0] == pytest.approx(energies[1], abs=THROUGH_NUGGET)
    assert_same_predictions(*models, data[0][:20], THROUGH_NUGGET)


def expectation_propagation(K, mean, likelihood, Y, alpha):
    """Energy, and mean and variance of f, of power EP with a site for each datum; with α = 1 the
    energy is eq. 3.65 of Rasmussen & Williams (2006).
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    w, site = np.full(len(Y), 1e-9), np.zeros(len(Y))
    for _ in range(200):
        S = np.linalg.inv(np.linalg.inv(K) + np.diag(w))
        m, v = S @ (site + np.linalg.solve(K, mean)), np.diag(S)
        cavity = 1.0 / (1.0 / v - alpha * w)
        at = cavity * (m / v - alpha * site)
        F = at + np.sqrt(cavity) * nodes[:, None]
        density = np.exp(alpha * likelihood._scalar_log_prob(None, F, Y[:, 0]).numpy())
        Z = weights @ density
        first, second = (weights @ (F**k * density) / Z for k in (1, 2))
        variance = second - first**2
        new = (1.0 / variance - 1.0 / cavity) / alpha, (first / variance - at / cavity) / alpha
        w, site = 0.5 * (w + new[0]), 0.5 * (site + new[1])
    energy = multivariate_normal.logpdf(site / w, mean, K + np.diag(1.0 / w))
    spread = cavity + 1.0 / (alpha * w)
    of_sites = norm.logpdf(site / w, at, np.sqrt(spread))
    of_sites += 0.5 * (-np.log(alpha) + (1.0 - alpha) * np.log(2.0 * np.pi / w))
    return energy + np.sum(np.log(Z) - of_sites) / alpha, m, v


@pytest.mark.slow
@pytest.mark.parametrize(
    ("likelihood", "alpha"),
    [
        (gpflow.likelihoods.Bernoulli, 1.0),
        (gpflow.likelihoods.Poisson, 0.5),
        (gpflow.likelihoods.Bernoulli, 0.5),
        (gpflow.likelihoods.Poisson, 1.0),
    ],
)
def test_power_ep_with_a_point_at_every_input_is_that_of_the_data(likelihood, alpha):
    rng = np.random.default_rng(8)
    X = np.stack(np.meshgrid(np.linspace(-2, 2, 4), [-1.5, 0.0, 1.5]), -1).reshape(-1, 2)
    Y = np.round(np.abs(np.sin(X[:, :1]) + rng.uniform(size=(12, 1)))).clip(0.0, 1.0)
    points = sgp.PrivatePseudoPoints(12, optimise_locations=False)
    model = known_model(points, likelihood(), alpha=alpha)
    info = model.update((X, Y))
    mean = np.full(12, 2.0)
    energy, *moments = expectation_propagation(kernel()(X).numpy(), mean, likelihood(), Y, alpha)
    assert info.free_energy == pytest.approx(energy, abs=100.0 * THROUGH_NUGGET)
    for found, wanted in zip(model.predict_f(X), moments, strict=True):
        np.testing.assert_allclose(np.ravel(found), wanted, atol=100.0 * THROUGH_NUGGET)


@pytest.mark.slow
def test_power_ep_of_labels_tends_to_the_variational_bound(data):
    labels = data[0], (data[1] > 2.0).astype(float)

    def energy(alpha):
        model = known_model(STAY, gpflow.likelihoods.Bernoulli(), alpha=alpha)
        return model.update(labels).free_energy

    bound = energy(0.0)
    gaps = [energy(alpha) - bound for alpha in (1e-2, 1e-3)]
    assert gaps[0] / gaps[1] == pytest.approx(10.0, rel=0.1)  # linear in α


def test_power_ep_wants_one_function_for_each_observation():
    with pytest.raises(InvalidDataError, match="unless each observation is of one latent function"):
        known_model(sgp.PrivatePseudoPoints(3), gpflow.likelihoods.Softmax(3), alpha=0.5)
