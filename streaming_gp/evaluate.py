"""Test-then-train: every batch of a stream is predicted before it is learned.

Points of earlier batches are kept to score what is forgotten, and an alarm watches log densities.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from gpflow.likelihoods import Bernoulli, SwitchedLikelihood
from tqdm import tqdm

from streaming_gp.errors import InvalidDataError, StreamingGPError
from streaming_gp.inputs import as_pair, as_real_array, missing_extra, require_count
from streaming_gp.metrics import on_wrong_side, squared_error, wrong_class
from streaming_gp.validation import SEVERAL_CLASSES, number_of_classes

__all__ = [
    "BatchError",
    "Detector",
    "DriftAlarm",
    "Learner",
    "Step",
    "Summary",
    "prequential",
]


# ---- scores ----


def quotient(value: float | None, variance: float | None) -> float | None:
    """``value / variance``; None if either is unknown, or nothing varies."""
    return None if value is None or not variance else value / variance


@dataclass(frozen=True)
class Step:
    r"""One batch: scored under all that came before it, then learned.

    **SMSE** of batch t is its mean squared error over the variance of the targets
    :math:`y_{1:t}` of all batches so far, its own among them. The batch's own variance would not
    do: a batch of a sorted stream may hardly vary, and a batch of one point does not. Predictions
    never see that variance; for the first batch it is the usual SMSE.

    **Forgetting** is measured on points that are kept from earlier batches. With :math:`L_{t,j}`
    the mean loss on batch j's kept points after update t,

    .. math:: \text{forgetting}_t = \frac1{|J_t|} \sum_{j \in J_t} (L_{t,j} - L_{j,j})

    over the kept batches :math:`J_t` before t: positive where the model became worse. Of the error
    rate it is minus the backward transfer of Lopez-Paz & Ranzato (2017), and the forgetting of
    Chaudhry et al. (2018) with the score right after learning in place of the best one ever; of
    other losses it is the same with −L for the accuracy. Both hold test points out of every task;
    here they are points that were learned. Squared errors are divided by the variance of the
    targets up to t, that of :math:`L_{j,j}` too, so that a change of that variance alone is not
    forgetting.

    :param batch: The number of the batch in the stream, from 1.
    :param num_points: The number of points N that were scored.
    :param mse: The mean squared error of the predicted mean, over points and outputs; None for
        classifiers.
    :param target_variance: The variance of all targets up to and with this batch, as a mean over
        outputs; None for classifiers.
    :param error_rate: The share of points whose most probable class was wrong; None for regression.
    :param nlpd: The mean negative log predictive density, in nats for a point.
    :param seconds: The wall time of the update alone.
    :param num_pseudo_points: The number of pseudo-points of the posterior after the update, if the
        model has them.
    :param free_energy: The local free energy of the batch in nats, if the model reports it.
    :param forgetting: The amount by which the SMSE, or the error rate, of earlier batches has grown
        since each was learned; None if no earlier batch is kept.
    :param forgetting_nlpd: The amount by which their NLPD has grown, in nats for a point.
    """

    batch: int
    num_points: int
    mse: float | None
    target_variance: float | None
    error_rate: float | None
    nlpd: float
    seconds: float
    num_pseudo_points: int | None
    free_energy: float | None
    forgetting: float | None
    forgetting_nlpd: float | None

    @property
    def smse(self) -> float | None:
        """``mse / target_variance``; None for classifiers, or if no two targets differ so far."""
        return quotient(self.mse, self.target_variance)


@dataclass(frozen=True)
class Summary:
    """The scores of a stream, or of its batches so far.

    Means up to a batch weight every point alike, so that the last one is the mean over the stream.

    :param steps: The steps in the order of the stream, at least one.
    :raises InvalidDataError: if there is none.
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise InvalidDataError("a summary wants at least one step, got none")

    @property
    def num_points(self) -> int:
        """Points in all batches."""
        return sum(step.num_points for step in self.steps)

    @property
    def seconds(self) -> float:
        """Wall time of all updates."""
        return sum(step.seconds for step in self.steps)

    @property
    def free_energy(self) -> float | None:
        """Sum of the local free energies, an estimate of the stream's log evidence, in nats."""
        terms = [step.free_energy for step in self.steps if step.free_energy is not None]
        return sum(terms) if len(terms) == len(self.steps) else None

    @property
    def num_pseudo_points(self) -> int | None:
        """Pseudo-points at the end."""
        return self.steps[-1].num_pseudo_points

    @property
    def forgetting(self) -> float | None:
        """Growth of the SMSE, or the error rate, of earlier batches at the end."""
        return self.steps[-1].forgetting

    @property
    def forgetting_nlpd(self) -> float | None:
        """Growth of the NLPD of earlier batches at the end, in nats."""
        return self.steps[-1].forgetting_nlpd

    @property
    def running_nlpd(self) -> tuple[float, ...]:
        """Mean NLPD up to each batch, in nats for a point."""
        return self._running([step.nlpd for step in self.steps])

    @property
    def running_error_rate(self) -> tuple[float, ...] | None:
        """Error rate up to each batch; None for regression."""
        rates = [step.error_rate for step in self.steps if step.error_rate is not None]
        return self._running(rates) if rates else None

    @property
    def running_smse(self) -> tuple[float | None, ...] | None:
        """Mean squared error up to each batch over the variance of the targets up to it.

        None for classifiers.
        """
        errors = [step.mse for step in self.steps if step.mse is not None]
        if not errors:
            return None
        means = self._running(errors)
        return tuple(quotient(m, s.target_variance) for m, s in zip(means, self.steps, strict=True))

    @property
    def nlpd(self) -> float:
        """Mean NLPD of the stream, in nats for a point."""
        return self.running_nlpd[-1]

    @property
    def error_rate(self) -> float | None:
        """Error rate of the stream; None for regression."""
        return None if self.running_error_rate is None else self.running_error_rate[-1]

    @property
    def smse(self) -> float | None:
        """Mean squared error over the variance of all targets; None for classifiers."""
        return None if self.running_smse is None else self.running_smse[-1]

    def _running(self, values: list[float]) -> tuple[float, ...]:
        points = np.array([step.num_points for step in self.steps])
        return tuple((np.cumsum(points * values) / np.cumsum(points)).tolist())

    def to_records(self) -> list[dict[str, Any]]:
        """One plain dict for each step, with the running means, ready for JSON.

        A number that is not finite becomes None, as JSON has no name for it.
        """
        running = {
            "running_smse": self.running_smse,
            "running_error_rate": self.running_error_rate,
            "running_nlpd": self.running_nlpd,
        }
        records = []
        for number, step in enumerate(self.steps):
            record = {**asdict(step), "smse": step.smse}
            record |= {name: means and means[number] for name, means in running.items()}
            records.append(
                {
                    name: value if value is None or np.isfinite(value) else None
                    for name, value in record.items()
                }
            )
        return records


