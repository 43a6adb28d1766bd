"""A participant that lies: python -m tests.oracles.intruder KIT NAME ADDRESS.

It connects with its own certificate under a name. Then it sends a question to a site in the name
of the coordinator, and an answer to the coordinator in the name of a site, and an object.
"""

import os
import sys
import time

from nvflare.fuel.f3.cellnet.core_cell import CoreCell, Message
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType

from streaming_gp.engines.nvflare import read_kit


def main(folder, name, address):
    kit = read_kit(folder)
    identities = {"server": kit.coordinator}
    cell = CoreCell(
        name, f"{kit.scheme}://{address}", True, dict(kit.certificates),
        auth_identity_map=identities,
    )  # fmt: skip
    cell.start()
    for _ in range(50):
        if cell.is_cell_connected("server"):
            break
        time.sleep(0.1)
    else:
        end("not let in")
    forged = [
        (Message(None, b"a question"), {MessageHeaderKey.DESTINATION: "clinic-a"}),
        (Message(None, b"an answer"), {MessageHeaderKey.ORIGIN: "clinic-a"}),
        (Message(None, {"an": "object"}), {}),
        (Message(None, b"a question"), {}),
    ]
    endpoint = cell.agents["server"].endpoint
    for message, lies in forged:
        message.add_headers(
            {
                MessageHeaderKey.CHANNEL: "streaming_gp",
                MessageHeaderKey.TOPIC: "question",
                MessageHeaderKey.FROM_CELL: name,
                MessageHeaderKey.TO_CELL: "server",
                MessageHeaderKey.ORIGIN: name,
                MessageHeaderKey.DESTINATION: "server",
                MessageHeaderKey.MSG_TYPE: MessageType.REQ,
                MessageHeaderKey.REQ_ID: "no such request",
                MessageHeaderKey.ROUTE: [(name, time.time())],
                **lies,
            }
        )
        cell._send_to_endpoint(endpoint, message)
    time.sleep(1.0)
    end("let in")


def end(news):
    """At once: the threads of a cell would go on trying to connect."""
    print(news, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
