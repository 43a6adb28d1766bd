"""Tables, rows and guesses that are not what they should be: refused by name, or read rightly."""

import copy
import datetime
import json
from concurrent.futures import ThreadPoolExecutor

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.errors import FileFormatError, InvalidDataError
from streaming_gp.surrogate import StreamingSurrogate
from streaming_gp.tables import TableGP
from tests.hostile.cases import every_tenth
from tests.hostile.streams import FIXED, QUICK, digest
from tests.tolerances import ALGEBRA

gl = gpflow.likelihoods
X = np.random.default_rng(0).uniform(-2.0, 2.0, (12, 2))
Y = np.sin(X[:, 0])
LABELS = np.where(Y > 0.0, "up", "down").astype(object)
FIRST = np.arange(12) == 0
MASKED = np.ma.masked_array(np.where(FIRST, 99.0, Y), FIRST)
"""What lies under the mask is no data."""


def new_model(likelihood=None, lengthscales=(1.0, 1.0), **options):
    kernel = gpflow.kernels.SquaredExponential(lengthscales=lengthscales)
    options = {"pseudo_points": sgp.PrivatePseudoPoints("all"), **options}
    return sgp.StreamingGP(
        kernel, likelihood or gl.Gaussian(0.1), hyperparameters=FIXED, optimiser=QUICK, **options
    )


def table(**columns):
    return {"a": X[:, 0], "b": X[:, 1], "y": Y, **columns}


def learned(**columns):
    model = TableGP(new_model(), "y")
    model.update(table(**columns))
    return model


def predicted(model):
    return np.stack(model.predict(table()))


# ---- what there is before a table ----

ASKED = {
    "no target": ({"target": []}, "target must be names"),
    "target of another type": ({"target": 5}, "target must be names"),
    "target None": ({"target": None}, "target must be names"),
    "target twice": ({"target": ["y", "y"]}, "target must be names"),
    "targets no strings": ({"target": ["y", 3]}, "target must be a string, got 3"),
    "no features": ({"features": []}, "features must be names"),
    "features twice": ({"features": ["a", "a"]}, "features must be names"),
    "target among features": ({"features": ["a", "y"]}, "'y' is both"),
    "scale text": ({"scale": "no"}, "scale must be true or false, got 'no'"),
    "no model": ({"model": None}, "model must be a StreamingGP, got a NoneType"),
    "classes of a regression": ({"classes": ["up", "down"]}, "2 classes want a likelihood"),
    "one class": ({"classes": ["up"]}, "two labels or more"),
    "classes twice": ({"classes": ["up", "up", "down"]}, "two labels or more"),
    "classes of lists": ({"classes": [["up"], ["down"]]}, "two labels or more"),
    "classes a number": ({"classes": 2}, "two labels or more"),
    "three of two": (
        {"classes": ["up", "down", "so"], "model": new_model(gl.Bernoulli())}, "3 classes want"
    ),
    "two of three": ({"classes": ["up", "down"], "model": new_model(gl.Softmax(3))}, "2 classes"),
}  # fmt: skip


def check_refused(message, call, *arguments, **options):
    """In a function of its own, of which pytest shows the arguments where it fails."""
    with pytest.raises((InvalidDataError, sgp.NumericalError), match=message):
        call(*arguments, **options)


def test_what_a_model_of_tables_is_told_is_checked():
    model = new_model()
    for options, message in ASKED.values():
        check_refused(message, TableGP, **{"model": model, "target": "y", **options})


def test_one_input_may_be_named_by_a_string():
    model = TableGP(new_model(lengthscales=1.0), "y", features="a")
    model.update(table())
    assert model.feature_names_in_.tolist() == ["a"]


# ---- tables ----

BIG = 2**60 + np.arange(12)
COLUMNS = {
    "masked input": ({"a": MASKED}, "input 'a' is missing at row 0"),
    "integers beyond float64": ({"a": BIG}, "column 'a' holds the integer"),
    "unsigned ones": ({"a": BIG.astype(np.uint64)}, "column 'a' holds the integer"),
    "the same as objects": ({"a": BIG.astype(object)}, "column 'a' holds the integer .* at row 0"),
    "targets beyond float64": ({"y": BIG}, "column 'y' holds the integer"),
    "bytes": ({"a": np.array([b"3"] * 12, object)}, "column 'a' must hold numbers, got b'3'"),
    "text": ({"a": LABELS}, "column 'a' must hold numbers"),
    "complex": ({"a": X[:, 0] + 1j}, "column 'a' must hold numbers"),
    "infinite": ({"a": np.where(FIRST, np.inf, Y)}, "finite"),
    "infinite target": ({"y": np.where(FIRST, -np.inf, Y)}, "finite"),
    "squares overflow": ({"a": 1e200 * Y}, "squares overflow"),
    "squares of targets overflow": ({"y": 1e200 * Y}, "squares overflow"),
    "two dimensions": ({"a": X}, "column 'a' must hold numbers"),
    "a number": ({"a": 3.0}, "column 'a' must hold numbers"),
    "another length": ({"a": Y[:3]}, "of one length"),
    "a further column": ({"c": Y}, "not known"),
}


