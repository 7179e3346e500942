"""The interface of the broker for the built-in services that it runs.

Services see a ``Context``, and of the broker's rooms what the interfaces here say: no transport, no router. The class
that implements it is in ``broker.node.context``. Time and timers are the event loop's own, and log lines go to the
logger ``headgate``.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from broker.identity import Credentials
from broker.wire.event_history import FrameHistory
from broker.wire.message import Message

CLIENT: Final = 0
CHILD: Final = 1
"""``Sender.kind`` of clients, and of the brokers below."""


class Sender(Protocol):
    """The link a request came in by, as far as services see it."""

    name: str
    uuid: str
    kind: int
    """0 client, 1 child broker, 2 parent broker, 3 this broker itself."""
    rank: int
    cred: Credentials
    owner: bool
    busy: bool
    """Its outbox is above high water."""
    strict: bool
    """It asked for what its text says, also where deployed software does otherwise."""
    services: set[bytes]
    subscriptions: dict[bytes, int]


class Call(Protocol):
    """A call of the broker's own that is under way."""

    def cancel(self) -> None:
        """Want no more responses; a stream's provider is told with X.cancel."""


class TracedMessage(NamedTuple):
    """A message on its way through the broker."""

    prefix: str
    """``rx``: it was received from ``sender``, or a built-in service gets it. ``tx``: the other way round."""
    sender: Sender
    """The link it passed; the broker's own end for what services get and say."""
    message: Message
    """By now it may have been routed on: its type, topic, payload and errnum are as they were."""
    wall: float
    """When it passed: seconds since 1970."""
    now: float
    """The same by the monotonic clock."""


Watcher = Callable[[TracedMessage], None]
OnResponse = Callable[[Message], None]
OnEvent = Callable[[Message], None]


class Denial(NamedTuple):
    """A message that was refused before it reached the broker: what its journal says of it."""

    errnum: int
    topic: str
    kind: str
    """``request``, ``response`` or ``event``."""
    userid: int
    rolemask: int
    """As it would have been stamped; 0xFFFFFFFF and 0 are nobody."""
    claimed: int
    """The userid it came with; 0xFFFFFFFF is none."""
    transport: str
    session: str
    address: str
    """Its sender: a name that stays while the peer does, and where it came from."""
    left_out: int = 0
    """Refusals before this one that were too many to be told."""


class JournalControl(Protocol):
    """The broker's journal, as far as its service may ask of it."""

    def status(self) -> Mapping[str, Any]:
        """State, place and counts, JSON-ready."""

    async def start(self) -> None:
        """Record from now on; nothing when it does already.

        Raises:
            ConfigError: it cannot write; its errno says why.
        """

    async def stop(self, reason: str) -> None:
        """Write what is there, then record no more; nothing when it does not."""

    def denied(self, denial: Denial) -> None:
        """Record a message that somebody in front of the broker refused; nothing while it is off."""


class Topology(Protocol):
    """The shape of the tree."""

    def children(self, rank: int) -> Sequence[int]:
        """Ranks of the children of a rank."""

    def parent(self, rank: int) -> int:
        """Rank of the parent of a rank, which is one of this instance; -1 for the root."""

    def subtree(self, rank: int) -> Iterator[int]:
        """A rank and all below it."""


class Tree(Protocol):
    """This broker's place in the tree: how it and those below it are."""

    def subtree_status(self) -> str:
        """full, partial, degraded, lost or offline (this broker and everything below)."""

    def status_since(self) -> float:
        """Seconds since ``subtree_status`` last changed."""

    def child_health(self) -> Sequence[Mapping[str, Any]]:
        """Per child: rank, status, duration (seconds), torpid (bool) and, if there is one, error (text)."""

    def disconnect_child(self, rank: int, reason: str) -> int:
        """Tell the child subtree that holds a rank to leave, for a reason; returns an errno."""


class Lifecycle(Protocol):
    """Where this broker stands between start and goodbye."""

    state: str
    """``init``, ``quorum``, ``run``, ``cleanup`` ..."""
    watchers: list[Callable[[str], None]]
    """Called with each new state's name."""

    def in_state_s(self) -> float:
        """Seconds since the state began."""


class Tracing(Protocol):
    """Shows messages to one watcher each, instead of any before it; None: nobody looks on, which costs nothing.

    A watcher is called after the message has left, so that its own work is in no time it is told of.
    """

    def watch_links(self, watcher: Watcher | None, clients: bool) -> None:
        """Show what passes the links of the tree and, when True, those of clients."""

    def watch_services(self, watcher: Watcher | None) -> None:
        """Show what built-in services get and send."""


class Figures(Protocol):
    """The counts of this broker, and what each user holds; JSON-ready."""

    def traffic(self) -> Mapping[str, Any]:
        """Counts: {"rx": {"request", "response", "event", "control"}, "tx": {...}, "drops", "connects", ...}.

        ``rx`` came in, from links or from this broker's own services; ``tx`` was passed on or made here, an event once
        per receiver; ``connects`` are the clients that were attached so far.
        """

    def clear(self) -> None:
        """Start the counts again."""

    def links(self) -> Sequence[Mapping[str, Any]]:
        """Per attached link: name, uuid, kind (client, child, parent), userid, pid (or -1), services, pending (its own
        open calls), received, sent (messages), queued (messages in its outbox), and more.
        """

    def users(self) -> Mapping[str, Any]:
        """What the links of each user hold together, and what a guest may hold: see ``broker.users``."""

    def calls(self, errors: bool) -> Mapping[str, Any]:
        """Rate, errors and duration of the clients' calls by method, with the newest errors (True) or without: see
        ``broker.calls``.
        """

    def text(self) -> str:
        """All figures in the Prometheus text format."""


