"""What a node's proxy is told: where to listen, who may enter, what it may hold (plain values; ``deploy/broker.toml``).

``settings.oslo`` is the same for people, in TOML; the command line turns one into the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.identity import USERID_UNKNOWN, Role
from broker.oslo.names import DIRECTORY_PORT, PORTS, Pipeline
from broker.secret import SecretUrl

DIRECTORY: Final = "directory"
"""The room beside the pipelines that a proxy may run."""
EVERYTHING: Final = frozenset({DIRECTORY, *map(str, Pipeline)})
SEND_MSGS: Final = 256
"""SNDHWM between nodes and processes: what waits belongs into an outbox, where it is counted; what libzmq holds is lost
with its connection."""


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A CURVE key and whose it is; ``rolemask`` 0 refuses it."""

    key: str
    name: str = ""
    userid: int = USERID_UNKNOWN
    rolemask: int = int(Role.USER)


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may send where, or listen there; the first that fits decides. All but ``allow`` are globs or bits to fit.

    ``action``: ``send``, ``listen`` or ``*``. ``roles``: bits of which the sender has to have one.
    """

    exchanges: tuple[str, ...] = ("*",)
    topics: tuple[str, ...] = ("*",)
    action: str = "*"
    roles: int = int(Role.USER | Role.OWNER)
    users: tuple[int, ...] = ()
    allow: bool = True


@dataclass(frozen=True, slots=True)
class BacklogConfig:
    """What is kept for listeners of notifications that are away (``proxy.backlog``).

    Attributes:
        topics: globs, of topics with their priority at the end.
        messages, bytes: at most, all together.
        keep_s: each of them, and the pool of a topic that nobody came back to, so long.
        path: of a file where it survives the proxy; "" memory alone.
    """

    topics: tuple[str, ...]
    messages: int = 100_000
    bytes: int = 64 << 20
    keep_s: float = 86_400.0
    path: str = ""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One node.

    Attributes:
        ipc_dir: folder of sockets for local clients and servers; made when it is missing.
        ipc_group: group that may use it (mode 0750); "" the owner alone (mode 0700).
        node: name of the node, unique among all.
        host: address that the ports are bound to; "" no TCP at all.
        advertise: host that other nodes dial; "" is ``node``.
        ports: of the pipelines; 0 any free one (tests).
        directory_port: of the directory; 0 any free one.
        run: rooms that this process runs, of ``EVERYTHING``.
        directories: ``tcp://host:port`` of other directories to announce to and to read from; () none.
        redis: URLs of Redis servers (``redis://``, ``sentinel://HOST:PORT/SERVICE``) to share states by; () none.
        redis_password_file: the password of those whose URL has none; "" they have none.
        curve_cert: path of the CURVE certificate; "" plaintext.
        directory_key: Z85 key of the other directories; "" is our own (all proxies share a certificate).
        insecure: allow plaintext off loopback.
        keys: who keys are. Our own and ``directory_key`` are known without being listed.
        unlisted: the rolemask of other keys, and of TCP peers without CURVE; 0 refuses them. None: 0 with
            ``curve_cert``, so that a port with keys is closed to whoever is not listed; else that of a user.
        rules: who may send and listen where; after them, everybody with role USER or OWNER may.
        lease_s: a state or listener that was not renewed for so long is forgotten.
        beat_s: how often leases are renewed.
        keepalive: (on, idle s, count, interval s) of TCP.
        message_bytes_max: largest frame, refused before it is allocated.
        queue_msgs, queue_bytes: what may wait for one server in each pipeline.
        send_msgs: what libzmq may hold for one server beside that, of calls and casts.
        pending_max: calls that may wait for their replies.
        backlog: what is kept for listeners that are away; None nothing.
    """

    ipc_dir: str
    ipc_group: str = ""
    node: str = "localhost"
    host: str = "127.0.0.1"
    advertise: str = ""
    ports: Mapping[Pipeline, int] = field(default_factory=lambda: dict(PORTS))
    directory_port: int = DIRECTORY_PORT
    run: frozenset[str] = EVERYTHING
    directories: tuple[str, ...] = ()
    redis: tuple[SecretUrl, ...] = ()
    redis_password_file: str = ""
    curve_cert: str = ""
    directory_key: str = ""
    insecure: bool = False
    keys: tuple[KeyEntry, ...] = ()
    unlisted: int | None = None
    rules: tuple[Rule, ...] = ()
    lease_s: float = 5.0
    beat_s: float = 1.0
    keepalive: tuple[bool, int, int, int] = (True, 5, 3, 2)
    message_bytes_max: int = 64 << 20
    queue_msgs: int = 10_000
    queue_bytes: int = 64 << 20
    send_msgs: int = SEND_MSGS
    pending_max: int = 100_000
    backlog: BacklogConfig | None = None

    @property
    def unlisted_mask(self) -> int:
        """``unlisted`` as it is meant when nobody says."""
        if self.unlisted is not None:
            return self.unlisted
        return int(Role.NONE if self.curve_cert else Role.USER)

    def path(self, name: str) -> str:
        """Endpoint of the file ``name`` in the folder."""
        return f"ipc://{os.path.join(self.ipc_dir, name)}"


