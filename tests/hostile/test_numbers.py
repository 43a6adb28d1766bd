"""Whatever numbers come in, they are the same float64 numbers at every door, or refused by name."""

import pickle
from functools import partial

import gpflow
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp import bnn, datasets, evaluate, linear, runtime
from streaming_gp.errors import FileFormatError, InvalidDataError, NumericalError, StreamingGPError
from streaming_gp.sklearn import StreamingGPClassifier, StreamingGPRegressor
from tests.hostile.cases import every_tenth
from tests.hostile.streams import FIXED, QUICK, dates, targets
from tests.tolerances import ALGEBRA


class Frame:
    """As data frames are: no array, but convertible to one."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


TAKEN = {
    "list": np.ndarray.tolist,
    "tuple": lambda X: tuple(map(tuple, X.tolist())),
    "list of rows": list,
    "frame": Frame,
    "integers": lambda X: X.astype(int),
    "longdouble": lambda X: X.astype(np.longdouble),
    "masked nowhere": np.ma.masked_array,
    "tensor": tf.constant,
    "variable": tf.Variable,
    "list of tensors": lambda X: [tf.constant(row) for row in X],
    "other order": np.asfortranarray,
    "view": lambda X: np.repeat(X, 2, axis=0)[::2],
    "big endian": lambda X: X.astype(">f8"),
    "read-only": lambda X: np.frombuffer(X.tobytes()).reshape(X.shape),
}
REFUSED = {
    "masked": (lambda X: np.ma.masked_equal(X, X[0]), "has 1 masked entries"),
    "sparse": (scipy.sparse.csr_matrix, "dense array, got the sparse csr_matrix"),
    "sparse tensor": (tf.sparse.from_dense, "the sparse SparseTensor"),
    "slices": (lambda X: tf.IndexedSlices(X, np.arange(len(X))), "the sparse IndexedSlices"),
    "ragged": (lambda X: [*X.tolist(), [1.0, 2.0]], "not a rectangular array"),
    "ragged tensor": (lambda X: tf.ragged.constant(X.tolist()), "RaggedTensor"),
    "text": (lambda X: X.astype(str), "real numbers"),
    "objects": (lambda X: X.astype(object), "dtype object"),
    "complex": (lambda X: X + 1j, "dtype complex128"),
    "times": (lambda X: X.astype(int).astype("M8[D]"), "real numbers, got a ndarray of dtype date"),
    "fields": (lambda X: X.astype([("a", float)]), "real numbers"),
    "not a number": (lambda X: np.where(X[0] == X, np.nan, X), "finite"),
    "beyond float64": (lambda X: X.astype(np.longdouble) * np.longdouble("1e400"), "finite"),
    "nothing": (lambda X: None, "dtype object"),
    "function": (lambda X: np.sin, "dtype object"),
}  # fmt: skip
DOORS = {
    "predict_f": lambda model, X: model.predict_f(X),
    "predict_f, full": lambda model, X: model.predict_f(X, full_cov=True),
    "predict_y": lambda model, X: model.predict_y(X),
    "samples": lambda model, X: model.predict_f_samples(X, 2),
    "inputs of densities": lambda model, X: model.predict_log_density((X, targets(dates()))),
    "targets of densities": lambda model, Y: model.predict_log_density((dates(), Y)),
}


@every_tenth(
    ("door", "convert"), {f"{d} of {t}": (DOORS[d], TAKEN[t]) for d in DOORS for t in TAKEN}
)
def test_all_that_holds_numbers_gives_the_same_predictions(unchanged, door, convert):
    wanted, found = door(unchanged, dates()), door(unchanged, convert(dates()))
    for one, other in zip(tf.nest.flatten(wanted), tf.nest.flatten(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=ALGEBRA)  # tensors go another way


DOORS_THAT_LEARN = {
    "inputs of a batch": lambda model, X: model.update((X, targets(dates()))),
    "targets of a batch": lambda model, Y: model.update((dates(), Y)),
    "inputs again": lambda model, X: model.revisit("batch-0", (X, targets(dates()))),
    "a shard": lambda model, X: model.synchronous_round({"b": (X, targets(dates()))}),
}


def check_refused(kind, call, *arguments, error=InvalidDataError):
    """In a function of its own, of which pytest shows the arguments where it fails."""
    convert, message = REFUSED[kind]
    with pytest.raises(error, match=message):
        call(*arguments, convert(dates()))


@pytest.mark.filterwarnings("ignore:Warning. converting a masked element")
def test_what_holds_none_is_refused_by_name(unchanged):
    for door in (*DOORS.values(), *DOORS_THAT_LEARN.values()):
        for kind in REFUSED:
            check_refused(kind, door, unchanged)


@pytest.fixture(scope="module")
def others(trained, tmp_path_factory):
    """Everything else that takes numbers."""
    path = tmp_path_factory.mktemp("exported") / "predictor.npz"
    trained.export(path)
    predictor = runtime.load(path)
    line = linear.BayesianLinearRegression(1)
    net = bnn.MeanFieldBNN([1, 2, 1], gpflow.likelihoods.Gaussian())
    Y = targets(dates())
    return {
        "runtime": predictor.predict_f,
        "linear": lambda X: line.predict(line.prior(), X),
        "network": lambda X: net.predict(net.prior(), X, num_samples=2),
        "online": lambda X: trained.online(5).predict(X[0]),
        "prequential": lambda X: next(evaluate.prequential(_Knows(trained), [(X, Y)])).mse,
        "iid": lambda X: datasets.partition_iid(X, Y, 3),
        "labels": lambda X: datasets.partition_by_label(X, np.repeat([[0], [1]], 6, axis=0), 2),
    }


class _Knows:
    """Learns no more, as only its predictions matter here."""

    def __init__(self, model):
        self.predict_y, self.likelihood = model.predict_y, model.likelihood
        self.predict_log_density = model.predict_log_density

    def update(self, data):
        pass


WHOLE = [name for name in TAKEN if name not in ("frame", "list of tensors")]


@every_tenth(
    ("door", "kind"),
    {
        f"{d} of {t}": (d, t)
        for d in ("runtime", "linear", "network", "online", "prequential", "iid", "labels")
        for t in WHOLE
    },
)
def test_other_doors_convert_as_well(others, door, kind):
    wanted, found = others[door](dates()), others[door](TAKEN[kind](dates()))
    for one, other in zip(tf.nest.flatten(wanted), tf.nest.flatten(found), strict=True):
        np.testing.assert_array_equal(one, other)


def test_other_doors_refuse_as_well(others):
    for door, call in others.items():
        for kind in ("masked", "sparse", "sparse tensor", "ragged", "text", "objects", "complex"):
            if door != "online":
                check_refused(kind, call, error=StreamingGPError)


@pytest.mark.parametrize("estimator", [StreamingGPRegressor(), StreamingGPClassifier()])
def test_estimators_refuse_masks(estimator):
    X, y = dates(), (dates()[:, 0] > 20240130.0).astype(int)
    with pytest.raises(InvalidDataError, match="X has 1 masked"):
        estimator.fit(np.ma.masked_equal(X, X[0]), y)
    with pytest.raises(InvalidDataError, match="y has 5 masked"):
        estimator.fit(X, np.ma.masked_equal(y, 0))
    assert not hasattr(estimator, "model_")


@pytest.mark.parametrize("kind", ["datetime64[ns]", "timedelta64[s]", "integers of an id"])
def test_targets_of_a_regressor_that_are_no_numbers_are_refused(kind):
    days = np.arange(12)
    y = days + 2**60 if kind == "integers of an id" else days.astype(kind)
    regressor = StreamingGPRegressor()
    with pytest.raises(InvalidDataError, match=r"y (must hold real numbers|holds the integer)"):
        regressor.fit(dates(), y)
    assert not hasattr(regressor, "model_")


def test_an_error_of_a_batch_survives_a_process_boundary():
    error = evaluate.BatchError(3, "could not be scored: wrong")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.batch) == (str(error), 3)


NO_NAMES = [5, b"x", (1,), float("nan"), True, np.int64(3), ["a"], ...]


def test_batches_and_shards_are_named_by_strings(unchanged):
    data = dates(), targets(dates())
    for name in NO_NAMES:
        uses = [
            partial(unchanged.update, data, batch_id=name),
            partial(unchanged.revisit, name, data),
            partial(unchanged.remove, name),
            partial(unchanged.absorb, unchanged.online(5), name=name),
        ]
        if not isinstance(name, list):
            uses.append(partial(unchanged.synchronous_round, {name: data}))
            uses.append(partial(sgp.pvi.make_clients, unchanged, {name: data}, sgp.GPUpdate()))
        for use in uses:
            with pytest.raises(InvalidDataError, match="must be a string, got"):
                use()


@pytest.mark.parametrize("path", ["a\0b", b"a", 3.5])
def test_what_names_no_file_is_refused(path):
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian()
    for use in (
        lambda: sgp.StreamingGP.load(path, kernel, likelihood),
        lambda: sgp.StreamingGP.resume(path, kernel, likelihood),
        lambda: sgp.StreamingGP(kernel, likelihood, journal=path),
    ):
        with pytest.raises(InvalidDataError, match="wanted the path of a file or folder"):
            use()


def test_a_path_that_there_cannot_be_is_one_clear_error(tmp_path):
    (tmp_path / "file").touch()
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian()
    for path in (tmp_path / ("x" * 300), "y/" * 3000, tmp_path / "file" / "journal", "/proc/none"):
        with pytest.raises(InvalidDataError, match="can be no journal"):
            sgp.StreamingGP(kernel, likelihood, journal=path)
        for use in (sgp.StreamingGP.load, sgp.StreamingGP.resume):
            with pytest.raises(FileFormatError):
                use(path, kernel, likelihood)


@every_tenth(
    ("kernel", "size"),
    {
        f"{kernel.__name__} at {size:g}": (kernel, size)
        for kernel in (
            gpflow.kernels.Linear, gpflow.kernels.Polynomial, gpflow.kernels.SquaredExponential,
        )
        for size in (1e160, 1e300)
    },
)  # fmt: skip
@pytest.mark.parametrize("number", ["all", pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*trying again with nugget")
def test_inputs_whose_covariances_overflow_are_refused(kernel, size, number):
    model = sgp.StreamingGP(
        kernel(), gpflow.likelihoods.Gaussian(0.1), hyperparameters=FIXED, optimiser=QUICK,
        pseudo_points=sgp.PrivatePseudoPoints(number),
    )  # fmt: skip
    with pytest.raises((NumericalError, InvalidDataError)):
        model.update((size * np.array([[1.0], [2.0], [-1.0]]), np.ones((3, 1))))
    assert not model.factors
    assert model.num_updates == 0


@pytest.mark.filterwarnings("ignore:targets of size")
def test_linear_algebra_that_fails_is_an_error_of_the_package():
    """A loop that goes on after errors of the package would end with another one."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1), optimiser=QUICK
    )
    X = np.linspace(-2.0, 2.0, 20)[:, None]
    with pytest.raises(NumericalError, match=r"update: .*wanted standardised data"):
        model.update((X, 1e9 * np.sin(X)))
    assert model.num_updates == 0
    assert model.kernel.variance.numpy() == 1.0
