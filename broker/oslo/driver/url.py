"""From a transport URL and the options to ``contract.Settings``; how a virtual host keeps applications apart.

::

    zmq://                        the proxy of this node, nothing else
    zmq://h1,h2:9500              hosts are directory services: asked where this node has no proxy
    zmq+redis://r1:6379,r2/0      hosts are Redis servers that share the directory: read by the proxy of this node
    zmq+sentinel://s1:26379/name  where it has one, else by this process

User names and passwords in a URL are never logged nor part of an error's text.

A virtual host isolates as on rabbit: two URLs with different ones share no exchange. It becomes part of the exchange's
name on the wire, ``/HOST/EXCHANGE`` with HOST percent-encoded; "" and "/" (rabbit's default one) are none. Behind
``zmq+redis`` and ``zmq+sentinel`` the path names the database or the service of Redis and isolates nothing.
"""

from __future__ import annotations

import logging
import math
import os
from typing import Any, Final
from urllib.parse import quote

from oslo_messaging import exceptions, transport
from oslo_messaging._drivers import common

from broker.endpoints import bracketed
from broker.errors import ConfigError
from broker.oslo.contract import Settings
from broker.oslo.driver.options import GROUP, LINGER_MAX_S, OPTIONS
from broker.oslo.names import DIRECTORY_SOCKET
from broker.oslo.node import client_ipc_dir, obstacle, proxy_ipc_dir
from broker.secret import SecretUrl
from broker.transport import curve

log = logging.getLogger(__name__)

SCHEMES: Final = frozenset({"zmq", "zmq+redis", "zmq+sentinel"})
_OF_REDIS: Final = ("redis://", "rediss://", "sentinel://")
_REDIS_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_SENTINEL_SERVICE: Final = "oslo-messaging-zeromq"
"""What the former driver asked sentinels for when nobody said."""
_SOCKET_PATH_MAX: Final = 107
"""Bytes of a UNIX socket's path on Linux."""
_PORT_MAX: Final = 65535
_NO_VIRTUAL_HOST: Final = (None, "", "/")


def masked(url: Any) -> str:
    """The URL without user names, passwords and query."""
    hosts = ",".join(_authority(host.hostname, host.port) for host in url.hosts)
    path = f"/{quote(url.virtual_host)}" if url.virtual_host else ""
    return f"{url.transport}://{hosts}{path}"


def _authority(host: str, port: int | None) -> str:
    return bracketed(host) if port is None else f"{bracketed(host)}:{port}"


def read_settings(options: Any, url: Any) -> Settings:
    """Settings of a process that uses ``url``.

    Args:
        options: the group ``oslo_messaging_zmq``, with what the URL's query overrides.
        url: ``oslo_messaging.TransportURL``.

    Raises:
        oslo_messaging.InvalidTransportURL: another scheme, a host without a name, a port that cannot be.
        oslo_messaging.exceptions.ConfigurationError: an option that cannot be; Redis without redis-py.
    """
    if url.transport not in SCHEMES:
        raise transport.InvalidTransportURL(masked(url), f"expected one of {', '.join(sorted(SCHEMES))}")
    linger_s = _seconds(options, "zmq_linger")
    ipc_dir = _ipc_dir(options.rpc_zmq_ipc_dir or client_ipc_dir())
    directories = _directories(options, url)
    redis = _redis(options, url, ipc_dir)
    if not directories and not redis:
        _look_for_proxy(ipc_dir, named=bool(options.rpc_zmq_ipc_dir))
    return Settings(
        ipc_dir=ipc_dir,
        directories=directories,
        redis=redis,
        directory_key=_key(options.zmq_curve_directory_key or ""),
        curve_cert=_certificate(options.zmq_curve_cert or ""),
        keepalive=(
            options.zmq_tcp_keepalive == 1,
            options.zmq_tcp_keepalive_idle,
            options.zmq_tcp_keepalive_cnt,
            options.zmq_tcp_keepalive_intvl,
        ),
        linger_s=LINGER_MAX_S if linger_s < 0 else min(linger_s, LINGER_MAX_S),
        ready_s=_seconds(options, "rpc_zmq_ready_timeout"),
        fanout_wait_s=_seconds(options, "zmq_fanout_wait"),
        retry_s=_seconds(options, "zmq_retry_interval"),
        inbox_msgs=options.zmq_inbox_messages,
        inbox_bytes=options.zmq_inbox_bytes,
        outbox_msgs=options.zmq_outbox_messages,
        outbox_bytes=options.zmq_outbox_bytes,
        message_bytes_max=options.rpc_zmq_message_max,
        node=options.rpc_zmq_host or "",
    )


