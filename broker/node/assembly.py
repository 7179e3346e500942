"""Settings -> the rooms of one broker, put together.

The order matters: own port and services first, then the tree, then the doors, so that the first client finds
everything in its place.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from broker.endings import FAILED
from broker.errors import ConfigError
from broker.exposition import TEXT, Page, PageListener
from broker.identity import PeerInfo
from broker.memory import Trim
from broker.node import drain, event_numbers
from broker.node.attributes import initial
from broker.node.broker import Broker
from broker.node.client_admission import ClientAdmission, Listeners, access_of
from broker.node.context import Leave, NodeContext, ReadAgain
from broker.node.curve_keys import CurveKeys
from broker.node.event_numbers import EventNumbers
from broker.node.lifecycle import Lifecycle, StateFollower
from broker.node.link_options import (
    allowed,
    client_options,
    listener_options,
    overlay_config,
    router_limits,
)
from broker.node.metrics import Metrics
from broker.node.overlay.liveness import Keepalives
from broker.node.overlay.overlay import Hooks, Overlay
from broker.node.probes import Probes
from broker.node.rundir import make_rundir
from broker.routing.topology import Topology, parse
from broker.routing.users import hold_call_caps
from broker.schemes import capabilities_of
from broker.services.dispatch import Dispatcher
from broker.services.service import Services, built_in
from broker.settings import Settings
from broker.transport.byte_stream import all_left
from broker.transport.link import Options
from broker.wire.event_history import FrameHistory
from broker.wire.shares import RENEW_S

if TYPE_CHECKING:
    from broker.node.capture import Capture

log = logging.getLogger("headgate")

LEAVE_S: Final = 0.25
"""How long a broker that ends waits for peers that have not taken their last messages."""

SWEEP_S = 1.0
"""How often stalled readers, quiet links and the total of open calls are looked at."""


class Node:
    """One rank, ready to run.

    Args:
        settings: as of ``Settings.at_rank``: rank and local_uri are filled in.
        leave: how this process is left, where the node may have that done.
        reload: has the settings read again (see ``Reload``); None: they are not.

    Raises:
        ConfigError: what the settings ask for cannot be done here.

    Attributes:
        metrics, probes: its figures, and whether it lives and is ready, both served at ``broker.metrics_listen``.
        reloaded: told the settings each time they were read again.
        made_rundir: whether the directory of sockets was made by this process.
    """

    def __init__(
        self, settings: Settings, *, leave: Leave | None = None, reload: ReadAgain | None = None
    ) -> None:
        self.settings = settings
        self._leave = leave
        self.rank = settings.broker.rank or 0
        self.topology = topology_of(settings)
        self.owner = os.getuid()
        descriptors = allowed()
        self.broker = _broker(settings, self.rank, self.topology, self.owner, descriptors)
        self.capture = _capture(self.broker, settings)
        self._trim = Trim()
        self.lifecycle = Lifecycle(asyncio.get_running_loop().time)
        self.options = client_options(settings, self.broker.flusher, descriptors)
        self.curve_keys = CurveKeys(settings)
        self.access = access_of(settings, self.owner)
        self.reloaded: list[Callable[[Settings], None]] = []
        self.made_rundir = False
        self.client_admissions: list[ClientAdmission] = []
        self.client_admission = self._client_admission(self.options)
        self.overlay = self._overlay()
        self.probes = Probes(self.broker.router, self.lifecycle, self.overlay)
        self.keepalives = Keepalives(self.broker, settings.tree.torpid_min_s)
        attributes = initial(
            settings,
            self.topology,
            lambda: self.broker.router.uuid,
            self.owner,
            lambda: self.overlay.contact_uri,
        )
        if self.rank == 0:
            attributes["headgate.event-epoch"] = (lambda: self.overlay.epoch, 0)
        self.metrics = Metrics(
            self.broker.router,
            self.overlay,
            self.lifecycle,
            self.capture.recorder if self.capture is not None else None,
        )
        self.context = NodeContext(
            self.broker,
            self.overlay,
            self.lifecycle,
            self.metrics,
            settings=settings,
            attributes=attributes,
            journal=self.capture,
            leave=leave,
            reload=reload,
        )
        self.state_follower = StateFollower(self.context, self.lifecycle)
        self.services = Services(self.context, built_in())
        self.dispatcher = Dispatcher(self.context, self.services, settings.limits.service_tasks_max)
        for service in self.services:
            self.broker.router.services.add(service.name.encode(), self.broker.own)
        self.broker.deliver = self.dispatcher.deliver
        self.context.on_event("heartbeat.pulse", lambda _pulse: self.overlay.pulse())
        self.listeners = Listeners()
        self._numbers: EventNumbers | None = None
        self._pages: PageListener | None = None
        self._sweeping: asyncio.TimerHandle | None = None
        self._renewing: asyncio.TimerHandle | None = None
        self.broker.pressure.on_shared = self._renew_later

    # -- up and down ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the doors and join the tree.

        Raises:
            ConfigError: a socket cannot be made. LinkRefused: the parent will not have us.
        """
        self.made_rundir = make_rundir(
            self.settings.broker.rundir, guests=self.settings.access.allow_guest_user
        )
        if self.capture is not None:
            self.capture.begin(asyncio.get_running_loop())
            self._go_on_numbering(self.capture)
        self.dispatcher.start()  # before the doors open: the first client finds everything in its place
        await self._open(self.settings.broker.local_uri or "", self.options)
        for entry in self.settings.listen:
            await self._open(entry.uri, listener_options(entry, self.options, self.curve_keys, self._refused))
        if self.settings.broker.metrics_listen:
            self._pages = PageListener(
                "broker.metrics_listen",
                self.settings.broker.metrics_listen,
                self._page,
                "/metrics, /livez and /readyz",
            )
            await self._pages.start()
        self._sweep()
        self.state_follower.begin()
        await self.overlay.start()
        if self.rank == 0:
            self.state_follower.joined()

    async def stop(self) -> None:
        """Drain: accept no more, let open calls end and children leave, say goodbye, flush and close; safe to call
        twice.
        """
        for client_admission in self.client_admissions:
            client_admission.open = False
        self.lifecycle.enter("cleanup")
        self.overlay.refuse_children()
        self.lifecycle.enter("shutdown")
        await self._finish()
        self.lifecycle.enter("finalize")
        await self.listeners.stop()
        if self._pages is not None:
            await self._pages.stop()
        await self.overlay.stop()
        self.lifecycle.enter("goodbye")
        await self.context.stop()
        await drain.empty_queues(self.broker)
        for port in list(self.broker.router.ports):
            if port.link is not None:
                port.link.close("the broker is shutting down")
        await all_left(LEAVE_S)
        for timer in (self._sweeping, self._renewing):
            if timer is not None:
                timer.cancel()
        if self.capture is not None:
            await asyncio.sleep(0)  # what the ends of the links cause is recorded, too
            self.capture.end()
        if self._numbers is not None:
            self.broker.flusher.before = None
            self._numbers.close(self.broker.router.events.sequence)

    def _go_on_numbering(self, capture: Capture) -> None:
        """Go on behind the events of the former rank 0, as far as they are recorded."""
        events, kept, journal = self.broker.router.events, self.settings.events, self.settings.journal
        history, writer = events.history, f"rank{self.rank}"
        if history is None:
            event_numbers.forget(journal.directory, writer)
            return
        run = capture.recorder.options.run
        try:
            numbers = EventNumbers(journal.directory, writer, run, history.epoch, kept.history_s)
        except OSError as error:
            event_numbers.forget(journal.directory, writer)
            log.warning("journal %s: event numbers begin anew: %s", journal.directory, error.strerror)
            return
        self._numbers = numbers
        events.sequence = numbers.last
        history.begin(numbers.epoch, numbers.last)
        self.overlay.epoch = numbers.epoch

        def record_first() -> None:
            # who starts after us knows of no event but what is recorded by then: so that comes before all who get it
            if events.sequence != numbers.last:
                numbers.last = events.sequence
                capture.tap.hand_over()
                numbers.note(events.sequence)

        self.broker.flusher.before = record_first
        restored = numbers.restore(history, kept.history_bytes, kept.history_s)
        self.context.restoring = self.context.spawn("events of the journal", restored)

    async def _finish(self) -> None:
        """Let calls that are open be answered, also by brokers that leave behind us, and the children go first."""
        drain_s = self.settings.broker.drain_s
        gone, left = await asyncio.gather(
            self.overlay.children_gone(drain.children_s(drain_s)), drain.finish_calls(self.broker, drain_s)
        )
        if not gone:
            log.warning("leaving before children %s", ", ".join(map(str, self.overlay.online_children())))
        if left:
            log.warning("leaving with %d calls open after %g s", left, drain_s)

    async def _open(self, uri: str, options: Options) -> None:
        client_admission = (
            self.client_admission if options is self.options else self._client_admission(options)
        )
        options.admit, options.max_bytes, options.has_reserve = (
            client_admission.admit,
            client_admission.max_bytes,
            client_admission.is_owner,
        )
        log.info(
            "rank %d listens at %s",
            self.rank,
            await self.listeners.open(uri, client_admission.accept, options),
        )

    async def _page(self, path: bytes) -> Page | None:
        if path == b"/metrics":
            return 200, TEXT, self.metrics.text().encode()
        return self.probes.page(path)

    def renew_own(self) -> None:
        """Have transports with a protection of their own read their files again; one that cannot goes on as before."""
        failed = self.listeners.renew_own()
        own = self.settings.host(self.rank)
        if own is not None and capabilities_of(own.address).protection == "own":
            try:
                self.overlay.renew({}, {})
            except ConfigError as error:
                failed.append(str(error))
        for text in failed:
            log.error("%s; it goes on as before", text)

    def _overlay(self) -> Overlay:
        config = overlay_config(
            self.settings, self.topology, self.rank, self.options, self.curve_keys, self._refused
        )
        hooks = Hooks(
            joined=lambda: self.state_follower.joined(),  # noqa: PLW0108 - which is made after the overlay
            parent_lost=lambda _reason: self.state_follower.parent_lost(),
            must_exit=self.must_exit,
            status_changed=self._status_changed,
            child_changed=lambda _rank, _status, _torpid: self.context.tree_changed(),
            refused=self._refused,
        )
        return Overlay(self.broker, config, hooks)

    def _client_admission(self, options: Options) -> ClientAdmission:
        limits = self.settings.limits
        older = options.dialect != "flux1"  # nothing deployed speaks one: the text is all there is to go by
        client_admission = ClientAdmission(
            self.broker,
            self.access,
            limits.guest_message_bytes,
            limits.owner_message_bytes,
            user_bytes=limits.user_budget_bytes,
            cmb1=older,
            strict=older or options.strict_rfc3,
            refused=self._refused,
        )
        self.client_admissions.append(client_admission)
        return client_admission

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeping = loop.call_later(SWEEP_S, self._sweep)
        self.broker.pressure.sweep(SWEEP_S, self.settings.limits.stall_s)
        self.keepalives.sweep(loop.time())
        hold_call_caps(self.broker.router)
        self._trim.look()
        if self.broker.router.events.history is not None:
            self.broker.router.events.history.mark(loop.time())
        if self._numbers is not None:
            self._numbers.live()
        if self.capture is not None:
            self.capture.sweep()

    def _renew_later(self) -> None:
        self._renewing = asyncio.get_running_loop().call_later(RENEW_S, self._renew)

    def _renew(self) -> None:
        if self.broker.pressure.renew(RENEW_S):
            self._renew_later()

    def _refused(self, peer: PeerInfo, errnum: int, reason: str) -> None:
        """Somebody was not let in."""
        if self.capture is not None:
            self.capture.refused(peer, errnum, reason)

    def _status_changed(self, status: str) -> None:
        self.state_follower.subtree_changed(status)
        self.context.tree_changed()

    def must_exit(self, reason: str) -> None:
        """Leave with an exit code that has a supervisor start this broker again."""
        if self._leave is None:
            # nobody runs this node as a process: there is nothing to exit
            log.error("would exit: %s", reason)
        else:
            self._leave(reason, FAILED)


