"""What the parts of the dispatcher share: tables, and three lists of what is still to be done in this turn."""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.nfp.access import Access
from broker.nfp.contract import JobEvent, Journal, OnJobEvent, Peer
from broker.nfp.dispatch.config import DispatchConfig
from broker.nfp.dispatch.counts import Counts
from broker.nfp.dispatch.model import Job, WorkerEntry
from broker.nfp.dispatch.registry import ClientRegistry, WorkerRegistry
from broker.nfp.dispatch.responses import Responders
from broker.nfp.dispatch.task_stats import TaskStats
from broker.nfp.dispatch.timers import Timers

Offended = Callable[[Peer, str, str], None]
"""A peer did what only a broken or hostile one does; a word for the counters, and a text that says what. It counts
against the peer, which may be gone when this returns."""


def ignore(peer: Peer, kind: str, offence: str) -> None:
    """Nobody counts offences."""


def unnoticed(errnum: int) -> None:
    """Nobody notices refusals."""


class State:
    """Tables of one dispatcher.

    Attributes:
        responders: what clients are told, by kind.
        by_uuid: all jobs, open and closed ones, in the order they came.
        open_jobs: how many have not ended. open_bytes: what they cost, see ``Job.size``.
        freed: workers that may have a free credit.
        on_refused: told the errno of each request that is refused, before it is answered.
    """

    def __init__(
        self,
        config: DispatchConfig,
        journal: Journal,
        access: Access,
        happened: OnJobEvent,
        offended: Offended,
        on_refused: Callable[[int], None],
        on_worker_change: Callable[[WorkerEntry, bool], None] | None,
    ) -> None:
        self.config = config
        self.journal = journal
        self.access = access
        self.happened = happened
        self.offended = offended
        self.on_refused = on_refused
        self.counts = Counts()
        self.tasks = TaskStats()
        self.responders = Responders(journal, self.counts)
        self.timers = Timers()
        self.registry = WorkerRegistry(on_worker_change)
        self.clients = ClientRegistry()
        self.by_uuid: dict[str, Job] = {}
        self.open_bytes = self.open_jobs = 0
        self.freed: list[WorkerEntry] = []

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
        job: Job,
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
                job.uuid,
                job.service,
                job.task,
                job.holder,
                job.userid,
                worker,
                attempt,
                status,
                body,
                size,
                ended,
            )
        )
