"""The journal of one broker: the tap in its corridor, the recorder behind it, and the records of links and refusals.

::

    Router, Events --add--> Tap --end_batch, at the end of a batch--> Recorder --> the process that writes
    attach, depart ------> peers (DICTIONARY), ``link.up``, ``link.down``
    sweep, each second --> ``drop``: events that a slow subscriber missed
    admission, hello, keys -> ``denied.link``: peers that were turned away at connect, ``feed.REFUSALS_PER_S`` at most
    gateways --------------> refused messages of their web peers, recorded as if they had come here and been refused

Refusals that were left out are a record, too: ``denied.left_out``. A gateway rations its reports itself, and says how
many it left out.

Theory of operation. Records are handed on at the end of a batch; a timer of FLUSH_S runs only while something waits.
What the writer says arrives by a descriptor on the loop. Capture ends by itself when the disk is full, and by
``journal.stop``; the broker goes on, and each port keeps its number, so that ``start`` takes up where it ended. While
it is off nothing is recorded, not even that links came and went: a writer that starts is told of all peers that live.

Concurrency: everything runs on the broker's event loop; nothing waits but the first ``begin`` and the last ``end``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from broker.errors import ConfigError, LinkBroken, LinkClosed, LinkEnded, LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.journal.feed import Feed, Loop
from broker.journal.layout import (
    CURVE,
    DENIED,
    DROP,
    INPROC,
    LEFT_OUT,
    LINK_DOWN,
    LINK_UP,
    OTHER,
    PLAIN,
    STATE,
    UNIX,
    WEBSOCKET,
)
from broker.journal.options import JournalOptions
from broker.journal.recorder import Figures
from broker.routing.port import KIND_NAMES, Port
from broker.services.context import Denial
from broker.transport.link import Link
from broker.wire.message import Message, event, request, response

if TYPE_CHECKING:
    from broker.node.broker import Broker
    from broker.settings import JournalSection

log = logging.getLogger("headgate")

_TRANSPORTS: Final = {
    "local": UNIX,
    "inproc": INPROC,
    "tcp": PLAIN,
    "ipc": PLAIN,
    "ws": WEBSOCKET,
    "wss": WEBSOCKET,
}
"""By the scheme of a link's address; what is plain without a key is CURVE with one."""
_CAUSES: Final = (
    (LinkClosed, "closed"),
    (LinkEnded, "ended"),
    (LinkRefused, "refused"),
    (LinkBroken, "broken"),
)
OUTSIDERS_MAX: Final = 256
"""Peers of gateways that have a number at a time; each refused session takes one, the oldest gives way."""
SETTLE_S: Final = 5.0
"""How long turning off, or on again, waits for the writer."""
LAST_WORD_S: Final = 0.5
"""How much longer than a block takes turning off waits to hear that it is written: so that the counts are right."""
_STEP_S: Final = 0.01


def transport_of(link: Link | None) -> int:
    """By which transport a port's messages come; 0 of the broker's own port."""
    return 0 if link is None else transport_by(link.peer.address, link.peer.key)


def transport_by(address: str, key: str | None) -> int:
    """The transport of an address whose peer proved that key, or none."""
    found = _TRANSPORTS.get(address.partition("://")[0], OTHER)
    return CURVE if key and found == PLAIN else found


def known_of(peer: PeerInfo) -> dict[str, Any]:
    """Address, process and key of a peer, those that are known: the facts that the dictionary keeps."""
    facts = {"address": peer.address, "pid": peer.pid, "key": peer.key}
    return {name: each for name, each in facts.items() if each}


def link_down_facts(port: Port, error: LinkError) -> dict[str, Any]:
    """The facts of a ``link.down`` record."""
    cause = next((word for kind, word in _CAUSES if isinstance(error, kind)), "broken")
    outbox = port.link.outbox
    return {
        "peer": port.name,
        "reason": str(error),
        "cause": cause,
        "received": port.received,
        "sent": outbox.sent,
        "discarded": outbox.discarded,
    }


