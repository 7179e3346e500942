"""Options of a service that speaks ``zmq://``, the group ``oslo_messaging_zmq`` of its configuration, and what they and
a transport URL make together: ``contract.Settings``.

Names that the driver of 2015 to 2018 had keep their meaning. Each may be overridden in the query of a transport URL
(``zmq://host/?zmq_linger=1``). Ports of the pipelines are not here: clients learn from the directory where a node's
pipelines are, so that a proxy may be moved without touching its clients (zmq-patterns-usage, "Configuration Impact").

URLs::

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

from oslo_config import cfg
from oslo_messaging import exceptions, transport
from oslo_messaging._drivers import common

from broker.endpoints import bracketed
from broker.errors import ConfigError
from broker.oslo.contract import Settings
from broker.oslo.names import DIRECTORY_PORT, DIRECTORY_SOCKET, PORTS
from broker.oslo.node import NODE_DIR, client_ipc_dir, obstacle, proxy_ipc_dir
from broker.secret import SecretUrl
from broker.transport import curve

log = logging.getLogger(__name__)

GROUP: Final = "oslo_messaging_zmq"
"""The former driver's, and ours."""
LINGER_MAX_S: Final = 60.0
"""What ``zmq_linger = -1`` means: the former driver waited for ever, and processes that never ended."""
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

_defaults: Final = Settings(ipc_dir="")

_where = (
    cfg.HostAddressOpt(
        "rpc_zmq_host",
        sample_default="localhost",
        help="Name of this node. When it is set, a warning is logged if the proxy found in rpc_zmq_ipc_dir calls "
        "itself something else. Server names are opaque to this driver: the host of a service need not equal it.",
    ),
    cfg.StrOpt(
        "rpc_zmq_ipc_dir",
        sample_default=NODE_DIR,
        help="Folder of the sockets of this node's proxy. Servers need it; a process that only sends may do without, "
        "if fanout_ds_address or the hosts of transport_url name a directory service. The default is "
        "/run/headgate-oslo where that is there, else the folder of a proxy that this user runs: headgate/oslo in "
        "$XDG_RUNTIME_DIR, or headgate-oslo-UID in /tmp.",
    ),
    cfg.ListOpt(
        "fanout_ds_address",
        default=[],
        help="Addresses (host or host:port) of directory services, asked where no proxy runs on this node. Wins over "
        "the hosts of transport_url. An address that begins with redis://, rediss:// or sentinel:// is a Redis "
        "server that the proxies share: it is read where no proxy runs on this node, and needs redis-py.",
    ),
    cfg.PortOpt(
        "zmq_directory_port",
        default=DIRECTORY_PORT,
        help="Port of the directory services that are named without one.",
    ),
)
_connections = (
    cfg.IntOpt(
        "zmq_tcp_keepalive",
        default=int(_defaults.keepalive[0]),
        min=-1,
        max=1,
        help="TCP keep-alive and heartbeats on connections to other nodes: 1 on, 0 off, -1 as the system has it (off).",
    ),
    cfg.IntOpt(
        "zmq_tcp_keepalive_idle",
        default=_defaults.keepalive[1],
        min=-1,
        help="Seconds of silence before the first keep-alive probe; -1 leaves it to the system.",
    ),
    cfg.IntOpt(
        "zmq_tcp_keepalive_cnt",
        default=_defaults.keepalive[2],
        min=-1,
        help="Unanswered probes before a connection is given up; -1 leaves it to the system.",
    ),
    cfg.IntOpt(
        "zmq_tcp_keepalive_intvl",
        default=_defaults.keepalive[3],
        min=-1,
        help="Seconds between two probes; -1 leaves it to the system.",
    ),
    cfg.StrOpt(
        "zmq_curve_cert",
        help="Certificate (a file of headgate keygen) that this process shows to other nodes; its key has to be listed "
        "in [[oslo.keys]] of their proxies, unless it is the one that the proxies share. Without one it is anonymous: "
        "a node with CURVE refuses it, unless its proxy says unlisted = user; one without is spoken to in plaintext.",
    ),
    cfg.StrOpt(
        "zmq_curve_directory_key",
        help="Public key (Z85, 40 characters) of the directory services, or the absolute path of a certificate that "
        "has it: keys may contain characters that configuration files (the dollar) and URLs give a meaning. The "
        "default is that of zmq_curve_cert, where all nodes share one certificate.",
    ),
)
_times = (
    cfg.FloatOpt(
        "zmq_linger",
        deprecated_name="rpc_cast_timeout",
        default=_defaults.linger_s,
        min=-1,
        help=f"Seconds that cleanup goes on sending what was handed over; -1 is {LINGER_MAX_S:g}.",
    ),
    cfg.FloatOpt(
        "rpc_zmq_ready_timeout",
        default=_defaults.ready_s,
        min=0,
        help="Seconds that the first message waits for the directory, and that the start of a server waits for its "
        "node's proxy. After it a warning is logged; the server goes on trying.",
    ),
    cfg.FloatOpt(
        "zmq_fanout_wait",
        default=_defaults.fanout_wait_s,
        min=0,
        help="Seconds that a fanout or notification waits for a node that the directory lists and that is not "
        "connected, as while its proxy is started again. Nodes that are not reached are logged and counted.",
    ),
    cfg.FloatOpt(
        "zmq_retry_interval",
        default=_defaults.retry_s,
        min=0.01,
        help="Seconds between two attempts to hand a message over; their number is the retry of the client.",
    ),
)
_bounds = (
    cfg.IntOpt(
        "zmq_inbox_messages",
        deprecated_name="rpc_zmq_topic_backlog",
        default=_defaults.inbox_msgs,
        min=1,
        help="Messages that a server holds and has not begun to work on. Beyond it calls are given to another server, "
        "or to this one later; casts wait at the proxy of the node; fanouts are dropped and counted.",
    ),
    cfg.IntOpt("zmq_inbox_bytes", default=_defaults.inbox_bytes, min=1, help="The same bound, in bytes."),
    cfg.IntOpt(
        "zmq_outbox_messages",
        default=_defaults.outbox_msgs,
        min=1,
        help="Messages that may wait for one pipeline of one node; beyond it sending waits or fails, see retry.",
    ),
    cfg.IntOpt(
        "rpc_zmq_message_max",
        default=_defaults.message_bytes_max,
        min=64 << 10,
        help="Largest request, notification or reply, in bytes of JSON; the same as oslo.message_bytes_max of all "
        "proxies. A larger request is refused at once, a larger reply becomes an exception at its caller. A proxy that "
        "takes less says so.",
    ),
    cfg.StrOpt(
        "zmq_compression",
        default="none",
        choices=("none", "zlib"),
        help="Compress bodies of 4 KiB and more that this process sends: requests, notifications and replies. "
        "Everybody reads them, whatever they are told themselves; a journal has them as they were sent. Worth its time "
        "on slow networks only. None may become larger than rpc_zmq_message_max of its receiver.",
    ),
    cfg.IntOpt("zmq_outbox_bytes", default=_defaults.outbox_bytes, min=1, help="The same bound, in bytes."),
)
OPTIONS: Final[tuple[Any, ...]] = (*_where, *_connections, *_times, *_bounds)

