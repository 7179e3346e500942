"""The router's record of one attached link; the router knows nothing else of it.

A port is a *client* (anything whose hop we push and pop), a *child* or the *parent* of the tree, or the broker's
*own* end, where built-in services and the broker's own calls live.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.identity import Credentials
from broker.wire.message import Message, encode_part, part_data

CLIENT: Final = 0
CHILD: Final = 1
PARENT: Final = 2
OWN: Final = 3


def service_path(topic: bytes) -> bytes:
    """``topic`` without its last word; all of it when it has one word only.

    >>> service_path(b"job-info.update.lookup")
    b'job-info.update'
    """
    path, dot, _word = topic.rpartition(b".")
    return path if dot else topic


class Decision:
    """What to do with every further request that looks like this one; the value of pending calls, too.

    It holds all that is needed to forward a request (target, stamped header) and to answer one whose provider
    vanished (origin, topic, flags): the rest of a pending call is its key.
    """

    __slots__ = ("armed", "head", "once", "origin", "push", "target", "topic_part", "track")

    def __init__(self, origin: Port, target: Port, topic_part: bytes, head: bytes, push: bytes) -> None:
        self.origin: Port = origin
        self.target: Port = target
        self.topic_part: bytes = topic_part
        self.head: bytes = head
        """First 17 bytes of the stamped tail: everything but the matchtag."""
        self.push: bytes = push
        """Encoded route parts that go in front of the stack."""
        self.track: bool = True
        """A response is expected."""
        self.once: bool = True
        """The first response is the only one; False for streams, which end at an errnum."""
        self.armed: bytes = b""
        """Key of the disconnect notice this request arms; b"" for none."""

    def calls(self) -> list[Decision]:
        """The open calls that this entry of a pending table stands for."""
        return [self]

    def concerns(self, service: bytes) -> bool:
        """True when the call is for ``service`` (topic up to its last word)."""
        return service_path(bytes(part_data(self.topic_part) or b"")) == service


class Repeat(Decision):
    """Several open calls of one sender with the same matchtag: answered in any order, each once.

    Its own target is nobody, so that a response never matches it by accident.
    """

    __slots__ = ("waiting",)

    def __init__(self, waiting: list[Decision]) -> None:
        last = waiting[-1]
        super().__init__(last.origin, NOBODY, last.topic_part, last.head, last.push)
        self.waiting: list[Decision] = waiting

    def calls(self) -> list[Decision]:
        """The open calls that share the matchtag, oldest first."""
        return list(self.waiting)

    def concerns(self, service: bytes) -> bool:
        """True when all of them are for ``service``."""
        return all(decision.concerns(service) for decision in self.waiting)

    def take(self, port: Port, error: bool) -> Decision | None:
        """The oldest waiting call that ``port`` may answer; it is done unless a stream goes on."""
        for index, decision in enumerate(self.waiting):
            if decision.target is port:
                if decision.once or error:
                    del self.waiting[index]
                return decision
        return None


class Port:
    """One attached link as the router sees it.

    Attributes:
        hop: the route part that names this port in a stack, encoded.
        send: queues a message to the peer; never waits, never raises.
        pending: calls this port made that are not answered: rest of stack + matchtag -> Decision.
        cache: decisions by topic part + header without matchtag; dropped whenever routing changes.
        stamps: credentials as received (8 bytes) -> as stamped.
        armed: disconnect notices owed when the port goes: key -> (request header, matchtag, topic part of
            the notice, front below the port's hop).
    """

    __slots__ = (
        "armed",
        "busy",
        "cache",
        "cmb1",
        "cred",
        "hop",
        "kind",
        "link",
        "live",
        "name",
        "owner",
        "pending",
        "policy",
        "rank",
        "received",
        "send",
        "services",
        "shared_uid",
        "stamps",
        "subscriptions",
        "untagged",
        "uuid",
    )

    def __init__(
        self,
        kind: int,
        uuid: str,
        send: Callable[[Message], None],
        cred: Credentials,
        *,
        name: str = "",
        policy: Any = None,
        link: Any = None,
        rank: int = -1,
    ) -> None:
        self.kind: int = kind
        self.uuid: str = uuid
        self.hop: bytes = encode_part(uuid.encode())
        self.send: Callable[[Message], None] = send
        self.cred: Credentials = cred
        self.owner: bool = cred.owner
        self.name: str = name or uuid
        self.policy: Any = policy
        """Opaque to the router: handed to the stamp callback."""
        self.link: Any = link
        self.rank: int = rank
        self.cmb1: bool = False
        """The peer speaks an older dialect: its own request to any rank skips itself."""
        self.shared_uid: bool = False
        """Several principals share this uid: it never receives private events."""
        self.live: bool = True
        self.busy: bool = False
        """Its outbox is above high water."""
        self.received: int = 0
        self.pending: dict[bytes, Decision] = {}
        self.untagged: dict[bytes, dict[Port, Decision]] = {}
        self.cache: dict[bytes, Decision] = {}
        self.stamps: dict[bytes, bytes] = {}
        self.armed: dict[bytes, tuple[bytes, bytes, bytes, bytes]] = {}
        self.services: set[bytes] = set()
        self.subscriptions: dict[bytes, int] = {}

    def __repr__(self) -> str:
        return f"<port {('client', 'child', 'parent', 'own')[self.kind]} {self.name}>"


def _discard(_message: Message) -> None:
    """Nobody listens."""


NOBODY: Final = Port(OWN, "", _discard, Credentials())
"""The provider of calls that have several."""
