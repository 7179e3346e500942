"""Broker attributes (``attr.get``): what a broker tells about itself, as pairs of strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from broker.wire.message import NODEID_ANY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.client.received import Response

_IMMUTABLE: Final = 1
"""Flag of an answer: the value never changes."""


class _Answer(msgspec.Struct):
    """Response of ``attr.get``."""

    value: str
    flags: int = 0


class Attributes:
    """The attributes of a handle's brokers; immutable ones of the broker it is connected to are asked for once.

    Args:
        ask: makes the call for (name, nodeid).
    """

    __slots__ = ("_ask", "_known")

    def __init__(self, ask: Callable[[str, int], Awaitable[Response]]) -> None:
        self._ask = ask
        self._known: dict[str, str] = {}

    def forget(self) -> None:
        """It may be another broker from now on."""
        self._known.clear()

    async def get(self, name: str, nodeid: int) -> str:
        """The value of ``name`` at ``nodeid``; NODEID_ANY is our own broker.

        Raises:
            RpcError: ENOENT 2, there is none. LinkError: the link ended.
        """
        known = self._known.get(name) if nodeid == NODEID_ANY else None
        if known is not None:
            return known
        answer = (await self._ask(name, nodeid)).json(_Answer)
        if answer.flags & _IMMUTABLE and nodeid == NODEID_ANY:
            self._known[name] = answer.value
        return answer.value
