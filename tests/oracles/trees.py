"""Trees of values, compared bit for bit."""

import struct
from dataclasses import fields, is_dataclass

import numpy as np


def layout(array):
    """The order of its axes in memory."""
    return np.argsort([-abs(stride) for stride in array.strides], kind="stable").tolist()


def same(a, b):
    """Whether two trees are the same bit for bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        alike = (a.dtype, a.shape, layout(a)) == (b.dtype, b.shape, layout(b))
        return alike and a.tobytes() == b.tobytes()
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if is_dataclass(a) and not isinstance(a, type):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    return a == b
