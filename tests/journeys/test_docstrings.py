"""The examples in public docstrings run, and show what comes.

They may speak of ``np``, ``gpflow`` and ``sgp``, of X [20, 1] and Y [20, 1], and of a ``model`` of
a sine that has learned these.
"""

import doctest
from importlib import import_module

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp

MODULES = {
    "streaming_gp.gp.model": 6,
    "streaming_gp.tables": 2,
    "streaming_gp.frames.files": 1,
    "streaming_gp.sklearn": 2,
    "streaming_gp.evaluate": 1,
    "streaming_gp.metrics": 3,
    "streaming_gp.datasets.partitions": 1,
    "streaming_gp.runtime.predictor": 1,
    "streaming_gp.pvi.fit": 1,
}
"""The least number of docstrings with examples."""
NEEDED = {"streaming_gp.sklearn": "sklearn"}


@pytest.fixture(scope="module")
def names():
    X = np.linspace(0.0, 5.0, 20)[:, None]

    def learned():
        model = sgp.StreamingGP(
            gpflow.kernels.SquaredExponential(),
            gpflow.likelihoods.Gaussian(0.01),
            hyperparameters=sgp.FixedHyperparameters(),
        )
        model.update((X, np.sin(X)))
        return model

    def names_in(example):
        model = learned() if "model" in example.docstring else None
        return {"np": np, "gpflow": gpflow, "sgp": sgp, "X": X, "Y": np.sin(X), "model": model}

    return names_in


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name, names, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip(NEEDED.get(name, "numpy"))
    examples = [one for one in doctest.DocTestFinder().find(import_module(name)) if one.examples]
    assert len(examples) >= MODULES[name]
    for one in examples:
        one.globs = names(one)
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        said = []
        runner.run(one, out=said.append)
        assert not runner.failures, "".join(said)
