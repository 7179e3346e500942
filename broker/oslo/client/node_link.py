"""One socket to one node and pipeline: what waits for it, whether it moves, whether it is full.

The sockets are IMMEDIATE: libzmq takes messages only while the node is connected, so that whatever it has not taken
can be taken back and given to another one. A link that holds messages and has moved none of them for ``down_s`` is
**down**: it is passed over until it takes something again. A link that holds as many as it may is **full**: callers
wait.

What libzmq has taken is lost with its connection. So when a connection ends, whoever uses the link says what has to be
sent again (``LinkHandlers.resend``): it goes first, with ``Flag.REPEATED``, when the node is back.
"""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import zmq

from broker.oslo.client.repeats import Sized
from broker.oslo.contract import Address
from broker.oslo.frames import NO_ID
from broker.oslo.names import Pipeline
from broker.oslo.reactor import Socket, Timer
from broker.oslo.reactor.monitor import SocketEvents
from broker.oslo.reactor.naming import Connection, connect
from broker.oslo.reactor.socket import FLUSH_MSGS, Frames

if TYPE_CHECKING:
    from broker.oslo.client.node_links import NodeLinks

DOWN_S: Final = 1.0
"""Longer than a connection takes to be made; what waits for a node for so long is given to another one."""
NOTIFY_DOWN_S: Final = 6.0
"""The same for notifications, which have nowhere else to go: a proxy reads none for 5 s while a slow listener moves."""
LOST_S: Final = 0.02
"""Between the word that a connection has ended and the next message: libzmq goes on taking some for it meanwhile."""
_EVENTS: Final = int(zmq.EVENTS)
_POLLOUT: Final = int(zmq.POLLOUT)


Parcel = TypeVar("Parcel", bound=Sized)


class Cast:
    """A request for one server that wants no answer.

    Attributes:
        listener: who was chosen.
        id: of the message, from the first time that it is sent.
        repeated: its connection ended after it was sent.
    """

    __slots__ = ("address", "body", "id", "listener", "repeated", "size")

    def __init__(self, address: Address, body: bytes) -> None:
        self.address = address
        self.body = body
        self.listener = ""
        self.id = NO_ID
        self.repeated = False
        self.size = len(body)


