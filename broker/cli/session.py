"""One client verb's connection: connect, do the work, leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from broker.cli import address
from broker.cli.exits import OK
from broker.cli.screen import Screen
from broker.client import Handle, connect

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

CONNECT_S = 30.0
"""How long connecting may take when the answers of a verb have no limit."""

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
        options = address.link_options(self.uri, connect_timeout_s=self.timeout_s or CONNECT_S)
        async with connect(self.uri, options=options) as handle:
            code = await work(handle)
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
