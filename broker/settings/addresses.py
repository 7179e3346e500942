"""What a URI of the configuration says: its scheme, its host and port, and whether it stays on this machine.

Only what the configuration has to check before anything is opened; each transport parses its own URIs again.
"""

import ipaddress
from typing import NamedTuple

BUILT_IN_SCHEMES = ("inproc", "ipc", "local", "tcp")
"""The transports of this distribution; others come from the entry-point group below."""

TRANSPORT_GROUP = "headgate.transports"

UNIX_PATH_BYTES = 107
"""What `sun_path` of a Linux UNIX socket holds besides its NUL."""


class Address(NamedTuple):
    """A URI taken apart; `host` and `port` are empty for schemes that name a path or a token."""

    scheme: str
    rest: str
    host: str = ""
    port: str = ""


def split_uri(uri: str) -> Address:
    """Take a URI apart; ValueError says what is wrong with it.

    >>> split_uri("tcp://[::1]:8050")
    Address(scheme='tcp', rest='[::1]:8050', host='::1', port='8050')
    """
    scheme, mark, rest = uri.partition("://")
    if not mark or not scheme or not rest:
        raise ValueError("expected SCHEME://ADDRESS")
    if scheme in ("tcp", "http"):
        return _with_port(scheme, rest)
    if scheme in ("local", "ipc", "unix") and len(rest.encode()) > UNIX_PATH_BYTES:
        raise ValueError(
            f"expected a socket path of at most {UNIX_PATH_BYTES} bytes, it has {len(rest.encode())}"
        )
    return Address(scheme, rest)


def _with_port(scheme: str, rest: str) -> Address:
    host, mark, port = rest.rstrip("/").rpartition(":")
    if not mark or not host or not port:
        raise ValueError(f"expected {scheme}://HOST:PORT")
    if port != "*" and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("expected a port from 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("expected an IPv6 address in brackets")
    return Address(scheme, rest, host, port)


def is_exposed(address: Address) -> bool:
    """Tell whether other machines may reach this address: `tcp` anywhere but on a loopback address."""
    return address.scheme in ("tcp", "http") and not _is_loopback(address.host)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: it may resolve to anything, and to something else tomorrow


def known_schemes() -> list[str]:
    """List every scheme that a transport is registered for, by this distribution or by another."""
    from importlib.metadata import entry_points  # late: only an unusual scheme asks

    return sorted({*BUILT_IN_SCHEMES, *entry_points(group=TRANSPORT_GROUP).names})
