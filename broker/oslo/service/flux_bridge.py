"""The link to the Flux broker: made, lost, made again; the service ``oslo`` on it, and notifications through it.

Concurrency: one event loop, which waits for nothing of the pipelines (``sending``, ``listening``). While the Flux
broker is away the pipelines go on; notifications of that time are counted as lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.client import Handle, Limits, connect
from broker.errors import HeadgateError
from broker.oslo.contract import Settings
from broker.oslo.service.announce import EventAnnouncer
from broker.oslo.service.config import FluxBridgeConfig
from broker.oslo.service.handlers import EVERYBODY, Handlers
from broker.oslo.service.listening import NotificationListening
from broker.oslo.service.sending import CALLS_MAX, RequestSender
from broker.oslo.service.topics import SERVICE
from broker.transport.link import Options

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

log = logging.getLogger("headgate.oslo")

WAITING_MAX: Final = 1024
"""Requests that wait behind those under way; beyond it EAGAIN."""
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
"""Between two attempts to reach a Flux broker that is gone: twice as long each time, up to this."""

OpenSession = Callable[[Settings], "ClientSession"]


def open_client(settings: Settings) -> ClientSession:
    """The session of this process."""
    from broker.oslo.client import open_session

    return open_session(settings)


class FluxBridge:
    """The bridge of one node's pipelines on a Flux broker.

    Args:
        config: rules, times, notifications.
        uri: the Flux broker; the connection has to be its owner's.
        options: what the transport should know; None: its defaults.
        open_session: the way into the pipelines; closed by ``stop``.

    Attributes:
        announcer: counts of events.
        connections: how often a link was made.
    """

    def __init__(
        self,
        config: FluxBridgeConfig,
        uri: str,
        *,
        options: Options | None = None,
        open_session: OpenSession = open_client,
    ) -> None:
        self.announcer = EventAnnouncer(public=config.notify_public)
        self.connections = 0
        self._config = config
        self._uri = uri
        self._options = options
        self._open_session = open_session
        self._session: ClientSession | None = None
        self._sender: RequestSender | None = None
        self._listening: NotificationListening | None = None
        self._handlers: Handlers | None = None
        self._handle: Handle | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the pipelines, connect and register.

        Raises:
            LinkError: nobody is there, or it refuses. RpcError: EEXIST, another face is there; EPERM, we are a guest
            there. ConfigError: a certificate cannot be used.
        """
        try:
            self._session = await asyncio.to_thread(self._open_session, self._config.client)
            self._sender = RequestSender(self._session)
            self._handlers = Handlers(self._config, self._sender, self.status)
            await self._connect()
        except BaseException:
            await self.stop()
            raise
        if self._config.notify:
            config = self._config
            self._listening = NotificationListening(
                self._session, config.notify, config.notify_pool, self.announcer.take
            )
            self._listening.start()
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="oslo face")

    async def stop(self) -> None:
        """Answer what waits with ECANCELED, leave, close the port. Harmless twice."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await self._leave()
        if self._listening is not None:
            await self._listening.stop()
            self._listening = None
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        session, self._session = self._session, None
        if session is not None:
            await asyncio.to_thread(session.close)

    def status(self) -> dict[str, Any]:
        """What the bridge counts."""
        sender, listening = self._sender, self._listening
        return {
            "connections": self.connections,
            "calls": sender.calls if sender is not None else 0,
            "casts": sender.casts if sender is not None else 0,
            "sent": sender.sent if sender is not None else 0,
            "notifications": listening.received if listening is not None else 0,
            "notifications_lost": listening.lost if listening is not None else 0,
            "notifications_failed": listening.failed if listening is not None else 0,
            "events": self.announcer.sent,
            "events_dropped": self.announcer.dropped,
            "events_unreadable": self.announcer.unreadable,
        }

    async def _connect(self) -> None:
        assert self._handlers is not None
        limits = Limits(service_tasks=CALLS_MAX, service_waiting=WAITING_MAX)
        handle = await connect(self._uri, options=self._options, limits=limits, retries=0)
        try:
            service = handle.service(SERVICE)
            for name, (handler, allow) in self._handlers.table().items():
                service.add(name, handler, allow=allow)
            service.otherwise(self._handlers.send, allow=EVERYBODY)
            await service.open()
        except BaseException:
            await handle.close()
            raise
        self._handle = handle
        self.connections += 1
        self.announcer.handle = handle

    async def _leave(self) -> None:
        handle, self._handle, self.announcer.handle = self._handle, None, None
        if handle is not None:
            await handle.close()

    async def _keep(self) -> None:
        """Wait for the end of the link, make it again, for ever."""
        while True:
            handle = self._handle
            assert handle is not None
            error = await handle.wait_ended()
            log.warning("the link of oslo to the broker at %s has ended: %s", self._uri, error)
            try:
                await self._leave()
            except Exception:
                log.exception("the link of oslo to %s could not be closed in order", self._uri)
            await self._again()
            log.info("oslo is back at the broker at %s", self._uri)

    async def _again(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._connect()
                return
            except (HeadgateError, OSError) as error:
                log.debug("no link to %s yet: %s", self._uri, error)
            except Exception:
                log.exception("the link of oslo to %s could not be made", self._uri)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