# ---- test, then train ----


class Learner(Protocol):
    """A model that :func:`~streaming_gp.evaluate.prequential` can evaluate.

    A model may also have a ``likelihood``, which says whether it classifies; a
    ``posterior_process`` with its ``num_pseudo_points``; and what its ``update`` returns may have
    the batch's local ``free_energy`` in nats.
    """

    def predict_y(self, Xnew: Any, /) -> tuple[Any, Any]:
        """Mean and variance [N, P] of observations at X [N, D]."""

    def predict_log_density(self, data: tuple[Any, Any], /) -> Any:
        """``log p(y_n | x_n)`` [N], in nats."""

    def update(self, data: tuple[Any, Any], /) -> Any:
        """Learn from one batch."""


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
        One with a ``likelihood`` gets error rates if that is a Bernoulli, Softmax or MultiClass,
        and squared errors otherwise, as does one without.
    :param batches: Pairs of X [N, D] and Y [N, P], which are read one at a time. Where the model
        drops entries of Y that are missing (NaN), rows that miss one are not scored, and a batch of
        nothing else is no step.
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

    >>> steps = sgp.evaluate.prequential(model, [(X + 5.0, np.sin(X + 5.0)), (X, Y)])
    >>> round(sgp.evaluate.Summary(tuple(steps)).steps[1].smse, 2)  # it knew these already
    0.0
    """
    for name, number in {"keep": keep, "keep_batches": keep_batches, "seed": seed}.items():
        require_count(name, number)
    if isinstance(getattr(model, "likelihood", None), SwitchedLikelihood):
        raise InvalidDataError("SwitchedLikelihood has no one mean of y, so no SMSE either")
    return _steps(model, batches, _Reservoir(keep, keep_batches, seed), label)


def _steps(
    model: Learner, batches: Iterable[tuple[Any, Any]], reservoir: _Reservoir, label: str | None
) -> Iterator[Step]:
    targets = _Targets()
    on_terminal = sys.stderr.isatty()
    with tqdm(batches, desc=label, unit="batch", disable=label is None or not on_terminal) as bar:
        for number, data in enumerate(bar, start=1):
            step = _step(model, number, data, targets, reservoir)
            if step is None:
                continue
            bar.set_postfix_str(_line(step), refresh=False)
            if label is not None and not on_terminal:
                print(f"{label}, batch {number}: {_line(step)}")
            yield step


def _step(
    model: Learner, number: int, data: Any, targets: _Targets, reservoir: _Reservoir
) -> Step | None:
    with _batch_error(number, "could not be scored"):
        X, Y = map(as_real_array, "XY", as_pair(data))
        scored = _scored(model, X, Y)
        is_scored = len(scored[0]) > 0 or len(X) == 0
        if not is_scored and np.isnan(Y).all():
            return None
        loss, nlpd = _losses(model, *scored).mean(axis=0).tolist() if is_scored else (0.0, 0.0)
    with _batch_error(number, "was scored but could not be learned"):
        start = time.perf_counter()
        info = model.update((X, Y))
        seconds = time.perf_counter() - start
    if not is_scored:
        return None
    X, Y = scored
    with _batch_error(number, "was learned but could not be scored again"):
        loss_growth, nlpd_growth = reservoir.growth(model, X, Y)
    targets.add(_as_matrix(Y))
    is_regression = number_of_classes(getattr(model, "likelihood", None)) is None
    process, free_energy = getattr(model, "posterior_process", None), None
    if getattr(info, "free_energy", None) is not None:
        free_energy = float(info.free_energy)
    return Step(
        batch=number,
        num_points=len(X),
        mse=loss if is_regression else None,
        target_variance=targets.variance if is_regression else None,
        error_rate=None if is_regression else loss,
        nlpd=nlpd,
        seconds=seconds,
        num_pseudo_points=None if process is None else int(process.num_pseudo_points),
        free_energy=free_energy,
        forgetting=quotient(loss_growth, targets.variance if is_regression else 1.0),
        forgetting_nlpd=nlpd_growth,
    )


def _scored(model: Learner, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows that miss no target, where the model drops those that do."""
    drops = getattr(getattr(model, "settings", None), "missing", "refuse") == "drop"
    if not drops or X.ndim == 0 or X.shape[:1] != Y.shape[:1]:
        return X, Y
    is_whole = ~np.isnan(_as_matrix(Y)).any(axis=1)
    return X[is_whole], Y[is_whole]


