"""One BLAS thread for many small steps.

On matrices of a few hundred rows, more threads mostly wait for one another: they cost CPU time, and
on a busy machine now and then a step of many milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import scipy.linalg  # noqa: F401  so that its BLAS is loaded before it is looked for
from threadpoolctl import ThreadpoolController

FEW_ROWS = 4000
"""Below so many rows of a matrix one BLAS thread is enough."""


def blas_threads_for(rows: int) -> AbstractContextManager[None]:
    """One BLAS thread for matrices of so few rows; all that there are for larger ones."""
    return one_blas_thread() if rows < FEW_ROWS else nullcontext()


@cache
def _blas() -> list[Any]:
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within the block NumPy and SciPy compute with one thread, if it is the main thread's.

    OpenBLAS takes its number of threads from the main thread alone; in others nothing changes.
    """
    many = _with_many_threads()
    for library, _ in many:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, number in many:
            library.set_num_threads(number)


def _with_many_threads() -> list[tuple[Any, int]]:
    """Each library that has more than one thread, with how many it has."""
    if threading.current_thread() is not threading.main_thread():
        return []
    numbers = ((library, library.num_threads) for library in _blas())
    return [(library, number) for library, number in numbers if number > 1]
