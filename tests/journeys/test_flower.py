"""Runs over places beside SuperNodes of Flower, each with a key of its own."""

import importlib
import subprocess
import sys

import numpy as np
import pytest

from experiments.measured.organisations_world import Wire
from streaming_gp import engines, pvi, testing
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.pvi.task import Failure
from streaming_gp.testing.rounds import server_of_regression
from tests.hostile.bad_data import traces
from tests.oracles import traced
from tests.oracles.flower_world import ENVIRONMENT, World, free_port, with_agreed
from tests.oracles.reference import assert_same
from tests.oracles.site_of_tests import (
    PLACES,
    answers_of_bad_data,
    known,
    patients,
    server_of,
    wanted,
)

pytest.importorskip("flwr", reason="the flower extra is not installed")
pytestmark = [pytest.mark.flower, pytest.mark.xdist_group("nodes")]


class Places(World):
    """Three places at work, each a SuperNode and a process that stays; what goes from one to the
    other is kept.
    """

    def __init__(self, folder):
        super().__init__(folder, PLACES)
        self.wires = {place: Wire(self.ports[place]) for place in PLACES}
        for place in PLACES:
            self.begin_site(place)

    def begin_site(self, place):
        flag, secret = self.file("killed"), self.file(f"{place}.secret")
        module = [sys.executable, "-m", "tests.oracles.site_of_tests"]
        address = f"127.0.0.1:{self.wires[place].port}"
        return self.run(place, [*module, "flower", place, flag, address, secret])

    def end(self):
        super().end()
        for wire in self.wires.values():
            wire.close()

    def engine(self, **options):
        keys = {place: self.file(f"{place}.pub") for place in PLACES}
        settings = {"secret": self.file("link.secret"), "keys": keys} | options
        address = f"localhost:{self.ports['link']}"
        return engines.Flower(address, certificate=self.file("ca.pem"), **settings)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    found = Places(tmp_path_factory.mktemp("places"))
    yield found
    found.end()


def test_places_keep_the_contract_of_engines(places):
    honest = {f"c{number}": known(f"c{number}", number) for number in range(3)}
    failing = honest | {"c1": known("c1", 2)}
    testing.check_engine(places.engine(), honest, failing)


def test_a_run_is_that_of_the_serial_engine(places):
    server = server_of(["c0", "c1", "c2"])
    history = pvi.fit(server, pvi.Synchronous(), 3, places.engine())
    assert not any(one.failed or one.refused for one in history)
    assert_same(server.posterior, wanted(3).posterior, 0.0)


def test_resident_sites_trace_nothing_after_their_first_rounds(places):
    traced.assert_resident(places.engine(), traced.known(PLACES))


def test_an_answer_that_comes_again_is_refused_by_name(places):
    server = server_of(["c0", "replayed"])
    again = pvi.fit(server, pvi.Synchronous(), 2, places.engine())[1]
    assert set(again.refused) == {"replayed"}
    assert "is not open" in again.refused["replayed"]


def test_of_bad_data_a_code_leaves_and_nothing_else(places):
    answers = answers_of_bad_data(places.engine())
    left = bytes(places.wires["clinic-a"].recorded)
    assert sum(isinstance(one, Failure) for one in answers) > 100
    assert all(one.nonce.encode() in left for one in answers if not isinstance(one, Failure))
    assert not traces(left)


def test_a_result_comes_to_the_inbox_of_whoever_has_one(places):
    places.engine().publish(["clinic-a"], b"first")
    assert (places.folder / "killed-result").read_bytes() == b"first"
    with pytest.raises(NoAnswerError, match=r"'clinic-b': '.*this place takes no results"):
        places.engine().publish(["clinic-a", "clinic-b"], b"second")
    assert (places.folder / "killed-result").read_bytes() == b"second"


@pytest.mark.slow
def test_a_site_killed_in_the_middle_of_a_fit_is_asked_again_when_it_is_back(places):
    server = server_of(["c0", "killed1", "c2"])
    with places.engine().session(server.clients) as session:
        for name in server.clients:
            session.submit(server.ask(name), None)
        answers = [session.next(), session.next()]
        places.running["clinic-b"].wait()
        places.begin_site("clinic-b")
        answers.append(session.next())
    assert not server.accept(answers, pvi.Damping(None, 3)).refused
    assert_same(server.posterior, wanted(1).posterior, 1e-12)


def test_a_run_goes_on_when_the_superlink_was_killed_and_started_again(places):
    server = server_of(["c0", "c1", "c2"])

    def kill(one):
        if one.round == 1:
            places.running["link"].kill()
            places.running["link"].wait()
            places.begin("link", "link.sh")

    history = pvi.fit(server, pvi.Synchronous(), 2, places.engine(), callback=kill)
    assert not any(one.failed or one.refused for one in history)
    assert_same(server.posterior, wanted(2).posterior, 0.0)


