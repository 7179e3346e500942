"""The broker as its services see it: ``services.context.Context``, implemented over the rooms of this node."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.errors import ProtocolError, RpcError
from broker.identity import Credentials
from broker.node import figures
from broker.node.calls import OwnCall
from broker.node.tracing import Tracing
from broker.routing.port import CLIENT, Port
from broker.routing.recording import record_refused
from broker.services.context import JournalControl, Sender, Watcher
from broker.wire.message import NORESPONSE, Message, event, response

if TYPE_CHECKING:
    from broker.node.broker import Broker
    from broker.node.lifecycle import Lifecycle
    from broker.node.overlay.overlay import Overlay

log = logging.getLogger("headgate")
_LEVELS = (50, 50, 50, 40, 30, 25, 20, 10)
"""RFC 5424 severity -> level of the standard library's logging."""


class BrokerContext:
    """One broker's face towards its services; see the protocol for what each member means."""

    def __init__(
        self,
        broker: Broker,
        overlay: Overlay,
        lifecycle: Lifecycle,
        owner: int,
        config: Mapping[str, Any],
        attributes: Mapping[str, tuple[str | Callable[[], str], int]],
    ) -> None:
        self._broker = broker
        self._overlay = overlay
        self._lifecycle = lifecycle
        self._config = config
        self._attributes = attributes
        self._handlers: list[tuple[bytes, Callable[[Message], None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._tracing = Tracing(broker)
        self.tree_watchers: list[Callable[[], None]] = []
        self.render_metrics: Callable[[], str] = str
        self.apply: Callable[[str, str], int] = _keep
        self.capture: JournalControl | None = None
        self.on_leave: Callable[[str], None] | None = None
        self.rank: int = broker.router.rank
        self.size: int = broker.router.topology.size
        self.owner: int = owner
        broker.observe = self._observe

    @property
    def uuid(self) -> str:
        """This incarnation's uuid."""
        return self._broker.router.uuid

    def now(self) -> float:
        """Monotonic seconds."""
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        """Wall clock, seconds since 1970."""
        return time.time()

    # -- messages ------------------------------------------------------------------------------

    def respond(
        self, request: Message, payload: bytes | None = None, errnum: int = 0, *, always: bool = False
    ) -> None:
        """Queue a response; ``always`` sends it even when NORESPONSE is set, with that flag cleared."""
        unwanted = request.flags & NORESPONSE
        if always or not unwanted:
            cred = self._broker.own.cred
            answer = response(request, payload, errnum=errnum, userid=cred.userid, rolemask=cred.rolemask)
            if unwanted:
                answer.set_flags(answer.flags & ~NORESPONSE)
            self._broker.respond(answer)

    def refused(self, request: Message, errnum: int) -> None:
        """For the journal: a request's sender may not ask for that."""
        record_refused(self._broker.router, request, errnum)

    def publish(
        self, topic: str, payload: bytes | None = None, *, flags: int = 0, cred: Credentials | None = None
    ) -> int:
        """Number and distribute an event."""
        if self.rank != 0:
            raise ProtocolError("events are published by rank 0 only")
        topic_max = self._broker.router.topic_max_bytes
        who = cred or self._broker.own.cred
        events = self._broker.router.events
        name = topic.encode("utf-8", "surrogateescape")
        error = None
        if len(name) > topic_max:
            error = RpcError(errno.EPROTO, f"topic above {topic_max} bytes")
        elif payload is not None and not who.owner and len(payload) > events.guest_max:
            text = f"an event of {len(payload)} bytes: limits.guest_event_bytes are {events.guest_max}"
            error = RpcError(errno.EMSGSIZE, text)
        if error is not None:
            events.stats.refused(name, error.errno, str(error), who.userid)
            raise error
        message = event(topic, payload, flags=flags, userid=who.userid, rolemask=who.rolemask)
        return self._broker.publish(message)

    def call(
        self,
        topic: str,
        payload: bytes | None,
        on_response: Callable[[Message], None] | None,
        *,
        nodeid: int,
        flags: int = 0,
    ) -> OwnCall:
        """Send a request of the broker's own."""
        return self._broker.calls.call(topic, payload, on_response, nodeid=nodeid, flags=flags)

    # -- senders -------------------------------------------------------------------------------

    def sender_of(self, request: Message) -> Sender | None:
        """The link a delivered request came in by."""
        return self._broker.router.port_of(request)

    def subscribe(self, sender: Sender, prefix: bytes) -> int:
        """Subscribe a client."""
        port, router = _port(sender), self._broker.router
        if prefix not in port.subscriptions:
            router.users.refuse_more(port.user, "subscriptions")
        return router.events.subscribe(port, prefix)

    def unsubscribe(self, sender: Sender, prefix: bytes) -> int:
        """Take one subscription of a client back."""
        return self._broker.router.events.unsubscribe(_port(sender), prefix)

    def add_service(self, sender: Sender, name: bytes) -> int:
        """Register a client as provider; a paused caller that becomes one is read again."""
        port = _port(sender)
        self._broker.router.users.refuse_more(port.user, "services")
        errnum = self._broker.router.services.add(name, port)
        if not errnum:
            self._broker.router.invalidate()
            self._broker.pressure.became_provider(port)
        return errnum

    def remove_service(self, sender: Sender, name: bytes) -> int:
        """Take a registration back; calls it still owes stay open."""
        errnum = self._broker.router.services.remove(name, _port(sender))
        if not errnum:
            self._broker.router.invalidate()
        return errnum

    def on_event(self, prefix: str, handler: Callable[[Message], None]) -> None:
        """Have ``handler`` called with every event under ``prefix``."""
        self._handlers.append((prefix.encode(), handler))
        self._broker.router.events.subscribe(self._broker.own, prefix.encode())

    def on_provided(self, callback: Callable[[str, bool], None]) -> None:
        """Have ``callback`` told which services clients begin and cease to provide."""
        self._broker.router.services.on_client = callback

    def on_unregistered(self, find: Callable[[str], str]) -> None:
        """Have ``find`` say where a service is instead."""
        self._broker.router.elsewhere = find

    def _observe(self, message: Message) -> None:
        topic = (message.topic or "").encode()
        for prefix, handler in self._handlers:
            if topic.startswith(prefix):
                handler(message)

    def watch_links(self, watcher: Watcher | None, *, clients: bool = False) -> None:
        """Have ``watcher`` told of what passes the links of the tree, and those of clients, or no more."""
        self._tracing.watch_links(watcher, clients)

    def watch_services(self, watcher: Watcher | None) -> None:
        """Have ``watcher`` told of what built-in services get and say, or no more."""
        self._tracing.watch_services(watcher)

    # -- work ----------------------------------------------------------------------------------

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` as a task that ends with the broker at the latest."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("task %s failed", task.get_name(), exc_info=task.exception())

    async def stop(self) -> None:
        """Cancel every task and wait for it."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def after(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call ``callback`` once after ``seconds``."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    def log(self, severity: int, text: str) -> None:
        """Log a line of the broker's own."""
        log.log(_LEVELS[severity & 7], "%s", text)

    # -- views ---------------------------------------------------------------------------------

    def config(self) -> Mapping[str, Any]:
        """The configuration, JSON-ready."""
        return self._config

    def reconfigured(self, config: Mapping[str, Any]) -> None:
        """``config`` is in force from now on."""
        self._config = config

    def attributes(self) -> Mapping[str, tuple[str | Callable[[], str], int]]:
        """Attributes at start."""
        return self._attributes

    def apply_attribute(self, name: str, value: str) -> int:
        """``attr.set`` gave ``name`` a new value: act on it."""
        return self.apply(name, value)

    def tree_children(self, rank: int) -> Sequence[int]:
        """Ranks of the children of ``rank``."""
        return self._broker.router.topology.children(rank)

    def tree_parent(self, rank: int) -> int:
        """Rank of the parent of ``rank``."""
        return self._broker.router.topology.parent(rank)

    def subtree_status(self) -> str:
        """full, partial, degraded, lost or offline."""
        return self._overlay.subtree_status()

    def status_since(self) -> float:
        """Seconds since ``subtree_status`` last changed."""
        return self._overlay.status_since()

    def child_health(self) -> Sequence[Mapping[str, Any]]:
        """Per child: rank, status, duration, error."""
        return self._overlay.child_health()

    def on_tree_change(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called after each change of our subtree's status or of a child's."""
        self.tree_watchers.append(callback)

    def tree_changed(self) -> None:
        """For the overlay's hooks: something in our part of the tree changed."""
        for callback in list(self.tree_watchers):
            callback()

    def disconnect_child(self, rank: int, reason: str) -> int:
        """Tell the child subtree that holds ``rank`` to leave."""
        return self._overlay.disconnect_child(rank, reason)

    def disconnect_client(self, uuid: str, reason: str) -> int:
        """Close the link of a client."""
        for port in self._broker.router.ports:
            if port.uuid == uuid and port.kind == CLIENT and port.link is not None:
                port.link.close(reason)
                return 0
        return errno.ENOENT

    def leave(self, reason: str) -> int:
        """Drain and leave; ENOSYS where the program that runs this broker did not say how."""
        if self.on_leave is None:
            return errno.ENOSYS
        asyncio.get_running_loop().call_soon(self.on_leave, reason)
        return 0

    def journal(self) -> JournalControl | None:
        """Its journal; None where none is configured."""
        return self.capture

    def state(self) -> tuple[str, float]:
        """Name of the lifecycle state, seconds since it began."""
        return self._lifecycle.state, self._lifecycle.in_state_s()

    def on_state(self, callback: Callable[[str], None]) -> None:
        """Have ``callback`` called with each new state's name."""
        self._lifecycle.watchers.append(callback)

    def traffic(self) -> Mapping[str, Any]:
        """Message counts since start or ``clear_traffic``."""
        return figures.traffic(self._broker)

    def metrics(self) -> str:
        """All figures in the Prometheus text format."""
        return self.render_metrics()

    def users(self) -> Mapping[str, Any]:
        """What the links of each user hold together, the busiest first, and what a guest may hold."""
        return figures.users(self._broker)

    def call_stats(self, errors: bool) -> Mapping[str, Any]:
        """Rate, errors and duration of the calls that clients made here, by method, and of what else is counted."""
        return figures.calls(self._broker, errors)

    def clear_traffic(self) -> None:
        """Start the counts again."""
        router = self._broker.router
        router.tally.clear()
        router.call_stats.clear()
        router.events.stats.clear()
        router.invalidate()

    def links(self) -> Sequence[Mapping[str, Any]]:
        """Per attached link."""
        return [figures.describe(port) for port in self._broker.router.ports if port.link is not None]


def _keep(_name: str, _value: str) -> int:
    """Nothing acts on this attribute: its value is all there is to it."""
    return 0


def _port(sender: Sender) -> Port:
    if not isinstance(sender, Port):
        raise TypeError(f"{sender!r} did not come from sender_of()")
    return sender
