"""What a built-in service may ask of the broker that runs it.

Services see a Context and nothing else of the broker: no transport, no router. ``broker.node.context`` fills it with
what its rooms do; tests have an object with the same names.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from broker.identity import Credentials
from broker.tasks import Tasks
from broker.wire.message import Message
from broker.wire.topic import is_reserved

log = logging.getLogger("headgate")

LEVELS: Final = (50, 50, 50, 40, 30, 25, 20, 10)
"""RFC 5424 severity -> level of the standard library's logging."""


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
    """Whose link it passed; the broker's own end for what services get and say."""
    message: Message
    """By now it may have been routed on: its type, topic, payload and errnum are as they were."""
    wall: float
    """When it passed: seconds since 1970."""
    now: float
    """The same by the monotonic clock."""


Watcher = Callable[[TracedMessage], None]
OnResponse = Callable[[Message], None]
OnEvent = Callable[[Message], None]


class MakeCall(Protocol):
    """Sends a request of the broker's own."""

    def __call__(
        self,
        topic: str,
        payload: bytes | None,
        on_response: OnResponse | None,
        *,
        nodeid: int,
        flags: int = 0,
    ) -> Call:
        """``on_response`` gets every response; None sets NORESPONSE."""


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
    """Whose it was: a name that stays while the peer does, and where it came from."""
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


