"""The broker as its services see it: ``broker.services.context.Context``, done by the rooms of this node."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from broker.endings import OK
from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.node.attributes import STDERR_SEVERITY, Attributes, configuration
from broker.node.tracing import Tracing
from broker.routing.port import CLIENT, Port
from broker.services.context import Call, Context, Figures, JournalControl, OnEvent, OnResponse, Sender
from broker.settings import Settings
from broker.tasks import Tasks
from broker.times import seconds_of
from broker.wire.event_history import FrameHistory
from broker.wire.message import NORESPONSE, Message, response
from broker.wire.parts import part_data
from broker.wire.topic import is_reserved

if TYPE_CHECKING:
    from broker.node.broker import Broker
    from broker.node.lifecycle import Lifecycle
    from broker.node.overlay.overlay import Overlay

log = logging.getLogger("headgate")

TORPID_MAX_S: Final = 86400.0

Leave = Callable[[str, int], object]
"""Has the process of a broker drain and leave: the reason, and the exit code."""
ReadAgain = Callable[[], Awaitable[None]]
"""Reads the settings again and takes them; raises ConfigError, and nothing has changed."""


class NodeContext(Context):
    """One broker for its services.

    Args:
        broker, overlay, lifecycle, figures: the rooms that do what is asked.
        settings: what ``config`` shows at first; ``reload`` sets it anew.
        attributes, journal: see ``Context``.
        leave: how this process is left; None: the program that runs the broker did not say.
        reload: reads the settings again; None: nobody said where from.
    """

    def __init__(
        self,
        broker: Broker,
        overlay: Overlay,
        lifecycle: Lifecycle,
        figures: Figures,
        *,
        settings: Settings,
        attributes: Attributes,
        journal: JournalControl | None,
        leave: Leave | None = None,
        reload: ReadAgain | None = None,
    ) -> None:
        self.rank = broker.router.rank
        self.size = broker.router.topology.size
        self.cred = broker.own.cred
        self.config = configuration(settings)
        self.attributes = attributes
        self.topology = broker.router.topology
        self.tree = overlay
        self.lifecycle = lifecycle
        self.tracing = Tracing(broker)
        self.figures = figures
        self.journal = journal
        self._broker = broker
        self._overlay = overlay
        self._router = broker.router
        self._leave = leave
        self._reload = reload
        self.restoring = None
        self._handlers: list[tuple[bytes, OnEvent]] = []
        self._tree_watchers: list[Callable[[], None]] = []
        self._tasks = Tasks()
        broker.observe = self._published

    @property
    def uuid(self) -> str:
        return self._router.uuid

    @property
    def event_history(self) -> FrameHistory | None:
        return self._router.events.history

    # -- messages ------------------------------------------------------------------------------

    def respond(self, request: Message, payload: bytes | None, errnum: int, always: bool) -> None:
        unwanted = request.flags & NORESPONSE
        if unwanted and not always:
            return
        cred = self.cred
        answer = response(request, payload, errnum=errnum, userid=cred.userid, rolemask=cred.rolemask)
        if unwanted:
            answer.set_flags(answer.flags & ~NORESPONSE)
        self._broker.respond(answer)

    def record_refusal(self, request: Message, errnum: int) -> None:
        self._router.record_refusal(request, errnum)

    def publish(self, message: Message) -> int:
        if self.rank != 0:
            raise ProtocolError("events are published by rank 0 only")
        topic_max, events = self._router.topic_max_bytes, self._router.events
        topic, payload = bytes(part_data(message.topic_part) or b""), message.payload
        error = None
        if len(topic) > topic_max:
            error = RpcError(errno.EPROTO, f"topic above {topic_max} bytes")
        elif payload is not None and not message.rolemask & Role.OWNER and len(payload) > events.guest_max:
            text = f"an event of {len(payload)} bytes: limits.guest_event_bytes are {events.guest_max}"
            error = RpcError(errno.EMSGSIZE, text)
        if error is not None:
            events.stats.refused(topic, error.errno, str(error), message.userid)
            raise error
        return self._broker.publish(message)

    def call(
        self,
        topic: str,
        payload: bytes | None,
        on_response: OnResponse | None,
        *,
        nodeid: int,
        flags: int = 0,
    ) -> Call:
        return self._broker.calls.call(topic, payload, on_response, nodeid=nodeid, flags=flags)

    def on_event(self, prefix: str, handler: OnEvent) -> None:
        self._handlers.append((prefix.encode(), handler))
        self._router.events.subscribe(self._broker.own, prefix.encode())

    def _published(self, message: Message) -> None:
        """An event that somebody here has subscribed to passes."""
        topic = (message.topic or "").encode()
        if is_reserved(topic, message.rolemask):
            return  # another instance's broker let it pass
        for prefix, handler in self._handlers:
            if topic.startswith(prefix):
                handler(message)

    # -- links ---------------------------------------------------------------------------------

    def sender_of(self, request: Message) -> Sender | None:
        return self._router.port_of(request)

    def subscribe(self, sender: Sender, prefix: bytes) -> int:
        port = _port(sender)
        if prefix not in port.subscriptions:  # once more of the same prefix is a count, and takes no room
            self._router.users.refuse_more(port.user, "subscriptions")
        return self._router.events.subscribe(port, prefix)

    def unsubscribe(self, sender: Sender, prefix: bytes) -> int:
        return self._router.events.unsubscribe(_port(sender), prefix)

    def add_service(self, sender: Sender, name: bytes) -> int:
        port = _port(sender)
        self._router.users.refuse_more(port.user, "services")
        errnum = self._router.services.add(name, port)
        if not errnum:
            self._router.invalidate()
            # a provider is never paused, or those it owes would wait
            self._broker.pressure.became_provider(port)
        return errnum

    def remove_service(self, sender: Sender, name: bytes) -> int:
        errnum = self._router.services.remove(name, _port(sender))
        if not errnum:
            self._router.invalidate()
        return errnum

    def on_provided(self, callback: Callable[[str, bool], None]) -> None:
        self._router.services.on_client = callback

    def on_unregistered(self, find: Callable[[str], str]) -> None:
        self._router.find_elsewhere = find

    def disconnect_client(self, uuid: str, reason: str) -> int:
        for port in self._router.ports:
            if port.uuid == uuid and port.kind == CLIENT and port.link is not None:
                port.link.close(reason)
                return 0
        return errno.ENOENT

    # -- the tree ------------------------------------------------------------------------------

    def on_tree_change(self, callback: Callable[[], None]) -> None:
        self._tree_watchers.append(callback)

    def tree_changed(self) -> None:
        """For the node: something in our part of the tree changed."""
        for callback in list(self._tree_watchers):
            callback()

    # -- this process --------------------------------------------------------------------------

    def apply_attribute(self, name: str, value: str) -> int:
        if name in ("tbon.torpid_min", "tbon.torpid_max"):
            # as flux writes it: 30s, or seconds alone
            return self._set_torpid(name, seconds_of(value if value[-1:].isalpha() else f"{value}s"))
        if name in ("log-stderr-level", "log-level"):
            levels = [level for level, number in STDERR_SEVERITY.items() if str(number) == value]
            if not levels:
                return errno.EINVAL
            log.setLevel(levels[0].upper())
        return 0

    def _set_torpid(self, name: str, value_s: float | None) -> int:
        """The range is that of the settings of these names."""
        least_s = 0.1 if name == "tbon.torpid_min" else 0.0
        if value_s is None or not least_s <= value_s <= TORPID_MAX_S:
            return errno.EINVAL
        if name == "tbon.torpid_min":
            self._overlay.set_torpid_min(value_s)
        else:
            self._overlay.set_torpid_max(value_s)
        return 0

    def leave(self, reason: str) -> int:
        if self._leave is None:
            return errno.ENOSYS
        # the answer to this request is queued after we return, and must leave first
        asyncio.get_running_loop().call_soon(self._leave, reason, OK)
        return 0

    async def reload(self) -> None:
        if self._reload is None:
            raise RpcError(errno.ENOSYS, "this broker was started without a file to read again")
        await self._reload()

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.spawn(name, work)

    async def stop(self) -> None:
        """For the node: cancel every task and wait for it."""
        await self._tasks.stop()


def _port(sender: Sender) -> Port:
    if not isinstance(sender, Port):
        raise TypeError(f"{sender!r} did not come from sender_of()")
    return sender
