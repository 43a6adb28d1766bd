"""The exact update of a conjugate model (PVI 2018, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.pvi.model import ConjugateModel
from streaming_gp.pvi.task import LocalResult, LocalTask


@dataclass(frozen=True)
class AnalyticUpdate:
    """The factor is the likelihood itself, which a conjugate model gives as ``likelihood_factor``.

    :raises InvalidDataError: for a model that has no such method.
    """

    def __call__(self, task: LocalTask) -> LocalResult:
        if not isinstance(task.model, ConjugateModel):
            name = type(task.model).__name__
            raise InvalidDataError(f"{name} is not conjugate: it has no likelihood_factor")
        factor: Factor = task.model.likelihood_factor(*task.data).as_arrays()
        cavity = task.cavity
        free_energy = float((cavity * factor).log_integral()) if cavity.is_proper else float("nan")
        return LocalResult(factor, free_energy, steps=1)
