"""Processors and memory: one BLAS thread for many small steps, pages that are kept, and forks.

On matrices of a few hundred rows, more threads mostly wait for one another: they cost CPU time, and
on a busy machine now and then a step of many milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  so that its BLAS is loaded before it is looked for
from threadpoolctl import ThreadpoolController

from streaming_gp.errors import ForkedError

FEW_ROWS = 4000
"""Below so many rows of a matrix one BLAS thread is enough."""


def blas_threads_for(rows: int) -> AbstractContextManager[None]:
    """One BLAS thread for matrices of so few rows; all that there are for larger ones."""
    return one_blas_thread() if rows < FEW_ROWS else nullcontext()


@cache
def _blas() -> list[Any]:
    """The libraries, called without a release of the interpreter: a thread that takes it keeps it
    for milliseconds, and these calls take less than one.
    """
    libraries = list(ThreadpoolController().select(user_api="blas").lib_controllers)
    for library in libraries:
        library.dynlib = ctypes.PyDLL(library.filepath)
    return libraries


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


LARGEST_KEPT = 31 * 2**20
"""In bytes: a little less than the largest block from which the GNU C library learns."""


def keep_freed_memory() -> None:
    """Free a large block, of which no page was ever touched, so that freed memory is kept.

    The GNU C library gives free memory at the end of its heap back to the system, and serves large
    arrays by pages of their own, until a process has freed a large block (mallopt(3),
    M_MMAP_THRESHOLD). A fit whose stacks of matrices have a few megabytes each would spend much of
    its time on getting the same pages again and again.
    """
    np.empty(LARGEST_KEPT, np.uint8)


_is_fork = False  # of a process in which TensorFlow had run: its threads are not here


def _note_fork() -> None:
    global _is_fork
    context = sys.modules.get("tensorflow.python.eager.context")
    _is_fork = _is_fork or getattr(getattr(context, "_context", None), "_initialized", False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def refuse_after_fork() -> None:
    """Refuse to work where TensorFlow would wait for threads that only the parent process has."""
    if _is_fork:
        raise ForkedError(
            "this process was forked after TensorFlow had run, which does not work in it: start "
            'processes by multiprocessing.get_context("spawn") or joblib\'s default backend, or '
            "fork before the first model is made"
        )
