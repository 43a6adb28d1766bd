"""A site's end of Flower: it takes messages from a SuperNode, in a process that stays."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from streaming_gp.engines import flower_link as links
from streaming_gp.engines.flower_sum_place import masked_reply
from streaming_gp.engines.remote import QUESTION, RESULT, keep
from streaming_gp.errors import InvalidDataError, StreamingGPError
from streaming_gp.pvi.desk import Desk

PAUSE = 0.1
"""The seconds until a SuperNode is asked again whether a message has come."""
ABSENCE = 2.0
"""The seconds until one that was not there is looked for again."""


@contextmanager
def at_work(link: links.Link, desk: Desk, inbox: str | os.PathLike[str] | None) -> Iterator[None]:
    """Answer messages, one after another, for the time of a ``with`` block.

    :param link: That of the SuperNode.
    :param desk: Where questions are put, and answers come from.
    :param inbox: The file for results, if they are wanted.
    """
    over = threading.Event()
    place = _Place(link, desk, inbox)
    thread = threading.Thread(target=place.work, args=(over,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


class _Place:
    def __init__(self, link: links.Link, desk: Desk, inbox: str | os.PathLike[str] | None) -> None:
        self._link, self._desk, self._inbox = link, desk, inbox

    def work(self, over: threading.Event) -> None:
        """Answer messages until it is over; SuperNodes may come and go."""
        import httpx

        while not over.is_set():
            try:
                with self._link.tasks() as tasks:
                    while not over.is_set():
                        if not self._answered_one(tasks):
                            over.wait(PAUSE)
            except httpx.HTTPError as error:
                links.LOG.warning("the SuperNode at %s: %s", self._link.address, error)
                over.wait(ABSENCE)

    def _answered_one(self, tasks: Any) -> bool:
        """Whether there was a message to answer."""
        from flwr.supercore.constant import TaskType
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
        from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

        task = links.acquired(tasks, TaskType.CLIENT_APP)
        if task is None:
            return False
        client = self._link.runtime(RuntimeTokenHttpInterceptor(task.token))
        try:
            with links.alive(client):
                message, context, *_ = pull_task_input(client)
                push_message(client, self._replied(message, context), context)
                links.finish(client, context)
        finally:
            client.close()
        return True

    def _replied(self, message: Any, context: Any) -> Any:
        from flwr.app import Message, MessageType

        if message.metadata.message_type == MessageType.TRAIN:
            return masked_reply(self._desk, message, context)
        return Message(links.reply_of(*self._reply(message)), reply_to=message)

    def _reply(self, message: Any) -> tuple[bytes | None, str | None]:
        """What there is to reply, or why not."""
        try:
            return self._answer(*links.topic_and_content(message)), None
        except (StreamingGPError, OSError) as error:
            links.LOG.warning("refused what the coordinator sent: %s", error)
            return None, f"it refused the message: {error}"

    def _answer(self, topic: str, content: bytes) -> bytes | None:
        if topic == RESULT:
            keep(content, self._inbox)
            return None
        if topic != QUESTION:
            raise InvalidDataError(f"nobody waits for a message of topic {topic!r}")
        nonce = self._desk.put(content)
        while (answer := self._desk.answer(nonce, links.BEAT)) is None:
            pass
        return answer
