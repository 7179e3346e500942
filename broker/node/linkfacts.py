"""What the journal is told of a link: its transport, what is known of its peer, how it ended."""

from __future__ import annotations

from typing import Any, Final

from broker.errors import LinkBroken, LinkClosed, LinkEnded, LinkError, LinkRefused
from broker.identity import PeerInfo
from broker.journal.layout import CURVE, INPROC, OTHER, PLAIN, UNIX, WEBSOCKET
from broker.routing.port import Port
from broker.transport.link import Link

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


def transport_of(link: Link | None) -> int:
    """By which transport a port's messages come; 0 of the broker's own port."""
    return 0 if link is None else transport_by(link.peer.address, link.peer.key)


def transport_by(address: str, key: str | None) -> int:
    """The transport of an address whose peer proved that key, or none."""
    found = _TRANSPORTS.get(address.partition("://")[0], OTHER)
    return CURVE if key and found == PLAIN else found


def known_of(peer: PeerInfo) -> dict[str, Any]:
    """What the transport knows of a peer, as far as the dictionary keeps it."""
    facts = {"address": peer.address, "pid": peer.pid, "key": peer.key}
    return {name: each for name, each in facts.items() if each}


def link_down_facts(port: Port, error: LinkError) -> dict[str, Any]:
    """What ``link.down`` says."""
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
