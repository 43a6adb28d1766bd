"""A site's end of Flower: it takes messages from a SuperNode, in a process that stays. The runtime
interface and the messages of bytes are those of the coordinator's end as well.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from streaming_gp.engines.remote import QUESTION, RESULT, keep
from streaming_gp.errors import InvalidDataError, StreamingGPError
from streaming_gp.inputs import missing_extra
from streaming_gp.pvi.desk import Desk
from streaming_gp.pvi.privacy.sums import MODULUS, SummedChanges, change_between
from streaming_gp.pvi.task import (
    Failure,
    RefusedQuestionError,
    decode_answer,
    decode_task,
    failure_of,
)

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when Flower is imported

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


def question_record(topic: str, content: bytes) -> Any:
    """A message to a place."""
    return _record({_TOPIC: topic, _CONTENT: content})


def content_and_objection(message: Any) -> tuple[bytes, str]:
    """A place's reply: bytes, or why not. Anything else counts as an objection."""
    written = _written(message)
    content, objection = written.get(_CONTENT), written.get(_OBJECTION)
    if not (isinstance(content, bytes) and isinstance(objection, str)):
        return b"", "what it answered is no message"
    return content, objection[:1000]


def _topic_and_content(message: Any) -> tuple[str, bytes]:
    written = _written(message)
    topic, content = written.get(_TOPIC), written.get(_CONTENT)
    if not (isinstance(topic, str) and isinstance(content, bytes)):
        raise RefusedQuestionError("NoMessage")
    return topic, content


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
def at_work(link: Link, desk: Desk, inbox: str | os.PathLike[str] | None) -> Iterator[None]:
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
    def __init__(self, link: Link, desk: Desk, inbox: str | os.PathLike[str] | None) -> None:
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
            content = self._content(*_topic_and_content(message))
        except (StreamingGPError, OSError) as error:
            objection = f"it refused the message: {failure_of(error, 'this place').reason}"
        return Message(_record({_CONTENT: content, _OBJECTION: objection}), reply_to=message)

    def _content(self, topic: str, content: bytes) -> bytes:
        """The bytes of the reply."""
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


class _NoPartError(Exception):
    """The site gives no answer; its log has said why."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


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
        raise _NoPartError(answer.code)
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
