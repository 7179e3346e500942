"""The router's record of one attached link; the router knows nothing else of it.

A port is a *client* (anything whose hop we push and pop), a *child* or the *parent* of the tree, or the broker's
*own* end, where built-in services and the broker's own calls live.
"""

# compiled: mypyc

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.identity import USERID_UNKNOWN, Credentials
from broker.name_stats import NameStats
from broker.wire.message import DELIMITER, Message
from broker.wire.parts import encode_part, part_data
from broker.wire.topic import path_of

if TYPE_CHECKING:
    from broker.routing.flow import Window

CLIENT: Final = 0
CHILD: Final = 1
PARENT: Final = 2
OWN: Final = 3
KIND_NAMES: Final = ("client", "child", "parent", "own")
"""Names for people, by the numbers above."""
UNCOUNTED: Final = NameStats()
"""Of calls that are counted elsewhere: nobody reads it."""
_serials = itertools.count(1)


class Decision:
    """The decision about every request that looks like this one; it is kept for an open call, too.

    It holds all that is needed to forward a request (target, stamped header) and to answer one whose provider
    vanished (origin, topic, flags): the rest of an open call is its key in ``Port.pending``.
    """

    __slots__ = (
        "answer_head",
        "answer_mark",
        "answer_out_mark",
        "calls",
        "calls_key",
        "claimed",
        "front",
        "head",
        "mark",
        "method",
        "notice_key",
        "notice_pending",
        "origin",
        "out_mark",
        "route_prefix",
        "sender",
        "sender_front",
        "sender_stack",
        "service",
        "single_response",
        "target",
        "topic_part",
    )

    def __init__(
        self, origin: Port, target: Port, topic_part: bytes, head: bytes, route_prefix: bytes
    ) -> None:
        self.origin: Port = origin
        self.target: Port = target
        self.topic_part: bytes = topic_part
        self.service: bytes = path_of(bytes(part_data(topic_part) or b""))
        """The topic up to its last word: the service that a disconnect notice goes to."""
        self.calls_key: bytes = self.service + b"\0" + target.serial
        """Behind a sender's stack: the key of its open calls in ``Port.calls``."""
        self.head: bytes = head
        """``Message.head`` of the request as stamped: everything of PROTO but the matchtag."""
        self.route_prefix: bytes = route_prefix
        """Encoded route parts that go in front of the stack."""
        self.front: bytes = route_prefix + DELIMITER
        """The stack as it leaves, of a request that came with none."""
        self.calls: OpenCalls | None = None
        """The open calls of the link itself; None when no response is expected. Senders behind it have their own."""
        self.sender: OpenCalls | None = None
        """Of the sender behind the link that asked last."""
        self.sender_front: bytes | None = None
        """Its stack as it came; None where it has to be looked at again: its disconnect notice is not armed."""
        self.sender_stack: bytes = b""
        """The same as it leaves."""
        self.method: NameStats = UNCOUNTED
        """Where it is counted, if it enters the tree here."""
        self.single_response: bool = True
        """The first response is the only one; False for streams, which end at an errnum."""
        self.notice_key: bytes = b""
        """Key of the disconnect notice this request arms; b"" for none."""
        self.notice_pending: bool = False
        """Decided for a sender behind the link: the link's own first request still has to arm its notice."""
        self.mark: bytes = b""
        """In front of its request in a recording (see ``recording``); b"": it is none that came in by a link."""
        self.out_mark: bytes = b""
        """The same of the delivery; b"": deliveries are not recorded."""
        self.claimed: int = USERID_UNKNOWN
        """The userid that the request bore before it was stamped; filled in while messages are recorded."""
        self.answer_head: bytes = b""
        """``Message.head`` of the response, as received, that the marks below are for; b"" for none yet."""
        self.answer_mark: bytes = b""
        self.answer_out_mark: bytes = b""


class OpenCall:
    """One call that is not answered.

    Attributes:
        decision: what was decided about it.
        began_ns: when it began (``CallStats.now_ns``); 0 once the first response has come, -1: it is neither timed nor
            counted as open.
    """

    __slots__ = ("began_ns", "decision")

    def __init__(self, decision: Decision, began_ns: int) -> None:
        self.decision: Decision = decision
        self.began_ns: int = began_ns


class OpenCalls:
    """The open calls of one sender to one service by one way; see ``open_calls``.

    Attributes:
        origin, target: the port they came from, and the one that their answers come from.
        service: topic of their requests up to its last word. front: stack of the sender below the origin's hop.
        calls_key: see ``Decision``.
        open: rest of stack + matchtag -> the (latest) call.
        listed: the ports at both ends know of it.
    """

    __slots__ = ("calls_key", "front", "listed", "open", "origin", "service", "target")

    def __init__(self, decision: Decision, target: Port, front: bytes) -> None:
        self.origin: Port = decision.origin
        self.target: Port = target
        self.service: bytes = decision.service
        self.calls_key: bytes = decision.calls_key
        self.front: bytes = front
        self.open: dict[bytes, OpenCall] = {}
        self.listed: bool = True

    def decisions(self, key: bytes) -> list[Decision]:
        """The decisions about the calls with this key, oldest first."""
        return [self.open[key].decision]


