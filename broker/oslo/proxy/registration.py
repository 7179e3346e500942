"""Where the servers of this node register for one pipeline: the ROUTER at its ``.ctl`` file ("ZMQ Proxy").

A server process has one DEALER for each pipeline, here a ``ServerLink``. What comes over it, behind the router's id
(what it is sent is a ``reactor.bundle`` on the wire)::

    OPEN id        JSON Opening     answered OPENED id + JSON Opened, or REFUSED id reason + text
    CLOSE id       (listeners)      answered CLOSED id, behind everything that was sent for them
    PULSE          (empty)          answered PULSE; or REFUSED NO_ROUTE: not known (any more), register again
    STATUS id      (empty)          answered STATUS id + JSON; with a word only with what is counted by topic

A link that says nothing for a lease has its listeners dropped, its process may be frozen. It stays known until it is
certain that nobody is there: the process has ended (its pidfd says so at once), or the connection has. Listeners are
dropped some in each turn: a process with thousands of them would else keep everybody waiting: here, at the directory,
and wherever that is heard.
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol

import msgspec
import zmq

from broker.errors import HeadgateError
from broker.identity import Credentials
from broker.memory import compact
from broker.nesting import decoder
from broker.oslo.frames import (
    HEAD_BYTES,
    MAGIC,
    VERSION,
    Envelope,
    Kind,
    Malformed,
    check_name,
    decode,
    encode,
    refusal,
)
from broker.oslo.names import LISTENER_CHARS, REASONS, Pipeline, Reason, control_file
from broker.oslo.node import NodeConfig, credentials
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.frontend import status_of
from broker.oslo.proxy.journal import PipelineJournal, Recording, journal_of
from broker.oslo.reactor import Reactor, Timer
from broker.oslo.reactor.binding import bind_local, remove_socket
from broker.oslo.reactor.counters import Counters
from broker.oslo.reactor.router import RouterSocket
from broker.oslo.reactor.socket import Frames, Outcome
from broker.oslo.reactor.tuning import tune_local
from broker.oslo.records import RECORDS_MAX, Opened, Opening, to_json

# both are read where they are used, not folded by the compiler: tests change them
LINKS_MAX: int = 4096
"""Server processes of one node, each with a descriptor or two here."""
DROPS_MAX: int = 64
"""Listeners that are dropped in one turn; few are dropped at once."""
SWEEPS: Final = 5
"""Looks at each link within one lease."""
RECORDS_EACH_MAX: Final = 1024
"""Records of one listener: seven priorities of each topic it listens to."""
_BEGIN: Final = MAGIC + bytes([VERSION])
_PULSE: Final = (encode(Kind.PULSE), b"")
_UNKNOWN: Final = (encode(Kind.REFUSED, reason=Reason.NO_ROUTE), b"register again")
_decode_opening: Final = decoder(Opening)


class ServerLink:
    """One server process, as one pipeline knows it.

    Attributes:
        rid: the router's id of its connection.
        origin: its ``Peer-Address``.
        credentials: who it is; ``stamp``: the same as an envelope has it.
        pid: its process; 0 unknown.
        listeners: what it opened, by listener; ``dropping``: those that are to be dropped in one of the next turns.
        lapsed: it was silent for a lease, its listeners are dropped.
    """

    def __init__(self, rid: bytes, origin: str, who: Credentials) -> None:
        self.rid = rid
        self.origin = origin
        self.credentials = who
        self.stamp = who.encode()
        self.pid = credentials(origin)[2] or 0
        self.listeners: dict[str, Opening] = {}
        self.dropping: dict[str, Opening] = {}
        self.lapsed = False
        self.heard = True
        self.silent = 0
        self.pidfd = -1

    def __str__(self) -> str:
        return f"pid {self.pid} (uid {self.credentials.userid})"

    def watch(self, reactor: Reactor, died: Callable[[ServerLink], None]) -> bool:
        """Have ``died`` called at once when the process ends; False: the kernel cannot tell, the lease has to do.

        Raises:
            ProcessLookupError: it has ended.
        """
        if not self.pid:
            return True
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise
        except OSError:  # not allowed in this container, or no descriptor left
            return False
        reactor.add_reader(self.pidfd, lambda: died(self))
        return True

    def unwatch(self, reactor: Reactor) -> None:
        """Its end need not be told any more. Harmless twice."""
        if self.pidfd >= 0:
            reactor.remove_reader(self.pidfd)
            with contextlib.suppress(OSError):
                os.close(self.pidfd)
            self.pidfd = -1


class CannotOpen(HeadgateError):
    """Raised by a room that does not take a listener; the link is answered REFUSED with reason and text."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def read_opening(rest: list[bytes]) -> Opening:
    """The opening that came behind an OPEN.

    Raises:
        CannotOpen: it is none, or makes no sense.
    """
    if len(rest) != 1:
        raise CannotOpen(Reason.MALFORMED, f"saw OPEN with {len(rest)} frames behind it, expected 1")
    try:
        opening = _decode_opening(rest[0])
        problem = _problem(opening)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CannotOpen(Reason.MALFORMED, f"saw a body of OPEN that is none: {str(error)[:128]}") from None
    except ValueError as error:  # a name that is none
        problem = str(error)
    if problem:
        raise CannotOpen(Reason.MALFORMED, problem)
    return opening


