"""Several threads use one model; BLAS and freed memory stay in bounds."""

import copy
import gc
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from threading import Thread, current_thread, main_thread

import gpflow
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import streaming_gp as sgp
from streaming_gp import serialization
from streaming_gp.errors import InvalidDataError
from streaming_gp.numerics.threads import one_blas_thread
from tests.hostile.streams import FIXED, QUICK, digest

AT = np.linspace(-2.0, 2.0, 5)[:, None]


def fresh(hyperparameters=None, **options):
    options.setdefault("pseudo_points", sgp.PrivatePseudoPoints(2))
    return sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
        hyperparameters=hyperparameters or sgp.PointHyperparameters(),
        optimiser=QUICK, num_prediction_samples=2, **options,
    )  # fmt: skip


def batch(number, size=5):
    X = np.random.default_rng(number).uniform(-2.0, 2.0, (size, 1))
    return X, np.sin(2.0 * X)


def together(*tasks):
    """All at the same time, each in a thread: what they return, or what one of them raises."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [one.result() for one in [pool.submit(task) for task in tasks]]


@pytest.mark.slow
def test_updates_of_several_threads_take_turns():
    model = fresh()
    tasks = [lambda n=n: model.update(batch(n), batch_id=f"b{n}") for n in range(4)]
    with one_blas_thread():  # which the main thread's updates have: more of them round otherwise
        together(*tasks)
    assert model.num_updates == 4
    assert sorted(model.factors) == ["b0", "b1", "b2", "b3"]
    again = fresh()
    for name in model.factors:
        again.update(batch(int(name[1])), batch_id=name)
    assert digest(again) == digest(model)


def predicted(model):
    return np.stack(model.predict_f(AT)).tobytes()


def check_predictions_are_of_committed_states(model, updates, threads):
    """While one thread updates, others predict: each answer is that of a state before or after."""
    found, done = [], threading.Event()

    def predict():
        while not done.wait(1e-3):
            found.append(predicted(model))

    def update():
        states = [predicted(model)]
        try:
            for number in range(updates):
                model.update(batch(number), learn=False)
                states.append(predicted(model))
        finally:
            done.set()
        return states

    states, *_ = together(update, *[predict] * threads)
    assert set(found) <= set(states)
    assert len(set(states)) == updates + 1


@pytest.mark.parametrize("number", ["all", pytest.param(2, marks=pytest.mark.slow)])
def test_predictions_meanwhile_are_of_committed_states(number):
    """The first update and the first prediction trace all that there is, side by side: less where
    a point is at every input.
    """
    model = fresh(FIXED, pseudo_points=sgp.PrivatePseudoPoints(number))
    check_predictions_are_of_committed_states(model, updates=1, threads=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hyperparameters",
    [sgp.PointHyperparameters(), sgp.VariationalHyperparameters(num_samples=2)],
    ids=["point", "variational"],
)
def test_eight_threads_predict_while_one_updates_a_thousand_times(hyperparameters):
    points = sgp.PrivatePseudoPoints(1, budget=6)
    model = fresh(hyperparameters, pseudo_points=points)
    check_predictions_are_of_committed_states(model, updates=1000, threads=8)


KINDS = {
    "full": lambda model: model.predict_f(AT, full_cov=True),
    "y": lambda model: model.predict_y(AT),
    "density": lambda model: model.predict_log_density((AT, AT)),
    "samples": lambda model: model.predict_f_samples(AT, 3),
    "state": lambda model: sorted(model.state.parameters),
    "parameters": lambda model: float(model.kernel.lengthscales.numpy()) > 0.0,
    "evidence": lambda model: np.isfinite(float(model.maximum_log_likelihood_objective())),
    "summary": lambda model: gpflow.utilities.tabulate_module_summary(model),
    "copy": lambda model: copy.deepcopy(model).num_updates,
}


@pytest.mark.slow
def test_whatever_else_is_asked_meanwhile_is_answered():
    """The kernel's parameters are read while another thread traces with them."""
    model, done = fresh(), threading.Event()

    def update():
        try:
            for number in range(3):
                model.update(batch(number))
                model.compress(2)
        finally:
            done.set()

    def ask(question):
        count = 0
        while not (done.is_set() and count):
            question(model)
            count += 1
        return count

    _, *counts = together(update, *[lambda q=q: ask(q) for q in KINDS.values()])
    assert min(counts) > 0


