"""The coordinator's end of Flower: a run of its own, in which it sends messages to nodes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from streaming_gp.engines import flower_link as links
from streaming_gp.engines.flower_sums import Sum, summed
from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi.privacy.sums import SummedChanges

PATIENCE = 30.0
"""The seconds in which a SuperLink gives a run to whoever has started it."""
_PROJECT = b"""\
[project]
name = "streaming-gp"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "none"
[tool.flwr.app.components]
serverapp = "none:none"
clientapp = "none:none"
"""
"""Flower wants every run to have an app. This one has no code, and nobody loads it."""


@contextmanager
def begun(link: links.Link) -> Iterator[Run]:
    """A run for the time of a ``with`` block.

    :raises InvalidDataError: if the SuperLink cannot be reached, does not take the secret, or gives
        runs to another program.
    """
    import httpx
    from flwr.superlink.grid import HttpGrid

    try:
        token = _token_of_a_run(link)
    except httpx.HTTPError as error:
        message = f"the SuperLink at {link.address} gives no run: {error}"
        raise InvalidDataError(message) from error
    grid = HttpGrid(link.address, link.certificate is None, link.certificate, token=token)
    grid._retry_invoker = None  # it would end this process where a run is over
    client = grid._runtime_client
    try:
        with links.alive(client):
            grid.set_run(_input_of(client))
            yield Run(grid)
        links.finish(client)
    finally:
        grid.close()


class Run:
    """Messages to nodes, and their replies.

    :param grid: Flower's connection to them.
    """

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def nodes(self) -> dict[bytes, int]:
        """The numbers of the nodes that are there, by their public keys."""
        return {bytes(node.public_key): node.node_id for node in self._grid.get_nodes()}

    def send(self, node: int, topic: str, content: bytes) -> str | None:
        """Send a message; the identity of it, or None if it could not be sent."""
        from flwr.app import Message

        message = Message(links.record_of(topic, content), node, "query")
        (identity,) = self._grid.push_messages([message]) or [None]
        return identity or None

    def replies(self, nodes: Mapping[str, int]) -> dict[str, tuple[bytes, str] | None]:
        """Content and objection of replies that have come, by the identity of the message.

        It is None where Flower says that there will be none, as a process has ended.

        :param nodes: The nodes that are to reply, by the identity of the message.
        """
        found: dict[str, tuple[bytes, str] | None] = {}
        for message in self._grid.pull_messages(list(nodes)) if nodes else []:
            identity = message.metadata.reply_to_message_id
            if message.has_error():
                links.LOG.warning("no reply: %s", message.error.reason)
                found[identity] = None
            elif message.metadata.src_node_id == nodes.get(identity):
                found[identity] = links.content_and_objection(message)
        return found

    def summed(
        self, questions: Mapping[int, bytes], rule: SummedChanges, deadline: float | None
    ) -> Sum:
        """Ask nodes for their parts of a sum."""
        return summed(self._grid, questions, rule, deadline)


def _token_of_a_run(link: links.Link) -> str:
    from flwr.supercore.constant import TaskType

    begin, run = time.monotonic(), _started(link)
    with link.tasks() as tasks:
        while time.monotonic() < begin + PATIENCE:
            task = links.acquired(tasks, TaskType.SERVER_APP)
            if task is not None and task.task.run_id == run:
                return str(task.token)
            time.sleep(0.1)
    raise InvalidDataError(
        f"the SuperLink at {link.address} gave the run to another program: start it with "
        "--isolation process, and no SuperExec"
    )


def _started(link: links.Link) -> int:
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.fab import Fab

    content, _ = build_fab_from_files({"pyproject.toml": _PROJECT})
    app = Fab(hashlib.sha256(content).hexdigest(), content, {})
    client = link.client(ControlHttpClient)
    try:
        return int(client.StartRun(StartRunRequest(fab=fab_to_proto(app))).run_id)
    finally:
        client.close()


def _input_of(client: Any) -> Any:
    """The run of a task, which Flower wants to know of in this process."""
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest
    from flwr.supercore.task_identity import TaskIdentity

    found = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id = found.task_id, found.run.run_id
    TaskIdentity.node_id = found.context.node_id
    return run_from_proto(found.run)
