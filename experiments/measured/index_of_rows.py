"""Which index finds near rows soonest: every distance, SciPy's tree, or FAISS.

Rows and places are those of a standard normal distribution, for several numbers of rows and of
columns; the 100 nearest rows of each place are asked for, 256 places at once and one alone. The
limits by which the package chooses are set in their module, so that each kind is taken in turn.

--quick has 2,000 rows alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any
from unittest import mock

import numpy as np
from common import Results, parser, run, write_results
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from streaming_gp.numerics import neighbors
from streaming_gp.numerics.neighbors import Index

ROWS, COLUMNS = (3_000, 10_000, 40_000, 100_000), (3, 8, 15, 21)
NEAREST, TOGETHER, ALONE = 100, 256, 50
KINDS: dict[str, dict[str, Any]] = {
    "every distance": {"BRUTE_ROWS": sys.maxsize},
    "SciPy's tree": {"BRUTE_ROWS": 0, "MOST_TREE_COLUMNS": sys.maxsize},
    "FAISS": {"BRUTE_ROWS": 0, "MOST_TREE_COLUMNS": 0},
}


def measured(kind: str, number: int, columns: int, rng: np.random.Generator) -> Results:
    """CPU milliseconds to build an index, and for each place."""
    rows, places = rng.standard_normal((number, columns)), rng.standard_normal((TOGETHER, columns))
    with mock.patch.multiple(neighbors, **KINDS[kind]):
        start = time.process_time()
        index = Index.of(rows)
        built = time.process_time()
    index.nearest(places, NEAREST)  # memory is touched for the first time
    asked = time.process_time()
    index.nearest(places, NEAREST)
    answered = time.process_time()
    for place in places[:ALONE, None]:
        index.nearest(place, NEAREST)
    return {
        "kind": kind,
        "rows": number,
        "columns": columns,
        "build_ms": 1e3 * (built - start),
        "together_ms": 1e3 * (answered - asked) / TOGETHER,
        "alone_ms": 1e3 * (time.process_time() - answered) / ALONE,
    }


def chosen(number: int, columns: int) -> str:
    """What the package takes, with FAISS installed."""
    if number < neighbors.BRUTE_ROWS:
        return "every distance"
    return "SciPy's tree" if columns <= neighbors.MOST_TREE_COLUMNS else "FAISS"


def main(arguments: argparse.Namespace) -> None:
    rng = np.random.default_rng(arguments.seed)
    cases = [
        (number, columns, kind)
        for number in ((2_000,) if arguments.quick else ROWS)
        for columns in COLUMNS
        for kind in KINDS
    ]
    found = []
    with threadpool_limits(1):
        for number, columns, kind in tqdm(cases, disable=not sys.stderr.isatty()):
            row = measured(kind, number, columns, rng)
            found.append({**row, "taken": "yes" if kind == chosen(number, columns) else ""})
    for row in found:
        print(
            f"{row['rows']:,} rows of {row['columns']}, {row['kind']}: built in "
            f"{row['build_ms']:.1f} ms, {row['together_ms']:.3f} ms a place, {row['alone_ms']:.3f} "
            "alone"
        )
    write_results(arguments.out, {"seed": arguments.seed, "summary": found})


if __name__ == "__main__":
    run(main, parser(__doc__))
