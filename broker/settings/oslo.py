"""`[oslo]`: a node proxy for oslo.messaging, alone (`headgate oslo proxy`) or beside rank 0, and its bridge there.

Documented as in `schema`. Without the section there is neither. All times that end in `_s` are seconds.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from broker.endpoints import SHORTER_HELPS, UNIX_PATH_BYTES, is_loopback, numeric
from broker.schemes import beyond_loopback
from broker.secret import SecretUrl
from broker.settings.lines import KeyPath
from broker.settings.values import (
    Bytes,
    Count,
    Problem,
    Text,
    Userid,
    check_key,
    check_keys,
    check_metrics,
    check_order,
    check_uri,
    saw,
)

RoleName = Literal["owner", "user", "admin"]
RoleNames = Annotated[tuple[RoleName, ...], Meta(min_length=1)]
RoomName = Literal["directory", "call", "fanout", "notify", "cast"]
Globs = Annotated[tuple[Text, ...], Meta(min_length=1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Some = Annotated[float, Meta(ge=0.05, le=86400)]
"""Seconds that cannot be off."""


class OsloKeyEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[oslo.keys]]`: a CURVE key that may come to the ports of this node, and who that is."""

    key: Text
    """Its public key, 40 characters of Z85; each key once."""

    name: Text | None = None
    """What lists and logs call it. Default: the beginning of the key."""

    userid: Userid | None = None
    """Whose messages its messages are. Default: nobody's in particular."""

    roles: tuple[RoleName, ...] = ("user",)
    """What `oslo.rules` know it as; an admin is a user, too. Default user. An empty list refuses the key."""


class OsloRuleEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[oslo.rules]]`: who may send where, or listen there, at this node. The first that fits decides. Without a
    fitting one, owners and users may.
    """

    exchanges: Globs = ("*",)
    """Exchanges it is about, with * and ?. Default: all."""

    topics: Globs = ("*",)
    """Topics it is about, with * and ?; those of notifications end in their priority. Default: all."""

    action: Literal["send", "listen", "*"] = "*"
    """What is done there. Default: both."""

    roles: RoleNames = ("user", "owner")
    """Only those who have one of these roles. Default: users and owners."""

    users: tuple[Userid, ...] = ()
    """Only those of these userids. Default: everybody of the roles."""

    allow: bool = True
    """Whether they may. Default true; false refuses, and counts it."""


class OsloCallEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[oslo.calls]]`: what may be called through the broker, as `oslo.EXCHANGE.TOPIC.METHOD`. The first that fits
    decides; owners need none. Without a fitting one nobody else may.
    """

    exchanges: Globs = ("*",)
    """Exchanges it is about, with * and ?. Default: all."""

    topics: Globs = ("*",)
    """Topics it is about, with * and ?. Default: all."""

    methods: Globs = ("*",)
    """Methods it is about, with * and ?. Default: all."""

    modes: Annotated[tuple[Literal["call", "cast", "fanout"], ...], Meta(min_length=1)] = ("call",)
    """What may be done with them. Default: calls, whose caller sees what became of it."""

    roles: RoleNames = ("user",)
    """Only those who have one of these roles on the broker. Default: users."""

    users: tuple[Userid, ...] = ()
    """Only those of these userids. Default: everybody of the roles."""

    allow: bool = True
    """Whether they may. Default true; false refuses with a text."""

    ctxt: bool = False
    """Whether they may also write the request's context, which servers believe: who asks, for which project, with which
    roles. Default false: who can write it is an administrator of the cloud."""


class OsloBacklog(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[oslo.backlog]`: notifications kept at this node for pools of listeners that were here and are away. Without the
    section what nobody listens to is dropped.
    """

    topics: Globs = ("notifications.*",)
    """Topics it is about, with * and ?; they end in their priority. Default: where services notify unless told
    otherwise."""

    messages: Count = 100_000
    """Messages kept, for all pools together; the oldest makes room for the newest. Default 100000."""

    bytes: Bytes = 64 * 2**20
    """Their bytes, in memory whether there is a path or not. Default 64 MiB."""

    hours: Annotated[float, Meta(gt=0, le=8760)] = 24.0
    """How long each is kept, and how long nobody of a pool may come back until nothing is kept for it any more. Default
    a day."""

    path: Text | None = None
    """A file where it survives the proxy, `kill -9`, too, relative to the configuration file. Default none: what is
    kept when the proxy ends is lost, and counted."""


class OsloSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[oslo]`: a node proxy, and its bridge."""

    node: Text | None = None
    """Name of this node, unlike those of all others. Default: this machine's host name."""

    host: str = "127.0.0.1"
    """Address that the ports are bound to; `*`, `0.0.0.0`, `::` or a name is all of them, that of an interface
    its own, "" opens none. Default: this
    machine only, since plaintext goes no further."""

    advertise: Text | None = None
    """Host name or address that other nodes dial. Default: `host`, or `node` where that is all addresses."""

    call_port: Port = 9501
    """TCP port of calls (ROUTER). Default 9501, as the specification says; so do the next three. 0: any free one."""

    fanout_port: Port = 9502
    """TCP port of fan-outs (XSUB)."""

    notify_port: Port = 9503
    """TCP port of notifications (SUB)."""

    cast_port: Port = 9504
    """TCP port of casts to one server (PULL)."""

    directory_port: Port = 9500
    """TCP port of the directory service (ROUTER). Default 9500; the specification leaves it open."""

    run: Annotated[tuple[RoomName, ...], Meta(min_length=1)] = (
        "directory",
        "call",
        "fanout",
        "notify",
        "cast",
    )
    """Rooms that run here. Default: all. Each depends on none of the others but the directory, which has to run
    somewhere on the node. One that hangs or dies leaves others alone that run in processes of their own
    (headgate-oslo-room@.service)."""

    ipc_dir: Text | None = None
    """Folder of the sockets for servers and clients of this node. Default: `/run/headgate-oslo` for root, else
    `$XDG_RUNTIME_DIR/headgate/oslo`, else `/tmp/headgate-oslo-UID`. Drivers look in the first of them, then in that of
    their user."""

    ipc_group: Text | None = None
    """Group that may use it (mode 0750). Default: the owner alone (0700)."""

    directories: tuple[Text, ...] = ()
    """`tcp://HOST:PORT` of directories to announce to and to read from. Default none: this node knows itself only."""

    directory_key: Text | None = None
    """CURVE public key of those directories. Default: our own, as all proxies may share one certificate."""

    redis: tuple[SecretUrl, ...] = ()
    """Redis servers that share the directory: `redis://HOST:PORT/DB`, `rediss://` or `sentinel://HOST:PORT/SERVICE`.
    All are written to, all that answer are read. Default none. Needs the extra `redis`."""

    redis_password_file: Text | None = None
    """File (0600) with the password of these servers, which then stands in no URL; read when the directory starts.
    Default none."""

    curve_cert: Text | None = None
    """Path of this node's CURVE certificate (`headgate keygen`), relative to the configuration file. Default none: the
    ports speak plaintext, which is refused off loopback."""

    insecure: bool = False
    """Allow plaintext ports off loopback. Default false: messages could be read and forged."""

    unlisted: Literal["owner", "user", "deny"] | None = None
    """The role of keys that `oslo.keys` does not list, and of TCP peers in plaintext. Default: with `curve_cert` deny,
    so that only keys come in that are listed, our own and `directory_key` among them; without it user, since there are
    no keys. user lets in whoever reaches the ports: CURVE encrypts then, and proves the node, no more."""

    lease_s: Some = 5.0
    """Seconds after which a server or a node that says nothing is forgotten. Default 5: a killed process is seen at
    once, so this is for frozen ones and lost machines."""

    beat_s: Some = 1.0
    """Seconds between renewals of the lease. Default 1: four may be lost."""

    tcp_keepalive: bool = True
    """TCP keep-alive on every port. Default true, as the specification asks."""

    tcp_keepalive_idle_s: Annotated[int, Meta(ge=1, le=32767)] = 5
    """Seconds of silence before the first probe. Default 5: a lost machine is known after eleven seconds."""

    tcp_keepalive_count: Annotated[int, Meta(ge=1, le=127)] = 3
    """Unanswered probes that end a connection. Default 3."""

    tcp_keepalive_interval_s: Annotated[int, Meta(ge=1, le=32767)] = 2
    """Seconds between probes. Default 2."""

    message_bytes_max: Bytes = 64 * 2**20
    """Largest frame of a peer, refused before anything is allocated. Default 64 MiB."""

    queue_msgs: Count = 10_000
    """Messages that may wait for one server in each pipeline; beyond it they are refused, or dropped and counted.
    Default 10000: a burst fits, a server that never reads shows soon."""

    queue_bytes: Bytes = 64 * 2**20
    """Bytes that may wait likewise. Default 64 MiB."""

    pending_max: Count = 100_000
    """Calls that may wait for their replies; beyond it they are refused. Default 100000, some ten MiB."""

    backlog: OsloBacklog | None = None
    """`[oslo.backlog]`: notifications for listeners that are away. Default none: they are dropped."""

    metrics_listen: Text | None = None
    """Where Prometheus text (`/metrics`) and `/livez` are served, of all rooms of the node, by the process that runs
    its directory: `unix:///PATH` or `http://HOST:PORT` (no TLS, so on loopback, unless `metrics_insecure`). Default
    off: `headgate oslo status` has the same figures."""

    metrics_insecure: bool = False
    """Allow `metrics_listen` off loopback. Default false: whoever reaches the port reads the figures, which hold names
    of topics, no payloads and no keys."""

    bridge: bool = True
    """Let it be reached on the broker, beside rank 0 or with `--uri`: the service `oslo`. Default true. false: the
    proxy alone."""

    call_timeout_s: Some = 60.0
    """How long a call through the broker waits when it does not say. Default 60, as `rpc_response_timeout`."""

    call_timeout_max_s: Some = 3600.0
    """The most that it may say. Default an hour: every call that waits takes memory."""

    notify: tuple[Text, ...] = ("openstack/notifications",)
    """`EXCHANGE/TOPIC` whose notifications become events `oslo.notify.*` on the broker; an exchange of a virtual host
    is `/HOST/EXCHANGE`. Default: where services send them unless told otherwise. An empty list: none."""

    notify_pool: Text = "headgate"
    """Pool that listens to them: with a name of its own it takes nothing away from other listeners, and bridges that
    share it share the notifications."""

    notify_public: bool = False
    """Show these events to every user of the broker. Default false: owners alone, for they tell of everybody's
    resources."""

    keys: tuple[OsloKeyEntry, ...] = ()
    """`[[oslo.keys]]`: who is who at the ports. Default none: our own key, which nodes may share, is the only
    one known."""

    rules: tuple[OsloRuleEntry, ...] = ()
    """`[[oslo.rules]]`: who may send and listen where. Default none: owners and users everywhere."""

    calls: tuple[OsloCallEntry, ...] = ()
    """`[[oslo.calls]]`: what others than owners may call through the broker. Default none: nothing."""

    LATE: ClassVar[tuple[str, ...]] = ("keys", "rules", "unlisted", "curve_cert", "directory_key")
    """What can change while it runs (SIGHUP)."""

    def port_of(self, room: str) -> int:
        """The TCP port of a room."""
        port: int = getattr(self, f"{room}_port")
        return port