def _broker(settings: Settings, rank: int, topology: Topology, owner: int, descriptors: int) -> Broker:
    """The broker itself; that of rank 0 keeps the last events, unless nobody wants that."""
    limits = settings.limits
    broker = Broker(
        rank,
        topology,
        str(uuid.uuid4()),
        str(uuid.uuid4()),
        owner,
        batch_msgs=limits.batch_msgs,
        batch_deliveries=limits.batch_deliveries,
        limits=router_limits(limits, descriptors),
    )
    if rank == 0 and settings.events.history_bytes:
        history = FrameHistory(settings.events.history_bytes, settings.events.history_s)
        history.begin(broker.router.uuid, 0)
        broker.router.events.history = history
    return broker


def _capture(broker: Broker, settings: Settings) -> Capture | None:
    """The recorder of the traffic; None, and nothing of it is loaded, where nobody wants that."""
    if not settings.journal.enabled:
        return None
    from broker.node.capture import Capture

    return Capture(broker, settings.journal)


def topology_of(settings: Settings) -> Topology:
    """The tree that the settings describe."""
    parents = None
    if settings.hosts:
        by_rank = sorted(settings.hosts, key=lambda host: host.rank)
        parents = [host.parent or 0 for host in by_rank]
    return parse(
        settings.tree.topology, settings.size, parents if settings.tree.topology == "custom" else None
    )
