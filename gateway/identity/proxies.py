"""The client's address: the peer of the socket, or what a trusted reverse proxy says of it.

Rules of this file:

- A header is believed only when the peer of the socket is in ``trusted_proxies`` of the listener it came in by.
- ``X-Forwarded-For`` is read from right to left: each proxy appends what it saw, so the first address that is no
  trusted proxy is the client, and whatever stands left of it the client may have invented.
- ``X-Forwarded-Proto`` tells what the client speaks to the proxy; only its last value counts. Of an upgrade to a
  WebSocket some proxies say ``wss`` or ``ws``, which is the same as ``https`` or ``http``.
- ``Forwarded`` (RFC 7239) is not read: a proxy that writes one of the two often passes the other on unseen.
- A UNIX socket's peer counts as 127.0.0.1: it is on this machine.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from aiohttp import web

from broker.endpoints import is_loopback
from gateway.settings.schema import ListenEntry

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
LOOPBACK: Final = ipaddress.IPv4Address("127.0.0.1")
KNOWN: Final = 4096
"""Addresses whose parsed form is remembered: each is asked for a dozen times while its connection begins."""
HOPS: Final = 32
"""Entries of ``X-Forwarded-For`` that are looked at, from the right: no chain of proxies is longer."""

TOLD: Final = 16
"""Values of ``X-Forwarded-Proto`` that are logged as unknown, each once: a client may have made them up."""

_SCHEMES: Final = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
_FORWARDING: Final = (
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Forwarded-Server",
    "Forwarded",
    "Via",
    "X-Real-IP",
    "X-Client-IP",
    "True-Client-IP",
    "CF-Connecting-IP",
)
"""Headers that say: a proxy passed this on."""

log = logging.getLogger("headgate")


class ProxiedAddress(NamedTuple):
    """A ``peername`` that a PROXY header told: the client, as usual, and behind it the address of the proxy."""

    host: str
    port: int
    proxy: str


class Client(NamedTuple):
    """The other end of a request."""

    address: str
    """IP address of the client, for logs and limits; ``unix`` on a UNIX socket."""
    peer: str
    """IP address of the socket's peer: the client or the last proxy; ``unix`` on a UNIX socket."""
    scheme: str
    """``http`` or ``https``: what the client speaks, to us or to a trusted proxy."""
    local: bool
    """The client is on this machine and came without a proxy: the socket's peer is on the loopback and no trusted
    proxy, no header says that the request was passed on, and it asks for a host name of this machine. Never true by
    what a header says."""
    loopback_listener: bool
    """It came in by a listener that only this machine reaches."""


_CLIENT: Final = web.RequestKey("client", Client)


class Networks:
    """A set of IP networks.

    Raises:
        ValueError: a text that is no network; one with host bits set is one, of its prefix.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._networks = tuple(ipaddress.ip_network(text, strict=False) for text in texts)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: IpAddress | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


class ListenerNetworks:
    """The listeners as requests see them: which networks each of them trusts, found by the socket's own address."""

    def __init__(self) -> None:
        self._trusted: dict[Any, Networks] = {}
        self._told: set[str] = set()

    def opened(self, entry: ListenEntry, sockname: Any) -> None:
        """A listener was bound; ``sockname`` is its ``getsockname()``. Call it again after a reload of settings."""
        self._trusted[_place(sockname)] = Networks(entry.trusted_proxies)

    def client(self, request: web.BaseRequest) -> Client:
        """Who sent a request; found out once, however many ask."""
        found = request.get(_CLIENT)
        if found is None:
            found = request[_CLIENT] = self._look(request)
        return found

    def _look(self, request: web.BaseRequest) -> Client:
        transport = request.transport
        own = None if transport is None else transport.get_extra_info("sockname")
        seen = None if transport is None else transport.get_extra_info("peername")
        peer = address_of(seen.proxy if isinstance(seen, ProxiedAddress) else seen)
        # the PROXY header was believed by the listener already: who it names speaks HTTP, perhaps for others again
        speaker = client = address_of(seen)
        trusted = self._of(own)
        if speaker in trusted:
            client = forwarded_for(request.headers.getall("X-Forwarded-For", []), trusted) or client
        return Client(
            address=_text(client, own),
            peer=_text(peer, own),
            scheme=self.scheme_of(request) if speaker in trusted else request.scheme,
            local=_is_loopback(peer)
            and peer not in trusted
            and speaker not in trusted
            and _is_loopback(client)
            and not any(name in request.headers for name in _FORWARDING)
            and is_local_host(request.headers.get("Host", "")),
            loopback_listener=_is_loopback(address_of(own)),
        )

    def scheme_of(self, request: web.BaseRequest) -> str:
        """What the client of a trusted proxy speaks, ``http`` or ``https``; the proxy itself where it does not say."""
        said = request.headers.getall("X-Forwarded-Proto", [])
        last = said[-1].rpartition(",")[2].strip().lower() if said else ""
        found = _SCHEMES.get(last)
        if found is None and last and last not in self._told and len(self._told) < TOLD:
            self._told.add(last)
            log.warning(
                "a trusted proxy says X-Forwarded-Proto %r, expected https, http, wss or ws: taken as %s",
                last[:32],
                request.scheme,
            )
        return found or request.scheme

    def _of(self, sockname: Any) -> Networks:
        place = _place(sockname)
        found = self._trusted.get(place)
        if found is None and isinstance(place, tuple):
            found = self._trusted.get(("", place[1]))  # bound to all addresses
        return found if found is not None else _NOBODY


