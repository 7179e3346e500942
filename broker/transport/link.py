"""The contract every transport fulfils.

A **Link** is an ordered, reliable channel of messages to one peer: what ``send`` accepted arrives in that order,
part boundaries kept, or the link ends. It ends in exactly one of four ways, told once through
``Receiver.link_ended``: LinkClosed (we closed it), LinkEnded (the peer did), LinkBroken (an outside cause),
LinkRefused (at connect). ``send`` never waits and never raises: it queues, and whoever sent calls ``flush`` (or
lets the ``Flusher`` do it) once per batch.

Concurrency: everything here runs on one event loop; nothing is safe to call from another thread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from broker.errors import ConfigError, LinkBroken, LinkError, Untranslatable
from broker.identity import ClientKey, Key, PeerInfo
from broker.schemes import Capabilities
from broker.transport.budget import Budget
from broker.transport.outbox import Outbox, OutboxLimits
from broker.wire.dialects import answer_refused, said_instead
from broker.wire.framing import OWNER_MAX_BYTES
from broker.wire.message import Message

log = logging.getLogger("headgate")


class Receiver(Protocol):
    """Gets the messages and the end of a link; its methods run on the event loop and must not block."""

    def received(self, link: Link, messages: list[Message]) -> None:
        """The messages one read produced, in order; never empty."""

    def link_ended(self, link: Link, error: LinkError) -> None:
        """The link is gone and why; called exactly once, after the last ``received``."""

    def link_choked(self, link: Link, choked: bool) -> None:
        """The outbox rose above high water (True) or fell below low water again (False)."""


class EventReplay(Protocol):
    """The far end's conversation beside messages: it numbers events, keeps them, and sends them again.

    Attributes:
        resumed: what it answered to a position; empty where none was given.
        welcome: its first words, with ``epoch``, ``sequence`` and ``resume`` where it has them.
        on_object: hears each object that it says, in the order of the messages.
    """

    resumed: dict[str, Any]
    welcome: dict[str, Any]
    on_object: Callable[[dict[str, Any]], None]

    def resume(self, **position: Any) -> None:
        """Ask for what followed this position, and for what comes; before the first subscription of a link."""


class Flusher:
    """Collects the links that have something to send and flushes each once.

    Inside a ``batch`` nothing is written until the batch ends; outside, one flush per loop tick is scheduled.

    Attributes:
        before: called before anything is written, where somebody has to know it first.
        read_bytes: what one read of a stream may take while its owner has much to do; 0: what its buffer holds.
    """

    __slots__ = ("_handle", "_loop", "batch", "before", "read_bytes", "touched")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop
        self._handle: asyncio.Handle | None = None
        self.touched: list[Link] = []
        self.batch: bool = False
        self.before: Callable[[], None] | None = None
        self.read_bytes: int = 0

    def touch(self, link: Link) -> None:
        """Note that ``link`` has something fresh in its outbox."""
        self.touched.append(link)
        if not self.batch and self._handle is None:
            loop = self._loop = self._loop or asyncio.get_running_loop()
            self._handle = loop.call_soon(self.flush)

    def flush(self) -> None:
        """Flush every touched link once; what flushing touches again waits for the next round.

        A link that cannot be flushed ends; the others are flushed all the same.
        """
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        touched = self.touched
        if touched:
            if self.before is not None:
                self.before()
            self.touched = []
            for link in touched:
                try:
                    link.flush()
                except Exception as error:
                    _cannot_send(link, error)

    def flush_now(self, link: Link) -> None:
        """Flush ``link``, within a batch, too; it ends if it cannot be flushed."""
        try:
            link.flush()
        except Exception as error:
            _cannot_send(link, error)


def _cannot_send(link: Link, error: Exception) -> None:
    link.abort(LinkBroken(f"{link.peer.address}: cannot send: {error!r}"))


class DescriptorReserve(NamedTuple):
    """Descriptors that no guest and no stranger gets: the last ones are for the owner, the tree and the broker itself.

    A new descriptor gets the lowest number that is free: one with a high number is one of the last.

    Attributes:
        first: the lowest number that is kept.
        strangers: how many of those connections may have whose peer has not said yet who it is.
    """

    first: int = 1 << 31
    strangers: int = 0

    def has(self, fd: int) -> bool:
        """Whether ``fd`` is one of those that are kept."""
        return fd >= self.first


@dataclass(slots=True)
class Options:
    """The options of a listener or dialer; every transport takes those that concern it.

    ``admit(peer) -> errno`` decides about a peer at connect; 0 accepts it (RFC 12).
    ``max_bytes(peer) -> bytes`` is the largest frame it may send.
    """

    flusher: Flusher = field(default_factory=Flusher)
    budget: Budget = field(default_factory=Budget)
    limits: OutboxLimits = field(default_factory=OutboxLimits)
    admit: Callable[[PeerInfo], int] = lambda _peer: 0
    max_bytes: Callable[[PeerInfo], int] = lambda _peer: OWNER_MAX_BYTES
    dialect: str = "flux1"
    """``flux1`` (deployed), ``cmb1rev`` or ``cmb1``: bytes cannot tell, so a setting does."""
    strict_rfc3: bool = False
    """Write the text's form instead of the deployed one (NUL on topic and routes, FF EE 00 12 ...)."""
    insecure: bool = False
    """Allow plaintext off loopback."""
    connect_timeout_s: float = 30.0
    waits_for_peer: bool = True
    """Dial again until ``connect_timeout_s`` where nobody listens yet; False is for a person, who is told at once."""
    failing: Callable[[LinkError], object] = lambda _error: None
    """Told of each failed attempt of a ``dial`` that dials again."""
    keys: Mapping[str, Key] = field(default_factory=dict)
    """The keys that a listener lets in, for transports that prove keys; looked up at each handshake: the mapping
    changes."""
    tree: bool = False
    """These are links between brokers. Only here may a transport give a peer a ``rank``."""
    settings: Any = None
    """The transport's own options, of the type ``Capabilities.options``; None: its defaults."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Agreements of brokers about built-in transports (``curve``: certificates; ``batch``: batching)."""
    reserve: DescriptorReserve = field(default_factory=DescriptorReserve)
    """Descriptors that are not for everybody."""
    has_reserve: Callable[[PeerInfo], bool] = lambda _peer: False
    """Whether a peer may have one of them."""
    refused: Callable[[PeerInfo, int, str], object] = lambda _peer, _errnum, _reason: None
    """Told of a peer that the transport itself turned away, with errno and reason, such as one with an unknown key. Not
    called for refusals by ``admit``."""

    def bearer(self, address: str, key: str) -> PeerInfo | None:
        """The peer that has proved ``key``; None for a key that is not known (any more)."""
        known = self.keys.get(key)
        if isinstance(known, ClientKey):
            return PeerInfo(address, key=key, user=known.user)
        return None if known is None else PeerInfo(address, key=key, rank=known.rank)

    def refuses_reserve(self, peer: PeerInfo, fd: int) -> bool:
        """Tell ``refused``, and return True, when ``fd`` is one of the descriptors in reserve and not for ``peer``."""
        if not self.reserve.has(fd) or self.has_reserve(peer):
            return False
        self.refused(peer, errno.EMFILE, "no descriptor is left for guests")
        return True


