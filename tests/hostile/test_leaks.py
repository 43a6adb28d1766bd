"""No row of a private site leaves it, whatever is wrong with its data: every byte is looked at."""

import logging
import pickle
import warnings
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from streaming_gp import engines, linear, pvi
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.pvi import privacy
from streaming_gp.pvi.desk import Desk
from streaming_gp.pvi.task import encode_task
from tests.hostile.cases import every_tenth

MARKER, NUMBER = "diagnosis-positive", 731942.0
MODEL = linear.logistic_regression(3, family=MeanFieldNormal)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 3))
Y = (X[:, :1] > 0.0).astype(float)


def with_entry(part, value, kind=float):
    changed = part.astype(kind)
    changed[7, 0] = value
    return changed


class RowError(Exception):
    """An error with rows in places where nobody looks."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.row = (MARKER, NUMBER)
        self.code = MARKER

    def __str__(self):
        return f"row 7 is {MARKER}, {NUMBER}"


def raising(error):
    def load():
        try:
            raise KeyError(MARKER)
        except KeyError as cause:
            raise error from cause

    return load


DATA = {
    "label": lambda: (X, with_entry(Y, NUMBER)),
    "label of text": lambda: (X, with_entry(Y, MARKER, object)),
    "input of text": lambda: (with_entry(X, MARKER, object), Y),
    "input beyond": lambda: (with_entry(X, NUMBER * 1e305), Y),
    "not a number": lambda: (with_entry(X, np.nan), Y),
    "a row less": lambda: (X[:-1], Y),
    "rows less": lambda: (X[:-1], Y[:-1]),
    "columns": lambda: (np.c_[X, np.full(20, NUMBER)], Y),
    "no arrays": lambda: ({MARKER: X}, [MARKER]),
    "lists": lambda: ([[MARKER]] * 20, [[NUMBER]] * 20),
    "one thing": lambda: MARKER,
    "nothing": lambda: None,
    "masked": lambda: (np.ma.array(X, mask=X > NUMBER), with_entry(Y, NUMBER)),
}
ERRORS = {
    f"{kind.__name__} {number}": raising(kind(*arguments))
    for kind, (number, arguments) in product(
        (
            ValueError,
            KeyError,
            OSError,
            InvalidDataError,
            RuntimeError,
            RowError,
            SystemExit,
            MemoryError,
        ),
        enumerate([(MARKER,), (NUMBER,), (f"/data/{MARKER}.csv", NUMBER)]),
    )
}


@dataclass(frozen=True)
class Fails:
    """A fit that fails with rows in its error, or answers with them."""

    kind: str

    def __call__(self, task):
        if self.kind == "raises":
            raise RowError(task.data)
        answer = pvi.FixedPointUpdate()(task)
        return {
            "names": replace(answer, diagnostics={MARKER: NUMBER}),
            "text": replace(answer, free_energy=MARKER),
            "no answer": MARKER,
            "another factor": replace(answer, factor=MARKER),
        }[self.kind]


RULES = {
    "gradients": privacy.PrivateGradients(
        pvi.FixedPointUpdate(), budget=privacy.Budget(8.0), noise_multiplier=20.0
    ),
    **{
        f"changes of what {kind}": privacy.PrivateChanges(
            Fails(kind), budget=privacy.Budget(8.0), noise_multiplier=20.0
        )
        for kind in ("raises", "names", "text", "no answer", "another factor")
    },
}
KINDS = {
    **{name: (load, RULES["gradients"]) for name, load in (DATA | ERRORS).items()},
    **{name: (lambda: (X, Y), rule) for name, rule in RULES.items() if name != "gradients"},
    **{f"plain rule, {name}": (load, pvi.FixedPointUpdate()) for name, load in DATA.items()},
    **{f"plain rule, {name}": (load, pvi.FixedPointUpdate()) for name, load in ERRORS.items()},
}


def server_of(load, rule):
    site = pvi.Site("clinic", MODEL, rule, 20, load)
    return pvi.Server(MODEL.prior(), [site]), site


def assert_nothing_leaks(text):
    for marker in (MARKER, "731942", "row 7", "/data/"):
        assert marker not in text


@every_tenth("name", list(KINDS))
def test_of_bad_data_a_code_leaves_and_nothing_else(name, tmp_path, caplog):
    """In the message of a site's program, and in the history, file and warnings of a run here."""
    load, rule = KINDS[name]
    server, site = server_of(load, rule)
    desk = Desk([site])
    nonce = desk.put(encode_task(server.ask("clinic")))
    message = desk._answer_to(desk._next())
    assert nonce
    assert_nothing_leaks(message.decode("latin1"))
    server, _ = server_of(load, rule)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            pvi.fit(server, rounds=1, checkpoint=tmp_path / "run.npz")
        except NoAnswerError as error:
            if getattr(rule, "is_discreet", False):
                assert_nothing_leaks(f"{error} {vars(error)}")
    assert_nothing_leaks(" ".join(str(one.message) for one in warned))
    assert_nothing_leaks((tmp_path / "run.npz").read_bytes().decode("latin1"))
    assert_nothing_leaks(str(server.history))
    if server.history[-1].failed:
        assert caplog.records[0].name == "streaming_gp.site"
        assert caplog.records[0].levelno == logging.ERROR


@pytest.mark.ray
@pytest.mark.slow
def test_nothing_of_bad_data_comes_from_a_process_of_ray():
    pytest.importorskip("ray")
    loads = {f"c{k}": load for k, load in enumerate(DATA.values())}
    sites = [
        pvi.Site(name, MODEL, pvi.FixedPointUpdate(), 20, load) for name, load in loads.items()
    ]
    server, came = pvi.Server(MODEL.prior(), sites), []
    with engines.Ray().session(server.clients) as session:
        for name in server.clients:
            session.submit(server.ask(name), None)
        came = [session.next() for _ in sites]
    assert_nothing_leaks(pickle.dumps(came).decode("latin1"))
