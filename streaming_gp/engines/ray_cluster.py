"""What the Ray engine asks of Ray's insides: a cluster on the loopback interface, and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_RAW, _EXCEPTION = b"RAW", b"3"
"""What Ray writes beside bytes that were returned as they are, and beside a pickled exception."""
_OBJECTS = (b"XLANG", b"PYTHON", b"ACTOR_HANDLE", _EXCEPTION)


class ActorDiedError(Exception):
    """The process of a client is gone, and its answer with it."""


def begin(ray: Any, address: str | None) -> None:
    """Join a cluster, or start one that only processes of this machine can reach.

    :param address: The cluster's; None starts one.
    """
    if address is not None:
        ray.init(address=address)
        return
    with _on_loopback():
        ray.init(log_to_driver=False, include_dashboard=False)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray does this by itself on Windows and macOS: RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def message_of(ray: Any, reference: Any) -> bytes | None:
    """The bytes that an actor's method has returned, which are read without unpickling anything.

    ``ray.get`` would unpickle whatever came, and so run what a hostile client put there.

    :param reference: What Ray has for a result that is ready.
    :returns: None if something else than bytes was returned or raised.
    :raises ActorDiedError: if the actor's process is gone.
    """
    core = ray._private.worker.global_worker.core_worker
    data, metadata, *_ = core.get_objects([reference], -1)[0]
    kind = (metadata or b"").split(b",")[0]
    if kind == _RAW:
        return b"" if data is None else bytes(data.to_pybytes())
    if kind in _OBJECTS:
        return None
    raise ActorDiedError