@contextmanager
def _batch_error(batch: int, message: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise BatchError(batch, f"{message}: {type(error).__name__}: {error}") from error


def _line(step: Step) -> str:
    name, score = ("SMSE", step.smse) if step.error_rate is None else ("error", step.error_rate)
    number = "-" if score is None else f"{score:.3g}"
    return f"{name} {number}, NLPD {step.nlpd:.3f}, {step.seconds:.1f} s"


class _Targets:
    """Number, means [P] and summed squared deviations [P] of all targets so far."""

    def __init__(self) -> None:
        self._number, self._mean, self._squares = 0, np.zeros(1), np.zeros(1)

    def add(self, Y: np.ndarray) -> None:
        """One more batch [N, P] (Chan, Golub & LeVeque 1983)."""
        before, self._number = self._number, self._number + len(Y)
        mean = Y.mean(axis=0)
        shift = mean - self._mean
        deviations = ((Y - mean) ** 2).sum(axis=0)
        self._squares = self._squares + deviations + shift**2 * before * len(Y) / self._number
        self._mean = self._mean + shift * len(Y) / self._number

    @property
    def variance(self) -> float:
        """The mean over outputs."""
        return float(np.mean(self._squares / self._number))


class _Reservoir:
    """A bounded random sample of batches, and of their points (Vitter 1985, algorithm R).

    It holds X, Y and the mean losses [2] right after each batch was learned.

    :param num_points: The largest number of points of a batch.
    :param num_batches: The largest number of batches.
    :param seed: The seed of the sample.
    """

    def __init__(self, num_points: int, num_batches: int, seed: int) -> None:
        self._num_points, self._num_batches = num_points, num_batches
        self._rng = np.random.default_rng(seed)
        self._batches: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._num_offered = 0

    def growth(
        self, model: Learner, X: np.ndarray, Y: np.ndarray
    ) -> tuple[float | None, float | None]:
        """Mean growth of both losses of earlier batches, if any; then the batch is offered, too.

        :param model: A model that has just learned the batch.
        :param X: The inputs of the batch [N, D].
        :param Y: The targets of the batch [N, P].
        """
        if not self._num_points or not self._num_batches:
            return None, None
        rows = self._rng.permutation(len(X))[: self._num_points]
        inputs = [*(earlier[0] for earlier in self._batches), X[rows]]
        targets = [*(earlier[1] for earlier in self._batches), Y[rows]]
        losses = _losses(model, np.concatenate(inputs), np.concatenate(targets))
        cuts = np.cumsum([len(part) for part in inputs])[:-1]
        *later, first = [part.mean(axis=0) for part in np.split(losses, cuts)]
        growth = [now - earlier[2] for now, earlier in zip(later, self._batches, strict=True)]
        self._offer(inputs[-1], targets[-1], first)
        return tuple(np.mean(growth, axis=0).tolist()) if growth else (None, None)

    def _offer(self, X: np.ndarray, Y: np.ndarray, losses: np.ndarray) -> None:
        self._num_offered += 1
        if len(self._batches) < self._num_batches:
            self._batches.append((X, Y, losses))
        elif (place := int(self._rng.integers(self._num_offered))) < self._num_batches:
            self._batches[place] = X, Y, losses


# ---- losses of single points, by what the model's likelihood says that it predicts ----


def _losses(model: Learner, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Squared error or 0/1 loss, mean over outputs, and −log density, of every point: [N, 2]."""
    density = _as_matrix(model.predict_log_density((X, Y))).sum(axis=1)  # it checks the batch, too
    mean, targets = _as_matrix(model.predict_y(X)[0]), _as_matrix(Y)
    loss = _loss(getattr(model, "likelihood", None), mean, targets)
    return np.stack([loss.mean(axis=1), -density], axis=1)


def _loss(likelihood: Any, mean: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Losses [N, P], or [N, 1] for several classes, of which the means [N, C] are probabilities."""
    if isinstance(likelihood, SEVERAL_CLASSES):
        return wrong_class(mean, targets)[:, None]
    if mean.shape[1] not in (1, targets.shape[1]):  # 1: before any data P may be unknown
        raise InvalidDataError(
            f"predict_y gave means of {mean.shape[1]} outputs for targets of {targets.shape[1]}"
        )
    if isinstance(likelihood, Bernoulli):
        return on_wrong_side(mean, targets)
    return squared_error(mean, targets)


def _as_matrix(values: Any) -> np.ndarray:
    """Values [N] or [N, P] as floats [N, P]."""
    array = np.asarray(values, float)
    return array.reshape(len(array), -1)


# ---- an alarm ----

TOLERANCE = 0.1
"""Nats by which the log density of a datum may fall short of the mean unnoticed."""
THRESHOLD = 50.0
"""Nats that shortfalls add up to when there is an alarm."""


class Detector(Protocol):
    """A change detector, as :class:`DriftAlarm` uses it; those of river are some."""

    @property
    def drift_detected(self) -> bool:
        """Whether the newest value shows a change."""

    def update(self, x: float, /) -> Any:
        """Take in the next value."""


class DriftAlarm:
    """Watches the log densities of batches that a model has not learned yet.

    As long as a model knows the function, they rise or stay about the same from batch to batch;
    where the function has changed they fall.

    :param detector: A change detector of river, or any :class:`Detector`, which gets the log
        density of one datum after another. By default it is the Page-Hinkley test (Page 1954) for
        a fall: by how much each log density falls short of the mean so far, less 0.1 nats, is added
        up, and 50 nats are an alarm. After an alarm it starts anew.
    :raises InvalidDataError: if no detector is given and river is not installed.
    """

    def __init__(self, detector: Detector | None = None) -> None:
        self.detector = _page_hinkley() if detector is None else detector

    def update(self, log_density: Any) -> bool:
        """Take in a batch, and say whether the detector has found a change in it.

        :param log_density: ``model.predict_log_density`` [N] of the batch before it is learned, in
            nats.
        :raises InvalidDataError: if it is not finite; the detector has not seen it then.
        """
        values = np.ravel(np.asarray(log_density, dtype=float))
        if not np.isfinite(values).all():
            raise InvalidDataError("log densities must be finite")
        is_alarm = False
        for value in values.tolist():
            self.detector.update(value)
            is_alarm |= bool(self.detector.drift_detected)
        return is_alarm


def _page_hinkley() -> Detector:
    try:
        from river.drift import PageHinkley
    except ImportError as error:
        raise missing_extra("an alarm with no detector of yours", "river", "river") from error
    detector: Detector = PageHinkley(delta=TOLERANCE, threshold=THRESHOLD, mode="down")
    return detector