NAME_BYTES = 255
"""UTF-8 bytes of an exchange, topic or pool: longer ones cannot be sent."""
_LONGEST_FILE = "directory.ctl"
_REDIS_SCHEMES = ("redis", "rediss", "sentinel", "redis+sentinel")


def oslo_problems(section: OsloSection) -> Iterator[Problem]:
    """Yield every fault of a section whose types are right."""
    yield from _host(section)
    yield from _ports(section)
    yield from _rooms(section)
    yield from _folder(section)
    yield from _directories(section)
    yield from _keys(section)
    yield from _limits(section)
    if section.metrics_listen is not None:
        yield from check_metrics(("oslo", "metrics_listen"), section.metrics_listen, section.metrics_insecure)
    yield from _bridge(section)


def _host(section: OsloSection) -> Iterator[Problem]:
    path: KeyPath = ("oslo", "host")
    if not section.host:
        return
    if not _is_host(section.host):
        yield saw(path, section.host, 'an address or host name without port, "*" for all, or "" for none')
        return
    if not is_loopback(section.host) and section.curve_cert is None and not section.insecure:
        yield saw(path, section.host, "a loopback address, or oslo.curve_cert, or oslo.insecure = true")


def _is_host(text: str) -> bool:
    return text == "*" or numeric(text) is not None or all(char.isalnum() or char in "-._" for char in text)


