"""Finality: one recorded result for each slot, whoever brings it first; how long it is remembered.

A slot that is final never changes. A worker that still runs it then, or lost the race, is told to stop when it
understands that; the credit stays in use until it says that it is done.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from broker.nfp import bodies
from broker.nfp.dispatch.job import CANCELLED, DONE, EXPIRED, FAILED, FINAL, OPEN, Job, Run, Slot
from broker.nfp.names import Command
from broker.nfp.records import Closed, Finished, Forgotten

if TYPE_CHECKING:
    from broker.nfp.dispatch.clients import Clients
    from broker.nfp.dispatch.roster import Worker
    from broker.nfp.dispatch.state import State

ACKNOWLEDGE_S: Final = 0.02
"""Workers that bring one result after the other are told in such intervals which are safe: one packet costs both sides
as much as a hundred uuids in it, and all a worker does with the news is to forget sooner."""


class Results:
    """Records results and closes jobs."""

    __slots__ = ("_acknowledged_at", "_clients", "_state")

    def __init__(self, state: State, clients: Clients) -> None:
        self._state = state
        self._clients = clients
        self._acknowledged_at = -inf

    # -- a slot ---------------------------------------------------------------------------------

    def brought(self, run: Run, status: int, body: bytes, now: float) -> None:
        """The worker of ``run`` brought the first final result of a slot that stands in no queue."""
        slot, worker, other = run.slot, run.worker, run.slot.run
        ready = run.ready
        self.let_go(run)
        if status == 200:
            worker.done += 1
        else:
            worker.failed += 1
        self._finish(slot, worker.name, run.attempt, status, body, ready, now)
        if other is not None and other is not run:
            self.detach(other, now)

    def give_up(self, slot: Slot, status: int, error: str, now: float) -> None:
        """The broker ends a slot that stands in no queue; ``error`` is for people."""
        job = slot.job
        run = slot.run
        worker = run.worker.name if run is not None else slot.name
        body = bodies.failed(status, job.uuid, job.service, job.target_text, error, worker=worker)
        self._finish(slot, "", slot.attempt, status, body, None, now)
        if run is not None:
            self.detach(run, now)

    def _finish(
        self,
        slot: Slot,
        worker: str,
        attempt: int,
        status: int,
        body: bytes,
        ready: object,
        now: float,
    ) -> None:
        state, job = self._state, slot.job
        slot.run = slot.asked = None
        slot.state = FINAL
        slot.worker, slot.status, slot.body = worker, status, body
        job.size += len(body)
        state.open_bytes += len(body)
        job.open -= 1
        state.open_slots -= 1
        state.counts.finished += 1
        if status != 200:
            state.counts.failed += 1
        state.journal.put(Finished(job.uuid, slot.name, worker, attempt, status, body))
        slot.after = state.journal.position
        state.tell("finished", job, worker, attempt, status, body, len(body))
        job.client.answers.recorded(slot, ready)
        if not job.open:
            self.close(job, now)

    # -- a worker's part in it ------------------------------------------------------------------

    def detach(self, run: Run, now: float) -> None:
        """``run`` is not current any more: somebody else's result counts, or nobody's.

        That is recorded before: a worker must not give up what a restarted broker would still count on.
        """
        worker = run.worker
        if worker.wire is None:
            self.let_go(run)
            return
        run.ended = run.ended or now
        if worker.wire.cancels:
            worker.wire.request(Command.DELETE, run.slot.job, run.attempt, b"", self._state.journal.position)

    def stop(self, run: Run, now: float) -> None:
        """A worker still has a part that is not its own any more, in a ``run`` that may be new here: it has to stop.

        Until it says that it has, a credit of it is in use.
        """
        worker, uuid = run.worker, run.slot.job.uuid
        if uuid not in worker.runs:
            worker.runs[uuid] = run
            worker.busy += 1
            run.holds = True
            self._state.roster.refresh(worker)
        self.detach(run, now)

    def let_go(self, run: Run) -> None:
        """The worker has nothing to do with the slot any more."""
        worker = run.worker
        if worker.runs.get(run.slot.job.uuid) is run:
            del worker.runs[run.slot.job.uuid]
        self.free_credit(run)

    def free_credit(self, run: Run) -> None:
        """A credit of the worker returns."""
        if run.holds:
            worker = run.worker
            run.holds = False
            worker.busy -= 1
            self._state.roster.refresh(worker)
            self._state.freed.append(worker)

    def acknowledge(self, worker: Worker, uuid: str) -> None:
        """Have ``worker`` told that its result is safe, if it wants to know: at the end of a turn, many in one."""
        if worker.wire is not None and worker.wire.records:
            self._state.safe.setdefault(worker, []).append(uuid)

    def send_acknowledgements(self, now: float, *, at_once: bool = False) -> float:
        """End of a turn: at once after a pause, else together. Returns when to be called again, inf for no need."""
        due = self._acknowledged_at + ACKNOWLEDGE_S
        if now < due and not at_once:
            return due
        self._acknowledged_at = now
        safe, self._state.safe = self._state.safe, {}
        for worker, uuids in safe.items():
            if worker.wire is not None:  # else it asks again when it is back
                worker.wire.recorded(uuids, self._state.journal.position)
        return inf

    # -- a job ----------------------------------------------------------------------------------

    def close(self, job: Job, now: float) -> None:
        """Every slot is final."""
        state = self._state
        statuses = {slot.status for slot in job.slots.values()}
        if statuses == {200}:
            job.state = DONE
        else:
            job.state = job.fate or FAILED
        job.closed_at = now
        state.timers.cancel(job.timer)
        job.timer = None
        state.journal.put(Closed(job.uuid, job.state))
        job.client.answers.closed(job)
        state.open_jobs -= 1
        state.open_bytes -= job.size
        job.client.open -= 1
        job.drop_body()
        self.keep(job)
        kind = job.state if job.state in (CANCELLED, EXPIRED) else "closed"
        state.tell(kind, job, status=max(statuses))

    def keep(self, job: Job) -> None:
        """A closed job is remembered; the oldest make room."""
        state = self._state
        state.closed.append(job)
        state.kept_bytes += job.size
        job.client.kept += 1
        config = state.config
        while state.closed[0] is not job and (
            state.kept_bytes > config.results_max_bytes or len(state.closed) > config.results_max_jobs
        ):
            self._forget(state.closed.popleft())

    def keep_earlier(self, job: Job) -> bool:
        """A job that was closed before all others here is remembered; False: there is no room, it is forgotten."""
        state, config = self._state, self._state.config
        if state.closed and (
            state.kept_bytes + job.size > config.results_max_bytes
            or len(state.closed) >= config.results_max_jobs
        ):
            state.counts.forgotten += 1
            state.journal.put(Forgotten(job.uuid))
            return False
        state.jobs[job.uuid] = job
        state.closed.appendleft(job)
        state.kept_bytes += job.size
        job.client.kept += 1
        return True

    def sweep(self, now: float) -> float:
        """Forget what was kept long enough. Returns when the next one is due."""
        closed, ttl = self._state.closed, self._state.config.result_ttl_s
        while closed:
            due = closed[0].closed_at + ttl
            if due > now:
                return due
            self._forget(closed.popleft())
        return inf

    def _forget(self, job: Job) -> None:
        state = self._state
        del state.jobs[job.uuid]
        state.kept_bytes -= job.size
        state.counts.forgotten += 1
        state.journal.put(Forgotten(job.uuid))
        job.client.kept -= 1
        self._part(job)

    def _part(self, job: Job) -> None:
        """The job's client is owed nothing because of it any more."""
        for slot in job.slots.values():
            job.client.owed.pop(slot, None)
        self._clients.tidy(job.client)

    def remove(self, job: Job) -> None:
        """A job that never was; it stands in no queue, and no worker has it."""
        state = self._state
        state.timers.cancel(job.timer)
        if job.state == OPEN:
            state.open_jobs -= 1
            state.open_slots -= job.open
            state.open_bytes -= job.size
            job.client.open -= 1
        else:
            state.closed.remove(job)
            state.kept_bytes -= job.size
            job.client.kept -= 1
        self._part(job)