def overridden(conf: Any, url: Any) -> Any:
    """The group ``oslo_messaging_zmq`` of ``conf`` with what the URL's query overrides.

    Raises:
        oslo_messaging.exceptions.ConfigurationError: a value in the query that cannot be; the text names its option.
    """
    known = {option.dest: option for option in OPTIONS}
    for name, text in url.query.items():
        try:
            if name in known:
                known[name].type(text)
        except ValueError as error:
            said = f"{name} in the query of the URL: {error}"
            raise exceptions.ConfigurationError(said) from None
    return common.ConfigOptsProxy(conf, url, GROUP)[GROUP]


def _seconds(options: Any, name: str) -> float:
    """A finite number of seconds: no clock can say another one, and nothing would ever end."""
    value = float(getattr(options, name))
    if not math.isfinite(value):
        raise exceptions.ConfigurationError(f"{name} (of {GROUP}): saw {value}, expected a number of seconds")
    return value


def _ipc_dir(folder: str) -> str:
    longest = os.fsencode(os.path.join(folder, DIRECTORY_SOCKET))
    if len(longest) > _SOCKET_PATH_MAX:
        raise exceptions.ConfigurationError(
            f"rpc_zmq_ipc_dir {folder[:64]}...: its sockets would have paths of {len(longest)} bytes, "
            f"expected {_SOCKET_PATH_MAX} at most"
        )
    return folder


def _redis(options: Any, url: Any, folder: str) -> tuple[SecretUrl, ...]:
    """URLs of Redis servers that this process is to read: those that are named, where no proxy reads them for it."""
    named = tuple(text for text in map(str.strip, options.fanout_ds_address) if text.startswith(_OF_REDIS))
    if not named and url.transport != "zmq" and url.hosts:
        named = _redis_hosts(url)
    if named and os.path.isdir(folder):
        log.info("%s: its Redis servers are read by the proxy of this node, in %s", masked(url), folder)
        return ()
    found = tuple(map(SecretUrl, named))
    if found:
        _check_redis(found, folder)
    return found


def _check_redis(urls: tuple[SecretUrl, ...], folder: str) -> None:
    from broker.oslo.directory.redis import opener  # late: few applications need it

    try:
        for number, text in enumerate(urls, 1):
            opener(text, f"Redis server {number} of fanout_ds_address or the URL")
    except ConfigError as error:
        said = f"{error}; a proxy on this node ({folder}) would read it for all"
        raise exceptions.ConfigurationError(said) from None


def _redis_hosts(url: Any) -> tuple[str, ...]:
    """The hosts of ``zmq+redis`` and ``zmq+sentinel`` as URLs of Redis."""
    _check_hosts(url)
    path = "" if url.virtual_host in _NO_VIRTUAL_HOST else quote(url.virtual_host)
    if url.transport == "zmq+sentinel":
        hosts = ",".join(_authority(host.hostname, host.port or _SENTINEL_PORT) for host in url.hosts)
        return (f"sentinel://{_login(url.hosts[0])}{hosts}/{path or _SENTINEL_SERVICE}",)
    if path and not path.isdecimal():
        raise transport.InvalidTransportURL(masked(url), f"database {path[:64]!r}, expected a number")
    return tuple(
        f"redis://{_login(host)}{_authority(host.hostname, host.port or _REDIS_PORT)}/{path}"
        for host in url.hosts
    )


