"""Which worker gets which part: fair between clients, within credits, named ones only where they are for.

A part that finds a free worker goes there at once; else it waits in the queue of its service, or in the mailbox of
the worker it names. A worker with a free credit takes from its mailbox and from its service in turn.
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from broker.nfp.dispatch.foreign_jobs import ForeignJobs
from broker.nfp.dispatch.model import DISPATCHED, PART_BYTES, WAITING, Order, Part, Run, WorkerEntry
from broker.nfp.dispatch.queues import FairQueue
from broker.nfp.dispatch.rebalancing import Rebalancer
from broker.nfp.dispatch.registry import EVERY_SERVICE
from broker.nfp.dispatch.results import Results
from broker.nfp.dispatch.state import State
from broker.nfp.dispatch.translation import is_object
from broker.nfp.names import Command
from broker.nfp.records import Dispatched, PartAdded, Returned

ATTEMPTS_MAX: Final = 16
"""Attempts at a part in all, also those of workers that gave it back or did not know it."""
OTHERS_TRIED: Final = 8
"""Idle workers looked at for one that has not had the part before."""


class Scheduler:
    """Queues in front of workers.

    Attributes:
        rebalancer: takes back what a worker has not begun.
    """

    def __init__(self, state: State, results: Results, foreign: ForeignJobs) -> None:
        self._state = state
        self._results = results
        self._foreign = foreign
        self.rebalancer = Rebalancer(state.timers, self.may_have_begun)

    # -- queues ---------------------------------------------------------------------------------

    def full(self, service: str, names: tuple[str, ...], holder: str) -> str:
        """Why a request cannot wait, "" when it can. ``names`` are empty for any worker of the service."""
        state, config = self._state, self._state.config
        if state.open_orders >= config.jobs_max:
            return f"the broker is full ({config.jobs_max} jobs)"
        if state.open_bytes >= config.open_max_bytes:
            return f"the broker is full ({config.open_max_bytes} bytes of open jobs)"
        if state.waiting.of(holder) >= config.queue_per_client:
            return f"{config.queue_per_client} requests of this client wait already"
        more = len(names) or 1
        if state.open_parts + more > config.slots_max:
            return f"the broker is full ({config.slots_max} workers that jobs are for)"
        waiting = state.waiting_parts.of(holder)
        if waiting and waiting + more > config.slots_per_client:
            return f"requests of this client wait for {waiting} workers already ({config.slots_per_client})"
        found = state.registry.services.get(service)
        if not names and found is not None:
            if len(found.queue) + len(found.gathering) >= config.queue_max:
                return f"queue of service {service} is full ({config.queue_max})"
            return ""
        for name in names:
            box = state.registry.mailboxes.get(name)
            if box is not None and len(box) >= config.queue_max:
                return f"queue of worker {name} is full ({config.queue_max})"
        return ""

    def place(self, part: Part, now: float, *, front: bool = False) -> None:
        """A part that stands in no queue goes to a worker, or waits; ``front``: it had its turn before."""
        registry = self._state.registry
        claimant = self._foreign.claimant(part)
        if claimant is not None and self._give(part, claimant, now):  # whatever else it has to do
            return
        queue: FairQueue[Part] | None
        if part.name:
            named = registry.workers.get(part.name)
            queue = registry.mailboxes.get(part.name)
            if named is not None and named.free and (front or not queue) and self._give(part, named, now):
                return
            queue = registry.mailbox(part.name)
        else:
            queue = registry.service(part.order.service, now).queue
            while front or not queue:
                worker = self._choose(part)
                if worker is None:
                    break
                if self._give(part, worker, now):
                    return
        part.since = now
        queue.push(part, part.order.holder, front=front)
        part.queue = queue
        self.count_waiting(part.order, now)

    def count_waiting(self, order: Order, now: float) -> None:
        """One more part of ``order`` waits."""
        order.waiting += 1
        self._state.waiting_parts.add(order.holder)
        if order.waiting == 1:
            self._state.waiting.add(order.holder)
            self._state.check_in_time(order, now)

    def uncount_waiting(self, order: Order) -> None:
        """One part of ``order`` waits no more."""
        order.waiting -= 1
        self._state.waiting_parts.add(order.holder, -1)
        if not order.waiting:
            self._state.waiting.add(order.holder, -1)

    def gather(self, order: Order, now: float) -> None:
        """A request for all of a service that has nobody: it waits for the first worker."""
        self._state.registry.service(order.service, now).gathering[order] = None
        self.count_waiting(order, now)

    def stop_gathering(self, order: Order) -> None:
        """Its workers are known, or it is over."""
        service = self._state.registry.services[order.service]
        del service.gathering[order]
        self._state.registry.tidy(service)
        self.uncount_waiting(order)

    def settle_nowhere(self, order: Order, now: float) -> None:
        """A job that gathers workers ends before any came: it gets the one part whose result says so."""
        self.stop_gathering(order)
        self.count(order, [Part(order, "", now)])
        self._state.journal.put(PartAdded(order.uuid, ""))

    def count(self, order: Order, parts: Sequence[Part]) -> None:
        """An open job's parts are known."""
        state, more = self._state, len(parts)
        for part in parts:
            order.parts[part.name] = part
        order.open += more
        order.size += more * PART_BYTES
        state.open_bytes += more * PART_BYTES
        state.open_parts += more

    def withdraw(self, part: Part) -> None:
        """Take ``part`` out of where it waits; nothing happens when it waits nowhere."""
        if part.queue is not None:
            part.queue.remove(part, part.order.holder)
            self._left_queue(part)
        elif part.state == WAITING and part in self._state.returned:
            self._state.returned.remove(part)

    def _left_queue(self, part: Part) -> None:
        registry = self._state.registry
        part.queue = None
        if part.name:
            if not registry.mailboxes[part.name]:
                del registry.mailboxes[part.name]
        else:
            service = registry.services[part.order.service]
            if not service.queue:
                registry.tidy(service)
        self.uncount_waiting(part.order)

    # -- workers --------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Serve the workers and parts that this turn has made free."""
        state = self._state
        while state.freed or state.returned:
            while state.returned:
                self.place(state.returned.pop(), now, front=True)
            while state.freed:
                self.serve(state.freed.pop(), now)

    def serve(self, worker: WorkerEntry, now: float) -> None:
        """Give ``worker`` what waits for it, as far as its credits go."""
        while worker.free:
            queue = self._next_queue(worker)
            if queue is None:
                self.rebalancer.idle(worker.service, now)
                return
            part = queue.pop()
            self._left_queue(part)
            if not self._give(part, worker, now):
                self.place(part, now, front=True)

    def _next_queue(self, worker: WorkerEntry) -> FairQueue[Part] | None:
        box = self._state.registry.mailboxes.get(worker.name)
        queue = worker.service.queue
        if box and queue:
            worker.turn = not worker.turn
            return box if worker.turn else queue
        return box or queue or None

    def _choose(self, part: Part) -> WorkerEntry | None:
        """A worker of the part's service that can be given one more, rather one with a free slot: whose turn it is.

        Rather not one that has had the part before.
        """
        service = self._state.registry.services.get(part.order.service)
        idle = None if service is None else service.idle or service.ready
        if not idle:
            return None
        first = next(iter(idle))
        if part.given and first.name in part.given:
            return next((each for each in islice(idle, OTHERS_TRIED) if each.name not in part.given), first)
        return first

    def found_at(self, order: Order, worker: WorkerEntry, now: float) -> None:
        """``worker`` says that it holds ``order``: what waits of it and is for this worker goes there now."""
        for name in (worker.name, ""):
            part = order.parts.get(name)
            if part is not None and part.queue is not None and self._foreign.claimant(part) is worker:
                self.withdraw(part)
                self.place(part, now, front=True)
                return

    def _give(self, part: Part, worker: WorkerEntry, now: float) -> bool:
        """Dispatch ``part`` to ``worker``, which is there. False: it could not be sent and is where it was.

        A part that this worker must not or cannot run ends here.
        """
        connection, order, state = worker.connection, part.order, self._state
        assert connection is not None
        if wrong := self._unfit(part, worker):
            self._results.fail(part, *wrong, now)
            return True
        if not order.told_dispatched:
            order.told_dispatched = True
            self._state.responders.of(order.client).dispatched(order)
        before = part.given.get(worker.name, 0)
        run = self.bind(part, worker, part.attempt + 1, now)
        run.whole = not before or worker.name in part.strangers
        state.journal.put(Dispatched(order.uuid, part.name, worker.name, run.attempt))
        if run.check:
            run.asked = now
            sent = run.ask()
        else:
            sent = run.request(Command.POST, order.body, self._stored_before(run))
        if not sent:
            self._unbind(run, before)
            return False
        if worker.foreign:
            self._foreign.drop(worker, order.uuid)
        worker.sent = now
        state.counts.dispatched += 1
        state.tell("dispatched", order, worker.name, run.attempt)
        return True

    def _stored_before(self, run: Run) -> int:
        """The commit that the POST of a new ``run`` waits for, 0 for none.

        A task that may run twice need not wait for the group that stores the job itself and this dispatch of it, both
        or neither. If the broker is killed before it is written, the job never was: its client has no 202 and submits
        it again, by the same uuid; a worker that lists it as its own is preferred then (see ``foreign_jobs``) and does
        not run it again; what another worker says about it is about a job that nobody knows, and counts for nothing. If
        the disk is full the client is told so, and the worker to stop.
        """
        order, position = run.part.order, self._state.journal.position
        together = run.attempt == 1 and order.after == position
        return 0 if together and self.may_repeat(run) else position

    def _unfit(self, part: Part, worker: WorkerEntry) -> tuple[int, str] | None:
        order = part.order
        if part.attempt >= max(ATTEMPTS_MAX, self._state.config.attempts_max):
            return 500, f"given up after {part.attempt} attempts, none of which brought a result"
        service = worker.service.name
        allowed = order.service == EVERY_SERVICE and (
            order.principal is not None and self._state.access.may_call(order.principal, service, order.task)
        )
        if service != order.service and not allowed:
            return 400, f"not allowed: worker {worker.name} does not offer {order.service}"
        connection = worker.connection
        if connection is not None and connection.strict and not is_object(order):
            return 417, f"worker {worker.name} expects a JSON object, the request's body is none"
        return None

    def bind(self, part: Part, worker: WorkerEntry, attempt: int, now: float) -> Run:
        """``part`` is in the hands of ``worker`` from now on, and takes one of its credits."""
        run = Run(part, worker, attempt, now)
        connection = worker.connection
        run.check = (
            connection is not None
            and not connection.pushes
            and worker.name in part.given
            and worker.name not in part.strangers
        )
        run.holds = True
        worker.busy += 1
        worker.runs[part.order.uuid] = run
        part.run = run
        part.state = DISPATCHED
        part.attempt = max(attempt, part.attempt)
        part.given[worker.name] = attempt
        idle = worker.service.idle
        if worker.busy < worker.slots and worker in idle:
            idle.move_to_end(worker)
        else:
            self._state.registry.refresh(worker)
        return run

    def _unbind(self, run: Run, before: int) -> None:
        """The worker's queue is full, or it is gone without our having heard: nothing was sent.

        ``before`` is its latest attempt at the part before this one, 0 for none.
        """
        part, worker, state = run.part, run.worker, self._state
        worker.choked = True
        part.run = None
        part.state = WAITING
        part.attempt -= 1
        if before:
            part.given[worker.name] = before
        else:
            del part.given[worker.name]
        self._results.release(run)
        state.counts.unsent += 1
        state.journal.put(Returned(part.order.uuid, part.name))

    def no_longer_meant(self, worker: WorkerEntry, now: float) -> None:
        """``worker`` was expected after a restart and is not there: jobs for all do not wait for it."""
        box = self._state.registry.mailboxes.get(worker.name)
        for part in list(box) if box is not None else ():
            if part.order.target.kind == "all" and not part.attempt:
                self.withdraw(part)
                error = f"worker {worker.name} has not come back since the broker was started again"
                self._results.fail(part, 408, error, now)

    # -- parts that come back -------------------------------------------------------------------

    def give_back_lost(self, runs: list[Run], why: str, now: float) -> None:
        """The worker of these current ``runs`` was lost with them.

        What was lost most often before may have ended it; the others only happened to be there, so that it does not
        count for them.
        """
        most = max((len(run.part.lost) for run in runs), default=0)
        for run in runs:
            self.give_back(run, why, now, suspect=len(run.part.lost) == most)

    def give_back(
        self, run: Run, why: str, now: float, *, untouched: bool = False, suspect: bool = False
    ) -> None:
        """The worker of a current ``run`` is lost or does not know the job: to another one, where that is allowed.

        A ``suspect`` may be why the worker was lost: over one job no more than ``attempts_max`` are.
        """
        part, state = run.part, self._state
        order = part.order
        begun = self.may_have_begun(run) and not (untouched and part.state == DISPATCHED)
        self._results.release(run)
        part.run = None
        if begun:
            error = (
                f"worker {run.worker.name} {why} after it had been given the job; {order.service} {order.task} is not"
                " declared idempotent, so it is not run again"
            )
            self._results.fail(part, 408, error, now, lost=run.worker.name)
            return
        part.asked = None
        part.state = WAITING
        part.since = now
        state.counts.returned += 1
        state.journal.put(Returned(order.uuid, part.name))
        state.tell("returned", order, run.worker.name, run.attempt)
        if suspect:
            part.lost = (*part.lost, run.worker.name)
        if suspect and len(part.lost) >= state.config.attempts_max:
            times = len(part.lost)
            error = f"given up: {times} workers were lost while they had it ({part.losses}); it may have ended them"
            self._results.fail(part, 500, error, now, lost=run.worker.name)
            return
        state.returned.append(part)

    def may_have_begun(self, run: Run) -> bool:
        """Whether ``run`` is of a task that must not be run twice, and may have entered it."""
        part = run.part
        if part.state != DISPATCHED:
            return not part.repeat
        return not (self.asks_first(run) or self.may_repeat(run))

    def asks_first(self, run: Run) -> bool:
        """Whether the worker begins when its 201 was confirmed; others begin as soon as they have the job."""
        worker = run.worker
        return "jobs" in worker.features and worker.tasks.get(run.part.order.task) is False

    def may_repeat(self, run: Run) -> bool:
        """Whether the task may be run twice: as the settings say, else as its worker does, else yes."""
        state, order = self._state, run.part.order
        declared = state.config.idempotent or state.access.idempotent
        said = declared(run.worker.service.name, order.task)
        if said is None:
            said = run.worker.tasks.get(order.task)
        return said is not False

    def adopt(self, part: Part, worker: WorkerEntry, now: float) -> Run:
        """A worker that was given up speaks of a part that waits: it still has it."""
        self.withdraw(part)
        attempt = part.given[worker.name]
        self._state.journal.put(Dispatched(part.order.uuid, part.name, worker.name, attempt))
        run = self.bind(part, worker, attempt, now)
        run.check = False
        return run
