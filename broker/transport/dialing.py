"""What dialers have in common: a time for it all, a connection of TCP, a conversation before there is a link."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from asyncio.staggered import staggered_race
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final

from broker.errors import LinkBroken

NEXT_ADDRESS_S: Final = 0.25
_READ_BYTES: Final = 4096


@asynccontextmanager
async def attempt(address: str, limit_s: float, awaited: str) -> AsyncIterator[ExitStack]:
    """What a dialer tries within ``limit_s`` (0: without limit). If it fails, what it entered into the stack is closed.

    Raises:
        LinkBroken: what is ``awaited`` did not come in time; or an OSError was raised.
    """
    with ExitStack() as opened:
        try:
            async with asyncio.timeout(limit_s or None):
                yield opened
        except TimeoutError as error:
            text = f"{address}: no {awaited} within {limit_s:g} s"
            raise LinkBroken(text, errno.ETIMEDOUT) from error
        except OSError as error:
            number = errno.EHOSTUNREACH if isinstance(error, socket.gaierror) else error.errno
            text = f"cannot connect to {address}: {error.strerror or error}"
            # several addresses, one failure each: no number of its own
            raise LinkBroken(text, number or errno.ECONNREFUSED) from error
        opened.pop_all()


async def converse(
    sock: socket.socket,
    take_owed: Callable[[], bytes | bytearray],
    feed: Callable[[bytes], object],
    is_over: Callable[[], Any],
) -> Any:
    """The dialer's side: send what is owed and take what comes, until ``is_over``; returns what that said.

    Raises:
        ConnectionResetError: the peer hung up before. OSError: the connection broke.
    """
    loop = asyncio.get_running_loop()
    while True:
        if owed := take_owed():
            with contextlib.suppress(ConnectionError):  # what the peer said before it hung up says why
                await loop.sock_sendall(sock, owed)
        if over := is_over():
            return over
        data = await loop.sock_recv(sock, _READ_BYTES)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "hung up during the handshake")
        feed(data)


async def connect_tcp(host: str, port: int, scheme: str = "tcp") -> socket.socket:
    """The first address of a name that answers; the next one is tried beside one that has not for ``NEXT_ADDRESS_S``.

    Raises:
        LinkBroken: the name has no address. OSError: nobody there.
    """
    # late: whoever dials a UNIX socket looks no name up
    from broker.transport.zeromq.address import Endpoint, resolve

    places = await resolve(Endpoint(scheme, host, port))
    tries = [partial(_connected, place.host, place.port) for place in places]
    sock: socket.socket | None
    sock, _which, failures = await staggered_race(tries, NEXT_ADDRESS_S)
    if sock is None:
        raise next(error for error in reversed(failures) if error is not None)
    return sock


async def _connected(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock
