"""Outputs that mix latent functions: one model, exact where a pseudo-point is at every pair."""

import copy

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk
from gpflow import likelihoods as gl
from scipy import stats

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.oracles.builders import (
    EVERY_INPUT,
    FIXED,
    QUICK,
    assert_same_arrays,
    assert_same_predictions,
    assert_unchanged,
    evidence,
    predicted,
)
from tests.oracles.reference import smooth_data
from tests.tolerances import ALGEBRA, STANDARD_ERRORS

NOISE = np.array([0.1, 0.02, 0.3])
WEIGHTS = np.array([[1.0, -0.5], [0.3, 0.8], [-0.7, 0.0]])
COVARIANCES = {
    (False, False): "npnp->np",
    (True, False): "npmp->pnm",
    (False, True): "npnq->npq",
    (True, True): "npmq->npmq",
}


def mixing(W=WEIGHTS):
    """Two latent functions, one of which sees one column alone."""
    rough = gk.Matern52(lengthscales=0.8, active_dims=[1])
    return gk.LinearCoregionalization([rough, gk.SquaredExponential(variance=0.7)], W)


def mean_of_three():
    return gpflow.functions.Linear(A=[[1.0, -2.0, 0.5], [0.0, 0.3, 1.0]], b=[5.0, -1.0, 0.0])


def mixed(pseudo_points=EVERY_INPUT, hyperparameters=FIXED, **options):
    return sgp.StreamingGP(
        mixing(), gl.Gaussian(NOISE), mean_of_three(),
        pseudo_points=pseudo_points, hyperparameters=hyperparameters, **options,
    )  # fmt: skip


class Oracle:
    """The exact posterior of all outputs, from the kernel matrices of the latent functions."""

    def __init__(self, X, Y):
        self.X = X
        self.K = self.flat(X, X) + np.kron(np.eye(len(X)), np.diag(NOISE))
        self.residual = np.ravel(Y - mean_of_three()(X))

    @staticmethod
    def flat(X, X2):
        latent = np.stack([kernel(X, X2) for kernel in mixing().kernels])
        joint = np.einsum("pl,ql,lnm->npmq", WEIGHTS, WEIGHTS, latent)
        return joint.reshape(3 * len(X), 3 * len(X2))

    def predict(self, X):
        """Mean [N, P] and covariance [N, P, N, P]."""
        across = self.flat(X, self.X)
        gain = np.linalg.solve(self.K, across.T).T
        mean = np.ravel(mean_of_three()(X)) + gain @ self.residual
        covariance = self.flat(X, X) - gain @ across.T
        return mean.reshape(len(X), 3), covariance.reshape(len(X), 3, len(X), 3)

    @property
    def log_evidence(self):
        return stats.multivariate_normal(cov=self.K).logpdf(self.residual)


@pytest.fixture(scope="module")
def shards():
    X, Y = smooth_data(np.random.default_rng(7), 30, 3)
    Y += mean_of_three()(X)
    return {f"batch-{i}": (X[i::3], Y[i::3]) for i in range(3)}


def joined(shards, *names):
    X, Y = zip(*(shards[name] for name in names or shards), strict=True)
    return np.concatenate(X), np.concatenate(Y)


@pytest.fixture(scope="module")
def exact(shards):
    """A model after three batches, and the sum of its free energies."""
    model = mixed()
    return model, sum(model.update(data).free_energy for data in shards.values())


@pytest.fixture
def Xnew(rng):
    return rng.uniform(-2.0, 2.0, (20, 2))


IN_GRAPH = (False, False), (True, True)


def test_a_point_at_every_pair_is_the_exact_gp_of_all_outputs(exact, shards, Xnew):
    model, free_energy = exact
    oracle = Oracle(*joined(shards))
    mean, joint = oracle.predict(Xnew)
    for flags, form in COVARIANCES.items():
        found = model.predict_f(Xnew, *flags)
        assert_same_arrays(found, (mean, np.einsum(form, joint)), ALGEBRA)
    assert free_energy == pytest.approx(oracle.log_evidence, abs=ALGEBRA * abs(free_energy))
    assert evidence(model) == pytest.approx(free_energy, abs=ALGEBRA * abs(free_energy))
    assert model.posterior_process.num_pseudo_points == 90