DAYS = np.datetime64("2024-01-01") + np.arange(12)
ZONED, NAIVE = (
    [datetime.datetime(2024, 1, 1 + day, tzinfo=zone) for day in range(12)]
    for zone in (datetime.timezone.utc, None)
)


def test_a_column_of_dates_stays_one():
    """A number in the place of a date would be a day of the seventies."""
    dated = learned(a=DAYS)
    again = TableGP.from_record(dated.model, json.loads(json.dumps(dated.to_record())))
    for model in (dated, again):
        for numbers in (Y, np.arange(12), [*Y[:6], *DAYS[6:].tolist()]):
            for act in (model.update, model.predict):
                check_refused(
                    "column 'a' must hold (dates|values of one kind)", act, table(a=numbers)
                )
        np.testing.assert_array_equal(*(model.predict(table(a=one))[0] for one in (ZONED, NAIVE)))
    check_refused("'a' must hold numbers, as in the first batch", learned().predict, table(a=DAYS))
    check_refused("with a zone and times without", learned, a=[*ZONED[:6], *NAIVE[6:]])


def test_integers_of_frames_are_not_rounded_beside_missing_ones():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({**table(), "a": [None, *BIG[1:].tolist()]})
    check_refused("column 'a' holds the integer .* at row 1", learned().predict, frame)


def check_columns(model, cases):
    before = model.num_rows, model.num_skipped, digest(model.model)
    for columns, message in cases:
        check_refused(message, model.update, table(**columns))
        assert (model.num_rows, model.num_skipped) == before[:2]
    assert digest(model.model) == before[2]


def test_columns_that_hold_no_numbers_are_refused_by_name():
    named = {name: case for name, case in COLUMNS.items() if name != "a further column"}
    check_columns(TableGP(new_model(), "y", features=["a", "b"]), named.values())
    later = {name: case for name, case in COLUMNS.items() if "overflow" not in name}
    check_columns(learned(), later.values())


def test_later_targets_whose_squares_overflow_are_refused():
    check_columns(learned(), [({"y": 1e200 * Y}, "numbers below 1e.150")])


def test_later_inputs_whose_squares_overflow_are_far_from_all_others():
    model = learned()
    before, _ = model.predict(table())
    model.update(table(a=1e200 * (1.0 + np.arange(12))))
    np.testing.assert_allclose(model.predict(table())[0], before, atol=1e-12)


def test_a_masked_target_is_a_missing_one():
    masked, without = learned(y=MASKED), learned(y=np.where(FIRST, np.nan, Y))
    assert (masked.num_rows, masked.num_skipped) == (11, 1)
    np.testing.assert_array_equal(predicted(masked), predicted(without))


@pytest.mark.slow
def test_a_masked_label_is_a_missing_one():
    model = TableGP(new_model(gl.Bernoulli()), "y", classes=["down", "up"])
    model.update(table(y=np.ma.masked_array(LABELS, FIRST)))
    assert (model.num_rows, model.num_skipped) == (11, 1)


SIZES = {"tiny": 1e-6, "huge": 1e6, "almost nothing": 1e-200, "almost too large": 1e140}


@every_tenth("size", SIZES)
@pytest.mark.parametrize("column", ["a", pytest.param("y", marks=pytest.mark.slow)])
def test_the_units_of_a_column_do_not_matter(column, size):
    units = {column: size * table()[column]}
    wanted, model = predicted(learned()), learned(**units)
    found = np.stack(model.predict(table(**units)))
    unit = size if column == "y" else 1.0
    if size > 1e-100:  # else squares are zero, as if it were constant
        np.testing.assert_allclose(found, unit * wanted, rtol=1e-6)
    assert np.isfinite(found).all()


@pytest.mark.slow
def test_constant_columns_and_equal_rows_are_sound():
    alike = {"a": 0.0 * Y, "b": 0.0 * Y}
    for columns in ({"a": np.full(12, 1e9)}, {"y": np.full(12, -1e6)}, alike):
        assert np.isfinite(predicted(learned(**columns))).all()


