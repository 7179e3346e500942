"""Calls and casts through a ``ClientSession``, from an event loop that must not wait for it.

Calls do not block: their reply comes in the thread of the sockets, and from there to the loop. Casts and fan-outs may
block until they are handed over, so they have a few threads of their own; what waits for one is bounded. A caller that
has left is not waited for, but its call takes room until its time is over: the pipelines know no taking back.
"""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.errors import RpcError
from broker.oslo.contract import Address, Closed, OsloFailure

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

CALLS_MAX: Final = 8192
"""Calls under way, those of callers that have left included; beyond it EAGAIN."""
CASTS_MAX: Final = 1024
"""Casts that wait for a thread or are being handed over; beyond it EAGAIN."""
THREADS: Final = 8
"""Casts handed over at a time: each may wait a moment for a node that was just heard of."""


class RequestSender:
    """What one bridge sends.

    Args:
        session: into the pipelines; ``close`` of this object leaves it open.

    Attributes:
        calls, casts: under way.
        sent: messages handed over so far, calls included.
    """

    def __init__(self, session: ClientSession) -> None:
        self.calls = 0
        self.casts = 0
        self.sent = 0
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(THREADS, "oslo casts")
        self._waiting: set[asyncio.Future[bytes]] = set()
        self._closed = False

    def close(self) -> None:
        """Take no more; who waits is told ``Closed``. What is being handed over goes on in its thread."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(Closed("the bridge is leaving"))

    async def call(self, address: Address, body: bytes, *, timeout_s: float, mandatory: bool) -> bytes:
        """Call and wait for the body of the reply.

        Raises:
            OsloFailure: as of ``ClientSession.call``. RpcError: EAGAIN, too many are under way.
        """
        if self.calls >= CALLS_MAX:
            raise RpcError(errno.EAGAIN, f"{self.calls} calls are under way")
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self.calls += 1
        self._waiting.add(reply)
        try:
            self._session.start_call(
                address, body, partial(self._done, reply), timeout_s=timeout_s, mandatory=mandatory
            )
        except BaseException:
            self._over(reply)
            raise
        self.sent += 1
        return await reply

    def _done(self, reply: asyncio.Future[bytes], outcome: bytes | OsloFailure) -> None:
        """In the thread of the sockets."""
        try:
            self._loop.call_soon_threadsafe(self._settle, reply, outcome)
        except RuntimeError:
            return  # the loop has ended, and with it whoever waited

    def _settle(self, reply: asyncio.Future[bytes], outcome: bytes | OsloFailure) -> None:
        self._over(reply)
        if reply.done():
            return  # its caller has left
        if isinstance(outcome, OsloFailure):
            reply.set_exception(outcome)
        else:
            reply.set_result(outcome)

    def _over(self, reply: asyncio.Future[bytes]) -> None:
        self.calls -= 1
        self._waiting.discard(reply)

    async def cast(self, address: Address, body: bytes, *, mandatory: bool) -> None:
        """Hand a message over to one server.

        Raises:
            OsloFailure: as of ``ClientSession.cast`` with one attempt. RpcError: EAGAIN, too many are under way.
        """
        await self._hand_over(partial(self._session.cast, address, body, mandatory=mandatory, retry=0))

    async def fanout(self, address: Address, body: bytes) -> None:
        """Hand a message over to every server of the topic; as ``cast``."""
        await self._hand_over(partial(self._session.fanout, address, body, retry=0))

    async def _hand_over(self, send: partial[None]) -> None:
        if self._closed:
            raise Closed("the bridge is leaving")
        if self.casts >= CASTS_MAX:
            raise RpcError(errno.EAGAIN, f"{self.casts} casts are under way")
        self.casts += 1
        handed = self._loop.run_in_executor(self._pool, send)
        handed.add_done_callback(self._handed)
        await asyncio.shield(handed)
        self.sent += 1

    def _handed(self, handed: asyncio.Future[None]) -> None:
        self.casts -= 1
        if not handed.cancelled():
            handed.exception()  # seen, although its caller may have left
