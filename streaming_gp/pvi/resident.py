"""A client at work, in the process that answers for it."""

from __future__ import annotations

from streaming_gp.pvi.client import Client
from streaming_gp.pvi.messages import Answer, Ask
from streaming_gp.pvi.site import Site


class Resident:
    """Put to work by its first question, and kept from then on: data, worker and traces stay.

    :param client: The client, or a site whose data can be read here.
    """

    def __init__(self, client: Client | Site) -> None:
        self._client = client
        self._at_work: Client | None = None

    def answer(self, ask: Ask) -> Answer:
        """What the client answers; whatever it raises, or its loader, comes out of here."""
        if self._at_work is None:
            self._at_work = self._client.at_work()
        return self._at_work.answer(ask)

    def advance(self, iterations: int) -> bool:
        """Go on without a question; False if there is nothing to do before the next one."""
        return self._at_work is not None and self._at_work.advance(iterations)
