"""The contract of a pseudo-point strategy."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gpflow
import numpy as np

from streaming_gp.gp import LocalBound, OwnPseudoPoints, PseudoPointStrategy, StreamingGP
from streaming_gp.gp.fit import Variational
from streaming_gp.gp.strategies import MERGED
from streaming_gp.testing.assertions import ensure, ensure_storable
from streaming_gp.testing.stream import (
    KNOWN,
    LEARNED,
    Data,
    batch,
    ensure_continues,
    ensure_predicts,
    ensure_undone,
    ensure_works_or_refused,
    modules,
    regression,
    reloaded,
    saved,
)

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
