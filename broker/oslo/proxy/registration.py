"""Where the servers of this node register for one pipeline: the ROUTER at its ``.ctl`` file ("ZMQ Proxy").

A server process has one DEALER for each pipeline, here a ``ServerLink``. What comes over it, behind the router's id
(what it is sent is a ``reactor.bundle`` on the wire)::

    OPEN id        JSON Opening     answered OPENED id + JSON Opened, or REFUSED id reason + text
    CLOSE id       (listeners)      answered CLOSED id, behind everything that was sent for them
    PULSE          (empty)          answered PULSE; or REFUSED NO_ROUTE: not known (any more), register again
    STATUS id      (empty)          answered STATUS id + JSON; with a word only with what is counted by topic

A link that says nothing for a lease has its listeners dropped, its process may be frozen. It stays known until it is
certain that nobody is there: the process has ended (its pidfd says so at once), or the connection has.
"""

# compiled: mypyc

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import zmq

from broker.memory import compact
from broker.oslo.frames import (
    HEAD_BYTES,
    MAGIC,
    VERSION,
    Envelope,
    Kind,
    Malformed,
    decode,
    encode,
    refusal,
)
from broker.oslo.names import REASONS, Pipeline, Reason, control_file
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.frontend import status_of
from broker.oslo.proxy.server_links import CannotOpen, ListenerDrops, ServerLink, objection, read_opening
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.binding import bind_local, remove_socket
from broker.oslo.reactor.counters import Counters
from broker.oslo.reactor.router import RouterSocket
from broker.oslo.reactor.socket import Frames, Outcome
from broker.oslo.reactor.tuning import tune_local
from broker.oslo.records import RECORDS_MAX, Opened, Opening, to_json

if TYPE_CHECKING:
    from broker.oslo.proxy.journal import PipelineJournal

__all__ = ["CannotOpen", "RegistrationSocket", "ServerLink"]

# read where it is used, not folded by the compiler: tests change it
LINKS_MAX: int = 4096
"""Server processes of one node, each with a descriptor or two here."""
SWEEPS: Final = 5
"""Looks at each link within one lease."""
_BEGIN: Final = MAGIC + bytes([VERSION])
_PULSE: Final = (encode(Kind.PULSE), b"")
_UNKNOWN: Final = (encode(Kind.REFUSED, reason=Reason.NO_ROUTE), b"register again")


class Room(Protocol):
    """What a registration socket asks and tells its pipeline."""

    def open_listener(self, link: ServerLink, opening: Opening) -> None:
        """A listener begins, checked and allowed; it is not yet in ``link.listeners``. Raises ``CannotOpen``."""

    def confirmation(self) -> Opened:
        """What a link is told whose listener begins."""

    def close_listener(self, link: ServerLink, listener: str) -> None:
        """A listener has ended; it is no longer in ``link.listeners``. What waits for it can be had by ``sift``."""

    def on_link_end(self, link: ServerLink, waiting: list[Frames]) -> None:
        """A link has ended for good, after ``close_listener`` for each of its listeners, and that waited for it, the
        router's id in front.
        """

    def on_control_message(self, link: ServerLink, envelope: Envelope, rest: list[bytes]) -> None:
        """Any other control message, with the frames behind its envelope; the link may be one that has opened nothing
        (then it is in no table).
        """

    def on_change(self) -> None:
        """A listener has begun or ended: another number of them is registered."""

    def status(self) -> Mapping[str, Any]:
        """The body of STATUS."""

    def figures(self) -> Mapping[str, Any]:
        """The body of a STATUS with a word."""


