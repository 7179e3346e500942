"""Closed jobs are read from the store when somebody speaks of them or looks for them; the loop never waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator

from broker.nfp.dispatch import Dispatcher
from broker.nfp.dispatch.search import JobSearch
from broker.nfp.records import JobRow
from broker.nfp.server.flusher import Flusher
from broker.nfp.store import NoStore, NotStored, Store

log = logging.getLogger("headgate")
# plain, not Final: tests lower them
RETRY_S: float = 1.0
"""Between two attempts at a store that cannot be read. How long somebody waits for it is the dispatcher's to say."""
PATIENCE_S: float = 10.0
"""How long a search waits for one portion."""
_Steps = Generator[list[str], list[JobRow], None]
_Then = Callable[[JobSearch | NotStored], None]


class JobReader:
    """Reads what the dispatcher and searches want.

    Args:
        dispatcher: says what it wants. store: has it. flusher: ends the turn in which it came.
    """

    def __init__(self, dispatcher: Dispatcher, store: Store | NoStore, flusher: Flusher) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._flusher = flusher
        self._reading: asyncio.Task[None] | None = None
        self._searches: set[asyncio.Task[None]] = set()
        self._one_search = asyncio.Lock()
        self._logged = False
        dispatcher.read_with(self._read_soon)

    async def stop(self) -> None:
        """End. Harmless twice."""
        tasks = [*self._searches, *([self._reading] if self._reading is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- what the dispatcher wants -----------------------------------------------------------------

    def _read_soon(self) -> None:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="nfp job reader")

    async def _read(self) -> None:
        self._logged = False
        while uuids := self._dispatcher.to_read():
            if not await self._read_these(uuids):
                await asyncio.sleep(RETRY_S)

    async def _read_these(self, uuids: list[str]) -> bool:
        """All at once, else one by one: a damaged row costs nobody but who speaks of it. False: none was read."""
        try:
            rows = await self._store.closed(uuids)
            self._dispatcher.was_read(uuids, rows, self._flusher.clock.now())
        except Exception as error:  # besides a failing disk: what is no job
            if len(uuids) > 1:
                return any([await self._read_these([uuid]) for uuid in uuids])
            if not self._logged:
                log.exception("closed jobs cannot be read, tried again each %g s: %s", RETRY_S, error)
            self._logged = True
            return False
        self._flusher.soon()
        return True

    # -- what people look for ----------------------------------------------------------------------

    def finish(self, search: JobSearch, then: _Then) -> None:
        """Take the steps of ``search`` and call ``then`` with it, or why it failed; at once where one is enough."""
        steps = search.steps()
        uuids = next(steps, None)
        if uuids is None:
            then(search)
            return
        task = asyncio.get_running_loop().create_task(
            self._take_steps(search, steps, uuids, then), name="nfp search"
        )
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    async def _take_steps(self, search: JobSearch, steps: _Steps, uuids: list[str], then: _Then) -> None:
        try:
            while True:
                rows = await self._rows(uuids) if uuids else await asyncio.sleep(0, [])
                uuids = steps.send(rows)
        except StopIteration:
            then(search)
        except TimeoutError:
            then(NotStored(f"the store has not answered for {PATIENCE_S:g} s"))
        except NotStored as error:
            then(error)

    async def _rows(self, uuids: list[str]) -> list[JobRow]:
        """One search reads at a time, so that commits wait for one portion at most."""
        async with asyncio.timeout(PATIENCE_S), self._one_search:
            return await self._store.closed(uuids)
