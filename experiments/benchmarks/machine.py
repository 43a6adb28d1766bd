"""How fast the machine is, and that all methods get its fast routines."""

from __future__ import annotations

import numpy as np
import threadpoolctl
from scipy.linalg import cholesky

from experiments.benchmarks.tuning import Seconds

SIZE, TIMES = 1500, 10
"""Of the reference computation: rows of its matrices, and how often they are factorised."""


def fast_routines() -> dict[str, str]:
    """The environment in which NumPy's OpenBLAS takes the processor for what SciPy's does.

    That of NumPy is older, and uses its slowest routines on a processor that it does not know.
    """
    found = [one for one in threadpoolctl.threadpool_info() if "scipy" in str(one["filepath"])]
    names = {str(one["architecture"]) for one in found if one["internal_api"] == "openblas"}
    return {"OPENBLAS_CORETYPE": names.pop()} if len(names) == 1 else {}


def reference_seconds() -> float:
    """CPU seconds of a computation that is always the same: some products, and Cholesky factors."""
    A, seconds = np.random.default_rng(0).standard_normal((SIZE, SIZE)), Seconds()
    with seconds.counted():
        for _ in range(TIMES):
            cholesky(A @ A.T, lower=True)
    return seconds.cpu
