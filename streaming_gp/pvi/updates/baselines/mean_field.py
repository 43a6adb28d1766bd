"""What rules for mean-field Gaussians share."""

from __future__ import annotations

from typing import Any

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.pvi.task import LocalTask


def mean_of(task: LocalTask) -> Any:
    """The posterior mean of a task [D].

    :raises InvalidDataError: if the posterior is no mean-field Gaussian.
    """
    if not isinstance(task.posterior, MeanFieldNormal):
        family = type(task.posterior).__name__
        raise InvalidDataError(f"wanted a mean-field Gaussian posterior, got a {family}")
    return task.posterior.mean
