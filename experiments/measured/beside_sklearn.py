"""46,000 rows with our regressor beside scikit-learn's ``GaussianProcessRegressor`` on 5,000.

Both learn their hyperparameters from rows of one smooth function with noise, in one process after
the other, and predict 1,000 rows that they have not seen; scikit-learn's has the same kernel, with
a lengthscale for each input and a ``WhiteKernel``, and one start. Seconds are those of the
processor, which a busy machine changes less than those of the clock.

--quick has 2,000 rows and 300.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn
from common import Results, parser, run, write_results
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from streaming_gp.sklearn import StreamingGPRegressor

INPUTS, NOISE_SD, TESTED = 4, 0.1, 1000


def rows(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (number, INPUTS))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] ** 2 / 3.0 + np.cos(X[:, 2] * X[:, 3])
    return X, y + NOISE_SD * rng.standard_normal(number)


def theirs() -> GaussianProcessRegressor:
    kernel = ConstantKernel() * RBF(np.ones(INPUTS)) + WhiteKernel(0.1)
    return GaussianProcessRegressor(kernel, normalize_y=True)


def measured(name: str, make: Callable[[], Any], number: int, seed: int) -> Results:
    (X, y), (X_test, y_test) = rows(number, seed), rows(TESTED, seed + 1)
    model, start, clock = make(), time.process_time(), time.perf_counter()
    model.fit(X, y)
    fitted = time.process_time()
    mean, deviation = model.predict(X_test, return_std=True)
    z = (y_test - mean) / deviation
    one = {
        "model": name,
        "rows": number,
        "fit_cpu_seconds": fitted - start,
        "predict_cpu_seconds": time.process_time() - fitted,
        "clock_seconds": time.perf_counter() - clock,
        "rmse": float(np.sqrt(np.mean((y_test - mean) ** 2))),
        "nlpd": float(np.mean(0.5 * z**2 + np.log(deviation) + 0.5 * np.log(2.0 * np.pi))),
    }
    print(one, flush=True)
    return one


def main(arguments: argparse.Namespace) -> None:
    many, few = (2_000, 300) if arguments.quick else (46_000, 5_000)
    warnings.filterwarnings("ignore")
    found = [
        measured("StreamingGPRegressor", StreamingGPRegressor, many, arguments.seed),
        measured("GaussianProcessRegressor", theirs, few, arguments.seed),
    ]
    ratio = found[1]["fit_cpu_seconds"] / found[0]["fit_cpu_seconds"]
    versions = {"sklearn": sklearn.__version__, "ratio": ratio}
    write_results(arguments.out, {**versions, "summary": found})


if __name__ == "__main__":
    run(main, parser(__doc__))
