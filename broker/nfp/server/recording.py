"""What passes the broker of NFP, for the journal.

::

    packet          kind nfp, topic nfp.SERVICE.COMMAND, "-" where it has no service. JSON: command, dialect, service,
                    uuid, task, code, attempt, sequence, targets ("all", "any" or names), client, worker, uid (of who
                    sent it or gets it): each where it is known; code is the number of the status. Then come its frames
                    as a DEALER has them
    IN              came and was taken; of what is refused DENIED with the errno. OUT: what is told to somebody
                    (``capture = both``), when it is queued for them
    job             kind nfp, topic nfp.SERVICE.JOB, OUT for nobody in particular, whatever is captured: what became of
                    it. JSON: command (JOB), event (dispatched, returned to the queue, finished by one worker, and
                    closed, expired or cancelled, which end it), service, uuid, task, worker, attempt, code, uid; those
                    that end it alone have a status: COMPLETED, FAILED, EXPIRED or CANCELLED, as of ``outcome``
    link.up, .down  kind state: a client, from its first valid message to the end of its connection; a worker, from its
                    READY until nothing can be given to it any more
    denied.link     kind state: who was not let in; of many in a second only some (``feed.REFUSALS_PER_S``), and then
    denied.left_out kind state: how many more

KEEPALIVE is never recorded. Nothing of a body is in the JSON but the name of the task. Of a request, its task is known
once the dispatcher has read it: so what comes is noted when something else has to be, or when it is done.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.identity import USERID_UNKNOWN
from broker.journal.feed import WingFeed
from broker.journal.layout import (
    DENIED,
    IN,
    LINK_DOWN,
    LINK_UP,
    NFP,
    OUT,
    STATE,
)
from broker.journal.options import JournalOptions
from broker.journal.recorder import CLOSE_S
from broker.nfp.bodies import read_token, token_client
from broker.nfp.contract import JobEvent, Peer
from broker.nfp.frames import Body, Packet, encode
from broker.nfp.jobs.model import WorkerEntry
from broker.nfp.names import Command, Sender
from broker.nfp.outcome import STATUS_WORDS
from broker.nfp.server.turn import QueuedPeer

log = logging.getLogger("headgate")
Wire = list[bytes] | tuple[bytes, ...]
_KEEPALIVE: Final = Command.KEEPALIVE
_WORKER: Final = Sender.WORKER
ENDS: Final = frozenset({"closed", "expired", "cancelled"})
"""Kinds of ``JobEvent`` after which nothing comes."""
TOLD: Final = ENDS | {"dispatched", "returned", "finished"}
"""Kinds that are recorded; the others are packets."""


@dataclass(slots=True, eq=False)
class _Known:
    """A peer of the journal."""

    number: int
    role: str
    service: str = ""
    up: bool = False
    received: int = 0
    sent: int = 0


@dataclass(slots=True, eq=False)
class _Pending:
    """A packet that came and is not noted yet."""

    peer: QueuedPeer[Any]
    packet: Packet
    frames: Sequence[Body] | None
    refused: int = 0
    task: str = ""


class Recording(WingFeed):
    """The feed of one broker.

    Args:
        options: where to, and what.
    """

    def __init__(self, options: JournalOptions) -> None:
        super().__init__(options)
        self._known: dict[Peer, _Known] = {}
        self._pending: _Pending | None = None

    async def stop(self) -> None:
        """Hand everything over and wait for the writer, ``CLOSE_S`` at most. Harmless twice."""
        if self.end("the broker stops"):
            await asyncio.to_thread(self.recorder.close, CLOSE_S)

    # -- packets -------------------------------------------------------------------------------

    def came(self, peer: QueuedPeer[Any], packet: Packet, frames: Sequence[Body] | None) -> None:
        """``packet`` of ``peer`` is going to be acted on; ``frames`` None: it never was any."""
        self.done()
        if self.active and packet.command is not _KEEPALIVE:
            self._pending = _Pending(peer, packet, frames)

    def refused(self, errnum: int) -> None:
        """What is acted on at present is refused with that errno."""
        if self._pending is not None:
            self._pending.refused = errnum

    def done(self) -> None:
        """Whatever came has been acted on."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        peer, packet = pending.peer, pending.packet
        known = self._of(peer, "worker" if packet.sender is _WORKER else "client")
        known.received += 1
        if packet.command is Command.READY:
            known.service = packet.service
        facts = facts_of(peer, known.role, known.service, packet)
        if pending.task:
            facts["task"] = pending.task
        direction = DENIED if pending.refused else IN
        self._packet(peer, known, facts, direction, pending.refused, wire_of(packet, pending.frames))

    def invalid(self, peer: QueuedPeer[Any], kind: str, frames: Sequence[Body]) -> None:
        """``peer`` sent what is no packet; ``kind`` as of ``InvalidPacket``."""
        self.done()
        if self.active:
            known = self._of(peer, "worker" if peer.worker else "client")
            facts: dict[str, Any] = {
                "command": "INVALID",
                "invalid": kind,
                **uid_of(peer),
                known.role: peer.name,
            }
            self._packet(peer, known, facts, DENIED, errno.EPROTO, [bytes(frame) for frame in frames])

    def sent(self, peer: QueuedPeer[Any], packet: Packet, frames: Sequence[Body] | None = None) -> None:
        """``packet`` is queued for ``peer``; recorded where what is sent is wanted, too."""
        if not self.both or not self.active or packet.command is _KEEPALIVE:
            return
        self.done()
        known = self._of(peer, "worker" if peer.worker else "client")
        known.sent += 1
        self._packet(
            peer, known, facts_of(peer, known.role, known.service, packet), OUT, 0, wire_of(packet, frames)
        )

    def _packet(
        self,
        peer: QueuedPeer[Any],
        known: _Known,
        facts: dict[str, Any],
        direction: int,
        reason: int,
        wire: Wire,
    ) -> None:
        self.note(
            NFP,
            topic_of(facts),
            facts,
            wire,
            transport=peer.transport,
            direction=direction,
            reason=reason,
            peer=known.number,
            claimed=peer.principal.userid,
        )

    # -- what becomes of jobs --------------------------------------------------------------------

    def happened(self, event: JobEvent) -> None:
        """Record what becomes of a job."""
        if not self.active:
            return
        pending = self._pending
        if event.kind == "submitted":
            if pending is not None and pending.packet.uuid == event.uuid:
                pending.task = event.task
        elif event.kind in TOLD:
            facts = told_of(event)
            self.note(NFP, topic_of(facts), facts, direction=OUT, claimed=event.userid)

    # -- who is there ----------------------------------------------------------------------------

    def worker_changed(self, worker: WorkerEntry, here: bool) -> None:
        """See ``Registry.on_change``."""
        peer = worker.peer
        if not self.active or peer is None:
            return
        assert isinstance(peer, QueuedPeer)
        if here:
            self.done()
            known = self._of(peer, "worker")
            known.service = worker.service.name
            self._up(peer, known)
        else:
            self._down(peer, "nothing can be given to it any more")

    def gone(self, peer: QueuedPeer[Any]) -> None:
        """The connection of ``peer`` is lost."""
        if self.active:
            self._down(peer, "its connection ended")

    def turned_away(self, address: str, key: str, reason: str) -> None:
        """Somebody was not let in."""
        if self.active:
            facts = {"address": address, "uid": None, "key": key, "errno": errno.EPERM, "reason": reason}
            self.note_refused(facts)

    def _of(self, peer: QueuedPeer[Any], role: str) -> _Known:
        known = self._known.get(peer)
        if known is None:
            facts = {"address": peer.address, **uid_of(peer)}
            if peer.principal.name:
                facts["called"] = peer.principal.name
            number = self.peer(peer.name, peer.transport, role, **facts)
            known = self._known[peer] = _Known(number, role)
            if role == "client":
                self._up(peer, known)
        return known

    def _up(self, peer: QueuedPeer[Any], known: _Known) -> None:
        if known.up:
            return
        known.up = True
        facts = {"peer": peer.name, "role": known.role, "address": peer.address, **uid_of(peer)}
        if known.service:
            facts["service"] = known.service
        self.note(STATE, LINK_UP, facts, transport=peer.transport, peer=known.number)

    def _down(self, peer: QueuedPeer[Any], reason: str) -> None:
        self.done()
        known = self._known.pop(peer, None)
        if known is None:
            return
        if known.up:
            cause = "closed" if peer.deaf else "ended"
            facts = {
                "peer": peer.name,
                "role": known.role,
                "reason": reason,
                "cause": cause,
                "received": known.received,
                "sent": known.sent,
                "discarded": 0,
            }
            self.note(STATE, LINK_DOWN, facts, transport=peer.transport, peer=known.number)
        self.forget(known.number)