def _problem(opening: Opening) -> str:
    """What is wrong with it; "" nothing. Raises ValueError: a name is."""
    listener = opening.listener
    if len(listener) != LISTENER_CHARS or not listener.isascii() or not listener.isalnum():
        return f"saw the listener {listener[:64]!r}, expected {LISTENER_CHARS} hexadecimal characters"
    if not 1 <= len(opening.records) <= RECORDS_EACH_MAX:
        return f"saw {len(opening.records)} records, expected 1 to {RECORDS_EACH_MAX}"
    for record in opening.records:
        for name in ("exchange", "topic", "server", "pool"):
            check_name(getattr(record, name) or "", name)
        if record.listener != listener:
            return f"saw a record of the listener {record.listener[:64]!r}, expected {listener!r}"
    for name in ("credit_bytes", "held", "held_bytes"):
        if getattr(opening, name) < 0:
            return f"saw {name} {getattr(opening, name)}, expected 0 or more"
    return "" if 0 <= opening.credit <= 1 << 31 else f"saw a credit of {opening.credit}, expected 0 to 2**31"


def objection(acl: AccessControl, link: ServerLink, opening: Opening) -> str:
    """Why the rules do not allow that listener of ``link``; "" they do."""
    who = link.credentials
    for record in opening.records:
        if not acl.may_listen(who, record.exchange, record.topic):
            return f"uid {who.userid} may not listen at {record.exchange[:64]}/{record.topic[:64]}"
    return ""


class Turns(Protocol):
    """A reactor."""

    turns: int
    """How many it has had."""

    def call_soon(self, call: Callable[[], None], /) -> object:
        """Call in the next one."""


class ListenerDrops:
    """What is to be dropped of each link, one of each link in turn.

    Args:
        reactor: whose turns.
        drop: drops one listener of ``link.dropping``.
        finished: takes a link that has ended, and what waited for it, when its last listener was dropped.
    """

    def __init__(
        self,
        reactor: Turns,
        drop: Callable[[ServerLink, str], None],
        finished: Callable[[ServerLink, list[Frames]], None],
    ) -> None:
        self._reactor = reactor
        self._drop = drop
        self._finished = finished
        self._queue: deque[tuple[ServerLink, deque[str], list[Frames] | None]] = deque()
        self._turn = -1
        self._left = 0

    def put(self, link: ServerLink, waiting: list[Frames] | None = None) -> None:
        """Drop all listeners of ``link``; ``waiting``: it has ended, and that waited for it."""
        link.dropping.update(link.listeners)
        link.listeners = {}
        self._queue.append((link, deque(link.dropping), waiting))
        if len(self._queue) == 1:
            self._go_on()

    def clear(self) -> None:
        """Drop nothing any more."""
        self._queue.clear()

    def _go_on(self) -> None:
        if self._turn != self._reactor.turns:
            self._turn, self._left = self._reactor.turns, DROPS_MAX
        try:
            while self._queue and self._left:
                self._next()
        finally:
            if self._queue:
                self._reactor.call_soon(self._go_on)

    def _next(self) -> None:
        link, listeners, waiting = self._queue.popleft()
        if listeners:
            self._left -= 1
            listener = listeners.popleft()
            self._queue.append((link, listeners, waiting))
            if listener in link.dropping:  # else it has moved to another link meanwhile
                self._drop(link, listener)
        elif waiting is not None:
            self._finished(link, waiting)


