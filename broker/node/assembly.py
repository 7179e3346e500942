"""Settings -> the rooms of one broker, put together.

The order matters: own port and services first, then the tree, then the doors, so that the first client finds
everything in its place.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.errors import ConfigError
from broker.identity import PeerInfo
from broker.ingress.admission import Access
from broker.node.attributes import STDERR_SEVERITY, hostname, initial, shown
from broker.node.broker import Broker
from broker.node.context import BrokerContext
from broker.node.doorway import Doorway, groups_of, overflow_uid
from broker.node.keepalive import Keepalives
from broker.node.keyring import dial_options, keys_of, listen_options
from broker.node.lifecycle import Lifecycle
from broker.node.metrics import MetricsListener, render, samples
from broker.node.overlay.config import Hooks, OverlayConfig
from broker.node.overlay.overlay import Overlay
from broker.node.rundir import make_rundir
from broker.node.succession import Succession
from broker.routing.ration import ration
from broker.routing.topology import NO_PARENT, Topology, parse
from broker.services.dispatch import Dispatcher
from broker.services.registry import built_in
from broker.settings import Settings
from broker.transport.link import Listener, Options
from broker.transport.outbox import Budget, OutboxLimits
from broker.transport.registry import listen, scheme_of

if TYPE_CHECKING:
    from broker.node.capture import Capture

log = logging.getLogger("headgate")

CHILDREN_S = 5.0
"""How long a leaving broker waits for its children to leave first."""
DRAIN_S = 5.0
"""How long a leaving broker waits for its clients to read what is queued for them."""
DRAIN_STALL_S = 0.5
"""It waits no longer when none of them has taken a byte for so long."""
SWEEP_S = 1.0
"""How often stalled readers, quiet links and the total of open calls are looked at."""


class Node:
    """One rank, ready to run.

    Args:
        settings: as of ``Settings.at_rank``: rank and local_uri are filled in.

    Raises:
        ConfigError: what the settings ask for cannot be done here.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.rank = settings.broker.rank or 0
        self.topology = topology_of(settings)
        self.owner = os.getuid()
        limits = settings.limits
        self.broker = Broker(
            self.rank,
            self.topology,
            str(uuid.uuid4()),
            str(uuid.uuid4()),
            self.owner,
            batch_msgs=limits.batch_msgs,
            batch_deliveries=limits.batch_deliveries,
            limits={
                "pending_max": limits.pending_per_link,
                "pending_total": limits.pending_total,
                "routes_max": limits.routes_max,
            },
        )
        self.capture = _capture(self.broker, settings)
        self.lifecycle = Lifecycle(asyncio.get_running_loop().time)
        self.options = Options(
            flusher=self.broker.flusher,
            budget=Budget(limits.broker_budget_bytes),
            limits=OutboxLimits(
                high_bytes=limits.outbox_high_bytes,
                high_msgs=limits.outbox_high_msgs,
                event_bytes=min(limits.response_cap_bytes, 16 << 20),
                cap_bytes=limits.response_cap_bytes,
                event_policy=limits.event_policy,
            ),
            insecure=settings.tree.insecure,
            connect_timeout_s=settings.tree.connect_timeout_s,
        )
        self._doorways: list[Doorway] = []
        self.doorway = self._doorway()
        self.must_exit: Callable[[str], object] = _log_only
        self.overlay = Overlay(self.broker, self._overlay_config(), self._hooks())
        self.keepalives = Keepalives(self.broker, settings.tree.torpid_min_s)
        attributes = initial(settings, self.topology, lambda: self.broker.router.uuid, self.owner)
        self.context = BrokerContext(
            self.broker, self.overlay, self.lifecycle, self.owner, dict(shown(settings)), attributes
        )
        self.context.render_metrics = lambda: render(samples(self))
        self.context.apply = self._apply
        self.context.capture = self.capture
        self.succession = Succession(self.context, self.overlay, self.lifecycle)
        self.dispatcher = Dispatcher(self.context, limits.service_tasks_max)
        self._listeners: list[Listener] = []
        self._metrics: MetricsListener | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._add_services()

    def _add_services(self) -> None:
        section = self.settings.broker
        self.dispatcher.add(
            built_in(
                self.context,
                log_entries=section.log_ring_entries,
                heartbeat_period_s=section.heartbeat_period_s,
            )
        )
        for service in self.dispatcher.services():
            self.broker.router.services.add(service.name.encode(), self.broker.own)
        self.broker.deliver = self.dispatcher.deliver
        self.context.on_event("heartbeat.pulse", lambda _pulse: self.overlay.pulse())

    # -- up and down ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the doors and join the tree.

        Raises:
            ConfigError: a socket cannot be made. LinkRefused: the parent will not have us.
        """
        make_rundir(self.settings.broker.rundir, guests=self.settings.access.allow_guest_user)
        if self.capture is not None:
            self.capture.begin()
        self.dispatcher.start()  # before the doors open: the first client finds everything in its place
        await self._open(self.settings.broker.local_uri or "", self.options)
        for entry in self.settings.listen:
            await self._open(entry.uri, self._listen_options(entry))
        if self.settings.broker.metrics_listen:
            self._metrics = MetricsListener(self, self.settings.broker.metrics_listen)
            await self._metrics.start()
        self._sweep()
        self.succession.begin()
        await self.overlay.start()
        if self.rank == 0:
            self.succession.joined()

    async def stop(self) -> None:
        """Drain: accept no more, let children leave first, say goodbye, flush and close; safe to call twice."""
        for doorway in self._doorways:
            doorway.open = False
        self.lifecycle.enter("cleanup")
        self.overlay.spurn()
        self.lifecycle.enter("shutdown")
        await self.overlay.children_gone(CHILDREN_S)
        self.lifecycle.enter("finalize")
        for listener in self._listeners:
            await listener.stop()
        if self._metrics is not None:
            await self._metrics.stop()
        await self.overlay.stop()
        self.lifecycle.enter("goodbye")
        await self.context.stop()
        await self._drain()
        for port in list(self.broker.router.ports):
            if port.link is not None:
                port.link.close("the broker is shutting down")
        for timer in self._timers:
            timer.cancel()
        if self.capture is not None:
            await asyncio.sleep(0)  # what the ends of the links cause is recorded, too
            self.capture.end()

    async def _drain(self) -> None:
        """Wait until the clients have taken what is queued for them, while any of them still takes some."""
        loop = asyncio.get_running_loop()
        end = loop.time() + DRAIN_S
        moved, seen = loop.time(), -1
        self.broker.flusher.flush()
        while loop.time() < min(end, moved + DRAIN_STALL_S):
            links = [port.link for port in self.broker.router.ports if port.link is not None]
            waiting = [link.outbox for link in links if link.outbox.parked]
            if not waiting:
                return
            progress = sum(outbox.progress for outbox in waiting)
            if progress != seen:
                moved, seen = loop.time(), progress
            await asyncio.sleep(0.01)

    async def _open(self, uri: str, options: Options) -> None:
        doorway = self.doorway if options is self.options else self._doorway(options.dialect != "flux1")
        options.admit, options.max_bytes = doorway.admit, doorway.max_bytes
        listener = await listen(uri, doorway.accept, options)
        self._listeners.append(listener)
        log.info("rank %d listens at %s", self.rank, listener.contact_address)

    def _doorway(self, cmb1: bool = False) -> Doorway:
        access, limits = self.settings.access, self.settings.limits
        rules = Access(
            owner=self.owner,
            allow_guest=access.allow_guest_user,
            allow_root_owner=access.allow_root_owner,
            admin_uids=user_ids(access.admin_users),
            admin_gids=group_ids(access.admin_groups),
            overflow_uid=overflow_uid(),
            allow_overflow=access.allow_overflow_uid,
            groups_of=groups_of,
        )
        doorway = Doorway(
            self.broker, rules, limits.guest_message_bytes, limits.owner_message_bytes, cmb1=cmb1
        )
        doorway.refused = self._refused
        self._doorways.append(doorway)
        return doorway

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timers = [loop.call_later(SWEEP_S, self._sweep)]
        self.broker.pressure.sweep(SWEEP_S, self.settings.limits.stall_s)
        self.keepalives.sweep(loop.time())
        ration(self.broker.router)
        if self.capture is not None:
            self.capture.sweep()

    def _refused(self, peer: PeerInfo, errnum: int, reason: str) -> None:
        """Somebody was not let in."""
        if self.capture is not None:
            self.capture.refused(peer, errnum, reason)

    def _hooks(self) -> Hooks:
        return Hooks(
            joined=self._joined,
            parent_lost=self._parent_lost,
            must_exit=self._must_exit,
            status_changed=self._status_changed,
            child_changed=self._child_changed,
            refused=self._refused,
        )

    # the overlay is made before what its hooks lead to
    def _joined(self) -> None:
        self.succession.joined()

    def _parent_lost(self, _reason: str) -> None:
        self.succession.parent_lost()

    def _must_exit(self, reason: str) -> None:
        self.must_exit(reason)

    def _status_changed(self, status: str) -> None:
        self.succession.subtree_changed(status)
        self.context.tree_changed()

    def _child_changed(self, _rank: int, _status: str, _torpid: bool) -> None:
        self.context.tree_changed()

    def _apply(self, name: str, value: str) -> int:
        """``attr.set`` of an attribute that something here obeys; returns an errno."""
        if name == "log-stderr-level":
            levels = [level for level, number in STDERR_SEVERITY.items() if str(number) == value]
            if not levels:
                return errno.EINVAL
            log.setLevel(levels[0].upper())
        return 0

    # -- options -------------------------------------------------------------------------------

    def _listen_options(self, entry: Any) -> Options:
        extra: dict[str, Any] = {}
        if scheme_of(entry.uri) in ("tcp", "ipc"):
            extra = listen_options(self.settings, keys_of(self.settings, peers=False))
        return Options(
            flusher=self.options.flusher,
            budget=self.options.budget,
            limits=self.options.limits,
            dialect=entry.dialect,
            strict_rfc3=entry.strict_rfc3,
            insecure=entry.insecure,
            extra=extra,
            refused=self._refused,
        )

    def _overlay_config(self) -> OverlayConfig:
        settings, tree = self.settings, self.settings.tree
        own, above = settings.host(self.rank), self.topology.parent(self.rank)
        parent = settings.host(above) if above != NO_PARENT else None
        has_children = len(self.topology.children(self.rank)) > 0
        return OverlayConfig(
            listen_uri=(own.bind or own.address) if own is not None and has_children else None,
            parent_uri=parent.address if parent is not None else None,
            listen=self._tree_options(listen_options(settings, keys_of(settings)) if has_children else {}),
            dial=self._tree_options(dial_options(settings, parent) if parent is not None else {}),
            version=settings.broker.version_announced,
            hostname=hostname(settings, self.rank) if own is not None and own.hostname else "",
            hostnames={host.rank: host.hostname for host in settings.hosts if host.hostname},
            on_parent_loss=settings.broker.on_parent_loss,
            batch=tree.batch,
            torpid_min_s=tree.torpid_min_s,
            torpid_max_s=tree.torpid_max_s,
            hello_timeout_s=tree.connect_timeout_s,
        )

    def _tree_options(self, extra: dict[str, Any]) -> Options:
        options = self.options
        limits = OutboxLimits(
            high_bytes=options.limits.high_bytes,
            high_msgs=options.limits.high_msgs,
            event_bytes=options.limits.cap_bytes,
            cap_bytes=options.limits.cap_bytes,
        )
        return Options(
            flusher=options.flusher,
            budget=options.budget,
            limits=limits,
            insecure=options.insecure,
            connect_timeout_s=options.connect_timeout_s,
            max_bytes=lambda _peer: self.settings.limits.owner_message_bytes,
            extra=extra,
            refused=self._refused,
        )


def _log_only(reason: str) -> None:
    """Nobody runs this node as a process: there is nothing to exit."""
    log.error("would exit: %s", reason)


def _capture(broker: Broker, settings: Settings) -> Capture | None:
    """What records the traffic; None, and nothing of it is loaded, where nobody wants that."""
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


def user_ids(users: tuple[str | int, ...]) -> frozenset[int]:
    """Uids of names and uids.

    Raises:
        ConfigError: a name has no account here.
    """
    import pwd

    return _numbers("admin_users", users, lambda name: pwd.getpwnam(name).pw_uid)


def group_ids(groups: tuple[str | int, ...]) -> frozenset[int]:
    """Gids of names and gids.

    Raises:
        ConfigError: a name has no group here.
    """
    import grp

    return _numbers("admin_groups", groups, lambda name: grp.getgrnam(name).gr_gid)


def _numbers(key: str, entries: tuple[str | int, ...], look_up: Callable[[str], int]) -> frozenset[int]:
    try:
        return frozenset(entry if isinstance(entry, int) else look_up(entry) for entry in entries)
    except KeyError as error:
        raise ConfigError(f"access.{key}: {error.args[0]}") from error
