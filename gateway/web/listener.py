"""One place where web clients connect: its socket, TLS, PROXY header; aiohttp parses HTTP.

Accepting waits for nobody: PROXY headers and TLS handshakes are under way beside it, each with a slot among the
strangers of `admission`, whose caps end the oldest when newcomers come. A connection ends by a shutdown of its
socket, which is the end for whoever reads from it at that moment; asyncio then cleans up as for any other end. When
the process is out of file descriptors, idle connections end, accepting rests and goes on. A TLS handshake begins when
the client's first bytes are there, and few begin at a time: each costs as much as a thousand messages.

The PROXY header comes before the TLS handshake, so it has to be read from the plain socket, and not a byte further:
what follows belongs to TLS. `proxyheader.Header` says how many bytes surely are header; so many are read, and the
socket then goes to asyncio like any accepted one. For everything above, the connection's ``peername`` is the client's
(`ProxiedAddress`, which has the proxy's, too): aiohttp, its log and WebSocket links need not know. Connections of
others carry no header: if one sends it, it is bad HTTP or bad TLS, and refused as that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from broker import listening
from broker.endpoints import Endpoint
from broker.errors import ProtocolError
from broker.obstacles import obstacle
from broker.rates import Bucket
from gateway.identity.proxies import Networks, ProxiedAddress, address_of
from gateway.identity.proxyheader import Header
from gateway.settings.addresses import place_of
from gateway.web.admission import LINE_S, Admission, Slot, key_of
from gateway.web.connections import Connection

if TYPE_CHECKING:
    import ssl

    from gateway.settings.schema import GatewaySettings, ListenEntry


HEADER_S: Final = 5.0
"""Longest time for the header: a proxy sends it at once."""
BURST: Final = 32
"""Connections accepted at a time: what others sent is read in between."""
PAUSE_S: Final = 1.0
"""How long accept rests when the process is out of file descriptors."""
ROOM_S: Final = 0.01
"""How long it rests when all who came before are still to say their first word: then some of them have."""
SHED_S: Final = 0.05
"""How long it rests when connections ended for those that wait: until their descriptors are free."""
HANDSHAKES: Final = 4
"""TLS handshakes that begin in one turn of the loop: some 4 ms with RSA keys of 2048 bits."""
TLS_END_S: Final = 5.0
"""How long a peer may take to answer the end of TLS; asyncio's 30 s are descriptors for who answers nothing."""

_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_CLOSED: Final = frozenset({errno.EBADF, errno.EINVAL})
log = logging.getLogger("headgate")

ProtocolFactory = Callable[[Slot, float], asyncio.BaseProtocol]
"""Makes the protocol of a connection: its slot, and until when (loop time) its first request has to be there."""


def _nothing() -> None:
    """What ends a connection that has ended."""


class Accepted(socket.socket):
    """An accepted socket, counted until it is closed; its peer is, for those who ask, the client and not the proxy."""

    __slots__ = ("_admission", "client", "slot")

    def __init__(self, sock: socket.socket, admission: Admission) -> None:
        super().__init__(sock.family, sock.type, sock.proto, fileno=sock.detach())
        self.setblocking(False)
        self.slot = Slot(self.cut)
        self.client: ProxiedAddress | None = None
        self._admission: Admission | None = admission
        admission.sockets += 1

    def getpeername(self) -> Any:
        """Address and port of the client."""
        return super().getpeername() if self.client is None else self.client

    def cut(self) -> None:
        """End the connection, whoever reads from it."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it, and leave its slot."""
        super().close()
        if self._admission is not None:
            self._admission.sockets -= 1
            self._admission = None
            self.slot.release()
            self.slot.abort = _nothing  # whose method it was would else be in a cycle with this


