"""Whatever a client answers, the run goes on, and the others' factors are as without it."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

import gpflow
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streaming_gp as sgp
from streaming_gp import bnn, linear, pvi
from streaming_gp.errors import FileFormatError, InvalidDataError, NumericalError
from streaming_gp.expfam import Factor, MeanFieldNormal, Normal
from streaming_gp.pvi.desk import Desk, UnknownQuestionError
from streaming_gp.pvi.guards import RefusedError, read
from streaming_gp.pvi.task import (
    Delivery,
    Failure,
    decode_answer,
    decode_task,
    encode_answer,
    encode_task,
)
from streaming_gp.testing.rounds import regression, shards_of_regression
from tests.hostile.cases import every_tenth
from tests.hostile.streams import QUICK
from tests.oracles.builders import EVERY_INPUT, regressor
from tests.oracles.reference import assert_same, smooth_data
from tests.oracles.trees import same

MODEL = linear.BayesianLinearRegression(2, 0.1)
NAMES = ("c0", "c1", "c2")


def clients():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12, 2))
    shards = {name: (X[i::3], X[i::3] @ [[1.0], [-1.0]]) for i, name in enumerate(NAMES)}
    return pvi.make_clients(MODEL, shards, pvi.AnalyticUpdate())


@dataclass(frozen=True)
class Tampering:
    """An engine on whose way to the server the answers of c1 are changed."""

    change: object

    @contextmanager
    def session(self, clients):
        with pvi.Serial().session(clients) as inside:
            yield TamperingSession(inside, self.change)


class TamperingSession:
    def __init__(self, inside, change):
        self.inside, self.change = inside, change
        self.submit = inside.submit

    now = property(lambda self: self.inside.now)
    open = property(lambda self: self.inside.open)

    def next(self):
        delivery = self.inside.next()
        if delivery.client_id != "c1":
            return delivery
        return Delivery("c1", self.change(delivery.answer))


def run(schedule, change=None, without=()):
    server = pvi.Server(MODEL.prior(), {k: c for k, c in clients().items() if k not in without})
    engine = pvi.Serial() if change is None else Tampering(change)
    pvi.fit(server, schedule, 2, engine)
    return server


def with_result(**changes):
    return lambda answer: replace(answer, **changes)


def with_factor(**changes):
    return lambda answer: replace(answer, factor=replace(answer.factor, **changes))


def with_natural(change):
    def changed(answer):
        natural = tuple(change(np.asarray(eta)) for eta in answer.factor.natural)
        return with_factor(natural=natural)(answer)

    return changed


def lopsided(answer):
    mean, precision = answer.factor.natural
    return with_factor(natural=(mean, precision + np.eye(2, k=1)))(answer)


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Explosive:
    """Raises at whatever is asked of it."""

    def __getattribute__(self, name):
        raise UnprintableError


def flipped(answer):
    message = bytearray(encode_answer(answer))
    message[len(message) // 2] ^= 1
    return bytes(message)


class Relation(pvi.LocalResult):
    pass


class Relative(dict):
    """Of a class that may do anything when it is used later, as the next two."""


class RelativeOfInt(int):
    def __add__(self, other):
        raise RuntimeError("no sum")

    __radd__ = __add__


class RelativeOfFloat(float):
    __add__ = __radd__ = RelativeOfInt.__add__


WRONG = [
    *(("free_energy", value) for value in ("much", None, np.inf, np.zeros(2), 1j)),
    *(("skipped", value) for value in ("1", 0.5, -1, RelativeOfInt(3))),
    *(("steps", value) for value in (None, True)),
    *(("version", value) for value in ("0", 10**30, -(10**9))),
    *(("num_data", value) for value in ("4", np.nan)),
    ("free_energy", RelativeOfFloat(3.0)),
    ("diagnostics", "fine"),
    ("sequence", None),
    ("hyperparameters", "ε"),
]


def is_wrong(field, value):
    message = f"{field} is {value!r:.12}"
    return with_result(**{field: value}), field if "array" in message else message


HALF = "\ud800"
"""Half a surrogate pair: JSON may hold it, and no encoding can."""
KINDS = {
    "factor None": (with_result(factor=None), "no factor of the family"),
    "factor text": (with_result(factor="factor"), "no factor of the family"),
    "factor list": (with_result(factor=[1.0, 2.0]), "no factor of the family"),
    "factor explosive": (with_result(factor=Explosive()), ""),
    "other family": (with_factor(family=MeanFieldNormal), "no factor of the family"),
    "no family": (with_factor(family=None), "no factor of the family"),
    "natural None": (with_factor(natural=None), "floating-point"),
    "natural lists": (with_natural(np.ndarray.tolist), "floating-point"),
    "natural text": (with_natural(lambda eta: eta.astype(str)), "floating-point"),
    "natural objects": (with_natural(lambda eta: eta.astype(object)), "floating-point"),
    "longdouble": (with_natural(lambda eta: eta.astype(np.longdouble)), "32 or 64 bits"),
    "integers": (with_natural(lambda eta: eta.astype(int)), "floating-point"),
    "half": (with_natural(lambda eta: eta.astype(np.float16)), "32 or 64 bits"),
    "complex": (with_natural(lambda eta: eta + 0j), "floating-point"),
    "ragged": (with_factor(natural=([1.0, [2.0]], None)), "floating-point"),
    "too many": (with_factor(natural=(np.zeros(2),) * 3), "shapes"),
    "wrong shape": (with_natural(lambda eta: eta[:1]), "shapes"),
    "not a number": (with_natural(lambda eta: eta * np.nan), "not finite"),
    "infinite": (with_natural(lambda eta: eta / 0.0), "not finite"),
    "lopsided": (lopsided, "not symmetric"),
    "scale nan": (with_factor(log_scale=np.nan), "log constant is nan"),
    "scale inf": (with_factor(log_scale=np.inf), "log constant is inf"),
    "scale text": (with_factor(log_scale="1.0"), "log constant is '1.0'"),
    "scale None": (with_factor(log_scale=None), "log constant is None"),
    "scale array": (with_factor(log_scale=np.zeros(2)), "log constant"),
    **{f"{field} {value!s:.9}": is_wrong(field, value) for field, value in WRONG},
    "diagnostics keys": (with_result(diagnostics={1: 1.0}), "diagnostics"),
    "diagnostics values": (with_result(diagnostics={"a": "b"}), "diagnostic 'a' is 'b'"),
    "a dict": (vars, "no LocalResult but a dict"),
    "version early": (lambda a: replace(a, version=a.version + 1), "speaks of version"),
    "skipped of 5,000 digits": (with_result(skipped=10**5000), "skipped is a number of very many"),
    "more data": (lambda a: replace(a, num_data=5), "5 data points, of which its client has 4"),
    "epsilon below zero": (with_result(diagnostics={"epsilon": -5.0}), "epsilon is -5.0"),
    "too large": (with_result(diagnostics={"x" * 10**6: 1.0}), "it is too large: 1000"),
    "too large a message": (lambda a: encode_answer(a) + bytes(10**6), "it is too large: 100"),
    "too many numbers": (with_factor(natural=(np.zeros(10**5),) * 2), "it is too large: 160"),
    "masked": (with_natural(np.ma.array), "floating-point"),
    "sequence other": (lambda a: replace(a, sequence=a.sequence + 1), "is not open"),
    "other name": (lambda a: replace(a, client_id="c0"), "in the name of 'c0'"),
    "nobody": (lambda a: replace(a, client_id="c9"), "in the name of 'c9'"),
    "name None": (lambda a: replace(a, client_id=None), "in the name of None"),
    "name list": (lambda a: replace(a, client_id=["c1"]), "in the name of"),
    "nonce": (lambda a: replace(a, nonce="0" * 32), "does not carry the nonce"),
    "no nonce": (lambda a: replace(a, nonce=""), "does not carry the nonce"),
    "nonce None": (lambda a: replace(a, nonce=None), "nonce is None"),
    "nonce bytes": (lambda a: replace(a, nonce=a.nonce.encode()), "nonce is b"),
    "text": (lambda a: "answer", "no LocalResult but a str"),
    "number": (lambda a: 1, "no LocalResult but a int"),
    "pair": (lambda a: ("c1", a), "no LocalResult but a tuple"),
    "a question": (lambda a: pvi.LocalTask(None, None, None, None), "but a LocalTask"),
    "a class": (lambda a: pvi.LocalResult, "no LocalResult but a type"),
    "a relative": (lambda a: Relation(**vars(a)), "no LocalResult but a Relation"),
    "explosive": (lambda a: Explosive(), ""),
    "an error": (lambda a: UnprintableError(), "no LocalResult but a UnprintableError"),
    "no bytes": (lambda a: b"", "is empty"),
    "other bytes": (lambda a: b"\x80\x04N.", "no npz archive"),
    "half a message": (lambda a: encode_answer(a)[:100], "truncated or was altered"),
    "flipped bit": (flipped, "truncated or was altered"),
    "more bytes": (lambda a: encode_answer(a) + b"!", "truncated or was altered"),
    "failure": (lambda a: encode_answer(Failure("DataError")), "its data cannot be read"),
    "failure of no code": (lambda a: encode_answer(Failure("row 3")), "OtherError: it failed"),
    "failure of failure": (lambda a: encode_answer(Failure(3)), "3"),
    "nonce of no encoding": (lambda a: replace(a, nonce=HALF), "nonce is"),
    "the same as a message": (lambda a: encode_answer(replace(a, nonce=HALF)), "nonce is"),
    "failure of no encoding": (lambda a: encode_answer(Failure("", HALF, True)), r"\ud800"),
    "diagnostic of no encoding": (with_result(diagnostics={HALF: 1.0}), "diagnostics is"),
    "diagnostics of a class": (with_result(diagnostics=Relative(a=1.0)), "diagnostics is"),
}  # fmt: skip
SCHEDULES = {
    "synchronous": pvi.Synchronous(damping=1.0),
    "sequential": pvi.Sequential(),
    "asynchronous": pvi.Asynchronous(damping=1.0, jitter=0.0, staleness_power=1.0),
}


@pytest.fixture(scope="module")
def honest():
    """What comes of runs without c1, by schedule."""
    return {name: run(schedule, without=("c1",)) for name, schedule in SCHEDULES.items()}


@every_tenth(("kind", "schedule"), {f"{k}, {s}": (k, s) for k in KINDS for s in SCHEDULES})
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_malformed_answer_is_refused_and_the_run_goes_on(honest, kind, schedule):
    change, message = KINDS[kind]
    server = run(SCHEDULES[schedule], change)
    unheard = [one.unheard["c1"] for one in server.history if "c1" in one.unheard]
    assert unheard
    assert all(message in why for why in unheard), unheard
    assert set(server.factors) == {"c0", "c2"}
    if schedule != "asynchronous":  # there the answers that are refused take turns as well
        wanted, found = honest[schedule].posterior.natural, server.posterior.natural
        for one, other in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(one, other)


def test_an_honest_answer_may_come_as_it_is_or_as_a_message():
    plain, message = run(SCHEDULES["synchronous"]), run(SCHEDULES["synchronous"], encode_answer)
    assert not message.history[-1].refused
    assert_same(plain.posterior, message.posterior, 0.0)
    assert plain.history[-1].bytes_up == message.history[-1].bytes_up


def raising(error):
    def rule(task):
        raise error

    return rule


ERRORS = [UnprintableError(), SystemExit(1), GeneratorExit(), BaseException("gone"), MemoryError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_client_that_raises_anything_is_reported(error):
    some = clients()
    some["c1"] = replace(some["c1"], update=raising(error))
    server = pvi.Server(MODEL.prior(), some)
    pvi.fit(server, SCHEDULES["synchronous"], 1)
    assert type(error).__name__ in server.history[-1].failed["c1"]
    assert set(server.factors) == {"c0", "c2"}


def test_the_user_s_own_interrupt_ends_the_run():
    some = clients()
    some["c1"] = replace(some["c1"], update=raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        pvi.fit(pvi.Server(MODEL.prior(), some), SCHEDULES["synchronous"], 1)


def test_an_answer_to_a_server_s_former_life_is_refused():
    """Of the same client, to a question of the same number under the same posterior."""
    former, now = (pvi.Server(MODEL.prior(), clients()) for _ in range(2))
    old = former.ask("c1")
    new = now.ask("c1")
    assert (old.sequence, old.version) == (new.sequence, new.version)
    rule = pvi.Damping(1.0, 3)
    refused = now.accept([now.clients["c1"].answer(old)], rule).refused
    assert "nonce" in refused["c1"]
    assert not now.accept([now.clients["c1"].answer(new)], rule).refused


def test_an_answer_over_another_channel_is_refused_and_costs_nothing():
    server = pvi.Server(MODEL.prior(), clients())
    asks = {name: server.ask(name) for name in NAMES}
    stolen = server.clients["c0"].answer(asks["c0"])
    rule = pvi.Damping(1.0, 3)
    assert "in the name of 'c0'" in server.accept([Delivery("c1", stolen)], rule).refused["c1"]
    assert server.accept([Delivery("c0", stolen)], rule).accepted == 1
    assert list(server.factors) == ["c0"]


def test_what_nobody_asked_for_about_hyperparameters_is_not_kept():
    server = pvi.Server(MODEL.prior(), clients())
    ask = server.ask("c1")
    answer = replace(server.clients["c1"].answer(ask), hyperparameters=Factor(Normal, ()))
    server.accept([answer], pvi.Damping(1.0, 3))
    assert not server.hyperparameter_factors


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.complex_numbers() | st.just(np.zeros((2, 2))) | st.just(np.longdouble(1.0))
    | st.builds(Explosive) | st.just(Normal),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=5,
)  # fmt: skip
FIELDS = [
    *((with_result, field.name) for field in fields(pvi.LocalResult)),
    *((with_factor, name) for name in ("family", "natural", "log_scale")),
]


def check_nothing_raises(place, value, as_message):
    change, name = place
    server = pvi.Server(MODEL.prior(), clients())
    ask = server.ask("c1")
    honest = server.clients["c1"].answer(ask)
    came = change(**{name: value})(honest)
    if as_message:
        try:
            came = encode_answer(came)
        except Exception:  # what no message can hold does not travel
            return
    before = server.posterior
    outcome = server.accept([Delivery("c1", came)], pvi.Damping(1.0, 3))
    if outcome.refused:
        assert outcome.refused["c1"]
        assert server.posterior is before
    else:
        assert np.isfinite(server.posterior.mean).all()
        decode_answer(encode_answer(honest))


@pytest.mark.parametrize("number", [15, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_field_of_an_answer_can_raise(number):
    given_anything = given(st.sampled_from(FIELDS), ANYTHING, st.booleans())
    checked = settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))
    checked(given_anything(check_nothing_raises))()


@given(st.binary(max_size=300), st.integers(0, 10**4), st.booleans())
@settings(max_examples=100, deadline=None)
def test_no_bytes_can_raise(noise, at, whole):
    message = encode_answer(pvi.LocalResult(Factor(Normal, ()), client_id="c1"))
    at %= len(message)
    came = noise if whole else message[:at] + noise + message[at + len(noise) :]
    if came == message:
        assert read(Delivery("c1", came)).client_id == "c1"
        return
    with pytest.raises(RefusedError):
        read(Delivery("c1", came))


def test_a_message_of_a_later_version_says_so():
    message = encode_answer(Failure("OSError"))
    later = message.replace(b'"version": 2', b'"version": 9')
    assert later != message
    with pytest.raises(FileFormatError):
        decode_answer(later)


# ---- questions ----


@dataclass(frozen=True)
class Counted:
    """A rule that counts its fits, and fails where it is told to."""

    fits: list
    fails: bool = False

    def __call__(self, task):
        self.fits.append(1)
        if self.fails:
            raise NumericalError("no numbers today")
        return pvi.AnalyticUpdate()(task)


def site(name, update, model=None):
    shard = shards_of_regression()[0]
    return pvi.Site(name, model or regression(), update, 8, lambda: shard)


@pytest.fixture
def server():
    model = regression()
    return pvi.Server(model.prior(), [site("a", pvi.AnalyticUpdate(), model)])


@pytest.fixture
def at_work():
    """Desks at work, each in a thread of its own, as ``serve`` keeps them in the main one."""

    def begin(*sites):
        desk = Desk(sites)
        threading.Thread(target=desk.work, daemon=True).start()
        return desk

    return begin


def test_a_question_survives_its_message_bit_for_bit(rng):
    gp = regressor(pseudo_points=EVERY_INPUT, optimiser=QUICK)
    X, Y = smooth_data(rng, 10)
    client = pvi.Client("a", gp, (X, Y), sgp.GPUpdate())
    server = pvi.Server(gp.prior(), [client])
    for _ in range(2):  # without a factor, and with one
        ask = server.ask("a")
        again = decode_task(encode_task(ask))
        assert same(replace(ask, posterior=ask.posterior.as_arrays()), again)
        answers = [client.answer(one) for one in (ask, again)]
        assert same(*(one.factor for one in answers))
        server.accept(answers[:1], pvi.Damping(1.0, 1))
    assert again.own is not None


def test_what_is_no_question_is_refused(server):
    message = encode_task(server.ask("a"))
    desk = Desk([site("a", pvi.AnalyticUpdate())])
    for wrong in (message[:-1], b"", encode_answer(Failure("OSError"))):
        with pytest.raises(FileFormatError):
            desk.put(wrong)
    with pytest.raises(InvalidDataError, match="there is no such site at this place: 'a'"):
        Desk([site("b", pvi.AnalyticUpdate())]).put(message)


def test_a_question_that_comes_twice_is_answered_once(server, at_work):
    fits = []
    desk = at_work(site("a", Counted(fits)))
    ask = server.ask("a")
    for _ in range(2):
        nonce = desk.put(encode_task(ask))
    first, second = (desk.answer(nonce, 60.0) for _ in range(2))
    desk.put(encode_task(ask))
    assert first == second == desk.answer(nonce, 0.0)
    assert len(fits) == 1
    outcome = server.accept([decode_answer(first)], pvi.Damping(1.0, 1))
    assert outcome.accepted == 1
    assert "is not open" in server.accept([decode_answer(second)], pvi.Damping(1.0, 1)).refused["a"]


def test_a_newer_question_takes_the_place_of_an_older(server):
    desk = Desk([site("a", pvi.AnalyticUpdate())])
    old, new = (desk.put(encode_task(server.ask("a"))) for _ in range(2))
    with pytest.raises(UnknownQuestionError):
        desk.answer(old, 0.0)
    assert desk.answer(new, 0.0) is None  # nobody is at work
    with pytest.raises(UnknownQuestionError):
        desk.answer("never asked", 0.0)


def test_a_fit_that_fails_is_news_and_the_next_question_is_another_try(server, at_work):
    desk = at_work(site("a", Counted([], fails=True)))
    for _ in range(2):
        nonce = desk.put(encode_task(server.ask("a")))
        found = decode_answer(desk.answer(nonce, 60.0))
        assert found == Failure("NumericalError")


def test_sites_of_one_process_answer_each_for_itself(at_work):
    model = regression()
    names = ["a", "b"]
    server = pvi.Server(model.prior(), [site(name, pvi.AnalyticUpdate(), model) for name in names])
    desk = at_work(*(site(name, pvi.AnalyticUpdate()) for name in names))
    nonces = [desk.put(encode_task(server.ask(name))) for name in names]
    found = [decode_answer(desk.answer(nonce, 60.0)) for nonce in nonces]
    assert [one.client_id for one in found] == names
    for wrong in ([], [site("a", None), site("a", None)]):
        with pytest.raises(InvalidDataError, match="wanted sites of different names"):
            Desk(wrong)


class Restless:
    """A worker that counts, between questions, how far it has come, up to ten."""

    def __init__(self, moved, arrived):
        self.moved, self.arrived, self.begun = moved, arrived, False

    def __call__(self, task):
        self.begun = True
        return pvi.AnalyticUpdate()(task)

    def advance(self, iterations):
        if not self.begun or len(self.moved) == 10:
            return False
        self.moved.append(1)
        if len(self.moved) == 10:
            self.arrived.set()
        return True


@dataclass(frozen=True)
class RestlessRule:
    moved: list
    arrived: threading.Event

    def __call__(self, task):
        return self.worker()(task)

    def worker(self):
        return Restless(self.moved, self.arrived)


def test_what_goes_on_by_itself_goes_on_between_questions(server, at_work):
    arrived = threading.Event()
    desk = at_work(site("a", RestlessRule([], arrived)))
    for _ in range(2):
        nonce = desk.put(encode_task(server.ask("a")))
        assert desk.answer(nonce, 60.0)
    assert arrived.wait(60.0)


def test_a_network_of_float32_travels_as_it_is():
    net = bnn.MeanFieldBNN([2, 3, 2], gpflow.likelihoods.Softmax(2))
    posterior = net.prior()
    factor = Factor(MeanFieldNormal, posterior.natural).as_arrays()
    ask = pvi.LocalTask(None, None, posterior, factor, client_id="a", nonce="n")
    again = decode_task(encode_task(ask))
    assert again.posterior.natural[0].dtype == np.float32
    assert same(again.own, factor)
