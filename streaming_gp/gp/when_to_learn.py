"""Whether a step learns hyperparameters, or absorbs its data at those that are there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import gpflow
import numpy as np

from streaming_gp.gp.hyperparameters.parameters import ParameterVector
from streaming_gp.gp.present import Present
from streaming_gp.gp.state import Settings
from streaming_gp.validation import class_of_all


@dataclass(frozen=True)
class Decision:
    """What a step does about the hyperparameters.

    :param learn: Whether they are learned.
    :param only_class: The class of all labels so far, the step's among them, if there is but one.
    :param is_held: Whether nothing is learned because there is but one.
    """

    learn: bool
    only_class: float | None
    is_held: bool = False


def decision(
    asked: bool | None,
    present: Present,
    only_class: float | None,
    settings: Settings,
    parameters: ParameterVector,
) -> Decision:
    """What was asked for, or else what the learning schedule says.

    For the schedule the update with a second class is the first one of the stream.

    :param asked: Whether to learn; None where the schedule decides, and one class alone waits.
    :param parameters: The hyperparameters, of which there may be none to learn.
    """
    if asked is not None:
        return Decision(asked, only_class)
    if only_class is not None and len(settings.hyperparameters.limits(parameters)) > 0:
        return Decision(False, only_class, is_held=True)
    number = present.num_updates if present.only_class is None else 0
    return Decision(settings.learning.wants(number, present.shift), only_class)


def only_class_with(
    labels: Iterable[np.ndarray], present: Present, likelihood: gpflow.likelihoods.Likelihood
) -> float | None:
    """The class of all labels so far and of these, if there is but one."""
    found = {class_of_all(likelihood, Y) for Y in labels}
    if present.num_updates > 0:
        found.add(present.only_class)
    return found.pop() if len(found) == 1 else None
