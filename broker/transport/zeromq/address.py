"""Endpoints of ZeroMQ: what is loopback, what a peer dials, and names, which are resolved at each connect."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import re
import socket
import stat
import threading
from typing import Final, NamedTuple

from broker.errors import ConfigError, LinkBroken, LinkRefused
from broker.obstacles import obstacle
from broker.schemes import listening_host, too_long
from broker.secret import masked
from broker.trust import socket_objection

LOOK_AGAIN_S: Final = 1.0
"""A look-up that takes longer is begun once more beside the first."""
LOOKS_MAX: Final = 32
"""Look-ups of one name beside each other: each is a thread that waits."""
_NAME: Final = re.compile(r"\*|\w(?:[\w.-]*[\w.])?")
"""A name of a host or of an interface, as far as one can be told; or all interfaces."""
log = logging.getLogger("headgate")


class Endpoint(NamedTuple):
    """``tcp://host:port`` and the like (``host`` without brackets, "*" for all) or ``ipc://path`` (``port`` 0)."""

    scheme: str
    host: str
    port: int = 0

    @property
    def text(self) -> str:
        """As libzmq takes it."""
        if self.scheme == "ipc":
            return f"ipc://{self.host}"
        return f"{self.scheme}://{bracketed(self.host)}:{self.port}"

    @property
    def ipv6(self) -> bool:
        """True when the socket needs the IPV6 option."""
        return self.scheme == "tcp" and (":" in self.host or self.host == "*")


def bracketed(host: str) -> str:
    """A host as a URL has it: IPv6 numbers in brackets.

    >>> bracketed("fe80::1%eth0"), bracketed("127.0.0.1")
    ('[fe80::1%eth0]', '127.0.0.1')
    """
    return f"[{host}]" if ":" in host else host


def named(host: str, number: int | str, scheme: str = "tcp") -> str:
    """What logs call connection ``number``, which came from ``host``.

    >>> named("::ffff:10.0.0.1", 7)
    'tcp://10.0.0.1#7'
    """
    return f"{scheme}://{bracketed(host.removeprefix('::ffff:'))}#{number}"


def parse(uri: str) -> Endpoint:
    """The endpoint that ``uri`` names.

    Raises:
        ConfigError: not ``tcp://HOST:PORT`` or ``ipc://PATH``.

    >>> parse("tcp://[::1]:8050")
    Endpoint(scheme='tcp', host='::1', port=8050)
    """
    scheme, _, rest = uri.partition("://")
    if scheme == "ipc" and rest:
        if shorter := too_long(rest):
            raise ConfigError(f"{masked(uri)!r}: expected {shorter}")
        return Endpoint("ipc", rest)
    host, colon, port = rest.rpartition(":")
    if scheme != "tcp" or not (host and colon):
        raise ConfigError(f"{masked(uri)!r}: expected tcp://HOST:PORT or ipc://PATH")
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
    if inner and isinstance(numeric(inner), ipaddress.IPv6Address):
        host = inner
    elif not _NAME.fullmatch(host) and numeric(host) is None:
        raise ConfigError(f"{masked(uri)!r}: expected a name, a number or an IPv6 address in brackets")
    if port == "*":
        port = "0"
    if not (port.isascii() and port.isdigit() and int(port) <= 0xFFFF):
        raise ConfigError(f"{masked(uri)!r}: expected a port from 0 to 65535")
    return Endpoint("tcp", host, int(port))


def numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that ``host`` spells in numbers; None for a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def is_local(endpoint: Endpoint) -> bool:
    """True when no other machine can reach a resolved ``endpoint``: ipc or a loopback number."""
    address = numeric(endpoint.host)
    return endpoint.scheme == "ipc" or (address is not None and address.is_loopback)


async def resolve(endpoint: Endpoint) -> list[Endpoint]:
    """``endpoint`` with its host as numbers, every address the name has.

    Raises:
        LinkBroken: the name has no address (EHOSTUNREACH).
    """
    host = endpoint.host
    if endpoint.scheme == "ipc" or host == "*" or numeric(host) is not None:
        return [endpoint]
    try:
        found = await _looked_up(host, endpoint.port)
    except OSError as error:
        raise LinkBroken(
            f"{endpoint.text}: cannot resolve {host!r}: {error.strerror}", errno.EHOSTUNREACH
        ) from error
    return [Endpoint("tcp", address, endpoint.port) for address in dict.fromkeys(found)]


