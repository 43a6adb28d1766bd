"""What the evaluation asks of a model, and what a model may offer beyond that."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


class Learner(Protocol):
    """What :func:`~streaming_gp.evaluate.prequential` asks of a model.

    It may also have what ``HasLikelihood`` and ``HasPseudoPoints`` say, and its ``update`` may
    return what ``ReportsFreeEnergy``.
    """

    def predict_y(self, Xnew: Any, /) -> tuple[Any, Any]:
        """Mean and variance [N, P] of observations at X [N, D]."""

    def predict_log_density(self, data: tuple[Any, Any], /) -> Any:
        """``log p(y_n | x_n)`` [N], in nats."""

    def update(self, data: tuple[Any, Any], /) -> Any:
        """Learn from one batch."""


@runtime_checkable
class HasLikelihood(Protocol):
    """A model whose likelihood says whether it classifies."""

    @property
    def likelihood(self) -> Any:
        """A GPflow likelihood, or anything else for regression."""
        ...


class Process(Protocol):
    """A posterior process on pseudo-points."""

    @property
    def num_pseudo_points(self) -> int:
        """The number of its pseudo-points."""
        ...


@runtime_checkable
class HasPseudoPoints(Protocol):
    """A model whose posterior rests on pseudo-points."""

    @property
    def posterior_process(self) -> Process:
        """The posterior, as it is now."""
        ...


@runtime_checkable
class ReportsFreeEnergy(Protocol):
    """What an ``update`` returns that knows the batch's local free energy."""

    @property
    def free_energy(self) -> float | None:
        """The local free energy of the batch, in nats; None if this update has none."""
        ...