def _ports(section: OsloSection) -> Iterator[Problem]:
    if not section.host:
        return
    taken: dict[int, str] = {}
    for room in dict.fromkeys(section.run):
        port = section.port_of(room)
        if port and port in taken:
            yield saw(("oslo", f"{room}_port"), port, f"another port than that of {taken[port]}")
        taken[port] = room


def _rooms(section: OsloSection) -> Iterator[Problem]:
    for index, room in enumerate(section.run):
        if room in section.run[:index]:
            yield saw(("oslo", "run"), room, "each room once")


def _folder(section: OsloSection) -> Iterator[Problem]:
    folder = section.ipc_dir
    if folder is None:
        return
    if not folder.startswith("/"):
        yield saw(("oslo", "ipc_dir"), folder, "an absolute path")
    if len(f"{folder}/{_LONGEST_FILE}".encode()) > UNIX_PATH_BYTES:
        yield saw(
            ("oslo", "ipc_dir"),
            folder,
            f"room for {_LONGEST_FILE} within {UNIX_PATH_BYTES} bytes; {SHORTER_HELPS}",
        )


def _directories(section: OsloSection) -> Iterator[Problem]:
    for index, uri in enumerate(section.directories):
        path: KeyPath = ("oslo", "directories", index)
        faults = list(check_uri(path, uri, "tcp"))
        yield from faults
        if uri.endswith(":*"):
            yield saw(path, uri, "tcp://HOST:PORT")
        elif not faults and beyond_loopback(uri) and section.curve_cert is None and not section.insecure:
            yield saw(path, uri, "a loopback address, or oslo.curve_cert, or oslo.insecure = true")
    for index, url in enumerate(section.redis):
        scheme, mark, rest = url.reveal().partition("://")
        if not mark or scheme not in _REDIS_SCHEMES or not rest or not _parses(scheme, url.reveal()):
            # what stands behind the scheme may hold a password: it is not repeated
            yield saw(
                ("oslo", "redis", index),
                scheme if mark else "...",
                "redis://, rediss:// or sentinel:// and an address",
            )


def _parses(scheme: str, url: str) -> bool:
    """Whether a URL of one server names a host and a port; of sentinels there may be several."""
    try:
        return not scheme.startswith("redis") or "+" in scheme or urlsplit(url).port != 0
    except ValueError:
        return False


def _keys(section: OsloSection) -> Iterator[Problem]:
    if section.directory_key is not None:
        yield from check_key(("oslo", "directory_key"), section.directory_key)
    yield from check_keys(("oslo", "keys"), (entry.key for entry in section.keys))
    if section.curve_cert is not None:
        return
    if section.keys:
        yield Problem(
            ("oslo", "keys"), "saw keys without oslo.curve_cert, expected it: only CURVE checks keys"
        )
    if section.directory_key is not None:
        yield Problem(
            ("oslo", "directory_key"), "saw a key without oslo.curve_cert, expected it: CURVE needs both"
        )


def _limits(section: OsloSection) -> Iterator[Problem]:
    if section.beat_s * 2 > section.lease_s:
        yield saw(("oslo", "beat_s"), section.beat_s, f"at most half of lease_s, {section.lease_s:g}")
    pairs = (("message_bytes_max", "queue_bytes"), ("call_timeout_s", "call_timeout_max_s"))
    yield from check_order(("oslo",), section, *pairs)


def _bridge(section: OsloSection) -> Iterator[Problem]:
    for index, place in enumerate(section.notify):
        path: KeyPath = ("oslo", "notify", index)
        exchange, mark, topic = place.rpartition("/")  # an exchange of a virtual host has slashes
        if not mark or not exchange or not topic:
            yield saw(path, place, "EXCHANGE/TOPIC")
        elif max(len(exchange.encode()), len(topic.encode()) + len(".critical")) > NAME_BYTES or _controls(
            place
        ):
            what = (
                f"names of at most {NAME_BYTES} bytes without control characters, a priority behind the topic"
            )
            yield saw(path, place, what)
        elif place in section.notify[:index]:
            yield saw(path, place, "each place once")
    if len(section.notify_pool.encode()) > NAME_BYTES or _controls(section.notify_pool):
        what = f"at most {NAME_BYTES} bytes without control characters"
        yield saw(("oslo", "notify_pool"), section.notify_pool, what)


def _controls(text: str) -> bool:
    return any(character < " " for character in text)