class Link(ABC):
    """One ordered channel of messages to one peer; see the rules at the top of this file.

    Attributes:
        peer: what the transport knows about the other side.
        outbox: what waits to be sent; its ``choked`` tells that the peer is slow.
        ended: None while the link lives, then the LinkError that ended it.
        data: a place for the owner's own record of this link.
        replay: what the far end says beside messages, and its replay of events; None: it has neither.
        untranslatable: messages of either direction that have no form in the link's dialect, or in ours.
    """

    __slots__ = ("__weakref__", "data", "ended", "flusher", "outbox", "peer", "receiver", "untranslatable")

    replay: EventReplay | None = None

    def __init__(self, peer: PeerInfo, options: Options) -> None:
        self.peer = peer
        self.flusher = options.flusher
        self.outbox: Outbox[Any] = Outbox(self, options.limits, options.budget)
        self.receiver: Receiver | None = None
        self.ended: LinkError | None = None
        self.data: Any = None
        self.untranslatable = 0

    def start(self, receiver: Receiver) -> None:
        """Begin to deliver to ``receiver``; called once."""
        self.receiver = receiver
        self.resume()

    @abstractmethod
    def send(self, message: Message) -> None:
        """Queue ``message``; never waits, never raises. On an ended link it is dropped and counted."""

    @abstractmethod
    def flush(self) -> None:
        """Hand the queue to the operating system as far as it takes it."""

    @abstractmethod
    def pause(self) -> None:
        """Stop reading; the peer will feel it.

        When the peer leaves meanwhile, what it sent before is delivered, and then the end is told: at once, which ends
        the pause, or when the link is read again, as the transport can.
        """

    @abstractmethod
    def resume(self) -> None:
        """Read again."""

    @abstractmethod
    def close(self, reason: str = "") -> None:
        """Send what is queued as far as the peer takes it without waiting, then end with LinkClosed."""

    @abstractmethod
    def abort(self, error: LinkError) -> None:
        """End at once with ``error``; what is queued is discarded and counted."""

    def enable_batch(self) -> None:  # noqa: B027 - a transport that has no such form needs nothing
        """The peer takes many messages in one from now on; nothing where a transport has no such form."""

    def choked(self, choked: bool) -> None:
        """The outbox crossed a water mark: tell the receiver."""
        if self.receiver is not None and self.ended is None:
            self.receiver.link_choked(self, choked)

    def refuse(self, message: Message, error: Untranslatable) -> None:
        """For transports: ``message`` has no form in this link's dialect and cannot be sent.

        Nobody is left waiting: a request is answered at the next tick, as if the peer had; a response becomes an
        error that the peer can read. Anything else is counted.
        """
        self.dropped(error)
        instead = said_instead(message, error)
        if instead is not None:
            self.send(instead)
        answer = answer_refused(message, error)
        if answer is not None:
            asyncio.get_running_loop().call_soon(self._answered, answer)

    def dropped(self, error: Untranslatable) -> None:
        """For transports: count a message that could not be carried; the first is logged."""
        self.untranslatable += 1
        if self.untranslatable == 1:
            log.warning("%s: refused (later ones are only counted): %s", self.peer.address, error)

    def _answered(self, answer: Message) -> None:
        if self.receiver is not None and self.ended is None:
            self.receiver.received(self, [answer])

    def finish(self, error: LinkError) -> None:
        """For transports: record the end and tell the receiver, once."""
        if self.ended is None:
            self.ended = error
            self.outbox.discard()
            receiver, self.receiver = self.receiver, None  # which has this link: a cycle else
            if receiver is not None:
                receiver.link_ended(self, error)


