"""The connection of a client verb: connect, do the work, leave."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from broker.cli import address
from broker.cli.exits import OK
from broker.cli.screen import Screen
from broker.client import Handle, connect
from broker.errors import HeadgateError, LinkError, ProtocolError, RpcError

if TYPE_CHECKING:
    from typing import TypeVar

    R = TypeVar("R")
    T = TypeVar("T")

log = logging.getLogger("headgate.cli")

CONNECT_S = 30.0
"""How long connecting may take when the answers of a verb have no limit."""

SIZE_S = 2.0
"""How long the size of the instance may take to come where it only makes an error clearer."""

ASKED_AT_ONCE = 64
"""Brokers asked at the same time: enough to hide the way, few enough to spare rank 0."""

Work = Callable[[Handle], Awaitable[int | None]]


class Session:
    """What every client verb has: a broker to talk to, a screen, a patience.

    Attributes:
        uri: the broker.
        screen: where the verb prints.
        timeout_s: seconds for each answer; None: no limit.
    """

    def __init__(self, uri: str | None, as_json: bool, timeout: float) -> None:
        self.uri = address.choose(uri)
        self.screen = Screen(as_json)
        self.timeout_s = timeout or None

    def run(self, work: Work) -> int:
        """Connect, do ``work`` with the handle, close; returns the exit code that ``work`` returned, or 0.

        Raises:
            KeyboardInterrupt: Ctrl-C, after ``work`` was cancelled and the link closed.
            HeadgateError, TimeoutError: what connecting or ``work`` raises.
        """
        return asyncio.run(self._run(work))

    async def _run(self, work: Work) -> int:
        patience_s = self.timeout_s or CONNECT_S
        options = address.link_options(self.uri, connect_timeout_s=patience_s, waits_for_peer=False)
        async with connect(self.uri, options=options) as handle:
            try:
                code = await work(handle)
            except (LookupError, TypeError, ValueError) as error:
                # or a fault of the verb, which looks the same: where it arose tells them apart
                log.debug("%s: while an answer was read", self.uri, exc_info=error)
                said = f"{type(error).__name__}: {error} ({_place(error)})"
                raise ProtocolError(f"{self.uri}: an answer is none that a broker gives: {said}") from error
            except RpcError as error:
                if error.errno != errno.EHOSTUNREACH or str(error) != os.strerror(error.errno):
                    raise
                raise await _unreachable(handle, error) from error
        return OK if code is None else code

    async def within(self, answer: Awaitable[T], what: str) -> T:
        """Await one answer, at most ``timeout_s``.

        Raises:
            TimeoutError: it did not come; the text names ``what``.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                return await answer
        except TimeoutError as error:
            raise TimeoutError(f"{what}: nothing came within {self.timeout_s:g} s") from error

    async def each(self, answers: AsyncIterator[T], what: str) -> AsyncIterator[T]:
        """Yield what comes, until it ends.

        Raises:
            TimeoutError: the next one did not come within ``timeout_s``; the text names ``what``.
        """
        while True:
            try:
                answer = await self.within(anext(answers), what)
            except StopAsyncIteration:
                return
            yield answer


def _place(error: Exception) -> str:
    """Where in the verbs an error arose: ``FILE:LINE``."""
    frames = traceback.extract_tb(error.__traceback__)
    verbs = os.path.dirname(__file__)
    frame = [each for each in frames if each.filename.startswith(verbs)][-1]
    return f"{os.path.relpath(frame.filename, verbs)}:{frame.lineno}"


async def looked(handle: Handle, look: Callable[[], Awaitable[T]], watch: bool) -> T:
    """Call ``look``; with ``watch``, call it again over the next link when the link is lost meanwhile.

    Raises:
        LinkError: there is no next link. Whatever ``look`` raises.
    """
    while True:
        try:
            if watch:
                await handle.writable()  # a handle makes its link again by itself: wait for that
            return await look()
        except LinkError:
            if not watch or handle.ended is not None:
                raise


async def at_each(places: Iterable[R], ask: Callable[[R], Awaitable[T]]) -> list[T]:
    """What ``ask`` finds at each of ``places`` (ranks, mostly), in their order; ``ASKED_AT_ONCE`` at the same time.

    Raises:
        Exception: the first that ``ask`` raises.
    """
    few = asyncio.Semaphore(ASKED_AT_ONCE)

    async def one(place: R) -> T:
        async with few:
            return await ask(place)

    return await asyncio.gather(*map(one, places))


async def _unreachable(handle: Handle, error: RpcError) -> RpcError:
    """``error`` with the ranks that the instance has, if the broker beside us tells its size in time."""
    try:
        async with asyncio.timeout(SIZE_S):
            size = await handle.size()
    except (HeadgateError, TimeoutError):
        return error
    ranks = f"ranks 0 to {size - 1}" if size > 1 else "rank 0 alone"
    return RpcError(error.errno, f"that broker is away, or not of this instance: it has {ranks}", error.topic)