class NodeLink(Socket, Generic[Parcel]):
    """A socket to one node; its outbox holds parcels, which become frames when libzmq takes them.

    Attributes:
        node, pipeline, endpoint: whose it is.
        node_key: CURVE key that the node has to have; "" plaintext.
        down, full: see the module.
        down_s: how long it may move nothing.
        connection: where it is connected to.
        filters: subscriptions of the node, for sockets that publish.
    """

    def __init__(
        self,
        links: NodeLinks[Parcel],
        handlers: LinkHandlers[Parcel],
        node: str,
        endpoint: str,
        sock: zmq.Socket[bytes],
        key: str = "",
        node_key: str = "",
    ) -> None:
        self.node = node
        self.node_key = node_key
        self.pipeline = handlers.pipeline
        self.endpoint = endpoint
        self.down = self.full = False
        self.down_s = NOTIFY_DOWN_S if handlers.pipeline is Pipeline.NOTIFY else DOWN_S
        self.filters: set[bytes] = set()
        self._links = links
        self._pack, self._posted, self._stalled = handlers.pack, handlers.posted, handlers.stalled
        self._resend = handlers.resend
        self._interrupted: Timer | None = None
        self._parcels: deque[Parcel] = deque()
        self._parcel_bytes = 0
        self._moved_s = 0.0
        receive = handlers.received
        take = None if receive is None else (lambda frames, _origin: receive(self, frames))
        super().__init__(links.reactor, sock, take)
        self._events: SocketEvents | None = None
        try:
            if not key:  # with one the connection watches the socket itself
                self._events = SocketEvents(links.reactor, sock, zmq.EVENT_DISCONNECTED, self._disconnected)
            self.connection: Connection = connect(links.reactor, self, endpoint, key, self._disconnected)
        except BaseException:
            self.close()
            raise

    @property
    def away(self) -> bool:
        """Nothing can be sent to it now: it is not connected, as far as we see."""
        self._reactor.check_after_turn(self)
        return not int(self.sock.get(_EVENTS)) & _POLLOUT

    @property
    def waiting(self) -> int:
        """Messages in the outbox."""
        return len(self._parcels)

    @property
    def draining(self) -> bool:
        """Whether what waits for it may still leave."""
        return self.waiting > 0 and not self.down

    def submit(self, parcel: Parcel) -> None:
        """Send it, or let it wait; whoever made it has looked at ``full`` before."""
        if self.closed:
            return
        if not self._parcels:
            self._reactor.check_after_turn(self)
            if self._post(parcel):
                return
            self._moved_s = self._reactor.now()
            self._links.watch(self)
        self._parcels.append(parcel)
        self._parcel_bytes += parcel.size
        self._try_later()
        self._fill()

    def _fill(self) -> None:
        if not self.full and self._beyond(1.0):
            self.full = True
            self._links.note_full(self)

    def take_parcels(self) -> list[Parcel]:
        """Empty the outbox: what libzmq never had, oldest first."""
        parcels = list(self._parcels)
        self._parcels.clear()
        self._parcel_bytes = 0
        self._relieve()
        return parcels

    def _beyond(self, part: float) -> bool:
        settings = self._links.settings
        return (
            len(self._parcels) >= part * settings.outbox_msgs
            or self._parcel_bytes >= part * settings.outbox_bytes
        )

    def _post(self, parcel: Parcel) -> bool:
        """False: libzmq has no room for it, or no connection."""
        if self._interrupted is not None:
            return False
        frames = self._pack(parcel, self)
        if frames is None:
            return True
        if not self._write(frames):
            return False
        if self._posted is not None:
            self._posted(parcel, self)
        if self.down:
            self.down = False
            self._links.note_up(self)
        return True

    def _blocked(self) -> bool:
        return bool(self._parcels)

    def _flush(self) -> None:
        """Send what waits, up to a budget."""
        parcels = self._parcels
        moved = 0
        while parcels and moved < FLUSH_MSGS:
            if not self._post(parcels[0]):
                self._try_later()
                break
            self._parcel_bytes -= parcels.popleft().size
            moved += 1
        else:
            if parcels:
                self._reactor.check_after_turn(self)  # the budget is used up
        if moved:
            self._moved_s = self._reactor.now()
            self._relieve()

    def _relieve(self) -> None:
        if self.full and not self._beyond(0.5):
            self.full = False
            self._links.note_room(self)

    # ------------------------------------------------------------ connections that end

    def _disconnected(self, _event: int = 0, _value: int = 0) -> None:
        if self._interrupted is None and not self.closed:
            self._interrupted = self._reactor.call_later(LOST_S, self._resend_lost)

    def _resend_lost(self) -> None:
        """Put what may be lost before what was not sent yet."""
        self._interrupted = None
        if self.closed:
            return
        again = self._resend(self)
        if again:
            if not self._parcels:
                self._moved_s = self._reactor.now()
                self._links.watch(self)
            self._parcels.extendleft(reversed(again))
            self._parcel_bytes += sum(parcel.size for parcel in again)
        if self._parcels:
            self._try_later()

    def close(self, linger_ms: int = 0) -> None:
        """See ``Socket.close``."""
        if self._interrupted is not None:
            self._interrupted.cancel()
        if self._events is not None:
            self._events.close()
        super().close(linger_ms)

    # ------------------------------------------------------------ down

    def check(self, now: float, absent: float) -> bool:
        """Look whether it is down, or up again. False: it need not be looked at for now.

        Args:
            now: by the reactor's clock.
            absent: seconds in which this process was stopped: the node is not to blame for them.
        """
        if self.closed:
            return False
        self._moved_s = min(self._moved_s + absent, now)
        if self.down:
            self._reactor.check_after_turn(self)  # asking may take in the news of a message
            if not self._parcels and int(self.sock.get(_EVENTS)) & _POLLOUT:
                self.down = False
                self._links.note_up(self)
        elif self._parcels and now - self._moved_s > self.down_s:
            self.down = True
            self._links.note_down(self)
            self._stalled(self)
        return self.down or bool(self._parcels)


class LinkHandlers(NamedTuple, Generic[Parcel]):
    """What one pipeline's links do.

    Attributes:
        pack: the frames of a parcel; None: it is not wanted any more.
        posted: libzmq has it; None: nobody wants to know.
        received: a message came; None: the socket does not read.
        stalled: the link is down, or its node is gone: find another one for its parcels.
        resend: its connection has ended: what was sent and may be lost, marked as repeated, oldest first.
        in_use: whether answers may still come over a link whose node is gone.
        link_class: ``NodeLink``, or what a pipeline makes of it.
    """

    pipeline: Pipeline
    pack: Callable[[Parcel, NodeLink[Parcel]], Frames | None]
    posted: Callable[[Parcel, NodeLink[Parcel]], None] | None
    received: Callable[[NodeLink[Parcel], list[bytes]], None] | None
    stalled: Callable[[NodeLink[Parcel]], None]
    resend: Callable[[NodeLink[Parcel]], list[Parcel]]
    in_use: Callable[[NodeLink[Parcel]], bool] | None = None
    link_class: Any = NodeLink