_NOBODY: Final = Networks()


def forwarded_for(headers: Iterable[str], trusted: Networks) -> IpAddress | None:
    """The client that ``X-Forwarded-For`` headers name, or the last proxy that can be told; None when nothing can.

    >>> str(forwarded_for(["6.6.6.6, 192.0.2.7, 10.0.0.2"], Networks(["10.0.0.0/8"])))
    '192.0.2.7'
    """
    found: IpAddress | None = None
    entries = [entry for header in headers for entry in header.split(",")]
    # from the right: each proxy appends the address that it saw itself
    for entry in entries[: -HOPS - 1 : -1]:
        text = entry.strip()
        # some proxies add the port, and brackets around IPv6
        address = _parsed(text) or _parsed(host_name(text))
        if address is None:  # not an address: what is left of it is as good as invented
            return found
        found = address
        if address not in trusted:
            return found
    return found


@functools.lru_cache(KNOWN)
def is_local_host(host: str) -> bool:
    """Whether a ``Host`` header (or origin's host) names this machine by itself: a page of another name that resolves
    to 127.0.0.1 (DNS rebinding) does not.

    >>> is_local_host("localhost:8280"), is_local_host("[::1]"), is_local_host("evil.example:8280")
    (True, True, False)
    """
    return is_loopback(host_name(host))


def host_name(host: str) -> str:
    """The name of ``NAME``, ``NAME:PORT`` or ``[IPV6]:PORT``, in small letters; "" when it is none of them."""
    host = host.strip().lower()
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        return name if bracket and (not rest or _is_port(rest)) else ""
    name, colon, port = host.partition(":")
    return name if not colon or _is_port(f":{port}") else ""


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdigit()


def _place(sockname: Any) -> Any:
    if isinstance(sockname, tuple):
        address = address_of(sockname)
        return ("" if address is None or address.is_unspecified else str(address), sockname[1])
    return sockname


def address_of(name: Any) -> IpAddress | None:
    """The address of a ``peername`` or ``sockname``; a UNIX socket's is the loopback's, no socket has none."""
    if isinstance(name, tuple) and name:
        name = name[0]
    elif isinstance(name, bytes) or (isinstance(name, str) and _parsed(name) is None):
        return LOOPBACK  # the path of a UNIX socket; one without a file has bytes for a name
    return _parsed(name) if isinstance(name, str) else None


UNIX: Final = "unix"
UNKNOWN: Final = (UNIX, "unknown")
"""Addresses of clients that have none of their own."""


def group_of(address: str) -> str:
    """What limits of one client count by: its address, or the /64 of an IPv6 address, for one client has all of it.

    >>> group_of("192.0.2.7"), group_of("2001:db8::1"), group_of("unix")
    ('192.0.2.7', '2001:db8::/64', 'unix')
    """
    parsed = _parsed(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        # RFC 6177: a site has a /64 at the least, and may take any address of it
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return address[:64] if parsed is None else str(parsed)


@functools.lru_cache(KNOWN)
def _parsed(text: str) -> IpAddress | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])  # a link-local one comes with its interface
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address  # on a dual-stack socket IPv4 looks like ::ffff:192.0.2.7


def _is_loopback(address: IpAddress | None) -> bool:
    return address is not None and address.is_loopback


def _text(address: IpAddress | None, sockname: Any) -> str:
    if isinstance(sockname, str | bytes) and address == LOOPBACK:
        return UNIX
    return "unknown" if address is None else str(address)
