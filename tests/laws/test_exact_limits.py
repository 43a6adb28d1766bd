"""Every approximation at the limit where it is exact (maths page, "Exact places"): regression."""

from dataclasses import replace

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from tests.oracles.builders import FIXED, assert_same_predictions, rough_kernel
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA, THROUGH_CHOLESKY, THROUGH_NUGGET


def with_nugget(nugget):
    """GPflow's jitter set to the nugget that the update used: the same model, to rounding."""
    return gpflow.config.as_context(replace(gpflow.config.config(), jitter=nugget))


@pytest.mark.parametrize(
    ("num_columns", "num_batches"),
    [
        (1, 1),
        (1, 20),
        (3, 3),
        *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((1, 3), (3, 1), (3, 20))),
    ],
)
def test_a_point_at_every_input_is_the_exact_gp(rng, num_batches, num_columns):
    X, Y = smooth_data(rng, 80, num_columns)
    Y += 5.0
    mean = gpflow.functions.Constant(5.0)
    oracle = gpflow.models.GPR((X, Y), rough_kernel(), mean_function=mean, noise_variance=0.02)
    model = sgp.StreamingGP(
        rough_kernel(), gpflow.likelihoods.Gaussian(0.02), mean,
        pseudo_points=sgp.PrivatePseudoPoints("all"), hyperparameters=FIXED,
    )  # fmt: skip
    order = rng.permutation(len(X))
    free_energy = sum(
        model.update((X[rows], Y[rows])).free_energy for rows in np.array_split(order, num_batches)
    )
    assert_same_predictions(model, oracle, rng.uniform(-3, 3, (30, 2)))
    np.testing.assert_allclose(free_energy, oracle.log_marginal_likelihood(), rtol=THROUGH_CHOLESKY)


STILL = {"optimise_locations": False}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "points",
    [
        sgp.PrivatePseudoPoints("all"),
        sgp.PrivatePseudoPoints(1, **STILL),
        sgp.ConditionalPseudoPoints(1, **STILL),
        sgp.IndependentPseudoPoints(1, **STILL),
    ],
    ids=lambda points: type(points).__name__,
)
@pytest.mark.parametrize("scale", [1.0, 1e-4])
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


def test_the_log_normaliser_is_the_evidence_at_other_hyperparameters(rng):
    X, Y = smooth_data(rng, 50)
    likelihood = gpflow.likelihoods.Gaussian(0.02)
    model = sgp.StreamingGP(
        rough_kernel(),
        likelihood,
        pseudo_points=sgp.PrivatePseudoPoints("all"),
        hyperparameters=FIXED,
    )
    for rows in np.array_split(np.arange(50), 4):
        model.update((X[rows], Y[rows]))
    model.kernel.kernels[0].lengthscales.assign([1.3, 0.4])
    oracle = gpflow.models.GPR((X, Y), model.kernel, noise_variance=0.02)
    evidence = model.maximum_log_likelihood_objective()
    np.testing.assert_allclose(evidence, oracle.log_marginal_likelihood(), rtol=THROUGH_CHOLESKY)


