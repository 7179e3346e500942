"""The parent's side of the tree: a link greets, says hello, becomes a child, and leaves in one of five ways.

::

    greeting --hello admitted--> child --goodbye------> greeting   (offline)
                                       --disconnected-> greeting   (lost: "administrative disconnect")
                                       --link ended---> gone       (lost: "lost connection")
                                       --silent-------> gone       (the same; see ``liveness``)
                                       --hello of the same rank over another link--> gone (lost), replaced

A greeting link that sends anything but hello is told to disconnect: it speaks to an incarnation of us that is no
more, or we have given it up. While we have no parent ourselves, hellos are held: what a child announces at once
after its hello would find no way up.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from broker.errors import LinkBroken, LinkClosed, LinkEnded, LinkError, ProtocolError
from broker.identity import Credentials, PeerInfo, Role
from broker.ingress.stamping import StampPolicy
from broker.node.broker import Broker
from broker.node.overlay import control, hello
from broker.node.overlay.control import Status, Timed, read
from broker.node.overlay.liveness import KeepaliveTimer, TorpidTimer, lost_after_s
from broker.routing.port import CHILD, Port
from broker.transport.link import Link
from broker.wire.message import Message, response

if TYPE_CHECKING:
    from broker.node.overlay.overlay import Objection, OverlayConfig

log = logging.getLogger("headgate")

HELD_MSGS: Final = 64
"""Messages kept of a child that we are not ready for; usually its hello alone, whose answer it waits for."""
HELD_BYTES: Final = 1 << 20
"""The same in bytes."""
JOINS_S: Final = 60.0
"""How far back ``Child.health`` counts joins."""
JOINS_MAX: Final = 128
"""Joins that are remembered of a child: with the pauses of ``broker.backoff`` no process makes so many in that time."""


class Child:
    """One rank that may join here, connected or not.

    Attributes:
        joins: the last that it made, newest last: when, and where from.
        error: why it is not online, for ``overlay.health``; "" for no particular reason.
        port: while it is online. What follows is meaningless without:
        silence: its own. keepalive_s: see ``hello.HeadgateHello``.
        keepalive: our silence towards it; None: it is sent no keepalive.
    """

    __slots__ = ("error", "joins", "keepalive", "keepalive_s", "port", "rank", "silence", "timed")

    def __init__(self, rank: int, now: float) -> None:
        self.rank: int = rank
        self.timed: Timed = Timed(Status.OFFLINE, now)
        self.error: str = ""
        self.joins: deque[tuple[float, str]] = deque(maxlen=JOINS_MAX)
        self.port: Port | None = None
        self.silence: TorpidTimer = TorpidTimer(0, 0.0)
        self.keepalive_s: float = 0.0
        self.keepalive: KeepaliveTimer | None = None

    @property
    def torpid(self) -> bool:
        """True while it is connected and silent for too long."""
        return self.port is not None and self.silence.torpid

    def health(self, now: float) -> dict[str, Any]:
        """Its entry in ``overlay.health``; the duration is in seconds."""
        status = self.timed.status
        entry: dict[str, Any] = {
            "rank": self.rank,
            "status": status.label,
            "duration": now - self.timed.since,
            "torpid": self.torpid,
        }
        if self.error and not status.online:
            entry["error"] = self.error
        recent = [place for joined, place in self.joins if now - joined < JOINS_S]
        if len(recent) > 1:
            entry["joins"] = len(recent)
            entry["places"] = list(dict.fromkeys(recent[-2:]))
        return entry


class Children:
    """All children of one broker.

    Args:
        broker: where admitted ones are attached. config: patience. rules: what hello is held against.
        clock: monotonic seconds. watched: returns those in which we were there. changed: told of each change of a
            child's status or torpor.
        ours: what we tell Headgate children; ready: False holds hellos back until ``admit_held``.
        refused: told of each hello that was refused: peer, errno, reason.

    Attributes:
        open: False when no child is admitted any more.
    """

    def __init__(
        self,
        broker: Broker,
        config: OverlayConfig,
        rules: hello.Rules,
        clock: Callable[[], float],
        watched: Callable[[], float],
        changed: Callable[[Child], object],
        ours: Callable[[], hello.HeadgateHello],
        ready: Callable[[], bool],
        refused: Callable[[PeerInfo, int, str], object],
    ) -> None:
        now = clock()
        self._broker = broker
        self._config = config
        self._rules = rules
        self._clock = clock
        self._watched = watched
        self._changed = changed
        self._ours = ours
        self._ready = ready
        self._children = {rank: Child(rank, now) for rank in rules.children}
        self._greetings: set[Link] = set()
        self._held: dict[Link, list[Message]] = {}
        self._refused = refused
        self.open = True

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children.values())

    # -- Receiver: links that have not said hello, or have said goodbye -------------------------

    def accept(self, link: Link) -> None:
        """For the listener: a link that will say hello."""
        self._greetings.add(link)
        link.start(self)

    def received(self, link: Link, messages: list[Message]) -> None:
        """Hello admits; anything else is answered once with a disconnect."""
        if link in self._held:
            self._hold(link, messages)
            return
        for index, message in enumerate(messages):
            if hello.is_hello(message) and self.open:
                if not self._ready():
                    self._hold(link, messages[index:])
                    return
                if self._hello(link, message):
                    rest = messages[index + 1 :]
                    if rest:
                        self._broker.receiver.received(link, rest)
                    return
            # once for all that one read brought
            elif index == len(messages) - 1:
                self._send_away(link)

    def link_ended(self, link: Link, error: LinkError) -> None:
        """It left before, or after, it was a child."""
        self._greetings.discard(link)
        self._held.pop(link, None)

    def link_choked(self, link: Link, choked: bool) -> None:
        """Nothing is sent here that could choke it, but for answers to its own messages."""

    # -- hello ---------------------------------------------------------------------------------

    def _hello(self, link: Link, message: Message) -> bool:
        """Judge, then admit or refuse; True when the link became a child's."""
        try:
            told = hello.read_request(message)
        except ProtocolError as error:
            log.warning("refused %s: %s", link.peer.address, error)
            self._refused(link.peer, errno.EPROTO, str(error))
            link.send(hello.refuse(message, errno.EPROTO))
            return False
        refusal = self._judge(told, link, message)
        if refusal is not None:
            self._refuse(told, refusal, link, message)
            return False
        self._admit(told, link, message)
        return True

    def _judge(self, told: hello.Hello, link: Link, message: Message) -> hello.Refusal | None:
        refusal = hello.judge(told, message.rolemask, link.peer.rank, self._rules)
        # the same child may be back before its former link is known lost (``_admit`` drops that one); with the uuid of
        # somebody else it would get that one's answers
        if refusal is None and any(
            p.uuid == told.uuid and p.rank != told.rank for p in self._broker.router.ports
        ):
            text = f"uuid {told.uuid} is in use"
            refusal = hello.Refusal(errno.EEXIST, text, text)
        return refusal

    def _refuse(self, told: hello.Hello, refusal: hello.Refusal, link: Link, message: Message) -> None:
        log.error("refused %s, which says it is rank %d: %s", link.peer.address, told.rank, refusal.reason)
        child = self._children.get(told.rank)
        # a hello over another link is no reason for a child that is online not to be
        if child is not None and child.port is None and refusal.text:
            child.error = refusal.text
        self._refused(link.peer, refusal.errnum, f"hello of rank {told.rank}: {refusal.reason}")
        link.send(hello.refuse(message, refusal.errnum, refusal.text))

    def _admit(self, told: hello.Hello, link: Link, message: Message) -> None:
        child = self._children[told.rank]
        if child.port is not None:
            former = child.joins[-1][1]
            log.error(
                "rank %d said hello again, now from %s: its former connection, from %s, is dropped",
                child.rank,
                _place(told, link),
                former,
            )
            self._drop(child)
        ours = self._ours() if told.ours.headgate else hello.HeadgateHello()
        batch = ours.batch and told.ours.batch
        ours = ours._replace(batch=batch, windows=told.ours.windows)
        link.send(hello.admit(message, self._broker.router.uuid, ours))
        link.flush()  # the answer itself travels plain
        if batch:
            link.enable_batch()
        self._attach(child, told, link)

    def _attach(self, child: Child, told: hello.Hello, link: Link) -> None:
        owner = self._broker.own.cred.userid
        cred = Credentials(owner, Role.OWNER)
        port = Port(
            CHILD,
            told.uuid,
            link.send,
            cred,
            name=f"rank {child.rank}",
            policy=StampPolicy.tree(owner),
            link=link,
            rank=child.rank,
        )
        port.windowed = told.ours.windows
        self._greetings.discard(link)
        link.receiver = self._broker.receiver
        child.port = port
        now = self._clock()
        child.silence = TorpidTimer(port.received, self._watched())
        child.keepalive_s = told.ours.keepalive_s
        child.keepalive = (
            KeepaliveTimer(link.outbox.sent, now, self._config.torpid_min_s) if told.ours.headgate else None
        )
        child.joins.append((now, _place(told, link)))
        self._broker.attach(port)
        log.info("rank %d joined (%s), status %s", child.rank, link.peer.address, told.status.label)
        self._set(child, told.status)

    def _hold(self, link: Link, messages: list[Message]) -> None:
        """Keep a hello, and what its sender says behind it without waiting for the answer, until we are ready.

        It is read on, so that its leaving is noticed, and no further than a child has reason to go.
        """
        held = self._held.setdefault(link, [])
        held += messages
        if len(held) > HELD_MSGS or sum(message.size for message in held) > HELD_BYTES:
            link.pause()

    def admit_held(self) -> None:
        """We are ready now: handle the hellos that were held."""
        held, self._held = self._held, {}
        for link, messages in held.items():
            if link.ended is None:
                link.resume()
                self.received(link, messages)

    # -- what children say ---------------------------------------------------------------------

    def controlled(self, port: Port, message: Message) -> None:
        """A control message of a child; a heartbeat needs no more than to have been counted."""
        child = self._children.get(port.rank)
        # a former link of this child may still have something to say, when a new one has replaced it
        if child is None or child.port is not port or message.aux1 != control.STATUS:
            return
        status = read(message.aux2)
        if status is None:
            log.warning("rank %d sent status %d, which means nothing", port.rank, message.aux2)
        elif status.online:
            self._set(child, status)
        else:
            self._dismiss(child, status, "")

    def goodbye(self, port: Port, message: Message) -> None:
        """A child leaves in good order: it is answered, then it is offline."""
        self._broker.respond(response(message, userid=port.cred.userid, rolemask=int(Role.OWNER)))
        child = self._children.get(port.rank)
        if child is not None and child.port is port:
            log.info("rank %d said goodbye", port.rank)
            self._dismiss(child, Status.OFFLINE, "administrative shutdown")

    # -- leaving -------------------------------------------------------------------------------

    def departed(self, port: Port, error: LinkError) -> None:
        """The link of a child is gone without a goodbye."""
        child = self._children.get(port.rank)
        if child is not None and child.port is port:
            below = self._broker.router.topology.descendants(port.rank)
            severed = f", and contact with {below} ranks below it" if below else ""
            log.error("lost connection to rank %d%s: %s", port.rank, severed, error)
            child.port = None
            self._set(child, Status.LOST, "lost connection")

    def disconnect(self, rank: int, reason: str) -> int:
        """Make a child leave; returns 0, ENOENT (none of ours) or EINVAL (not online)."""
        child = self._children.get(rank)
        if child is None:
            return errno.ENOENT
        if child.port is None:
            return errno.EINVAL
        log.error("rank %d is disconnected: %s", rank, reason)
        self._send_away(child.port.link)
        self._dismiss(child, Status.LOST, reason)
        return 0

    def disconnect_all(self, reason: str) -> None:
        """Make all of them leave."""
        for rank in self._children:
            self.disconnect(rank, reason)

    def revoke(self, objection: Objection) -> int:
        """End each link to which there is an objection; returns how many."""
        ended = 0
        for child in self._children.values():
            if child.port is not None and (reason := objection(child.port.link.peer, child.rank)):
                child.port.link.abort(LinkClosed(reason))
                ended += 1
        for link in list(self._greetings):
            if link.ended is None and (reason := objection(link.peer, None)):
                log.warning("ended %s: %s", link.peer.address, reason)
                link.abort(LinkClosed(reason))
                ended += 1
        return ended

    def _send_away(self, link: Link) -> None:
        self._broker.router.counters.sent_controls += 1
        link.send(control.disconnect())

    def close(self) -> None:
        """End the links of peers that are no children (any more)."""
        for link in list(self._greetings):
            link.close()

    def _dismiss(self, child: Child, status: Status, error: str) -> None:
        """It is no child any more; its link goes back to greeting, where whatever else it sends is refused."""
        port, child.port = child.port, None
        if port is not None:
            link: Link = port.link
            self._broker.link_ended(link, LinkEnded(error or status.label))
            link.data = None
            link.receiver = self
            self._greetings.add(link)
            link.resume()
        self._set(child, status, error)

    def _drop(self, child: Child) -> None:
        """Its former incarnation is gone; the broker settles its affairs when the link has ended."""
        port, child.port = child.port, None
        if port is not None:
            port.link.abort(LinkBroken("replaced by a new incarnation"))
        self._set(child, Status.LOST)

    def _set(self, child: Child, status: Status, error: str = "") -> None:
        child.error = error
        if child.timed.change(status, self._clock()):
            self._changed(child)

    # -- liveness ------------------------------------------------------------------------------

    def pulse(self, now: float, watched: float) -> None:
        """Find out which children fell silent, are lost, or are back; keep alive those that were sent nothing."""
        for child in self._children.values():
            port = child.port
            if port is not None:
                keepalive = child.keepalive
                if keepalive is not None and keepalive.due(port.link.outbox, now, self._config.torpid_min_s):
                    self._broker.router.counters.sent_controls += 1
                    port.send(control.heartbeat())
                self._listen(child, port, watched)

    def _listen(self, child: Child, port: Port, watched: float) -> None:
        if port in self._broker.backlog:  # it has spoken: we are behind with hearing it
            child.silence.restart(watched)
        silent = child.silence.seconds(port.received, watched)
        if silent >= lost_after_s(child.keepalive_s, self._config.lost_s) > 0:
            port.link.abort(LinkEnded(f"silent for {silent:.1f} s"))
        elif child.silence.check(port.received, watched, self._config.torpid_max_s):
            if child.silence.torpid:
                log.error("rank %d has been unresponsive for %.1f s", child.rank, silent)
            else:
                log.error("rank %d is responsive now", child.rank)
            self._changed(child)


def _place(told: hello.Hello, link: Link) -> str:
    """Where a child says hello from: its address, and the host that it says it is on."""
    return f"{link.peer.address} on {told.hostname}" if told.hostname else link.peer.address
