"""Jobs that workers say they hold and that nobody gave them here: another broker did, or one whose store was lost.

Whoever submits such a job again must not have it run twice (NFP, "Reliability"): it goes to the worker that has it, at
once and over its credits. Until then a job that runs there takes one of these credits, as if it had been given here.
"""

# compiled: mypyc

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.nfp.frames import Packet
from broker.nfp.jobs.model import Part, WorkerEntry
from broker.nfp.names import FINAL_CODES, Command

if TYPE_CHECKING:
    from broker.nfp.jobs.schedule import Jobs

CLAIMS_MAX: Final = 200_000
"""Of all workers together; more than brokers take open jobs. What comes beyond is not remembered."""


class ClaimedJobs:
    """Who claims what.

    Attributes:
        claimants: by uuid of a job, the workers that claim it, by name; ``WorkerEntry.claims`` is the same by worker.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self.claimants: dict[str, dict[str, WorkerEntry]] = {}

    def add(self, worker: WorkerEntry, uuid: str, *, running: bool) -> None:
        """``worker`` says that it holds a job: it runs, or its result waits there."""
        claimants = self.claimants
        if uuid in worker.claims or len(claimants) >= CLAIMS_MAX:
            return
        claimants.setdefault(uuid, {})[worker.name] = worker
        worker.claims[uuid] = running
        if running:
            worker.busy += 1
            self._jobs.registry.refresh(worker)

    def claimant(self, part: Part) -> WorkerEntry | None:
        """Who is there, could be given ``part``, and says that it has the job."""
        holders = self.claimants.get(part.job.uuid)
        if holders is None:
            return None
        if part.name:
            workers = [holders[part.name]] if part.name in holders else []
        else:
            workers = [worker for worker in holders.values() if worker.service.name == part.job.service]
        return next((worker for worker in workers if worker.connection is not None), None)

    def drop(self, worker: WorkerEntry, uuid: str) -> None:
        """It is given the job here, or does not hold it any more; nothing happens when it never said so."""
        running = worker.claims.pop(uuid, None)
        if running is None:
            return
        holders = self.claimants[uuid]
        del holders[worker.name]
        if not holders:
            del self.claimants[uuid]
        if running:
            self._jobs.return_credit(worker)

    def clear(self, worker: WorkerEntry) -> None:
        """It is gone, or says anew what it holds."""
        for uuid in list(worker.claims):
            self.drop(worker, uuid)

    def heard(self, worker: WorkerEntry, packet: Packet) -> bool:
        """``worker`` speaks of a job that it was not given here: True when it has said that it holds it.

        A final result ends its running; it may still be asked for.
        """
        running = worker.claims.get(packet.uuid)
        if running is None:
            return False
        if running and packet.command is Command.RESPONSE and packet.status in FINAL_CODES:
            worker.claims[packet.uuid] = False
            self._jobs.return_credit(worker)
        return True
