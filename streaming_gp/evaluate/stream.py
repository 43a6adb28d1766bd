"""Test-then-train over the batches of a stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from gpflow.likelihoods import SwitchedLikelihood
from tqdm import tqdm

from streaming_gp.errors import InvalidDataError, StreamingGPError
from streaming_gp.evaluate.forgetting import KeptBatches
from streaming_gp.evaluate.learner import HasPseudoPoints, Learner, ReportsFreeEnergy
from streaming_gp.evaluate.losses import as_matrix, is_regression, likelihood_of, losses
from streaming_gp.evaluate.scores import Step, quotient
from streaming_gp.inputs import as_real_array, require_count
from streaming_gp.validation import as_pair


class BatchError(StreamingGPError):
    """A batch that could not be scored or learned; the cause is ``__cause__``.

    :param batch: The number of the batch in the stream, from 1.
    :param message: What could not be done with it, and why.
    """

    def __init__(self, batch: int, message: str) -> None:
        super().__init__(f"batch {batch} {message}")
        self.batch, self._message = batch, message

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchError, (self.batch, self._message)


def prequential(
    model: Learner,
    batches: Iterable[tuple[Any, Any]],
    *,
    keep: int = 100,
    keep_batches: int = 20,
    seed: int = 0,
    label: str | None = None,
) -> Iterator[Step]:
    """Score each batch under the model as it is, then let the model learn it (Dawid 1984; Gama,
    Sebastião & Rodrigues 2013). The first batch is scored under the prior; :class:`Step` defines
    the scores.

    Memory is bounded: at most ``keep × keep_batches`` points are kept, random points of random
    batches (reservoir sampling, Vitter 1985, so that every earlier batch is as likely to be among
    them), and they are all predicted once after each update.

    :param model: A :class:`StreamingGP <streaming_gp.StreamingGP>`, or any other :class:`Learner`.
        One that ``HasLikelihood`` gets error rates if the likelihood is a Bernoulli, Softmax
        or MultiClass, and squared errors otherwise, as does one without.
    :param batches: Pairs of X [N, D] and Y [N, P], which are read one at a time.
    :param keep: The number of points kept of a batch; 0 for no account of forgetting.
    :param keep_batches: The number of batches of which points are kept.
    :param seed: The seed of the choice of what is kept.
    :param label: The text in front of a progress bar on a terminal, or of a line for each batch
        elsewhere. Without it no progress is shown.
    :returns: an iterator of one :class:`Step` a batch; nothing happens until it is asked.
    :raises InvalidDataError: if ``keep`` or ``keep_batches`` is negative, or the likelihood is
        switched and has no one mean of y.
    :raises BatchError: while iterating, if the model raises; the steps before stand, and a
        ``StreamingGP`` that could not learn the batch is as it was before it.
    """
    for name, number in {"keep": keep, "keep_batches": keep_batches, "seed": seed}.items():
        require_count(name, number)
    if isinstance(likelihood_of(model), SwitchedLikelihood):
        raise InvalidDataError("SwitchedLikelihood has no one mean of y, so no SMSE either")
    return _steps(model, batches, KeptBatches(keep, keep_batches, seed), label)


def _steps(
    model: Learner, batches: Iterable[tuple[Any, Any]], kept: KeptBatches, label: str | None
) -> Iterator[Step]:
    targets = _Targets(0, np.zeros(1), np.zeros(1))
    on_terminal = sys.stderr.isatty()
    with tqdm(batches, desc=label, unit="batch", disable=label is None or not on_terminal) as bar:
        for number, data in enumerate(bar, start=1):
            step, targets = _step(model, number, data, targets, kept)
            bar.set_postfix_str(_summary(step), refresh=False)
            if label is not None and not on_terminal:
                print(f"{label}, batch {number}: {_summary(step)}")
            yield step


def _step(
    model: Learner, number: int, data: Any, targets: _Targets, kept: KeptBatches
) -> tuple[Step, _Targets]:
    with _named(number, "could not be scored"):
        X, Y = map(as_real_array, "XY", as_pair(data))
        loss, nlpd = losses(model, X, Y).mean(axis=0).tolist()
    with _named(number, "was scored but could not be learned"):
        start = time.perf_counter()
        info = model.update((X, Y))
        seconds = time.perf_counter() - start
    with _named(number, "was learned but could not be scored again"):
        loss_growth, nlpd_growth = kept.growth(model, X, Y)
    targets, regression = targets.merged(as_matrix(Y)), is_regression(model)
    step = Step(
        batch=number,
        num_points=len(X),
        mse=loss if regression else None,
        target_variance=targets.variance if regression else None,
        error_rate=None if regression else loss,
        nlpd=nlpd,
        seconds=seconds,
        num_pseudo_points=_num_pseudo_points(model),
        free_energy=_free_energy(info),
        forgetting=quotient(loss_growth, targets.variance if regression else 1.0),
        forgetting_nlpd=nlpd_growth,
    )
    return step, targets


@contextmanager
def _named(batch: int, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise BatchError(batch, f"{what}: {type(error).__name__}: {error}") from error


def _num_pseudo_points(model: Learner) -> int | None:
    if not isinstance(model, HasPseudoPoints):
        return None
    return int(model.posterior_process.num_pseudo_points)


def _free_energy(info: Any) -> float | None:
    if not isinstance(info, ReportsFreeEnergy) or info.free_energy is None:
        return None
    return float(info.free_energy)


def _summary(step: Step) -> str:
    name, score = ("SMSE", step.smse) if step.error_rate is None else ("error", step.error_rate)
    number = "-" if score is None else f"{score:.3g}"
    return f"{name} {number}, NLPD {step.nlpd:.3f}, {step.seconds:.1f} s"


@dataclass(frozen=True)
class _Targets:
    """Number, means [P] and summed squared deviations [P] of all targets so far."""

    number: int
    mean: np.ndarray
    squares: np.ndarray

    def merged(self, Y: np.ndarray) -> _Targets:
        """With one more batch [N, P] (Chan, Golub & LeVeque 1983)."""
        number, mean = self.number + len(Y), Y.mean(axis=0)
        shift = mean - self.mean
        squares = ((Y - mean) ** 2).sum(axis=0) + shift**2 * self.number * len(Y) / number
        return _Targets(number, self.mean + shift * len(Y) / number, self.squares + squares)

    @property
    def variance(self) -> float:
        """The mean over outputs."""
        return float(np.mean(self.squares / self.number))
