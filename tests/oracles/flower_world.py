"""Flower on this machine: a SuperLink and SuperNodes, started by the scripts of the docs."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/howto/organisations_flower"
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
}


class World:
    """Processes in one folder; the ports of the scripts are replaced by free ones."""

    def __init__(self, folder, places):
        self.folder, self.running = folder, {}
        self.ports = {place: free_port() for place in ("link", *places)}
        for script in PAGE.iterdir():
            text = script.read_text().replace("coordinator.example.org", "localhost")
            text = text.replace("0.0.0.0", "127.0.0.1").replace("8000", str(self.ports["link"]))
            (folder / script.name).write_text(text)
        self.do("certificates.sh", "localhost")
        self.begin("link", "link.sh")
        self.wait_for("link", "Uvicorn running")
        for place in places:
            self.do("keys.sh", place)
            self.do("register.sh", place)
            self.begin_node(place)

    def address(self, place):
        return f"127.0.0.1:{self.ports[place]}"

    def file(self, name):
        return str(self.folder / name)

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def do(self, script, *arguments):
        command = ["sh", script, *arguments]
        subprocess.run(command, cwd=self.folder, env=ENVIRONMENT, check=True, capture_output=True)

    def begin_node(self, place):
        script = f"node-{place}.sh"
        text = (self.folder / "node.sh").read_text()
        (self.folder / script).write_text(text.replace("9094", str(self.ports[place])))
        self.begin(f"node of {place}", script, place)

    def begin(self, name, script, *arguments):
        return self.run(name, ["sh", script, *arguments])

    def run(self, name, command):
        with open(self.folder / f"{name}.log", "a") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=self.folder, env=ENVIRONMENT, stdout=log, stderr=log
            )
        return self.running[name]

    def wait_for(self, name, line, seconds=120):
        end = time.monotonic() + seconds
        while line not in self.log(name):
            assert time.monotonic() < end, self.log(name)
            time.sleep(0.1)

    def end(self):
        for process in self.running.values():
            process.send_signal(signal.SIGKILL)
            process.wait()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def with_agreed(folder):
    """The page's programs use the model of the page on NVFlare."""
    shutil.copy(ROOT / "docs/howto/organisations/agreed.py", folder)
