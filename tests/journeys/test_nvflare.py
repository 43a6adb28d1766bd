"""Runs over places that start on their own, with certificates that NVFlare provisions."""

import importlib
import logging
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from experiments.measured import organisations_world
from streaming_gp import engines, pvi, testing
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.pvi.guards import read
from streaming_gp.pvi.task import Failure
from streaming_gp.testing.rounds import regression, server_of_regression
from tests.hostile.bad_data import traces
from tests.oracles import traced
from tests.oracles.reference import assert_same
from tests.oracles.site_of_tests import (
    PLACES,
    answers_of_bad_data,
    known,
    patients,
    server_of,
    wanted,
)

pytest.importorskip("nvflare", reason="the nvflare extra is not installed")
from nvflare.fuel.f3.sfm.conn_manager import ConnManager

pytestmark = [pytest.mark.nvflare, pytest.mark.xdist_group("three places")]
ROOT = Path(__file__).resolve().parents[2]


class Places:
    """Three places at work, each a process, behind a network that can be cut."""

    def __init__(self, folder, organisations):
        self.folder, self.kits = folder, organisations.provision(folder / "kits")
        self.port = organisations.free_port()
        self.wire = organisations.Wire(self.port)
        self.running = {place: self.begin(place) for place in PLACES}

    @property
    def engine(self):
        return engines.NVFlare(self.kits / "coordinator", address=f"127.0.0.1:{self.port}")

    def begin(self, place):
        address, flag = f"127.0.0.1:{self.wire.port}", str(self.folder / "killed")
        kit = str(self.kits / place)
        return self.run("site_of_tests", "nvflare", place, flag, address, kit)

    def run(self, module, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", f"tests.oracles.{module}", *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def end(self):
        for process in self.running.values():
            process.kill()
            process.wait()
        self.wire.close()


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    found = Places(tmp_path_factory.mktemp("places"), organisations_world)
    yield found
    found.end()


def test_places_keep_the_contract_of_engines(places):
    honest = {f"c{number}": known(f"c{number}", number) for number in range(3)}
    failing = honest | {"c1": known("c1", 2)}
    testing.check_engine(places.engine, honest, failing)


def test_a_run_is_that_of_the_serial_engine(places):
    server = server_of(["c0", "c1", "c2"])
    history = pvi.fit(server, pvi.Synchronous(), 3, places.engine)
    assert not any(one.failed or one.refused for one in history)
    assert_same(server.posterior, wanted(3).posterior, 0.0)


def test_resident_sites_trace_nothing_after_their_first_rounds(places):
    traced.assert_resident(places.engine, traced.known(PLACES))


def test_a_site_killed_in_the_middle_of_a_fit_is_asked_again_when_it_is_back(places):
    server = server_of(["c0", "killed1", "c2"])

    def restart():
        places.running["clinic-b"].wait()
        places.running["clinic-b"] = places.begin("clinic-b")

    with places.engine.session(server.clients) as session:
        for name in server.clients:
            session.submit(server.ask(name), None)
        restart()
        answers = [session.next() for _ in server.clients]
    assert not server.accept(answers, pvi.Damping(None, 3)).refused
    assert_same(server.posterior, wanted(1).posterior, 1e-12)


def test_a_network_that_was_cut_costs_nothing_but_time(places):
    server = server_of(["c0", "c1", "c2"])

    def cut(one):
        if one.round == 1:
            places.wire.cut()
            time.sleep(1.0)
            places.wire.mend()

    history = pvi.fit(server, pvi.Synchronous(), 3, places.engine, callback=cut)
    assert not any(one.failed or one.refused for one in history)
    assert_same(server.posterior, wanted(3).posterior, 0.0)


def test_an_answer_that_comes_again_is_refused_by_name(places):
    server = server_of(["c0", "replayed"])
    first = pvi.fit(server, pvi.Synchronous(), 1, places.engine)[0]
    before = server.factors["replayed"]
    again = pvi.fit(server, pvi.Synchronous(), 1, places.engine)[1]
    assert not first.refused
    assert set(again.refused) == {"replayed"}
    assert "is not open" in again.refused["replayed"]
    assert server.factors["replayed"] is before


def test_of_bad_data_a_code_leaves_and_nothing_else(places, monkeypatch):
    """Of all bytes that come to the coordinator, once TLS is taken off them."""
    came, process = bytearray(), ConnManager.process_frame

    def keeping(manager, connection, frame):
        came.extend(frame)
        process(manager, connection, frame)

    monkeypatch.setattr(ConnManager, "process_frame", keeping)
    answers = answers_of_bad_data(places.engine)
    assert sum(isinstance(one, Failure) for one in answers) > 100
    assert all(one.nonce.encode() in came for one in answers if not isinstance(one, Failure))
    assert not traces(came)


def test_a_place_that_is_not_there_is_overdue(places):
    model = regression()
    absent = pvi.Site("d", model, pvi.AnalyticUpdate(), 8, place="clinic-d")
    server = pvi.Server(model.prior(), [known("c0", 0), absent])
    engine = engines.NVFlare(places.kits / "coordinator", 20.0, address=places.engine.address)
    (one,) = pvi.fit(server, pvi.Synchronous(), 1, engine)
    assert one.failed == {"d": "no answer within 20 s"}
    assert set(server.factors) == {"c0"}


def test_a_result_comes_to_the_inbox_of_whoever_has_one(places):
    for content in (b"first", b"second"):
        places.engine.publish(["clinic-a"], content)
        assert (places.folder / "killed-result").read_bytes() == content
    with pytest.raises(NoAnswerError, match=r"'clinic-b': '.*this place takes no results"):
        places.engine.publish(["clinic-a", "clinic-b"], b"third")
    assert (places.folder / "killed-result").read_bytes() == b"third"


# ---- who is not let in ----


def tls_without_certificate(places):
    context = ssl.create_default_context(cafile=str(places.kits / "clinic-a/startup/rootCA.pem"))
    with (
        socket.create_connection(("127.0.0.1", places.port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
        suppress(ssl.SSLError, ConnectionError),
    ):
        assert connection.recv(1) == b""


def plain_tcp(places):
    with socket.create_connection(("127.0.0.1", places.port)) as connection:
        connection.sendall(b"GET /f3 HTTP/1.1\r\nUpgrade: websocket\r\n\r\n")
        with suppress(ConnectionError):
            assert connection.recv(100) == b""


def stranger(places):
    """A kit that somebody else has provisioned, for the same names."""
    kits = organisations_world.provision(places.folder / "elsewhere")
    assert "not let in" in intruded(places, kits / "clinic-a", "clinic-a")


def another(places):
    """It may speak before it is turned out, but nobody listens."""
    intruded(places, places.kits / "clinic-b", "clinic-a")


def intruded(places, kit, name):
    process = places.run("intruder", str(kit), name, f"127.0.0.1:{places.port}")
    return process.communicate(timeout=120)[0]


INTRUDERS = {
    "no certificate": (tls_without_certificate, "refused a connection from 127.0.0.1"),
    "plain TCP": (plain_tcp, "refused a connection from 127.0.0.1"),
    "a stranger's": (stranger, "refused a connection from 127.0.0.1"),
    "another's": (another, "authenticated as 'clinic-b' but claimed endpoint 'clinic-a'"),
}


@pytest.mark.parametrize("kind", INTRUDERS)
def test_who_has_no_certificate_of_its_own_is_refused_and_logged(places, caplog, kind):
    intrude, line = INTRUDERS[kind]
    server = server_of(["c0", "c1", "c2"])
    with caplog.at_level(logging.WARNING), places.engine.session(server.clients) as session:
        session.submit(server.ask("c0"), None)
        read(session.next())  # the port is open
        intrude(places)
    assert line in caplog.text
    assert "refused a message" not in caplog.text
    assert server.version == 0
    assert not server.factors


def test_a_participant_that_lies_is_refused_by_name(places, caplog):
    server = server_of(["c0", "c1", "c2"])
    with caplog.at_level(logging.WARNING), places.engine.session(server.clients) as session:
        session.submit(server.ask("c0"), None)
        read(session.next())
        assert intruded(places, places.kits / "clinic-c", "clinic-c") == "let in\n"
    for objection in ("it is for 'clinic-a'", "it says that it comes from 'clinic-a'",
                      "it is not made of bytes", "nobody waits for a req"):  # fmt: skip
        assert f"refused a message of 'clinic-c': {objection}" in caplog.text
    pvi.fit(server, pvi.Synchronous(), 3, places.engine)
    assert_same(server.posterior, wanted(3).posterior, 1e-12)


# ---- what the engine itself refuses ----


def test_kits_and_clients_must_fit(places, tmp_path):
    server = server_of(["c0", "c1", "c2"])
    with_data = server_of_regression()
    cases = {
        "wanted the kit of a coordinator": (places.kits / "clinic-a", server),
        "holds no startup kit": (tmp_path, server),
        "whose data are theirs": (places.kits / "coordinator", with_data),
    }
    for message, (kit, asked) in cases.items():
        with pytest.raises(InvalidDataError, match=message):
            pvi.fit(asked, engine=engines.NVFlare(kit))
    site = known("c0", 0)
    for message, kit in {
        "wanted the kit of a site": "coordinator",
        "is the kit of 'clinic-b', not of": "clinic-b",
    }.items():
        with pytest.raises(InvalidDataError, match=message):
            pvi.serve(site, engines.NVFlare(places.kits / kit))
    shutil.copytree(places.kits / "clinic-a", tmp_path / "kit")
    (tmp_path / "kit/startup/client.key").unlink()
    with pytest.raises(InvalidDataError, match="certificates are missing"):
        pvi.serve(site, engines.NVFlare(tmp_path / "kit"))


# ---- the page of the docs ----


@pytest.fixture
def page(tmp_path):
    """The files of the page, with certificates, on a port of this machine."""
    shutil.copytree(ROOT / "docs/howto/organisations", tmp_path / "page")
    folder = tmp_path / "page"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    written = (folder / "project.yml").read_text()
    here = written.replace("8002", str(port)).replace("coordinator.example.org", "localhost")
    (folder / "project.yml").write_text(here)
    program = [str(Path(sys.executable).parent / "nvflare"), "provision"]
    command = [*program, "-p", "project.yml", "-w", "workspace"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    for kit in (folder / "workspace/three_clinics/prod_00").iterdir():
        shutil.move(kit, folder / kit.name)
    return folder


def test_the_programs_of_the_page_learn_what_one_process_would(page, monkeypatch):
    monkeypatch.syspath_prepend(str(page))
    agreed = importlib.import_module("agreed")
    shards = {name: patients(n, seed) for seed, (name, n) in enumerate(agreed.PATIENTS.items())}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    clinics = []
    for name, (X, Y) in shards.items():
        rows, titles = np.hstack([X, Y]), "a,b,c,d,label"
        np.savetxt(page / f"{name}.csv", rows, delimiter=",", header=titles, comments="")
        command = [sys.executable, "clinic.py", name, f"{name}.csv"]
        clinics.append(subprocess.Popen(command, cwd=page, env=environment))
    try:
        command = [sys.executable, "coordinate.py"]
        finished = subprocess.run(
            command, cwd=page, env=environment, text=True, capture_output=True
        )
    finally:
        for clinic in clinics:
            clinic.kill()
    assert finished.returncode == 0, finished.stderr
    sites = {name: agreed.site(name) for name in shards}
    server = pvi.Server.load(page / "run.npz", agreed.model.prior(), sites)
    here = pvi.Server(server.prior, pvi.make_clients(agreed.model, shards, agreed.update))
    pvi.fit(here, pvi.Synchronous(), len(server.history))
    assert len(server.history) == 20
    np.testing.assert_allclose(
        server.posterior.precision_mean, here.posterior.precision_mean, rtol=1e-6
    )
