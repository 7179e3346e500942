"""What the four pipelines of a node have in common, from their sockets to their end; and what those three have whose
messages are for one listener each.

::

    frontend        what clients send, of one kind of socket
    registration    where the servers of this node register
    listeners       who they are; of fan-outs it is ``subscribers``
    announcer       tells the directory who is here, once the former proxy's servers are back (``restart_gate``)
    journal         a tap on all of these sockets, where messages are recorded
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
import errno
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

import zmq

from broker.identity import USERID_UNKNOWN, Credentials
from broker.name_stats import NameStats, StatsTable, readable
from broker.oslo.directory.peer import Announcer
from broker.oslo.frames import Envelope, Kind
from broker.oslo.names import ERRNOS, REASONS, Reason
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.frontend import Frontend
from broker.oslo.proxy.journal import Recording
from broker.oslo.proxy.listeners import LOOK_S, Listener, Listeners
from broker.oslo.proxy.registration import Registration, ServerLink
from broker.oslo.proxy.restart_gate import REJOINING, STOPPING, RestartGate
from broker.oslo.reactor import Reactor, Timer
from broker.oslo.reactor.socket import Frames
from broker.oslo.records import Opened
from broker.transport.curve import Certificate

TOPICS_MAX: Final = 60
UNPROVEN_MAX: Final = 15
"""Names of one pipeline: those of four together are no more than there is room for beside other figures."""
NEARLY_FULL: Final = "a queue is nearly full"
"""Why a frontend is paused."""


class TopicStats:
    """How many messages of one pipeline went to each topic, and why some were refused or lost; bounded.

    An errno says why, as a bridge on a Flux broker says it. A topic that somebody here listens to is not made up. How
    long calls take, and what their endpoints answer, is in bodies and is not known here.

    Args:
        now: seconds, by a clock that nobody sets.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._table: StatsTable = StatsTable(TOPICS_MAX, UNPROVEN_MAX)
        self._now = now
        self._known: dict[tuple[str, str], NameStats] = {}

    def of(self, exchange: str, topic: str, *, listened: bool) -> NameStats:
        """Where messages to that topic are counted; ``listened``: it is certain that it is there."""
        key = (exchange, topic)
        stats = self._known.get(key)
        if stats is None:
            name = readable(f"{exchange}/{topic}")
            stats = self._table.proven(name) if listened else self._table.of(name)
            if self._table.has(stats):
                self._known[key] = stats
        return stats

    def failed(self, exchange: str, topic: str, reason: Reason, userid: int) -> None:
        """A message that was counted was refused, or is lost."""
        self.ended(self.of(exchange, topic, listened=False), reason, userid)

    def ended(self, stats: NameStats, reason: Reason, userid: int = USERID_UNKNOWN) -> None:
        """The same of one that is counted in ``stats``."""
        stats.failed(ERRNOS.get(reason, errno.EIO), REASONS[reason], userid, int(self._now() * 1e9))

    def refused(self, exchange: str, topic: str, reason: Reason, userid: int) -> None:
        """A message that was not counted was refused."""
        self.of(exchange, topic, listened=False).calls += 1
        self.failed(exchange, topic, reason, userid)

    def status(self) -> dict[str, dict[str, Any]]:
        """For STATUS: by ``EXCHANGE/TOPIC``; see ``NameStats.told``."""
        return self._table.told(int(self._now() * 1e9), time.time())


