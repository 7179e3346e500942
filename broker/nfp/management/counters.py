"""What the broker counts, in our words and in deployed NorFab's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker


def counters(broker: NfpBroker) -> dict[str, int]:
    """Tell everything that was counted since the start: messages, connections, invalid messages by class, jobs."""
    routers, pins, invalid = broker.routers, broker.name_pins, broker.invalid_messages
    counts = {
        "received": sum(router.received for router in routers),
        "sent": sum(router.sent for router in routers),
        "peers": sum(1 for _ in broker.peers()),
        "refused_keys": sum(router.denied for router in routers),
        "failed_handshakes": sum(router.failed for router in routers),
        "cut_as_dead": sum(router.cut_dead for router in routers),
        "unsent": sum(router.dropped for router in routers) + broker.dropped,
        "failures": invalid.failures,
        "denied": broker.commands.denied,
        "pins": len(pins),
        "pins_in_memory": pins.passing,
        "pin_violations": pins.violations,
        "names_refused": pins.refused,
        "workers_called": broker.disconnects.sent,
        "invalid": invalid.total,
        "cut": invalid.cut,
        "unstored_ops": broker.store.lost,
    }
    counts.update((f"invalid_{kind}", count) for kind, count in invalid.by_kind.items())
    counts.update((f"jobs_{name}", count) for name, count in broker.dispatcher.counts.as_dict().items())
    return counts


def messaging(broker: NfpBroker) -> dict[str, int]:
    """Tell the messages since the start, as deployed NorFab does; failures were dropped or could not be sent."""
    return {
        "sent": sum(router.sent for router in broker.routers),
        "received": sum(router.received for router in broker.routers),
        "events_received": broker.event_bus.buffer.last,
        "send_failures": sum(router.dropped for router in broker.routers),
        "receive_failures": broker.invalid_messages.total,
    }
