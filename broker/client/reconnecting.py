"""How a lost link is followed by another one, with the pauses of ``broker.backoff``.

So the clients of a gateway that died do not all come back in one moment, and a gateway that stays away is asked less
and less often.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.backoff import Backoff
from broker.errors import LinkError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.transport.link import Link

log = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class Reconnect:
    """The longest pauses before attempts, in seconds; those of ``client.js``. Each pause is a random part of them."""

    min_s: float = 0.2
    """Before the first one; each following one is twice as long."""
    max_s: float = 10.0


class Reconnecting:
    """Dials until there is a link, or until somebody says that there will be none.

    Args:
        address: for log lines. dial: makes a link, or raises. pauses: between attempts.
    """

    __slots__ = ("_address", "_backoff", "_dial", "_since", "_task")

    def __init__(self, address: str, dial: Callable[[], Awaitable[Link]], pauses: Reconnect) -> None:
        self._address = address
        self._dial = dial
        self._backoff = Backoff(pauses.min_s, pauses.max_s)
        self._since = asyncio.get_running_loop().time()
        self._task: asyncio.Task[None] | None = None

    def begin(
        self, lost: LinkError, connected: Callable[[Link], None], given_up: Callable[[LinkError], None]
    ) -> None:
        """The link was lost: call ``connected`` with another one, or ``given_up`` with the error that ends it all."""
        log.warning("%s; connecting again", lost)
        self._task = asyncio.get_running_loop().create_task(self._work(connected, given_up), name="reconnect")

    def stop(self) -> None:
        """No more attempts."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def _work(self, connected: Callable[[Link], None], given_up: Callable[[LinkError], None]) -> None:
        clock = asyncio.get_running_loop().time
        attempt, lived_s = 0, clock() - self._since
        while True:
            await asyncio.sleep(self._backoff.after(lived_s))
            attempt, lived_s = attempt + 1, 0.0
            try:
                link = await self._dial()
            except LinkError as error:
                if error.final:
                    given_up(error)
                    return
                log.info("attempt %d: %s", attempt, error)
            except (
                Exception
            ) as error:  # a token that cannot be had now; whose function fails is somebody else's code
                log.warning("%s: attempt %d: %s", self._address, attempt, str(error) or type(error).__name__)
            else:
                log.warning("%s: connected again", self._address)
                self._since = clock()
                connected(link)
                return