class Refusals:
    """Messages that gateways refused; to be told only while records are taken.

    Args:
        feed: where records go. own: the broker's own port.
    """

    def __init__(self, feed: Feed, own: Port) -> None:
        self._feed = feed
        self._own = own
        self._outsiders: OrderedDict[tuple[str, str, str], int] = OrderedDict()

    def message(self, denial: Denial) -> None:
        """A gateway refused a message of one of its peers."""
        peer = self._outsider(denial)
        if denial.left_out:
            facts = {"records": denial.left_out, "transport": denial.transport}
            self._feed.note(STATE, LEFT_OUT, facts, peer=peer)
        frame = _message_of(denial).framed()  # first: no mark stands alone
        tap = self._feed.tap
        tap.add(tap.mark(DENIED, peer, self._own.peer, denial.claimed, denial.errnum))
        tap.add(frame)
        self._feed.date_soon()

    def _outsider(self, denial: Denial) -> int:
        """The number of a peer that is a gateway's."""
        key = (denial.transport, denial.session, denial.address)
        number = self._outsiders.pop(key, 0)
        if not number:
            name = " ".join(word for word in (denial.address, denial.session) if word) or denial.transport
            transport = WEBSOCKET if denial.transport == "websocket" else 0
            number = self._feed.peer(name, transport, "web", session=denial.session, address=denial.address)
        self._outsiders[key] = number
        while len(self._outsiders) > OUTSIDERS_MAX:
            (_, session, address), oldest = self._outsiders.popitem(last=False)
            facts = {
                "peer": f"{address} {session}".strip(),
                "cause": "closed",
                "reason": "not heard of for long",
            }
            self._feed.note(STATE, LINK_DOWN, facts, peer=oldest)
            self._feed.forget(oldest)
        return number


def _message_of(denial: Denial) -> Message:
    """The message that was refused, as far as its topic and credentials go."""
    asked = request(denial.topic, userid=denial.userid, rolemask=denial.rolemask)
    if denial.kind == "response":
        return response(asked, userid=denial.userid, rolemask=denial.rolemask)
    if denial.kind == "event":
        return event(denial.topic, userid=denial.userid, rolemask=denial.rolemask)
    return asked


