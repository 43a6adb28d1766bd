"""Kernels in NumPy are GPflow's."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.gp.online.kernel import PROFILES, StationaryKernel, process_at
from tests.tolerances import ALGEBRA


def kernels():
    for kind in PROFILES:
        yield kind(variance=1.7, lengthscales=0.6)
        yield kind(variance=0.3, lengthscales=[0.6, 2.0])
        yield kind(active_dims=[1])
    yield gpflow.kernels.Linear() * gpflow.kernels.Matern12()


@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.name)
def test_a_kernel_in_numpy_is_gpflows(rng, kernel):
    X, X2 = rng.standard_normal((2, 7, 2))
    model = sgp.StreamingGP(kernel, gpflow.likelihoods.Gaussian(scale=0.5))
    local = model._compile(2, 1).local
    known = process_at(local, model.parameter_vector.value())
    plain = type(kernel) in PROFILES and kernel.active_dims == slice(None, None, None)
    assert isinstance(known.kernel, StationaryKernel) == plain
    np.testing.assert_allclose(known.kernel.covariance(X, X2), kernel(X, X2), atol=ALGEBRA)
    np.testing.assert_allclose(known.kernel.variance(X), kernel(X, full_cov=False), atol=ALGEBRA)
    assert known.noise == pytest.approx(0.25)
