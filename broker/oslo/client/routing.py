"""Who listens where, as last heard from the directory, and whose turn it is. Lookups may come from any thread (see
``Replica``).

Servers take turns, not nodes: each gets as much as every other, wherever it runs. There is one turn for each topic,
shared by calls and casts, and one for each server name that several listeners share; for notifications one for each
pool. A turn remembers whom it chose last and goes on behind it, so that listeners that come or go do not make it begin
anew.
"""

# compiled: mypyc

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from broker.oslo.client.links import TrustedFolder
from broker.oslo.contract import Address, Settings
from broker.oslo.directory.peer import Reader
from broker.oslo.directory.state import Replica, Server
from broker.oslo.names import DIRECTORY_SOCKET, Pipeline
from broker.oslo.node import NodeConfig, obstacle
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.tuning import KeepAlive, Tuning, curve_to_directory
from broker.oslo.records import Opened, State
from broker.transport.curve import CurveClient, load

if TYPE_CHECKING:
    from broker.oslo.directory.redis import RedisHost

ADDRESSES_MAX: Final = 65_536
"""Addresses whose servers are remembered; beyond it all are forgotten and looked up anew."""

TURNS_MAX: Final = 65_536
"""Turns remembered; beyond it all are forgotten, which costs an even distribution for a moment."""
_NOBODY: Final[frozenset[str]] = frozenset()

T = TypeVar("T", bound=tuple[Any, ...])

Servers = tuple[Server, ...]


class Found(NamedTuple):
    """Who listens at one address, sorted; ``topic``: all of its topic, of which it was found."""

    topic: Servers
    calls: Servers
    """Who may be called."""
    casts: Servers
    """Who may be sent a cast: over its own pipeline, or over that of calls."""


