"""Jobs in the hands of the broker: where their parts wait, which worker gets which, what comes of it, and when it ends.

In the order of a part's life: it is given to a worker with a free slot, or waits, in the queue of its service or in the
mailbox of the worker that was named; a job for all of a service that has nobody waits as a whole: it gathers workers. A
worker with a free slot takes from its mailbox and from its service in turn; clients take turns in each queue. What the
worker says about its part moves its attempt on, as ``machine`` has it: a step that takes a slot of the worker, or lets
it go, changes its credits. The first final result is recorded, and never changes. A worker that still runs the part
then, or lost the race, has to stop, if it can be told; its slot stays taken until it says that it is done.

A worker of ours is given one more job than it has slots, so that none of them is empty until the next job is there. Is
the job in front of it a long one, the other must not wait behind it while somebody else is idle: the worker is asked to
give it back, unless it has begun (``DELETE {"unless": "begun"}``).

A job has one timer (NFP, "NFP/Client": "SHOULD expire"). It goes off at the job's deadline, and while something of it
waits no later than one queue ttl after the last look: a service cannot have been absent for a whole ttl without our
having looked meanwhile. What waits for somebody who is not there ends a moment before the deadline: clients stop
listening at it, and would not hear why.
"""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from math import inf
from typing import Any, Final

import msgspec

from broker.holdings import Holdings
from broker.nesting import read_json
from broker.nfp import bodies
from broker.nfp.access import Access
from broker.nfp.contract import JobEvent, Journal, Offended, OnJobEvent
from broker.nfp.frames import Body
from broker.nfp.jobs import closed_jobs, told
from broker.nfp.jobs.config import Counts, DispatchConfig, TaskStats
from broker.nfp.jobs.machine import ATTEMPT, CURRENT, ENTERED, TAKES_SLOT, AttemptStep
from broker.nfp.jobs.model import (
    PART_BYTES,
    Attempt,
    Client,
    Job,
    Part,
    Relay,
    Service,
    Timers,
    WorkerEntry,
)
from broker.nfp.jobs.registry import EVERY_SERVICE, Registry
from broker.nfp.names import Command
from broker.nfp.outcome import CANCELLED, EXPIRED, FAILED, STATUS_WORDS
from broker.nfp.records import Accepted, Dispatched, Finished, PartAdded, Returned
from broker.nfp.states import following

ATTEMPTS_MAX: Final = 16
"""Attempts at a part in all, also those of workers that gave it back or did not know it."""
TAKE_BACK_S: Final = 0.25
"""A worker that runs a job says so long before: what it is silent about waits there for a slot."""
OTHERS_TRIED: Final = 8
"""Idle workers looked at for one that has not had the part before."""
ACKNOWLEDGE_S: Final = 0.02
"""Workers that bring one result after the other are told in such intervals which are safe: one packet costs both sides
as much as a hundred uuids in it, and all a worker does with the news is to forget sooner."""
MISSPELT: Final = "no worker is called {}, and no resource"
TOO_LATE: Final = "{} is a resource that nobody had announced when the job came: submit it again"
_EARLY_S: Final = 2.0
"""How long before a deadline the absence of workers is told, at most; a deployed client looks once a second."""
_EARLY_PART: Final = 0.1
"""The same, as a part of the job's time."""


