"""No row of a private site leaves it, whatever is wrong with its data: every byte is looked at.

The same over NVFlare and Flower is in ``tests/journeys``.
"""

import logging
import pickle
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

from streaming_gp import engines, pvi
from streaming_gp.errors import NoAnswerError
from streaming_gp.pvi.desk import Desk
from streaming_gp.pvi.task import Failure, encode_answer, encode_task
from tests.hostile.bad_data import KINDS, MARKER, MODEL, NUMBER, sites, traces
from tests.hostile.cases import every_tenth


def test_the_search_finds_a_marker_in_a_message():
    answer = pvi.LocalResult(MODEL.prior().as_factor(), diagnostics={"row": NUMBER})
    tells = Failure("DataError", MARKER, is_open=True)
    arrays = np.full(3, NUMBER), np.full(3, NUMBER, np.float32), np.array([MARKER])
    told = [encode_answer(answer), encode_answer(tells), *map(pickle.dumps, arrays)]
    told += [encode_answer(replace(answer, diagnostics={MARKER: 0.0})), MARKER.encode("utf-16-le")]
    assert all(map(traces, told))
    assert not traces(encode_answer(replace(answer, diagnostics={})))
    assert len(KINDS) > 100


@every_tenth("name", list(KINDS))
def test_of_bad_data_a_code_leaves_and_nothing_else(name, tmp_path, caplog):
    """In the message of a site's program, and in the history, file and warnings of a run here."""
    site = sites()[list(KINDS).index(name)]
    server = pvi.Server(MODEL.prior(), [site])
    desk = Desk([site])
    nonce = desk.put(encode_task(server.ask(site.client_id)))
    message = desk._answer_to(desk._next())
    assert nonce
    assert not traces(message)
    server, told = pvi.Server(MODEL.prior(), [site]), ""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            pvi.fit(server, rounds=1, checkpoint=tmp_path / "run.npz")
        except NoAnswerError as error:
            told = f"{error} {vars(error)}"
    if getattr(site.update, "is_discreet", False):
        assert not traces(told.encode())
    assert not traces(" ".join(str(one.message) for one in warned).encode())
    assert not traces((tmp_path / "run.npz").read_bytes())
    assert not traces(str(server.history).encode())
    if server.history[-1].failed:
        assert caplog.records[0].name == "streaming_gp.site"
        assert caplog.records[0].levelno == logging.ERROR
    if name == "a fit, raises":
        assert traces(caplog.text.encode())


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.xdist_group("one cluster")
def test_nothing_of_bad_data_comes_from_a_process_of_ray(monkeypatch, capfd):
    """Not in an answer, nor in what Ray shows here of what its processes write."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_worker_niceness", "0")
    last = pvi.Site("last", MODEL, pvi.FixedPointUpdate(), 20, lambda: print("it is over"))
    server, told = pvi.Server(MODEL.prior(), [*sites(), last]), ""
    ray.init(num_cpus=2, log_to_driver=True, include_dashboard=False)
    try:
        with engines.Ray(workers=1).session(server.clients) as session:
            for name in server.clients:
                session.submit(server.ask(name), None)
            came = [session.next() for _ in server.clients]
            while "it is over" not in told:
                time.sleep(0.1)
                told += "".join(capfd.readouterr())
    finally:
        ray.shutdown()
    assert not traces(pickle.dumps(came) + told.encode())
