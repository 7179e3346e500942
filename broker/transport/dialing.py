"""Connections of TCP and of UNIX sockets, none of which blocks; and the steps that all dialers share: look up a name,
try its addresses, within a time, and converse before the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import threading
from asyncio.staggered import staggered_race
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from broker import trust
from broker.endpoints import Endpoint, hosts_of, numeric
from broker.errors import LinkBroken, LinkEnded, LinkRefused
from broker.sockets import Address, tcp_address, unix_address

log = logging.getLogger("headgate")

CONNECT_S: Final = 3.0
"""A host that does not answer is given up after so long, and dialled anew by the caller that waits for it: TCP itself
would ask later and later, and a host that comes up meanwhile would wait for it."""
CONNECT_RETRY_S: Final = 0.01
"""Pause before another try to join the full queue of a UNIX socket."""
HANDSHAKE_S: Final = 10.0
"""A connection that did not finish its handshake by then is dropped."""
_KIND: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
NEXT_ADDRESS_S: Final = 0.25
"""One that does not answer keeps us from the next address of a name no longer ..."""
ADDRESS_S: Final = 5.0
"""... nor does one that answers, and then says nothing."""
LOOK_AGAIN_S: Final = 1.0
"""A look-up that takes longer is begun once more beside the first."""
LOOKS_MAX: Final = 32
"""Look-ups of one name beside each other: each is a thread that waits."""
_READ_BYTES: Final = 4096
T = TypeVar("T")


class Probing(NamedTuple):
    """How TCP finds out that the other machine is gone. It cannot see a process that is frozen while its kernel goes
    on: each protocol counts silence for itself.
    """

    idle_s: int = 5
    """After so long without a packet of the peer TCP asks whether it is there ..."""
    interval_s: int = 5
    """... and so often while it does not answer ..."""
    probes: int = 3
    """... until so many probes were in vain: a machine that is gone is known after 20 s, whether anything was sent or
    not."""
    unconfirmed_ms: int = 20_000
    """TCP_USER_TIMEOUT: a connection on which what was sent, or a probe, is not acknowledged for so long is lost; as in
    deployed Flux."""


PROBING: Final = Probing()


def tune(sock: socket.socket, probing: Probing = PROBING) -> None:
    """Set the options that every connection of TCP has: no waiting for more to send, and an end when the other machine
    is gone.
    """
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probing.idle_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probing.interval_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probing.probes)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, probing.unconfirmed_ms)


async def connect(place: Endpoint, *, proven: bool = False) -> socket.socket:
    """Connect to ``place``, which is of numbers, or a UNIX socket.

    Args:
        place: where to.
        proven: the peer will prove a key; otherwise a local one must be somebody whom we trust.

    Raises:
        LinkRefused: it is not. LinkBroken: a host that does not answer within ``CONNECT_S``. OSError: nobody there.
    """
    with ExitStack() as opened:
        if place.is_unix:
            sock = opened.enter_context(socket.socket(socket.AF_UNIX, _KIND))
            await _connect_unix(sock, place, proven)
        else:
            family, address = tcp_address(place.host, place.port)
            sock = opened.enter_context(socket.socket(family, _KIND))
            await _connect_tcp(sock, place, address)
            tune(sock)
        opened.pop_all()
    return sock


async def _connect_tcp(sock: socket.socket, place: Endpoint, address: Address) -> None:
    try:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(sock, address)
    except TimeoutError as error:
        raise LinkBroken(f"{place.text}: no answer within {CONNECT_S:g} s", errno.ETIMEDOUT) from error
    except OSError as error:  # asyncio says what it called with which numbers
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error


async def _connect_unix(sock: socket.socket, place: Endpoint, proven: bool) -> None:
    while True:
        try:
            if proven:
                sock.connect(unix_address(place.host))
            else:
                trust.connect(sock, place.host)
        except trust.Untrusted as error:
            raise LinkRefused(f"{place.text} is not spoken to: {error.strerror}", error.errno) from None
        except BlockingIOError:  # a full queue fails at once
            await asyncio.sleep(CONNECT_RETRY_S)
        else:
            return


@asynccontextmanager
async def attempt(address: str, limit_s: float, awaited: str) -> AsyncIterator[ExitStack]:
    """An attempt within ``limit_s`` (0: without limit). If it fails, everything entered into the stack is closed.

    Raises:
        LinkBroken: what is ``awaited`` did not come in time; or an OSError was raised.
    """
    with ExitStack() as opened:
        try:
            async with asyncio.timeout(limit_s or None):
                yield opened
        except OSError as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # ours, and not what the system says
                text = f"{address}: no {awaited} within {limit_s:g} s"
                raise LinkBroken(text, errno.ETIMEDOUT) from error
            text = f"cannot connect to {address}: {error.strerror or error}"
            raise LinkBroken(text, error.errno or errno.ECONNREFUSED) from error
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


async def open_first(
    places: Sequence[Endpoint], shake_hands: Callable[[socket.socket], Awaitable[T]], *, proven: bool = False
) -> T:
    """Connect to the first of ``places`` that answers, and shake hands; go on to the others where that fails.

    Args:
        places: of one name (``resolve``), or a UNIX socket.
        shake_hands: makes what is returned of a socket, which is its own if it succeeds, and else closed.
        proven: see ``connect``.

    Raises:
        LinkRefused: one of them does not let us in. LinkBroken, LinkEnded, OSError: what became of the last one.
    """
    left = list(places)
    while True:
        sock, place = await _connect_first(left, proven)
        left.remove(place)
        try:
            async with asyncio.timeout(ADDRESS_S if left else None):
                return await shake_hands(sock)
        except BaseException as error:
            sock.close()
            if not left or not isinstance(error, OSError | LinkBroken | LinkEnded):
                raise


async def _connect_first(places: Sequence[Endpoint], proven: bool) -> tuple[socket.socket, Endpoint]:
    """The next one is tried beside one that has not answered for ``NEXT_ADDRESS_S``."""
    made: list[tuple[socket.socket, Endpoint]] = []  # a race that is cancelled forgets who has won

    async def attempt_at(place: Endpoint) -> None:
        made.append((await connect(place, proven=proven), place))

    first = None
    try:
        _, _, failures = await staggered_race([partial(attempt_at, each) for each in places], NEXT_ADDRESS_S)
        if not made:
            raise next(error for error in reversed(failures) if error is not None)
        first = made.pop(0)
    finally:
        for sock, _place in made:
            sock.close()
    return first


async def resolve(endpoint: Endpoint) -> list[Endpoint]:
    """``endpoint`` with its host as numbers, every address that the name has now.

    Raises:
        LinkBroken: the name has no address (EHOSTUNREACH).
    """
    host = endpoint.host
    if endpoint.is_unix or host == "*" or numeric(host) is not None:
        return [endpoint]
    try:
        found = await _looked_up(host)
    except (OSError, UnicodeError) as error:  # or what cannot be asked for
        why = getattr(error, "strerror", None) or error
        text = f"{endpoint.text}: cannot resolve {host!r}: {why}"
        raise LinkBroken(text, errno.EHOSTUNREACH) from error
    return [endpoint._replace(host=each) for each in found]


async def _looked_up(host: str) -> list[str]:
    """The addresses of ``host``.

    In threads that nobody waits for: a name server that is away takes 10 s and more not to answer, and a process that
    leaves would wait for what ``loop.getaddrinfo`` has begun. Meanwhile it is asked again every ``LOOK_AGAIN_S``, since
    what the resolver waits for may be the answer to a question that was lost; the first answer counts.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[list[str]] = loop.create_future()

    def answered(found: list[str], error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(found)

    def look() -> None:
        found, failed = [], None
        try:
            found = hosts_of(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        except Exception as error:  # also a name that cannot be encoded: whoever asked is told
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(answered, found, failed)

    try:
        for number in range(LOOKS_MAX):
            threading.Thread(target=look, name=f"look up {host}", daemon=True).start()
            await asyncio.wait([done], timeout=LOOK_AGAIN_S)
            if done.done():
                break
            if not number:
                log.warning(
                    "no name server has answered yet where %s is; it is asked again every second", host
                )
        return await done
    finally:
        done.cancel()
