"""Laws of exponential families, over the registry of families; and what single families add."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_gp import expfam
from streaming_gp.expfam import Dirichlet, IsotropicNormal, MeanFieldNormal, Normal, NormalWishart
from streaming_gp.expfam import DirichletNormalWishart as WithWeights
from streaming_gp.pvi.damping import damped
from tests.laws import slow
from tests.oracles.reference import FAMILY_COMPONENTS as COMPONENTS
from tests.oracles.reference import FAMILY_DIMENSION as DIMENSION
from tests.oracles.reference import assert_same
from tests.oracles.reference import random_member as member
from tests.tolerances import ALGEBRA, STANDARD_ERRORS, THROUGH_CHOLESKY

LAWS = settings(max_examples=5, deadline=None)
OF_EACH = settings(LAWS, max_examples=2)
seeds = st.integers(0, 2**31 - 1)
families = pytest.mark.parametrize("family", expfam.FAMILIES)
gaussians = pytest.mark.parametrize("family", expfam.GAUSSIANS)
families_by_cost = pytest.mark.parametrize(
    "family", [slow(one) if one in (NormalWishart, WithWeights) else one for one in expfam.FAMILIES]
)


def scipy_twin(q):
    covariance = np.asarray(q.covariance) if isinstance(q, Normal) else np.diag(q.variance)
    return scipy.stats.multivariate_normal(np.asarray(q.mean), covariance)


def tfp_twin(q):
    return tfp.distributions.MultivariateNormalTriL(q.mean, q.scale)


def assert_close(a, b, tolerance=THROUGH_CHOLESKY):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


@gaussians
@OF_EACH
@given(seeds)
def test_log_density_and_entropy_agree_with_scipy(family, seed):
    q = member(family, seed)
    x = np.random.default_rng(seed + 1).standard_normal((5, DIMENSION))
    assert_close(q.log_prob(x), scipy_twin(q).logpdf(x))
    assert_close(q.entropy(), scipy_twin(q).entropy())


@LAWS
@given(seeds)
def test_a_dirichlet_agrees_with_scipy(seed):
    q = member(Dirichlet, seed)
    twin = scipy.stats.dirichlet(q.concentration)
    x = twin.rvs(5, random_state=seed)
    assert_close(q.log_prob(x), [twin.logpdf(one) for one in x])
    assert_close(q.entropy(), twin.entropy())
    assert_close(q.mean, twin.mean())


@LAWS
@given(seeds)
def test_a_normal_wishart_agrees_with_scipy(seed):
    q = member(NormalWishart, seed)
    x = np.asarray(q.sample(4, seed=seed % 1000))
    expected = np.zeros(4)
    for k in range(COMPONENTS):
        scale = np.linalg.inv(q.scale_inverse[k])
        for n in range(4):
            mu, precision = x[n, k, :DIMENSION], x[n, k, DIMENSION:].reshape(DIMENSION, DIMENSION)
            covariance = np.linalg.inv(q.strength[k] * precision)
            expected[n] += scipy.stats.multivariate_normal(q.mean[k], covariance).logpdf(mu)
            expected[n] += scipy.stats.wishart(float(q.dof[k]), scale).logpdf(precision)
    assert_close(q.log_prob(x), expected)


@OF_EACH
@given(seeds)
def test_weights_and_components_are_independent(seed):
    q = member(WithWeights, seed)
    x = q.sample(4, seed=seed % 1000)
    weights, components = q.weights, q.components
    expected = weights.log_prob(x[:, :, 0]) + components.log_prob(x[:, :, 1:])
    assert_close(q.log_prob(x), expected)
    assert_close(q.entropy(), weights.entropy() + components.entropy())


@pytest.mark.parametrize("place", [0, 3], ids=["weights", "components"])
def test_where_weights_or_components_are_improper_so_is_the_product(place):
    natural = list(member(WithWeights, 0).natural)
    natural[place] = -natural[place]
    assert not WithWeights.is_proper_natural(*natural)


@gaussians
@OF_EACH
@given(seeds)
def test_kl_agrees_with_tfp(family, seed):
    q, p = member(family, seed), member(family, seed + 1)
    assert_close(q.kl_divergence(p), tfp.distributions.kl_divergence(tfp_twin(q), tfp_twin(p)))
    assert_close(q.kl_divergence(q), 0.0)
    assert q.kl_divergence(p) > 0.0


@families
@OF_EACH
@given(seeds)
def test_renyi_tends_to_kl_and_is_skew_symmetric(family, seed):
    q, p = member(family, seed), member(family, seed + 1)
    assert_close(expfam.Renyi(1.0 - 1e-6)(q, p.as_factor()), q.kl_divergence(p), 1e-4)
    skew = expfam.Renyi(0.3)(q, p.as_factor())
    assert_close(skew, expfam.Renyi(0.7)(p, q.as_factor()))


ONE = np.ones(1)


@pytest.mark.parametrize(
    "q",
    [
        Dirichlet(np.array([0.01, 0.3, 1e4])),
        Dirichlet(np.array([2e-3, 1e-3])),
        *(
            NormalWishart.from_standard(ONE[:, None], ONE, dof * ONE, ONE[:, None, None])
            for dof in (1e-3, 1e4)
        ),
    ],
    ids=["unequal weights", "small weights", "few degrees of freedom", "many"],
)
def test_mean_parameters_invert_however_far_from_where_newton_begins(q):
    found = type(q).from_mean_parameters(*q.mean_parameters())
    for eta, back in zip(q.natural, found.natural, strict=True):
        np.testing.assert_allclose(eta, back, rtol=THROUGH_CHOLESKY)


@pytest.mark.slow
@families
@settings(LAWS, max_examples=2)
@given(seeds)
def test_fisher_information_is_the_covariance_of_statistics(family, seed):
    q = member(family, seed)
    fisher = q.fisher_information().numpy()
    draws = q.sample(60_000, seed=3)
    flat = [np.reshape(t, (len(draws), -1)) for t in family.sufficient_statistics(draws)]
    statistics = np.concatenate(flat, axis=1)
    assert_close(fisher, fisher.T)
    scale = np.sqrt(np.diag(fisher))
    correlation_error = (np.cov(statistics.T) - fisher) / np.outer(scale, scale)
    assert np.abs(correlation_error).max() < 0.1


@families
@OF_EACH
@given(seeds)
def test_the_normaliser_is_kept(family, seed):
    prior, q = member(family, seed), member(family, seed + 1)
    assert_close((prior.as_factor() * (q / prior)).log_integral(), 0.0)
    evidence = 1.7
    scaled = expfam.Factor(family, (q / prior).natural, (q / prior).log_scale + evidence)
    assert_close((prior.as_factor() * scaled).log_integral(), evidence)


@families
@OF_EACH
@given(seeds, st.floats(0.01, 1.0))
def test_damping_interpolates_natural_parameters(family, seed, rho):
    old, new = member(family, seed).as_factor(), member(family, seed + 1).as_factor()
    for a, b, c in zip(old.natural, new.natural, damped(old, new, rho).natural, strict=True):
        assert_close((1 - rho) * a + rho * b, c, ALGEBRA)
    for b, c in zip(new.natural, damped(None, new, rho).natural, strict=True):
        assert_close(rho * b, c, ALGEBRA)


@families_by_cost
@OF_EACH
@given(seeds)
def test_the_natural_gradient_of_a_conjugate_likelihood_is_that_likelihood(family, seed):
    q, likelihood = member(family, seed), member(family, seed + 1).as_factor()

    def expected(q):  # without the base measure, which is the prior's
        return inner(likelihood.natural, q.mean_parameters())

    found = q.natural_gradient(expected)
    assert_same(found, likelihood, THROUGH_CHOLESKY)


def inner(a, b):
    return sum(tf.reduce_sum(x * y) for x, y in zip(a, b, strict=True))


@gaussians  # others have no formula of their own
@settings(LAWS, max_examples=1)
@given(seeds)
def test_so_is_the_natural_gradient_by_the_fisher_information(family, seed):
    q, likelihood = member(family, seed), member(family, seed + 1).as_factor()
    generic = expfam.ExponentialFamily.natural_gradient(
        q, lambda q: inner(likelihood.natural, q.mean_parameters())
    )
    assert_same(generic, likelihood, 1e-6)


@gaussians
@OF_EACH
@given(seeds)
def test_moments_of_a_product_within_the_family_are_matched_by_the_other_factor(family, seed):
    q, likelihood = member(family, seed), member(family, seed + 1).as_factor()
    found = q.moment_match(lambda q: (q.as_factor() * likelihood).log_integral())
    assert_same(found, likelihood, THROUGH_CHOLESKY)
    assert_close(found.log_scale, likelihood.log_scale)


@gaussians
@OF_EACH
@given(seeds)
def test_an_improper_gaussian_has_no_moments_to_match(family, seed):
    q = member(family, seed)
    improper = family(*(-eta for eta in q.natural))
    assert np.isnan(improper.moment_match(lambda q: tf.reduce_sum(q.mean)).log_scale)


@families
@OF_EACH
@given(seeds)
def test_expected_log_of_a_distribution_is_minus_the_cross_entropy(family, seed):
    q, p = member(family, seed), member(family, seed + 1)
    cross_entropy = q.entropy() + q.kl_divergence(p)
    assert_close(q.expected_log(p.as_factor()), -cross_entropy)


def dense(family, covariance):
    """The covariance matrix of what a family keeps of it."""
    if family is Normal:
        return np.asarray(covariance)
    return np.diag(np.broadcast_to(covariance, (DIMENSION,)))


def kept(family, matrix):
    """What a family keeps of a matrix."""
    if family is Normal:
        return matrix
    diagonal = np.diag(matrix)
    return diagonal if family is MeanFieldNormal else diagonal.mean()


@gaussians
def test_white_coordinates_are_those_of_the_lower_root(family, rng):
    q, x = member(family, 0), rng.standard_normal((4, DIMENSION))
    mean, covariance = q.moments()
    root = np.linalg.cholesky(dense(family, covariance))
    assert_close(q.scale, root)
    white = np.linalg.solve(root, (x - np.asarray(mean)).T).T
    assert_close(q.to_white(x), white)
    assert_close(q.from_white(white), x)


@gaussians
def test_variances_along_directions(family, rng):
    q, directions = member(family, 0), rng.standard_normal((4, DIMENSION))
    covariance = dense(family, q.moments()[1])
    assert_close(q.variance_along(directions), np.diag(directions @ covariance @ directions.T))
    assert_close(q.variance, np.diag(covariance))


@gaussians
def test_means_of_products_are_symmetric_and_over_rows(family, rng):
    a, b = rng.standard_normal((2, 5, DIMENSION))
    assert_close(family.mean_product(a, b), kept(family, (a.T @ b + b.T @ a) / 10.0))


@gaussians
def test_moments_make_the_member_that_has_them(family):
    q = member(family, 0)
    mean, covariance = q.moments()
    made = family.from_moments(mean, covariance)
    assert_same(made, q, THROUGH_CHOLESKY)
    assert_close(made.mean, mean)
    assert_close(made.variance, q.variance)


@gaussians
def test_unconstrained_numbers_are_a_mean_and_a_root(family):
    q = member(family, 0)
    numbers = q.unconstrained()
    assert numbers.shape == family.unconstrained_shape(DIMENSION)
    mean, root = family.mean_scale_of(numbers)
    assert_close(mean, q.mean)
    assert_close(root, q.scale)


@pytest.mark.parametrize("of", ["a number", "a covariance"])
@gaussians
def test_a_covariance_is_raised_where_it_falls_short_and_nowhere_else(family, of):
    """In the coordinates in which the floor is white, every direction is one at least."""
    covariance = member(family, 0).moments()[1]
    root = np.linalg.cholesky(dense(family, covariance))
    floor, white = 0.5, np.sqrt(0.5) * np.eye(DIMENSION)
    if of == "a covariance":
        floor = tf.constant(kept(family, root @ np.diag([0.5, 1.5, 2.0]) @ root.T))
        white = np.linalg.cholesky(dense(family, floor))
    raised = dense(family, family.raised(covariance, floor))
    before, after = (
        np.linalg.solve(white, np.linalg.solve(white, matrix).T)
        for matrix in (dense(family, covariance), raised)
    )
    values, vectors = np.linalg.eigh(before)
    assert (values < 1.0).any(), "nothing falls short"
    assert_close(after, (vectors * np.maximum(values, 1.0)) @ vectors.T)


def test_an_isotropic_normal_has_the_mean_variance_of_a_root():
    root = np.array([[1.0, 0.0], [0.5, 2.0]])
    q = IsotropicNormal.from_mean_scale(np.array([1.0, -1.0]), tf.constant(root))
    assert_close(q.variance, np.full(2, np.trace(root @ root.T) / 2.0))
    assert_close(q.mean, [1.0, -1.0])


@gaussians
def test_the_base_measure_is_that_of_lebesgue_over_a_power_of_two_pi(family):
    q, x = member(family, 0), np.zeros((2, DIMENSION))
    wanted = -0.5 * DIMENSION * np.log(2.0 * np.pi)
    assert_close(q.log_base_measure(x), [wanted, wanted])
    assert_close(q.expected_log_base_measure(), wanted)


@gaussians
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_single_number_that_is_not_finite_makes_no_gaussian(family, place, wrong):
    natural = [np.array(eta, float) for eta in member(family, 0).natural]
    assert family.is_proper_natural(*natural)
    natural[place].flat[0] = wrong
    assert not family.is_proper_natural(*natural)


@gaussians
def test_a_divergence_keeps_its_digits_where_a_width_is_much_smaller_than_a_mean(family):
    mean = np.full(DIMENSION, 20.0)
    away = family.from_mean_scale(mean, 1e-9 * np.eye(DIMENSION))
    standard = family.from_mean_scale(np.zeros(DIMENSION), np.eye(DIMENSION))
    log_widths = np.log(1e-18)
    exact = 0.5 * DIMENSION * (20.0**2 + 1e-18 - 1.0 - log_widths)
    np.testing.assert_allclose(away.kl_divergence(standard), exact, rtol=1e-12)
    np.testing.assert_allclose(
        away.entropy(), 0.5 * DIMENSION * (np.log(2.0 * np.pi) + 1.0 + log_widths), rtol=1e-12
    )


DRAWS = 20_000


@pytest.fixture(scope="module")
def q():
    return member(NormalWishart, 3)


@pytest.fixture(params=["scipy", "own"])
def draws(q, request):
    """Means [S, K, D] and precisions [S, K, D, D]."""
    if request.param == "own":
        x = np.asarray(q.sample(DRAWS, seed=1))
        return x[:, :, :DIMENSION], x[:, :, DIMENSION:].reshape(DRAWS, COMPONENTS, DIMENSION, -1)
    rng = np.random.default_rng(0)
    mu, precision = np.empty((DRAWS, COMPONENTS, DIMENSION)), []
    for k in range(COMPONENTS):
        scale = np.linalg.inv(q.scale_inverse[k])
        own = scipy.stats.wishart(float(q.dof[k]), scale).rvs(DRAWS, random_state=rng)
        root = np.linalg.cholesky(np.linalg.inv(q.strength[k] * own))
        noise = rng.standard_normal((DRAWS, DIMENSION, 1))
        mu[:, k] = q.mean[k] + (root @ noise)[:, :, 0]
        precision.append(own)
    return mu, np.stack(precision, axis=1)


def assert_is_mean(found, values):
    """Within standard errors of the mean of draws [S, ...]."""
    error = values.std(axis=0) / np.sqrt(len(values))
    np.testing.assert_array_less(np.abs(found - values.mean(axis=0)), STANDARD_ERRORS * error)


def test_the_expected_log_determinant(q, draws):
    assert_is_mean(q.expected_log_determinant(), np.linalg.slogdet(draws[1])[1])


def test_the_expected_squared_distance(q, draws, rng):
    mu, precision = draws
    for y in rng.standard_normal((3, DIMENSION)):
        values = np.einsum("ski,skij,skj->sk", y - mu, precision, y - mu)
        assert_is_mean(q.expected_squared_distance(y[None])[0], values)


def test_the_distance_scaled_by_the_mean_precision_of_one_degree_of_freedom(q, rng):
    Y = rng.standard_normal((4, DIMENSION))
    away = Y[:, None] - np.asarray(q.mean)
    wanted = np.einsum("nki,kij,nkj->nk", away, np.linalg.inv(q.scale_inverse), away)
    np.testing.assert_allclose(q.scaled_distance(Y), wanted, rtol=THROUGH_CHOLESKY)


def test_no_random_number_is_in_a_draw_twice(q):
    """Those of the mean beside those below the diagonal of Bartlett's root."""
    x = np.asarray(q.sample(1, seed=1))[0]
    mu, precision = x[:, :DIMENSION], x[:, DIMENSION:].reshape(COMPONENTS, DIMENSION, DIMENSION)
    root = np.linalg.cholesky(precision)
    bartlett = np.linalg.solve(np.linalg.cholesky(np.linalg.inv(q.scale_inverse)), root)
    away = np.sqrt(q.strength)[:, None] * (mu - np.asarray(q.mean))
    noise = np.einsum("kij,ki->kj", root, away)
    rows, columns = np.tril_indices(DIMENSION, -1)
    numbers = np.concatenate([noise.ravel(), bartlett[:, rows, columns].ravel()])
    assert len(np.unique(np.round(numbers, 6))) == len(numbers)


