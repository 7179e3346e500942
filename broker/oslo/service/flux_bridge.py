"""The service ``oslo`` on a Flux broker, and notifications through its link.

Concurrency: one event loop, which waits for nothing of the pipelines (``sending``, ``listening``). While the Flux
broker is away the pipelines go on; notifications of that time are counted as lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.client.bridge import Bridge
from broker.oslo.contract import Settings
from broker.oslo.service.announce import EventAnnouncer
from broker.oslo.service.config import FluxBridgeConfig
from broker.oslo.service.handlers import Handlers
from broker.oslo.service.listening import NotificationListening
from broker.oslo.service.sending import RequestSender
from broker.oslo.service.topics import SERVICE
from broker.transport.link import Options

if TYPE_CHECKING:
    from broker.oslo.client.session import ClientSession

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
        self._bridge = Bridge("oslo", SERVICE, uri, options, self.announcer)
        self._config = config
        self._open_session = open_session
        self._session: ClientSession | None = None
        self._sender: RequestSender | None = None
        self._listening: NotificationListening | None = None

    async def start(self) -> None:
        """Open the pipelines, connect and register.

        Raises:
            LinkError: nobody is there, or it refuses. RpcError: EEXIST, another bridge is there; EPERM, we are a guest
            there. ConfigError: a certificate cannot be used.
        """
        try:
            self._session = await asyncio.to_thread(self._open_session, self._config.client)
            self._sender = RequestSender(self._session)
            await self._bridge.start(Handlers(self._config, self._sender, self.status).table())
        except BaseException:
            await self.stop()
            raise
        if self._config.notify:
            config = self._config
            self._listening = NotificationListening(
                self._session, config.notify, config.notify_pool, self.announcer.take
            )
            self._listening.start()

    async def stop(self) -> None:
        """Answer what waits with ECANCELED, leave, close the port. Harmless twice."""
        await self._bridge.stop()
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
            "connections": self._bridge.connections,
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
