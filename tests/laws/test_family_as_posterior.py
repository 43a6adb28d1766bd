"""What a ledger and its server ask of a posterior, over the registry of families."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from streaming_gp import expfam, serialization
from streaming_gp.errors import ImproperError
from tests.conftest import ALGEBRA, assert_same_naturals
from tests.oracles.reference import random_member

families = pytest.mark.parametrize("family", expfam.FAMILIES)
gaussians = pytest.mark.parametrize("family", expfam.GAUSSIANS)


def assert_close(a, b, tolerance=ALGEBRA):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


def quotient(family):
    return (random_member(family, 1) / random_member(family, 0)).as_arrays()


def with_natural(factor, change):
    return dataclasses.replace(factor, natural=tuple(change(eta) for eta in factor.natural))


@families
def test_size_is_that_of_the_natural_parameters(family):
    q = random_member(family, 0)
    assert q.num_bytes == sum(eta.nbytes for eta in q.natural)
    assert q.as_factor().num_bytes == quotient(family).num_bytes == q.num_bytes


@pytest.mark.parametrize(
    ("family", "name"),
    [(family, name) for family in expfam.GAUSSIANS for name in ("mean", "variance")]
    + [(expfam.Dirichlet, "mean"), (expfam.NormalWishart, "mean"), (expfam.Normal, "covariance")],
)
def test_moments_are_held_as_the_natural_parameters_are(family, name):
    q = random_member(family, 0)
    tensors = family(*(tf.convert_to_tensor(eta) for eta in q.natural))
    assert isinstance(getattr(q, name), np.ndarray)
    assert tf.is_tensor(getattr(tensors, name))
    assert_close(getattr(q, name), getattr(tensors, name))


@families
def test_form_names_family_and_shapes_whatever_holds_the_numbers(family):
    q = random_member(family, 0)
    tensors = family(*(tf.convert_to_tensor(eta) for eta in q.natural))
    assert q.form == tensors.form == random_member(family, 1).form
    assert q.form.startswith(family.__name__)


def test_form_in_words():
    q = expfam.MeanFieldNormal(np.zeros(5), np.ones(5))
    assert q.form == "MeanFieldNormal with natural parameters of shapes [(5,), (5,)]"


def test_forms_of_families_differ():
    assert len({random_member(family, 0).form for family in expfam.FAMILIES}) == 6


@families
def test_no_objection_to_a_factor_of_the_family(family):
    assert random_member(family, 2).objection_to(quotient(family)) is None


@families
def test_objections(family):
    q, factor = random_member(family, 2), quotient(family)
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
    assert "log constant" in random_member(expfam.Normal, 2).objection_to(factor)


@pytest.mark.parametrize("log_scale", [1, -1.5, np.float32(0.5), tf.constant(2.0)])
def test_a_log_constant_may_be_any_number(log_scale):
    factor = dataclasses.replace(quotient(expfam.Normal), log_scale=log_scale)
    assert random_member(expfam.Normal, 2).objection_to(factor) is None


@pytest.mark.parametrize("family", [expfam.Normal, expfam.NormalWishart])
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e9])
def test_an_asymmetric_matrix_is_objected_to_whatever_its_size(family, size):
    q = random_member(family, 2)

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
    q, own = random_member(family, 1), quotient(family)
    cavity = q.cavity(dataclasses.replace(own, log_scale=own.log_scale + 1.3))
    assert_same_naturals(cavity, random_member(family, 0), ALGEBRA)
    assert_close(cavity.log_integral(), 0.0)


@families
def test_the_cavity_without_a_factor_is_the_member(family):
    q = random_member(family, 1)
    assert_same_naturals(q.cavity(None), q, ALGEBRA)
    assert_close(q.cavity(None).log_integral(), 0.0)


@families
def test_an_improper_cavity_is_a_factor_without_a_constant(family):
    q = random_member(family, 1)
    cavity = q.cavity(q.as_factor() ** 2.5)
    assert not cavity.is_proper
    assert_close(cavity.log_scale, 0.0)


@families
def test_exchanged_is_the_product_with_new_factors_for_old(family):
    prior, q, r = (random_member(family, seed) for seed in range(3))
    assert_same_naturals(q.exchanged([q / prior], [r / prior]), r, ALGEBRA)
    assert_same_naturals(q.exchanged([], [r / q]), r, ALGEBRA)
    with pytest.raises(ImproperError, match=family.__name__):
        q.exchanged([q.as_factor() ** 2.5], [])


@gaussians
def test_any_numbers_give_mean_and_scale(family, rng):
    numbers = rng.standard_normal(family.unconstrained_shape(3))
    assert random_member(family, 0).unconstrained().shape == numbers.shape
    q = family.from_unconstrained(numbers)
    mean, scale = family.mean_scale_of(numbers)
    assert_close(mean, q.mean)
    assert_close(scale, q.scale)
    assert_same_naturals(
        family.from_mean_scale(mean, scale), family.from_unconstrained(numbers), ALGEBRA
    )


@pytest.mark.parametrize(
    "family", [expfam.Normal, expfam.NormalWishart, expfam.DirichletNormalWishart]
)
def test_numbers_above_the_diagonal_of_a_root_are_not_read(family, rng):
    numbers = np.array(random_member(family, 0).unconstrained())
    other = numbers.copy()
    other[..., 1:4, :] += np.triu(rng.standard_normal((3, 3)), 1)
    assert_same_naturals(
        family.from_unconstrained(other), family.from_unconstrained(numbers), ALGEBRA
    )


@families
def test_files_hold_members_and_factors(family, tmp_path):
    q = random_member(family, 0).as_arrays()
    classes = serialization.registered_classes()
    serialization.write(tmp_path / "q.npz", "pair", (q, quotient(family)), classes)
    again, factor = serialization.read(tmp_path / "q.npz", "pair", classes)
    assert again.form == q.form
    assert_same_naturals(again, q, ALGEBRA)
    assert_same_naturals(factor, quotient(family), ALGEBRA)
    assert factor.family is family
