"""The facade of the tree: its settings and callbacks; listen for children, join the parent, tell their state, leave."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from broker.awake import StallMeter
from broker.errors import LinkError, LinkRefused
from broker.identity import PeerInfo, Role
from broker.node.broker import Broker
from broker.node.overlay import control, hello
from broker.node.overlay.children import Child, Children
from broker.node.overlay.control import Timed, combine
from broker.node.overlay.liveness import LOST_S, SYNC_MAX_S
from broker.node.overlay.parent import Parent
from broker.routing.port import CHILD, CLIENT, PARENT, Port
from broker.transport import registry
from broker.transport.link import Listener, Options
from broker.wire.message import HANDLED, MARK, MARKED, OPEN, SHUT, Message
from broker.wire.message import control as control_message
from broker.wire.parts import encode_part

_GOODBYE_PART: Final = encode_part(b"overlay.goodbye")
_PARENT_LOST: Final = "lost connection to parent"


@dataclass(slots=True)
class OverlayConfig:
    """Settings of one broker's place in the tree; ranks and shape come from the broker's own topology.

    Attributes:
        listen_uri: where children connect (``tcp://``, ``ipc://``, ``inproc://``); None at a leaf.
        parent_uri: where the parent listens; None at rank 0.
        listen: options of the listener: flusher and budget of the broker; ``extra`` has ``curve`` and ``keys``.
        dial: the same for the parent; ``extra`` has ``curve``. ``identity``, ``batch`` and ``admit`` are filled in
            by the overlay.
        version: flux-core version we claim; peers whose first two numbers differ are refused (and refuse us).
        hostname: ours, as hello tells it; "" tells none.
        hostnames: rank -> hostname, where the hosts table names them; a hello that says otherwise is refused.
        on_parent_loss: ``rejoin`` as a new incarnation, or ``exit`` for a supervisor.
        batch: offer many messages in one to Headgate peers.
        torpid_min_s: silence after which a neighbour is sent a heartbeat. torpid_max_s: silence after which a parent
            calls a child torpid; 0 never. lost_s: silence after which a Headgate neighbour is lost, at least (see
            ``liveness``).
        hello_timeout_s: how long an answer to hello may take before the parent is dialled anew; 0 has no limit.
        backoff_s, backoff_max_s: first and longest wait between attempts to join, each drawn from 0 to it.
        goodbye_timeout_s: how long leaving waits for the parent's answer.
    """

    listen_uri: str | None = None
    parent_uri: str | None = None
    listen: Options = field(default_factory=Options)
    dial: Options = field(default_factory=Options)
    version: str = "0.88.0"
    hostname: str = ""
    hostnames: Mapping[int, str] = field(default_factory=dict)
    on_parent_loss: Literal["rejoin", "exit"] = "rejoin"
    batch: bool = True
    torpid_min_s: float = 5.0
    torpid_max_s: float = 30.0
    lost_s: float = LOST_S
    hello_timeout_s: float = 30.0
    backoff_s: float = 0.1
    backoff_max_s: float = 10.0
    goodbye_timeout_s: float = 2.0


Objection = Callable[[PeerInfo, int | None], str]
"""(peer, rank it is known as, None before hello) -> why a link to it has to end; "" when it may stay."""


def _nothing(*_what: object) -> None:
    """Nobody asked to be told."""


@dataclass(slots=True)
class Hooks:
    """Callbacks of the owner of an overlay; all run on the event loop and must not block."""

    joined: Callable[[], object] = _nothing
    """The parent answered hello, at start and after each rejoin: announce local state upward. Children that said
    hello meanwhile are answered after this."""
    parent_lost: Callable[[str], object] = _nothing
    """The parent is lost and why; open calls through it are answered, children are told to leave."""
    must_exit: Callable[[str], object] = _nothing
    """The parent is lost and the setting says exit, or it refused us for good: leave, with this reason."""
    child_changed: Callable[[int, str, bool], object] = _nothing
    """(rank, status, torpid) of a child that changed (``overlay.monitor``)."""
    status_changed: Callable[[str], object] = _nothing
    """The status of this broker's subtree changed (``overlay.health`` streams)."""
    refused: Callable[[PeerInfo, int, str], object] = _nothing
    """(peer, errno, reason): somebody wanted to join and may not."""


log = logging.getLogger("headgate")


class Overlay:
    """One broker's place in the tree.

    Set ``broker.deliver`` before ``start``: the overlay puts itself in front of it for ``overlay.goodbye``.

    Args:
        broker: knows rank, shape, uuid and owner. config: see there. hooks: callbacks of the owner.
        clock: monotonic seconds.

    Attributes:
        contact_uri: what children dial, ports filled in; None before ``start`` and at a leaf.
        event_gaps: how often event numbers were missing. events_missed: how many numbers that were.
        epoch: uuid of rank 0, which numbers the events; "" while unknown.
        listening: set once children can reach us, or we have none.
    """

    def __init__(
        self,
        broker: Broker,
        config: OverlayConfig,
        hooks: Hooks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._config = config
        self._hooks = hooks or Hooks()
        self._clock = clock
        self._period_s = min(SYNC_MAX_S, config.torpid_min_s / 2)
        self._stall = StallMeter(clock)
        self._stalled_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._listener: Listener | None = None
        self._next = broker.deliver
        self.contact_uri: str | None = None
        self.listening = asyncio.Event()
        self.event_gaps = 0
        self.events_missed = 0
        router = broker.router
        self.epoch = router.uuid if router.rank == 0 else ""
        rules = hello.Rules(
            router.rank,
            router.topology.children(router.rank),
            hello.encode_version(config.version),
            config.hostnames,
        )
        self._rules = rules
        self._children = Children(
            broker,
            config,
            rules,
            clock,
            self.watched,
            self._child_changed,
            self._ours,
            self.joined,
            self._hooks.refused,
        )
        self._parent: Parent | None = None
        if router.rank:
            self._parent = Parent(broker, config, self._introduce, self._joined, clock, self.watched)
        self._status = Timed(combine(child.timed.status for child in self._children), clock())
        self._nobody = asyncio.Event()
        self._nobody.set()
        self._lost = asyncio.Event()

    # -- start and stop ------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, then join the parent; returns once joined (at once at rank 0). Cancel to give up.

        Raises:
            ConfigError: the listening address cannot be used, or a rank other than 0 has no parent address.
            LinkRefused: the parent refused us for good (hello or key); errno and text are the parent's.
        """
        self._take_over()
        if self._config.listen_uri is not None and self._rules.children:
            self._listener = await self._listen(self._config.listen_uri)
            self.contact_uri = self._listener.contact_address
        self.listening.set()
        self._spawn("overlay-pulse", self._beat())
        if self._parent is not None:
            await self._parent.join()
            self._spawn("overlay-parent", self._keep(self._parent))

    async def _listen(self, uri: str) -> Listener:
        extra = {**self._config.listen.extra, "batch": self._config.batch}
        options = replace(self._config.listen, admit=self._admit, extra=extra)
        return await registry.listen(uri, self._children.accept, options)

    def renew(self, listen: Mapping[str, Any] | None, dial: Mapping[str, Any]) -> None:
        """Make new links with other ``Options.extra``; links that exist stay.

        Args:
            listen: for children; None as before. {} has the transport read its files again.
            dial: for the parent.

        Raises:
            ConfigError: our listener cannot; it goes on as it was.
        """
        self._config.dial.extra.update(dial)
        if listen is not None and self._listener is not None:
            self._listener = self._listener.renew(listen)

    def revoke(self, objection: Objection) -> int:
        """End each link to a neighbour to which there is an objection; returns how many."""
        above = self._parent.revoke(objection) if self._parent is not None else 0
        return self._children.revoke(objection) + above

    def _admit(self, peer: PeerInfo) -> int:
        """Only brokers of the tree may say hello: known by their key, and without keys the owner's processes."""
        stranger = peer.key is None and peer.uid not in (None, self._broker.own.cred.userid)
        if stranger or peer.user is not None:
            reason = "not a broker of this tree"
            log.warning("refused %s: %s", peer.address, reason)
            self._hooks.refused(peer, errno.EPERM, reason)
            return errno.EPERM
        return 0

    def _take_over(self) -> None:
        """Put ourselves where the broker hands over what concerns the tree."""
        broker = self._broker
        broker.router.services.add(b"overlay", broker.own)  # no matter if its service registered it before us
        broker.router.invalidate()
        broker.router.events.on_gap = self._gap
        broker.on_control = self._controlled
        broker.on_departed.append(self._departed)
        self._next, broker.deliver = broker.deliver, self._deliver

    def refuse_children(self) -> None:
        """Admit no more children (cleanup and later): their hello is answered with a disconnect."""
        self._children.open = False

    async def children_gone(self, timeout_s: float) -> bool:
        """Wait until no child is online; False when some still are after ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._nobody.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Disconnect children that remain, say goodbye upward, close; safe to call twice or before ``start``."""
        if self._stopping:
            return
        self._stopping = True
        self.refuse_children()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._children.disconnect_all("the parent shuts down")
        await asyncio.sleep(0)  # what their leaving causes goes out before we leave ourselves
        if self._parent is not None:
            await self._parent.goodbye(self._config.goodbye_timeout_s)
        if self._listener is not None:
            await self._listener.stop()
        self._children.close()

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(_report)
        self._tasks.append(task)

    # -- views ---------------------------------------------------------------------------------

    def joined(self) -> bool:
        """True at rank 0, and while the parent is connected."""
        return self._parent is None or self._parent.port is not None

    def parent_uuid(self) -> str:
        """Uuid of the connected parent; "" when there is none."""
        port = self._parent.port if self._parent is not None else None
        return port.uuid if port is not None else ""

    def online_children(self) -> Sequence[int]:
        """Ranks of the children that are online."""
        return [child.rank for child in self._children if child.port is not None]

    def subtree_status(self) -> str:
        """full, partial or degraded: this broker and everything below."""
        return self._status.status.label

    def status_since(self) -> float:
        """Seconds since ``subtree_status`` last changed."""
        return self._clock() - self._status.since

    def child_health(self) -> Sequence[Mapping[str, Any]]:
        """Per child: rank, status, duration (seconds), torpid; error when it is not online and there is one."""
        now = self._clock()
        return [child.health(now) for child in self._children]

    def disconnect_child(self, rank: int, reason: str) -> int:
        """Make a child leave; returns 0, ENOENT (not a child of ours) or EINVAL (not online)."""
        return self._children.disconnect(rank, reason)

    # -- liveness ------------------------------------------------------------------------------

    def set_torpid_min(self, seconds: float) -> None:
        """Speak up after so long a silence. Neighbours were told another one: towards them the shorter one holds until
        the next hello.
        """
        self._config.torpid_min_s = seconds
        self._period_s = min(SYNC_MAX_S, seconds / 2)

    def set_torpid_max(self, seconds: float) -> None:
        """Call a child torpid after so long a silence; 0: never."""
        self._config.torpid_max_s = seconds

    def pulse(self) -> None:
        """Check liveness now (called on each ``heartbeat.pulse``; a timer of our own calls it, too)."""
        now = self._clock()
        watched = self.watched()
        self._stall.wakes_at(now + self._period_s)
        if self._parent is not None:
            self._parent.pulse(now, watched)
        self._children.pulse(now, watched)

    def watched(self) -> float:
        """Seconds of the clock in which we were there; what others said in between is still to be read."""
        self._stalled_s += self._stall.stalled_s()
        return self._clock() - self._stalled_s

    async def _beat(self) -> None:
        """Heartbeats may stay away; silence must be noticed all the same."""
        while True:
            await asyncio.sleep(self._period_s)
            self.pulse()

    # -- the parent ----------------------------------------------------------------------------

    def _introduce(self) -> hello.Hello:
        uuid, rank = self._broker.router.uuid, self._broker.router.rank
        ours = self._ours()._replace(epoch="")  # ours may be a former one
        return hello.Hello(rank, self._rules.version, uuid, self._status.status, self._config.hostname, ours)

    def _joined(self, answer: hello.Answer) -> None:
        parent_is_root = self._broker.router.topology.parent(self._broker.router.rank) == 0
        epoch = answer.ours.epoch or (answer.uuid if parent_is_root else "")
        if epoch and self.epoch and epoch != self.epoch:
            log.warning("rank 0 is a new one: event numbers begin anew")
            self._broker.router.events.sequence = 0
            self._broker.router.events.expects_first = True
        self.epoch = epoch or self.epoch
        self._hooks.joined()
        self._children.admit_held()

    async def _keep(self, parent: Parent) -> None:
        """Join again whenever the parent is lost."""
        while True:
            await self._lost.wait()
            self._lost.clear()
            try:
                await parent.rejoin()
            except LinkRefused as error:
                self._hooks.must_exit(str(error))
                return

    def _parent_lost(self, parent: Parent, reason: str) -> None:
        parent.port = None
        if self._stopping:
            return
        log.error("lost the parent: %s", reason)
        self._hooks.parent_lost(reason)
        self._children.disconnect_all(_PARENT_LOST)
        # the process manager starts this broker anew, which is a new incarnation as well
        if self._config.on_parent_loss == "exit":
            self._hooks.must_exit(f"lost the parent: {reason}")
            return
        parent.reincarnate()
        self._lost.set()

    # -- what the broker hands over ------------------------------------------------------------

    def _departed(self, port: Port, error: LinkError) -> None:
        if port.kind == CHILD:
            self._children.departed(port, error)
        elif self._parent is not None and self._parent.port is port:
            self._parent_lost(self._parent, str(error))

    def _controlled(self, port: Port, message: Message) -> None:
        if port.kind in (CHILD, PARENT) and message.aux1 in (OPEN, SHUT):
            self._broker.router.events.flow.received_window(port, message.aux2, message.aux1 == SHUT)
        # HANDLED and MARKED count messages, OPEN and SHUT bytes of events: see ``routing.flow`` for both
        elif port.windowed and message.aux1 == HANDLED:
            port.link.outbox.handled(message.aux2)
        elif port.windowed and message.aux1 == MARKED:
            port.link.outbox.marked(message.aux2)
        elif port.window is not None and message.aux1 == MARK:
            port.send(control_message(MARKED, message.aux2))
        # an owner's link (a gateway's) that sends HANDLED asks to be told itself from then on
        elif port.kind == CLIENT and port.owner and message.aux1 == HANDLED:
            self._broker.router.events.flow.attach_client(port)
        elif port.kind == CHILD:
            self._children.controlled(port, message)
        elif port.kind == PARENT and self._parent is not None:
            self._parent.controlled(message)
        else:
            self._broker.router.counters.drop("control message from a client")

    def _deliver(self, message: Message) -> None:
        """Goodbye is between a child and us, whoever serves the other methods of ``overlay``. What a child forwards for
        a guest of its own is none: a child speaks as OWNER.
        """
        if message.topic_part == _GOODBYE_PART and message.rolemask & Role.OWNER:
            port = self._broker.router.port_of(message)
            if port is not None and port.kind == CHILD:
                self._children.goodbye(port, message)
                return
        self._next(message)

    def _gap(self, last: int, now: int) -> None:
        """Event numbers are missing, or begin anew."""
        if now < last:
            log.warning("event numbers begin anew: %d after %d", now, last)
            last = 0
            if now == 1:
                return  # of the new numbering nothing is missing
        self.event_gaps += 1
        self.events_missed += now - last - 1
        log.error("lost events %d-%d", last + 1, now - 1)

    # -- the children --------------------------------------------------------------------------

    def _ours(self) -> hello.HeadgateHello:
        return hello.HeadgateHello(True, self._config.batch, self.epoch, self._config.torpid_min_s, True)

    def _child_changed(self, child: Child) -> None:
        self._hooks.child_changed(child.rank, child.timed.status.label, child.torpid)
        if self.online_children():
            self._nobody.clear()
        else:
            self._nobody.set()
        status = combine(each.timed.status for each in self._children)
        if self._status.change(status, self._clock()):
            if self._parent is not None:
                self._parent.send(control.status(int(status)))
            self._hooks.status_changed(status.label)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("task %s failed", task.get_name(), exc_info=task.exception())
