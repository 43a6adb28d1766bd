"""Shared fixtures."""

import gc
import inspect
import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from streaming_gp.errors import StreamingGPError

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: more threads would only wait
    for library in ("TF_NUM_INTRAOP", "TF_NUM_INTEROP", "OMP_NUM", "OPENBLAS_NUM"):
        os.environ.setdefault(f"{library}_THREADS", "1")

_NEIGHBOUR = Path(__file__).resolve().parents[2] / "shared" / "data"


def fitted_server(model, shards, update, schedule, rounds):
    """A server after so many rounds, in the last of which no client failed or was refused."""
    from streaming_gp import pvi

    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, update))
    history = pvi.fit(server, schedule, rounds)
    assert not history[-1].failed
    assert not history[-1].refused
    return server


def _is_quick(config):
    return "not slow" in config.option.markexpr


def pytest_configure(config):
    if _is_quick(config):  # much is compiled, and little of it runs long
        quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
        os.environ.setdefault("XLA_FLAGS", quick)
    if "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None):
        _import_what_stays()  # who only hands tests to workers needs no TensorFlow
    if "STREAMING_GP_DATA" not in os.environ and _NEIGHBOUR.is_dir():
        os.environ["STREAMING_GP_DATA"] = str(_NEIGHBOUR)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """One test at the top waits for a process that loads TensorFlow: it is not to be the last."""
    items.sort(key=lambda item: item.path.parent.name != "tests")
    for item in items:
        if {"barrett", "mnist", "wine", "kin8nm"} & set(item.fixturenames):
            item.add_marker("data")


def _import_what_stays():
    """TensorFlow and what tracing makes are millions of objects: to look through them for garbage
    takes an eighth more, and that GPflow writes shapes into docstrings a third of its import.
    """
    import check_shapes
    import tensorflow  # noqa: F401  most of what stays

    check_shapes.set_rewrite_docstrings(None)

    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(scope="session", autouse=True)
def plain_graphs():
    """Oracles of GPflow are compiled without autograph, which they do not need, and which would
    take most of the time. A test that asks as a user does says ``autograph=True``.
    """
    import tensorflow as tf

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf, "function", partial(tf.function, autograph=False))
        yield


@pytest.fixture(scope="module", autouse=True)
def unchecked_shapes(request):
    """GPflow looks at the shapes of all that it is given, which takes much of the time of tracing:
    laws do without in the quick suite. What a person does, and what is refused, is as it is.
    """
    from check_shapes import disable_check_shapes

    is_law = "laws" in request.path.parts and _is_quick(request.config)
    with disable_check_shapes() if is_law else nullcontext():
        yield


def _once(function):
    """A function that makes one value of each kind, however its arguments are written."""
    signature, made = inspect.signature(function), {}

    def one(*arguments, **named):
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        kind = tuple(bound.arguments.items())
        if kind not in made:
            made[kind] = function(*arguments, **named)
        return made[kind]

    return one


@pytest.fixture(scope="session", autouse=True)
def one_model_of_each_kind():
    """Regressions of labels hold nothing that changes: one of each kind traces a rule once."""
    from streaming_gp import linear

    with pytest.MonkeyPatch.context() as patch:
        for name in ("logistic_regression", "probit_regression"):
            patch.setattr(linear, name, _once(getattr(linear, name)))
        yield


@pytest.fixture
def rng():
    return np.random.default_rng(20181127)


@pytest.fixture
def data(rng):
    from tests.oracles.reference import smooth_data

    return smooth_data(rng, 90)


@pytest.fixture
def new_inputs(rng):
    return rng.uniform(-2.0, 2.0, (40, 2))


@pytest.fixture
def eager():
    """To trace what is called once takes longer than to run it."""
    import tensorflow as tf
    from check_shapes import disable_check_shapes

    tf.config.run_functions_eagerly(True)
    with disable_check_shapes():
        yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """No data folder and an empty cache."""
    monkeypatch.delenv("STREAMING_GP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(scope="session")
def barrett():
    from streaming_gp import datasets

    try:
        return datasets.load_robot_arm("barrett", download=False)
    except StreamingGPError as error:
        pytest.skip(f"Barrett WAM data are not here: {error}")


@pytest.fixture(scope="session")
def mnist():
    from streaming_gp import datasets

    try:
        return datasets.load_mnist(download=False)
    except StreamingGPError as error:
        pytest.skip(f"MNIST is not here: {error}")


def uci(name):
    from streaming_gp import datasets

    try:
        return datasets.load_uci(name)
    except StreamingGPError as error:
        pytest.skip(f"The data of {name} are not here: {error}")


@pytest.fixture(scope="session")
def wine():
    return uci("wine-quality-red")


@pytest.fixture(scope="session")
def kin8nm():
    return uci("kin8nm")
