"""Sums over places by Flower's SecAgg+: what its workflow asks of a coordinator, and of a grid."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from streaming_gp.engines.flower_link import LOG
from streaming_gp.pvi.guards import described
from streaming_gp.pvi.privacy.sums import MODULUS, SummedChanges

QUESTION = "question"
PAUSE = 0.1
"""The seconds until a SuperLink is asked again whether replies have come."""


class LostError(Exception):
    """Nodes were lost before they had anything to add: Flower's sum has to begin without them.

    :param reasons: Why, by their numbers.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__(str(reasons))
        self.reasons = reasons


@dataclass(frozen=True, eq=False)
class Sum:
    """What the sum of some nodes has come to.

    :param arrays: The mean of what they have added; empty if there is no sum.
    :param spent: What each node in it says beside that, by its number.
    :param reasons: Why nodes were lost on the way, by their numbers.
    """

    arrays: list[np.ndarray]
    spent: Mapping[int, Mapping[str, Any]]
    reasons: Mapping[int, str]


def summed(
    grid: Any, questions: Mapping[int, bytes], rule: SummedChanges, deadline: float | None
) -> Sum:
    """Ask nodes for their parts of a sum.

    :param grid: Flower's connection to them.
    :param questions: What is asked of each node, by its number.
    :param rule: The limits that all have agreed on.
    :param deadline: The seconds for each of the four steps; None waits for ever.
    :raises LostError: if a node is lost in the first two steps.
    """
    import httpx
    from flwr.server.workflow import SecAggPlusWorkflow

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
    try:
        workflow(watched, _context(strategy))
    except (httpx.HTTPError, LostError):
        raise
    except Exception as error:  # a node may send anything, and then there is no sum
        LOG.warning("there is no sum: %s", described(error))
    return Sum(strategy.arrays, strategy.spent, watched.reasons)


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
        asked = list(messages)
        numbers = zip(self._grid.push_messages(asked), asked, strict=True)
        nodes = {number: one.metadata.dst_node_id for number, one in numbers if number}
        replies = self._replies(set(nodes), timeout)
        here = {nodes[one.metadata.reply_to_message_id] for one in replies if not one.has_error()}
        for reply in replies:
            if reply.has_error():
                node = nodes[reply.metadata.reply_to_message_id]
                self.reasons[node] = f"{reply.error.reason}"[:1000]
        lost = {one.metadata.dst_node_id for one in asked} - here
        self.reasons = dict.fromkeys(lost, f"no answer within {timeout} s") | self.reasons
        if lost and _has_no_shares_yet(asked[0]):
            raise LostError({node: self.reasons[node] for node in lost})
        return replies

    def _replies(self, waiting: set[str], timeout: float | None) -> list[Any]:
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        replies: list[Any] = []
        while waiting and time.monotonic() < end:
            replies += self._grid.pull_messages(list(waiting))
            waiting = waiting - {reply.metadata.reply_to_message_id for reply in replies}
            time.sleep(PAUSE)
        return replies


def _has_no_shares_yet(message: Any) -> bool:
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage

    stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
    return stage in (Stage.SETUP, Stage.SHARE_KEYS)


class _OneRound:
    """What the workflow takes for its strategy: it asks the questions, and takes what comes."""

    def __init__(self, questions: Mapping[int, bytes]) -> None:
        self._questions = questions
        self.arrays: list[np.ndarray] = []
        self.spent: dict[int, Mapping[str, Any]] = {}

    def num_available(self) -> int:
        """The number of nodes, which the workflow asks of what it takes for a client manager."""
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

        for proxy, found in results:
            self.arrays = parameters_to_ndarrays(found.parameters)
            self.spent[proxy.node_id] = dict(found.metrics)
        for failure in failures:
            LOG.warning("not in the sum: %s", failure)
        return None, {}


def _context(strategy: _OneRound) -> Any:
    from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.server import LegacyContext
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

    records = {
        MAIN_CONFIGS_RECORD: ConfigRecord({Key.CURRENT_ROUND: 1}),
        MAIN_PARAMS_RECORD: ArrayRecord(),
    }
    bare = Context(0, 0, {}, RecordDict(records), {})
    return LegacyContext(bare, strategy=strategy, client_manager=strategy)
