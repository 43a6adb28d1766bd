"""Where the questions to sites of one process come in, and are answered one after another."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from streaming_gp.errors import InvalidDataError, StreamingGPError
from streaming_gp.pvi.messages import Ask, Failure, decoded_question, encoded
from streaming_gp.pvi.privacy.summed_changes import SummedChanges
from streaming_gp.pvi.reading import described
from streaming_gp.pvi.resident import Resident
from streaming_gp.pvi.site import Site


class UnknownQuestionError(StreamingGPError):
    """Nobody has put this question here, or this process has started since."""


class Desk:
    """Takes questions as messages, at any time and from any thread, and keeps the newest answer of
    each site for whoever asks again. One thread answers, that of :meth:`work`.

    A question that is put twice is answered once. A newer one to the same site takes its place.

    :param sites: The sites whose data can be read here.
    :raises InvalidDataError: if there are none, or two of one name.
    """

    def __init__(self, sites: Iterable[Site]) -> None:
        together = list(sites)
        self.sites = {site.client_id: site for site in together}
        if not together or len(self.sites) < len(together):
            raise InvalidDataError(
                f"wanted sites of different names, got {[s.client_id for s in together]}"
            )
        self._residents = {name: Resident(site) for name, site in self.sites.items()}
        self._open: dict[str, Ask] = {}
        self._newest: dict[str, str] = {}
        self._answers: dict[str, bytes | None] = {}
        self._changed = threading.Condition()

    def put(self, message: bytes, in_sum: bool = False) -> str:
        """Take a question.

        :param in_sum: Whether the answer leaves this process within a sum only.
        :returns: its nonce, to ask for the answer by.
        :raises FileFormatError: if the message is damaged, foreign, or of another version.
        :raises InvalidDataError: if it is for a site that is not here, or for one whose answers
            leave it in the other way.
        """
        ask = decoded_question(message)
        name, nonce = ask.client_id, ask.nonce
        if name not in self.sites:
            raise InvalidDataError(f"there is no site {name!r} here, but {list(self.sites)}")
        if isinstance(self.sites[name].update, SummedChanges) != in_sum:
            way = "by itself" if in_sum else "within sums only"
            raise InvalidDataError(f"site {name!r} answers {way}")
        with self._changed:
            if self._newest.get(name) != nonce:
                self._answers.pop(self._newest.get(name, ""), None)
                self._newest[name], self._answers[nonce] = nonce, None
                self._open[name] = ask
                self._changed.notify_all()
        return nonce

    def answer(self, nonce: str, patience: float) -> bytes | None:
        """The answer to a question; None if it is still being worked out.

        :param nonce: That of the question.
        :param patience: The number of seconds to wait for it.
        :raises UnknownQuestionError: if it was never put here, or a newer one took its place.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._answers.get(nonce, b"") is not None, patience)
            if nonce not in self._answers:
                raise UnknownQuestionError("this question is not known here")
            return self._answers[nonce]

    def work(self) -> None:
        """Answer questions for ever, and between them go on with what goes on by itself."""
        while True:
            self._settle(self._next())

    def _next(self) -> Ask:
        """The oldest open question. While there is none, continuous clients go on."""
        while True:
            with self._changed:
                if self._open:
                    return self._open.pop(next(iter(self._open)))
            moving = [resident.advance(1) for resident in self._residents.values()]
            if not any(moving):
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._open))

    def _settle(self, ask: Ask) -> None:
        message = self._answered(ask)
        with self._changed:
            if ask.nonce in self._answers:
                self._answers[ask.nonce] = message
            self._changed.notify_all()

    def _answered(self, ask: Ask) -> bytes:
        try:
            return encoded(self._residents[ask.client_id].answer(ask))
        except KeyboardInterrupt:  # that of the user
            raise
        except BaseException as error:  # a client may run anything
            return encoded(Failure(described(error)))
