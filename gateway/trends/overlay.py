"""Asks for the shape of the tree and for the health of its brokers: each answers for itself and its direct children."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.errors import HeadgateError
from gateway.trends.ranks import GONE, Ranks

if TYPE_CHECKING:
    from gateway.upstream.supervisor import Upstream
    from gateway.upstream.trunk import Trunk

ANSWER_S: Final = 2.0
ASKED_AT_ONCE: Final = 64
ODD: Final = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
"""What an answer of another form than expected raises."""


class Overlay:
    """Fills ``ranks``.

    Args:
        behind: the brokers. clock: monotonic seconds.

    Attributes:
        hostlist: names of the hosts by rank, as RFC 29 writes them; "" where brokers do not tell.
        why: why the shape is not known; "" where it is.
    """

    def __init__(self, ranks: Ranks, behind: Upstream, clock: Callable[[], float]) -> None:
        self.hostlist = ""
        self.why = ""
        self._ranks = ranks
        self._behind = behind
        self._clock = clock
        self._few = asyncio.Semaphore(ASKED_AT_ONCE)

    async def look(self, asked: Trunk, *, shape: bool) -> None:
        """Once; a broker that is silent delays nobody's figures, but the end of this."""
        if shape:
            await self._shape(asked)
        try:
            told = await self._ask(asked, "state-machine.get", {}, 0)
            self._ranks.state = str(told.get("state", ""))
        except (HeadgateError, TimeoutError):
            self._ranks.state = ""  # a broker without states is worth showing, too
        root = next(
            (each.rank for each in self._ranks.ranks.values() if each.placed and each.parent is None), None
        )
        level = [root] if root is not None else []
        while level:
            await asyncio.gather(*(self._health(asked, rank) for rank in level))
            ranks = self._ranks.ranks
            below = [
                ranks[child]
                for rank in level
                if rank in ranks
                for child in ranks[rank].children
                if child in ranks
            ]
            level = [each.rank for each in below if each.children and each.status not in GONE]

    async def _ask(self, asked: Trunk, topic: str, payload: dict[str, Any], rank: int) -> dict[str, Any]:
        async with self._few:
            self._ranks.questioned(rank, self._behind.rank)
            answer: dict[str, Any] = (await asked.rpc(topic, payload, nodeid=rank, timeout_s=ANSWER_S)).json()
            return answer

    async def _shape(self, asked: Trunk) -> None:
        try:
            self._ranks.place(await self._ask(asked, "overlay.topology", {"rank": 0}, 0))
            self.why = ""
        except (HeadgateError, TimeoutError) as error:
            self.why = f"The brokers do not tell their tree: {str(error) or 'no answer'}"
        except ODD:
            self.why = "The brokers tell their tree in another way."
        try:
            self.hostlist = str(
                (await self._ask(asked, "attr.get", {"name": "hostlist"}, 0)).get("value", "")
            )
        except (HeadgateError, TimeoutError):
            self.hostlist = ""  # an old flux-core has none

    async def _health(self, asked: Trunk, rank: int) -> None:
        try:
            told = await self._ask(asked, "overlay.health", {}, rank)
            self._ranks.health({**told, "rank": rank}, self._clock())
        except (HeadgateError, TimeoutError, *ODD):
            return  # its figures say whether it answers
