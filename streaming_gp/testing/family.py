"""The laws of exponential families."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import tensorflow as tf

from streaming_gp import serialization
from streaming_gp.errors import ImproperError
from streaming_gp.expfam import ExponentialFamily, Factor
from streaming_gp.testing.assertions import copies, ensure, ensure_close, ensure_same

ALGEBRA, INVERSION = 1e-9, 1e-5
NUM_SAMPLES, STANDARD_ERRORS = 20_000, 6.0


def check_family(family: type[ExponentialFamily], members: Sequence[ExponentialFamily]) -> None:
    """Check that a family obeys the laws that the ledger and the local updates rely on.

    Products, quotients and powers; normalisation; divergences; draws; parameters of every kind and
    back; errors for improper products; files, copies and pickles.

    :param family: The family.
    :param members: At least two different members of one shape, of 64-bit floating-point numbers.
    :raises AssertionError: on the first law that does not hold.
    """
    ensure(len(members) > 1, "at least two members are given to check a family by")
    for member in members:
        ensure(isinstance(member, family), f"every member is a {family.__name__}")
        ensure(member.is_proper, "members are proper")
        _check_parameters(member)
        _check_moments(member)
        _check_refusals(member)
    for p, q in permutations(members[:2]):
        ensure(p.form == q.form, "members of one shape have one form")
        _check_products(p, q)
        _check_divergence(p, q)
    for member in members:
        _check_copies(member)


def _check_products(p: ExponentialFamily, q: ExponentialFamily) -> None:
    a, b = p.as_factor(), q.as_factor()
    ratio = q / p
    ensure_same((a * b) / b, a, "(a × b) / b is a", ALGEBRA)
    ensure_same(a**2.0, a * a, "a² is a × a", ALGEBRA)
    ensure_same(a**0.0 * b, b, "a⁰ is one", ALGEBRA)
    ensure_close((a**0.3).log_scale, 0.3 * a.log_scale, "powers keep the constant", ALGEBRA)
    ensure_same(p.times([ratio]), q, "p × (q / p) is q", ALGEBRA)
    ensure_same(p.times([ratio, b]).exchanged([b], []), q, "what is divided out is gone", ALGEBRA)
    ensure_same(q.times([a]).cavity(a), b, "a cavity is the posterior without the factor", ALGEBRA)
    points = p.sample(5, 0)
    both = a.log_value(points) + b.log_value(points)
    ensure_close((a * b).log_value(points), both, "products multiply values", ALGEBRA)


def _check_divergence(p: ExponentialFamily, q: ExponentialFamily) -> None:
    divergence = float(p.kl_divergence(q))
    ensure_close(p.kl_divergence(p), 0.0, "KL(p ‖ p) is zero", ALGEBRA)
    ensure(divergence > 0.0, "KL(p ‖ q) is positive where p and q differ")
    points = p.sample(NUM_SAMPLES, 1)
    log_ratios = np.asarray(p.log_prob(points) - q.log_prob(points))
    _ensure_mean(log_ratios, divergence, "KL(p ‖ q) is the mean of log p − log q over draws from p")


def _check_parameters(member: ExponentialFamily) -> None:
    family = type(member)
    ensure_close(member.as_factor().log_integral(), 0.0, "a density integrates to one", ALGEBRA)
    twin = family.from_mean_parameters(*member.mean_parameters())
    ensure_same(twin, member, "mean parameters determine a member", INVERSION)
    numbers = member.unconstrained()
    twin = family.from_unconstrained(numbers)
    ensure_same(twin, member, "unconstrained numbers determine a member", INVERSION)
    other = family.from_unconstrained(numbers + tf.ones_like(numbers))
    ensure(other.is_proper, "any unconstrained numbers make a proper member")
    draws = [np.asarray(member.sample(7, seed)) for seed in (0, 0, 1)]
    ensure(len(draws[0]) == 7, "sample gives as many draws as it is asked for")
    ensure(np.array_equal(draws[0], draws[1]), "a seed determines the draws")
    ensure(not np.array_equal(draws[0], draws[2]), "another seed gives other draws")


def _check_moments(member: ExponentialFamily) -> None:
    """Mean parameters are ``∂A/∂η``, and expectations of the statistics."""
    by_gradient = ExponentialFamily.mean_parameters(member)
    draws = member.sufficient_statistics(member.sample(NUM_SAMPLES, 2))
    for mean, gradient, drawn in zip(member.mean_parameters(), by_gradient, draws, strict=True):
        ensure_close(mean, gradient, "mean parameters are the log-partition's slope", INVERSION)
        sentence = "mean parameters are the statistics' means over draws"
        _ensure_mean(np.asarray(drawn), np.asarray(mean), sentence)


def _ensure_mean(draws: np.ndarray, wanted: np.ndarray | float, sentence: str) -> None:
    error = STANDARD_ERRORS * np.std(draws, axis=0) / np.sqrt(len(draws))
    ensure(np.all(np.abs(np.mean(draws, axis=0) - wanted) <= error + ALGEBRA), sentence)


def _check_refusals(member: ExponentialFamily) -> None:
    try:
        member.times([member.as_factor() ** -2.0])
    except ImproperError:
        pass
    else:
        ensure(False, "a product without an integral raises ImproperError")
    own = member.as_factor().as_arrays()
    ensure(member.objection_to(own) is None, "a factor of the same form is accepted")
    nan, ones = (
        tuple(np.full(np.shape(eta), value) for eta in own.natural) for value in (np.nan, 1)
    )
    bad = {
        "what is no factor": object(),
        "a factor that is not finite": own * Factor(own.family, nan),
        "a factor of other shapes": Factor(own.family, tuple(eta[None] for eta in own.natural)),
        "a factor of integers": Factor(own.family, ones),
    }
    for what, factor in bad.items():
        ensure(isinstance(member.objection_to(factor), str), f"{what} is objected to in words")


def _check_copies(member: ExponentialFamily) -> None:
    name = type(member).__name__
    for twin in copies(member, f"a {name}"):
        ensure_same(twin, member, f"a copy of a {name} is the same")
    arrays, factor = member.as_arrays(), member.as_factor().as_arrays()
    ensure(arrays.num_bytes == factor.num_bytes > 0, "num_bytes is the size of the parameters")
    classes = serialization.registered_classes()
    ensure(name in classes, f"{name} is registered by streaming_gp.serialization.storable")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "family.npz"
        serialization.write(path, "check", (arrays, factor), classes)
        twin, twin_factor = serialization.read(path, "check", classes)
    ensure_same(twin, arrays, "a file gives back the same member, bit by bit")
    ensure_same(twin_factor, factor, "a file gives back the same factor, bit by bit")
