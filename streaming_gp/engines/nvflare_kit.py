"""What provisioning by NVFlare gives a participant: a name, certificates, an address."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streaming_gp.errors import InvalidDataError

COORDINATOR = "server"
"""What NVFlare calls the coordinator in messages; the name in its certificate is its own."""


@dataclass(frozen=True)
class Kit:
    """A startup kit.

    :param name: The participant's name; that of the coordinator is :data:`COORDINATOR`.
    :param coordinator: The name in the coordinator's certificate; None in its own kit.
    :param scheme: The protocol under the TLS layer, such as "http".
    :param address: Host and port of the coordinator.
    :param certificates: The paths of the certificates and keys, by NVFlare's names for them.
    """

    name: str
    coordinator: str | None
    scheme: str
    address: str
    certificates: Mapping[str, str]

    @property
    def is_coordinators(self) -> bool:
        """Whether it is the kit of the coordinator."""
        return self.coordinator is None


def read_kit(folder: str | os.PathLike[str]) -> Kit:
    """The kit that a folder holds, as ``nvflare provision`` writes it.

    :param folder: The participant's folder, in which there is one called "startup".
    :raises InvalidDataError: if it holds none, or one without mutual TLS.
    """
    startup = Path(folder) / "startup"
    try:
        if (startup / "fed_server.json").exists():
            return _coordinators(startup, json.loads((startup / "fed_server.json").read_text()))
        return _sites(startup, json.loads((startup / "fed_client.json").read_text()))
    except InvalidDataError:
        raise
    except Exception as error:  # a file may hold anything
        raise InvalidDataError(f"{folder} holds no startup kit of NVFlare: {error!r}") from error


def _coordinators(startup: Path, written: dict[str, Any]) -> Kit:
    (server,) = written["servers"]
    paths = _paths(startup, server, "server")
    service = server["service"]
    return Kit(COORDINATOR, None, service["scheme"], service["target"], paths)


def _sites(startup: Path, written: dict[str, Any]) -> Kit:
    (server,), client = written["servers"], written["client"]
    paths = _paths(startup, client, "client")
    service = server["service"]
    return Kit(client["fqsn"], server["identity"], service["scheme"], service["target"], paths)


def _paths(startup: Path, written: dict[str, Any], role: str) -> dict[str, str]:
    security = written.get("connection_security", "mtls")
    if security != "mtls":
        raise InvalidDataError(f"wanted a kit with mutual TLS, got {security!r} in {startup}")
    files = {
        "ca_cert": "ssl_root_cert",
        f"{role}_cert": "ssl_cert",
        f"{role}_key": "ssl_private_key",
    }
    paths = {name: startup / written[key] for name, key in files.items()}
    missing = [str(path) for path in paths.values() if not path.is_file()]
    if missing:
        raise InvalidDataError(f"certificates are missing: {missing}")
    return {"connection_security": "mtls"} | {name: str(path) for name, path in paths.items()}
