"""One place where web clients connect: its socket, TLS, PROXY header; aiohttp parses HTTP."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from broker import listening
from broker.endpoints import Endpoint
from broker.obstacles import obstacle
from gateway.identity.proxies import Networks
from gateway.settings.addresses import place_of
from gateway.web.acceptor import Acceptor
from gateway.web.admission import Admission, Slot
from gateway.web.connections import Connection

if TYPE_CHECKING:
    import ssl

    from gateway.settings.schema import ListenEntry

log = logging.getLogger("headgate")

BACKLOG: Final = 4096
"""Connections that may wait for accept: a burst of reconnecting clients."""
KEEPALIVE_S: Final = 75.0
"""An idle HTTP connection is closed after this long; longer than the 60 s of common proxies."""
SHUTDOWN_S: Final = 0.5
"""How long handlers may take, and cancelled as long again, when the gateway ends: their sessions ended before."""
HEAD_BYTES: Final = 16384
"""Longest request line and header field."""


class AccessLog(AbstractAccessLogger):
    """One line a request at level debug: never the query, which may hold what is nobody's business."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Note one request."""
        self.logger.debug(
            "%s %s %s %d %.1f ms",
            request.remote,
            request.method,
            request.rel_url.raw_path,  # as it came, so that no line of it looks like one of ours
            response.status,
            time * 1000,
        )

    @property
    def enabled(self) -> bool:
        """Whether anybody reads it."""
        return self.logger.isEnabledFor(logging.DEBUG)


def bind(place: Endpoint, *, shared: bool = False) -> tuple[socket.socket, Endpoint]:
    """A bound socket that does not listen yet, and ``place`` with its port; ``shared``: other processes bind it, too.

    Raises:
        ConfigError: the address cannot be used.
    """
    at = listening.listening_at(place, protected=True, insecure=False)  # plaintext is the settings' matter
    sock, bound = listening.bind(at, shared=shared, mode=0o660)  # the proxy in front shares our group
    return sock, place._replace(port=bound.port)


class Listener:
    """Accepts web clients at one place.

    Args:
        entry: what the settings say. app: the routes.
        admission: how many connections this process may have.
        sock: bound already, for workers; None binds.
        tls: context of an https listener; its certificates may be renewed while it is used.
        head_s: how long a request head may take.
    """

    def __init__(
        self,
        entry: ListenEntry,
        app: web.Application,
        admission: Admission,
        *,
        sock: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
        head_s: float = 10.0,
    ) -> None:
        self.entry = entry
        self.app = app
        self.place = place_of(entry.url)
        self._admission = admission
        self._sock = sock
        self._shared = sock is not None
        self._tls = tls
        self._head_s = head_s
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S)
        self._acceptor: Acceptor | None = None

    @property
    def url(self) -> str:
        """Where it listens, as bound."""
        return self.place.text

    async def start(self) -> Any:
        """Bind and accept; returns the socket's own address (``getsockname``).

        Raises:
            ConfigError: the address cannot be used.
        """
        await self._runner.setup()
        if self._sock is None:
            sock, self.place = bind(self.place)
        else:
            sock = self._sock
            if not self.place.is_unix:
                self.place = self.place._replace(port=sock.getsockname()[1])
        sockname = sock.getsockname()
        try:
            self._acceptor = self._accept(sock)
            return sockname
        except OSError as error:
            sock.close()
            raise obstacle(
                f"cannot listen at {self.place.text}: {error.strerror or error}", error, port=self.place.port
            ) from error

    def _accept(self, sock: socket.socket) -> Acceptor:
        return Acceptor(
            sock,
            self._connection,
            self._admission,
            proxies=Networks(self.entry.trusted_proxies),
            header=self.entry.proxy_protocol,
            tls=self._tls,
            head_s=self._head_s,
            backlog=BACKLOG,
        )

    def _connection(self, slot: Slot, deadline: float) -> Connection:
        server = self._runner.server
        assert server is not None
        return Connection(
            server,
            self._admission,
            slot,
            deadline,
            self._head_s,
            keepalive_timeout=KEEPALIVE_S,
            access_log_class=AccessLog,
            access_log=log,
            max_line_size=HEAD_BYTES,
            max_field_size=HEAD_BYTES,
        )

    def refuse(self) -> None:
        """Accept no more; connections that exist stay."""
        if self._acceptor is not None:
            self._acceptor.close()
            if self.place.is_unix and not self._shared:
                with contextlib.suppress(OSError):
                    os.unlink(self.place.path)

    async def stop(self) -> None:
        """Close what is left."""
        self.refuse()
        if self._acceptor is not None:
            await self._acceptor.wait_closed()
        await self._runner.cleanup()
