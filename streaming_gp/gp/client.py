"""A Gaussian process as a model of clients: the rule by which each fits its own shard."""

from __future__ import annotations

from dataclasses import dataclass

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.learning import LearningGP
from streaming_gp.inputs import require_flag
from streaming_gp.pvi.task import LocalResult, LocalTask


@dataclass(frozen=True)
class GPUpdate:
    """The update rule of clients whose model is a :class:`~streaming_gp.StreamingGP`.

    A client fits its shard under its cavity, as :meth:`StreamingGP.update` fits a batch, by the
    model's own strategies. Its pseudo-points stay where its first visit put them, so that damped
    factors are on one set of points; and each visit averages over ε with the same random numbers,
    so that rounds have a fixed point, whatever the schedule.

    ``clients = pvi.make_clients(gp, shards, update=GPUpdate())``,
    ``server = pvi.Server(gp.prior(), clients)``, and after the rounds ``gp.adopt(server.ledger)``.

    :param keep_points: Whether points stay. If not, each visit moves them on, as
        :meth:`StreamingGP.revisit` does: for schedules in which answers enter in full, such as
        ``pvi.Arrivals`` and ``pvi.Sequential``. A damped factor would keep old and new points.
    :raises InvalidDataError: if that is neither true nor false.
    """

    keep_points: bool = True

    def __post_init__(self) -> None:
        require_flag("keep_points", self.keep_points)

    def __call__(self, task: LocalTask) -> LocalResult:
        """Fit the client's data under its cavity.

        :raises InvalidDataError: if the model is none of Gaussian-process factors, or its
            strategies make factors that rest on one another, or a point of ε.
        """
        model = task.model
        if not isinstance(model, LearningGP):
            raise InvalidDataError(
                f"GPUpdate is for clients of a StreamingGP, got a {type(model).__name__}"
            )
        fitted = model.fit_factor(task.data, task.cavity, task.own, self.keep_points)
        diagnostics = {
            "nugget": fitted.nugget,
            "clipped_sites": float(fitted.clipped_sites),
            "unexplained": fitted.unexplained,
        }
        return LocalResult(
            fitted.factor, fitted.free_energy, fitted.iterations, diagnostics=diagnostics
        )
