"""Addresses of sockets taken apart, and what stays on this machine: one rule for settings and for all transports.

``SCHEME://HOST:PORT``, or ``SCHEME://PATH`` of a UNIX socket. (pure)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.errors import ConfigError
from broker.secret import masked

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

UNIX_PATH_BYTES: Final = 107
"""What the address of a Linux UNIX socket holds besides its NUL."""
SHORTER_HELPS: Final = "a shorter $XDG_RUNTIME_DIR, $TMPDIR or --rundir helps"
_UNIX: Final = {"ipc": "ipc://PATH", "local": "local:///ABSOLUTE/PATH", "unix": "unix:///ABSOLUTE/PATH"}
"""Schemes of UNIX sockets, and what is expected of each. That of ZeroMQ may be relative, or ``@NAME``: abstract."""
_NAME: Final = re.compile(r"\*|\w(?:[\w.-]*[\w.])?")
"""A name of a host or of an interface, as far as one can be told, or IPv4 numbers; or all interfaces."""


class Endpoint(NamedTuple):
    """``SCHEME://HOST:PORT`` (``host`` without brackets, "*" for all; ``port`` 0: a free one), or ``SCHEME://PATH`` of
    a UNIX socket, which has its path as ``host``.
    """

    scheme: str
    host: str
    port: int = 0

    @property
    def text(self) -> str:
        """The address again; as libzmq takes it, too."""
        if self.is_unix:
            return f"{self.scheme}://{self.host}"
        return f"{self.scheme}://{bracketed(self.host)}:{self.port}"

    @property
    def is_unix(self) -> bool:
        """Whether it is a UNIX socket."""
        return self.scheme in _UNIX

    @property
    def path(self) -> str:
        """The file of a UNIX socket; "" for one that has none, and of TCP."""
        return self.host if self.is_unix and not self.host.startswith("@") else ""

    @property
    def is_local(self) -> bool:
        """Whether no other machine can reach it, as far as its text tells: see ``is_loopback``."""
        return self.is_unix or is_loopback(self.host)


def split(uri: str, *schemes: str) -> Endpoint:
    """The endpoint that ``uri`` names, which has one of ``schemes``; without any, that of a UNIX socket or any of TCP.

    Raises:
        ValueError: another form; the text begins with "expected".

    >>> split("tcp://[::1]:8050")
    Endpoint(scheme='tcp', host='::1', port=8050)
    """
    scheme, _, rest = uri.partition("://")
    if not rest or not scheme or (schemes and scheme not in schemes):
        forms = [_form(each) for each in schemes or ("SCHEME",)]
        raise ValueError(f"expected {' or '.join(filter(None, (', '.join(forms[:-1]), forms[-1])))}")
    if scheme in _UNIX:
        if scheme != "ipc" and not rest.startswith("/"):
            raise ValueError(f"expected {_form(scheme)}")
        if shorter := too_long(rest):
            raise ValueError(f"expected {shorter}")
        return Endpoint(scheme, rest)
    host, _, port = (rest.removesuffix("/") if scheme in ("http", "https") else rest).rpartition(":")
    if not (host and port):
        raise ValueError(f"expected {_form(scheme)}")
    inner = numeric(host[1:-1]) if host[0] == "[" and host[-1] == "]" else None
    if inner is not None and inner.version == 6:
        host = str(inner)
    elif not _NAME.fullmatch(host):
        raise ValueError("expected a host name, an IPv4 address, or an IPv6 address in brackets")
    if port == "*":
        port = "0"
    if not (port.isascii() and port.isdigit() and int(port) <= 0xFFFF):
        raise ValueError("expected a port up to 65535")
    return Endpoint(scheme, host, int(port))


def parse(uri: str, *schemes: str) -> Endpoint:
    """As ``split``, for addresses that nobody has checked; IPv6 numbers may lack their brackets, as with libzmq.

    Raises:
        ConfigError: another form; what may be a secret in it is not repeated.
    """
    scheme, _, rest = uri.partition("://")
    host, _, port = rest.rpartition(":")
    asked = f"{scheme}://[{host}]:{port}" if ":" in host and numeric(host) is not None else uri
    try:
        return split(asked, *schemes)
    except ValueError as error:
        raise ConfigError(f"{masked(uri)!r}: {error}") from None


def _form(scheme: str) -> str:
    return _UNIX.get(scheme, f"{scheme}://HOST:PORT")


def too_long(path: str) -> str:
    """What is expected in place of the path of a UNIX socket that has no room for it; "" when it has."""
    size = len(os.fsencode(path))
    if size <= UNIX_PATH_BYTES:
        return ""
    return f"a socket path of at most {UNIX_PATH_BYTES} bytes, it has {size}; {SHORTER_HELPS}"


def bracketed(host: str) -> str:
    """A host as a URL has it: IPv6 numbers in brackets.

    >>> bracketed("fe80::1%eth0"), bracketed("127.0.0.1")
    ('[fe80::1%eth0]', '127.0.0.1')
    """
    return f"[{host}]" if ":" in host else host


def numeric(host: str) -> IPv4Address | IPv6Address | None:
    """The address that ``host`` spells in numbers; None for a name."""
    import ipaddress  # late: a dialer of UNIX sockets never asks

    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine, whatever happens; a name may resolve to anything, and to else tomorrow."""
    address = numeric(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_wildcard(host: str) -> bool:
    """Whether ``host`` stands for all addresses of this machine."""
    address = numeric(host)
    return host == "*" if address is None else address.is_unspecified


def listening_host(host: str) -> str:
    """The host to bind for an address with ``host``: "*", all interfaces, for a name.

    What a name resolves to on the machine that it names says nothing about where others look for it: Debian writes
    ``127.0.1.1 NAME`` into /etc/hosts, and a name may have an address for each network. A single address is given in
    numbers. Only ``localhost`` stays on this machine; numbers that are no address are no name either, and whoever binds
    them is told so.

    >>> listening_host("node0"), listening_host("192.0.2.1"), listening_host("Localhost"), listening_host("10.0.0.256")
    ('*', '192.0.2.1', '127.0.0.1', '10.0.0.256')
    """
    if host.lower() == "localhost":
        return "127.0.0.1"
    return host if host.rpartition(".")[2].isdigit() or numeric(host) is not None else "*"


def hosts_of(found: Iterable[tuple[Any, ...]]) -> list[str]:
    """The hosts that ``getaddrinfo`` has ``found``, in numbers, each once; link-local ones with their interface.

    >>> hosts_of([(10, 1, 6, "", ("fe80::1", 5, 0, 2)), (2, 1, 6, "", ("10.0.0.1", 5)), (2, 1, 6, "", ("10.0.0.1", 5))])
    ['fe80::1%2', '10.0.0.1']
    """
    hosts: dict[str, None] = {}
    for *_about, (host, _port, *more) in found:
        scope = more[1] if len(more) == 2 and "%" not in host else 0
        hosts[f"{host}%{scope}" if scope else host] = None
    return list(hosts)


def check_secrecy(
    endpoints: Iterable[Endpoint],
    protected: bool,
    insecure: bool,
    uri: str = "",
    remedy: str = "configure CURVE",
) -> None:
    """Refuse to speak in plaintext where other machines can listen.

    Args:
        endpoints: where to.
        protected: nobody between can read what passes.
        insecure: it does not matter.
        uri: the address as it was given.
        remedy: what protects it.

    Raises:
        ConfigError: neither, and one of ``endpoints`` is not loopback.
    """
    for endpoint in endpoints:
        if not (protected or insecure or endpoint.is_local):
            where = masked(uri or endpoint.text)
            raise ConfigError(f"{where}: plaintext off loopback; {remedy}, or set insecure = true")