class Jobs:
    """The tables of a dispatcher, and every step that a job takes in them.

    Attributes:
        by_uuid: all jobs, open and closed ones, in the order they came.
        open_jobs: how many have not ended. open_bytes: what they cost, see ``Job.size``. open_parts: how many of their
            parts have no result.
        waiting: by holder, how many of its jobs have a part that waits. waiting_parts: how many of their parts wait.
        freed: workers that may have a free credit. returned: parts that wait again and stand in no queue yet.
        safe: results to acknowledge, by worker.
        by_end: closed jobs, the one that is forgotten next first. recent: those that are not in the store only.
        kept_bytes, recent_bytes: what these cost, see ``Job.size``. read: those that were read for a moment.
        unpaid: clients that are owed what could not be read. pay_at: when it is tried again.
        relays: requests for the workers' management that were passed on, by uuid. relaying: how many, by holder.
            relayed_bytes: what workers have answered to them, bounded as ``open_bytes`` is, beside it.
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
        self.timers = Timers()
        self.registry = Registry(on_worker_change)
        self.by_uuid: dict[str, Job] = {}
        self.open_jobs = self.open_bytes = self.open_parts = 0
        self.waiting: Holdings[str] = Holdings()
        self.waiting_parts: Holdings[str] = Holdings()
        self.freed: list[WorkerEntry] = []
        self.returned: list[Part] = []
        self.safe: dict[WorkerEntry, list[str]] = {}
        self.by_end: deque[Job] = deque()
        self.recent: deque[Job] = deque()
        self.kept_bytes = self.recent_bytes = 0
        self.read: list[Job] = []
        self.unpaid: dict[Client, None] = {}
        self.pay_at = inf
        self.relays: dict[str, Relay] = {}
        self.relaying: Holdings[str] = Holdings()
        self.relayed_bytes = 0
        self._acknowledged_at = -inf

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
        about = job.uuid, job.service, job.task, job.holder, job.userid
        self.happened(JobEvent(kind, *about, worker, attempt, status, body, size, ended))

    # -- a job begins -----------------------------------------------------------------------------

    def full(self, service: str, names: Sequence[str], holder: str) -> str:
        """Why a request cannot wait, "" when it can; ``names`` are those of its parts."""
        config = self.config
        if self.open_jobs >= config.jobs_max:
            return f"the broker is full ({config.jobs_max} jobs)"
        if self.open_bytes >= config.open_max_bytes:
            return f"the broker is full ({config.open_max_bytes} bytes of open jobs)"
        if self.waiting.of(holder) >= config.queue_per_client:
            return f"{config.queue_per_client} requests of this client wait already"
        more = len(names) or 1
        if self.open_parts + more > config.parts_max:
            return f"the broker is full ({config.parts_max} workers that jobs are for)"
        waiting = self.waiting_parts.of(holder)
        if waiting and waiting + more > config.parts_per_client:
            return f"requests of this client wait for {waiting} workers already ({config.parts_per_client})"
        found = self.registry.services.get(service)
        for_service = len(found.queue) + len(found.gathering) if found is not None else 0
        if for_service >= config.queue_max and (not names or "" in names):
            return f"queue of service {service} is full ({config.queue_max})"
        for name in names:
            box = self.registry.mailboxes.get(name)
            if box is not None and len(box) >= config.queue_max:
                return f"queue of worker {name} is full ({config.queue_max})"
        return ""

    def count_open(self, job: Job, *, counted: bool = True) -> None:
        """``job`` has come, or is taken up again (not ``counted``)."""
        job.client.open += 1
        self.open_jobs += 1
        self.open_bytes += job.size
        self.tasks.submitted(job, counted=counted)

    def make_parts(self, job: Job, names: Iterable[str], now: float) -> list[Part]:
        """An open job's parts are known."""
        parts = []
        for name in names:
            part = job.parts[name] = Part(job, name, now)
            parts.append(part)
        more = len(parts)
        job.open += more
        job.size += more * PART_BYTES
        self.open_bytes += more * PART_BYTES
        self.open_parts += more
        return parts

    # -- waiting ----------------------------------------------------------------------------------

    def _wait(self, part: Part, now: float, *, front: bool) -> None:
        """``part`` waits from now on; ``front``: it had its turn before."""
        part.since = now
        part.queue = self.registry.queue_of(part, now)
        part.queue.push(part, part.job.holder, front=front)
        self._count_waiting(part.job, now)

    def gather(self, job: Job, now: float) -> None:
        """A request for all of a service that has nobody: it waits for the first worker."""
        self.registry.service(job.service, now).gathering[job] = None
        self._count_waiting(job, now)

    def _count_waiting(self, job: Job, now: float) -> None:
        """One more part of ``job`` waits."""
        job.waiting += 1
        self.waiting_parts.add(job.holder)
        if job.waiting == 1:
            self.waiting.add(job.holder)
            self.watch(job, now)

    def _uncount_waiting(self, job: Job) -> None:
        """One part of ``job`` waits no more."""
        job.waiting -= 1
        self.waiting_parts.add(job.holder, -1)
        if not job.waiting:
            self.waiting.add(job.holder, -1)

    def _next_for(self, worker: WorkerEntry) -> Part | None:
        """Take out what is the next for ``worker``; None: nothing waits for it."""
        box, queue = self.registry.mailboxes.get(worker.name), worker.service.queue
        if box and queue:
            worker.turn = not worker.turn
        if box and (worker.turn or not queue):
            queue = box
        if not queue:
            return None
        part = queue.pop()
        self._left_queue(part)
        return part

    def withdraw(self, part: Part) -> None:
        """Take ``part`` out of where it waits; nothing happens when it waits nowhere."""
        if part.queue is not None:
            part.queue.remove(part, part.job.holder)
            self._left_queue(part)
        elif part.state == "waiting" and part in self.returned:
            self.returned.remove(part)

    def _left_queue(self, part: Part) -> None:
        registry = self.registry
        part.queue = None
        if not part.name:
            registry.tidy(registry.services[part.job.service])
        elif not registry.mailboxes[part.name]:
            del registry.mailboxes[part.name]
        self._uncount_waiting(part.job)

    def stop_gathering(self, job: Job) -> None:
        """Its workers are known, or it is over."""
        service = self.registry.services[job.service]
        del service.gathering[job]
        self.registry.tidy(service)
        self._uncount_waiting(job)

    def settle_nowhere(self, job: Job, now: float) -> None:
        """A job that gathers workers ends before any came: it gets the one part whose result says so."""
        self.stop_gathering(job)
        self.make_parts(job, [""], now)
        self.journal.put(PartAdded(job.uuid, ""))

    # -- time limits ------------------------------------------------------------------------------

    def watch(self, job: Job, now: float) -> None:
        """Have an open job checked before its time is over."""
        when = job.deadline
        if job.waiting:
            when = min(_absence_told_at(job), now + self.config.queue_ttl_s)
        self.check_at(job, when)

    def check_at(self, job: Job, when: float) -> None:
        """Have ``job`` checked then, unless it is checked sooner anyway."""
        timer = job.timer
        if timer is None or timer.when > when:
            self.timers.cancel(timer)
            job.timer = self.timers.at(when, self._check, job)

    def _check(self, job: Job, now: float) -> None:
        """``job`` is due, see ``check_at``."""
        job.timer = None
        if now >= job.deadline:
            self._expire(job, f"no result within {job.ttl_s:g} s", now)
            return
        if not job.parts and self._given_up_at("", job, job.added_at, now) <= now:
            self._expire(job, self._nobody("", job, job.added_at, now), now)
            return
        for part in _waiting_of(job):
            if self._misspelt_at(part.name, job) <= now:
                self.withdraw(part)
                late = bool(self.registry.named(part.name, job.service))
                self.fail(part, 400, (TOO_LATE if late else MISSPELT).format(part.name), now)
            elif self._given_up_at(part.name, job, part.since, now) <= now:
                self._expire_part(part, self._nobody(part.name, job, part.since, now), now)
        if job.open or not job.parts:
            waits = [(part.name, part.since) for part in _waiting_of(job)]
            if not job.parts:
                waits = [("", job.added_at)]
            times = [self._given_up_at(name, job, since, now) for name, since in waits]
            self.check_at(job, min([job.deadline, *times]))

    def _given_up_at(self, name: str, job: Job, since: float, now: float) -> float:
        """When a part that waits since ``since`` has waited too long if nobody comes; while somebody is there, when
        to look again.
        """
        absent = self.registry.absent_since(name, job.service)
        early, ttl_s = _absence_told_at(job), self.config.queue_ttl_s
        if absent is None:
            return min(now + ttl_s, early if early > now else job.deadline)
        return min(max(absent, since) + ttl_s, early, self._misspelt_at(name, job))

    def _misspelt_at(self, name: str, job: Job) -> float:
        return inf if not name or self.registry.knows(name) else self.misspelt_at(job.service)

    def misspelt_at(self, service: str) -> float:
        """When a name that nobody ever had counts as misspelt: every worker of ``service`` has had time to come.

        All do after a failover or a restart without store, a deployed one at its next KEEPALIVE. Inf: nobody is there.
        """
        config = self.config
        return self.registry.began(service) + min(2 * config.keepalive_s, config.queue_ttl_s)

    def _nobody(self, name: str, job: Job, since: float, now: float) -> str:
        absent = self.registry.absent_since(name, job.service)
        who = f"worker {name} was not there" if name else f"service {job.service} had no workers"
        return f"{who} for {now - max(absent or 0.0, since):.3g} s"

    def _expire(self, job: Job, error: str, now: float) -> None:
        """Every part that is not final; a job that still gathers workers gets the one part that says so."""
        if not job.parts:
            self.settle_nowhere(job, now)
        for part in [part for part in job.parts.values() if part.state != "final"]:
            self._expire_part(part, error, now)

    def _expire_part(self, part: Part, error: str, now: float) -> None:
        self.withdraw(part)
        if part.lost:
            error += f"; while workers had it these were lost: {part.losses}"
        self.fail(part, 408, error, now)

    def no_longer_meant(self, worker: WorkerEntry, now: float) -> None:
        """``worker`` was expected after a restart and is not there: jobs for all do not wait for it."""
        for part in list(self.registry.mailboxes.get(worker.name, ())):
            if part.job.target.kind == "all" and not part.given:
                self.withdraw(part)
                error = f"worker {worker.name} has not come back since the broker was started again"
                self.fail(part, 408, error, now)

    # -- given to workers -------------------------------------------------------------------------

    def place(self, part: Part, now: float, *, front: bool = False) -> None:
        """A part that stands in no queue goes to a worker, or waits; ``front``: it had its turn before."""
        registry = self.registry
        claimant = registry.claimant(part)
        if claimant is not None and self._give(part, claimant, now):  # whatever else it has to do
            return
        if part.name:
            named = registry.workers.get(part.name)
            free = named is not None and named.free and (front or not registry.mailboxes.get(part.name))
            if named is not None and free and self._give(part, named, now):
                return
        else:
            queue = registry.service(part.job.service, now).queue
            while front or not queue:
                worker = self._choose(part)
                if worker is None:
                    break
                if self._give(part, worker, now):
                    return
        self._wait(part, now, front=front)

    def free(self, worker: WorkerEntry) -> None:
        """``worker`` may be given more than before: it is served at the end of this turn."""
        self.registry.refresh(worker)
        self.freed.append(worker)

    def settle(self, now: float) -> None:
        """Serve the workers and parts that this turn has made free."""
        while self.freed or self.returned:
            while self.returned:
                self.place(self.returned.pop(), now, front=True)
            while self.freed:
                self._serve(self.freed.pop(), now)

    def _serve(self, worker: WorkerEntry, now: float) -> None:
        """Give ``worker`` what waits for it, as far as its credits go."""
        while worker.free:
            part = self._next_for(worker)
            if part is None:
                self._share(worker.service, now)
                return
            if not self._give(part, worker, now):
                self.place(part, now, front=True)

    def _choose(self, part: Part) -> WorkerEntry | None:
        """A worker of the part's service that can be given one more, rather one with a free slot: whose turn it is.

        Rather not one that has had the part before.
        """
        service = self.registry.services.get(part.job.service)
        idle = None if service is None else service.idle or service.ready
        if not idle:
            return None
        first = next(iter(idle))
        if part.given and first.name in part.given:
            return next((each for each in islice(idle, OTHERS_TRIED) if each.name not in part.given), first)
        return first

    def _give(self, part: Part, worker: WorkerEntry, now: float) -> bool:
        """Dispatch ``part`` to ``worker``, which is there. False: it could not be sent and is where it was.

        A part that this worker must not or cannot run ends here.
        """
        job, claims = part.job, self.registry.claims
        if wrong := self._unfit(part, worker):
            self.fail(part, *wrong, now)
            return True
        if not job.told_dispatched:
            job.told_dispatched = True
            told.dispatched(job)
        before = part.given.get(worker.name, 0)
        may_have_it = before and worker.name not in part.forgotten
        event: AttemptStep = "probe" if may_have_it and not worker.pushes else "post"
        attempt = self.begin(part, worker, part.number + 1, event, now)
        attempt.fresh = not may_have_it
        self.journal.put(Dispatched(job.uuid, part.name, worker.name, attempt.number))
        if event == "probe":
            attempt.asked = now
            sent = attempt.ask()
        else:
            sent = attempt.request(Command.POST, job.body, self._stored_before(attempt))
        if not sent:
            self._take_back_unsent(attempt, before)
            return False
        if part.forgotten:  # else it would cost every part a set of its own
            part.forgotten -= {worker.name}
        if claims and claims.get(job.uuid) is worker:
            del claims[job.uuid]
        worker.sent = now
        self.counts.dispatched += 1
        self.tell("dispatched", job, worker.name, attempt.number)
        return True

    def _stored_before(self, attempt: Attempt) -> int:
        """The commit that the POST of a new attempt waits for, 0 for none.

        A task that may run twice need not wait for the group that stores the job itself and this dispatch of it, both
        or neither. If the broker is killed before it is written, the job never was: its client has no 202 and submits
        it again, by the same uuid; a worker that lists it as its own is preferred then (see ``Registry.claim``) and
        does not run it again; what another worker says about it is about a job that nobody knows, and counts for
        nothing. If the disk is full the client is told so, and the worker to stop.
        """
        job, position = attempt.part.job, self.journal.position
        together = attempt.number == 1 and job.after == position
        return 0 if together and self.may_repeat(attempt) else position

    def _unfit(self, part: Part, worker: WorkerEntry) -> tuple[int, str] | None:
        job = part.job
        if part.number >= max(ATTEMPTS_MAX, self.config.attempts_max):
            return 500, f"given up after {part.number} attempts, none of which brought a result"
        service = worker.service.name
        allowed = job.service == EVERY_SERVICE and (
            job.principal is not None and self.access.may_call(job.principal, service, job.task)
        )
        if service != job.service and not allowed:
            return 400, f"not allowed: worker {worker.name} does not offer {job.service}"
        if worker.strict and not _is_object(job):
            return 417, f"worker {worker.name} expects a JSON object, the request's body is none"
        return None

    def _take_back_unsent(self, attempt: Attempt, before: int) -> None:
        """The worker's queue is full, or it is gone without our having heard: nothing was sent.

        ``before`` is its latest attempt at the part before this one, 0 for none.
        """
        part, worker = attempt.part, attempt.worker
        worker.choked = True
        part.current = None
        part.step("return")
        if before:
            part.given[worker.name] = before
        else:
            del part.given[worker.name]
        self.move(attempt, "unsent")
        self.counts.unsent += 1
        self.journal.put(Returned(part.job.uuid, part.name))

    # -- parts that come back ---------------------------------------------------------------------

    def give_back_lost(self, attempts: list[Attempt], why: str, now: float, *, suspect: bool = True) -> None:
        """The worker of these current attempts was lost with them, maybe because of one of them (``suspect``).

        What was lost most often before may have ended it; the others only happened to be there, so that it does not
        count for them.
        """
        most = max((len(attempt.part.lost) for attempt in attempts), default=0)
        for attempt in attempts:
            self.give_back(attempt, "lose", why, now, suspect=suspect and len(attempt.part.lost) == most)

    def give_back(
        self, attempt: Attempt, event: AttemptStep, why: str, now: float, *, suspect: bool = False
    ) -> None:
        """The worker of a current attempt is lost, or does not know the job ("forget"): to another one, where that
        is allowed.

        A ``suspect`` may be why the worker was lost: over one job no more than ``attempts_max`` are.
        """
        part = attempt.part
        job, worker = part.job, attempt.worker.name
        untouched = event == "forget" and attempt.state not in ENTERED
        begun = self.may_have_begun(attempt) and not untouched
        self.move(attempt, event)
        part.current = None
        if begun:
            error = (
                f"worker {worker} {why} after it had been given the job; {job.service} {job.task} is not"
                " declared idempotent, so it is not run again"
            )
            self.fail(part, 408, error, now, lost=worker)
            return
        part.step("return")
        part.since = now
        self.counts.returned += 1
        self.journal.put(Returned(job.uuid, part.name))
        self.tell("returned", job, worker, attempt.number)
        if suspect:
            part.lost = (*part.lost, worker)
        if suspect and len(part.lost) >= self.config.attempts_max:
            times = len(part.lost)
            error = f"given up: {times} workers were lost while they had it ({part.losses}); it may have ended them"
            self.fail(part, 500, error, now, lost=worker)
            return
        self.returned.append(part)

    # -- parts that are taken back ----------------------------------------------------------------

    def _share(self, service: Service, now: float) -> None:
        """Somebody of ``service`` has nothing to do: what others have not begun in a while is taken back for it."""
        if service.idle and service.ahead and service.sharing is None:
            service.sharing = self.timers.at(now + TAKE_BACK_S, self._rebalance, service)

    def _rebalance(self, service: Service, now: float) -> None:
        service.sharing = None
        places, later = len(service.idle), False
        for worker in islice(list(service.ahead), places):
            waiting = [each for each in worker.attempts.values() if self._could_wait(each) and not each.asked]
            long = [attempt for attempt in waiting if now - attempt.heard >= TAKE_BACK_S]
            for attempt in long[-1:]:  # the newest: the others are begun before it
                self.take_back(attempt, now)
            later = later or len(waiting) > len(long)
        if later:
            self._share(service, now)

    def _could_wait(self, attempt: Attempt) -> bool:
        """Whether an attempt at a part for any worker may wait for a slot of its worker, and could be taken back."""
        fits = attempt.state == "sent" and not attempt.part.name and attempt.worker.lists
        return fits and not self.may_have_begun(attempt)

    def may_take_back(self, attempt: Attempt, now: float) -> bool:
        """Whether the worker, of any, has not begun for a while and another has nothing to do."""
        worker = attempt.worker
        return (
            self._could_wait(attempt)
            and now - attempt.heard >= TAKE_BACK_S
            and any(each is not worker for each in worker.service.idle)
        )

    def take_back(self, attempt: Attempt, now: float) -> None:
        """Have the worker give the job back, unless it has begun: 404 says that it has it no more, 201 that it runs."""
        if attempt.request(Command.DELETE, bodies.UNBEGUN):
            attempt.asked = now

    # -- attempts ---------------------------------------------------------------------------------

    def begin(self, part: Part, worker: WorkerEntry, number: int, event: AttemptStep, now: float) -> Attempt:
        """A part that stands in no queue is in the hands of ``worker`` from now on; ``event``: post, probe or adopt."""
        former = worker.attempts.get(part.job.uuid)
        if former is not None:  # it has to stop one, and is given the job again
            self.move(former, "lose")
        part.step("give")
        attempt = part.current = Attempt(part, worker, number, now)
        part.given[worker.name] = number
        self.move(attempt, event)
        return attempt

    def attempt_at(self, part: Part, worker: WorkerEntry, now: float) -> Attempt:
        """What a worker that was given ``part`` and holds nothing for it here has to do with it: its result may come.

        When the part waits the worker, which was given up, still has it.
        """
        number = part.given[worker.name]
        if part.state != "waiting":
            return Attempt(part, worker, number, now)
        self.withdraw(part)
        self.journal.put(Dispatched(part.job.uuid, part.name, worker.name, number))
        return self.begin(part, worker, number, "adopt", now)

    def move(self, attempt: Attempt, event: AttemptStep) -> None:
        """Go on to the state that ``event`` leads to.

        Raises:
            IllegalEvent: it cannot happen now.
        """
        before = attempt.state
        after = attempt.state = following(ATTEMPT, before, event)
        if after == before:
            return
        worker, uuid = attempt.worker, attempt.part.job.uuid
        if before == "released":
            worker.attempts[uuid] = attempt
        elif after == "released":
            del worker.attempts[uuid]
            self._drop_content(attempt)
        took, takes = before in TAKES_SLOT, after in TAKES_SLOT
        if takes and not took:
            worker.busy += 1
            idle = worker.service.idle
            if worker.busy < worker.slots and worker in idle:
                idle.move_to_end(worker)
            else:
                self.registry.refresh(worker)
        elif took and not takes:
            worker.busy -= 1
            self.free(worker)

    def _drop_content(self, attempt: Attempt) -> None:
        """What was streamed for a client that gets it as one result is not needed any more."""
        if attempt.content is not None:
            attempt.part.job.size -= len(attempt.content)
            self.open_bytes -= len(attempt.content)
            attempt.content = None

    def accept(self, attempt: Attempt, body: Body = None, *, told_so: bool = True) -> None:
        """The worker of a current attempt has the job, by whatever it said; ``body`` is that of its 201.

        The client is told so once, in front of every event: 201. It is not (``told_so``) when the result is there
        already.
        """
        entered = attempt.state in ENTERED
        self.move(attempt, "accept")
        if entered:
            return
        part, worker = attempt.part, attempt.worker
        job = part.job
        attempt.once = not self.may_repeat(attempt)  # for good, whatever the worker says when it is back
        if attempt.once:
            # an older token may have been echoed: the store knows the attempt under way only
            self.journal.put(Accepted(job.uuid, part.name, part.given[worker.name]))
        self.tell("accepted", job, worker.name, attempt.number)
        if told_so:
            told.accepted(job, body or bodies.accepted(job.uuid, worker.service.name, worker.name))

    def cancel(self, attempt: Attempt, now: float) -> None:
        """The part is not this worker's any more: it has to stop, if it can be told.

        Whose part it is is recorded before: a worker must not give up what a restarted broker would still count on.
        """
        if attempt.worker.peer is None:
            self.move(attempt, "lose")
            return
        self.move(attempt, "cancel")
        attempt.heard = now
        if attempt.worker.cancels:
            attempt.request(Command.DELETE, b"", self.journal.position)

    # -- may it be run twice? ---------------------------------------------------------------------

    def may_have_begun(self, attempt: Attempt) -> bool:
        """Whether a current attempt is at a task that must not be run twice, and may have entered it."""
        if attempt.state in ENTERED:
            return attempt.once
        return not (self.asks_first(attempt) or self.may_repeat(attempt))

    def asks_first(self, attempt: Attempt) -> bool:
        """Whether the worker begins when its 201 was confirmed; others begin as soon as they have the job."""
        worker = attempt.worker
        return worker.lists and worker.tasks.get(attempt.part.job.task) is False

    def may_repeat(self, attempt: Attempt) -> bool:
        """Whether the task may be run twice: as the settings say, else as its worker does, else yes."""
        task = attempt.part.job.task
        declared = self.config.idempotent or self.access.idempotent
        said = declared(attempt.worker.service.name, task)
        if said is None:
            said = attempt.worker.tasks.get(task)
        return said is not False

    # -- results ----------------------------------------------------------------------------------

    def record(self, attempt: Attempt, status: int, body: bytes, now: float) -> None:
        """The worker of ``attempt`` brought the first final result of a part."""
        self.withdraw(attempt.part)  # it had to stop: the part went to somebody else, and waits again
        if attempt.content is not None and status == 200 and not bodies.says_failed(body):
            body = bytes(attempt.content)
        worker = attempt.worker.name
        self.move(attempt, "finish")
        self._finish(attempt.part, worker, attempt.number, status, body, attempt.announcement, now, at=worker)

    def fail(self, part: Part, status: int, error: str, now: float, *, lost: str = "") -> None:
        """The broker ends a part that stands in no queue; ``error`` is for people.

        ``lost`` is the worker that had it and is gone: the part has failed then, whatever the status.
        """
        job = part.job
        at = part.current.worker.name if part.current is not None else lost
        word = STATUS_WORDS[FAILED] if lost else ""
        target, worker = job.target_text, part.name if lost else at or part.name
        body = bodies.failed(status, job.uuid, job.service, target, error, worker=worker, word=word)
        self._finish(part, "", part.number, status, body, None, now, at=at)

    def _finish(
        self,
        part: Part,
        worker: str,
        number: int,
        status: int,
        body: bytes,
        announcement: object,
        now: float,
        *,
        at: str,
    ) -> None:
        """``at`` is the worker that had it, "" when nobody had. Who still has it has to stop, once it is recorded."""
        job = part.job
        current, part.current = part.current, None
        part.settle(worker, status, body)
        if current is not None:
            self._drop_content(current)
        if at:
            self.registry.count(at, part.ended)
        job.size += len(body)
        self.open_bytes += len(body)
        job.open -= 1
        self.open_parts -= 1
        self.counts.finished += 1
        closes = "" if job.open else job.end
        self.journal.put(Finished(job.uuid, part.name, worker, number, status, body, closes))
        part.after = self.journal.position
        self.tell("finished", job, worker, number, status, body, len(body), part.ended)
        told.recorded(self, part, announcement)
        if not job.open:
            self.close(job, closes, now)
        if current is not None and current.state in CURRENT:
            self.cancel(current, now)

    def acknowledge(self, worker: WorkerEntry, uuid: str) -> None:
        """Have ``worker`` told that its result is safe, if it wants to know: at the end of a turn, many in one."""
        if worker.peer is not None and worker.records:
            self.safe.setdefault(worker, []).append(uuid)

    def send_acknowledgements(self, now: float, *, at_once: bool = False) -> float:
        """End of a turn: at once after a pause, else together. Returns when to be called again, inf for no need."""
        due = self._acknowledged_at + ACKNOWLEDGE_S
        if now < due and not at_once:
            return due
        self._acknowledged_at = now
        safe, self.safe = self.safe, {}
        for worker, uuids in safe.items():
            worker.tell(
                bodies.RECORDED, uuids, self.journal.position
            )  # who is away asks again when it is back
        return inf

    # -- a job ends -------------------------------------------------------------------------------

    def close(self, job: Job, ended: str, now: float) -> None:
        """Every part is final; ``ended`` is what that makes of the job, see ``Job.end``."""
        job.step("close")
        job.ended = ended
        self.counts.ended(ended)
        self.tasks.ended(job, now)
        job.closed_at, job.after = now, self.journal.position
        self._uncount_open(job)
        told.closed(job)
        job.drop_body()
        closed_jobs.keep(self, job)
        kind = ended if ended in (CANCELLED, EXPIRED) else "closed"
        status = max(part.status for part in job.parts.values())
        self.tell(kind, job, status=status, ended=ended)

    def remove(self, job: Job) -> None:
        """A job that never was; it stands in no queue, and no worker has it."""
        self.tasks.removed(job)
        if job.state != "open":
            closed_jobs.remove(self, job)
            return
        self.open_parts -= job.open
        self._uncount_open(job)
        self.owe_nothing(job)

    def _uncount_open(self, job: Job) -> None:
        self.timers.cancel(job.timer)
        job.timer = None
        self.open_jobs -= 1
        self.open_bytes -= job.size
        job.client.open -= 1

    def owe_nothing(self, job: Job) -> None:
        """The job's client is owed nothing because of it any more."""
        job.client.owed.pop(job.uuid, None)
        self.registry.tidy_client(job.client)


def _waiting_of(job: Job) -> list[Part]:
    return [part for part in job.parts.values() if part.state == "waiting"]


def _absence_told_at(job: Job) -> float:
    """When its client is to hear that nobody is there, if that is so until then."""
    return job.deadline - min(_EARLY_S, _EARLY_PART * job.ttl_s)


def _is_object(job: Job) -> bool:
    """True when the job's body is a JSON object in UTF-8: deployed workers do not survive anything else."""
    try:
        if job.task in ("", bodies.UNREADABLE):
            return isinstance(read_json(job.body), dict)
        if not job.body.isascii():  # task was read from it: it is an object
            job.body.decode()
    except (UnicodeError, msgspec.MsgspecError):
        return False
    return True
