"""The contract of pseudo-point strategies, and what holds of any model that learns a stream."""

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
    OwnPseudoPoints,
    Progress,
    PseudoPointStrategy,
    StreamingGP,
    VariationalHyperparameters,
)
from streaming_gp.gp.fit import Variational
from streaming_gp.gp.strategies import MERGED
from streaming_gp.testing.assertions import ensure, ensure_storable

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


# ---- the contract ----

FEWER_POINTS = 3


def check_pseudo_points(strategy: PseudoPointStrategy) -> None:
    """Check that a strategy serves a model in all that a stream asks of it.

    It is a frozen dataclass that files can hold. Batches of observations and of labels, in two
    columns, get factors, whose predictions are finite; a budget is kept; an update that raises
    leaves nothing behind; files and journals give back the same model, which continues bit for bit.
    Revisits, removals, fading, rounds, compression and clients work, or are refused by
    ``InvalidDataError``, or by ``ImproperError`` where q(ε) would be no distribution, and then
    nothing has changed.

    :param strategy: The strategy, for batches of ten data with two inputs. Choose a budget, if it
        has one, that three such batches exceed.
    :raises AssertionError: on the first thing that does not hold.
    """
    ensure(
        isinstance(strategy, PseudoPointStrategy),
        "a strategy has all methods of streaming_gp.gp.PseudoPointStrategy",
    )
    ensure_storable(strategy, "a pseudo-point strategy")
    bound = strategy.local_bound(Variational(), LEARNED)
    ensure(isinstance(bound, LocalBound), "local_bound gives a LocalBound")
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        model = regression(strategy, journal=journal)
        _check_stream(model, strategy)
        _check_changes(model)
        resumed = StreamingGP.resume(journal, **modules())
    ensure(saved(resumed) == saved(model), "a journal gives back the same model, bit for bit")
    _check_labels(strategy)


def _check_stream(model: StreamingGP, strategy: PseudoPointStrategy) -> None:
    """Three batches; the second is interrupted once, the third is learned by two models."""
    for seed in range(2):
        _check_update(model, _batch(seed), f"batch-{seed}")
        _check_budget(model, strategy)
        if seed == 0:
            ensure_undone(model, _batch(1))
    ensure_continues(model, reloaded(model), _batch(2))
    _check_budget(model, strategy)
    ensure_predicts(model, _batch(3)[0])


def _check_update(model: StreamingGP, data: Data, name: str) -> None:
    info = model.update(data, batch_id=name)
    ensure(name in model.factors, "a batch that was learned has a factor of its name")
    ensure(len(model.factors[name].Z) == info.num_pseudo_points, "an update counts its points")
    ensure(info.num_pseudo_points > 0, "a batch gets at least one point")
    ensure(np.isfinite(info.free_energy), "the free energy of a batch is finite")
    ensure_predicts(model, data[0])


def _check_budget(model: StreamingGP, strategy: PseudoPointStrategy) -> None:
    if isinstance(strategy, OwnPseudoPoints) and strategy.budget is not None:
        number = model.posterior_process.num_pseudo_points
        ensure(number <= strategy.budget, f"{number} points keep a budget of {strategy.budget}")


def _check_changes(model: StreamingGP) -> None:
    """All that can be asked of factors, one after another, of one model."""
    newest, first = "batch-2", next(name for name in model.factors if name != MERGED)
    shards = {"left": _batch(4), "right": _batch(5)}

    def fit_client() -> None:
        factor = model.fit_factor(_batch(6), model.posterior_process, None).factor
        objection = model.prior().objection_to(factor)
        ensure(objection is None, f"the factor of a client is one of this model: {objection}")

    changes = {
        "a revisit of the newest batch": lambda: model.revisit(newest, _batch(2)),
        "a damped revisit": lambda: model.revisit(newest, _batch(2), damping=0.5),
        "a revisit of the first batch": lambda: model.revisit(first, _batch(int(first[-1]))),
        "a removal": lambda: model.remove(newest),
        "a fade": lambda: model.fade(0.5),
        "a synchronous round": lambda: model.synchronous_round(shards),
        "a second synchronous round": lambda: model.synchronous_round(shards),
        "the fit of a client": fit_client,
        "a compression": lambda: model.compress(FEWER_POINTS),
    }
    made = {what for what, call in changes.items() if ensure_works_or_refused(model, call, what)}
    ensure("a removal" not in made or newest not in model.factors, "what was removed is gone")
    if "a compression" in made:
        number = model.posterior_process.num_pseudo_points
        ensure(number <= FEWER_POINTS, "a compressed model has as few points as were asked for")


def _check_labels(strategy: PseudoPointStrategy) -> None:
    """Two functions of different smoothness behind two columns of labels."""
    kernels = [gpflow.kernels.SquaredExponential(), gpflow.kernels.Matern32()]
    model = regression(
        strategy,
        kernel=gpflow.kernels.SeparateIndependent(kernels),
        likelihood=gpflow.likelihoods.Bernoulli(),
        hyperparameters=KNOWN,
    )
    for seed in range(2):
        _check_update(model, batch(seed, num_columns=2, labels=True), f"batch-{seed}")
    probability = np.asarray(model.predict_y(_batch(3)[0])[0])
    within = np.all((probability >= 0.0) & (probability <= 1.0))
    ensure(within, "predicted probabilities of labels lie between 0 and 1")


def _batch(seed: int) -> Data:
    return batch(seed, num_columns=2)
