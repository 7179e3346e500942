"""What management needs of the broker it manages, and nothing more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from broker.nfp.dispatch.views import ClientView, JobView, ResultView, ServiceView, WorkerView
from broker.nfp.logs import LogBuffer
from broker.nfp.management.accounting import Accounting
from broker.nfp.management.event_bus import EventBus


class Messaging(NamedTuple):
    """Messages since the start; failures are those that were dropped or could not be sent."""

    sent: int = 0
    received: int = 0
    events_received: int = 0
    send_failures: int = 0
    receive_failures: int = 0


class ManagedBroker(Protocol):
    """A running broker.

    Attributes:
        name: for people.
        epoch: its incarnation id.
        endpoints: where it listens, as clients write it.
        keepalive_s, multiplier: of workers.
        uptime_s: seconds since it was started, monotonic.
        stopping: True once it is on its way out.
        store_state: "on", "off" or why nothing can be stored at present.
        security: what clients may know about it (``curve``: bool, ``unlisted``: standing, ...); no paths.
        bus, accounting, log: made by the same composition.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def epoch(self) -> str: ...  # noqa: D102
    @property
    def endpoints(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def keepalive_s(self) -> float: ...  # noqa: D102
    @property
    def multiplier(self) -> int: ...  # noqa: D102
    @property
    def uptime_s(self) -> float: ...  # noqa: D102
    @property
    def stopping(self) -> bool: ...  # noqa: D102
    @property
    def store_state(self) -> str: ...  # noqa: D102
    @property
    def security(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def event_bus(self) -> EventBus: ...  # noqa: D102
    @property
    def accounting(self) -> Accounting: ...  # noqa: D102
    @property
    def log(self) -> LogBuffer: ...  # noqa: D102

    def workers(self) -> list[WorkerView]:
        """See ``Dispatcher.workers``."""

    def services(self) -> list[ServiceView]:
        """See ``Dispatcher.services``."""

    def clients(self) -> list[ClientView]:
        """See ``Dispatcher.clients``."""

    def jobs(self) -> Iterator[JobView]:
        """Every job, the newest first."""

    def job(self, uuid: str) -> JobView | None:
        """See ``Dispatcher.job``."""

    def results(self, uuid: str) -> list[ResultView]:
        """See ``Dispatcher.results``."""

    def messaging(self) -> Messaging:
        """Messages since the start."""

    def counters(self) -> Mapping[str, int]:
        """Everything the broker counts."""

    def inventory(self, *, redacted: bool) -> Any:
        """All of the inventory, as JSON can write it; ``redacted``: without what looks like a secret."""

    def look(self, then: Callable[[Any], None]) -> None:
        """Call ``then(None)`` once the inventory is as fresh as it gets in a moment."""

    def reload(self, then: Callable[[Any], None]) -> None:
        """Read the inventory again; ``then`` gets what is told about it, or an exception: then the old one is kept."""

    def disconnect(self, names: Sequence[str] | None, reason: str) -> list[str]:
        """DISCONNECT these workers, None for all; returns the names of those that were there."""

    def unpin(self, name: str) -> bool:
        """Forget to which key ``name`` belongs; False: it was not pinned."""

    def leave(self, *, restart: bool, reason: str) -> None:
        """Stop, or start anew, after what was sent so far has left."""