def test_first_batches_of_several_threads_have_one_scale():
    """Each would have another scale of its own, and all rows count."""
    model = TableGP(new_model(), "y")
    parts = [{k: 10.0**i * v[3 * i : 3 * i + 3] for k, v in table().items()} for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        infos = list(pool.map(model.update, parts))
    assert model.num_rows == 12
    again = TableGP(new_model(), "y")
    for _, part in sorted(zip([info.batch_id for info in infos], parts, strict=True)):
        again.update(part)
    np.testing.assert_array_equal(predicted(again), predicted(model))
    assert copy.deepcopy(model).num_rows == 12


def test_a_record_that_is_none_is_one_clear_error():
    model, record = new_model(), learned().to_record()
    lacking = [
        {k: v for k, v in record.items() if k != name}
        for name in ("inputs", "features", "classes", "num_rows")
    ]
    for wrong in (*lacking, {**record, "inputs": 3.5}, {}):
        with pytest.raises(FileFormatError, match="no record"):
            TableGP.from_record(model, wrong)


# ---- surrogates ----

MASKED_X = np.ma.masked_array(np.where(FIRST[:, None], 99.0, X), FIRST[:, None] & [[True, True]])
SURROGATES = {
    "masked rows": (lambda s: s.update((MASKED_X, Y[:, None])), "X has 2 masked"),
    "masked values": (lambda s: s.update((X, MASKED[:, None])), "Y has 1 masked"),
    "rows to learn from": (lambda s: s.optimize((X, MASKED[:, None])), "Y has 1 masked"),
    "masked points": (lambda s: s.predict(MASKED_X), "query_points has 2 masked"),
    "masked batch": (lambda s: s.predict_joint(MASKED_X), "query_points has 2 masked"),
    "text": (lambda s: s.predict(X.astype(str)), "real numbers"),
    "not a number": (lambda s: s.predict(X * np.nan), "finite"),
    "a number": (lambda s: s.predict(3.0), "1 axes or more"),
    "one axis": (lambda s: s.predict_joint(X[0]), "2 axes or more"),
    "no points": (lambda s: s.predict_joint(X[None][:0]), "none empty"),
    "beyond float64": (lambda s: s.predict([[2**60, 1]]), "holds the integer"),
    "other columns": (lambda s: s.predict(X[:, :1]), "must have shape"),
    "masked guess": (lambda s: s.add_pending("p", X, MASKED[:, None]), "Y has 1 masked"),
    "masked place": (lambda s: s.add_pending("p", MASKED_X), "has 2 masked"),
    "name of rows": (lambda s: s.add_pending("rows-12", X), "name of observed rows"),
    "name of all rows": (lambda s: s.add_pending("observed", X), "name of observed rows"),
    "masked condition": (lambda s: s.conditional_predict_f(X, (MASKED_X, Y[:, None])), "masked"),
    "ragged condition": (lambda s: s.conditional_predict_f(X, (X, Y[:3, None])), "wanted X"),
    "no condition": (lambda s: s.conditional_predict_f(X, None), "query_points and observations"),
    "no rows": (lambda s: s.update(None), "query_points and observations"),
}


@pytest.fixture(scope="module")
def surrogate():
    found = StreamingSurrogate(new_model())
    found.update((X, Y[:, None]))
    return found


def test_what_a_surrogate_is_told_is_checked(surrogate):
    before = digest(surrogate.model)
    for call, message in SURROGATES.values():
        check_refused(message, call, surrogate)
        assert surrogate.pending == ()
    assert digest(surrogate.model) == before


def test_names_of_rows_are_not_free_before_there_are_rows():
    found = StreamingSurrogate(new_model())
    check_refused("name of observed rows", found.add_pending, "observed", X[:2], Y[:2, None])


@pytest.mark.parametrize(
    "options",
    [
        {"forgetting": sgp.Fading(0.9)},
        {"forgetting": sgp.SlidingWindow(3)},
        {"pseudo_points": sgp.PrivatePseudoPoints("all", budget=20)},
    ],
)
def test_pending_points_push_nothing_out_that_was_observed(options):
    """A point that is only pending would, and taking it out again would not bring that back."""
    check_refused("forgets and merges nothing", StreamingSurrogate, new_model(**options))


KINDS = {
    "list": np.ndarray.tolist,
    "float32 tensor": lambda X: tf.constant(X, tf.float32),
    "tensor": tf.constant,
    "longdouble": lambda X: X.astype(np.longdouble),
}


def test_a_surrogate_converts_what_holds_numbers(surrogate):
    wanted = surrogate.predict(X)
    for kind, convert in KINDS.items():
        tolerance = 1e-5 if "32" in kind else ALGEBRA
        for one, other in zip(wanted, surrogate.predict(convert(X)), strict=True):
            np.testing.assert_allclose(one, other, rtol=tolerance, err_msg=kind)
