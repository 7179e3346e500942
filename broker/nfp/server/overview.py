"""The running broker as its management sees it (see ``management.managed``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.nfp.dispatch import ClientView, JobView, ResultView, ServiceView, WorkerView
from broker.nfp.management import Accounting, EventBus, LogBuffer, Messaging

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker


class Overview:
    """Implements ``ManagedBroker``."""

    def __init__(self, broker: NfpBroker) -> None:
        self._broker = broker
        self.name = broker.name
        self.epoch = broker.epoch
        self.keepalive_s = broker.settings.keepalive_ms / 1000
        self.multiplier = broker.settings.multiplier
        self.event_bus: EventBus = broker.event_bus
        self.accounting: Accounting = broker.accounting
        self.log: LogBuffer = broker.log

    @property
    def endpoints(self) -> Sequence[str]:
        """Where it listens."""
        return self._broker.endpoints

    @property
    def uptime_s(self) -> float:
        """Seconds since it was started."""
        return self._now() - self._broker.started_s

    @property
    def stopping(self) -> bool:
        """True once it is on its way out."""
        return self._broker.stopping

    @property
    def store_state(self) -> str:
        """Whether jobs are stored: "on", "off" or why nothing can be stored."""
        if not self._broker.settings.store:
            return "off"
        return self._broker.store.broken or "on"

    @property
    def security(self) -> Mapping[str, Any]:
        """What clients may know."""
        settings = self._broker.settings
        return {
            "curve": settings.curve,
            "server_key": self._broker.server_key,
            "unlisted": settings.unlisted,
            "offer_unlisted": settings.offer_unlisted,
            "listed_keys": len(settings.keys),
        }

    def workers(self) -> list[WorkerView]:
        """See ``Dispatcher.workers``."""
        return self._broker.dispatcher.workers(self._now())

    def services(self) -> list[ServiceView]:
        """See ``Dispatcher.services``."""
        return self._broker.dispatcher.services()

    def clients(self) -> list[ClientView]:
        """See ``Dispatcher.clients``."""
        return self._broker.dispatcher.clients(self._now())

    def jobs(self) -> Iterator[JobView]:
        """Every job, the newest first."""
        return self._broker.dispatcher.jobs(self._now(), newest_first=True)

    def job(self, uuid: str) -> JobView | None:
        """See ``Dispatcher.job``."""
        return self._broker.dispatcher.job(uuid, self._now())

    def results(self, uuid: str) -> list[ResultView]:
        """See ``Dispatcher.results``."""
        return self._broker.dispatcher.results(uuid)

    def messaging(self) -> Messaging:
        """Messages since the start."""
        broker = self._broker
        return Messaging(
            sent=sum(router.sent for router in broker.routers),
            received=sum(router.received for router in broker.routers),
            events_received=broker.event_bus.buffer.last,
            send_failures=sum(router.dropped for router in broker.routers),
            receive_failures=broker.invalid_messages.total,
        )

    def counters(self) -> Mapping[str, int]:
        """Everything the broker counts: messages, connections, invalid messages by class, jobs."""
        broker = self._broker
        routers = broker.routers
        counts = {
            "received": sum(router.received for router in routers),
            "sent": sum(router.sent for router in routers),
            "peers": sum(1 for _ in broker.peers()),
            "refused_keys": sum(router.authenticator.denied for router in routers),
            "failed_handshakes": sum(router.failed for router in routers),
            "cut_as_dead": sum(router.connections.cut for router in routers),
            "unsent": sum(router.dropped for router in routers) + broker.dropped,
            "failures": broker.invalid_messages.failures,
            "denied": broker.clients.denied,
            "pins": len(broker.name_pins),
            "pins_in_memory": broker.name_pins.passing,
            "pin_violations": broker.name_pins.violations,
            "names_refused": broker.name_pins.refused,
            "workers_called": broker.called,
            "invalid": broker.invalid_messages.total,
            "cut": broker.invalid_messages.cut,
            "unstored_ops": broker.store.lost,
        }
        counts.update((f"invalid_{kind}", count) for kind, count in broker.invalid_messages.by_kind.items())
        counts.update((f"jobs_{name}", count) for name, count in broker.dispatcher.counts.as_dict().items())
        return counts

    def inventory(self, *, redacted: bool) -> Any:
        """All of the inventory; ``redacted``: without what looks like a secret."""
        return self._broker.datastore.whole(redacted=redacted)

    def look(self, then: Callable[[Any], None]) -> None:
        """See ``Reader.look``."""
        self._broker.reader.look(then)

    def reload(self, then: Callable[[Any], None]) -> None:
        """See ``Reader.reload``."""
        self._broker.reader.reload(then)

    def disconnect(self, names: Sequence[str] | None, reason: str) -> list[str]:
        """DISCONNECT these workers."""
        return self._broker.dispatcher.disconnect_workers(names, reason, self._now())

    def unpin(self, name: str) -> bool:
        """Forget to which key ``name`` belongs."""
        return self._broker.name_pins.unpin(name)

    def leave(self, *, restart: bool, reason: str) -> None:
        """Stop, or start anew."""
        self._broker.leave(restart=restart, reason=reason)

    def _now(self) -> float:
        return self._broker.clock.now()
