"""The service ``nfp`` on a Flux broker, and job events through its link.

Concurrency: one event loop, that of the NFP broker. Jobs do not depend on the link: while it is gone they go on, and
callers find them again by uuid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.client import Handle, Limits, Service
from broker.client.service_link import ServiceLink
from broker.identity import Role
from broker.nfp.contract import JobEvent
from broker.nfp.server.broker import NfpBroker
from broker.nfp.service.handlers import Handlers
from broker.nfp.service.payloads import SERVICE
from broker.nfp.service.publisher import EventPublisher
from broker.transport.link import Options

EVERYBODY: Final = Role.OWNER | Role.USER | Role.ADMIN
"""Who may call: rules of NFP decide what they may have done."""
TRUSTED: Final = Role.OWNER | Role.ADMIN
"""Who may see what errors of others say."""
TASKS_MAX: Final = 8192
"""Requests under way: each waits for its job."""
WAITING_MAX: Final = 1024
"""Requests that wait behind those; beyond it EAGAIN."""


class FluxService:
    """The NFP broker as a service of a Flux broker.

    Args:
        broker: the NFP broker.
        uri: the Flux broker; the connection has to be its owner's.
        announce: publish job events.
        options: what the transport should know; None: its defaults.

    Attributes:
        publisher: counts of events.
        link: to the Flux broker.
    """

    def __init__(
        self, broker: NfpBroker, uri: str, *, announce: bool = True, options: Options | None = None
    ) -> None:
        self.publisher = EventPublisher(broker.event_bus.epoch)
        limits = Limits(service_tasks=TASKS_MAX, service_waiting=WAITING_MAX)
        self.link = ServiceLink("NFP", SERVICE, uri, options, limits, self._add_methods, self._linked)
        self._broker = broker
        self._announce = announce
        self._handlers = Handlers(broker, self._writable, self._is_leaving)
        self._stopping = False
        self._end_listening: Callable[[], None] | None = None

    async def start(self) -> None:
        """Connect and register.

        Raises:
            LinkError: nobody is there, or it refuses. RpcError: EEXIST, another NFP broker is there; EPERM,
            we are a guest there.
        """
        await self.link.start()
        self._end_listening = self._broker.event_bus.listen(self._happened)

    async def stop(self) -> None:
        """Answer what waits with ECANCELED, leave; jobs go on. Harmless twice."""
        self._stopping = True
        if self._end_listening is not None:
            self._end_listening()
        await self.link.stop()
        self._handlers.close()

    def _add_methods(self, service: Service) -> None:
        for name, handler in self._handlers.table().items():
            service.add(name, handler, allow=EVERYBODY)
        service.add("calls", self._handlers.calls, allow=TRUSTED)
        service.otherwise(self._handlers.run, allow=EVERYBODY)

    def _linked(self, handle: Handle | None) -> None:
        if self._announce:
            self.publisher.handle = handle

    async def _writable(self) -> None:
        if self.link.handle is not None:
            await self.link.handle.writable()

    def _is_leaving(self) -> bool:
        return self._stopping or self.link.handle is None or self.link.handle.ended is not None

    def _happened(self, event: JobEvent, sequence: int) -> None:
        self._handlers.happened(event)
        if self._announce:
            self.publisher.happened(event, sequence)