class RoutingTable:
    """The replica of one client, and its links to directories. Opened and closed in the thread of the sockets.

    Args:
        changed: called after each change, with the nodes whose state has changed.

    Attributes:
        replica: looked up directly where speed matters.
        synced: True once some directory has told all it knows.
        body_max: largest body that can be sent: what we were told, and what the directory says of its node.
    """

    def __init__(
        self, reactor: Reactor, settings: Settings, folder: TrustedFolder, changed: Callable[[set[str]], None]
    ) -> None:
        self.replica = Replica()
        self.synced = False
        self.body_max = settings.message_bytes_max
        self._folder = folder
        self._reactor = reactor
        self._settings = settings
        self._changed = changed
        self._touched: set[str] = set()
        self._found: dict[Address, Found] = {}
        self._reader: Reader | None = None
        self._redis: list[RedisHost] = []
        self._home = ""
        self._until_s = 0.0
        self._curve: CurveClient | None = None
        self._path = os.path.join(settings.ipc_dir, DIRECTORY_SOCKET)

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Begin to read."""
        settings = self._settings
        self._until_s = self._reactor.now() + settings.ready_s
        self.replica.on_state.append(self._noted)
        self.replica.on_change.append(self._settled)
        self._reader = Reader(
            self._reactor,
            self.replica,
            ipc_dir=settings.ipc_dir,
            directories=settings.directories,
            tuning=self._tuning,
            trusted=self._folder.usable,
        )
        if settings.redis and obstacle(self._path):
            from broker.oslo.directory.redis import open_hosts  # late: few applications need it

            config = NodeConfig(settings.ipc_dir, node="", redis=settings.redis)
            self._redis = open_hosts(self._reactor, config, self.replica)

    def _tuning(self) -> Tuning:
        """Of connections to directories, with our certificate as its file is now."""
        settings = self._settings
        if settings.curve_cert or self._curve is None:
            certificate = load(settings.curve_cert) if settings.curve_cert else None
            self._curve = curve_to_directory(certificate, settings.directory_key)
        return Tuning(KeepAlive(*settings.keepalive), curve=self._curve)

    def close(self) -> None:
        """Read nothing more; what is known stays."""
        if self._reader is not None:
            self._reader.close()
        for host in self._redis:
            host.close()

    # ------------------------------------------------------------ from any thread

    def nodes(self, address: Address) -> set[str]:
        """Where the servers of ``address`` are."""
        servers = self.replica.servers(address.exchange, address.topic)
        return {each.node for each in servers if not address.server or each.server == address.server}

    # ------------------------------------------------------------ in the thread of the sockets

    @property
    def overdue(self) -> bool:
        """A directory should have answered by now."""
        return self._reactor.now() >= self._until_s

    def find(self, address: Address) -> Found:
        """Who listens at ``address``; the same objects as long as nothing changes."""
        servers = self.replica.servers(address.exchange, address.topic)
        found = self._found.get(address)
        if found is not None and found.topic is servers:
            return found
        if len(self._found) >= ADDRESSES_MAX:
            self._found.clear()
        name = address.server
        those = tuple(each for each in servers if each.server == name) if name else servers
        called = tuple(each for each in those if Pipeline.CALL in each.pipelines)
        found = self._found[address] = Found(servers, those if len(called) == len(those) else called, those)
        return found

    def lists(self, confirmed: Mapping[Pipeline, Opened]) -> bool:
        """Whether the directory says, too, what these pipelines have confirmed. True when there is none to ask."""
        if not self.synced and not self._settings.directories and not os.path.exists(self._path):
            return True
        for pipeline, opened in confirmed.items():
            state = self.replica.state(opened.node, pipeline)
            if state is None or state.age < (opened.incarnation, opened.version):
                return False
        return True

    def is_home(self, node: str) -> bool:
        """Whether that is the node whose folder we have, as its directory or a registration said."""
        return bool(self._home) and node == self._home

    def home_is(self, node: str) -> None:
        """The proxy of our folder says its name."""
        expected = self._settings.node
        if node != self._home and expected not in ("", node):
            text = "the proxy of this node (%s) calls itself %.64r, expected %.64r: is it the folder of another one?"
            self._reactor.say(logging.WARNING, text, (self._settings.ipc_dir, node, expected))
        self._home = node

    def whereabouts(self) -> str:
        """For texts: which directories were asked, in words an operator understands."""
        path = os.path.join(self._settings.ipc_dir, DIRECTORY_SOCKET)
        asked = [f"the proxy of this node ({path}{obstacle(path)})"]
        redis = (f"Redis at {host.label}" for host in self._redis)
        return " and ".join([*asked, *self._settings.directories, *redis])

    def status(self) -> dict[str, Any]:
        """For status."""
        redis = {"redis": [host.status() for host in self._redis]} if self._redis else {}
        return {"home": self._home, **redis, **(self._reader.status() if self._reader is not None else {})}

    def _noted(self, before: State | None, after: State | None) -> None:
        if before is None or after is None or (before.endpoint, before.key) != (after.endpoint, after.key):
            state = after if after is not None else before
            if state is not None:
                self._touched.add(state.node)

    def _settled(self) -> None:
        self._learn_home()
        self.synced = self.synced or self.replica.synced
        touched, self._touched = self._touched, set()
        self._changed(touched)

    def _learn_home(self) -> None:
        if self._reader is None:
            return
        local = self._reader.local
        if not self._home and local is not None and local.welcome is not None:
            self.home_is(local.welcome.node)
        told = (peer.welcome for peer in self._reader.peers.values())
        limits = (welcome.message_bytes_max for welcome in told if welcome is not None)
        self.body_max = min([self._settings.message_bytes_max, *(limit for limit in limits if limit)])


class _Turn(Generic[T]):
    """Attributes: ``among``: whom it was chosen from; ``at``: the position of the next one in it; ``last``: whom."""

    __slots__ = ("among", "at", "last")

    def __init__(self) -> None:
        self.among: Sequence[T] = ()
        self.at = 0
        self.last: tuple[str, str] | None = None


class Chooser(Generic[T]):
    """The turns of one process.

    Who is chosen is a tuple: the second field is the listener, and it is sorted by the first and the second.

    Args:
        node_at: the field with the node.
    """

    def __init__(self, *, node_at: int) -> None:
        self._node_at = node_at
        self._turns: dict[Hashable, _Turn[T]] = {}

    def choose(
        self,
        key: Hashable,
        among: Sequence[T],
        nodes_down: Container[str] = _NOBODY,
        tried: Container[str] = _NOBODY,
    ) -> T | None:
        """The next one of ``among``; None when there is nobody.

        Args:
            key: of the turn, such as the topic, or the topic and the server's name.
            among: sorted; quickest when it is the same object as the last time.
            nodes_down: nodes that are passed over.
            tried: listeners that are passed over.
        """
        turn = self._turns.get(key)
        if turn is None:
            if len(self._turns) >= TURNS_MAX:
                self._turns.clear()
            turn = self._turns[key] = _Turn()
        if turn.among is not among:
            turn.among = among
            turn.at = 0 if turn.last is None else bisect_right(among, turn.last, key=_place)
        count = len(among)
        for step in range(count):
            at = (turn.at + step) % count
            one = among[at]
            if one[self._node_at] not in nodes_down and one[1] not in tried:
                turn.at = at + 1
                turn.last = (one[0], one[1])
                return one
        return None


def _place(one: tuple[Any, ...]) -> tuple[str, str]:
    return (one[0], one[1])
