"""The inventory read in a thread: files of many hosts take seconds, and the broker has others to answer meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from broker.nfp.inventory.datastore import Datastore
from broker.nfp.threads import Threads

log = logging.getLogger("headgate")
PATIENCE_S: Final = 2.0
"""How long an answer waits for what was just written; then it is given from what was read before."""


class Reader:
    """Keeps ``datastore`` up to date; everything but the reading happens in the loop.

    Args:
        datastore: which is not read by anybody else. loop: that of who asks. patience_s: see ``PATIENCE_S``.
    """

    def __init__(
        self, datastore: Datastore, loop: asyncio.AbstractEventLoop, patience_s: float = PATIENCE_S
    ) -> None:
        self._datastore = datastore
        self._patience_s = patience_s
        self._threads = Threads("nfp inventory", 1, loop)
        self._looking: asyncio.Future[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Read everything.

        Raises:
            ConfigError: file, line and what is wrong.
        """
        if self._datastore.watched:
            await self._threads.run(self._datastore.load)

    async def look(self) -> None:
        """Return once it is known that nothing has changed, or what has changed was read.

        That is at once when the last look was a moment ago, and in any case within the patience.
        """
        if self._looking is None and self._datastore.due and not self._closed:
            self._looking = self._threads.run(self._datastore.look)
            self._looking.add_done_callback(self._looked)
        if self._looking is not None:
            await asyncio.wait({self._looking}, timeout=self._patience_s)

    async def reload(self) -> Mapping[str, Any]:
        """Read what changed, now, and return what is told about it.

        Raises:
            ConfigError: file, line and what is wrong.
        """
        told: Mapping[str, Any] = await self._threads.run(self._datastore.load)
        return told

    def close(self) -> None:
        """Nothing is read any more; a file that is being read is read to its end. Harmless twice."""
        self._closed = True
        self._threads.close()

    def _looked(self, looking: asyncio.Future[None]) -> None:
        self._looking = None
        if not looking.cancelled() and (error := looking.exception()) is not None:
            log.error("the inventory could not be looked at", exc_info=error)