def test_observations_have_the_noise_of_their_output(exact, shards, Xnew):
    model, _ = exact
    (mean, variance), Y = model.predict_f(Xnew), np.sin(Xnew @ np.ones((2, 3)))
    assert_same_arrays(model.predict_y(Xnew), (mean, variance + NOISE), ALGEBRA)
    density = stats.norm(mean, np.sqrt(variance + NOISE)).logpdf(Y).sum(axis=1)
    np.testing.assert_allclose(model.predict_log_density((Xnew, Y)), density, rtol=ALGEBRA)


@pytest.mark.parametrize("across", ["outputs", "inputs"])
def test_samples_have_the_predicted_covariance(exact, Xnew, across):
    model, number, X = exact[0], 20_000, Xnew[:2]
    flags = (False, True) if across == "outputs" else (True, False)
    samples = (model.predict_f_samples(X, number, *flags) - model.predict_f(X)[0]).numpy()
    some = samples[:, 0] if across == "outputs" else samples[:, :, 0]
    found, expected = some.T @ some / number, model.predict_f(X, *flags)[1][0].numpy()
    variance = expected.diagonal()
    error = np.sqrt((np.outer(variance, variance) + expected**2) / number)
    assert (np.abs(found - expected) < STANDARD_ERRORS * error).all()


def test_predictions_work_inside_a_graph_for_inputs_of_any_number(exact, Xnew):
    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float64)])
    def graph(X):
        return [exact[0].predict_f(X, *flags)[1] for flags in IN_GRAPH]

    expected = [exact[0].predict_f(Xnew, *flags)[1] for flags in IN_GRAPH]
    assert_same_arrays(graph(tf.constant(Xnew)), expected, ALGEBRA)


def test_a_removed_batch_was_never_seen(exact, shards, Xnew):
    model = copy.deepcopy(exact[0])
    model.remove("batch-1")
    mean, joint = Oracle(*joined(shards, "batch-0", "batch-2")).predict(Xnew)
    assert_same_arrays(model.predict_f(Xnew, True, True), (mean, joint), ALGEBRA)
    model.update(shards["batch-1"], batch_id="batch-1")
    model.revisit("batch-0", shards["batch-0"])
    assert_same_predictions(model, exact[0], Xnew, ALGEBRA)


def test_a_ledger_from_elsewhere_can_be_adopted(exact, Xnew):
    model = mixed()
    np.testing.assert_allclose(model.predict_f(Xnew)[0], mean_of_three()(Xnew))
    model.adopt(exact[0].ledger)
    assert model.num_latent_gps == 2
    assert_same_predictions(model, exact[0], Xnew, 0.0, (False,))


