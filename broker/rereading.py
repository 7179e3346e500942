"""Settings that are read again while a process runs (SIGHUP): one reading after the other, and none is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from broker.errors import ConfigError

log = logging.getLogger("headgate")


class Rereading:
    """Reads again whenever it is asked to.

    Args:
        read: reads, and takes up what was read; a ConfigError that it raises is told in the log.
    """

    def __init__(self, read: Callable[[], Awaitable[object]]) -> None:
        self._read = read
        self._again = False
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Read again, after the reading under way if there is one; for a signal handler."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="reload")

    async def _run(self) -> None:
        while self._again:
            self._again = False
            try:
                await self._read()
            except ConfigError as error:
                log.error("reload refused, nothing has changed: %s", "; ".join(str(error).splitlines()))
            except Exception:
                log.exception("reload failed; what was not reached stays as it was")

    async def stop(self) -> None:
        """Give up the reading under way."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