@pytest.mark.slow
def test_two_models_of_one_kernel_trace_side_by_side():
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1)
    models = [
        sgp.StreamingGP(
            kernel, likelihood, pseudo_points=sgp.PrivatePseudoPoints(2), optimiser=QUICK,
            hyperparameters=sgp.FixedHyperparameters(),
        )
        for _ in range(2)
    ]  # fmt: skip
    together(*[lambda m=m: m.update(batch(0)) for m in models])
    assert predicted(models[0]) == predicted(models[1])


CHANGES = {
    "update": lambda model: model.update(batch(9)),
    "revisit": lambda model: model.revisit("batch-0", batch(0)),
    "round": lambda model: model.synchronous_round({"c": batch(1)}),
    "remove": lambda model: model.remove("batch-0"),
    "fade": lambda model: model.fade(0.5),
    "compress": lambda model: model.compress(1),
    "adopt": lambda model: model.adopt(model.ledger),
    "absorb": lambda model: model.absorb(model.online(3)),
}


@pytest.fixture(scope="module")
def twice():
    model = fresh(pseudo_points=sgp.PrivatePseudoPoints("all"), learning=sgp.EveryUpdate())
    for number in range(2):
        model.update(batch(number))
    return model


def test_a_change_within_a_change_is_one_clear_error_and_nothing_is_lost(twice):
    before, tried = digest(twice), []

    def change_within(progress):
        for name, change in CHANGES.items():
            with pytest.raises(InvalidDataError, match="is being changed already"):
                change(twice)
            tried.append(name)
        twice.fade(0.5)

    with pytest.raises(InvalidDataError, match="is being changed already"):
        twice.update(batch(2), callback=change_within)
    assert tried == list(CHANGES)
    assert digest(twice) == before


@pytest.mark.slow
def test_a_callback_that_is_refused_may_go_on(twice):
    plain, model, refused = gpflow.utilities.deepcopy(twice), gpflow.utilities.deepcopy(twice), []

    def change_within(progress):
        try:
            model.update(batch(3))
        except InvalidDataError as error:
            refused.append(error)

    plain.update(batch(2))
    model.update(batch(2), callback=change_within)
    assert refused
    assert digest(model) == digest(plain)


def numbers():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture(autouse=True)
def two_threads():
    with threadpool_limits(limits=2, user_api="blas"):
        yield


def test_one_thread_within_and_all_afterwards():
    with one_blas_thread():
        assert numbers() == {1}
        with one_blas_thread():
            assert numbers() == {1}
        assert numbers() == {1}
    assert numbers() == {2}
    with pytest.raises(ZeroDivisionError), one_blas_thread():
        raise ZeroDivisionError
    assert numbers() == {2}


def test_other_threads_leave_the_number_alone():
    seen = []

    def other():
        with one_blas_thread():
            seen.append(numbers())

    thread = Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [numbers()] == [{2}]


FAULTS = """
import resource
import numpy as np
from streaming_gp.numerics.threads import keep_freed_memory

keep_freed_memory()


def several_at_once():
    return [np.ones((4, 240, 240)) for _ in range(5)]


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


several_at_once()
before = faults()
for _ in range(100):
    several_at_once()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the GNU C library alone")
def test_pages_of_arrays_are_used_again():
    """In a process of its own, as it is enough to have freed such a block once."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 100


# ---- messages ----


def test_a_message_is_read_whatever_another_thread_reads_in_the_middle():
    """Python 3.11 fails to parse NumPy's headers where a collection lets another thread do so."""
    message = serialization.packed("a", {"b": np.zeros(3)}, {})
    others, threshold = [], gc.get_threshold()

    def read():
        return serialization.unpacked("it", message, "a", {})

    def let_another_in(*_):
        frame = sys._getframe()
        while frame is not None and frame.f_code.co_name != "literal_eval":
            frame = frame.f_back
        if frame is not None and len(others) < 5 and current_thread() is main_thread():
            others.append(Thread(target=read))
            others[-1].start()
            others[-1].join(0.05)

    gc.callbacks.append(let_another_in)
    gc.set_threshold(1)
    try:
        assert read().keys() == {"b"}
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(let_another_in)
    assert others
    for other in others:
        other.join()