class PipelineRoom(Registration):
    """One pipeline of a node; nothing is opened before ``open``.

    Args:
        reactor, config, acl, recording: see ``Registration``.

    Attributes:
        kind: of its frontend's sockets, such as ``zmq.SUB``.
        topics: messages by where they went.
    """

    kind: ClassVar[int]

    def __init__(
        self, reactor: Reactor, config: NodeConfig, acl: AccessControl, recording: Recording | None = None
    ) -> None:
        super().__init__(reactor, config, acl, recording)
        self.topics = TopicStats(reactor.now)

    # ------------------------------------------------------------ each pipeline

    @abstractmethod
    def on_client_message(self, frames: list[bytes], who: Credentials, index: int) -> None:
        """``who`` sent something, a ROUTER's with its connection's id in front, to frontend ``index``."""

    @abstractmethod
    def _open(self, undo: contextlib.ExitStack) -> None:
        """Bind what is behind the frontend, the control socket with it; ``undo`` is what ``close`` does."""

    @abstractmethod
    def _pipeline_status(self) -> dict[str, Any]:
        """What STATUS answers beside what it says of every pipeline."""

    def _counted(self) -> dict[str, int]:
        return self.counters.status()

    def on_change(self) -> None:
        """See ``Registration``: it is noted for the next proxy."""
        self._restart_gate.changed()

    # ------------------------------------------------------------ life

    def open(self) -> None:
        """Bind everything, and announce who is here as soon as the former proxy's servers are back.

        Raises:
            ConfigError: a port or file is in use, or a port would be open to other machines in plaintext.
        """
        reactor, config, pipeline = self._reactor, self._config, self.pipeline
        journal = self._journal
        came = self.on_client_message if journal is None else journal.frontend(self.on_client_message)
        with contextlib.ExitStack() as undo:
            frontend = self._frontend = Frontend(
                reactor, config, pipeline, self.kind, self._acl, came, self.counters
            )
            undo.callback(lambda: frontend.close(self._linger_ms))
            if journal is not None and self.kind == zmq.ROUTER:
                for index, socket in enumerate(frontend.sockets):
                    journal.watch(socket, index)
            self._announcer = Announcer(reactor, config, pipeline, frontend.endpoint, frontend.key, held=True)
            undo.callback(self._announcer.close)
            self._restart_gate = RestartGate(
                reactor, config.ipc_dir, pipeline, self._registered, self._open_frontends
            )
            self._open(undo)
            undo.callback(lambda: self._restart_gate.close(forget=self.leaving))
            frontend.pause(REJOINING, on=True)
            self._restart_gate.begin()
            self._undo = undo.pop_all()

    def _open_frontends(self) -> None:
        """The local servers are registered again, if there were any: clients may come."""
        self._announcer.begin()
        self._frontend.pause(REJOINING, on=False)

    @property
    def waiting(self) -> int:
        """Messages that wait to be sent."""
        return self.servers.waiting

    def renew(self, certificate: Certificate | None) -> int:
        """Forget what was decided by former rules, show ``certificate`` to whoever connects from now on; returns how
        many listeners were dropped.

        Raises:
            ConfigError: its port cannot be listened at with the new key; the former one is shown.
        """
        try:
            self._frontend.renew(certificate)
        finally:
            self._announcer.change_key(self._frontend.key)
        return self._review()

    def stop(self, reason: str, *, returns: bool) -> None:
        """Read nothing more; what waits is still sent.

        Args:
            reason: for servers and the log.
            returns: another process takes over in a moment: the directory is not told, nor is anybody else. Otherwise
                the node is left for good: what is announced is withdrawn, servers are told.
        """
        self._frontend.pause(STOPPING, on=returns)
        if returns:
            self._announcer.away()
        else:
            self._farewell(reason)
            self._announcer.leave()

    def close(self, linger_ms: int = 0) -> None:
        """Close everything, the last first; libzmq goes on handing over for ``linger_ms``. Harmless twice."""
        self._linger_ms = linger_ms
        self._undo.close()

    # ------------------------------------------------------------ servers and STATUS

    def confirmation(self) -> Opened:
        """What a server is told whose listener begins."""
        return Opened(
            self._config.node,
            self._announcer.incarnation,
            version=self._announcer.promise(),
            message_bytes_max=self._config.message_bytes_max,
        )

    def figures(self) -> dict[str, Any]:
        """What STATUS answers who wants no more than that."""
        return {"figures": self.topics.status()}

    def status(self) -> dict[str, Any]:
        """What STATUS answers."""
        return {
            "pipeline": str(self.pipeline),
            "node": self._config.node,
            "incarnation": self._announcer.incarnation,
            "endpoint": self._frontend.endpoint,
            "entries": self._frontend.status(),
            **self._restart_gate.status(),
            **self._registration_status(),
            **self._pipeline_status(),
            "counts": self._counted(),
            **self.figures(),
            **(self._recording.status(str(self.pipeline)) if self._recording is not None else {}),
        }


class ListenerRoom(PipelineRoom):
    """A pipeline whose messages are for one listener each, within its credit: CALL, CAST, NOTIFY.

    A listener registers at the control socket and is given its messages there::

        OPEN (listener)            credit: room for so many
        CREDIT (listener) word n   room for n more; as many of the oldest that it was given are confirmed

    While the queue of one is nearly full and moves, the entry is not read (``listeners``).

    Attributes:
        listeners: those of this node, from ``open`` on.
    """

    listeners: Listeners
    _look_timer: Timer | None

    def _register(self, undo: contextlib.ExitStack, listeners: Listeners) -> None:
        """Let servers register, whose listeners get to ``listeners``."""
        self.listeners = listeners
        self._look_timer = None
        self._paused = False
        undo.callback(self._stop_looking)
        self._bind_registration(undo)
        self.servers.flushed = self._flushed

    # ------------------------------------------------------------ listeners

    def close_listener(self, link: ServerLink, listener: str) -> None:
        """See ``Registration``."""
        ended = self.listeners.close(listener)
        if ended is not None:
            self._announcer.remove(ended.records)
            self._end_listener(link, ended)
            self._pause()

    @abstractmethod
    def _end_listener(self, link: ServerLink, ended: Listener) -> None:
        """It is not in the table any more: what becomes of what was for it."""

    def on_control_message(self, link: ServerLink, envelope: Envelope, rest: list[bytes]) -> None:
        """See ``Registration``: CREDIT."""
        if envelope.kind != Kind.CREDIT:
            super().on_control_message(link, envelope, rest)
            return
        listener = self.listeners.get(envelope.listener)
        if listener is None or envelope.listener not in link.listeners:
            self.counters.count("credit_unknown")  # it has just ended, or is to be dropped
            return
        self.counters.count("credits")
        self.listeners.confirm(listener, envelope.word)
        self._pause()

    # ------------------------------------------------------------ flow control

    def _flushed(self, frames: Frames) -> None:
        """Something that waited was given to a process, which may take more now."""
        link = self.links.get(frames[0]) if self.listeners.blocked else None
        if link is not None:
            self.listeners.resume(link)
            self._pause()

    def _pause(self) -> None:
        """Read clients as long as no listener asks for a pause; to be called whenever that may have changed."""
        on = bool(self.listeners.asking)
        if on is not self._paused:
            self._paused = on
            if on:
                self.counters.count("pauses")
            self._frontend.pause(NEARLY_FULL, on=on)
        if on and self._look_timer is None:
            self._look_timer = self._reactor.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._look_timer = None
        for name in self.listeners.look():
            self.counters.count(name)
        self._pause()

    def _stop_looking(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None

    @property
    def waiting(self) -> int:
        """Messages that wait to be sent."""
        return super().waiting + self.listeners.waiting()

    def _pipeline_status(self) -> dict[str, Any]:
        return {
            "topics": self.listeners.topics(),
            "waiting": self.listeners.waiting(),
            "members": self.listeners.status(),
            "back_pressure": {"paused": self._paused, "for": len(self.listeners.asking)},
        }
