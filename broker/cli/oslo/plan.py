"""From ``[oslo]`` to what each process of the wing is told, and to what a person is told about it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from broker.endpoints import Endpoint, is_wildcard
from broker.errors import ConfigError
from broker.identity import USERID_UNKNOWN, Role
from broker.journal.options import JournalOptions
from broker.oslo.contract import Settings as ClientSettings
from broker.oslo.names import Pipeline
from broker.oslo.node import (
    EVERYTHING,
    BacklogConfig,
    KeyEntry,
    NodeConfig,
    Rule,
    client_ipc_dir,
    proxy_ipc_dir,
)
from broker.settings import JournalSection, OsloSection

if TYPE_CHECKING:
    from broker.oslo.service import FluxBridgeConfig

ROLES: Final = {"owner": Role.OWNER, "user": Role.USER, "admin": Role.ADMIN, "deny": Role.NONE}
ROOMS: Final = ("directory", "call", "fanout", "notify", "cast")


def mask(roles: Iterable[str]) -> int:
    """The rolemask of names of roles."""
    return int(functools.reduce(lambda seen, role: seen | ROLES[role], roles, Role.NONE))


def held(roles: Iterable[str]) -> int:
    """The rolemask that a key of these roles gives its messages: an admin is a user, too, as with ``[[clients]]``."""
    given = mask(roles)
    return given | Role.USER if given & Role.ADMIN else given


def ipc_dir(section: OsloSection) -> str:
    """The folder of the node's sockets."""
    return section.ipc_dir or proxy_ipc_dir()


def keepalive(section: OsloSection) -> tuple[bool, int, int, int]:
    """TCP keep-alive: on, idle s, count, interval s."""
    return (
        section.tcp_keepalive,
        section.tcp_keepalive_idle_s,
        section.tcp_keepalive_count,
        section.tcp_keepalive_interval_s,
    )


def node_config(section: OsloSection) -> NodeConfig:
    """What a proxy process is told."""
    keys = tuple(
        KeyEntry(
            entry.key,
            entry.name or "",
            USERID_UNKNOWN if entry.userid is None else entry.userid,
            held(entry.roles),
        )
        for entry in section.keys
    )
    rules = tuple(
        Rule(entry.exchanges, entry.topics, entry.action, mask(entry.roles), entry.users, entry.allow)
        for entry in section.rules
    )
    return NodeConfig(
        ipc_dir=ipc_dir(section),
        ipc_group=section.ipc_group or "",
        node=section.node or os.uname().nodename,
        host=section.host,
        advertise=section.advertise or ("" if is_wildcard(section.host) else section.host),
        ports={pipeline: section.port_of(pipeline) for pipeline in Pipeline},
        directory_port=section.directory_port,
        run=frozenset(section.run),
        directories=section.directories,
        redis=section.redis,
        redis_password_file=section.redis_password_file or "",
        curve_cert=section.curve_cert or "",
        directory_key=section.directory_key or "",
        insecure=section.insecure,
        keys=keys,
        unlisted=None if section.unlisted is None else int(ROLES[section.unlisted]),
        rules=rules,
        lease_s=section.lease_s,
        beat_s=section.beat_s,
        keepalive=keepalive(section),
        message_bytes_max=section.message_bytes_max,
        queue_msgs=section.queue_msgs,
        queue_bytes=section.queue_bytes,
        pending_max=section.pending_max,
        backlog=backlog_config(section),
    )


def backlog_config(section: OsloSection) -> BacklogConfig | None:
    """What is kept for listeners that are away."""
    kept = section.backlog
    if kept is None:
        return None
    return BacklogConfig(kept.topics, kept.messages, kept.bytes, kept.hours * 3600, kept.path or "")


def journal_of(section: JournalSection, rooms: Sequence[str]) -> JournalOptions | None:
    """What a proxy process that runs ``rooms`` records; None nothing. Its journal is called ``oslo-ROOM`` when it runs
    one pipeline alone, else ``oslo-proxy``.
    """
    pipelines = [room for room in rooms if room in frozenset(map(str, Pipeline))]
    if not section.enabled or not pipelines:
        return None
    name = pipelines[0] if len(pipelines) == 1 else "proxy"
    return JournalOptions(writer=f"oslo-{name}", **section.options())


