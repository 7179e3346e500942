"""What a URI of the configuration says: its scheme, its host and port, and whether it stays on this machine.

For what is no address of a transport: NFP's, oslo's and the metrics' endpoints; of transports `broker.schemes` knows.
"""

from typing import NamedTuple

from broker.schemes import is_loopback, too_long


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
    if scheme in ("local", "ipc", "unix") and (shorter := too_long(rest)):
        raise ValueError(f"expected {shorter}")
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
    return address.scheme in ("tcp", "http") and not is_loopback(address.host)
