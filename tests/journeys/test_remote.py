"""What engines of other organisations do without the systems that they rest on."""

import sys

import pytest

from streaming_gp import engines, pvi
from streaming_gp.engines.remote import keep, places_of, refuse_missed
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.testing.problem import server_of_regression
from tests.oracles.site_of_tests import known


def test_without_its_extra_an_engine_says_what_to_install(monkeypatch, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    monkeypatch.setitem(sys.modules, "flwr", None)
    site = known("c0", 0)
    with pytest.raises(InvalidDataError, match=r"streaming-gp\[flower\]"):
        pvi.serve(site, engines.Flower("127.0.0.1:9094", secret))
    engine = engines.Flower("localhost:8000", secret, secret, {"clinic-a": secret})
    with pytest.raises(InvalidDataError, match=r"streaming-gp\[flower\]"):
        pvi.fit(pvi.Server(site.model.prior(), [site]), engine=engine)


def test_sites_are_known_by_place_and_data_are_not_sent():
    sites = {"c0": known("c0", 0), "elsewhere": pvi.Site("elsewhere", *_model_and_rule(), 8)}
    assert places_of(sites) == {"c0": "clinic-a", "elsewhere": "elsewhere"}
    with pytest.raises(InvalidDataError, match=r"got data of \['c0', 'c1', 'c2'\]"):
        places_of(server_of_regression().clients)


def _model_and_rule():
    site = known("c0", 0)
    return site.model, site.update


def test_the_newest_result_takes_the_place_of_the_one_before(tmp_path):
    inbox = tmp_path / "result"
    for content in (b"first", b"second"):
        keep(content, inbox)
    assert inbox.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [inbox]
    with pytest.raises(InvalidDataError, match="it has no inbox"):
        keep(b"third", None)


def test_where_a_result_did_not_come_is_said():
    refuse_missed({})
    with pytest.raises(NoAnswerError, match="'clinic-a': 'no inbox'"):
        refuse_missed({"clinic-a": "no inbox"})