LIKELIHOODS = {
    "classification": (gl.Bernoulli, lambda Y: (Y > 0.0).astype(float)),
    "heavy tails": (lambda: gl.StudentT(scale=0.3), lambda Y: Y),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_where_the_mixing_is_diagonal_outputs_are_independent_models(rng, Xnew, name):
    likelihood, observed = LIKELIHOODS[name]
    X, Y = smooth_data(rng, 24, 3)
    scales = np.array([0.7, 1.0, -1.5])
    alike = [gk.Matern52(), gk.SquaredExponential(lengthscales=0.6), gk.Matern32(variance=2.0)]
    apart = [w**2 * kernel.variance for w, kernel in zip(scales, alike, strict=True)]
    scaled = copy.deepcopy(alike)
    for kernel, variance in zip(scaled, apart, strict=True):
        kernel.variance.assign(variance)
    one, other = (
        sgp.StreamingGP(
            kernel, likelihood(), pseudo_points=EVERY_INPUT, hyperparameters=FIXED
        )
        for kernel in (
            gk.LinearCoregionalization(alike, np.diag(scales)), gk.SeparateIndependent(scaled),
        )
    )  # fmt: skip
    for rows in np.array_split(np.arange(24), 3):
        batch = X[rows], observed(Y[rows])
        energies = [model.update(batch).free_energy for model in (one, other)]
        np.testing.assert_allclose(*energies, rtol=ALGEBRA)
    for flags in COVARIANCES:
        assert_same_arrays(one.predict_f(Xnew, *flags), other.predict_f(Xnew, *flags), ALGEBRA)
    data = Xnew, observed(np.sin(Xnew @ np.ones((2, 3))))
    assert_same_arrays(one.predict_y(Xnew), other.predict_y(Xnew), ALGEBRA)
    found, expected = (model.predict_log_density(data) for model in (one, other))
    np.testing.assert_allclose(found, expected, rtol=ALGEBRA)


@pytest.mark.slow
def test_the_mixing_is_learned_and_points_keep_their_outputs(rng):
    """Two outputs are one function, the second one −2 times the first."""
    X, F = smooth_data(rng, 40, noise=0.0)
    Y = F @ [[1.0, -2.0]] + 0.05 * rng.standard_normal((40, 2))
    kernel = gk.LinearCoregionalization([gk.SquaredExponential()], [[1.0], [0.2]])
    model = sgp.StreamingGP(
        kernel, gl.Gaussian(0.1), pseudo_points=sgp.PrivatePseudoPoints(12, budget=24),
        hyperparameters=sgp.PointHyperparameters(), optimiser=sgp.LocalOptimiser(max_iterations=40),
    )  # fmt: skip
    info = model.update((X, Y))
    ratio = kernel.W[1, 0] / kernel.W[0, 0]
    assert float(ratio) == pytest.approx(-2.0, rel=0.05)
    Z = model.factors[info.batch_id].Z
    assert Z.shape == (12, 3)
    assert set(Z[:, 2]) <= {0.0, 1.0}
    assert not np.isin(Z[:, :2], X).any()  # inputs move
    for _ in range(2):
        model.update((X, Y), learn=False)
    assert model.posterior_process.num_pseudo_points == 24


STRATEGIES = {
    "auto": (sgp.PrivatePseudoPoints("auto", max_number=20), 40),
    "all within a budget": (sgp.PrivatePseudoPoints("all", budget=50), 50),
    "shared": (sgp.SharedPseudoPoints(30), 30),
    "conditional": (sgp.ConditionalPseudoPoints(20), 40),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_fewer_points_than_pairs_are_pairs_and_near_the_exact_gp(shards, name):
    strategy, number = STRATEGIES[name]
    model = mixed(strategy, optimiser=QUICK)
    batches = joined(shards, "batch-0", "batch-1"), shards["batch-2"]
    free_energy = sum(model.update(data).free_energy for data in batches)
    assert model.posterior_process.num_pseudo_points <= number
    assert all(set(factor.Z[:, 2]) <= {0.0, 1.0, 2.0} for factor in model.factors.values())
    oracle, X = Oracle(*joined(shards)), joined(shards)[0]
    assert free_energy < oracle.log_evidence + 0.01  # a merge projects, and is no bound
    exact, prior = oracle.predict(X)[0], mean_of_three()(X)
    assert np.mean((model.predict_f(X)[0] - exact) ** 2) < 0.25 * np.mean((exact - prior) ** 2)


@pytest.mark.slow
def test_hyperparameters_of_several_outputs_are_learned_within_a_budget(shards):
    model = mixed(
        sgp.PrivatePseudoPoints("all", budget=50), sgp.VariationalHyperparameters(), optimiser=QUICK
    )
    for data in (joined(shards, "batch-0", "batch-1"), shards["batch-2"]):
        model.update(data)
    X, Y = joined(shards)
    residual = Y - mean_of_three()(X)
    assert np.mean((model.predict_f(X)[0] - Y) ** 2) < 0.6 * np.mean(residual**2)


# ---- what is refused ----

BAD_BATCHES = {
    "two outputs": (lambda X, Y: (X, Y[:, :2]), r"Y must have shape \[N, 3\].*got \[10, 2\]"),
    "one output": (lambda X, Y: (X, Y[:, 0]), r"Y must have shape \[N, 3\].*got \[10\]"),
    "pairs": (lambda X, Y: (np.c_[X, X[:, 0]], Y), r"X must have shape \[N, 2\].*got \[10, 3\]"),
    "nan": (lambda X, Y: (X, np.full(Y.shape, np.nan)), "Y must be finite"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_bad_batches_get_one_clear_error_and_change_nothing(exact, shards, Xnew, name):
    model, (spoil, message) = exact[0], BAD_BATCHES[name]
    before = predicted(model, Xnew)
    with pytest.raises(InvalidDataError, match=message):
        model.update(spoil(*shards["batch-0"]))
    assert_unchanged(model, Xnew, before)


def test_the_first_batch_must_have_as_many_outputs_as_the_kernel(shards):
    X, Y = shards["batch-0"]
    kernels = [
        mixing(),
        gk.SharedIndependent(gk.Matern52(), 3),
        gk.SeparateIndependent([gk.RBF()] * 3),
    ]
    for kernel in kernels:
        model = sgp.StreamingGP(kernel, gl.Gaussian())
        with pytest.raises(InvalidDataError, match=r"Y must have shape \[N, 3\].*got \[10, 2\]"):
            model.update((X, Y[:, :2]))
        assert not model.factors


def test_there_must_be_as_much_noise_as_there_are_outputs(shards):
    with pytest.raises(InvalidDataError, match=r"Gaussian .* do not fit Y of shape \[10, 3\]"):
        sgp.StreamingGP(mixing(), gl.Gaussian([0.1, 0.2])).update(shards["batch-0"])


class Mine(gk.MultioutputKernel):
    """A kernel of several outputs that nobody knows."""

    num_latent_gps, latent_kernels, K, K_diag = 1, (), None, None


def noisy():
    return gk.LinearCoregionalization([gk.RBF() + gk.White()], WEIGHTS[:, :1])


def too_few():
    return gk.LinearCoregionalization([gk.RBF()], WEIGHTS)


UNFIT = {
    "a kernel too few": (too_few, gl.Gaussian, {}, r"W of shape \[3, 2\] wants 2 kernels, got 1"),
    "another kernel": (Mine, gl.Gaussian, {}, "LinearCoregionalization, got Mine"),
    "white noise": (noisy, gl.Gaussian, {}, "cannot hold white noise"),
    "one likelihood of all": (mixing, lambda: gl.Softmax(3), {}, "got Softmax"),
    "switched": (
        mixing, lambda: gl.SwitchedLikelihood([gl.Gaussian()] * 3), {}, "got SwitchedLikelihood",
    ),
    "scales by output": (mixing, lambda: gl.StudentT(scale=NOISE), {}, "StudentT must be single"),
    "a scale that varies": (
        mixing, lambda: gl.StudentT(scale=gpflow.functions.Constant(0.1)), {}, "StudentT must be",
    ),
    "latent functions": (mixing, gl.Gaussian, {"num_latent_gps": 3}, "is 3, but .* has 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFIT)
def test_what_has_no_meaning_for_mixed_outputs_is_refused(name):
    kernel, likelihood, options, message = UNFIT[name]
    with pytest.raises(InvalidDataError, match=message):
        sgp.StreamingGP(kernel(), likelihood(), **options)


def test_what_mixed_outputs_cannot_do_is_said(exact, tmp_path):
    model, _ = exact
    with pytest.raises(InvalidDataError, match="LinearCoregionalization has no NumPy form"):
        model.export(tmp_path / "predictor.npz")
    with pytest.raises(InvalidDataError, match="got a mixture of functions"):
        model.online()
