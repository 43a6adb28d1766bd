"""Data of a site, and rules, that go wrong in every way, with a marker in them that nobody may see.

And a search for the marker, in whatever form it may stand in bytes.
"""

import json
import struct
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product

import numpy as np

from streaming_gp import linear, pvi
from streaming_gp.errors import FileFormatError, ImproperError, InvalidDataError, NumericalError
from streaming_gp.expfam import MeanFieldNormal
from streaming_gp.pvi import privacy
from streaming_gp.pvi.task import RefusedQuestionError

MARKER, NUMBER, FILE = "diagnosis-positive", 731942.0, "/data/diagnosis-positive.csv"
NUM_DATA = 20
MODEL = linear.logistic_regression(3, family=MeanFieldNormal)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((NUM_DATA, 3))
Y = (X[:, :1] > 0.0).astype(float)


# ---- data ----


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


class SilentError(Exception):
    """An error that cannot be printed, but tells why."""

    def __str__(self):
        raise RowError

    @property
    def code(self):
        raise RowError


class Told(np.ndarray):
    """An array that shows itself."""

    def __repr__(self):
        return MARKER

    __str__ = __repr__


def fails(*_):
    raise RowError


Guarded = type("Guarded", (), {"__array__": fails, "__repr__": lambda self: MARKER})
Endless = type("Endless", (), {"__len__": fails, "__iter__": fails, "__repr__": fails})
RECORDS = np.array([(MARKER, NUMBER)] * NUM_DATA, [("name", "U20"), ("row 7", float)])

DATA = {
    "label": lambda: (X, with_entry(Y, NUMBER)),
    "negative label": lambda: (X, with_entry(Y, -NUMBER)),
    "label of text": lambda: (X, with_entry(Y, MARKER, object)),
    "label of bytes": lambda: (X, with_entry(Y, MARKER.encode(), object)),
    "label of a dict": lambda: (X, with_entry(Y, {MARKER: NUMBER}, object)),
    "label of many digits": lambda: (X, with_entry(Y, int(NUMBER) * 10**400, object)),
    "decimal label": lambda: (X, with_entry(Y, Decimal(NUMBER), object)),
    "complex label": lambda: (X, with_entry(Y, NUMBER * 1j, complex)),
    "input of text": lambda: (with_entry(X, MARKER, object), Y),
    "input of no text": lambda: (with_entry(X, f"{MARKER}\ud800", object), Y),
    "input of all text": lambda: (np.full(X.shape, MARKER), Y),
    "input beyond": lambda: (with_entry(X, NUMBER * 1e302), Y),
    "input of dates": lambda: (np.full(X.shape, "1973-09-19", "datetime64[D]"), Y),
    "not a number": lambda: (with_entry(X, np.nan), Y),
    "infinite": lambda: (with_entry(X, -np.inf), Y),
    "records": lambda: (RECORDS, Y),
    "a row less": lambda: (X[:-1], Y),
    "rows less": lambda: (X[:-1], Y[:-1]),
    "no rows": lambda: (X[:0], Y[:0]),
    "columns": lambda: (np.c_[X, np.full(NUM_DATA, NUMBER)], Y),
    "an axis more": lambda: (X[None] + NUMBER, Y),
    "no arrays": lambda: ({MARKER: X}, [MARKER]),
    "lists": lambda: ([[MARKER]] * NUM_DATA, [[NUMBER]] * NUM_DATA),
    "ragged lists": lambda: ([[NUMBER], [MARKER, NUMBER]], Y),
    "a generator": lambda: ((MARKER for _ in X), Y),
    "an array that shows itself": lambda: (X.view(Told) * np.nan, Y),
    "an array that fails": lambda: (Guarded(), Y),
    "a list that fails": lambda: (X, Endless()),
    "three things": lambda: (X, Y, MARKER),
    "one thing": lambda: MARKER,
    "nothing": lambda: None,
    "masked": lambda: (np.ma.array(X, mask=X > NUMBER), with_entry(Y, NUMBER)),
}


# ---- errors of a loader ----


def raising(error):
    def load():
        try:
            raise KeyError(MARKER)
        except KeyError as cause:
            raise error from cause

    return load


USUAL = (ValueError, KeyError, OSError, InvalidDataError, RuntimeError, RowError, SystemExit,
         MemoryError, FileFormatError, ImproperError, NumericalError)  # fmt: skip
NAMED = type(MARKER, (Exception,), {})
CODED = type("DataError", (RowError,), {"row 7": NUMBER})
UNUSUAL = {
    "no UTF-8": UnicodeDecodeError("utf-8", MARKER.encode(), 0, 1, MARKER),
    "no JSON": json.JSONDecodeError(MARKER, f"{MARKER} {NUMBER}", 0),
    "no Python": SyntaxError(MARKER, (FILE, 7, 1, f"row 7: {MARKER}")),
    "no file": FileNotFoundError(2, MARKER, FILE),
    "a class of this name": NAMED(NUMBER),
    "a class of another's name": CODED(NUMBER),
    "an error that cannot be printed": SilentError(MARKER),
    "a refusal with a detail": RefusedQuestionError("NoSite", f"{FILE}: {NUMBER}"),
    "a warning": UserWarning(MARKER),
    "an assertion": AssertionError(X, MARKER),
    "an end": StopIteration(MARKER),
    "an exit": GeneratorExit(MARKER),
}
ERRORS = {
    f"{kind.__name__} {number}": raising(kind(*arguments))
    for kind, (number, arguments) in product(
        USUAL, enumerate([(MARKER,), (NUMBER,), (FILE, NUMBER)])
    )
} | {name: raising(error) for name, error in UNUSUAL.items()}


# ---- rules ----


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


SPENDING = {"budget": privacy.Budget(8.0), "noise_multiplier": 20.0}
PLAIN = pvi.FixedPointUpdate()
PRIVATE = privacy.PrivateGradients(PLAIN, **SPENDING)
KINDS = {
    **{name: (load, PRIVATE) for name, load in (DATA | ERRORS).items()},
    **{f"plain rule, {name}": (load, PLAIN) for name, load in (DATA | ERRORS).items()},
    **{
        f"a fit, {kind}": (lambda: (X, Y), privacy.PrivateChanges(Fails(kind), **SPENDING))
        for kind in ("raises", "names", "text", "no answer", "another factor")
    },
}
"""More than a hundred loaders, each with the rule of its site."""


def sites(place=None, is_here=True):
    """A site for each kind, at one place.

    :param is_here: Whether its data can be read here.
    """
    return [
        pvi.Site(f"bad {number}", MODEL, rule, NUM_DATA, load if is_here else None, place=place)
        for number, (load, rule) in enumerate(KINDS.values())
    ]


# ---- the search ----

TEXTS = (MARKER, f"{NUMBER:.0f}", "row 7", "/data/")
FORMS = [
    *(text.encode(code) for text in TEXTS for code in ("utf-8", "utf-16-le", "utf-32-le")),
    *(struct.pack(code, NUMBER) for code in ("<d", ">d", "<f")),
    struct.pack("<q", int(NUMBER)),
]


def traces(content):
    """The forms in which a marker stands in bytes, as it is or as hexadecimal digits."""
    return [form for form in FORMS if form in content or form.hex().encode() in content]
