"""A small stream of batches, and assertions on every model that learns from it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np

from streaming_gp.errors import ImproperError, InvalidDataError, StreamingGPError
from streaming_gp.gp import (
    FixedHyperparameters,
    LocalBound,
    LocalOptimiser,
    Progress,
    PseudoPointStrategy,
    StreamingGP,
    VariationalHyperparameters,
)
from streaming_gp.testing.assertions import ensure

NOISE_VARIANCE = 0.05
INPUT_DIM = 2
OPTIMISER = LocalOptimiser(max_iterations=4, rounds=2, projection_iterations=4)
LEARNED, KNOWN = VariationalHyperparameters(num_samples=2), FixedHyperparameters()

Data = tuple[np.ndarray, np.ndarray]


def batch(seed: int, num_data: int = 10, num_columns: int = 1, labels: bool = False) -> Data:
    """Inputs X [N, 2] in a box and noisy smooth observations Y [N, P], or their signs as labels."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (num_data, INPUT_DIM))
    f = np.sin(2.0 * X[:, :1] + np.arange(num_columns)) + np.cos(X[:, 1:])
    Y = f + np.sqrt(NOISE_VARIANCE) * rng.standard_normal(f.shape)
    return X, (Y > 0.0).astype(float) if labels else Y


def modules() -> dict[str, Any]:
    """Kernel and likelihood of a regression, without what they have learned."""
    return {
        "kernel": gpflow.kernels.Matern32(lengthscales=[1.0, 1.0]),
        "likelihood": gpflow.likelihoods.Gaussian(NOISE_VARIANCE),
    }


def regression(
    pseudo_points: PseudoPointStrategy, bound: LocalBound | None = None, **options: Any
) -> StreamingGP:
    """A model of the stream, which learns little at a time so that checks are quick.

    :param options: Other arguments of the model than the usual ones.
    """
    usual: dict[str, Any] = {"hyperparameters": LEARNED, "optimiser": OPTIMISER, **modules()}
    return StreamingGP(pseudo_points=pseudo_points, bound=bound, **{**usual, **options})


def saved(model: StreamingGP) -> bytes:
    """The whole state of a model, as its file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.npz"
        model.save(path)
        return path.read_bytes()


def reloaded(model: StreamingGP, **others: Any) -> StreamingGP:
    """The model that its file gives back.

    :param others: Kernel or likelihood, where it is another one than that of :func:`modules`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.npz"
        model.save(path)
        return StreamingGP.load(path, **{**modules(), **others})


def ensure_predicts(model: StreamingGP, X: Any) -> None:
    """Check that predictions at X [N, 2] are distributions."""
    for mean, variance in (model.predict_f(X), model.predict_y(X)):
        ensure(np.isfinite(mean).all(), "predictive means are finite")
        ensure(np.isfinite(variance).all(), "predictive variances are finite")
        ensure(np.all(np.asarray(variance) > 0.0), "predictive variances are positive")


def ensure_works_or_refused(model: StreamingGP, call: Callable[[], Any], what: str) -> bool:
    """Check that a change of a model is made as a whole, or refused and not made at all.

    :param model: The model that the call changes.
    :param call: Makes the change.
    :param what: What the change is, as the subject of a sentence.
    :returns: whether it was made.
    """
    before = saved(model)
    try:
        call()
    except (InvalidDataError, ImproperError):
        ensure(saved(model) == before, f"{what} that is refused leaves the model as it was")
        return False
    except Exception as error:
        message = f"does not hold: {what} works or is refused by InvalidDataError (got {error!r})"
        raise AssertionError(message) from error
    ensure_predicts(model, batch(0)[0])
    return True


class _InterruptionError(StreamingGPError):
    """Raised in the middle of an update."""


def ensure_undone(model: StreamingGP, data: Data) -> None:
    """Check that an update that raises on its way leaves a model as it was."""

    def interrupt(progress: Progress) -> None:
        raise _InterruptionError(f"interrupted at iteration {progress.iteration}")

    before = saved(model)
    try:
        model.update(data, callback=interrupt)
    except _InterruptionError:
        ensure(saved(model) == before, "an update that raises leaves the model as it was")
        return
    ensure(False, "a fit calls back after its iterations")


def ensure_continues(model: StreamingGP, loaded: StreamingGP, data: Data) -> None:
    """Check that a model and the one that its file gave back learn the same, bit for bit.

    :param data: A batch that is new to both, which they have learned when this returns.
    """
    ensure(saved(loaded) == saved(model), "a file gives back the same model, bit for bit")
    for one in (model, loaded):
        one.update(data)
    same = saved(loaded) == saved(model)
    ensure(same, "one state and one seed lead to one result, bit for bit, also after loading")
