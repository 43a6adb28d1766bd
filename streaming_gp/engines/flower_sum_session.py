"""Questions to nodes of Flower that are answered together, by a sum over nodes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

from streaming_gp.engines.flower_link import LOG
from streaming_gp.engines.flower_run import Run
from streaming_gp.engines.flower_sums import PAUSE, LostError, Sum
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.pvi.privacy.sums import SummedChanges
from streaming_gp.pvi.sums import Shares
from streaming_gp.pvi.task import Delivery, LocalTask, encode_task


class FlowerSumSession:
    """Questions wait until an answer is wanted; then all of them are put, and summed.

    :param run: Where messages are sent.
    :param keys: The public key of the node of each site.
    :param deadline: The seconds in which nodes have to be there, and for each of the four steps of
        a sum; None waits for ever.
    :param rule: The terms of the sums.
    :param shares: What the server has in the place of each site's factor.
    """

    def __init__(
        self,
        run: Run,
        keys: Mapping[str, bytes],
        deadline: float | None,
        rule: SummedChanges,
        shares: Shares,
    ) -> None:
        self._run, self._keys, self._deadline = run, keys, deadline
        self._rule, self._shares = rule, shares
        self._asks: dict[str, LocalTask] = {}
        self._arrived: deque[Delivery] = deque()
        self._begin = time.monotonic()

    @property
    def now(self) -> float:
        return time.monotonic() - self._begin

    @property
    def open(self) -> frozenset[str]:
        return frozenset({*self._asks, *(delivery.client_id for delivery in self._arrived)})

    def submit(self, task: LocalTask, duration: float | None) -> None:
        if task.client_id in self.open:
            raise InvalidDataError(f"client {task.client_id!r} has an open question already")
        self._shares.require_whole(task)
        self._asks[task.client_id] = task

    def next(self) -> Delivery:
        if not self._arrived:
            self._arrived.extend(self._together())
            self._asks = {}
        return self._arrived.popleft()

    def _together(self) -> list[Delivery]:
        """What has become of all open questions; a SuperLink may come and go meanwhile."""
        import httpx

        while True:
            try:
                return self._outcome()
            except httpx.TransportError as error:
                LOG.warning("the SuperLink is not there: %s", error)
                time.sleep(PAUSE)
            except httpx.HTTPStatusError as error:
                message = f"the SuperLink does not go on with this run, begin another: {error}"
                raise NoAnswerError(message) from error

    def _outcome(self) -> list[Delivery]:
        nodes = self._present()
        reasons = dict.fromkeys(self._asks.keys() - nodes.keys(), "its SuperNode is not there")
        while len(nodes) >= self._rule.least:
            try:
                found = self._sum_of(nodes)
            except LostError as error:
                lost = {name: node for name, node in nodes.items() if node in error.reasons}
                reasons |= {name: error.reasons[node] for name, node in lost.items()}
                nodes = {name: node for name, node in nodes.items() if name not in lost}
            else:
                return self._read(found, nodes, reasons)
        return self._failed(reasons, len(nodes))

    def _present(self) -> dict[str, int]:
        """The nodes of the sites that are asked, by name: all, or those that are there in time."""
        begin = self.now
        while True:
            there = self._run.nodes()
            nodes = {
                name: there[self._keys[name]] for name in self._asks if self._keys[name] in there
            }
            is_late = self._deadline is not None and self.now > begin + self._deadline
            if len(nodes) == len(self._asks) or is_late:
                return nodes
            time.sleep(PAUSE)

    def _sum_of(self, nodes: Mapping[str, int]) -> Sum:
        questions = {node: encode_task(self._asks[name]) for name, node in nodes.items()}
        return self._run.summed(questions, self._rule, self._deadline)

    def _read(
        self, found: Sum, nodes: Mapping[str, int], reasons: Mapping[str, str]
    ) -> list[Delivery]:
        known = {name: found.reasons[n] for name, n in nodes.items() if n in found.reasons}
        reasons = {**reasons, **known}
        included = {name: found.spent[n] for name, n in nodes.items() if n in found.spent}
        if not found.arrays:
            return self._failed(reasons, len(nodes.keys() - known.keys()))
        summed = [self._asks[name] for name in included]
        others = self._asks.keys() - included.keys()
        failed = [Delivery(name, None, reasons[name]) for name in others]
        return [*failed, *self._shares.deliveries(summed, found.arrays, included)]

    def _failed(self, reasons: Mapping[str, str], left: int) -> list[Delivery]:
        rest = f"there is no sum of {left} sites: it takes at least {self._rule.least}"
        return [Delivery(name, None, reasons.get(name, rest)) for name in self._asks]
