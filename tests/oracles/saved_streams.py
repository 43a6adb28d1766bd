"""Models that the tests of files and journals save, and the ways to spoil and to compare them."""

import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import gpflow
import numpy as np

import streaming_gp as sgp

ROOT = Path(__file__).resolve().parents[2]
QUICK = sgp.LocalOptimiser(max_iterations=4, rounds=2, site_steps=3)
INPUTS = np.linspace(-3.0, 3.0, 7)[:, None]


def regression(scale):
    """Parameters at ``scale``; a file must overrule them, those that are fixed as well."""
    mean_function = gpflow.functions.Constant([0.1 * scale])
    gpflow.set_trainable(mean_function, False)
    return {
        "kernel": gpflow.kernels.SquaredExponential(variance=scale, lengthscales=scale),
        "likelihood": gpflow.likelihoods.Gaussian(0.1 * scale),
        "mean_function": mean_function,
    }


def classification(scale):
    kernel = gpflow.kernels.SquaredExponential(variance=scale, lengthscales=scale)
    return {"kernel": kernel, "likelihood": gpflow.likelihoods.Bernoulli()}


def two_outputs(scale):
    """Outputs that mix two functions."""
    kernels = [gpflow.kernels.SquaredExponential(scale), gpflow.kernels.Matern52(scale)]
    kernel = gpflow.kernels.LinearCoregionalization(kernels, scale * np.eye(2))
    return {"kernel": kernel, "likelihood": gpflow.likelihoods.Gaussian([0.1 * scale, 0.2])}


STREAMS = {
    "variational": (regression, sgp.VariationalHyperparameters(num_samples=2)),
    "labels": (classification, sgp.PointHyperparameters()),
    "fixed": (regression, sgp.FixedHyperparameters()),
    "mixed": (two_outputs, sgp.VariationalHyperparameters(num_samples=2)),
}


def begun(name, **options):
    modules, hyperparameters = STREAMS[name]
    options.setdefault("hyperparameters", hyperparameters)
    options.setdefault("pseudo_points", sgp.PrivatePseudoPoints(3))
    return sgp.StreamingGP(
        **modules(1.0), optimiser=QUICK, num_prediction_samples=2, seed=5, **options
    )


def batch(name, index):
    rng = np.random.default_rng(index)
    X = rng.uniform(-3.0, 3.0, (8, 1))
    Y = np.sin(X) + 0.1 * rng.standard_normal((8, 1))
    if name == "mixed":
        return X, np.c_[Y, Y**2 - Y]
    return X, (Y > 0.0).astype(float) if name == "labels" else Y


def predictions(model):
    return np.stack(model.predict_f(INPUTS))


def in_another_process(function, *arguments, **options):
    """Start a function of a module in a fresh interpreter."""
    code = (
        f"import sys; from {function.__module__} import {function.__name__} as f; f(*sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, text=True, **options)


def spoiled(change):
    def spoil(path):
        path.write_bytes(change(path.read_bytes()))

    return spoil


def values(modules):
    """Of the variables, which are read far faster than what they are transformed to."""
    leaves = (leaf for module in modules.values() for leaf in module.parameters)
    return tuple(leaf.unconstrained_variable.numpy() for leaf in leaves)


@contextmanager
def small_disk():
    """No file may grow beyond a hundred bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def resumed(folder):
    return sgp.StreamingGP.resume(folder, **regression(2.0))


def content(model, folder):
    model.save(folder / "content.npz")
    return (folder / "content.npz").read_bytes()
