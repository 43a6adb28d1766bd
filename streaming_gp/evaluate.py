"""Test-then-train: every batch of a stream is predicted before it is learned."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from gpflow.likelihoods import Bernoulli, MultiClass, Softmax, SwitchedLikelihood
from tqdm import tqdm

from streaming_gp.errors import InvalidDataError, StreamingGPError

_SEVERAL_CLASSES = (Softmax, MultiClass)


class Learner(Protocol):
    """What :func:`prequential` asks of a model.

    It may have a ``likelihood``, which says whether it classifies, and a
    ``posterior_process.num_pseudo_points``; what ``update`` returns may have a ``free_energy``.
    """

    def predict_y(self, Xnew: Any, /) -> tuple[Any, Any]:
        """Mean and variance [N, P] of observations at X [N, D]."""

    def predict_log_density(self, data: tuple[Any, Any], /) -> Any:
        """``log p(y_n | x_n)`` [N], in nats."""

    def update(self, data: tuple[Any, Any], /) -> Any:
        """Learn from one batch."""


class BatchError(StreamingGPError):
    """A batch that could not be scored or learned; the cause is ``__cause__``.

    :param batch: its number in the stream, from 1.
    """

    def __init__(self, batch: int, message: str) -> None:
        super().__init__(f"batch {batch} {message}")
        self.batch = batch


@dataclass(frozen=True)
class Step:
    """One batch: scored under all that came before it, then learned.

    :param batch: its number, from 1.
    :param num_points: N.
    :param mse: mean squared error of the predicted mean, over points and outputs; None for
        classifiers.
    :param target_variance: variance of all targets up to and with this batch, the mean over
        outputs; None for classifiers.
    :param error_rate: share of points whose most probable class was wrong; None for regression.
    :param nlpd: mean negative log predictive density, in nats for a point.
    :param seconds: wall time of the update alone.
    :param num_pseudo_points: of the posterior after the update, if the model has them.
    :param free_energy: local free energy of the batch in nats, if the model reports it.
    :param forgetting: by how much the SMSE, or the error rate, of earlier batches has grown since
        each was learned; None if no earlier batch is kept.
    :param forgetting_nlpd: the same of their NLPD, in nats.
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
        return _over(self.mse, self.target_variance)


@dataclass(frozen=True)
class Summary:
    """A stream, or what has been seen of it.

    Means up to a batch weight every point alike, so that the last one is the mean over the stream.

    :param steps: at least one, in order.
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
        return tuple(_over(m, s.target_variance) for m, s in zip(means, self.steps, strict=True))

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
        return [
            _finite(
                {
                    **asdict(step),
                    "smse": step.smse,
                    **{name: means and means[number] for name, means in running.items()},
                }
            )
            for number, step in enumerate(self.steps)
        ]


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if value is None or np.isfinite(value) else None
        for name, value in record.items()
    }


def prequential(
    model: Learner,
    batches: Iterable[tuple[Any, Any]],
    *,
    keep: int = 100,
    keep_batches: int = 20,
    seed: int = 0,
    label: str | None = None,
) -> Iterator[Step]:
    r"""Score each batch under the model as it is, then let the model learn it (Dawid 1984; Gama,
    Sebastião & Rodrigues 2013). The first batch is scored under the prior.

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

    Memory is bounded: at most ``keep × keep_batches`` points are kept, random points of random
    batches (reservoir sampling, Vitter 1985, so that every earlier batch is as likely to be among
    them), and they are all predicted once after each update.

    :param model: a :class:`StreamingGP <streaming_gp.StreamingGP>` or anything with its
        ``predict_y``, ``predict_log_density`` and ``update``. A Bernoulli, Softmax or MultiClass
        ``likelihood`` gets error rates; any other, or none, squared errors.
    :param batches: pairs of X [N, D] and Y [N, P]; read one at a time.
    :param keep: points kept of a batch; 0 for no account of forgetting.
    :param keep_batches: batches of which points are kept.
    :param seed: of what is kept.
    :param label: shown in front of a progress bar on a terminal, of a line a batch elsewhere; no
        progress is shown without.
    :returns: an iterator of one :class:`Step` a batch; nothing happens until it is asked.
    :raises InvalidDataError: if ``keep`` or ``keep_batches`` is negative, or the likelihood is
        switched and has no one mean of y.
    :raises BatchError: while iterating, if the model raises; the steps before stand, and a
        ``StreamingGP`` that could not learn the batch is as it was before it.
    """
    if min(keep, keep_batches) < 0:
        raise InvalidDataError(
            f"keep and keep_batches must not be negative, got {keep} and {keep_batches}"
        )
    if isinstance(_likelihood(model), SwitchedLikelihood):
        raise InvalidDataError("SwitchedLikelihood has no one mean of y, so no SMSE either")
    return _steps(model, batches, _Kept(keep, keep_batches, seed), label)


def _steps(
    model: Learner, batches: Iterable[tuple[Any, Any]], kept: _Kept, label: str | None
) -> Iterator[Step]:
    targets = _Targets(0, np.zeros(1), np.zeros(1))
    on_terminal = sys.stderr.isatty()
    with tqdm(batches, desc=label, unit="batch", disable=label is None or not on_terminal) as bar:
        for number, data in enumerate(bar, start=1):
            step, targets = _step(model, number, data, targets, kept)
            bar.set_postfix_str(_told(step), refresh=False)
            if label is not None and not on_terminal:
                print(f"{label}, batch {number}: {_told(step)}")
            yield step


def _step(
    model: Learner, number: int, data: Any, targets: _Targets, kept: _Kept
) -> tuple[Step, _Targets]:
    with _named(number, "could not be scored"):
        X, Y = _pair(data)
        loss, nlpd = _losses(model, X, Y).mean(axis=0).tolist()
    with _named(number, "was scored but could not be learned"):
        start = time.perf_counter()
        info = model.update((X, Y))
        seconds = time.perf_counter() - start
    with _named(number, "was learned but could not be scored again"):
        loss_growth, nlpd_growth = kept.growth(model, X, Y)
    targets, regression = targets.joined(_matrix(Y)), _is_regression(model)
    points = getattr(getattr(model, "posterior_process", None), "num_pseudo_points", None)
    energy = getattr(info, "free_energy", None)
    step = Step(
        batch=number,
        num_points=len(X),
        mse=loss if regression else None,
        target_variance=targets.variance if regression else None,
        error_rate=None if regression else loss,
        nlpd=nlpd,
        seconds=seconds,
        num_pseudo_points=None if points is None else int(points),
        free_energy=None if energy is None else float(energy),
        forgetting=_over(loss_growth, targets.variance if regression else 1.0),
        forgetting_nlpd=nlpd_growth,
    )
    return step, targets


@contextmanager
def _named(batch: int, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise BatchError(batch, f"{what}: {type(error).__name__}: {error}") from error


def _pair(data: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        X, Y = data
    except (TypeError, ValueError):
        raise InvalidDataError(f"data must be a pair (X, Y), got {type(data).__name__}") from None
    return np.asarray(X), np.asarray(Y)


def _matrix(values: Any) -> np.ndarray:
    """Values [N] or [N, P] as floats [N, P]."""
    array = np.asarray(values, float)
    return array.reshape(len(array), -1)


def _losses(model: Learner, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Squared error or 0/1 loss, mean over outputs, and −log density, of every point: [N, 2]."""
    density = _matrix(model.predict_log_density((X, Y))).sum(axis=1)  # it checks the batch, too
    loss = _loss(_likelihood(model), _matrix(model.predict_y(X)[0]), _matrix(Y))
    return np.stack([loss.mean(axis=1), -density], axis=1)


