"""What tests of closed forms share: problems at random, and what TensorFlow differentiates."""

import numpy as np
import tensorflow as tf

from streaming_gp.gp.collapsed.batch import UnderCavity
from streaming_gp.gp.fitting.bound_functions import BoundFunctions


def batch(rng, size, outputs):
    X = rng.normal(size=(size, 2))
    return X, np.sin(X @ rng.normal(size=(2, outputs)))


def labelled(rng, size):
    X, Y = batch(rng, size, 1)
    return X, (Y > 0.0).astype(float)


def asked(rng, model, data, points, spread=0.1, **options):
    """A problem of nine data, and offsets and variables at random at which it is asked for."""
    problems, local = model._compiled.fitter.problems, model._compiled.local
    draws = local.hyperparameters.noise(local.parameters.size, 0)
    given = model._compiled.outputs.data(data), draws, model.posterior_process, points.place
    problem = problems.with_data(*given, **({"at": None} | options))
    offsets = spread * rng.normal(size=int(tf.size(problem.Z_start)))
    variables = local.hyperparameters.initial(local.parameters, True)
    return problem, offsets, variables + 0.1 * rng.normal(size=variables.shape)


def differentiated(bound):
    """The same bound, which TensorFlow differentiates."""
    other = BoundFunctions(bound.bound, bound.local)
    other.collapsed = other.at_sites = None
    return other


def assert_same_objective(bound, oracle, *arguments, rtol=1e-12, gradient=1e-11):
    """And gradient, of the largest of whose entries ``gradient`` is a part."""
    found, wanted = (one.objective(*arguments) for one in (bound, oracle))
    np.testing.assert_allclose(found[0], wanted[0], rtol=rtol)
    scale = np.max(np.abs(wanted[1]))
    np.testing.assert_allclose(found[1], wanted[1], rtol=0.0, atol=gradient * scale)
    offsets, variables, *_, move = arguments
    assert len(found[1]) == len(variables) + move * len(offsets)


def under_cavity(rng, M, N, C):
    root = rng.normal(size=(2, M, M + 2))
    between = 0.3 * rng.normal(size=(2, M, N))
    among = root @ root.swapaxes(1, 2)
    explained = np.sum(between * np.linalg.solve(among, between), axis=1)
    return UnderCavity(
        among,
        between,
        explained + rng.uniform(0.1, 1.0, size=(2, N)),
        rng.normal(size=(2, N or M, C)),
        rng.uniform(0.1, 1.0, size=(2, N or M)),
    )