# ---- who is not let in ----


def test_a_node_without_a_known_key_is_refused_and_logged(places):
    places.ports["stranger"] = free_port()
    places.do("keys.sh", "stranger")
    places.begin_node("stranger")
    assert places.running["node of stranger"].wait(120) != 0
    assert "No SuperNode found with the given public key" in places.log("link")
    assert "Failed to activate SuperNode" in places.log("node of stranger")


def test_a_node_with_another_key_than_the_place_is_not_asked(places):
    places.do("keys.sh", "other")
    keys = {"clinic-a": places.file("clinic-a.pub"), "clinic-b": places.file("other.pub")}
    server = server_of(["c0", "c1"])
    with places.engine(keys=keys).session(server.clients) as session:
        session.submit(server.ask("c1"), None)
        for _ in range(2):
            session.submit(server.ask("c0"), None)
            assert session.next().client_id == "c0"
        assert session.open == {"c1"}


def test_who_does_not_know_the_secret_gets_no_run(places):
    server = server_of(["c0", "c1", "c2"])
    with pytest.raises(InvalidDataError, match=r"gives no run.*401"):
        pvi.fit(server, engine=places.engine(secret=places.file("clinic-a.secret")))


def test_who_connects_without_tls_or_by_another_authority_is_refused(places, tmp_path):
    server, address = server_of(["c0"]), f"localhost:{places.ports['link']}"
    secret, keys = places.file("link.secret"), {"clinic-a": places.file("clinic-a.pub")}
    plain = engines.Flower(address, secret, keys=keys)
    with pytest.raises(InvalidDataError, match="gives no run"):
        pvi.fit(server, engine=plain)
    (tmp_path / "certificates.sh").write_bytes((places.folder / "certificates.sh").read_bytes())
    subprocess.run(["sh", "certificates.sh", "localhost"], cwd=tmp_path, check=True)
    elsewhere = engines.Flower(address, secret, tmp_path / "ca.pem", keys)
    with pytest.raises(InvalidDataError, match="CERTIFICATE_VERIFY_FAILED"):
        pvi.fit(server, engine=elsewhere)


def test_settings_and_clients_must_fit(places):
    server, secret = server_of(["c0"]), places.file("link.secret")
    cases = {
        "whose data are theirs": (server_of_regression(), places.engine()),
        "got none of 'clinic-a'": (server, places.engine(keys={})),
        "holds no public key": (server, places.engine(keys={"clinic-a": secret})),
        "wanted a file": (server, places.engine(secret=places.file("nothing"))),
        "wanted a certificate for": (
            server,
            engines.Flower("10.0.0.1:8000", secret, keys=places.engine().keys),
        ),
    }
    for message, (asked, engine) in cases.items():
        with pytest.raises(InvalidDataError, match=message):
            pvi.fit(asked, engine=engine)
    with pytest.raises(InvalidDataError, match="deadline must be positive"):
        places.engine(deadline=0.0)


# ---- the page of the docs ----


def test_the_programs_of_the_page_learn_what_one_process_would(tmp_path, monkeypatch):
    with_agreed(tmp_path)
    world = World(tmp_path, PLACES)
    try:
        rounds = _learned(world, monkeypatch)
    finally:
        world.end()
    assert rounds == 4


def _learned(world, monkeypatch):
    monkeypatch.syspath_prepend(str(world.folder))
    agreed = importlib.import_module("agreed")
    shards = {name: patients(n, seed) for seed, (name, n) in enumerate(agreed.PATIENTS.items())}
    clinic = (world.folder / "clinic.py").read_text()
    for name, (X, Y) in shards.items():
        rows, titles = np.hstack([X, Y]), "a,b,c,d,label"
        np.savetxt(world.file(f"{name}.csv"), rows, delimiter=",", header=titles, comments="")
        program = world.folder / f"program-{name}.py"
        program.write_text(clinic.replace("9094", str(world.ports[name])))
        world.run(name, [sys.executable, str(program), name, f"{name}.csv"])
    coordinate = (world.folder / "coordinate.py").read_text().replace("20, Path", "4, Path")
    (world.folder / "coordinate.py").write_text(coordinate)
    finished = subprocess.run(
        [sys.executable, "coordinate.py"], cwd=world.folder, env=ENVIRONMENT, capture_output=True
    )
    assert finished.returncode == 0, finished.stderr.decode()
    sites = {name: agreed.site(name) for name in shards}
    server = pvi.Server.load(world.folder / "run.npz", agreed.model.prior(), sites)
    here = pvi.Server(server.prior, pvi.make_clients(agreed.model, shards, agreed.update))
    pvi.fit(here, pvi.Synchronous(), len(server.history))
    np.testing.assert_allclose(
        server.posterior.precision_mean, here.posterior.precision_mean, rtol=1e-6
    )
    assert "streaming_gp" not in world.log("coordinator")  # no warning of ours
    return len(server.history)