def _loss(likelihood: Any, mean: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Losses [N, P], or [N, 1] for several classes, of which the means [N, C] are probabilities."""
    if isinstance(likelihood, _SEVERAL_CLASSES):
        return mean.argmax(axis=1, keepdims=True) != targets
    if mean.shape[1] not in (1, targets.shape[1]):  # 1: before any data P may be unknown
        raise InvalidDataError(
            f"predict_y gave means of {mean.shape[1]} outputs for targets of {targets.shape[1]}"
        )
    if isinstance(likelihood, Bernoulli):
        return (mean > 0.5) != (targets > 0.5)
    return (mean - targets) ** 2


def _likelihood(model: Any) -> Any:
    return getattr(model, "likelihood", None)


def _is_regression(model: Any) -> bool:
    return not isinstance(_likelihood(model), (Bernoulli, *_SEVERAL_CLASSES))


def _over(value: float | None, variance: float | None) -> float | None:
    return None if value is None or not variance else value / variance


def _told(step: Step) -> str:
    name, score = ("SMSE", step.smse) if step.error_rate is None else ("error", step.error_rate)
    score_told = "-" if score is None else f"{score:.3g}"
    return f"{name} {score_told}, NLPD {step.nlpd:.3f}, {step.seconds:.1f} s"


@dataclass(frozen=True)
class _Targets:
    """Number, means [P] and summed squared deviations [P] of all targets so far."""

    number: int
    mean: np.ndarray
    squares: np.ndarray

    def joined(self, Y: np.ndarray) -> _Targets:
        """With one more batch [N, P] (Chan, Golub & LeVeque 1983)."""
        number, mean = self.number + len(Y), Y.mean(axis=0)
        shift = mean - self.mean
        squares = ((Y - mean) ** 2).sum(axis=0) + shift**2 * self.number * len(Y) / number
        return _Targets(number, self.mean + shift * len(Y) / number, self.squares + squares)

    @property
    def variance(self) -> float:
        """The mean over outputs."""
        return float(np.mean(self.squares / self.number))


class _Exam(NamedTuple):
    """Kept points of a batch, and their mean losses [2] right after it was learned."""

    X: np.ndarray
    Y: np.ndarray
    losses: np.ndarray


class _Kept:
    """A bounded random sample of batches, and of their points."""

    def __init__(self, points: int, batches: int, seed: int) -> None:
        self._points, self._batches = points, batches
        self._rng = np.random.default_rng(seed)
        self._exams: list[_Exam] = []
        self._seen = 0

    def growth(
        self, model: Learner, X: np.ndarray, Y: np.ndarray
    ) -> tuple[float | None, float | None]:
        """Mean growth of both losses of earlier batches, if any; then the batch is kept, too."""
        if not self._points or not self._batches:
            return None, None
        rows = self._rng.permutation(len(X))[: self._points]
        samples = [*((exam.X, exam.Y) for exam in self._exams), (X[rows], Y[rows])]
        losses = _mean_losses(model, samples)
        grown = [now - exam.losses for now, exam in zip(losses, self._exams, strict=False)]
        self._keep(_Exam(*samples[-1], losses[-1]))
        return tuple(np.mean(grown, axis=0).tolist()) if grown else (None, None)

    def _keep(self, exam: _Exam) -> None:
        self._seen += 1
        if len(self._exams) < self._batches:
            self._exams.append(exam)
        elif (place := int(self._rng.integers(self._seen))) < self._batches:
            self._exams[place] = exam


def _mean_losses(model: Learner, samples: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Mean losses [2] of each sample, all predicted at once."""
    X, Y = (np.concatenate(parts) for parts in zip(*samples, strict=True))
    cuts = np.cumsum([len(sample[0]) for sample in samples])[:-1]
    return [part.mean(axis=0) for part in np.split(_losses(model, X, Y), cuts)]
