"""The link to the Flux broker: made, lost, made again; the service ``nfp`` on it, and job events through it.

Concurrency: one event loop, that of the NFP broker. Jobs do not depend on the link: while it is gone they go on, and
callers find them again by uuid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from typing import Final

from broker.client import Handle, Limits, connect
from broker.errors import HeadgateError
from broker.identity import Role
from broker.nfp.contract import JobEvent
from broker.nfp.server.broker import NfpBroker
from broker.nfp.service.handlers import Handlers
from broker.nfp.service.payloads import SERVICE
from broker.nfp.service.publisher import EventPublisher
from broker.supervision import Pauses
from broker.transport.link import Options

log = logging.getLogger("headgate")

EVERYBODY: Final = Role.OWNER | Role.USER | Role.ADMIN
"""Who may call: rules of NFP decide what they may have done."""
TRUSTED: Final = Role.OWNER | Role.ADMIN
"""Who may see what errors of others say."""
TASKS_MAX: Final = 8192
"""Requests under way: each waits for its job."""
WAITING_MAX: Final = 1024
"""Requests that wait behind those; beyond it EAGAIN."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
"""Between two attempts to reach a Flux broker that is gone: twice as long each time, up to this."""


class FluxService:
    """The NFP broker as a service of a Flux broker.

    Args:
        broker: the NFP broker.
        uri: the Flux broker; the connection has to be its owner's.
        announce: publish job events.
        options: what the transport should know; None: its defaults.

    Attributes:
        publisher: counts of events.
        connections: how often a link was made.
    """

    def __init__(
        self, broker: NfpBroker, uri: str, *, announce: bool = True, options: Options | None = None
    ) -> None:
        self.publisher = EventPublisher(broker.event_bus.epoch)
        self.connections = 0
        self._broker = broker
        self._uri = uri
        self._announce = announce
        self._options = options
        self._handlers = Handlers(broker, self._writable, self._is_leaving)
        self._handle: Handle | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = False
        self._end_listening: Callable[[], None] | None = None

    async def start(self) -> None:
        """Connect and register.

        Raises:
            LinkError: nobody is there, or it refuses. RpcError: EEXIST, another NFP broker is there; EPERM,
            we are a guest there.
        """
        await self._connect()
        self._end_listening = self._broker.event_bus.listen(self._happened)
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="nfp flux service")

    async def stop(self) -> None:
        """Answer what waits with ECANCELED, leave; jobs go on. Harmless twice."""
        self._stopping = True
        if self._end_listening is not None:
            self._end_listening()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await self._leave()
        self._handlers.close()

    async def _connect(self) -> None:
        limits = Limits(service_tasks=TASKS_MAX, service_waiting=WAITING_MAX)
        handle = await connect(self._uri, options=self._options, limits=limits, retries=0)
        try:
            service = handle.service(SERVICE)
            for name, handler in self._handlers.table().items():
                service.add(name, handler, allow=EVERYBODY)
            service.add("calls", self._handlers.calls, allow=TRUSTED)
            service.otherwise(self._handlers.run, allow=EVERYBODY)
            await service.open()
        except BaseException:
            await handle.close()
            raise
        self._handle = handle
        self.connections += 1
        if self._announce:
            self.publisher.handle = handle

    async def _leave(self) -> None:
        handle, self._handle, self.publisher.handle = self._handle, None, None
        if handle is not None:
            await handle.close()

    async def _keep(self) -> None:
        """Wait for the end of the link, make it again, for ever."""
        while True:
            handle = self._handle
            assert handle is not None
            error = await handle.wait_ended()
            log.warning("the link of NFP to the broker at %s has ended: %s", self._uri, error)
            try:
                await self._leave()
            except Exception:
                log.exception("the link of NFP to %s could not be closed in order", self._uri)
            await self._again()
            log.info("NFP is back at the broker at %s", self._uri)

    async def _again(self) -> None:
        pauses = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, inf)
        while True:
            await asyncio.sleep(pauses.after(0.0))
            try:
                await self._connect()
                return
            except (HeadgateError, OSError) as error:
                log.debug("no link to %s yet: %s", self._uri, error)
            except Exception:
                log.exception("the link of NFP to %s could not be made", self._uri)

    async def _writable(self) -> None:
        if self._handle is not None:
            await self._handle.writable()

    def _is_leaving(self) -> bool:
        return self._stopping or self._handle is None or self._handle.ended is not None

    def _happened(self, event: JobEvent, sequence: int) -> None:
        self._handlers.happened(event)
        if self._announce:
            self.publisher.happened(event, sequence)
