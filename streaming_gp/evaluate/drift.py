"""An alarm for streams whose function changes: log densities fall below what they were."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from streaming_gp.errors import InvalidDataError

TOLERANCE = 0.1
"""Nats by which the log density of a datum may fall short of the mean unnoticed."""
THRESHOLD = 50.0
"""Nats that shortfalls add up to when there is an alarm."""


class Detector(Protocol):
    """A change detector, as :class:`DriftAlarm` uses it; those of river are some."""

    @property
    def drift_detected(self) -> bool:
        """Whether the newest value shows a change."""
        ...

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
        raise InvalidDataError(
            'the default drift alarm needs river: pip install "streaming-gp[river]", or give a '
            "detector of your own"
        ) from error
    detector: Detector = PageHinkley(delta=TOLERANCE, threshold=THRESHOLD, mode="down")
    return detector
