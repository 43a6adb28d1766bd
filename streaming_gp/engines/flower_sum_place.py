"""Sums over places by Flower's SecAgg+: a site's end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from streaming_gp.engines.flower_link import BEAT, LOG
from streaming_gp.engines.flower_sums import QUESTION
from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi.desk import Desk
from streaming_gp.pvi.guards import described
from streaming_gp.pvi.privacy.sums import MODULUS, SummedChanges, change_between
from streaming_gp.pvi.task import Failure, LocalResult, decode_answer, decode_task


def masked_reply(desk: Desk, message: Any, context: Any) -> Any:
    """What a site says in one of the four steps of a sum: keys, shares, masked numbers, shares.

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
        reason = described(error)
        LOG.warning("not in the sum: %s", reason)
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
    answer = _answered(desk, nonce)
    change = rule.rounded(change_between(task.own, answer.factor))
    arrays = ndarrays_to_parameters([np.asarray(eta, np.float64) for eta in change.natural])
    found = FitRes(Status(Code.OK, ""), arrays, 1, dict(answer.diagnostics))
    return Message(compat.fitres_to_recorddict(found, keep_input=True), reply_to=message)


def _answered(desk: Desk, nonce: str) -> LocalResult:
    while (message := desk.answer(nonce, BEAT)) is None:
        pass
    found = decode_answer(message)
    if isinstance(found, Failure):
        raise InvalidDataError(found.reason)
    return found


def _refuse_other_terms(rule: SummedChanges, context: Any) -> None:
    """Refuse a sum that is of fewer sites, or coarser, than the site has agreed to.

    :raises InvalidDataError: if it is.
    """
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
        raise InvalidDataError(f"wanted a sum with {wanted}, got {others}")
    if offered["threshold"] < rule.least:
        raise InvalidDataError(
            f"wanted a sum of at least {rule.least} sites, got one of {offered['threshold']}"
        )
