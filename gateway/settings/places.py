"""What the URL of a listener says: ``http://HOST:PORT``, ``https://HOST:PORT`` or ``unix:///PATH``."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from broker.schemes import too_long


class Place(NamedTuple):
    """A URL taken apart; ``host`` and ``port`` are empty and 0 for a UNIX socket, ``path`` is empty otherwise."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it: a UNIX socket, ``localhost`` or an address of the loopback."""
        if self.scheme == "unix" or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name: it may resolve to anything

    def with_port(self, port: int) -> Place:
        """The same place with another port."""
        return self._replace(port=port)

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def place_of(url: str) -> Place:
    """Take a URL apart.

    Raises:
        ValueError: says what was expected.

    >>> place_of("https://[::1]:443")
    Place(scheme='https', host='::1', port=443, path='')
    """
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in ("http", "https", "unix"):
        raise ValueError("expected http://HOST:PORT, https://HOST:PORT or unix:///PATH")
    if scheme == "unix":
        return Place(scheme, path=_path(rest))
    host, mark, port = rest.removesuffix("/").rpartition(":")
    if not mark or not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(f"expected {scheme}://HOST:PORT with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = str(_ipv6(host[1:-1]))
    elif not all(letter.isalnum() or letter in "-._" for letter in host):
        raise ValueError("expected a host name, an IPv4 address, or an IPv6 address in brackets")
    return Place(scheme, host, int(port))


def _ipv6(text: str) -> ipaddress.IPv6Address:
    try:
        return ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError("expected an IPv6 address in the brackets") from None


def _path(rest: str) -> str:
    if not rest.startswith("/"):
        raise ValueError("expected unix:///ABSOLUTE/PATH")
    if shorter := too_long(rest):
        raise ValueError(f"expected {shorter}")
    return rest