@pytest.mark.parametrize(
    ("place", "factor"),
    [(0, np.nan), (0, -0.5), (2, -1.0), (3, np.inf), (3, 0.5)],
    ids=["shape not a number", "shape", "strength", "scatter infinite", "scatter of the mean"],
)
def test_what_is_improper(place, factor):
    """Each change is one that no other condition refuses."""
    mean = np.array([[3.0, -2.0]])
    fine = NormalWishart.from_standard(mean, np.ones(1), np.full(1, 4.0), 0.1 * np.eye(2)[None])
    natural = [np.asarray(eta) for eta in fine.natural]
    assert NormalWishart.is_proper_natural(*natural)
    natural[place] = factor * natural[place]
    assert not NormalWishart.is_proper_natural(*natural)


def quotient(family):
    return (member(family, 1) / member(family, 0)).as_arrays()


def with_natural(factor, change):
    return dataclasses.replace(factor, natural=tuple(change(eta) for eta in factor.natural))


@pytest.mark.parametrize(
    ("family", "name"),
    [(family, name) for family in expfam.GAUSSIANS for name in ("mean", "variance")]
    + [(expfam.Dirichlet, "mean"), (expfam.NormalWishart, "mean"), (expfam.Normal, "covariance")],
)
def test_moments_are_held_as_the_natural_parameters_are(family, name):
    q = member(family, 0)
    tensors = family(*(tf.convert_to_tensor(eta) for eta in q.natural))
    assert isinstance(getattr(q, name), np.ndarray)
    assert tf.is_tensor(getattr(tensors, name))
    assert_close(getattr(q, name), getattr(tensors, name), ALGEBRA)


