"""Options of a service that speaks ``zmq://``: the group ``oslo_messaging_zmq`` of its configuration.

Names that the driver of 2015 to 2018 had keep their meaning. Each may be overridden in the query of a transport URL
(``zmq://host/?zmq_linger=1``). Ports of the pipelines are not here: clients learn from the directory where a node's
pipelines are, so that a proxy may be moved without touching its clients (zmq-patterns-usage, "Configuration Impact").
"""

from __future__ import annotations

import logging
from typing import Any, Final

from oslo_config import cfg

from broker.oslo.contract import Settings
from broker.oslo.names import DIRECTORY_PORT, PORTS
from broker.oslo.node import NODE_DIR

log = logging.getLogger(__name__)

GROUP: Final = "oslo_messaging_zmq"
"""The former driver's, and ours."""
LINGER_MAX_S: Final = 60.0
"""What ``zmq_linger = -1`` means: the former driver waited for ever, and processes that never ended."""

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