@dataclass(kw_only=True, eq=False)
class Context:
    """The broker as its services see it; everything happens on its event loop."""

    rank: int
    size: int
    owner: int
    """Uid of the instance owner."""
    cred: Credentials
    """What the broker's own messages carry."""
    uuid: Callable[[], str]
    """This incarnation's uuid (36 characters)."""
    config: Mapping[str, Any]
    """The configuration as ``config.get`` shows it: JSON-ready, without secrets.

    Deployed children read it, too, and refuse what they do not know inside tables of theirs: such a table (``access``)
    holds deployed names only (``allow-guest-user``), what is ours stands under ``headgate``.
    """
    attributes: Mapping[str, tuple[str | Callable[[], str], int]]
    """Attributes at start: name -> (value or a function giving it, flags).

    Flags: 1 never changes, so clients keep it; 2 ``attr.set`` may change it.
    """
    apply_attribute: Callable[[str, str], int]
    """``attr.set`` gave a name (flag 2) a new value: act on it; a nonzero errno refuses it."""
    journal: JournalControl | None
    """None where none is configured."""
    on_leave: Callable[[str], None] | None = None
    """Drains and leaves, as at SIGTERM, for a reason; None: the program that runs the broker did not say how."""

    on_reload: Callable[[Callable[[str], None]], None] | None = None
    """Reads the configuration again, as at SIGHUP, and calls back with what is wrong with it, "" when it was taken.
    None: nobody said where from."""

    # -- messages

    respond: Callable[[Message, bytes | None, int, bool], None]
    """``respond(request, payload, errnum, always)`` queues a response with the broker's credentials.

    Nothing is sent when NORESPONSE is set, unless ``always``: then it is sent with that flag cleared, as deployed
    brokers answer ``event.subscribe``.
    """
    refused: Callable[[Message, int], None]
    """A delivered request's sender may not ask for that, says the errno: for the journal, nothing is sent."""
    publish: Callable[[Message], int]
    """Number and distribute an event; rank 0 only. Returns its sequence.

    Raises ProtocolError: this is not rank 0. RpcError: EPROTO, the topic is too long; EMSGSIZE, a guest's event is.
    """
    call: MakeCall

    # -- links

    sender_of: Callable[[Message], Sender | None]
    """The link a delivered request came in by; None when it is gone."""
    subscribe: Callable[[Sender, bytes], int]
    """Subscribe a client to a prefix; returns an errno, 0 for done."""
    unsubscribe: Callable[[Sender, bytes], int]
    """Take one subscription of a client back; returns an errno."""
    add_service: Callable[[Sender, bytes], int]
    """Register a client as provider of a name; returns an errno."""
    remove_service: Callable[[Sender, bytes], int]
    """Take a registration back; returns an errno."""
    on_provided: Callable[[Callable[[str, bool], None]], None]
    """Have a callback told the name of each service that a client begins (True) or ceases to provide."""
    on_unregistered: Callable[[Callable[[str], str]], None]
    """Have a function say where the service of a topic is instead, for the text of an ENOSYS; "" for nothing."""
    watch_links: Callable[[Watcher | None, bool], None]
    """Have a watcher, instead of any before it, told of what passes the links of the tree and, when True, of clients;
    None: nobody looks on, which costs nothing.

    It is called after the message has left, so that its own work is in no time it is told of.
    """
    watch_services: Callable[[Watcher | None], None]
    """The same of the messages that built-in services get and send."""
    disconnect_client: Callable[[str, str], int]
    """Close the link of the client with this uuid, for a reason; returns an errno."""
    links: Callable[[], Sequence[Mapping[str, Any]]]
    """Per attached link, JSON-ready: name, uuid, kind (client, child, parent), userid, pid (or -1), services,
    pending (its own open calls), received, sent (messages), queued (messages in its outbox), and more.
    """

    # -- the tree

    tree_children: Callable[[int], Sequence[int]]
    """Ranks of the children of a rank."""
    tree_parent: Callable[[int], int]
    """Rank of the parent of a rank, which is one of this instance; -1 for the root."""
    subtree_status: Callable[[], str]
    """full, partial, degraded, lost or offline (this broker and everything below)."""
    status_since: Callable[[], float]
    """Seconds since ``subtree_status`` last changed."""
    child_health: Callable[[], Sequence[Mapping[str, Any]]]
    """Per child: rank, status, duration (seconds), torpid (bool) and, if there is one, error (text)."""
    disconnect_child: Callable[[int, str], int]
    """Tell the child subtree that holds a rank to leave, for a reason; returns an errno."""
    state: Callable[[], tuple[str, float]]
    """Name of the lifecycle state (``init``, ``quorum``, ``run``, ``cleanup`` ...), seconds since it began."""
    on_state: Callable[[Callable[[str], None]], None]
    """Have a callback called with each new state's name."""

    # -- figures

    traffic: Callable[[], Mapping[str, Any]]
    """Counts: {"rx": {"request", "response", "event", "control"}, "tx": {...}, "drops", "connects", ...}.

    ``rx`` came in, from links or from this broker's own services; ``tx`` was passed on or made here, an event once per
    receiver; ``connects`` are the clients that were attached so far.
    """
    users: Callable[[], Mapping[str, Any]]
    """What the links of each user hold together, and what a guest may hold: see ``broker.users``."""
    call_stats: Callable[[bool], Mapping[str, Any]]
    """Rate, errors and duration of the clients' calls by method, with the newest errors (True) or without: see
    ``broker.calls``.
    """
    metrics: Callable[[], str]
    """All figures in the Prometheus text format."""
    clear_traffic: Callable[[], None]
    """Start the counts again."""

    subscribe_own: Callable[[bytes], object]
    """Have events under a prefix handed to ``published``."""
    _handlers: list[tuple[bytes, OnEvent]] = field(default_factory=list, init=False)
    _tree_watchers: list[Callable[[], None]] = field(default_factory=list, init=False)
    _tasks: Tasks = field(default_factory=Tasks, init=False)

    # -- time, tasks and the log

    def now(self) -> float:
        """Monotonic seconds."""
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        """Wall clock, seconds since 1970."""
        return time.time()

    def after(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call ``callback`` once after ``seconds``."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task that ends with the broker at the latest."""
        return self._tasks.spawn(name, work)

    async def stop(self) -> None:
        """Cancel every task and wait for it."""
        await self._tasks.stop()

    def log(self, severity: int, text: str) -> None:
        """Log a line of the broker's own (RFC 5424 severity, 0 emergency to 7 debug)."""
        log.log(LEVELS[severity & 7], "%s", text)

    def leave(self, reason: str) -> int:
        """Drain and leave once what runs now has been answered; returns an errno, ENOSYS without ``on_leave``."""
        if self.on_leave is None:
            return errno.ENOSYS
        asyncio.get_running_loop().call_soon(self.on_leave, reason)
        return 0

    # -- what the broker tells

    def on_event(self, prefix: str, handler: OnEvent) -> None:
        """Have ``handler`` called with every event under ``prefix`` that passes this broker, and is whose it says."""
        self._handlers.append((prefix.encode(), handler))
        self.subscribe_own(prefix.encode())

    def published(self, message: Message) -> None:
        """For the broker: an event that somebody here has subscribed to passes."""
        topic = (message.topic or "").encode()
        if is_reserved(topic, message.rolemask):
            return  # another instance's broker let it pass
        for prefix, handler in self._handlers:
            if topic.startswith(prefix):
                handler(message)

    def on_tree_change(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called after each change of ``subtree_status`` or of a child's status or torpor."""
        self._tree_watchers.append(callback)

    def tree_changed(self) -> None:
        """For the overlay: something in our part of the tree changed."""
        for callback in list(self._tree_watchers):
            callback()
