"""Three organisations on this machine: certificates, processes, and a network that can be cut."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from experiments.measured.organisations_site import PLACES

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "127.0.0.1"


def provision(folder: Path) -> Path:
    """Certificates for a coordinator and three places, by ``nvflare provision``.

    :returns: the folder with a startup kit for each.
    """
    participants = [
        {"name": "coordinator", "type": "server", "org": "coordinator", "fed_learn_port": 8002,
         "default_host": "localhost", "host_names": [LOOPBACK]},
        *({"name": place, "type": "client", "org": place.replace("-", "_")} for place in PLACES),
        {"name": "admin@example.org", "type": "admin", "org": "coordinator",
         "role": "project_admin"},
    ]  # fmt: skip
    made = "nvflare.lighter.impl"
    project = {
        "api_version": 3,
        "name": "three_organisations",
        "participants": participants,
        "builders": [
            {"path": f"{made}.workspace.WorkspaceBuilder"},
            {"path": f"{made}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": f"{made}.cert.CertBuilder"},
            {"path": f"{made}.signature.SignatureBuilder"},
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "project.yml").write_text(json.dumps(project))
    program = Path(sys.executable).parent / "nvflare"
    command = [str(program), "provision", "-p", "project.yml", "-w", "workspace"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "workspace" / "three_organisations" / "prod_00"


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class Wire:
    """All connections between sites and coordinator go through here; what they carry is kept."""

    def __init__(self, coordinator_port: int) -> None:
        self.recorded = bytearray()
        self._target = coordinator_port
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_cut = threading.Event()
        self._listener = socket.create_server((LOOPBACK, 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and let none in."""
        self._is_cut.set()
        for pair in self._pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def mend(self) -> None:
        """Let connections in again."""
        self._is_cut.clear()

    def close(self) -> None:
        """Break all connections for good."""
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._is_cut.is_set():
                    raise ConnectionRefusedError
                far = socket.create_connection((LOOPBACK, self._target), timeout=5.0)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with near, far, suppress(OSError, ValueError):
            while True:
                for end in select.select([near, far], [], [])[0]:
                    content = end.recv(1 << 16)
                    if not content:
                        return
                    self.recorded += content
                    other[end].sendall(content)


class World:
    """Processes of a coordinator and its sites, which can be killed and started again."""

    def __init__(self, folder: Path, kits: Path, program: str, options: list[str]) -> None:
        self._program, self._options = program, options
        self.folder, self.kits, self.port = folder, kits, free_port()
        self.wire = Wire(self.port)
        self._running: dict[str, subprocess.Popen[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def checkpoint(self) -> Path:
        """The coordinator's file."""
        return self.folder / "run.npz"

    def log_of(self, name: str) -> Path:
        """What a process has written to its standard error."""
        return self.folder / f"{name}.log"

    def work_of(self, place: str) -> Path:
        """When a site has worked."""
        return self.folder / f"{place}.work"

    def begin_site(self, place: str) -> None:
        """Start a place's program; its connections go through the wire."""
        address = f"{LOOPBACK}:{self.wire.port}"
        kit = str(self.kits / place)
        self._begin(place, self._program, kit, "--address", address, *self._options,
                    "--folder", str(self.folder))  # fmt: skip

    def begin_coordinator(self, problem: str, *options: str) -> subprocess.Popen[str]:
        """Start the coordinator's program, which goes on from its file if there is one."""
        kept = ["--checkpoint", str(self.checkpoint), "--address", f"{LOOPBACK}:{self.port}"]
        kit = str(self.kits / "coordinator")
        return self._begin(
            "coordinator", "organisations_coordinator", kit, problem, *kept, *options
        )

    def kill(self, name: str) -> None:
        """End a process as a power cut would."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def end(self) -> None:
        """End all of them."""
        for name in list(self._running):
            self.kill(name)
        self.wire.close()

    def _begin(self, name: str, program: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
        environment |= {"TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with open(self.log_of(name), "a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"experiments.measured.{program}", *arguments],
                stdout=subprocess.PIPE if name == "coordinator" else log,
                stderr=log,
                text=True,
                env=environment,
            )
        self._running[name] = process
        return process


@contextmanager
def world(
    folder: Path, kits: Path, program: str = "organisations_site", options: Sequence[str] = ()
) -> Iterator[World]:
    """A world with all places at work, for the time of a ``with`` block.

    :param program: The program of every place, a module of this package.
    :param options: What to call it with besides its kit, an address and a folder.
    """
    found = World(folder, kits, program, list(options))
    try:
        for place in PLACES:
            found.begin_site(place)
        yield found
    finally:
        found.end()
