"""The program of a site: questions come in at a desk, and are answered one after another."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from typing import Protocol, runtime_checkable

from streaming_gp.errors import InvalidDataError, StreamingGPError
from streaming_gp.inputs import require_strategy
from streaming_gp.pvi.client import Resident, Site
from streaming_gp.pvi.privacy.sums import SummedChanges
from streaming_gp.pvi.task import LocalTask, RefusedQuestionError, decode_task


class UnknownQuestionError(StreamingGPError):
    """Nobody has put this question here, or this process has started since."""


class Desk:
    """Takes questions as messages, at any time and from any thread, and keeps the newest answer of
    each site for whoever asks again. One thread answers, that of :meth:`work`.

    A question that is put twice is answered once. A newer one to the same site takes its place.

    :param sites: The sites whose data can be read here.
    """

    def __init__(self, sites: Iterable[Site]) -> None:
        together = list(sites)
        self.sites = {site.client_id: site for site in together}
        if not together or len(self.sites) < len(together):
            raise InvalidDataError(
                f"wanted sites of different names, got {[s.client_id for s in together]}"
            )
        self._residents = {name: Resident(site) for name, site in self.sites.items()}
        self._open: dict[str, LocalTask] = {}
        self._newest: dict[str, str] = {}
        self._answers: dict[str, bytes | None] = {}
        self._changed = threading.Condition()

    def put(self, message: bytes, in_sum: bool = False) -> str:
        """Take a question.

        :param in_sum: Whether the answer leaves this process within a sum only.
        :returns: its nonce, to ask for the answer by.
        """
        task = decode_task(message)
        name, nonce = task.client_id, task.nonce
        if name not in self.sites:
            raise RefusedQuestionError("NoSite", f"{name!r}; there are {list(self.sites)}")
        if isinstance(self.sites[name].update, SummedChanges) != in_sum:
            raise RefusedQuestionError("AnswersByItself" if in_sum else "AnswersInSums", name)
        with self._changed:
            if self._newest.get(name) != nonce:
                self._answers.pop(self._newest.get(name, ""), None)
                self._newest[name], self._answers[nonce] = nonce, None
                self._open[name] = task
                self._changed.notify_all()
        return nonce

    def answer(self, nonce: str, patience: float) -> bytes | None:
        """The answer to a question; None if it is still being worked out.

        :param nonce: That of the question.
        :param patience: The number of seconds to wait for it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._answers.get(nonce, b"") is not None, patience)
            if nonce not in self._answers:
                raise UnknownQuestionError("this question is not known here")
            return self._answers[nonce]

    def work(self) -> None:
        """Answer questions for ever, and between them go on with clients that are continuous."""
        while True:
            task = self._next()
            message = self._answer_to(task)
            with self._changed:
                if task.nonce in self._answers:
                    self._answers[task.nonce] = message
                self._changed.notify_all()

    def _next(self) -> LocalTask:
        """The oldest open question. While there is none, continuous clients go on."""
        while True:
            with self._changed:
                if self._open:
                    return self._open.pop(next(iter(self._open)))
            moving = [resident.advance(1) for resident in self._residents.values()]
            if not any(moving):
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._open))

    def _answer_to(self, task: LocalTask) -> bytes:
        return self._residents[task.client_id].message(task)


@runtime_checkable
class Host(Protocol):
    """An engine whose sites start on their own."""

    def open(self, desk: Desk) -> AbstractContextManager[None]:
        """Let questions in, for the time of a ``with`` block.

        :param desk: Where they are put, and answers come from.
        """


def serve(sites: Site | Iterable[Site], engine: Host) -> None:
    """Answer the questions of a coordinator until the process is ended.

    Data are read at the first question and stay in this process, as do compiled functions. The
    coordinator may come, go and come again. So may this process: a question that it had not
    answered is put again, and its answer is the same.

    :param sites: The site, or all those that this place holds.
    :param engine: The engine that connects it with the coordinator, such as ``engines.NVFlare``.
    :raises InvalidDataError: if there is no site, or the engine cannot host these.
    """
    require_strategy("engine", engine, Host, "engines.NVFlare(...)")
    desk = Desk([sites] if isinstance(sites, Site) else sites)
    with engine.open(desk), suppress(KeyboardInterrupt):
        desk.work()