def _login(host: Any) -> str:
    if not (host.username or host.password):
        return ""
    return f"{quote(host.username or '', safe='')}:{quote(host.password or '', safe='')}@"


def _check_hosts(url: Any) -> None:
    for host in url.hosts:
        if not host.hostname:
            raise transport.InvalidTransportURL(masked(url), "a host without a name")
        if host.port is not None and not 0 < host.port <= _PORT_MAX:
            raise transport.InvalidTransportURL(masked(url), f"port {host.port}, expected 1 to {_PORT_MAX}")


def _look_for_proxy(folder: str, *, named: bool) -> None:
    """Say where the proxy is expected when it is not there: without one, and without a directory, nothing arrives.

    It may still come: services often start before their node's proxy.
    """
    path = os.path.join(folder, DIRECTORY_SOCKET)
    why = obstacle(path)
    if not why:
        return
    own = proxy_ipc_dir()
    other = "" if named or own == folder else f", nor is there one of this user alone in {own}"
    text = "no proxy of this node yet: %s%s%s; waiting for it there (rpc_zmq_ipc_dir names another folder)"
    log.warning(text, path, why, other)


def _key(text: str) -> str:
    """A key itself, or that of the certificate at an absolute path."""
    try:
        if os.path.isabs(text) and os.path.exists(text):
            return curve.load_public(text).public_key
        return text and curve.check_key(text, "zmq_curve_directory_key")
    except ConfigError as error:
        raise exceptions.ConfigurationError(str(error)) from None


def _certificate(path: str) -> str:
    """The path, when there is a certificate: later, in the thread of the sockets, nobody would see the error."""
    try:
        if path:
            curve.load(path)
    except ConfigError as error:
        raise exceptions.ConfigurationError(f"zmq_curve_cert: {error}") from None
    return path


def _directories(options: Any, url: Any) -> tuple[str, ...]:
    port = options.zmq_directory_port
    named = [text.strip() for text in options.fanout_ds_address if text.strip()]
    if named:
        return tuple(dict.fromkeys(_endpoint(text, port) for text in named if not text.startswith(_OF_REDIS)))
    if url.transport != "zmq":
        return ()
    _check_hosts(url)
    hosts = [_authority(host.hostname, port if host.port is None else host.port) for host in url.hosts]
    return tuple(dict.fromkeys(f"tcp://{host}" for host in hosts))


def _endpoint(text: str, port: int) -> str:
    """``host``, ``host:port``, ``[v6]``, ``[v6]:port``, a bare v6 address, or one of them behind ``tcp://``."""
    address = text.removeprefix("tcp://")
    host, colon, digits = address.rpartition(":")
    if not colon or address.endswith("]") or (address.count(":") > 1 and not address.startswith("[")):
        host, digits = address, str(port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not digits.isdecimal() or not 0 < int(digits) <= _PORT_MAX:
        raise exceptions.ConfigurationError(f"fanout_ds_address {text[:64]!r}: expected HOST or HOST:PORT")
    return f"tcp://{_authority(host, int(digits))}"


class Exchanges:
    """Names of exchanges on the wire, for one URL."""

    def __init__(self, url: Any) -> None:
        isolates = url.transport == "zmq" and url.virtual_host not in _NO_VIRTUAL_HOST
        self._prefix = f"/{quote(url.virtual_host, safe='')}/" if isolates else ""

    def wire(self, exchange: str) -> str:
        """The name for the wire.

        An exchange that begins with a slash gets another one, so that it is never taken for one of a virtual host.
        """
        if self._prefix:
            return self._prefix + exchange
        return f"/{exchange}" if exchange.startswith("/") else exchange