Accept = Callable[[Link], None]
"""Called by a listener with each link it accepted, before the link is started."""


class Listener(ABC):
    """Accepts links at one address.

    Attributes:
        address: where it listens, as bound.
        contact_address: what a peer dials: the same with wildcards and port 0 replaced.
    """

    address: str
    contact_address: str

    def renew(self, extra: Mapping[str, Any]) -> Listener:
        """Take new connections with other ``Options.extra``, such as a new certificate, at the same address.

        Links that exist stay. The listener that is returned is to be used, and stopped, in place of this one.

        Raises:
            ConfigError: this transport cannot; everything is as before.
        """
        if not extra:  # no file of its own to read again
            return self
        raise ConfigError(f"{self.address}: this transport has nothing to renew", errno.EOPNOTSUPP)

    @abstractmethod
    async def stop(self) -> None:
        """Accept no more; links that exist stay."""


class Transport(Protocol):
    """The object that an entry point of group ``headgate.transports`` names: listen and dial for one or more
    schemes.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The abilities of the transport."""

    async def listen(self, uri: str, accept: Accept, options: Options) -> Listener:
        """Listen at ``uri``.

        Raises:
            ConfigError: the address cannot be used (bad form, in use, no permission, plaintext off loopback).
        """

    async def dial(self, uri: str, options: Options) -> Link:
        """Connect to ``uri``; returns once the peer accepted.

        Raises:
            LinkRefused: the peer said no. LinkBroken: nobody there within ``connect_timeout_s``.
        """
