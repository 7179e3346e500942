"""What the parts of the dispatcher share: tables, and three lists of what is still to be done in this turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.nfp.contract import JobEvent, Peer
from broker.nfp.dispatch.counts import Counts
from broker.nfp.dispatch.roster import Roster
from broker.nfp.dispatch.timers import Timers

if TYPE_CHECKING:
    from broker.nfp.access import Access
    from broker.nfp.contract import Journal, Watch
    from broker.nfp.dispatch.config import DispatchConfig
    from broker.nfp.dispatch.job import Job, Slot
    from broker.nfp.dispatch.roster import Worker

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
        jobs: open and closed ones, by uuid, in the order they came.
        closed: closed jobs, the one that is forgotten next first.
        unread: uuids of closed jobs that are still to be read from the store.
        claims: jobs that workers said they hold and were not given here: uuid -> those workers by name.
        waiting: by holder, how many of its jobs have a slot that waits.
        waiting_slots: by holder, how many slots of its jobs wait.
        open_jobs, open_slots: how many have not ended.
        open_bytes, kept_bytes: what open and closed jobs cost, see ``Job.size``.
        freed: workers that may have a free credit.
        returned: slots that wait again and stand in no queue yet.
        safe: results to acknowledge, by worker.
        refused: told the errno of each request that is refused, before it is answered.
    """

    __slots__ = (
        "access",
        "claims",
        "closed",
        "config",
        "counts",
        "freed",
        "jobs",
        "journal",
        "kept_bytes",
        "offended",
        "open_bytes",
        "open_jobs",
        "open_slots",
        "refused",
        "returned",
        "roster",
        "safe",
        "timers",
        "unread",
        "waiting",
        "waiting_slots",
        "watch",
    )

    def __init__(
        self, config: DispatchConfig, journal: Journal, access: Access, watch: Watch, offended: Offended
    ) -> None:
        self.config = config
        self.journal = journal
        self.access = access
        self.watch = watch
        self.offended = offended
        self.counts = Counts()
        self.timers = Timers()
        self.roster = Roster()
        self.jobs: dict[str, Job] = {}
        self.closed: deque[Job] = deque()
        self.unread: dict[str, None] = {}
        self.claims: dict[str, dict[str, Worker]] = {}
        self.waiting: dict[str, int] = {}
        self.waiting_slots: dict[str, int] = {}
        self.open_bytes = self.kept_bytes = self.open_jobs = self.open_slots = 0
        self.freed: list[Worker] = []
        self.returned: list[Slot] = []
        self.safe: dict[Worker, list[str]] = {}
        self.refused: Callable[[int], None] = unnoticed

    def tell(
        self,
        kind: str,
        job: Job,
        worker: str = "",
        attempt: int = 0,
        status: int = 0,
        body: Any = b"",
        size: int = 0,
    ) -> None:
        """Tell whoever watches."""
        self.watch.happened(
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
                job.key,
                size,
            )
        )
