"""Beside river's own models on five data sets that it ships: each row is predicted, then learned.

The estimators are those that a user starts with, with no argument but the labels; river's linear
models and neighbours get its ``StandardScaler``, as its documentation has them. river has no
Gaussian process of its own. Of regression the score is the mean absolute error, of labels the share
that was wrong.

Every pair of a data set and a model is kept in OUT/runs, and is not run again. --quick takes the
first 200 rows of each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import river
from common import Results, parser, run, write_json, write_results
from river import datasets, forest, linear_model, metrics, naive_bayes, neighbors, tree
from river.preprocessing import StandardScaler

from streaming_gp.river import StreamingGPClassifier, StreamingGPRegressor

OURS = "streaming GP"
REGRESSION: dict[str, Callable[[], Any]] = {
    OURS: StreamingGPRegressor,
    "Bayesian linear regression": lambda: (
        StandardScaler() | linear_model.BayesianLinearRegression()
    ),
    "linear regression": lambda: StandardScaler() | linear_model.LinearRegression(),
    "nearest neighbours": lambda: StandardScaler() | neighbors.KNNRegressor(),
    "Hoeffding tree": tree.HoeffdingAdaptiveTreeRegressor,
    "random forest": lambda: forest.ARFRegressor(seed=0),
    "Mondrian forest": lambda: forest.AMFRegressor(seed=0),
}
LABELS: dict[str, Callable[[], Any]] = {
    "logistic regression": lambda: StandardScaler() | linear_model.SoftmaxRegression(),
    "naive Bayes": naive_bayes.GaussianNB,
    "nearest neighbours": lambda: StandardScaler() | neighbors.KNNClassifier(),
    "Hoeffding tree": tree.HoeffdingAdaptiveTreeClassifier,
    "random forest": lambda: forest.ARFClassifier(seed=0),
    "Mondrian forest": lambda: forest.AMFClassifier(seed=0),
}
DATA: dict[str, Callable[[], Any]] = {
    "TrumpApproval": datasets.TrumpApproval,
    "ChickWeights": datasets.ChickWeights,
    "Phishing": datasets.Phishing,
    "ImageSegments": datasets.ImageSegments,
    "Bananas": datasets.Bananas,
}


def models(rows: list[Any], is_regression: bool) -> dict[str, Callable[[], Any]]:
    if is_regression:
        return REGRESSION
    labels = tuple(sorted({y for _, y in rows}))
    return {OURS: lambda: StreamingGPClassifier(labels), **LABELS}


def score(rows: list[Any], model: Any, is_regression: bool) -> Results:
    """One pass. Before its first row a model of river may have no label to tell, which is wrong."""
    metric: Any = metrics.MAE() if is_regression else metrics.Accuracy()
    start = time.process_time()
    for x, y in rows:
        predicted = model.predict_one(x)
        metric.update(y, 0.0 if is_regression and predicted is None else predicted)
        model.learn_one(x, y)
    value = metric.get()
    return {
        "score": value if is_regression else 1.0 - value,
        "cpu_seconds": time.process_time() - start,
    }


def main(arguments: argparse.Namespace) -> None:
    folder = arguments.out / ("quick" if arguments.quick else "runs")
    folder.mkdir(parents=True, exist_ok=True)
    found, summary = [], []
    for data, load in DATA.items():
        rows = list(load().take(200) if arguments.quick else load())
        is_regression = not isinstance(rows[0][1], (bool, str))
        scores = {}
        for name, make in models(rows, is_regression).items():
            path = folder / f"{data}-{name.replace(' ', '-')}.json"
            if not path.exists():
                write_json(path, score(rows, make(), is_regression))
            one = json.loads(path.read_text())
            scores[name] = one["score"]
            found.append({"data": data, "rows": len(rows), "model": name, **one})
            print(data, name, one, flush=True)
        best = min((name for name in scores if name != OURS), key=scores.__getitem__)
        summary.append(
            {
                "data": f"{data}, {len(rows)} rows",
                "measure": "absolute error" if is_regression else "share wrong",
                "ours": scores[OURS],
                "best": scores[best],
                "best_name": best,
                "linear": scores["linear regression" if is_regression else "logistic regression"],
                "tree": scores["Hoeffding tree"],
                "neighbours": scores["nearest neighbours"],
            }
        )
    write_results(
        arguments.out,
        {"river": river.__version__, "summary": summary, "runs": found},
    )


if __name__ == "__main__":
    run(main, parser(__doc__))