class Capture(Feed):
    """Records the traffic of one broker; satisfies ``services.context.JournalControl``.

    Args:
        broker: the one whose traffic is recorded. section: ``[journal]``.

    Attributes:
        state: "on", "off" or "off: REASON".
    """

    def __init__(self, broker: Broker, section: JournalSection) -> None:
        rank = broker.router.rank
        super().__init__(JournalOptions(writer=f"rank{rank}", rank=rank, **section.options()))
        self._broker = broker
        self._dropped: dict[Port, int] = {}
        self._swept_ns = 0
        self._refusals = Refusals(self, broker.own)
        self._switching = asyncio.Lock()
        broker.on_attached.append(self._attached)
        broker.on_departed.append(self._departed)

    @property
    def state(self) -> str:
        """The recorder's own state."""
        return self.recorder.state

    # -- on and off ----------------------------------------------------------------------------

    def begin(self, loop: Loop) -> None:
        """Start the writer, then record; to be called on the loop, before the doors open.

        Raises:
            ConfigError: the journal cannot be written.
        """
        super().begin(loop)
        self._record()

    def end(self, reason: str = "the broker leaves") -> bool:
        """Write what is there and let the writer end; harmless twice, and before ``begin``."""
        begun = super().end(reason)
        if begun:
            self._broker.record(None, None)
            self.recorder.close(SETTLE_S)
        return begun

    async def start(self) -> None:
        """Record again; nothing when it does.

        Raises:
            ConfigError: the journal cannot be written.
        """
        async with self._switching:
            self._check_staying()
            if self.active:
                return
            gone = await self._within(SETTLE_S, lambda: self.recorder.gone)
            self._check_staying()
            if not gone:
                raise ConfigError(
                    f"journal {self._options.directory}: the former writer is still at work",
                    errno.EBUSY,
                )
            self.recorder.start()
            self._tell_on()
            self._record()

    def _check_staying(self) -> None:
        """Before ``begin`` and behind ``end``, which may come while somebody waits, no writer is started."""
        if self._loop is None:
            raise ConfigError("the broker is leaving", errno.ESHUTDOWN)

    async def stop(self, reason: str = "") -> None:
        """Write what is there, then record no more; nothing when it does not."""
        async with self._switching:
            if not self.active:
                return
            self._tell_off(reason or "asked to")
            self._broker.record(None, None)
            self.tap.flush()
            if not await self._within(SETTLE_S, lambda: not (self.active and self.tap.waiting)):
                log.warning("journal: %d bytes were not written in time", self.figures.waiting_bytes)
            await self._within(self._options.block_s + LAST_WORD_S, self._all_written)
            self.recorder.stop(reason)
            await self._within(SETTLE_S, lambda: self.recorder.gone)

    async def _within(self, seconds: float, done: Callable[[], bool]) -> bool:
        """Wait until ``done``, at most so long; whether it is."""
        deadline = monotonic() + seconds
        while not done():
            if monotonic() > deadline:
                return False
            await asyncio.sleep(_STEP_S)
            self.tap.flush()
        return True

    def _all_written(self) -> bool:
        """Whether the writer has reported everything as written: it does so behind each block."""
        figures = self.figures
        return not self.active or figures.written >= figures.handed - figures.shed - figures.lost

    def _record(self) -> None:
        """The writer is there: tell it who is who, then plug the tap in."""
        log.info("journal: %s records into %s", self._options.writer, self._options.directory)
        self._swept_ns = time.time_ns()
        for port in self._broker.router.ports:
            if not port.peer:
                self._introduce(port)
            if port.link is not None:
                self._dropped[port] = port.link.outbox.dropped_events
        self._broker.record(self.tap, self.end_batch)

    def _state(self, state: str) -> None:
        """The recorder's state changed, perhaps in the middle of a batch: act on it behind that."""
        super()._state(state)
        if not self.active and self._loop is not None:
            self._loop.call_soon(self._fell_off)

    def _fell_off(self) -> None:
        """Capture ended by itself, and the recorder has said why."""
        if not self.active and self._loop is not None:
            self._broker.record(None, None)
            self.tap.flush()

    # -- peers ---------------------------------------------------------------------------------

    def _introduce(self, port: Port) -> None:
        """Give a port its number; the decisions made before know none."""
        facts: dict[str, Any] = {
            "uuid": port.uuid,
            "uid": port.cred.userid,
            "rolemask": int(port.cred.rolemask),
        }
        if port.rank >= 0:
            facts["rank"] = port.rank
        if port.link is not None:
            facts |= known_of(port.link.peer)
        port.peer = self.peer(port.name, transport_of(port.link), KIND_NAMES[port.kind], **facts)

    def _attached(self, port: Port) -> None:
        if self.active:
            self._introduce(port)
            self.note(STATE, LINK_UP, {"peer": port.name, "role": KIND_NAMES[port.kind]}, peer=port.peer)

    def _departed(self, port: Port, error: LinkError) -> None:
        # counted before the record of the end, so that all drops of a link stand in front of it
        if port.peer and self.active:
            self._sweep_port(port)
            self.note(STATE, LINK_DOWN, link_down_facts(port, error), peer=port.peer)
        self._dropped.pop(port, None)
        if port.peer:
            self.forget(port.peer)
            port.peer = 0

    # -- what is lost on the way, and who was not let in -----------------------------------------

    def sweep(self) -> None:
        """Called now and then: record the events that slow subscribers missed since the last time, and how many were
        turned away without a record.
        """
        if not self.active:
            return
        self.tell_left_out()
        for port in self._broker.router.ports:
            if port.link is not None:
                self._sweep_port(port)
        self._swept_ns = time.time_ns()

    def _sweep_port(self, port: Port) -> None:
        dropped: int = port.link.outbox.dropped_events
        missed = dropped - self._dropped.get(port, 0)
        if missed:
            self._dropped[port] = dropped
            facts = {"peer": port.name, "events": missed, "since_ns": self._swept_ns}
            self.note(STATE, DROP, facts, peer=port.peer)

    def refused(self, peer: PeerInfo, errnum: int, reason: str) -> None:
        """Somebody was turned away at connect."""
        if self.active:
            facts = {"address": peer.address, "uid": peer.uid, "errno": errnum, "reason": reason}
            if peer.key:
                facts["key"] = peer.key
            self.note_refused(facts, errnum, transport_by(peer.address, peer.key))

    def denied(self, denial: Denial) -> None:
        """A gateway refused a message of one of its peers: recorded as if it had come to us and been refused."""
        if self.active:
            self._refusals.message(denial)

    # -- views ---------------------------------------------------------------------------------

    @property
    def figures(self) -> Figures:
        """All counts."""
        return self.recorder.figures

    def status(self) -> Mapping[str, Any]:
        """The answer of ``journal.status``: state, place, what is recorded, counts."""
        options = self._options
        return {
            "state": self.state,
            "directory": options.directory,
            "writer": options.writer,
            "rank": options.rank,
            "run": self.recorder.options.run,
            "pid": self.recorder.pid,
            "capture": options.capture,
            "payload": options.payload,
            "codec": options.codec,
            "sync": options.sync,
            **self.figures._asdict(),
        }