@families
def test_form_names_family_and_shapes_whatever_holds_the_numbers(family):
    q = member(family, 0)
    tensors = family(*(tf.convert_to_tensor(eta) for eta in q.natural))
    assert q.form == tensors.form == member(family, 1).form
    shapes = [np.shape(eta) for eta in q.natural]
    assert q.form == f"{family.__name__} with natural parameters of shapes {shapes}"


@families
def test_objections(family):
    q, factor = member(family, 2), quotient(family)
    assert family.__name__ in q.objection_to("a string")
    assert family.__name__ in q.objection_to(q)
    other = next(one for one in expfam.FAMILIES if one is not family)
    assert family.__name__ in q.objection_to(quotient(other))
    assert "have shapes" in q.objection_to(with_natural(factor, lambda eta: eta[..., None]))
    for listed in (
        with_natural(factor, lambda eta: np.asarray(eta).tolist()),
        dataclasses.replace(factor, natural=list(factor.natural)),
    ):
        assert "no tuple of floating-point arrays" in q.objection_to(listed)
    whole = with_natural(factor, lambda eta: np.ones(np.shape(eta), int))
    assert "floating-point" in q.objection_to(whole)
    assert "not finite" in q.objection_to(with_natural(factor, lambda eta: eta * np.nan))


@pytest.mark.parametrize("log_scale", ["1.0", True, None, [1.0], np.ones(1), np.nan, np.inf])
def test_a_log_constant_that_is_no_finite_number_is_objected_to(log_scale):
    factor = dataclasses.replace(quotient(expfam.Normal), log_scale=log_scale)
    assert "log constant" in member(expfam.Normal, 2).objection_to(factor)