MISSING: Final = " is missing"


def obstacle(path: str) -> str:
    """Why the socket at ``path`` cannot be used, as the end of a sentence; "" when it is there for us.

    >>> obstacle("/nowhere/at/all")
    ' is missing'
    """
    try:
        os.stat(path)
    except PermissionError:
        return f" may not be reached by the user {os.geteuid()} of this process: is it in the group of its folder?"
    except OSError:
        return MISSING
    if not os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        return f" may not be used by the user {os.geteuid()} of this process: is it in its group?"
    return ""


def credentials(address: str) -> tuple[int | None, int | None, int | None]:
    """uid, gid and pid (SO_PEERCRED) that end an ipc peer's address: ``localhost:UID:GID:PID``; Nones without.

    libzmq says it of the process at the other end: the address is the property ``Peer-Address`` of each of its
    messages and what a ZAP handler is told.

    >>> credentials("localhost:1000:100:4711")
    (1000, 100, 4711)
    """
    fields = address.rsplit(":", 3)[1:]
    if len(fields) != 3 or not all(field.isascii() and field.isdigit() for field in fields):
        return None, None, None
    uid, gid, pid = map(int, fields)
    return uid, gid, pid


NODE_DIR: Final = "/run/headgate-oslo"
"""The folder of a node's proxy that runs as a service of the system (``deploy/systemd``), or as root."""
DIR_VARIABLE: Final = "HEADGATE_OSLO_DIR"
"""Names the folder for proxies and their clients alike, before any rule."""


def proxy_ipc_dir() -> str:
    """Where a proxy of this user has its folder when nobody says: ``$HEADGATE_OSLO_DIR``, else ``NODE_DIR`` for root,
    else ``$XDG_RUNTIME_DIR/headgate/oslo``, else ``/tmp/headgate-oslo-UID``.
    """
    named = os.environ.get(DIR_VARIABLE)
    if named:
        return named
    if os.getuid() == 0:
        return NODE_DIR
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return os.path.join(runtime, "headgate", "oslo") if runtime else f"/tmp/headgate-oslo-{os.getuid()}"  # noqa: S108


def client_ipc_dir() -> str:
    """Where clients and servers look for the proxy of their node when nobody says: ``$HEADGATE_OSLO_DIR``, else
    ``NODE_DIR`` where that is there, else the folder of a proxy of this user where that is there.

    While there is neither, a process of a login session (``XDG_RUNTIME_DIR``) expects its user's proxy, and a service,
    which may have started before the proxy, that of the node.
    """
    own = proxy_ipc_dir()
    if os.environ.get(DIR_VARIABLE):
        return own
    if os.path.isdir(NODE_DIR):
        return NODE_DIR
    return own if os.environ.get("XDG_RUNTIME_DIR") or _is_ours(own) else NODE_DIR


def _is_ours(path: str) -> bool:
    """Whether this user has made it: below ``/tmp`` anybody may make one."""
    try:
        return os.lstat(path).st_uid == os.getuid()
    except OSError:
        return False