class Context(ABC):
    """The broker as its services see it; everything happens on its event loop.

    A task of one room of the broker is asked of that room; one that takes several rooms is a method here.

    Attributes:
        rank, size: of this broker, and of the instance.
        cred: what the broker's own messages carry.
        config: the configuration as ``config.get`` shows it: JSON-ready, without secrets. Deployed children read it,
            too, and refuse what they do not know inside tables of theirs: such a table (``access``) holds deployed
            names only (``allow-guest-user``), what is ours stands under ``headgate``.
        attributes: at start: name -> (value or a function giving it, flags). Flags: 1 never changes, so clients keep
            it; 2 ``attr.set`` may change it.
        topology, tree, lifecycle, tracing, figures: rooms of the broker.
        journal: None where none is configured.
        restoring: puts events of former processes into ``event_history``; None: nothing does.
    """

    rank: int
    size: int
    cred: Credentials
    config: Mapping[str, Any]
    attributes: Mapping[str, tuple[str | Callable[[], str], int]]
    topology: Topology
    tree: Tree
    lifecycle: Lifecycle
    tracing: Tracing
    figures: Figures
    journal: JournalControl | None
    restoring: asyncio.Task[None] | None

    @property
    @abstractmethod
    def uuid(self) -> str:
        """This incarnation's uuid (36 characters)."""

    @property
    @abstractmethod
    def event_history(self) -> FrameHistory | None:
        """The last events, at rank 0; None: none are kept."""

    # -- messages ------------------------------------------------------------------------------

    @abstractmethod
    def respond(self, request: Message, payload: bytes | None, errnum: int, always: bool) -> None:
        """Queue a response with the broker's credentials.

        Nothing is sent when NORESPONSE is set, unless ``always``: then it is sent with that flag cleared, as deployed
        brokers answer ``event.subscribe``.
        """

    @abstractmethod
    def record_refusal(self, request: Message, errnum: int) -> None:
        """Have the journal know that the sender of a delivered request may not ask for that; nothing is sent."""

    @abstractmethod
    def publish(self, message: Message) -> int:
        """Number and distribute an event; rank 0 only. Returns its sequence.

        Raises:
            ProtocolError: this is not rank 0.
            RpcError: EPROTO, the topic is too long; EMSGSIZE, a guest's event is.
        """

    @abstractmethod
    def call(
        self,
        topic: str,
        payload: bytes | None,
        on_response: OnResponse | None,
        *,
        nodeid: int,
        flags: int = 0,
    ) -> Call:
        """Send a request of the broker's own; ``on_response`` gets every response, None sets NORESPONSE."""

    @abstractmethod
    def on_event(self, prefix: str, handler: OnEvent) -> None:
        """Have ``handler`` called with every event under ``prefix`` that passes this broker, and is whose it says."""

    # -- links ---------------------------------------------------------------------------------

    @abstractmethod
    def sender_of(self, request: Message) -> Sender | None:
        """The link a delivered request came in by; None when it is gone."""

    @abstractmethod
    def subscribe(self, sender: Sender, prefix: bytes) -> int:
        """Subscribe a client to a prefix; returns an errno, 0 for done.

        Raises:
            RpcError: EAGAIN, its user has as many subscriptions as a user may have.
        """

    @abstractmethod
    def unsubscribe(self, sender: Sender, prefix: bytes) -> int:
        """Take one subscription of a client back; returns an errno."""

    @abstractmethod
    def add_service(self, sender: Sender, name: bytes) -> int:
        """Register a client as provider of a name; returns an errno.

        Raises:
            RpcError: EAGAIN, its user has as many services as a user may have.
        """

    @abstractmethod
    def remove_service(self, sender: Sender, name: bytes) -> int:
        """Take a registration back; calls that the client still owes stay open. Returns an errno."""

    @abstractmethod
    def on_provided(self, callback: Callable[[str, bool], None]) -> None:
        """Have one callback told the name of each service that a client begins (True) or ceases to provide."""

    @abstractmethod
    def on_unregistered(self, find: Callable[[str], str]) -> None:
        """Have one function say where the service of a topic is instead, for the text of an ENOSYS; "" for nothing."""

    @abstractmethod
    def disconnect_client(self, uuid: str, reason: str) -> int:
        """Close the link of the client with this uuid, for a reason; returns an errno."""

    # -- the tree ------------------------------------------------------------------------------

    @abstractmethod
    def on_tree_change(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called after each change of ``subtree_status`` or of a child's status or torpor."""

    # -- this process --------------------------------------------------------------------------

    @abstractmethod
    def apply_attribute(self, name: str, value: str) -> int:
        """Act on the new value that ``attr.set`` gives an attribute (flag 2); a nonzero errno refuses it."""

    @abstractmethod
    def leave(self, reason: str) -> int:
        """Drain and leave as at SIGTERM, once what runs now has been answered; returns an errno, ENOSYS where the
        program that runs the broker has not said how.
        """

    @abstractmethod
    async def reload(self) -> None:
        """Read the configuration again, as at SIGHUP.

        Raises:
            RpcError: ENOSYS, nobody said where from.
            ConfigError: what is wrong with it; nothing has changed.
        """

    @abstractmethod
    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task that ends with the broker at the latest."""
