"""An alarm on log densities that fall."""

import sys

import numpy as np
import pytest

from streaming_gp.errors import InvalidDataError
from streaming_gp.evaluate import DriftAlarm


class Falls:
    """Detects a value that is below the one before."""

    def __init__(self):
        self.seen, self.drift_detected = [], False

    def update(self, x):
        self.drift_detected = bool(self.seen) and x < self.seen[-1]
        self.seen.append(x)


def page_hinkley(values, tolerance=0.1, threshold=50.0, memory=0.9999, least=30):
    """The number of the first value at which the test for a fall alarms (Page 1954), or None."""
    fallen, highest, total = 0.0, -1.0, 0.0
    for number, value in enumerate(values, start=1):
        total += value
        fallen = memory * fallen + value - total / number + tolerance
        highest = max(highest, fallen)
        if number >= least and highest - fallen > threshold:
            return number - 1
    return None


def alarms(alarm, values, size):
    """The numbers of the batches that are unlike those before."""
    return [n for n, batch in enumerate(values.reshape(-1, size)) if alarm.update(batch)]


def test_a_batch_is_unlike_those_before_if_any_of_its_data_says_so():
    alarm = DriftAlarm(Falls())
    assert not alarm.update(np.array([[1.0], [2.0]]))
    assert alarm.update([3.0, 2.5, 4.0])
    assert not alarm.update([4.0])
    assert alarm.detector.seen == [1.0, 2.0, 3.0, 2.5, 4.0, 4.0]


def test_log_densities_that_are_not_finite_are_refused_as_a_whole():
    alarm = DriftAlarm(Falls())
    with pytest.raises(InvalidDataError, match="must be finite"):
        alarm.update([1.0, -np.inf])
    assert alarm.detector.seen == []


def test_without_river_the_default_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "river.drift", None)
    with pytest.raises(InvalidDataError, match=r"needs river: pip install .*streaming-gp\[river\]"):
        DriftAlarm()


def test_the_default_is_the_page_hinkley_test_for_a_fall(rng):
    pytest.importorskip("river", reason="the river extra is not installed")
    values = rng.normal(0.0, 0.7, 2000) - 1.5 * (np.arange(2000) >= 1000)
    first = page_hinkley(values)
    assert 1000 < first < 1100
    assert alarms(DriftAlarm(), values, 25)[0] == first // 25
    assert page_hinkley(-values) is None
    assert alarms(DriftAlarm(), -values, 25) == []  # a model that learns is no reason for alarm


def test_after_an_alarm_the_new_world_is_the_usual_one(rng):
    pytest.importorskip("river", reason="the river extra is not installed")
    values = rng.normal(0.0, 0.7, 3000) - 5.0 * (np.arange(3000) >= 1000)
    assert alarms(DriftAlarm(), values, 100) == [10]
