"""The router's record of one attached link; the router knows nothing else of it.

A port is a *client* (anything whose hop we push and pop), a *child* or the *parent* of the tree, or the broker's
*own* end, where built-in services and the broker's own calls live.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.identity import USERID_UNKNOWN, Credentials
from broker.wire.message import Message
from broker.wire.parts import encode_part, part_data
from broker.wire.topic import path_of

CLIENT: Final = 0
CHILD: Final = 1
PARENT: Final = 2
OWN: Final = 3
KIND_NAMES: Final = ("client", "child", "parent", "own")
"""What people read, by the numbers above."""


class Decision:
    """What to do with every further request that looks like this one; the value of pending calls, too.

    It holds all that is needed to forward a request (target, stamped header) and to answer one whose provider
    vanished (origin, topic, flags): the rest of a pending call is its key.
    """

    __slots__ = (
        "answer_head",
        "answer_mark",
        "answer_out_mark",
        "armed",
        "claimed",
        "head",
        "mark",
        "once",
        "origin",
        "out_mark",
        "push",
        "target",
        "topic_part",
        "track",
        "unarmed",
    )

    def __init__(self, origin: Port, target: Port, topic_part: bytes, head: bytes, push: bytes) -> None:
        self.origin: Port = origin
        self.target: Port = target
        self.topic_part: bytes = topic_part
        self.head: bytes = head
        """``Message.head`` of the request as stamped: everything of PROTO but the matchtag."""
        self.push: bytes = push
        """Encoded route parts that go in front of the stack."""
        self.track: bool = True
        """A response is expected."""
        self.once: bool = True
        """The first response is the only one; False for streams, which end at an errnum."""
        self.armed: bytes = b""
        """Key of the disconnect notice this request arms; b"" for none."""
        self.unarmed: bool = False
        """Decided for a sender behind the link: the link's own first request still has to arm its notice."""
        self.mark: bytes = b""
        """In front of its request in a recording (see ``recording``); b"": it is none that came in by a link."""
        self.out_mark: bytes = b""
        """The same of the delivery; b"": deliveries are not recorded."""
        self.claimed: int = USERID_UNKNOWN
        """Who the request said it was from, before it was stamped; filled in while somebody records."""
        self.answer_head: bytes = b""
        """``Message.head`` of the response, as received, that the marks below are for; b"" for none yet."""
        self.answer_mark: bytes = b""
        self.answer_out_mark: bytes = b""

    def calls(self) -> list[Decision]:
        """The open calls that this entry of a pending table stands for."""
        return [self]

    def concerns(self, service: bytes) -> bool:
        """True when the call is for ``service`` (topic up to its last word)."""
        return path_of(bytes(part_data(self.topic_part) or b"")) == service

    def without(self, service: bytes) -> Decision | None:
        """The entry that is left when the calls for ``service`` are taken out; None when nothing is."""
        return None if self.concerns(service) else self


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

    def without(self, service: bytes) -> Decision | None:
        """The entry that is left when the calls for ``service`` are taken out; None when nothing is."""
        self.waiting = [decision for decision in self.waiting if not decision.concerns(service)]
        return self if self.waiting else None

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
        untagged: senders that called with matchtag 0: rest of stack -> provider -> (latest decision, True
            while nothing answered it).
        armed: disconnect notices owed when the port goes: key -> (request header, matchtag, topic part of
            the notice, front below the port's hop).
        peer: its number in a recording; 0 for none. marks: credentials of its events as received -> mark in front of
            them in a recording.
        provided: it registered a service once: others may wait for it, decisions may lead to it.
    """

    __slots__ = (
        "armed",
        "busy",
        "cache",
        "cmb1",
        "cred",
        "heads",
        "hop",
        "kind",
        "last",
        "last_head",
        "last_topic",
        "link",
        "live",
        "marks",
        "name",
        "owner",
        "peer",
        "pending",
        "pending_max",
        "policy",
        "provided",
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
        """The transport's link, opaque to the router too; None at the broker's own end."""
        self.rank: int = rank
        self.cmb1: bool = False
        """The peer speaks an older dialect: its own request to any rank skips itself."""
        self.shared_uid: bool = False
        """Several principals share this uid: it never receives private events."""
        self.live: bool = True
        self.busy: bool = False
        """Its outbox is above high water."""
        self.received: int = 0
        self.peer: int = 0
        self.marks: dict[bytes, bytes] = {}
        self.pending: dict[bytes, Decision] = {}
        self.pending_max: int = 0
        """Calls it may have open; the router sets it."""
        self.untagged: dict[bytes, dict[Port, tuple[Decision, bool]]] = {}
        self.cache: dict[bytes, Decision] = {}
        self.last: Decision | None = None
        self.last_head: bytes = b""
        self.last_topic: bytes = b""
        self.heads: dict[bytes, tuple[bytes, bool]] = {}
        self.stamps: dict[bytes, bytes] = {}
        self.armed: dict[bytes, tuple[bytes, bytes, bytes, bytes]] = {}
        self.services: set[bytes] = set()
        self.provided: bool = False
        self.subscriptions: dict[bytes, int] = {}

    def untagged_call(self, rest: bytes, provider: Port, error: bool) -> Decision | None:
        """The decision that a response of ``provider`` with matchtag 0 answers; any number may come while both live."""
        providers = self.untagged.get(rest, {})
        decision, unanswered = providers.get(provider, (None, False))
        if decision is not None and unanswered and (decision.once or error):
            providers[provider] = (decision, False)
        return decision

    def __repr__(self) -> str:
        return f"<port {KIND_NAMES[self.kind]} {self.name}>"


Stamp = Callable[[Port, bytes], bytes]
"""``stamp(port, received) -> stamped``: eight bytes of userid and rolemask each (the ingress room's work)."""


def _discard(_message: Message) -> None:
    """Nobody listens."""


NOBODY: Final = Port(OWN, "", _discard, Credentials())
"""The provider of calls that have several."""