async def _looked_up(host: str, port: int) -> list[str]:
    """The addresses of ``host``.

    In threads that nobody waits for: a name server that is away takes 10 s and more not to answer, and a process that
    leaves would wait for what ``loop.getaddrinfo`` has begun. Meanwhile it is asked again every ``LOOK_AGAIN_S``, since
    what the resolver waits for may be the answer to a question that was lost; the first answer counts.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str], error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(found)

    def look() -> None:
        found, failed = [], None
        try:
            found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except Exception as error:  # also a name that cannot be encoded: whoever asked is told
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, found, failed)

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


def bound(last_endpoint: str) -> Endpoint:
    """What libzmq says it bound, IPv4 numbers without their IPv6 clothes."""
    endpoint = parse(last_endpoint)
    return endpoint._replace(host=endpoint.host.removeprefix("::ffff:"))


def contact(endpoint: Endpoint, asked_host: str) -> str:
    """What a peer dials: the name that was asked for, or this host's for a wildcard."""
    if endpoint.scheme == "ipc":
        return endpoint.text
    address = numeric(asked_host)
    wildcard = asked_host == "*" or (address is not None and address.is_unspecified)
    return endpoint._replace(host=socket.gethostname() if wildcard else asked_host).text


def check_secrecy(endpoints: list[Endpoint], curve: object, insecure: bool, uri: str = "") -> None:
    """Refuse to speak in plaintext where other machines can listen; ``uri``: the address as it was given.

    Raises:
        ConfigError: no CURVE, not ``insecure``, and one of ``endpoints`` is not loopback.
    """
    if curve is None and not insecure:
        for endpoint in endpoints:
            if not is_local(endpoint):
                raise ConfigError(
                    f"{uri or endpoint.text}: plaintext off loopback; configure CURVE, or set insecure = true"
                )


def check_trust(endpoints: list[Endpoint], curve: object) -> None:
    """Refuse to dial a local socket that somebody else may have made, unless its key will prove who is there.

    Raises:
        LinkRefused: by the folder that it is in.
    """
    for endpoint in endpoints:
        is_file = unproven(endpoint, curve) is not None and not endpoint.host.startswith("@")
        if is_file and (text := socket_objection(endpoint.host)):
            raise untrusted(endpoint, text)


def unproven(endpoint: Endpoint, curve: object) -> Endpoint | None:
    """``endpoint`` if it is a local socket where no key proves who listens: who does is looked at once connected."""
    return endpoint if endpoint.scheme == "ipc" and curve is None else None


def untrusted(endpoint: Endpoint, text: str) -> LinkRefused:
    """What a local socket is not spoken to for."""
    return LinkRefused(f"{endpoint.text} is not spoken to: {text}", errno.EACCES)


def listening_at(uri: str, curve: object, insecure: bool) -> Endpoint:
    """Where to bind for ``uri``: see ``schemes.listening_host``; the name of an interface is left to who binds.

    Raises:
        ConfigError: bad address, a path that is in use, or plaintext off loopback.
    """
    endpoint = parse(uri)
    if endpoint.scheme == "ipc":
        check_free(endpoint)
    elif endpoint.host not in {name for _index, name in socket.if_nameindex()}:
        endpoint = endpoint._replace(host=listening_host(endpoint.host))
    check_secrecy([endpoint], curve, insecure, uri)
    return endpoint


def check_free(endpoint: Endpoint) -> None:
    """Refuse the path of an ipc ``endpoint`` that is in use: libzmq would delete any file there without a word.

    Raises:
        ConfigError: a file that is no socket (EEXIST), or a socket somebody listens at (EADDRINUSE).
    """
    try:
        if not stat.S_ISSOCK(os.stat(endpoint.host).st_mode):
            raise ConfigError(
                f"cannot listen at {endpoint.text}: a file that is no socket is there", errno.EEXIST
            )
    except OSError:
        return  # nothing there; what else may be wrong, bind tells
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(endpoint.host)
        except ConnectionRefusedError:
            return
        except OSError as error:
            raise obstacle(f"cannot listen at {endpoint.text}: {error.strerror}", error) from error
    text = f"cannot listen at {endpoint.text}: somebody does already"
    raise obstacle(text, errno.EADDRINUSE, path=endpoint.host)


def remove_socket(path: str) -> None:
    """Delete the file of an ipc listener, which libzmq leaves behind when the process ends soon after."""
    with contextlib.suppress(OSError):
        os.unlink(path)
