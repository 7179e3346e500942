"""Closed jobs are read from the store while the broker works already: it listens before, see ``dispatch.recall``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.nfp.store.writer import NotStored

if TYPE_CHECKING:
    from broker.nfp.awake import AwakeClock
    from broker.nfp.dispatch import Dispatcher
    from broker.nfp.records import JobRow
    from broker.nfp.store import NoStore, Store

log = logging.getLogger("headgate")
AGAIN_S: Final = 1.0
"""Between two attempts at a store that cannot be read. Until it can, duplicates of what is not read wait: to run them
again would be worse."""


class Recollection:
    """Reads them, some at a time.

    Args:
        dispatcher: says what it wants. store: has it. taken: called with what the dispatcher has got. clock: the
            dispatcher's.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        store: Store | NoStore,
        taken: Callable[[list[JobRow]], None],
        clock: AwakeClock,
    ) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._taken = taken
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; nothing happens when there is nothing to read."""
        if self._dispatcher.to_read():
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._read(loop), name="nfp recollection")

    async def stop(self) -> None:
        """End. Harmless twice, and without ``start``."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        count, begun, told = 0, loop.time(), False
        while uuids := self._dispatcher.to_read():
            try:
                rows = await self._store.closed(uuids)
            except NotStored as error:
                if not told:
                    log.error("closed jobs cannot be read, tried again each %g s: %s", AGAIN_S, error)
                told = True
                await asyncio.sleep(AGAIN_S)
                continue
            self._dispatcher.was_read(uuids, rows, self._clock.now())
            self._taken(rows)
            count += len(rows)
        log.info("%d closed jobs were read within %.1f s", count, loop.time() - begun)
