"""Clients in other organisations, on the connections of Flower: the engine, and the ends of the
coordinator and of a site, which takes messages from a SuperNode in a process that stays.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from streaming_gp.engines.remote import (
    DEADLINE,
    QUESTION,
    RESULT,
    RemoteSession,
    keep,
    place_of,
    refuse_missed,
)
from streaming_gp.errors import InvalidDataError, NoAnswerError, StreamingGPError
from streaming_gp.inputs import Positive, missing_extra, typed
from streaming_gp.pvi.client import Client, Clients, Site
from streaming_gp.pvi.desk import Desk
from streaming_gp.pvi.privacy.sums import (
    MODULUS,
    Shares,
    SummedChanges,
    change_between,
    rule_of_sums,
)
from streaming_gp.pvi.task import (
    Delivery,
    Failure,
    LocalTask,
    RefusedQuestionError,
    decode_answer,
    decode_task,
    describe,
    encode_task,
    failure_of,
)

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when Flower is imported

PathLike = str | os.PathLike[str]
LOG = logging.getLogger("streaming_gp.flower")
BEAT = 15.0
"""The seconds after which a task is said to be alive; Flower gives up after a minute without."""
PAUSE = 0.1
"""The seconds until a SuperLink or SuperNode is asked again whether a message has come."""
ABSENCE = 2.0
"""The seconds until a SuperNode that was not there is looked for again."""
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_RECORD, _TOPIC, _CONTENT, _OBJECTION = "streaming_gp", "topic", "content", "objection"
_HERE = ("127.0.0.1", "localhost", "[::1]")
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


@typed
@dataclass(frozen=True)
class Flower:
    """Sites beside Flower's SuperNodes, and a coordinator beside its SuperLink.

    Flower carries messages between them, encrypted, and knows each node by its key. Its own way is
    to start a process for every message, with code that the coordinator has sent. Here nothing is
    sent but messages of this package, as bytes: SuperLink and SuperNodes are started with
    ``--isolation process`` and a secret, and this package, in a process that stays, asks them for
    what there is to do. The coordinator runs :func:`~streaming_gp.pvi.fit`; each site runs
    :func:`~streaming_gp.pvi.serve`.

    A question is put again where Flower says that it is lost, until it is answered or overdue.
    Sites whose rule is ``privacy.SummedChanges`` are asked by Flower's SecAgg+, which lets the
    coordinator see nothing but the sum of what they say.

    :param address: The host and port of the SuperLink, for a coordinator, or of the SuperNode on
        the same machine, for a site: where Flower has its runtime interface.
    :param secret: The file with the secret that it was started with.
    :param certificate: The file with the certificate that its own is verified by. None for no TLS,
        which is for a SuperNode on the same machine.
    :param keys: For a coordinator: the file with the public key of each place's SuperNode, by the
        name of the place. Who has another key is not asked.
    :param deadline: The seconds for an answer; None waits for ever.
    :param inbox: The file that a site keeps the newest result in that the coordinator has published
        (``publish``); None refuses them.
    :raises InvalidDataError: if the deadline is not positive.
    """

    address: str
    secret: PathLike
    certificate: PathLike | None = None
    keys: Mapping[str, PathLike] = field(default_factory=dict)
    deadline: Positive | None = DEADLINE
    inbox: PathLike | None = None

    # ---- the coordinator's end ----

    @contextmanager
    def session(self, clients: Clients) -> Iterator[FlowerSession | FlowerSumSession]:
        """A run of Flower for the time of a ``with`` block.

        :raises InvalidDataError: if Flower is not installed, a file is missing, the SuperLink gives
            no run, a place has no key, or a client is no ``Site``: no data are sent. Also if sites
            that answer within sums do not agree on the terms, or two of them are at one place.
        """
        link, rule = self._link(), rule_of_sums(clients)
        keys = {name: self._key_of(place_of(client)) for name, client in clients.items()}
        if rule is not None and len(set(keys.values())) < len(keys):
            raise InvalidDataError(f"wanted one site at each place in a sum, got {list(clients)}")
        with _run(link) as grid:
            if rule is None:
                yield FlowerSession(grid, clients, self._key_of, self.deadline)
            else:
                yield FlowerSumSession(grid, clients, keys, self.deadline, rule)

    def publish(self, places: Iterable[str], content: bytes) -> None:
        """Send a result to places, such as the bytes of a file that ``gp.export`` has written.

        :param places: Their names.
        :param content: The bytes that each of them finds in its inbox.
        :raises NoAnswerError: if places refuse it, or are not there by the deadline; says which.
        :raises InvalidDataError: as :meth:`session`.
        """
        link, names = self._link(), list(places)
        for name in names:
            self._key_of(name)
        with _run(link) as grid:
            session = FlowerSession(grid, {}, self._key_of, self.deadline)
            for name in names:
                session.send(name, name, RESULT, content)
            replies = [session.reply() for _ in names]
        refuse_missed({name: objection for name, _, objection in replies if objection})

    def _key_of(self, place: str) -> bytes:
        if place not in self.keys:
            raise InvalidDataError(f"wanted a key of each place, got none of {place!r}")
        return _public_key(self.keys[place])

    # ---- a site's end ----

    @contextmanager
    def open(self, desk: Desk) -> Iterator[None]:
        """Answer what comes to the SuperNode, for the time of a ``with`` block.

        :raises InvalidDataError: if Flower is not installed, or a file is missing.
        """
        with at_work(self._link(), desk, self.inbox):
            yield

    def _link(self) -> Link:
        certificate = None if self.certificate is None else _read(self.certificate)
        return Link(self.address, _read(self.secret), certificate)


def _read(path: PathLike) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidDataError(f"wanted a file, got {path!r}: {error}") from error


def _public_key(path: PathLike) -> bytes:
    """A node's public key as Flower names it, from a file as ``ssh-keygen`` writes it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    try:
        key = load_ssh_public_key(Path(path).read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise InvalidDataError(f"{path} holds no public key: {error}") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise InvalidDataError(f"wanted an elliptic curve's public key, got {path}")
    return bytes(public_key_to_bytes(key))


# ---- a run of Flower ----


@contextmanager
def _run(link: Link) -> Iterator[Any]:
    """Flower's grid, for the time of a run."""
    import httpx
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest
    from flwr.supercore.task_identity import TaskIdentity
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
        with alive(client):
            task = client.PullTaskInput(PullTaskInputRequest())
            # Flower wants to know of it in this process
            TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, task.run.run_id
            TaskIdentity.node_id = task.context.node_id
            grid.set_run(run_from_proto(task.run))
            yield grid
        finish(client)
    finally:
        grid.close()


def _token_of_a_run(link: Link) -> str:
    from flwr.cli.build import build_fab_from_files
    from flwr.common.serde import fab_to_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.fab import Fab

    begin = time.monotonic()
    content, _ = build_fab_from_files({"pyproject.toml": _PROJECT})
    app = Fab(hashlib.sha256(content).hexdigest(), content, {})
    client = link.client(ControlHttpClient)
    try:
        run = int(client.StartRun(StartRunRequest(fab=fab_to_proto(app))).run_id)
    finally:
        client.close()
    with link.tasks() as tasks:
        while time.monotonic() < begin + PATIENCE:
            task = acquire(tasks, TaskType.SERVER_APP)
            if task is not None and task.task.run_id == run:
                return str(task.token)
            time.sleep(PAUSE)
    raise InvalidDataError(
        f"the SuperLink at {link.address} gave the run to another program: start it with "
        "--isolation process, and no SuperExec"
    )


@contextmanager
def _patient() -> Iterator[None]:
    """A SuperLink that is not there may come again; one that has given up the run does not."""
    import httpx

    try:
        yield
    except httpx.TransportError as error:
        LOG.warning("the SuperLink is not there: %s", error)
        time.sleep(PAUSE)
    except httpx.HTTPStatusError as error:
        message = f"the SuperLink does not go on with this run, begin another: {error}"
        raise NoAnswerError(message) from error


def _nodes(grid: Any) -> dict[bytes, int]:
    """The numbers of the nodes that are there, by their public keys."""
    return {bytes(node.public_key): node.node_id for node in grid.get_nodes()}


# ---- questions that are answered one by one ----


@dataclass(eq=False)
class _Parcel:
    """Something to be sent until there is a reply."""

    key: bytes  # the public key of the node that it is for
    topic: str
    content: bytes
    since: float
    message: str | None = None  # the identity of the message that is on its way
    node: int = 0  # to which it is on its way


class FlowerSession(RemoteSession):
    """Parcels on their way, by the name of a client, or of a place.

    :param grid: Flower's connection to nodes.
    :param clients: The clients by name.
    :param key_of: Gives the public key of the node of a place.
    :param deadline: The seconds for an answer; None waits for ever.
    """

    def __init__(
        self,
        grid: Any,
        clients: Clients,
        key_of: Callable[[str], bytes],
        deadline: float | None,
    ) -> None:
        super().__init__(clients, deadline)
        self._grid, self._key_of = grid, key_of
        self._parcels: dict[str, _Parcel] = {}
        self._limits: dict[str, int] = {}
        self._arrived: deque[tuple[str, bytes, str]] = deque()

    def _put(self, task: LocalTask, client: Client | Site, duration: float | None) -> None:
        self.send(task.client_id, place_of(client), QUESTION, encode_task(task))
        self._limits[task.client_id] = task.largest_answer

    def _wait(self) -> Delivery:
        name, content, objection = self.reply()
        if not objection and len(content) > self._limits[name]:
            objection = f"its answer is too large: {len(content)} bytes"
        return Delivery(name, None, objection) if objection else Delivery(name, content)

    def send(self, name: str, place: str, topic: str, content: bytes) -> None:
        """Send something to a place until there is a reply."""
        self._parcels[name] = _Parcel(self._key_of(place), topic, content, self.now)

    def reply(self) -> tuple[str, bytes, str]:
        """Wait for whatever comes next: a name, the bytes of a reply, and why there are none."""
        while not self._arrived:
            with _patient():
                self._dispatch()
                self._collect()
            names = {name for name, *_ in self._arrived}
            for name, parcel in self._parcels.items():
                if name not in names and self.now > parcel.since + self._deadline:
                    self._arrived.append((name, b"", f"no answer within {self._deadline:g} s"))
            if not self._arrived:
                time.sleep(PAUSE)
        reply = self._arrived.popleft()
        del self._parcels[reply[0]]
        return reply

    def _dispatch(self) -> None:
        """Send parcels that are not on their way, to nodes that are there."""
        from flwr.app import Message

        waiting = [one for one in self._parcels.values() if one.message is None]
        nodes = _nodes(self._grid) if waiting else {}
        for parcel in waiting:
            if parcel.key in nodes:
                parcel.node = nodes[parcel.key]
                record = _record({_TOPIC: parcel.topic, _CONTENT: parcel.content})
                message = Message(record, parcel.node, "query")
                (identity,) = self._grid.push_messages([message]) or [None]
                parcel.message = identity or None

    def _collect(self) -> None:
        """Take in replies. A parcel is to be sent again where Flower says that there will be none,
        as a process has ended.
        """
        sent = {p.message: (name, p) for name, p in self._parcels.items() if p.message is not None}
        replies = self._grid.pull_messages(list(sent)) if sent else []
        for identity, reply in {one.metadata.reply_to_message_id: one for one in replies}.items():
            name, parcel = sent[identity]
            if reply.has_error():
                LOG.warning("no reply: %s", reply.error.reason)
                parcel.message = None
            elif reply.metadata.src_node_id == parcel.node:
                self._arrived.append((name, *content_and_objection(reply)))


# ---- questions that are answered within a sum, by SecAgg+ ----


class FlowerSumSession(RemoteSession):
    """Questions wait until an answer is wanted; then all of them are put, and summed.

    :param grid: Flower's connection to nodes.
    :param clients: The clients by name.
    :param keys: The public key of the node of each site that is asked: of those that were there
        when the session began.
    :param deadline: The seconds in which nodes have to be there, and for each of the four steps of
        a sum; None waits for ever.
    :param rule: The terms of the sums.
    """

    def __init__(
        self,
        grid: Any,
        clients: Clients,
        keys: Mapping[str, bytes],
        deadline: float | None,
        rule: SummedChanges,
    ) -> None:
        super().__init__(clients, deadline)
        self._grid, self._keys = grid, keys
        self._rule, self._shares = rule, Shares(clients)
        self._tasks: dict[str, LocalTask] = {}
        self._arrived: deque[Delivery] = deque()

    def _put(self, task: LocalTask, client: Client | Site, duration: float | None) -> None:
        self._shares.require_whole(task)
        if task.client_id in self._keys:
            self._tasks[task.client_id] = task
        else:
            reason = "it joined after the sums of this run had begun"
            self._arrived.append(Delivery(task.client_id, None, reason))

    def _wait(self) -> Delivery:
        while not self._arrived:
            with _patient():
                self._arrived.extend(self._deliveries())
                self._tasks = {}
        return self._arrived.popleft()

    def _deliveries(self) -> list[Delivery]:
        """Of all open questions, in a sum over the nodes that are there to its end."""
        nodes = self._present()
        reasons = dict.fromkeys(self._tasks.keys() - nodes.keys(), "its SuperNode is not there")
        while len(nodes) >= self._rule.least:
            questions = {node: encode_task(self._tasks[name]) for name, node in nodes.items()}
            try:
                timeout = self._deadline if math.isfinite(self._deadline) else None
                mean, spent_by, why = _summed(self._grid, questions, self._rule, timeout)
            except _LostError as error:
                lost = {name: node for name, node in nodes.items() if node in error.reasons}
                reasons |= {name: error.reasons[node] for name, node in lost.items()}
                nodes = {name: node for name, node in nodes.items() if name not in lost}
                continue
            lost = {name: node for name, node in nodes.items() if node in why}
            reasons |= {name: why[node] for name, node in lost.items()}
            if not mean:
                return self._failures(reasons, len(nodes.keys() - lost.keys()))
            spent = {name: spent_by[node] for name, node in nodes.items() if node in spent_by}
            others = self._tasks.keys() - spent.keys()
            tasks = [self._tasks[name] for name in spent]
            failures = [Delivery(name, None, reasons[name]) for name in others]
            return [*failures, *self._shares.deliveries(tasks, mean, spent)]
        return self._failures(reasons, len(nodes))

    def _present(self) -> dict[str, int]:
        """The nodes of the sites that are asked, by name: all, or those that are there in time."""
        begin = self.now
        while True:
            there = _nodes(self._grid)
            nodes = {
                name: there[self._keys[name]] for name in self._tasks if self._keys[name] in there
            }
            is_late = self.now > begin + self._deadline
            if len(nodes) == len(self._tasks) or is_late:
                return nodes
            time.sleep(PAUSE)

    def _failures(self, reasons: Mapping[str, str], number: int) -> list[Delivery]:
        rest = f"there is no sum of {number} sites: it takes at least {self._rule.least}"
        return [Delivery(name, None, reasons.get(name, rest)) for name in self._tasks]


class _LostError(Exception):
    """Nodes were lost before they had anything to add: Flower's sum has to begin without them."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(str(reasons))
        self.reasons = reasons


def _summed(
    grid: Any, questions: Mapping[int, bytes], rule: SummedChanges, deadline: float | None
) -> tuple[list[np.ndarray], Mapping[int, Mapping[str, Any]], Mapping[int, str]]:
    """Ask nodes for their parts of a sum.

    :param grid: Flower's connection to them.
    :param questions: The question to each node, by its number.
    :param rule: The limits that all have agreed on.
    :param deadline: The seconds for each of the four steps; None waits for ever.
    :returns: the mean of their changes, empty if there is no sum; the report of its privacy of each
        node in it; and why nodes were lost on the way.
    """
    import httpx
    from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.server import LegacyContext
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

    workflow = SecAggPlusWorkflow(
        num_shares=1.0,  # of the nodes: each pair of them has a mask
        reconstruction_threshold=rule.least,
        max_weight=1.0,
        clipping_range=rule.limit,
        quantization_range=rule.levels,
        modulus_range=MODULUS,
        timeout=deadline,
    )
    watched, strategy = _WatchedGrid(grid), _OneRound(questions)
    records = {
        MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: 1}),
        MAIN_PARAMS_RECORD: ArrayRecord(),
    }
    bare = Context(0, 0, {}, RecordDict(records), {})
    try:
        workflow(watched, LegacyContext(bare, strategy=strategy, client_manager=strategy))
    except (httpx.HTTPError, _LostError):
        raise
    except Exception as error:  # a node may send anything, and then there is no sum
        LOG.warning("there is no sum: %s", describe(error))
    return strategy.arrays, strategy.spent, watched.reasons


class _WatchedGrid:
    """A grid that remembers why nodes are lost, and says at once if the sum cannot bear it.

    Flower's own waits three seconds between looks, and its workflow goes on to the end, and fails
    there, if a node was lost that has handed out no shares of its keys.
    """

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self.reasons: dict[int, str] = {}

    def send_and_receive(
        self, messages: Iterable[Any], *, timeout: float | None = None
    ) -> list[Any]:
        """The replies that come in time."""
        from flwr.common.secure_aggregation import secaggplus_constants as constants

        sent = list(messages)
        numbers = zip(self._grid.push_messages(sent), sent, strict=True)
        nodes = {number: one.metadata.dst_node_id for number, one in numbers if number}
        replies = self._replies(set(nodes), timeout)
        here = {nodes[one.metadata.reply_to_message_id] for one in replies if not one.has_error()}
        for reply in replies:
            if reply.has_error():
                node = nodes[reply.metadata.reply_to_message_id]
                self.reasons[node] = f"{reply.error.reason}"[:1000]
        lost = {one.metadata.dst_node_id for one in sent} - here
        self.reasons = dict.fromkeys(lost, f"no answer within {timeout} s") | self.reasons
        configs = sent[0].content.config_records[constants.RECORD_KEY_CONFIGS]
        without_shares = (constants.Stage.SETUP, constants.Stage.SHARE_KEYS)
        if lost and configs[constants.Key.STAGE] in without_shares:
            raise _LostError({node: self.reasons[node] for node in lost})
        return replies

    def _replies(self, waiting: set[str], timeout: float | None) -> list[Any]:
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        replies: list[Any] = []
        while waiting and time.monotonic() < end:
            replies += self._grid.pull_messages(list(waiting))
            waiting = waiting - {reply.metadata.reply_to_message_id for reply in replies}
            time.sleep(PAUSE)
        return replies


class _OneRound:
    """The strategy of the workflow, and its client manager: the questions, and the results."""

    def __init__(self, questions: Mapping[int, bytes]) -> None:
        self._questions = questions
        self.arrays: list[np.ndarray] = []
        self.spent: dict[int, Mapping[str, Any]] = {}

    def num_available(self) -> int:
        """The number of nodes."""
        return len(self._questions)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        """The question to each node."""
        from flwr.common import FitIns, Parameters

        return [
            (SimpleNamespace(node_id=node), FitIns(Parameters([], ""), {QUESTION: question}))
            for node, question in self._questions.items()
        ]

    def aggregate_fit(
        self, server_round: int, results: list[Any], failures: list[Any]
    ) -> tuple[None, dict[str, Any]]:
        """All that comes has the mean over all nodes in the place of its own arrays."""
        from flwr.common import parameters_to_ndarrays

        for proxy, fit in results:
            self.arrays = parameters_to_ndarrays(fit.parameters)
            self.spent[proxy.node_id] = dict(fit.metrics)
        for failure in failures:
            LOG.warning("not in the sum: %s", failure)
        return None, {}


# ---- the runtime interface ----


@dataclass(frozen=True)
class Link:
    """The runtime interface of a SuperLink or a SuperNode, for whoever knows its secret.

    :param address: Its host and port.
    :param secret: The secret that it was started with, by which tasks are given out.
    :param certificate: The certificate that its own is verified by; None for a connection without
        TLS, which stays on this machine.
    :raises InvalidDataError: if Flower is not installed, or there is no TLS to another machine.
    """

    address: str
    secret: bytes
    certificate: bytes | None

    def __post_init__(self) -> None:
        try:
            import flwr.app  # noqa: F401
        except ImportError as error:
            raise missing_extra("the Flower engine", "Flower", "flower") from error
        if self.certificate is None and self.address.rpartition(":")[0] not in _HERE:
            raise InvalidDataError(f"wanted a certificate for {self.address!r}, got None")

    def client(self, kind: Any, *interceptors: Any) -> Any:
        """A client of Flower's, which does not try again by itself."""
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        return kind.from_server_address(
            self.address,
            self.certificate is None,
            self.certificate,
            [RuntimeVersionHttpInterceptor(component_name="streaming_gp"), *interceptors],
        )

    def runtime(self, *interceptors: Any) -> Any:
        """A client of the runtime interface."""
        from flwr.supercore.runtime import RuntimeHttpClient

        return self.client(RuntimeHttpClient, *interceptors)

    @contextmanager
    def tasks(self) -> Iterator[Any]:
        """A client that is given tasks."""
        from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

        signs = SuperExecAuthHttpInterceptor(
            master_secret=self.secret, protected_methods=frozenset({_ACQUIRE})
        )
        client = self.runtime(signs)
        try:
            yield client
        finally:
            client.close()


def acquire(tasks: Any, kind: str) -> Any | None:
    """A task that nobody else has, with the token to answer it by; None if there is none."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    task = tasks.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    return task if task.token else None


@contextmanager
def alive(client: Any) -> Iterator[None]:
    """Say now and then that a task is being worked on, for the time of a ``with`` block."""
    import httpx
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            with suppress(httpx.HTTPError):
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def finish(client: Any, context: Any = None) -> None:
    """Say that a task is done."""
    from flwr.common.constant import SubStatus
    from flwr.common.serde import context_to_proto
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest

    proto = None if context is None else context_to_proto(context)
    client.PushTaskOutput(PushTaskOutputRequest(context=proto, sub_status=SubStatus.COMPLETED))


# ---- messages of plain bytes ----


def content_and_objection(message: Any) -> tuple[bytes, str]:
    """A place's reply: bytes, or why not. Anything else counts as an objection."""
    written = _written(message)
    content, objection = written.get(_CONTENT), written.get(_OBJECTION)
    if not (isinstance(content, bytes) and isinstance(objection, str)):
        return b"", "what it answered is no message"
    return content, objection[:1000]


def _record(written: dict[str, Any]) -> Any:
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({_RECORD: ConfigRecord(written)})


def _written(message: Any) -> dict[str, Any]:
    """The one record of a message; nothing if it has none."""
    try:
        return dict(message.content.config_records[_RECORD])
    except (KeyError, ValueError):
        return {}


# ---- a site at work ----


@contextmanager
def at_work(link: Link, desk: Desk, inbox: PathLike | None) -> Iterator[None]:
    """Answer messages, one after another, for the time of a ``with`` block.

    :param link: That of the SuperNode.
    :param desk: Where questions are put, and answers come from.
    :param inbox: The file for results, if they are wanted.
    """
    over, place = threading.Event(), _Place(link, desk, inbox)
    threading.Thread(target=place.work, args=(over,), daemon=True).start()
    try:
        yield
    finally:
        over.set()


class _Place:
    def __init__(self, link: Link, desk: Desk, inbox: PathLike | None) -> None:
        self._link, self._desk, self._inbox = link, desk, inbox

    def work(self, over: threading.Event) -> None:
        """Answer messages until it is over; SuperNodes may come and go."""
        import httpx

        while not over.is_set():
            try:
                with self._link.tasks() as tasks:
                    while not over.is_set():
                        if not self._answer_one(tasks):
                            over.wait(PAUSE)
            except httpx.HTTPError as error:
                LOG.warning("the SuperNode at %s: %s", self._link.address, error)
                over.wait(ABSENCE)

    def _answer_one(self, tasks: Any) -> bool:
        """Whether there was a message to answer."""
        from flwr.supercore.constant import TaskType
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
        from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

        task = acquire(tasks, TaskType.CLIENT_APP)
        if task is None:
            return False
        client = self._link.runtime(RuntimeTokenHttpInterceptor(task.token))
        try:
            with alive(client):
                message, context, *_ = pull_task_input(client)
                push_message(client, self._reply(message, context), context)
                finish(client, context)
        finally:
            client.close()
        return True

    def _reply(self, message: Any, context: Any) -> Any:
        from flwr.app import Message, MessageType

        if message.metadata.message_type == MessageType.TRAIN:
            return masked_reply(self._desk, message, context)
        content, objection = b"", ""
        try:
            content = self._content(message)
        except (StreamingGPError, OSError) as error:
            objection = f"it refused the message: {failure_of(error, 'this place').reason}"
        return Message(_record({_CONTENT: content, _OBJECTION: objection}), reply_to=message)

    def _content(self, message: Any) -> bytes:
        """The bytes of the reply."""
        written = _written(message)
        topic, content = written.get(_TOPIC), written.get(_CONTENT)
        if not (isinstance(topic, str) and isinstance(content, bytes)):
            raise RefusedQuestionError("NoMessage")
        if topic == RESULT:
            keep(content, self._inbox)
            return b""
        if topic != QUESTION:
            raise RefusedQuestionError("NoMessage", f"of topic {topic!r}")
        return _answer_of(self._desk, self._desk.put(content))


def _answer_of(desk: Desk, nonce: str) -> bytes:
    while (answer := desk.answer(nonce, BEAT)) is None:
        pass
    return answer


# ---- a site in a sum, by SecAgg+ ----


def masked_reply(desk: Desk, message: Any, context: Any) -> Any:
    """A site's part in one of the four steps of a sum: keys, shares, masked numbers, shares.

    :param desk: Where the question is put, and the answer comes from.
    :param message: Flower's.
    :param context: Flower's, which has the keys of this sum.
    """
    from flwr.app import Error, Message
    from flwr.client.mod import secaggplus_mod
    from flwr.common.constant import ErrorCode

    try:
        return secaggplus_mod(message, context, partial(_change, desk))
    except Exception as error:  # a coordinator may send anything
        reason = failure_of(error, "this place").reason
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def _change(desk: Desk, message: Any, context: Any) -> Any:
    """The site's change, as Flower wants it before it is masked."""
    from flwr.app import Message
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common import recorddict_compat as compat

    question = compat.recorddict_to_fitins(message.content, keep_input=True).config[QUESTION]
    task = decode_task(question)
    nonce = desk.put(question, in_sum=True)
    rule: Any = desk.sites[task.client_id].update
    _refuse_other_terms(rule, context)
    answer = decode_answer(_answer_of(desk, nonce))
    if isinstance(answer, Failure):
        raise RefusedQuestionError(answer.code)  # the site's log has said why
    change = rule.rounded(change_between(task.own, answer.factor))
    arrays = ndarrays_to_parameters([np.asarray(eta, np.float64) for eta in change.natural])
    fit = FitRes(Status(Code.OK, ""), arrays, 1, dict(answer.diagnostics))
    return Message(compat.fitres_to_recorddict(fit, keep_input=True), reply_to=message)


def _refuse_other_terms(rule: SummedChanges, context: Any) -> None:
    """Refuse a sum that is of fewer sites, or coarser, than the site has agreed to."""
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE

    offered: Mapping[str, Any] = context.state.config_records[RECORD_KEY_STATE]
    wanted = {
        "clipping_range": rule.limit,
        "target_range": rule.levels,
        "mod_range": MODULUS,
        "max_weight": 1.0,
    }
    others = {name: offered[name] for name, value in wanted.items() if offered[name] != value}
    if others:
        raise RefusedQuestionError("OtherTerms", f"wanted a sum with {wanted}, got {others}")
    if offered["threshold"] < rule.least:
        detail = f"wanted a sum of at least {rule.least} sites, got one of {offered['threshold']}"
        raise RefusedQuestionError("OtherTerms", detail)
