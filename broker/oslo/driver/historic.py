"""Options of the zmq driver of 2015 to 2018 that this one does not need: known, so that nobody sets one in vain.

Each is registered beside ``options``. One that asks for what is done anyway costs no word; any other is logged once for
each transport, with what replaces it. ``deploy/oslo/MIGRATING-ZMQ.md`` has the same for people.
"""

from __future__ import annotations

import logging
from typing import Any, Final, NamedTuple

from oslo_config import cfg

from broker.oslo.names import DIRECTORY_PORT, PORTS

log = logging.getLogger(__name__)

GROUP: Final = "oslo_messaging_zmq"
"""The former driver's, and ours."""
MATCHMAKER_GROUP: Final = "matchmaker_redis"
"""Where the former driver looked for Redis when its URL did not say."""


class Replaced(NamedTuple):
    """One option; ``fitting``: values that ask for what is done anyway."""

    name: str
    instead: str
    fitting: tuple[str, ...] = ()


_ports = "the ports are the proxy's, [oslo] {}_port of its settings; clients learn them from the directory"
_random = "no process but the proxy binds a port, and its ports are fixed: [oslo] call_port and so on of its settings"
_acks = "a request that a proxy refuses is given to another server; transport_options at_least_once confirms a cast"
_directory = "proxies tell each other who listens where: [oslo] directories or redis of their settings"

REPLACED: Final = (
    Replaced("use_pub_sub", "fan-outs and notifications are always published", ("true",)),
    Replaced("use_router_proxy", "every node has a proxy: headgate oslo proxy", ("true",)),
    Replaced(
        "use_dynamic_connections", "one connection to each node and pipeline, made at its first use and kept"
    ),
    Replaced("rpc_zmq_matchmaker", _directory),
    Replaced("zmq_target_expire", "[oslo] lease_s of the proxy's settings"),
    Replaced("zmq_target_update", "[oslo] beat_s of the proxy's settings"),
    Replaced("zmq_failover_connections", _acks),
    Replaced("subscribe_on", "a proxy is told by the directory who publishes"),
    Replaced("rpc_zmq_bind_address", "[oslo] host of the proxy's settings: servers bind nothing"),
    Replaced("rpc_zmq_min_port", _random),
    Replaced("rpc_zmq_max_port", _random),
    Replaced("rpc_zmq_bind_port_retries", _random),
    Replaced("rpc_zmq_serialization", "bodies are JSON", ("json",)),
    Replaced("rpc_zmq_contexts", "one context for each process", ("1",)),
    Replaced("rpc_zmq_concurrency", "eventlet is found where it is in use"),
    Replaced("rpc_poll_timeout", "nothing polls"),
    Replaced("rpc_thread_pool_size", "executor_thread_pool_size in [DEFAULT]"),
    Replaced("zmq_immediate", "messages wait outside of libzmq until a node is connected", ("true",)),
    Replaced("rpc_use_acks", _acks, ("false",)),
    Replaced("rpc_ack_timeout_base", _acks),
    Replaced("rpc_ack_timeout_multiplier", _acks),
    Replaced("rpc_retry_attempts", "the retry of the client, zmq_retry_interval apart"),
    Replaced("rpc_message_ttl", "nothing is sent twice, so nothing has to be recognised"),
    *(Replaced(f"{pipeline}_port", _ports.format(pipeline)) for pipeline in PORTS),
)
"""In the group ``oslo_messaging_zmq``; the ports are those that the blueprint speaks of ("Configuration Impact")."""
MATCHMAKER: Final = (
    "host", "port", "password", "sentinel_hosts", "sentinel_group_name", "wait_timeout", "check_timeout",
    "socket_timeout",
)  # fmt: skip
"""In the group ``matchmaker_redis``."""
_STRANGE_PORTS: Final = {
    **{port: f"{pipeline}s enter a node there" for pipeline, port in PORTS.items()},
    6379: "Redis usually listens there, zmq+redis:// names it",
    26379: "Sentinel usually listens there, zmq+sentinel:// names it",
}


def register(conf: Any) -> None:
    """Make them known to ``conf``; harmless when they are."""
    conf.register_opts([_option(each) for each in REPLACED], group=GROUP)
    conf.register_opts(
        [cfg.StrOpt(name, secret=True, help=_directory) for name in MATCHMAKER], group=MATCHMAKER_GROUP
    )


def listed() -> list[Any]:
    """As oslo-config-generator and oslo-config-validator are to see them: deprecated, with what replaces each."""
    return [
        cfg.StrOpt(
            each.name,
            help="An option of the driver of 2015 to 2018.",
            deprecated_for_removal=True,
            deprecated_reason=each.instead,
        )
        for each in REPLACED
    ]


def _option(each: Replaced) -> Any:
    return cfg.StrOpt(each.name, help=each.instead)


def warn(conf: Any, options: Any, url: Any) -> None:
    """Log what is set in vain.

    Args:
        conf: of the service, after ``register``.
        options: the group ``oslo_messaging_zmq`` with what the URL's query overrides.
        url: ``oslo_messaging.TransportURL``.
    """
    for each in REPLACED:
        value = getattr(options, each.name)
        if value is not None and str(value).lower() not in each.fitting:
            log.warning("%s = %.64s (of %s) changes nothing: %s", each.name, value, GROUP, each.instead)
    named = [name for name in MATCHMAKER if getattr(conf[MATCHMAKER_GROUP], name) is not None]
    if named:
        log.warning("%s (of %s) changes nothing: %s", ", ".join(named), MATCHMAKER_GROUP, _directory)
    if url.transport == "zmq":
        _warn_of_hosts(url)


def _warn_of_hosts(url: Any) -> None:
    """Hosts of ``zmq://`` are directories; a user name has no meaning there."""
    if any(host.username or host.password for host in url.hosts):
        log.warning(
            "the user name and password in the URL change nothing: a node's proxy knows local users by the kernel, and"
            " other nodes by their CURVE keys (zmq_curve_cert, [[oslo.keys]] of the proxy's settings)"
        )
    for host in url.hosts:
        if host.port in _STRANGE_PORTS:
            log.warning(
                "%s:%d in the URL is taken for a directory, whose port is usually %d: %s",
                host.hostname,
                host.port,
                DIRECTORY_PORT,
                _STRANGE_PORTS[host.port],
            )
