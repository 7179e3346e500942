"""``[oslo]`` read again for a proxy that runs (SIGHUP): what may change then, and what is refused by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.errors import ConfigError
from broker.rereading import Rereading
from broker.settings import OsloSection


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


class OsloRereading(Rereading):
    """Reads the section again for the processes beside this one.

    Args:
        section: in force.
        read: reads it; may block.
        tell: is given what was read.
    """

    def __init__(
        self, section: OsloSection, read: Callable[[], OsloSection], tell: Callable[[OsloSection], None]
    ) -> None:
        async def renew() -> None:
            nonlocal section
            section = await asyncio.to_thread(read_again, section, read)
            tell(section)

        super().__init__(renew)