_ports = "the ports are the proxy's, [oslo] {}_port of its settings; clients learn them from the directory"
_random = "no process but the proxy binds a port, and its ports are fixed: [oslo] call_port and so on of its settings"
_acks = "a request that a proxy refuses is given to another server; transport_options at_least_once confirms a cast"
_directory = "proxies tell each other who listens where: [oslo] directories or redis of their settings"

REPLACED: Final = {
    "use_pub_sub": "fan-outs and notifications are always published",
    "use_router_proxy": "every node has a proxy: headgate oslo proxy",
    "use_dynamic_connections": "one connection to each node and pipeline, made at its first use and kept",
    "rpc_zmq_matchmaker": _directory,
    "zmq_target_expire": "[oslo] lease_s of the proxy's settings",
    "zmq_target_update": "[oslo] beat_s of the proxy's settings",
    "zmq_failover_connections": _acks,
    "subscribe_on": "a proxy is told by the directory who publishes",
    "rpc_zmq_bind_address": "[oslo] host of the proxy's settings: servers bind nothing",
    "rpc_zmq_min_port": _random,
    "rpc_zmq_max_port": _random,
    "rpc_zmq_bind_port_retries": _random,
    "rpc_zmq_serialization": "bodies are JSON",
    "rpc_zmq_contexts": "one context for each process",
    "rpc_zmq_concurrency": "eventlet is found where it is in use",
    "rpc_poll_timeout": "nothing polls",
    "rpc_thread_pool_size": "executor_thread_pool_size in [DEFAULT]",
    "zmq_immediate": "messages wait outside of libzmq until a node is connected",
    "rpc_use_acks": _acks,
    "rpc_ack_timeout_base": _acks,
    "rpc_ack_timeout_multiplier": _acks,
    "rpc_retry_attempts": "the retry of the client, zmq_retry_interval apart",
    "rpc_message_ttl": "nothing is sent twice, so nothing has to be recognised",
    **{f"{pipeline}_port": _ports.format(pipeline) for pipeline in PORTS},
}
"""Options of the driver of 2015 to 2018 that this one does not need, and what is done in their place: known, so that
nobody sets one in vain. The ports are those of the blueprint. ``deploy/oslo/MIGRATING-ZMQ.md`` has the same for people.
"""


def register(conf: Any) -> None:
    """Make the options known to ``conf`` (a ``cfg.ConfigOpts``); harmless when they are."""
    conf.register_group(cfg.OptGroup(GROUP, title="ZeroMQ driver of oslo.messaging"))
    conf.register_opts(
        [*OPTIONS, *(cfg.StrOpt(name, help=text) for name, text in REPLACED.items())], group=GROUP
    )


def list_opts() -> list[tuple[str, list[Any]]]:
    """What oslo-config-generator and oslo-config-validator ask for (entry point ``oslo.config.opts``)."""
    what = "An option of the driver of 2015 to 2018."
    replaced = [
        cfg.StrOpt(name, help=what, deprecated_for_removal=True, deprecated_reason=text)
        for name, text in REPLACED.items()
    ]
    return [(GROUP, [*OPTIONS, *replaced])]


def warn(options: Any, url: Any) -> None:
    """Log what is set in vain, once for each transport.

    Args:
        options: the group ``oslo_messaging_zmq`` with what the URL's query overrides.
        url: ``oslo_messaging.TransportURL``.
    """
    for name, instead in REPLACED.items():
        value = getattr(options, name)
        if value is not None:
            log.warning("%s = %.64s (of %s) changes nothing: %s", name, value, GROUP, instead)
    if url.transport == "zmq" and any(host.username or host.password for host in url.hosts):
        log.warning(
            "the user name and password in the URL change nothing: a node's proxy knows local users by the kernel, and"
            " other nodes by their CURVE keys (zmq_curve_cert, [[oslo.keys]] of the proxy's settings)"
        )


# ------------------------------------------------------------ from a transport URL and the options to settings


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
