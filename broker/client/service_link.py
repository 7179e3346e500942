"""A service over a link of its own, which is made again, with the service on it, whenever it ends.

For what goes on without the broker: over ``local://`` and ZeroMQ a Handle's link is its last one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from broker.backoff import Backoff
from broker.client.dialing import connect
from broker.client.handle import Handle
from broker.client.limits import Limits
from broker.client.service import Service
from broker.errors import HeadgateError
from broker.transport.link import Options

log = logging.getLogger("headgate")

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
"""Between two attempts to reach a broker that is gone: twice as long each time, up to this."""


class ServiceLink:
    """One service on one broker, until ``stop``.

    Args:
        who: has it, for the log.
        name: of the service.
        uri: the broker.
        options: what the transport should know; None: its defaults.
        limits: of the Handle.
        add_methods: gives the service its methods, over each link anew.
        changed: told of each Handle, and None when that has ended.

    Attributes:
        handle: None while there is none.
        connections: how often a link was made.
    """

    def __init__(
        self,
        who: str,
        name: str,
        uri: str,
        options: Options | None,
        limits: Limits,
        add_methods: Callable[[Service], None],
        changed: Callable[[Handle | None], None],
    ) -> None:
        self.handle: Handle | None = None
        self.connections = 0
        self._who = who
        self._name = name
        self._uri = uri
        self._options = options
        self._limits = limits
        self._add_methods = add_methods
        self._changed = changed
        self._keeping: asyncio.Task[None] | None = None
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    async def start(self) -> None:
        """Connect and register.

        Raises:
            LinkError: nobody is there, or it refuses. RpcError: EEXIST, the name is taken; EPERM, we are a guest there.
        """
        await self._connect()
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name=f"service {self._name}")

    async def stop(self) -> None:
        """Answer what waits with ECANCELED, leave. Harmless twice."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await self._leave()

    async def _connect(self) -> None:
        handle = await connect(self._uri, options=self._options, limits=self._limits, retries=0)
        try:
            service = handle.service(self._name)
            self._add_methods(service)
            await service.open()
            self._changed(handle)
        except BaseException:
            await handle.close()  # or the name would stay taken
            raise
        self.handle = handle
        self.connections += 1

    async def _leave(self) -> None:
        handle, self.handle = self.handle, None
        self._changed(None)
        if handle is not None:
            await handle.close()

    async def _keep(self) -> None:
        """Wait for the end of the link, make it again, for ever."""
        clock = asyncio.get_running_loop().time
        while True:
            assert self.handle is not None
            began = clock()
            error = await self.handle.wait_ended()
            log.warning("the link of %s to the broker at %s has ended: %s", self._who, self._uri, error)
            try:
                await self._leave()
            except Exception:
                log.exception("the link of %s to %s could not be closed in order", self._who, self._uri)
            await self._again(clock() - began)
            log.info("%s is back at the broker at %s", self._who, self._uri)

    async def _again(self, lived_s: float) -> None:
        while True:
            await asyncio.sleep(self._backoff.after(lived_s))
            lived_s = 0.0
            try:
                await self._connect()
                return
            except (HeadgateError, OSError) as error:
                log.debug("no link to %s yet: %s", self._uri, error)
            except Exception:
                log.exception("the link of %s to %s could not be made", self._who, self._uri)