class User:
    """The links of one user: those of one uid, or those with a key of that userid.

    Attributes:
        ports: its links.
        services, subscriptions: names registered, and prefixes subscribed to, over all of them.
    """

    __slots__ = ("owner", "ports", "services", "subscriptions", "userid")

    def __init__(self, userid: int, owner: bool) -> None:
        self.userid: int = userid
        self.owner: bool = owner
        self.ports: dict[Port, None] = {}
        self.services: int = 0
        self.subscriptions: int = 0


class Port:
    """One attached link as the router sees it.

    Attributes:
        hop: the route part that names this port in a stack, encoded.
        send: queues a message to the peer; never waits, never raises.
        pending: calls this port made that are not answered: rest of stack + matchtag -> those of sender and service.
        calls: the same by sender, service and target: rest of stack + ``Decision.calls_key`` -> OpenCalls. Some have
            nothing open: ``rotation`` finds them in time.
        asked: the same by sender and service alone: rest of stack + service -> OpenCalls.
        to_answer: the calls of others that this port is to answer.
        cache: decisions by topic part + header without matchtag; dropped whenever routing changes.
        stamps: credentials as received (8 bytes) -> as stamped.
        untagged: senders that called with matchtag 0: rest of stack -> provider -> (latest decision, True
            while nothing answered it).
        notices: disconnect notices owed when the port goes: key -> (request header, matchtag, topic part of
            the notice, front below the port's hop).
        peer: its number in a recording; 0 for none. marks: credentials of its events as received -> mark in front of
            them in a recording.
        window: of a neighbour of the tree.
        provided: it registered a service once: others may wait for it, decisions may lead to it.
    """

    __slots__ = (
        "asked",
        "busy",
        "cache",
        "calls",
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
        "notices",
        "owner",
        "peer",
        "pending",
        "pending_max",
        "policy",
        "provided",
        "rank",
        "received",
        "repeats",
        "rotation",
        "send",
        "serial",
        "services",
        "stamps",
        "strict",
        "subscriptions",
        "to_answer",
        "untagged",
        "user",
        "uuid",
        "window",
        "windowed",
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
        self.serial: bytes = next(_serials).to_bytes(8, "big")
        """Its own, even beside a port with the same uuid: a peer may be back before its former link is known lost."""
        self.link: Any = link
        """The transport's link, opaque to the router too; None at the broker's own end."""
        self.rank: int = rank
        self.cmb1: bool = False
        """The peer speaks an older dialect: its own request to any rank skips itself."""
        self.strict: bool = False
        """The peer asked for what its text says, also where deployed software does otherwise (``PROTOCOL.md``)."""
        self.live: bool = True
        self.busy: bool = False  # its outbox is above high water
        self.received: int = 0
        self.peer: int = 0
        self.marks: dict[bytes, bytes] = {}
        self.pending: dict[bytes, OpenCalls] = {}
        self.repeats: int = 0  # calls that wait behind one with the same matchtag
        self.pending_max: int = 0  # calls it may have open; the router sets it
        self.untagged: dict[bytes, dict[Port, tuple[Decision, bool]]] = {}
        self.calls: dict[bytes, OpenCalls] = {}
        self.asked: dict[bytes, list[OpenCalls]] = {}
        self.rotation: deque[OpenCalls] = deque()
        self.to_answer: dict[OpenCalls, None] = {}
        self.cache: dict[bytes, Decision] = {}
        self.last: Decision | None = None
        self.last_head: bytes = b""
        self.last_topic: bytes = b""
        self.heads: dict[bytes, tuple[bytes, bool]] = {}
        self.stamps: dict[bytes, bytes] = {}
        self.notices: dict[bytes, tuple[bytes, bytes, bytes, bytes]] = {}
        self.services: set[bytes] = set()
        self.provided: bool = False
        self.subscriptions: dict[bytes, int] = {}
        self.user: User = User(cred.userid, cred.owner)
        """The user of the link, shared with its other links once it is attached."""
        self.windowed: bool = False
        """A neighbour of the tree that tells how many of our events it has handled, see ``flow``."""
        self.window: Window | None = None

    @property
    def open_calls(self) -> int:
        """How many calls it made that are not answered; of a sender with matchtag 0 the latest by each way counts."""
        return len(self.pending) + self.repeats + len(self.untagged)

    def forget_decisions(self) -> None:
        """Decide anew about whatever this port asks next."""
        self.cache = {}
        self.last = None
        self.last_head = b""

    def __repr__(self) -> str:
        return f"<port {KIND_NAMES[self.kind]} {self.name}>"


Stamp = Callable[[Port, bytes], bytes]
"""``stamp(port, received) -> stamped``: eight bytes of userid and rolemask each (the ingress room's work)."""
