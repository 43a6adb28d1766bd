"""A point ε that the clients of a Gaussian process learn together (PVI 2018, eq. 5)."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import streaming_gp as sgp
from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import Process, PseudoObservations
from tests.oracles.builders import EVERY_INPUT, FIXED, thirds
from tests.tolerances import THROUGH_CHOLESKY

LEARNED = pvi.LikelihoodParameters()


def model(hyperparameters=FIXED, likelihood=None, noise=0.5, columns=1):
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(variance=0.7),
        likelihood or gpflow.likelihoods.Gaussian(noise),
        mean_function=gpflow.functions.Constant(0.3),
        pseudo_points=EVERY_INPUT,
        hyperparameters=hyperparameters,
        num_latent_gps=columns,
    )


def server_of(gp, shards):
    return pvi.Server(gp.prior(), pvi.make_clients(gp, shards, update=sgp.GPUpdate()))


def data_of(rng, size, columns=1):
    X = rng.uniform(-3.0, 3.0, (size, 1))
    phases = np.arange(columns)
    return X, 1.0 + np.sin(2.0 * X + phases) + 0.2 * rng.standard_normal((size, columns))


def exact(data, noise=0.5):
    """GPflow's exact regression, at the hyperparameters that models start from."""
    kernel = gpflow.kernels.SquaredExponential(variance=0.7)
    return gpflow.models.GPR(data, kernel, gpflow.functions.Constant(0.3), noise)


def free_energy(gp, q, shards):
    """Value and gradient by ε: a term of each client, and the prior's."""
    terms = [gp.data_term_by_hyperparameters(q, shard) for shard in shards.values()]
    terms.append(gp.prior_term_by_hyperparameters(q))
    return sum(one.value for one in terms), sum(one.gradient for one in terms)


def exact_factor(X, Y, noise=0.5):
    """The likelihood of Gaussian noise, as pseudo-observations of f at X."""
    root = np.eye(len(X)) / np.sqrt(noise)
    return PseudoObservations(X, root[None], (root @ Y)[None], 0.0)


@pytest.mark.usefixtures("eager")
def test_terms_of_clients_and_of_the_prior_add_up_to_the_log_evidence_and_its_gradient(rng):
    """Where q is the exact posterior F is the log evidence, and q need not move with ε. One of the
    hyperparameters has a prior of its own.
    """
    data = data_of(rng, 15, columns=2)
    gp, shards, oracle = model(columns=2), thirds(*data), exact(data)
    q = Process(tuple(exact_factor(*shard) for shard in shards.values()))
    for kernel in (gp.kernel, oracle.kernel):
        kernel.lengthscales.prior = tfp.distributions.Gamma(np.float64(3.0), np.float64(2.0))
    value, gradient = free_energy(gp, q, shards)
    with tf.GradientTape() as tape:
        log_evidence = oracle.log_posterior_density()
    variables = [
        oracle.kernel.lengthscales, oracle.kernel.variance, oracle.likelihood.variance,
        oracle.mean_function.c,
    ]  # fmt: skip
    wanted = tape.gradient(log_evidence, [one.unconstrained_variable for one in variables])
    assert value == pytest.approx(float(log_evidence), abs=THROUGH_CHOLESKY)
    np.testing.assert_allclose(gradient, np.ravel(wanted), atol=THROUGH_CHOLESKY)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "noise"),
    [(pvi.Sequential(), 3.0), (pvi.Synchronous(), 0.003), (pvi.Asynchronous(), 3.0)],
)
def test_what_is_learned_is_most_likely_whatever_the_schedule(rng, schedule, noise):
    data = data_of(rng, 45)
    oracle, gp = exact(data, noise), model(noise=noise)
    gpflow.optimizers.Scipy().minimize(oracle.training_loss, oracle.trainable_variables)
    server = server_of(gp, thirds(*data))
    history = pvi.fit(server, schedule, 28, hyperparameters=LEARNED)
    assert not any(one.refused or one.failed for one in history)
    for mine, best in (
        (gp.kernel.lengthscales, oracle.kernel.lengthscales),
        (gp.kernel.variance, oracle.kernel.variance),
        (gp.likelihood.variance, oracle.likelihood.variance),
        (gp.mean_function.c, oracle.mean_function.c),
    ):
        assert mine.numpy() == pytest.approx(best.numpy(), rel=0.01)
    before = gp.parameter_vector.value()
    gp.adopt(server.ledger)
    np.testing.assert_array_equal(gp.parameter_vector.value(), before)
    assert history[-1].metrics["gradient_norm"] < 1e-3


@pytest.mark.slow
def test_with_another_likelihood_it_is_the_gradient_of_what_a_fit_reaches(rng):
    """The free energy of a fit at ε, by differences: q is at its optimum, and need not move."""
    X, Y = data_of(rng, 20)
    data, step = (X, (Y > 1.0).astype(float)), 1e-3
    gp = model(likelihood=gpflow.likelihoods.Bernoulli())
    start = gp.parameter_vector.value()

    def reached(epsilon):
        gp.parameter_vector.assign(epsilon)
        energy = gp.update(data, batch_id="all").free_energy
        q = gp.posterior_process
        gp.remove("all")
        return energy, q

    energy, q = reached(start)
    value, gradient = free_energy(gp, q, {"all": data})
    assert value == pytest.approx(energy, abs=1e-4)
    wanted = [
        (reached(start + h)[0] - reached(start - h)[0]) / (2.0 * step)
        for h in step * np.eye(len(start))
    ]
    np.testing.assert_allclose(gradient, wanted, atol=0.01)


def test_factors_that_speak_of_epsilon_are_no_point(rng):
    shards = thirds(*data_of(rng, 6))
    gp = model(sgp.VariationalHyperparameters())
    for term in (
        lambda: gp.data_term_by_hyperparameters(gp.prior(), shards["client-0"]),
        lambda: gp.prior_term_by_hyperparameters(gp.prior()),
    ):
        with pytest.raises(InvalidDataError, match=r"wants a model with FixedHyperparameters\(\)"):
            term()


def test_a_model_without_trainable_parameters_has_nothing_to_learn(rng):
    gp = model()
    gpflow.set_trainable(gp, False)
    with pytest.raises(InvalidDataError, match="no trainable_variables to learn"):
        pvi.fit(server_of(gp, thirds(*data_of(rng, 6))), hyperparameters=LEARNED)