class Registration(ABC):
    """Servers of one pipeline, from the binding of its control socket to its end; what they bring is each pipeline's.

    Args:
        reactor: whose thread.
        config: of the node: folder, lease, limits of each link's queue.
        acl: who may send and listen where.
        recording: where messages are recorded; None nowhere.

    Attributes:
        pipeline: which one.
        replies: kinds of what ``on_server_reply`` takes.
        counters: counts of what went wrong.
        servers: the ROUTER, once it is bound. links: by the router's id.
        leaving: the node is left for good: nobody can register any more.
    """

    pipeline: ClassVar[Pipeline]
    replies: ClassVar[frozenset[int]] = frozenset()
    servers: RouterSocket
    _sweep_timer: Timer

    def __init__(
        self, reactor: Reactor, config: NodeConfig, acl: AccessControl, recording: Recording | None = None
    ) -> None:
        self.counters = Counters(reactor, self.pipeline)
        self.links: dict[bytes, ServerLink] = {}
        self.leaving = False
        self._reactor = reactor
        self._config = config
        self._acl = acl
        self._recording = recording
        self._journal: PipelineJournal | None = journal_of(recording, self.pipeline, config, self.counters)
        self._take_reply: Callable[[ServerLink, list[bytes]], None] = self.on_server_reply
        self._take_control: Callable[[ServerLink, Envelope, list[bytes]], None] = self.on_control_message
        if self._journal is not None:
            self._take_reply = self._journal.server(self.on_server_reply)
            self._take_control = self._journal.control(self.on_control_message)
        self._holders: dict[str, ServerLink] = {}
        self._drops = ListenerDrops(reactor, self._drop_listener, self.on_link_end)
        self._record_count = 0
        self._linger_ms = 0
        self._lease_sweep_s = max(config.lease_s / SWEEPS, 0.02)

    # ------------------------------------------------------------ each pipeline

    @abstractmethod
    def open_listener(self, link: ServerLink, opening: Opening) -> None:
        """A listener begins, checked and allowed; it is not yet in ``link.listeners``. Raises ``CannotOpen``."""

    @abstractmethod
    def close_listener(self, link: ServerLink, listener: str) -> None:
        """A listener has ended; it is no longer in ``link.listeners``. What waits for it can be had of ``servers``."""

    def on_link_end(self, link: ServerLink, waiting: list[Frames]) -> None:  # noqa: B027 (most have nothing to do)
        """A link has ended for good, after ``close_listener`` for each of its listeners, and that waited for it, the
        router's id in front: it is lost, unless its pipeline has another listener for it.
        """

    def on_server_reply(self, link: ServerLink, frames: list[bytes]) -> None:  # noqa: B027 (calls have replies)
        """A message of one of ``replies``, not read yet, with the router's id in front."""

    def on_control_message(self, link: ServerLink, envelope: Envelope, rest: list[bytes]) -> None:
        """Any other control message, with the frames behind its envelope; the link may be one that has opened nothing
        (then it is in no table): this pipeline has no use for it.
        """
        text = "dropped a message of %s: saw kind %d with %d frames"
        self.counters.count_dropped("unexpected", text, link, envelope.kind, len(rest))

    @abstractmethod
    def on_change(self) -> None:
        """A listener has begun or ended: another number of them is registered."""

    @abstractmethod
    def confirmation(self) -> Opened:
        """What a link is told whose listener begins."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """The body of a STATUS with a word."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """The body of STATUS."""

    # ------------------------------------------------------------ life

    def _bind_registration(self, undo: contextlib.ExitStack) -> None:
        """Bind the control socket, which ``undo`` closes; the reactor has to be open.

        Raises:
            ConfigError: the file is in use.
        """
        reactor, config, journal = self._reactor, self._config, self._journal
        if reactor.context is None:
            raise RuntimeError("a registration socket is opened before its reactor was")
        sock = reactor.context.socket(zmq.ROUTER)
        undo.callback(sock.close, 0)
        tune_local(sock, config.message_bytes_max, send_msgs=config.send_msgs)
        self._control_path = bind_local(sock, config.path(control_file(self.pipeline)), config.ipc_group)
        self.servers = RouterSocket(
            reactor,
            sock,
            self._on_server_message,
            origin="Peer-Address",
            outbox_msgs=config.queue_msgs,
            outbox_bytes=config.queue_bytes,
        )
        self.servers.lost = self._on_peer_lost
        if journal is not None:
            journal.watch(self.servers)
        self._sweep_timer = reactor.call_later(self._lease_sweep_s, self._sweep_links)
        undo.callback(self._close_registration)

    def _close_registration(self) -> None:
        """Forget all links, without ``close_listener``, and close the socket."""
        self._sweep_timer.cancel()
        for link in self.links.values():
            link.unwatch(self._reactor)
        self.links.clear()
        self._drops.clear()
        self.servers.close(self._linger_ms)
        remove_socket(self._control_path)

    def send_control(self, link: ServerLink, *frames: bytes) -> Outcome:
        """Send to ``link``, behind what waits for it; see ``Outcome``."""
        return self.servers.send([link.rid, *frames])

    def _registration_status(self) -> dict[str, Any]:
        """The socket, how many links and listeners there are, and connections refused on any port."""
        return {
            "control": status_of("ROUTER", f"ipc://{self._control_path}", self.servers),
            "links": len(self.links),
            "lapsed": sum(link.lapsed for link in self.links.values()),
            "listeners": len(self._holders),
            "connections_denied": self._acl.denied,
            "settings": self._acl.settings,
        }

    def _review(self) -> int:
        """Drop the listeners that the rules do not allow any more; returns how many. Their processes register again,
        and are told why that is refused.
        """
        dropped = 0
        for link in list(self.links.values()):
            denied = [name for name, opening in link.listeners.items() if objection(self._acl, link, opening)]
            for listener in denied:
                self._drop_listener(link, listener)
            if denied:
                self.send_control(link, *_UNKNOWN)
            dropped += len(denied)
        return dropped

    def _registered(self) -> dict[int, int]:
        """How many listeners each process has, by pid."""
        found: Counter[int] = Counter()
        for link in self.links.values():
            found[link.pid] += len(link.listeners)
        return found

    def _farewell(self, text: str) -> None:
        """Tell all links that nothing comes any more; from now on nobody can register."""
        self.leaving = True
        for link in list(self.links.values()):
            self.send_control(link, encode(Kind.REFUSED, reason=Reason.LEAVING), text.encode())

    # ------------------------------------------------------------ from links

    def _on_server_message(self, frames: list[bytes], origin: str) -> None:
        link = self.links.get(frames[0])
        if link is None or link.origin != origin:
            link = self._new_link(frames[0], origin)
            if link is None:
                self.counters.count_dropped(
                    "stranger", "dropped a message of %.64s, who is nobody here", origin
                )
                return
        link.heard = True
        head = frames[1] if len(frames) > 1 else b""
        if head[:4] == _BEGIN and len(head) >= HEAD_BYTES and head[4] in self.replies:
            self._take_reply(link, frames)
            return
        envelope = self._decoded(head, link)
        if envelope is not None:
            self._handle_control(link, envelope, frames[2:])

    def _decoded(self, head: bytes, whose: object) -> Envelope | None:
        """The envelope of a message of ``whose``; None, and counted: it is none."""
        try:
            return decode(head)
        except Malformed as error:
            self._malformed(error, whose)
        return None

    def _malformed(self, error: Malformed, whose: object) -> None:
        name = "unknown_version" if error.unknown_version else "malformed"
        self.counters.count_dropped(name, "dropped a message of %s: %s", whose, error)

    def _new_link(self, rid: bytes, origin: str) -> ServerLink | None:
        earlier = self.links.get(rid)
        if earlier is not None:  # two connections at a time never have one id: the earlier one is gone
            self._end_link(earlier)
        who = self._acl.by_ipc(origin)
        return None if who is None else ServerLink(rid, origin, who)

    def _handle_control(self, link: ServerLink, envelope: Envelope, rest: list[bytes]) -> None:
        if envelope.kind == Kind.PULSE:
            known = link.rid in self.links and not link.lapsed
            self.send_control(link, *(_PULSE if known else _UNKNOWN))
        elif envelope.kind == Kind.OPEN:
            self._answer_open(link, envelope.id, rest)
        elif envelope.kind == Kind.CLOSE:
            for listener in envelope.listeners:
                if listener in link.listeners:
                    self._drop_listener(link, listener)
            self.send_control(link, encode(Kind.CLOSED, id=envelope.id), b"")
        elif envelope.kind == Kind.STATUS:
            told = self.figures() if envelope.word else self.status()
            self.send_control(link, encode(Kind.STATUS, id=envelope.id), to_json(told))
        else:
            self._take_control(link, envelope, rest)

    # ------------------------------------------------------------ listeners

    def _answer_open(self, link: ServerLink, number: bytes, rest: list[bytes]) -> None:
        try:
            self._register_listener(link, rest)
        except CannotOpen as error:
            name = f"open_{error.reason.name.lower()}"
            self.counters.count_dropped(name, "refused a listener of %s: %s", link, error)
            self.send_control(link, refusal(number, error.reason), str(error).encode())
        else:
            self.send_control(link, encode(Kind.OPENED, id=number), to_json(self.confirmation()))

    def _register_listener(self, link: ServerLink, rest: list[bytes]) -> None:
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
            return
        if holder is not None:
            # the same process has a new connection: its listener moves; nobody else's does
            same = link.pid and (holder.pid, holder.credentials) == (link.pid, link.credentials)
            if opening.listener not in holder.dropping and not same:
                raise CannotOpen(Reason.DENIED, "saw the listener of another process")
            self._drop_listener(holder, opening.listener)
        if self._record_count + len(opening.records) > RECORDS_MAX:
            raise CannotOpen(
                Reason.BUSY, f"saw {self._record_count} records of this node, expected {RECORDS_MAX} at most"
            )
        self._admit_link(link)
        self.open_listener(link, opening)
        link.lapsed = False
        link.listeners[opening.listener] = opening
        self._holders[opening.listener] = link
        self._record_count += len(opening.records)
        self.counters.count("opened")
        if self._journal is not None:
            self._journal.opened(link, opening)
        self.on_change()

    def _drop_listener(self, link: ServerLink, listener: str) -> None:
        opening = link.dropping.pop(listener, None) or link.listeners.pop(listener)
        del self._holders[listener]
        self._holders = compact(self._holders)
        self._record_count -= len(opening.records)
        self.counters.count("closed")
        if self._journal is not None:
            self._journal.closed(link, opening)
        self.on_change()
        self.close_listener(link, listener)

    # ------------------------------------------------------------ links

    def _admit_link(self, link: ServerLink) -> None:
        if self.links.get(link.rid) is link:
            return
        if len(self.links) >= LINKS_MAX:
            idle = next((each for each in self.links.values() if not each.listeners), None)
            if idle is None:
                raise CannotOpen(
                    Reason.BUSY, f"saw {len(self.links)} server processes, expected {LINKS_MAX} at most"
                )
            self._end_link(idle)
        try:
            if not link.watch(self._reactor, self._on_process_end):
                self.counters.count("unwatched")
        except ProcessLookupError:
            raise CannotOpen(Reason.NO_ROUTE, f"pid {link.pid} has ended") from None
        self.links[link.rid] = link

    def _on_process_end(self, link: ServerLink) -> None:
        self.counters.count("died")
        self._end_link(link)

    def _on_peer_lost(self, rid: bytes, waiting: list[Frames]) -> None:
        """The socket says that nobody has this id any more."""
        link = self.links.get(rid)
        if link is not None:
            self._end_link(link, waiting)

    def _end_link(self, link: ServerLink, waiting: Sequence[Frames] = ()) -> None:
        if self.links.get(link.rid) is link:
            link.unwatch(self._reactor)
            del self.links[link.rid]
            # now: another connection may have its id when the last listener is dropped
            self._drops.put(link, [*waiting, *self.servers.sift(link.rid, lambda _frames: True)])

    def _sweep_links(self) -> None:
        """Counts looks, not seconds: when it is the proxy that stood still, what came meanwhile is read first."""
        self._sweep_timer = self._reactor.call_later(self._lease_sweep_s, self._sweep_links)
        for link in list(self.links.values()):
            if link.heard:
                link.heard = False
                link.silent = 0
                continue
            link.silent += 1
            if link.silent == SWEEPS:
                link.lapsed = True
                if link.listeners:
                    text = "%s has said nothing for a lease: its %d listeners are dropped"
                    self.counters.count_dropped("lapsed", text, link, len(link.listeners))
                self._drops.put(link)
            # is anybody there? when not, the socket says so; one message at a time
            if link.silent % SWEEPS == 0 and not self.servers.waiting_for(link.rid):
                self.send_control(link, *_PULSE)
