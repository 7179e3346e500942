"""The inventory read in a thread: files of many hosts take seconds, and the broker has others to answer meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.nfp.inventory.datastore import Datastore
from broker.nfp.threads import Threads

log = logging.getLogger("headgate")
PATIENCE_S: Final = 2.0
"""How long an answer waits for what was just written; then it is given from what was read before."""
WAITING_MAX: Final = 10_000
"""Answers that wait so; who asks beyond that is answered at once."""

Then = Callable[[Any], None]


class Reader:
    """Keeps ``datastore`` up to date; everything but the reading happens in the loop.

    Args:
        datastore: which is not read by anybody else. loop: whose callbacks are called. patience_s: see ``PATIENCE_S``.
    """

    def __init__(
        self, datastore: Datastore, loop: asyncio.AbstractEventLoop, patience_s: float = PATIENCE_S
    ) -> None:
        self._datastore = datastore
        self._loop = loop
        self._patience_s = patience_s
        self._threads = Threads("nfp inventory", 1, loop)
        self._looking = False
        self._waiting: dict[Then, asyncio.TimerHandle] = {}
        self._closed = False

    async def start(self) -> None:
        """Read everything.

        Raises:
            ConfigError: file, line and what is wrong.
        """
        if self._datastore.watched:
            await self._threads.run(self._datastore.load)

    def look(self, then: Then) -> None:
        """Call ``then(None)`` once it is known that nothing has changed, or what has changed was read.

        That is at once when the last look was a moment ago, and in any case within the patience.
        """
        if not (self._looking or self._datastore.due) or self._closed or len(self._waiting) >= WAITING_MAX:
            then(None)
            return
        self._waiting[then] = self._loop.call_later(self._patience_s, self._answer, then)
        if not self._looking:
            self._looking = True
            self._threads.run(self._datastore.look).add_done_callback(self._looked)

    def reload(self, then: Then) -> None:
        """Read what changed, now; ``then`` gets what is told about it, or the ConfigError."""

        def done(reading: asyncio.Future[Mapping[str, Any]]) -> None:
            if not reading.cancelled():
                error = reading.exception()
                then(error if error is not None else reading.result())

        if not self._closed:
            self._threads.run(self._datastore.load).add_done_callback(done)

    def close(self) -> None:
        """Nobody is answered any more; a file that is being read is read to its end. Harmless twice."""
        self._closed = True
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        self._threads.close()

    def _looked(self, looking: asyncio.Future[None]) -> None:
        self._looking = False
        if not looking.cancelled() and (error := looking.exception()) is not None:
            log.error("the inventory could not be looked at", exc_info=error)
        for then in list(self._waiting):
            self._answer(then)

    def _answer(self, then: Then) -> None:
        timer = self._waiting.pop(then, None)
        if timer is not None:
            timer.cancel()
            then(None)
