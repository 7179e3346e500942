"""What the parts of the dispatcher share: tables, and three lists of what is still to be done in this turn."""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from broker.holdings import Holdings
from broker.nfp.access import Access
from broker.nfp.contract import JobEvent, Journal, OnJobEvent, Peer
from broker.nfp.dispatch.config import DispatchConfig
from broker.nfp.dispatch.counts import Counts
from broker.nfp.dispatch.model import Order, Part, WorkerEntry
from broker.nfp.dispatch.registry import ClientRegistry, WorkerRegistry
from broker.nfp.dispatch.responses import Responders
from broker.nfp.dispatch.task_stats import TaskStats
from broker.nfp.dispatch.timers import Timers

_EARLY_S: Final = 2.0
"""How long before a deadline the absence of workers is told, at most; a deployed client looks once a second."""
_EARLY_PART: Final = 0.1
"""The same, as a part of the job's time."""
Offended = Callable[[Peer, str, str], None]
"""A peer did what only a broken or hostile one does; a word for the counters, and a text that says what. It counts
against the peer, which may be gone when this returns."""


def ignore(peer: Peer, kind: str, offence: str) -> None:
    """Nobody counts offences."""


def unnoticed(errnum: int) -> None:
    """Nobody notices refusals."""


def absence_told_at(order: Order) -> float:
    """When its client is to hear that nobody is there, if that is so until then."""
    return order.deadline - min(_EARLY_S, _EARLY_PART * order.ttl_s)


class State:
    """Tables of one dispatcher.

    Attributes:
        responders: what clients are told, by kind.
        check: called as ``check(order, now)`` when an order is due, see ``check_at``; ``Expiry``'s.
        orders: open and closed ones, by uuid, in the order they came.
        closed: closed orders, the one that is forgotten next first.
        recent: those of them that are not in the store only, the latest.
        foreign: jobs that workers said they hold and were not given here: uuid -> those workers by name.
        waiting: by holder, how many of its jobs have a part that waits.
        waiting_parts: by holder, how many parts of its jobs wait.
        open_orders, open_parts: how many have not ended.
        open_bytes, kept_bytes: what open and closed jobs cost, see ``Order.size``; recent_bytes: those of ``recent``.
        freed: workers that may have a free credit.
        returned: parts that wait again and stand in no queue yet.
        safe: results to acknowledge, by worker.
        refused: told the errno of each request that is refused, before it is answered.
    """

    def __init__(
        self,
        config: DispatchConfig,
        journal: Journal,
        access: Access,
        happened: OnJobEvent,
        offended: Offended,
    ) -> None:
        self.config = config
        self.journal = journal
        self.access = access
        self.happened = happened
        self.offended = offended
        self.counts = Counts()
        self.tasks = TaskStats()
        self.responders = Responders(journal, self.counts)
        self.timers = Timers()
        self.check: Callable[[Order, float], None]
        self.registry = WorkerRegistry()
        self.clients = ClientRegistry()
        self.orders: dict[str, Order] = {}
        self.closed: deque[Order] = deque()
        self.recent: deque[Order] = deque()
        self.foreign: dict[str, dict[str, WorkerEntry]] = {}
        self.waiting: Holdings[str] = Holdings()
        self.waiting_parts: Holdings[str] = Holdings()
        self.open_bytes = self.kept_bytes = self.recent_bytes = self.open_orders = self.open_parts = 0
        self.freed: list[WorkerEntry] = []
        self.returned: list[Part] = []
        self.safe: dict[WorkerEntry, list[str]] = {}
        self.refused: Callable[[int], None] = unnoticed

    def misspelt_at(self, service: str) -> float:
        """When a name that nobody ever had counts as misspelt: every worker of ``service`` has had time to come.

        All do after a failover or a restart without store, a deployed one at its next KEEPALIVE. Inf: nobody is there.
        """
        return self.registry.began(service) + min(2 * self.config.keepalive_s, self.config.queue_ttl_s)

    def unread(self, uuid: str) -> bool:
        """Whether this is a closed job that has to be read from the store first."""
        order = self.orders.get(uuid)
        return order is not None and order.stored

    def check_in_time(self, order: Order, now: float) -> None:
        """A new order, or something of it waits that did not: have it checked before its time is over."""
        when = order.deadline
        if order.waiting:
            when = min(absence_told_at(order), now + self.config.queue_ttl_s)
        self.check_at(order, when)

    def check_at(self, order: Order, when: float) -> None:
        """Have ``order`` checked then, unless it is checked sooner anyway."""
        timer = order.timer
        if timer is None or timer.when > when:
            self.timers.cancel(timer)
            order.timer = self.timers.at(when, self.check, order)

    def has_room(self, worker: WorkerEntry) -> None:
        """``worker`` may be given more than before: it is served at the end of this turn."""
        self.registry.refresh(worker)
        self.freed.append(worker)

    def return_credit(self, worker: WorkerEntry) -> None:
        """One credit of ``worker`` less is in use."""
        worker.busy -= 1
        self.has_room(worker)

    def tell(
        self,
        kind: str,
        order: Order,
        worker: str = "",
        attempt: int = 0,
        status: int = 0,
        body: Any = b"",
        size: int = 0,
        ended: str = "",
    ) -> None:
        """Tell who listens."""
        self.happened(
            JobEvent(
                kind,
                order.uuid,
                order.service,
                order.task,
                order.holder,
                order.userid,
                worker,
                attempt,
                status,
                body,
                order.key,
                size,
                ended,
            )
        )