class Turns:
    """Lets a few wait for the next turn of the loop, so that whatever else is ready is done in between.

    Args:
        each: so many go on in one turn.
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for a place in a turn, in the order of coming."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._release, loop)
        mine = loop.create_future()
        self._waiting.append(mine)
        await mine

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        left = self._each
        while self._waiting and left:
            each = self._waiting.popleft()
            if not each.done():  # else it was given up
                each.set_result(None)
                left -= 1
        if self._waiting:
            loop.call_soon(self._release, loop)


class Acceptor:
    """Accepts on one listening socket until closed.

    Args:
        sock: bound; it is closed with the acceptor.
        factory: see `ProtocolFactory`.
        admission: how many connections there may be.
        proxies: their connections are of many clients, and count for no cap of one address.
        header: whether connections of proxies begin with a PROXY header; then the client in it counts.
        tls: context of an https listener.
        head_s: longest time from accept to the end of the TLS handshake, and to the first request.
    """

    def __init__(
        self,
        sock: socket.socket,
        factory: ProtocolFactory,
        admission: Admission,
        *,
        proxies: Networks | None = None,
        header: bool = False,
        tls: ssl.SSLContext | None = None,
        head_s: float = 10.0,
        backlog: int = 4096,
    ) -> None:
        self._sock = sock
        self._factory = factory
        self._admission = admission
        self._proxies = proxies or Networks()
        self._header = header
        self._tls = tls
        self._head_s = head_s
        self._loop = asyncio.get_running_loop()
        self._opening: dict[asyncio.Task[None], Accepted] = {}
        self._turns = Turns(HANDSHAKES)
        self._rest: asyncio.TimerHandle | None = None
        self._lines = Bucket(1 / LINE_S, 1, self._loop.time())
        sock.setblocking(False)
        sock.listen(backlog)
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Accept no more; connections that are not served yet are dropped, those that are stay.

        The address is free at once: who connects from now on is refused instead of waiting in vain.
        """
        # workers share the port: ours has to be closed for the kernel to choose others
        if self._sock.fileno() >= 0:
            self._pause()
            self._sock.close()
        for sock in self._opening.values():
            sock.cut()

    async def wait_closed(self) -> None:
        """Wait for the end of what `close` dropped."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    # ------------------------------------------------------------ accepting

    def _accept(self) -> None:
        for _ in range(BURST):
            if rest_s := self._admission.rest_s():
                self._pause()
                self._rest = self._loop.call_later(min(rest_s, ROOM_S), self._go_on)
                return
            try:
                sock, name = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._failed(error)
                return
            self._take(Accepted(sock, self._admission), name)

    def _failed(self, error: OSError) -> None:
        """A connection that failed before it was accepted costs nothing; being out of descriptors does."""
        if error.errno in _CLOSED:
            self._pause()
            log.error("accept ended: %s", error)
        elif error.errno in _EXHAUSTED:
            seconds = SHED_S if self._admission.shed() else PAUSE_S
            self._admission.pauses += 1
            if self._lines.grant(self._loop.time(), 1):
                log.error("accept: %s; resting %g s", error.strerror, seconds)
            self._pause()
            self._rest = self._loop.call_later(seconds, self._go_on)

    def _pause(self) -> None:
        self._loop.remove_reader(self._sock)
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _go_on(self) -> None:
        self._rest = None
        self._loop.add_reader(self._sock, self._accept)

    def _take(self, sock: Accepted, name: Any) -> None:
        proxied = address_of(name) in self._proxies
        if not self._admission.admit(sock.slot, None if proxied else key_of(_host(name))):
            sock.close()
            return
        opening = self._open(sock, name, proxied and self._header)
        task = self._loop.create_task(opening, name=f"accept {name}")
        self._opening[task] = sock
        task.add_done_callback(self._opening.pop)

    # ------------------------------------------------------------ what comes before HTTP

    async def _open(self, sock: Accepted, name: Any, header: bool) -> None:
        deadline = self._loop.time() + self._head_s
        try:
            if header:
                await self._read_source(sock, name)
            if self._tls is not None:
                await self._hello(sock, deadline)
            await self._loop.connect_accepted_socket(
                functools.partial(self._factory, sock.slot, deadline),
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=max(0.1, deadline - self._loop.time()) if self._tls else None,
                ssl_shutdown_timeout=TLS_END_S if self._tls else None,
            )
        except (OSError, TimeoutError, ProtocolError) as error:  # ssl.SSLError is an OSError
            log.debug("connection of %s: %r", name, error)
            sock.close()
        except BaseException as error:
            sock.close()
            if not isinstance(error, Exception):
                raise
            log.exception("connection of %s: a fault while it was opened", name)

    async def _hello(self, sock: Accepted, deadline: float) -> None:
        """Wait for the first bytes of a TLS client, and for the turn of its handshake."""
        there = self._loop.create_future()
        self._loop.add_reader(sock, _set, there)
        try:
            async with asyncio.timeout_at(deadline):
                await there
        finally:
            self._loop.remove_reader(sock)
        # a handshake of RSA takes a millisecond of the loop, and thousands may come at once
        await self._turns.wait()

    async def _read_source(self, sock: Accepted, name: Any) -> None:
        """Read the header; from now on the client in it counts."""
        async with asyncio.timeout(HEADER_S):
            source = await _read_header(sock)
        if source is not None:
            sock.client = ProxiedAddress(*source, _host(name))
            sock.slot.move(self._admission.strangers, key_of(source[0]))


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _host(name: Any) -> str:
    """The IP address of a ``peername``, or ``unix``."""
    return str(name[0]) if isinstance(name, tuple) else "unix"


async def _read_header(sock: socket.socket) -> tuple[str, int] | None:
    loop = asyncio.get_running_loop()
    header = Header()
    while not header.done:
        data = await loop.sock_recv(sock, header.need)
        if not data:
            raise ProtocolError("the connection ended within the PROXY header")
        header.feed(data)
    return header.source


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


def bind_all(
    settings: GatewaySettings, *, shared: bool = False, ports: int = 1
) -> list[tuple[socket.socket, Endpoint]]:
    """As ``bind``, for each of ``[[listen]]``, and the last one for ``metrics_listen``, where that is set.

    Raises:
        ConfigError: one of the addresses cannot be used.
    """
    urls = [entry.url for entry in settings.listen]
    if settings.gateway.metrics_listen is not None:
        urls.append(settings.gateway.metrics_listen)
    found: list[tuple[socket.socket, Endpoint]] = []
    with contextlib.ExitStack() as opened:
        for url in urls:
            found.append(bind(place_of(url), shared=shared, ports=ports))
            opened.enter_context(found[-1][0])
        opened.pop_all()
    return found


def bind(place: Endpoint, *, shared: bool = False, ports: int = 1) -> tuple[socket.socket, Endpoint]:
    """A bound socket that does not listen yet, and ``place`` with its port.

    Args:
        place: where.
        shared: other processes bind it, too.
        ports: so many are tried, from that of ``place`` on, unless that is 0.

    Raises:
        ConfigError: the address cannot be used.
    """
    at = listening.listening_at(place, protected=True, insecure=False)  # plaintext is the settings' matter
    tried = ports if at.port else 1
    sock, bound = listening.bind(
        at, shared=shared, mode=0o660, ports=tried
    )  # the proxy in front shares our group
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