class RegistrationSocket:
    """The control socket of one pipeline, bound when it is made; the reactor has to be open.

    Args:
        reactor: whose.
        config: folder, lease, limits of each link's queue.
        pipeline: of this file.
        acl: who may listen where.
        counters: what is counted.
        room: the pipeline, see ``Room``.
        raw: kinds whose messages are not read here: ``(link, frames)`` with all frames, the router's id first.
        journal: where what comes, what goes and who listens is recorded; None nowhere.

    Attributes:
        socket: the ROUTER.
        links: by the router's id.
        leaving: nobody can register any more.

    Raises:
        ConfigError: the file is in use.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        pipeline: Pipeline,
        acl: AccessControl,
        counters: Counters,
        room: Room,
        *,
        raw: Mapping[int, Callable[[ServerLink, list[bytes]], None]] | None = None,
        journal: PipelineJournal | None = None,
    ) -> None:
        if reactor.context is None:
            raise RuntimeError("a registration socket is opened before its reactor was")
        self.links: dict[bytes, ServerLink] = {}
        self.leaving = False
        self._reactor = reactor
        self._acl = acl
        self._counters = counters
        self._pipeline = pipeline
        self._journal = journal
        self._room = room
        other = room.on_control_message
        self._other = other if journal is None else journal.control(other)
        self._raw = {
            kind: take if journal is None else journal.server(take) for kind, take in (raw or {}).items()
        }
        self._holders: dict[str, ServerLink] = {}
        self._drops = ListenerDrops(reactor, self._drop, room.on_link_end)
        self._records = 0
        self._sweep_s = max(config.lease_s / SWEEPS, 0.02)
        sock = reactor.context.socket(zmq.ROUTER)
        try:
            tune_local(sock, config.message_bytes_max, send_msgs=config.send_msgs)
            self.path = bind_local(sock, config.path(control_file(pipeline)), config.ipc_group)
        except BaseException:
            sock.close(0)
            raise
        self.socket = RouterSocket(
            reactor,
            sock,
            self._take,
            origin="Peer-Address",
            outbox_msgs=config.queue_msgs,
            outbox_bytes=config.queue_bytes,
        )
        self.socket.lost = self._lost
        if journal is not None:
            journal.watch(self.socket)
        self._timer = reactor.call_later(self._sweep_s, self._sweep)

    # ------------------------------------------------------------ towards links

    def send(self, link: ServerLink, frames: Frames) -> Outcome:
        """Send to ``link``, behind what waits for it; see ``Outcome``."""
        return self.socket.send([link.rid, *frames])

    def sift(self, link: ServerLink, take: Callable[[Frames], bool]) -> list[Frames]:
        """Take back what waits for ``link`` and fits ``take``, which sees it with the router's id in front."""
        return self.socket.sift(link.rid, take)

    def status(self) -> dict[str, Any]:
        """The socket, how many links and listeners there are, and connections refused on any port."""
        return {
            "control": status_of("ROUTER", f"ipc://{self.path}", self.socket),
            "links": len(self.links),
            "lapsed": sum(link.lapsed for link in self.links.values()),
            "listeners": len(self._holders),
            "connections_denied": self._acl.denied,
            "settings": self._acl.settings,
        }

    def review(self) -> int:
        """Drop the listeners that the rules do not allow any more; returns how many. Their processes register again,
        and are told why that is refused.
        """
        dropped = 0
        for link in list(self.links.values()):
            denied = [name for name, opening in link.listeners.items() if objection(self._acl, link, opening)]
            for listener in denied:
                self._drop(link, listener)
            if denied:
                self.send(link, _UNKNOWN)
            dropped += len(denied)
        return dropped

    def registered(self) -> dict[int, int]:
        """How many listeners each process has, by pid."""
        found: Counter[int] = Counter()
        for link in self.links.values():
            found[link.pid] += len(link.listeners)
        return found

    def farewell(self, text: str) -> None:
        """Tell all links that nothing comes any more; from now on nobody can register."""
        self.leaving = True
        for link in list(self.links.values()):
            self.send(link, (encode(Kind.REFUSED, reason=Reason.LEAVING), text.encode()))

    def close(self, linger_ms: int = 0) -> None:
        """Forget all links, without ``closed``, and close the socket. Harmless twice."""
        self._timer.cancel()
        for link in self.links.values():
            link.unwatch(self._reactor)
        self.links.clear()
        self._drops.clear()
        self.socket.close(linger_ms)
        remove_socket(self.path)

    # ------------------------------------------------------------ from links

    def _take(self, frames: list[bytes], origin: str) -> None:
        link = self.links.get(frames[0])
        if link is None or link.origin != origin:
            link = self._meet(frames[0], origin)
            if link is None:
                self._counters.count_dropped(
                    "stranger", "dropped a message of %.64s, who is nobody here", origin
                )
                return
        link.heard = True
        head = frames[1] if len(frames) > 1 else b""
        if head[:4] == _BEGIN and len(head) >= HEAD_BYTES:
            raw = self._raw.get(head[4])
            if raw is not None:
                raw(link, frames)
                return
        try:
            envelope = decode(head)
        except Malformed as error:
            name = "unknown_version" if error.unknown_version else "malformed"
            self._counters.count_dropped(name, "dropped a control message of %s: %s", link, error)
            return
        self._handle(link, envelope, frames[2:])

    def _meet(self, rid: bytes, origin: str) -> ServerLink | None:
        earlier = self.links.get(rid)
        if earlier is not None:  # two connections at a time never have one id: the earlier one is gone
            self._end(earlier)
        who = self._acl.by_ipc(origin)
        return None if who is None else ServerLink(rid, origin, who)

    def _handle(self, link: ServerLink, envelope: Envelope, rest: list[bytes]) -> None:
        if envelope.kind == Kind.PULSE:
            known = link.rid in self.links and not link.lapsed
            self.send(link, _PULSE if known else _UNKNOWN)
        elif envelope.kind == Kind.OPEN:
            self._open(link, envelope.id, rest)
        elif envelope.kind == Kind.CLOSE:
            for listener in envelope.listeners:
                if listener in link.listeners:
                    self._drop(link, listener)
            self.send(link, (encode(Kind.CLOSED, id=envelope.id), b""))
        elif envelope.kind == Kind.STATUS:
            told = self._room.figures() if envelope.word else self._room.status()
            self.send(link, (encode(Kind.STATUS, id=envelope.id), to_json(told)))
        else:
            self._other(link, envelope, rest)

    # ------------------------------------------------------------ listeners

    def _open(self, link: ServerLink, number: bytes, rest: list[bytes]) -> None:
        try:
            self._answer_open(link, number, rest)
        except CannotOpen as error:
            name = f"open_{error.reason.name.lower()}"
            self._counters.count_dropped(name, "refused a listener of %s: %s", link, error)
            self.send(link, (refusal(number, error.reason), str(error).encode()))

    def _answer_open(self, link: ServerLink, number: bytes, rest: list[bytes]) -> None:
        if self.leaving:
            raise CannotOpen(Reason.LEAVING, REASONS[Reason.LEAVING])
        opening = read_opening(rest)
        denied = objection(self._acl, link, opening)
        if denied:
            raise CannotOpen(Reason.DENIED, denied)
        holder = self._holders.get(opening.listener)
        if holder is link and opening.listener in link.listeners:
            if not opening.repeats(link.listeners[opening.listener]):
                raise CannotOpen(
                    Reason.MALFORMED, "saw another OPEN of the same listener, expected CLOSE before"
                )
        else:
            if holder is not None:
                self._take_over(holder, link, opening.listener)
            self._begin(link, opening)
        self.send(link, (encode(Kind.OPENED, id=number), to_json(self._room.confirmation())))

    def _begin(self, link: ServerLink, opening: Opening) -> None:
        if self._records + len(opening.records) > RECORDS_MAX:
            raise CannotOpen(
                Reason.BUSY, f"saw {self._records} records of this node, expected {RECORDS_MAX} at most"
            )
        self._admit(link)
        self._room.open_listener(link, opening)
        link.lapsed = False
        link.listeners[opening.listener] = opening
        self._holders[opening.listener] = link
        self._records += len(opening.records)
        self._counters.count("opened")
        if self._journal is not None:
            self._journal.opened(link, opening)
        self._room.on_change()

    def _take_over(self, holder: ServerLink, link: ServerLink, listener: str) -> None:
        """The same process has a new connection: its listener moves; nobody else's does."""
        if listener in holder.dropping:
            self._drop(holder, listener)
            return
        if not link.pid or (holder.pid, holder.credentials) != (link.pid, link.credentials):
            raise CannotOpen(Reason.DENIED, "saw the listener of another process")
        self._drop(holder, listener)

    def _drop(self, link: ServerLink, listener: str) -> None:
        opening = link.dropping.pop(listener, None) or link.listeners.pop(listener)
        del self._holders[listener]
        self._holders = compact(self._holders)
        self._records -= len(opening.records)
        self._counters.count("closed")
        if self._journal is not None:
            self._journal.closed(link, opening)
        self._room.on_change()
        self._room.close_listener(link, listener)

    # ------------------------------------------------------------ links

    def _admit(self, link: ServerLink) -> None:
        if self.links.get(link.rid) is link:
            return
        if len(self.links) >= LINKS_MAX:
            idle = next((each for each in self.links.values() if not each.listeners), None)
            if idle is None:
                raise CannotOpen(
                    Reason.BUSY, f"saw {len(self.links)} server processes, expected {LINKS_MAX} at most"
                )
            self._end(idle)
        try:
            if not link.watch(self._reactor, self._died):
                self._counters.count("unwatched")
        except ProcessLookupError:
            raise CannotOpen(Reason.NO_ROUTE, f"pid {link.pid} has ended") from None
        self.links[link.rid] = link

    def _died(self, link: ServerLink) -> None:
        self._counters.count("died")
        self._end(link)

    def _lost(self, rid: bytes, waiting: list[Frames]) -> None:
        """The socket says that nobody has this id any more."""
        link = self.links.get(rid)
        if link is not None:
            self._end(link, waiting)

    def _end(self, link: ServerLink, waiting: Sequence[Frames] = ()) -> None:
        if self.links.get(link.rid) is link:
            link.unwatch(self._reactor)
            del self.links[link.rid]
            # now: another connection may have its id when the last listener is dropped
            self._drops.put(link, [*waiting, *self.socket.sift(link.rid, lambda _frames: True)])

    def _sweep(self) -> None:
        """Counts looks, not seconds: when it is the proxy that stood still, what came meanwhile is read first."""
        self._timer = self._reactor.call_later(self._sweep_s, self._sweep)
        for link in list(self.links.values()):
            if link.heard:
                link.heard = False
                link.silent = 0
                continue
            link.silent += 1
            if link.silent == SWEEPS:
                self._lapse(link)
            elif link.silent % SWEEPS == 0:
                self._probe(link)

    def _lapse(self, link: ServerLink) -> None:
        link.lapsed = True
        if link.listeners:
            text = "%s has said nothing for a lease: its %d listeners are dropped"
            self._counters.count_dropped("lapsed", text, link, len(link.listeners))
        self._drops.put(link)
        self._probe(link)

    def _probe(self, link: ServerLink) -> None:
        """Is anybody there? When not, the socket says so; one message at a time."""
        if not self.socket.waiting_for(link.rid):
            self.send(link, _PULSE)