@pytest.mark.parametrize("log_scale", [1, -1.5, np.float32(0.5), tf.constant(2.0)])
def test_a_log_constant_may_be_any_number(log_scale):
    factor = dataclasses.replace(quotient(expfam.Normal), log_scale=log_scale)
    assert member(expfam.Normal, 2).objection_to(factor) is None


@pytest.mark.parametrize("family", [expfam.Normal, expfam.NormalWishart])
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_an_asymmetric_matrix_is_objected_to_whatever_its_size(family, size):
    q = member(family, 2)

    def sheared(eta):
        eta = size * np.array(eta)
        if eta.ndim == np.ndim(q.natural[-1]) and eta.shape[-1] == eta.shape[-2]:
            eta[..., 0, 1] += 0.5 * size
        return eta

    assert "not symmetric" in q.objection_to(with_natural(quotient(family), sheared))
    scaled = with_natural(quotient(family), lambda eta: size * np.array(eta))
    assert q.objection_to(scaled) is None


@families
def test_a_proper_cavity_is_normalised(family):
    q, own = member(family, 1), quotient(family)
    cavity = q.cavity(dataclasses.replace(own, log_scale=own.log_scale + 1.3))
    assert_same(cavity, member(family, 0), ALGEBRA)
    assert_close(cavity.log_integral(), 0.0, ALGEBRA)


@families
def test_an_improper_cavity_is_a_factor_without_a_constant(family):
    q = member(family, 1)
    cavity = q.cavity(q.as_factor() ** 2.5)
    assert not cavity.is_proper
    assert_close(cavity.log_scale, 0.0, ALGEBRA)


@pytest.mark.parametrize(
    "family", [expfam.Normal, expfam.NormalWishart, expfam.DirichletNormalWishart]
)
def test_numbers_above_the_diagonal_of_a_root_are_not_read(family, rng):
    numbers = np.array(member(family, 0).unconstrained())
    other = numbers.copy()
    other[..., 1:4, :] += np.triu(rng.standard_normal((3, 3)), 1)
    assert_same(family.from_unconstrained(other), family.from_unconstrained(numbers), ALGEBRA)
