"""The program of a site: it answers a coordinator for as long as it runs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from typing import Protocol, runtime_checkable

from streaming_gp.inputs import require_strategy
from streaming_gp.pvi.desk import Desk
from streaming_gp.pvi.site import Site


@runtime_checkable
class Host(Protocol):
    """An engine whose sites start on their own."""

    def open(self, desk: Desk) -> AbstractContextManager[None]:
        """Let questions in, for the time of a ``with`` block.

        :param desk: Where they are put, and answers come from.
        """
        ...


def serve(sites: Site | Iterable[Site], engine: Host) -> None:
    """Answer the questions of a coordinator until the process is ended.

    Data are read at the first question and stay in this process, as do compiled functions. The
    coordinator may come, go and come again. So may this process: a question that it had not
    answered is put again, and its answer is the same.

    :param sites: The site, or all those that this place holds.
    :param engine: What connects it with the coordinator, such as ``engines.NVFlare``.
    :raises InvalidDataError: if there is no site, or the engine cannot host these.
    """
    require_strategy("engine", engine, Host, "engines.NVFlare(...)")
    desk = Desk([sites] if isinstance(sites, Site) else sites)
    with engine.open(desk), suppress(KeyboardInterrupt):
        desk.work()
