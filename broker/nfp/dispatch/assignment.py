"""Which worker gets which slot: fair between clients, within credits, named ones only where they are for.

A slot that finds a free worker goes there at once; else it waits in the queue of its service, or in the mailbox of
the worker it names. A worker with a free credit takes from its mailbox and from its service in turn.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from broker.nfp.dispatch.job import DISPATCHED, SLOT_BYTES, WAITING, Job, Run, Slot
from broker.nfp.dispatch.reclaims import Reclaims
from broker.nfp.dispatch.rewriting import is_object
from broker.nfp.dispatch.roster import EVERY_SERVICE
from broker.nfp.dispatch.wires import ask
from broker.nfp.records import Dispatched, Returned, SlotAdded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.nfp.dispatch.claims import Claims
    from broker.nfp.dispatch.expiry import Deadlines
    from broker.nfp.dispatch.queues import FairQueue
    from broker.nfp.dispatch.results import Results
    from broker.nfp.dispatch.roster import Worker
    from broker.nfp.dispatch.state import State

OTHERS_TRIED: Final = 8
"""Idle workers looked at for one that has not had the slot before."""


class Assignment:
    """Queues in front of workers.

    Attributes:
        reclaims: takes back what a worker has not begun.
    """

    __slots__ = ("_claims", "_deadlines", "_results", "_state", "reclaims")

    def __init__(self, state: State, results: Results, deadlines: Deadlines, claims: Claims) -> None:
        self._state = state
        self._results = results
        self._deadlines = deadlines
        self._claims = claims
        self.reclaims = Reclaims(state.timers, self.may_have_begun)

    # -- queues ---------------------------------------------------------------------------------

    def full(self, service: str, names: tuple[str, ...], holder: str) -> str:
        """Why a request cannot wait, "" when it can. ``names`` are empty for any worker of the service."""
        state, config = self._state, self._state.config
        if state.open_jobs >= config.jobs_max:
            return f"the broker is full ({config.jobs_max} jobs)"
        if state.open_bytes >= config.open_max_bytes:
            return f"the broker is full ({config.open_max_bytes} bytes of open jobs)"
        if state.waiting.get(holder, 0) >= config.queue_per_client:
            return f"{config.queue_per_client} requests of this client wait already"
        more = len(names) or 1
        if state.open_slots + more > config.slots_max:
            return f"the broker is full ({config.slots_max} workers that jobs are for)"
        waiting = state.waiting_slots.get(holder, 0)
        if waiting and waiting + more > config.slots_per_client:
            return f"requests of this client wait for {waiting} workers already ({config.slots_per_client})"
        found = state.roster.services.get(service)
        if not names and found is not None:
            if len(found.queue) + len(found.gathering) >= config.queue_max:
                return f"queue of service {service} is full ({config.queue_max})"
            return ""
        for name in names:
            box = state.roster.mailboxes.get(name)
            if box is not None and len(box) >= config.queue_max:
                return f"queue of worker {name} is full ({config.queue_max})"
        return ""

    def place(self, slot: Slot, now: float, *, front: bool = False) -> None:
        """A slot that stands in no queue goes to a worker, or waits; ``front``: it had its turn before."""
        roster = self._state.roster
        if self._state.claims and self._give_claimed(slot, now):
            return
        queue: FairQueue | None
        if slot.name:
            named = roster.workers.get(slot.name)
            queue = roster.mailboxes.get(slot.name)
            if named is not None and named.free and (front or not queue) and self._give(slot, named, now):
                return
            queue = roster.mailbox(slot.name)
        else:
            queue = roster.service(slot.job.service, now).queue
            while front or not queue:
                worker = self._choose(slot)
                if worker is None:
                    break
                if self._give(slot, worker, now):
                    return
        slot.since = now
        if front:
            queue.push_front(slot)
        else:
            queue.push(slot)
        self.waits(slot.job, now)

    def waits(self, job: Job, now: float) -> None:
        """One more part of ``job`` waits."""
        job.waiting += 1
        slots, holder = self._state.waiting_slots, job.holder
        slots[holder] = slots.get(holder, 0) + 1
        if job.waiting == 1:
            waiting = self._state.waiting
            waiting[holder] = waiting.get(holder, 0) + 1
            self._deadlines.watch(job, now)

    def waits_no_more(self, job: Job) -> None:
        """One part of ``job`` waits no more."""
        job.waiting -= 1
        slots, holder = self._state.waiting_slots, job.holder
        slots[holder] -= 1
        if not slots[holder]:
            del slots[holder]
        if not job.waiting:
            waiting = self._state.waiting
            waiting[holder] -= 1
            if not waiting[holder]:
                del waiting[holder]

    def gather(self, job: Job, now: float) -> None:
        """A request for all of a service that has nobody: it waits for the first worker."""
        self._state.roster.service(job.service, now).gathering[job] = None
        self.waits(job, now)

    def stop_gathering(self, job: Job) -> None:
        """Its workers are known, or it is over."""
        service = self._state.roster.services[job.service]
        del service.gathering[job]
        self._state.roster.tidy(service)
        self.waits_no_more(job)

    def settle_nowhere(self, job: Job, now: float) -> None:
        """A job that gathers workers ends before any came: it gets the one slot whose result says so."""
        self.stop_gathering(job)
        self.count(job, [Slot(job, "", now)])
        self._state.journal.put(SlotAdded(job.uuid, ""))

    def count(self, job: Job, slots: Sequence[Slot]) -> None:
        """An open job's slots are known."""
        state, more = self._state, len(slots)
        for slot in slots:
            job.slots[slot.name] = slot
        job.open += more
        job.size += more * SLOT_BYTES
        state.open_bytes += more * SLOT_BYTES
        state.open_slots += more

    def withdraw(self, slot: Slot) -> None:
        """Take ``slot`` out of where it waits; nothing happens when it waits nowhere."""
        if slot.queue is not None:
            slot.queue.remove(slot)
            self._left_queue(slot)
        elif slot.state == WAITING and slot in self._state.returned:
            self._state.returned.remove(slot)

    def _left_queue(self, slot: Slot) -> None:
        roster = self._state.roster
        if slot.name:
            if not roster.mailboxes[slot.name]:
                del roster.mailboxes[slot.name]
        else:
            service = roster.services[slot.job.service]
            if not service.queue:
                roster.tidy(service)
        self.waits_no_more(slot.job)

    # -- workers --------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Serve the workers and slots that this turn has made free."""
        state = self._state
        while state.freed or state.returned:
            while state.returned:
                self.place(state.returned.pop(), now, front=True)
            while state.freed:
                self.serve(state.freed.pop(), now)

    def serve(self, worker: Worker, now: float) -> None:
        """Give ``worker`` what waits for it, as far as its credits go."""
        while worker.free:
            queue = self._next_queue(worker)
            if queue is None:
                self.reclaims.idle(worker.service, now)
                return
            slot = queue.pop()
            self._left_queue(slot)
            if not self._give(slot, worker, now):
                self.place(slot, now, front=True)

    def _next_queue(self, worker: Worker) -> FairQueue | None:
        box = self._state.roster.mailboxes.get(worker.name)
        queue = worker.service.queue
        if box and queue:
            worker.turn = not worker.turn
            return box if worker.turn else queue
        return box or queue or None

    def _choose(self, slot: Slot) -> Worker | None:
        """A worker of the slot's service that can be given one more, rather one with a free slot: whose turn it is.

        Rather not one that has had the slot before.
        """
        service = self._state.roster.services.get(slot.job.service)
        idle = None if service is None else service.idle or service.ready
        if not idle:
            return None
        first = next(iter(idle))
        if slot.given and first.name in slot.given:
            return next((each for each in islice(idle, OTHERS_TRIED) if each.name not in slot.given), first)
        return first

    def _give_claimed(self, slot: Slot, now: float) -> bool:
        """To a worker that says it holds this very job, whatever else it has to do."""
        worker = self._claims.holder(slot)
        return worker is not None and self._give(slot, worker, now)

    def claimed(self, job: Job, worker: Worker, now: float) -> None:
        """``worker`` says that it holds ``job``: what waits of it and is for this worker goes there now."""
        for name in (worker.name, ""):
            slot = job.slots.get(name)
            if slot is not None and slot.queue is not None and self._claims.holder(slot) is worker:
                self.withdraw(slot)
                self.place(slot, now, front=True)
                return

    def _give(self, slot: Slot, worker: Worker, now: float) -> bool:
        """Dispatch ``slot`` to ``worker``, which is there. False: it could not be sent and is where it was.

        A slot that this worker must not or cannot run ends here.
        """
        wire, job, state = worker.wire, slot.job, self._state
        assert wire is not None
        if wrong := self._unfit(slot, worker):
            self._results.give_up(slot, *wrong, now)
            return True
        if not job.told:
            job.told = True
            job.client.answers.dispatched(job)
        before = slot.given.get(worker.name, 0)
        run = self.bind(slot, worker, slot.attempt + 1, now)
        state.journal.put(Dispatched(job.uuid, slot.name, worker.name, run.attempt))
        if run.check:
            run.asked = now
            sent = ask(wire, job, run.attempt)
        else:
            sent = wire.post(job, run.attempt, self._stored_before(run))
        if not sent:
            self._unbind(run, before)
            return False
        if worker.claims:
            self._claims.drop(worker, job.uuid)
        worker.sent = now
        state.counts.dispatched += 1
        state.tell("dispatched", job, worker.name, run.attempt)
        return True

    def _stored_before(self, run: Run) -> int:
        """The commit that the POST of a new ``run`` waits for, 0 for none.

        A task that may run twice need not wait for the group that stores the job itself and this dispatch of it, both
        or neither. If the broker is killed before it is written, the job never was: its client has no 202 and submits
        it again, by the same uuid; a worker that lists it as its own is preferred then (see ``claims``) and does not
        run it again; what another worker says about it is about a job that nobody knows, and counts for nothing. If
        the disk is full the client is told so, and the worker to stop.
        """
        job, position = run.slot.job, self._state.journal.position
        together = run.attempt == 1 and job.after == position
        return 0 if together and self.may_repeat(run) else position

    def _unfit(self, slot: Slot, worker: Worker) -> tuple[int, str] | None:
        job = slot.job
        if slot.attempt >= self._state.config.attempts_max:
            return 500, f"given up after {slot.attempt} attempts, none of which brought a result"
        service = worker.service.name
        allowed = job.service == EVERY_SERVICE and (
            job.principal is not None and self._state.access.may_call(job.principal, service, job.task)
        )
        if service != job.service and not allowed:
            return 400, f"not allowed: worker {worker.name} does not offer {job.service}"
        wire = worker.wire
        if wire is not None and wire.strict and not is_object(job):
            return 417, f"worker {worker.name} expects a JSON object, the request's body is none"
        return None

    def bind(self, slot: Slot, worker: Worker, attempt: int, now: float) -> Run:
        """``slot`` is in the hands of ``worker`` from now on, and takes one of its credits."""
        run = Run(slot, worker, attempt, now)
        wire = worker.wire
        run.check = (
            wire is not None
            and not wire.pushes
            and worker.name in slot.given
            and worker.name not in slot.strangers
        )
        run.holds = True
        worker.busy += 1
        worker.runs[slot.job.uuid] = run
        slot.run = run
        slot.state = DISPATCHED
        slot.attempt = max(attempt, slot.attempt)
        slot.given[worker.name] = attempt
        idle = worker.service.idle
        if worker.busy < worker.slots and worker in idle:
            idle.move_to_end(worker)
        else:
            self._state.roster.refresh(worker)
        return run

    def _unbind(self, run: Run, before: int) -> None:
        """The worker's queue is full, or it is gone without our having heard: nothing was sent.

        ``before`` is its latest attempt at the slot before this one, 0 for none.
        """
        slot, worker, state = run.slot, run.worker, self._state
        worker.choked = True
        slot.run = None
        slot.state = WAITING
        slot.attempt -= 1
        if before:
            slot.given[worker.name] = before
        else:
            del slot.given[worker.name]
        self._results.let_go(run)
        state.counts.unsent += 1
        state.journal.put(Returned(slot.job.uuid, slot.name))

    # -- slots that come back -------------------------------------------------------------------

    def give_back(self, run: Run, why: str, now: float, *, untouched: bool = False) -> None:
        """The worker of a current ``run`` is lost or does not know the job: to another one, where that is allowed."""
        slot, state = run.slot, self._state
        job = slot.job
        if self.may_have_begun(run) and not (untouched and slot.state == DISPATCHED):
            error = (
                f"worker {run.worker.name} {why} after it had been given the job; {job.service} {job.task}"
            )
            state.counts.expired += 1
            self._results.let_go(run)
            slot.run = None
            self._results.give_up(
                slot, 408, f"{error} is not declared idempotent, so it is not run again", now
            )
            return
        self._results.let_go(run)
        slot.run = slot.asked = None
        slot.state = WAITING
        slot.since = now
        state.counts.returned += 1
        state.journal.put(Returned(job.uuid, slot.name))
        state.tell("returned", job, run.worker.name, run.attempt)
        state.returned.append(slot)

    def may_have_begun(self, run: Run) -> bool:
        """Whether ``run`` is of a task that must not be run twice, and may have entered it."""
        slot = run.slot
        if slot.state != DISPATCHED:
            return not slot.repeat
        return not (self.asks_first(run) or self.may_repeat(run))

    def asks_first(self, run: Run) -> bool:
        """Whether the worker begins when its 201 was confirmed; others begin as soon as they have the job."""
        worker = run.worker
        return "jobs" in worker.features and worker.tasks.get(run.slot.job.task) is False

    def may_repeat(self, run: Run) -> bool:
        """Whether the task may be run twice: as the settings say, else as its worker does, else yes."""
        state, job = self._state, run.slot.job
        declared = state.config.idempotent or state.access.idempotent
        said = declared(run.worker.service.name, job.task)
        if said is None:
            said = run.worker.tasks.get(job.task)
        return said is not False

    def adopt(self, slot: Slot, worker: Worker, now: float) -> Run:
        """A worker that was given up speaks of a slot that waits: it still has it."""
        self.withdraw(slot)
        attempt = slot.given[worker.name]
        self._state.journal.put(Dispatched(slot.job.uuid, slot.name, worker.name, attempt))
        run = self.bind(slot, worker, attempt, now)
        run.check = False
        return run
