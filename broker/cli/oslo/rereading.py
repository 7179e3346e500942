"""``[oslo]`` read again for a proxy that runs (SIGHUP): what may change then, and what is refused by its name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from broker.errors import ConfigError
from broker.settings import OsloSection

log = logging.getLogger("headgate.oslo")


def read_again(before: OsloSection, read: Callable[[], OsloSection]) -> OsloSection:
    """The section as it is now.

    Raises:
        ConfigError: it cannot be read, is wrong, or changes what cannot change while the proxy runs.
    """
    after = read()
    stuck = [
        f"oslo.{name}"
        for name in OsloSection.__struct_fields__
        if name not in OsloSection.LATE and getattr(before, name) != getattr(after, name)
    ]
    if stuck:
        raise ConfigError(f"{', '.join(stuck)}: cannot change while the proxy runs: restart it")
    return after


class Rereading:
    """Reads the section again for the processes beside this one, one time after the other.

    Args:
        section: in force.
        read: reads it; may block.
        tell: is given what was read.
    """

    def __init__(
        self, section: OsloSection, read: Callable[[], OsloSection], tell: Callable[[OsloSection], None]
    ) -> None:
        self._section = section
        self._read = read
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def request(self) -> None:
        """Read again, after the reading under way if there is one; for a signal handler."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="reload")

    async def _run(self) -> None:
        while self._again:
            self._again = False
            try:
                self._section = await asyncio.to_thread(read_again, self._section, self._read)
            except ConfigError as error:
                log.error("reload refused, nothing has changed: %s", "; ".join(str(error).splitlines()))
            else:
                self._tell(self._section)