@pytest.mark.parametrize("num_columns", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_one_batch_is_sgpr(rng, num_columns):
    X, Y = smooth_data(rng, 300, num_columns, input_dim=3)
    Y += 5.0
    mean = gpflow.functions.Constant(5.0)
    make_kernel = lambda: gpflow.kernels.SquaredExponential(lengthscales=[1.0, 2.0, 1.5])  # noqa: E731
    model = sgp.StreamingGP(
        make_kernel(), gpflow.likelihoods.Gaussian(0.05), mean,
        pseudo_points=sgp.PrivatePseudoPoints(20), hyperparameters=FIXED,
    )  # fmt: skip
    info = model.update((X, Y))
    oracle = gpflow.models.SGPR(
        (X, Y), make_kernel(), model.factors[info.batch_id].Z, mean_function=mean,
        noise_variance=0.05,
    )  # fmt: skip
    with with_nugget(info.nugget):
        np.testing.assert_allclose(info.free_energy, oracle.elbo(), rtol=ALGEBRA)
        assert_same_predictions(model, oracle, rng.uniform(-3, 3, (40, 3)), ALGEBRA)


def test_noise_that_depends_on_the_input_is_sgpr_with_that_noise(rng):
    X, Y = smooth_data(rng, 100)
    variance = gpflow.functions.Polynomial(1, input_dim=2, output_dim=1, w=[[0.3, 0.05, 0.0]])
    likelihood = gpflow.likelihoods.Gaussian(variance=variance)
    model = sgp.StreamingGP(
        rough_kernel(), likelihood, pseudo_points=sgp.PrivatePseudoPoints(15), hyperparameters=FIXED
    )
    info = model.update((X, Y))
    Z = model.factors[info.batch_id].Z
    oracle = gpflow.models.SGPR((X, Y), rough_kernel(), Z, likelihood=likelihood)
    with with_nugget(info.nugget):
        np.testing.assert_allclose(info.free_energy, oracle.elbo(), rtol=ALGEBRA)
        assert_same_predictions(model, oracle, rng.uniform(-2, 2, (20, 2)), ALGEBRA)


def test_the_second_batch_is_sparse_vi_under_the_cavity(rng):
    """A dense oracle: condition on what the first batch says, then Titsias' bound by hand."""
    X, Y = smooth_data(rng, 60)
    model = sgp.StreamingGP(
        rough_kernel(), gpflow.likelihoods.Gaussian(0.05),
        pseudo_points=sgp.PrivatePseudoPoints(6), hyperparameters=FIXED,
    )  # fmt: skip
    model.update((X[:30], Y[:30]))
    X2, y2 = X[30:], Y[30:]
    before = lambda points: [np.asarray(t) for t in model.predict_f(points, full_cov=True)]  # noqa: E731
    joint_mean, joint_cov = None, None
    cavity = model.ledger.posterior
    info = model.update((X2, y2))
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


def test_separate_kernels_are_separate_exact_gps(rng):
    X, Y = smooth_data(rng, 40, 2)
    kernels = [gpflow.kernels.SquaredExponential(), gpflow.kernels.Matern32(lengthscales=2.0)]
    model = sgp.StreamingGP(
        gpflow.kernels.SeparateIndependent(kernels), gpflow.likelihoods.Gaussian(0.03),
        pseudo_points=sgp.PrivatePseudoPoints("all"), hyperparameters=FIXED,
    )  # fmt: skip
    for rows in np.array_split(rng.permutation(40), 3):
        model.update((X[rows], Y[rows]))
    Xnew = rng.uniform(-2, 2, (15, 2))
    mean, variance = (np.asarray(t) for t in model.predict_f(Xnew))
    for i, k in enumerate(kernels):
        oracle = gpflow.models.GPR((X, Y[:, i : i + 1]), k, noise_variance=0.03)
        expected = oracle.predict_f(Xnew)
        np.testing.assert_allclose(mean[:, i : i + 1], expected[0], atol=THROUGH_CHOLESKY)
        np.testing.assert_allclose(variance[:, i : i + 1], expected[1], atol=THROUGH_CHOLESKY)


def test_shared_independent_kernel_is_the_plain_kernel(rng):
    X, Y = smooth_data(rng, 30, 2)
    k = gpflow.kernels.SquaredExponential()
    kernels = [k, gpflow.kernels.SharedIndependent(k, output_dim=2)]
    means = []
    for choice in kernels:
        model = sgp.StreamingGP(
            choice, gpflow.likelihoods.Gaussian(0.03),
            pseudo_points=sgp.PrivatePseudoPoints(5), hyperparameters=FIXED,
        )  # fmt: skip
        model.update((X, Y))
        means.append(model.predict_f(X)[0])
    np.testing.assert_array_equal(*means)


def test_noise_that_differs_by_output_makes_separate_models_of_one_kernel(rng):
    X, Y = smooth_data(rng, 30, 2)
    noise = np.array([0.03, 0.4])
    model = sgp.StreamingGP(
        rough_kernel(), gpflow.likelihoods.Gaussian(noise),
        pseudo_points=sgp.PrivatePseudoPoints("all"), hyperparameters=FIXED,
    )  # fmt: skip
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


def test_the_cavity_of_a_batch_is_the_model_that_never_saw_it(rng):
    X, Y = smooth_data(rng, 60)
    make = lambda: sgp.StreamingGP(  # noqa: E731
        rough_kernel(), gpflow.likelihoods.Gaussian(0.05),
        pseudo_points=sgp.PrivatePseudoPoints("all"), hyperparameters=FIXED,
    )  # fmt: skip
    all_three, without_second = make(), make()
    for i, rows in enumerate(np.array_split(np.arange(60), 3)):
        all_three.update((X[rows], Y[rows]))
        if i != 1:
            without_second.update((X[rows], Y[rows]))
    all_three.adopt(all_three.ledger.without("batch-1"))
    assert_same_predictions(all_three, without_second, rng.uniform(-2, 2, (20, 2)))
