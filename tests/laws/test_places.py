"""Inputs under a cavity at one ε."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import NumericalError
from streaming_gp.gp.fitting.places import Places
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from tests.oracles.builders import FIXED
from tests.tolerances import ALGEBRA

Z = np.linspace(0.0, 0.5, 6)[:, None]


def cavity_of(kernel, precision):
    """What is known of f at Z, each on its own."""
    model = sgp.StreamingGP(kernel, gpflow.likelihoods.Gaussian(0.1), hyperparameters=FIXED)
    local = model._compile(1, 1).local
    known = PseudoObservations(Z, np.sqrt(precision) * np.eye(6)[None], np.ones((1, 6, 1)), 0.0)
    return DenseProcess(PriorAt(local.prior, local.parameters.value()[None])).extended(known)


def test_they_are_those_of_the_cavity_whose_rounding_is_cut_off():
    cavity = cavity_of(gpflow.kernels.Matern12(), 1e18)
    inputs = Places(cavity).at(np.concatenate([Z, Z + 0.03]))
    mean, variance = cavity.marginals(inputs.X)
    np.testing.assert_array_equal(inputs.variance, variance)
    np.testing.assert_allclose(inputs.mean, mean, rtol=ALGEBRA)
    raw = 1.0 - np.sum(inputs.V**2, axis=1)
    assert raw.min() <= 0.0 < variance.min()


def test_inputs_at_which_covariances_are_wrong_are_refused():
    """All differences from an input so large round to the same, and so do their cosines."""
    cavity = cavity_of(gpflow.kernels.Cosine(), 1e6)
    with pytest.raises(NumericalError, match="wanted smaller ones"):
        Places(cavity).at(np.array([[1e300]]))