def client_settings(section: OsloSection) -> ClientSettings:
    """How a process of this node finds the pipelines."""
    return ClientSettings(
        ipc_dir=ipc_dir(section),
        directories=section.directories,
        directory_key=section.directory_key or "",
        curve_cert=section.curve_cert or "",
        keepalive=keepalive(section),
    )


def bridge_config(section: OsloSection) -> FluxBridgeConfig:
    """What the bridge is told."""
    from broker.oslo.service import (
        CallRule,
        FluxBridgeConfig,
    )  # with the client of a broker, which proxies need not

    rules = tuple(
        CallRule(
            entry.exchanges,
            entry.topics,
            entry.methods,
            entry.modes,
            mask(entry.roles),
            entry.users,
            entry.allow,
            entry.ctxt,
        )
        for entry in section.calls
    )
    places = [place.rpartition("/") for place in section.notify]
    return FluxBridgeConfig(
        client_settings(section),
        rules,
        section.call_timeout_s,
        section.call_timeout_max_s,
        tuple((exchange, topic) for exchange, _, topic in places),
        section.notify_pool,
        section.notify_public,
    )


def read_again(before: OsloSection, read: Callable[[], OsloSection]) -> OsloSection:
    """The section as it is now.

    Raises:
        ConfigError: it cannot be read, is wrong, or changes what cannot change while the proxy runs.
    """
    after = read()
    stuck = [
        f"oslo.{name}"
        for name in OsloSection.__struct_fields__
        if name not in OsloSection.LATE and getattr(before, name) != getattr(after, name)
    ]
    if stuck:
        raise ConfigError(f"{', '.join(stuck)}: cannot change while the proxy runs: restart it")
    return after


def rooms_of(text: str) -> tuple[str, ...]:
    """Rooms from ``call,fanout``.

    Raises:
        ConfigError: a word is no room.

    >>> rooms_of("call, cast")
    ('call', 'cast')
    """
    rooms = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    wrong = [room for room in rooms if room not in EVERYTHING]
    if wrong or not rooms:
        raise ConfigError(f"--run: saw {(wrong or [text])[0][:64]!r}, expected some of {','.join(ROOMS)}")
    return rooms


# ---------------------------------------------------------------- for people


def transport_url(section: OsloSection) -> str:
    """What applications of this node put into their configuration.

    >>> transport_url(OsloSection(ipc_dir="/srv/oslo"))
    'zmq:///?rpc_zmq_ipc_dir=%2Fsrv%2Foslo'
    """
    if ipc_dir(section) == client_ipc_dir():
        return "zmq://"
    return f"zmq:///?rpc_zmq_ipc_dir={quote(ipc_dir(section), safe='')}"


_NO_PORT: Final = "for this node only: no TCP port"
_ANY_PORT: Final = "free ports: `headgate oslo status` shows them"


def planned(section: OsloSection) -> dict[str, str]:
    """Where the rooms are to listen, as far as it is known before they do."""
    if not section.host:
        return {}
    ports = {room: section.port_of(room) for room in section.run}
    return {room: Endpoint("tcp", section.host, port).text for room, port in ports.items() if port}


def where(section: OsloSection, endpoints: Mapping[str, str]) -> list[str]:
    """Lines that say how applications find the proxy.

    Args:
        section: its settings.
        endpoints: of its rooms, where other nodes connect.
    """
    tcp = {room: endpoint for room, endpoint in endpoints.items() if endpoint}
    secrecy = "CURVE" if section.curve_cert else "plaintext"
    ports = ", ".join(f"{room} {tcp[room].rpartition(':')[2]}" for room in ROOMS if room in tcp)
    hosts = sorted({endpoint.rpartition(":")[0] for endpoint in tcp.values()})
    lines = [
        f"oslo.messaging proxy {section.node or os.uname().nodename} in {ipc_dir(section)}",
        f"  {' '.join(hosts)}: {ports} ({secrecy})"
        if tcp
        else f"  {_NO_PORT if section.host == '' else _ANY_PORT}",
        f"  transport_url = {transport_url(section)}",
    ]
    if section.redis:
        lines.insert(2, f"  directory shared through {len(section.redis)} Redis server(s)")
    return lines
