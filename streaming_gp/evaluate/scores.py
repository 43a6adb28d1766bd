"""Scores of a stream: one step for each batch, and their summary."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError


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
    :param num_points: The number of points N.
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
