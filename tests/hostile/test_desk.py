"""Questions as messages, and the desk where sites answer them."""

import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import bnn, pvi
from streaming_gp.errors import FileFormatError, InvalidDataError, NumericalError
from streaming_gp.expfam import Factor, MeanFieldNormal
from streaming_gp.pvi.desk import Desk, UnknownQuestionError
from streaming_gp.pvi.task import (
    Failure,
    decode_answer,
    decode_task,
    encode_answer,
    encode_task,
)
from streaming_gp.testing.rounds import regression, shards_of_regression
from tests.oracles.builders import regressor
from tests.oracles.reference import smooth_data
from tests.oracles.trees import same


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
    gp = regressor(
        pseudo_points=sgp.PrivatePseudoPoints(3),
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
    )
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
    net = bnn.MeanFieldBNN([2, 3, 2], likelihood=None)
    posterior = net.prior()
    factor = Factor(MeanFieldNormal, posterior.natural).as_arrays()
    ask = pvi.LocalTask(None, None, posterior, factor, client_id="a", nonce="n")
    again = decode_task(encode_task(ask))
    assert again.posterior.natural[0].dtype == np.float32
    assert same(again.own, factor)