# -- what is said of one ----------------------------------------------------------------------------


def topic_of(facts: dict[str, Any]) -> str:
    """The topic of a record."""
    return f"nfp.{facts.get('service') or '-'}.{facts['command']}"


def facts_of(peer: Peer, role: str, service: str, packet: Packet) -> dict[str, Any]:
    """The JSON of a packet of ``peer``, or for it; ``service`` is a worker's own, where the packet has none."""
    facts: dict[str, Any] = {"command": packet.command.name, "dialect": packet.dialect.value}
    service = packet.service or service
    if service:
        facts["service"] = service
    if packet.uuid:
        facts["uuid"] = packet.uuid
    if packet.status:
        facts["code"] = packet.status
    if packet.sequence is not None:
        facts["sequence"] = packet.sequence
    if packet.target is not None:
        kind, names = packet.target
        facts["targets"] = names or kind
    if packet.client is not None:
        attempt = read_token(packet.client)
        if attempt or b"#" not in packet.client:  # a deployed worker's first attempt has the name alone
            facts["attempt"] = attempt or 1
            facts["client"] = token_client(packet.client)
    facts[role] = peer.name
    facts.update(uid_of(peer))
    return facts


def wire_of(packet: Packet, frames: Sequence[Body] | None) -> list[bytes]:
    """The frames of ``packet`` as bytes; of what never was any, as they would be."""
    if frames is None:
        try:
            frames = encode(packet)
        except ValueError:  # no dialect has this
            return []
    return [frame if type(frame) is bytes else bytes(frame) for frame in frames]


def told_of(event: JobEvent) -> dict[str, Any]:
    """The JSON of what became of a job."""
    facts: dict[str, Any] = {
        "command": "JOB",
        "event": event.kind,
        "service": event.service,
        "uuid": event.uuid,
    }
    more = {"task": event.task, "worker": event.worker, "attempt": event.attempt, "code": event.status}
    facts.update((name, value) for name, value in more.items() if value)
    if event.kind in ENDS:
        facts["status"] = STATUS_WORDS[event.state]
    if event.userid != USERID_UNKNOWN:
        facts["uid"] = event.userid
    return facts


def uid_of(peer: Peer) -> dict[str, Any]:
    """The key about a user, where it is known who."""
    userid = peer.principal.userid
    return {} if userid == USERID_UNKNOWN else {"uid": userid}
