"""What the journal says of one packet, and of what becomes of a job (pure).

::

    packet  nfp.SERVICE.COMMAND, "-" where it has no service. JSON: command, dialect, service, uuid, task, code,
            attempt, sequence, targets ("all", "any" or names), client, worker, uid (of who sent it or gets it): each
            where it is known; code is the number of the status
    job     nfp.SERVICE.JOB. JSON: command (JOB), event (dispatched, returned to the queue, finished by one worker, and
            closed, expired or cancelled, which end it), service, uuid, task, worker, attempt, code, uid; those that end
            it alone have a status: COMPLETED, FAILED, EXPIRED or CANCELLED, as of ``outcome``
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from broker.identity import USERID_UNKNOWN
from broker.nfp.bodies import read_token, token_client
from broker.nfp.contract import JobEvent, Peer
from broker.nfp.frames import Body, Packet, encode
from broker.nfp.outcome import STATUS_WORDS

ENDS: Final = frozenset({"closed", "expired", "cancelled"})
"""Kinds of ``JobEvent`` after which nothing comes."""
TOLD: Final = ENDS | {"dispatched", "returned", "finished"}
"""Kinds that are recorded; the others are packets."""


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
