"""Settings -> what the rooms of one broker are told of links: limits, descriptors, options of listeners, the tree."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from broker.identity import PeerInfo
from broker.node.attributes import hostname
from broker.node.curve_keys import CurveKeys
from broker.node.overlay.overlay import OverlayConfig
from broker.routing.topology import NO_PARENT, Topology
from broker.routing.users import UserLimits
from broker.schemes import Capabilities, capabilities_of
from broker.settings import HostEntry, LimitsSection, ListenEntry, Settings
from broker.settings.transport_options import typed
from broker.transport.budget import Budget
from broker.transport.link import DescriptorReserve, Flusher, Options
from broker.transport.outbox import OutboxLimits

if TYPE_CHECKING:
    from broker.settings.schema import LimitsSection

log = logging.getLogger("headgate")

UNLIMITED: Final = 1 << 20
"""Taken for the limit where there is none, or a larger one: the kernel's own default (fs.nr_open)."""
KEPT_SHARE: Final = 8
"""An eighth of the descriptors is kept ..."""
KEPT_MAX: Final = 4096
"""... at most so many."""
STRANGERS_SHARE: Final = 4
"""Of those, a quarter may be in use by connections that have not said yet who they are."""
USER_SHARE: Final = 4
"""One user who is not the owner may have a quarter of all."""


def allowed() -> int:
    """Descriptors that this process may open."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)


def reserve_of(limits: LimitsSection, descriptors: int) -> DescriptorReserve:
    """The reserve of so many ``descriptors``; half of them at most, whatever the settings say."""
    kept = limits.reserved_descriptors
    if kept is None:
        kept = min(descriptors // KEPT_SHARE, KEPT_MAX)
    # half is for everybody, whatever the settings say
    elif kept > descriptors // 2:
        log.warning(
            "limits.reserved_descriptors = %d: half of the %d that this process may open are kept",
            kept,
            descriptors,
        )
        kept = descriptors // 2
    return DescriptorReserve(descriptors - kept, kept // STRANGERS_SHARE)


def connections_of(limits: LimitsSection, descriptors: int) -> int:
    """Connections that one user who is not the owner may have."""
    return limits.connections_per_user or max(1, descriptors // USER_SHARE)


Refused = Callable[[PeerInfo, int, str], object]
"""Told of a peer that was turned away, with errno and reason."""


def router_limits(limits: LimitsSection, descriptors: int) -> dict[str, Any]:
    """The keyword arguments of ``Router`` for a process that may open so many descriptors."""
    return {
        "pending_max": limits.pending_per_link,
        "pending_total": limits.pending_total,
        "routes_max": limits.routes_max,
        "topic_max_bytes": limits.topic_max_bytes,
        "guest_event_bytes": limits.guest_event_bytes,
        "user_limits": UserLimits(
            limits.calls_per_user,
            limits.services_per_user,
            limits.subscriptions_per_user,
            connections_of(limits, descriptors),
        ),
    }


def client_options(settings: Settings, flusher: Flusher, descriptors: int) -> Options:
    """Of the local socket, and what all other links have in common with it: flusher, budget, limits, reserve."""
    limits = settings.limits
    return Options(
        flusher=flusher,
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
        reserve=reserve_of(limits, descriptors),
    )


def listener_options(entry: ListenEntry, common: Options, curve_keys: CurveKeys, refused: Refused) -> Options:
    """Of one of ``[[listen]]``."""
    can = capabilities_of(entry.uri)
    return replace(
        common,
        dialect=entry.dialect,
        strict_rfc3=entry.strict_rfc3,
        insecure=entry.insecure,
        keys=curve_keys.clients,
        settings=typed(entry.options, can),
        extra=curve_keys.options() if can.protection == "curve" else {},
        refused=refused,
    )


def parent_entry(settings: Settings, topology: Topology, rank: int) -> HostEntry | None:
    """The entry of a rank's parent in ``[[hosts]]``; None for rank 0."""
    above = topology.parent(rank)
    return settings.host(above) if above != NO_PARENT else None


def overlay_config(
    settings: Settings,
    topology: Topology,
    rank: int,
    common: Options,
    curve_keys: CurveKeys,
    refused: Refused,
) -> OverlayConfig:
    """Of the tree's links at ``rank``."""
    tree, own, parent = settings.tree, settings.host(rank), parent_entry(settings, topology, rank)
    listens = own if topology.children(rank) else None

    def options(host: HostEntry | None, extra: Callable[[HostEntry], dict[str, Any]]) -> Options:
        """For links at the address of ``host``, ours or the parent's; None: there are none."""
        can = capabilities_of(host.address) if host is not None else Capabilities()
        return replace(
            common,
            limits=replace(common.limits, event_bytes=common.limits.cap_bytes, event_policy="disconnect"),
            max_bytes=lambda _peer: settings.limits.owner_message_bytes,
            keys=curve_keys.peers,
            tree=True,
            settings=typed(tree.options, can),
            extra=extra(host) if host is not None and can.protection == "curve" else {},
            has_reserve=lambda _peer: True,
            refused=refused,
        )

    return OverlayConfig(
        listen_uri=(listens.bind or listens.address) if listens is not None else None,
        parent_uri=parent.address if parent is not None else None,
        listen=options(listens, lambda _own: curve_keys.options()),
        dial=options(parent, curve_keys.dial_options),
        version=settings.broker.version_announced,
        hostname=hostname(settings, rank) if own is not None and own.hostname else "",
        hostnames={host.rank: host.hostname for host in settings.hosts if host.hostname},
        on_parent_loss=settings.broker.on_parent_loss,
        batch=tree.batch,
        torpid_min_s=tree.torpid_min_s,
        torpid_max_s=tree.torpid_max_s,
        hello_timeout_s=tree.connect_timeout_s,
    )
