"""Sockets that listen, of TCP and of files, bound alike by all rooms. None of them blocks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from struct import pack
from typing import Final

from broker.endpoints import Endpoint, check_secrecy, is_wildcard, listening_host
from broker.errors import ConfigError
from broker.obstacles import obstacle
from broker.sockets import Address, tcp_address, unix_address

BACKLOG: Final = 1024
"""Connections that may wait for accept, as far as the system lets them; deployed flux-core has 5, which a burst of
clients overruns. Whom TCP has no place for is heard again after seconds, at last when its dialer has given up."""
_SIOCGIFADDR: Final = 0x8915


def listening_at(asked: Endpoint, protected: bool, insecure: bool) -> Endpoint:
    """Where to bind for ``asked``: see ``endpoints.listening_host``; the name of an interface is left to ``bind``.

    Raises:
        ConfigError: plaintext off loopback (``endpoints.check_secrecy``).
    """
    place = asked
    if not asked.is_unix and not _is_interface(asked.host):
        place = asked._replace(host=listening_host(asked.host))
    check_secrecy([place], protected, insecure, asked.text)
    return place


def contact(place: Endpoint, asked: Endpoint) -> str:
    """What a peer dials that is to reach ``place``: what was ``asked`` for, but this host's name for a wildcard, and
    numbers for an interface, whose name others do not know.
    """
    if place.is_unix:
        return place.text
    if is_wildcard(asked.host):
        return place._replace(host=socket.gethostname()).text
    return place.text if _is_interface(asked.host) else place._replace(host=asked.host).text


def listen(
    place: Endpoint, backlog: int = BACKLOG, mode: int | None = None
) -> tuple[socket.socket, Endpoint]:
    """As ``bind``, and it listens. ``backlog``: may wait to be accepted.

    Raises:
        ConfigError: as of ``bind``.
    """
    with _told(place) as opened:
        sock, place = bind(place, mode=mode)
        opened.enter_context(sock)
        sock.listen(backlog)
    return sock, place


def bind(
    place: Endpoint, *, shared: bool = False, mode: int | None = None, ports: int = 1
) -> tuple[socket.socket, Endpoint]:
    """A bound socket, and where it is: in numbers, with the port that it was given.

    Args:
        place: "*" as host stands for all addresses, the name of an interface for its own. A socket file that nobody
            listens at any more is replaced.
        shared: other processes bind the same port (SO_REUSEPORT).
        mode: of the file; None: as the process makes files.
        ports: so many are tried, from that of ``place`` on.

    Raises:
        ConfigError: in use, not ours, not there.
    """
    for port in range(place.port, place.port + ports - 1):
        with contextlib.suppress(ConfigError):
            return bind(place._replace(port=port), shared=shared, mode=mode)
    place = place._replace(port=place.port + ports - 1)
    with _told(place) as opened:
        if place.is_unix:
            if place.path:
                _remove_stale(place.path)
            sock = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.bind(unix_address(place.host))
            if mode is not None:
                os.chmod(place.path, mode)
        else:
            sock, address = _unbound(place)
            opened.enter_context(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
            host, port = sock.getsockname()[:2]
            place = place._replace(host=host.removeprefix("::ffff:"), port=port)
        sock.setblocking(False)
    return sock, place


@contextlib.contextmanager
def _told(place: Endpoint) -> Iterator[ExitStack]:
    """What is entered into the stack is closed if ``place`` cannot be listened at, and why is told."""
    with ExitStack() as opened:
        try:
            yield opened
        except OSError as error:
            text = f"cannot listen at {place.text}: {error.strerror or error}"
            raise obstacle(text, error, absent=True, port=place.port, path=place.path) from error
        opened.pop_all()


def _remove_stale(path: str) -> None:
    """Unlink a socket file that refuses connections; of one that is in use bind will complain.

    Raises:
        FileExistsError: something else is there.
    """
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return
    if not is_socket:
        raise FileExistsError(errno.EEXIST, "a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                os.unlink(path)
        except OSError:
            return


def _unbound(place: Endpoint) -> tuple[socket.socket, Address]:
    """A socket for ``place``, and the address to bind it to."""
    host = place.host
    if host == "*":
        try:
            sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        except OSError:  # a machine without IPv6
            host = "0.0.0.0"  # noqa: S104 - all interfaces are what was asked for
        else:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            return sock, ("::", place.port)
    if _is_interface(host):
        host = _address_of(host)
    family, address = tcp_address(host, place.port)
    return socket.socket(family, socket.SOCK_STREAM), address


def _is_interface(host: str) -> bool:
    try:
        # not by a list of them all: that takes netlink, which the gateway's unit does not allow
        socket.if_nametoindex(host)
    except OSError:
        return False
    return True


def _address_of(interface: str) -> str:
    """The IPv4 address of an interface.

    Raises:
        OSError: it has none.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        found = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(found[20:24])
