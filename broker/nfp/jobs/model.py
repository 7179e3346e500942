"""What the dispatcher knows: jobs of clients, their parts, the attempts at them, workers, services, clients and queues.

A client's POST becomes a ``Job`` with one ``Part`` for each worker it is for. What a worker that a part is given to has
to do with it is an ``Attempt``; a part that waits stands in a ``FairQueue``. Nothing here decides anything: which
states there are, and what leads from one to another, stands in ``machine``.
"""

# compiled: mypyc

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, Final, Generic, TypeVar

import msgspec

from broker.name_stats import NameStats
from broker.nfp import bodies
from broker.nfp.contract import Peer
from broker.nfp.frames import Body, Packet, answer_packet
from broker.nfp.jobs.machine import (
    ENTERED,
    JOB,
    PART,
    WORKER,
    AttemptState,
    JobState,
    JobStep,
    PartState,
    PartStep,
    WorkerState,
    WorkerStep,
)
from broker.nfp.names import MMI_WORKER, Command, Dialect, Sender
from broker.nfp.outcome import job_state, part_state
from broker.nfp.principal import Principal
from broker.nfp.records import JobAdded
from broker.nfp.states import following
from broker.nfp.targets import ANY, Target, render

Item = TypeVar("Item")
_BROKER: Final = Sender.BROKER
RETRY_S: Final = 1.0
"""A worker whose timer is lost is never buried, a job without its timer never expires: a failed one is tried again."""
_SWEEP_MIN: Final = 256
"""Cancelled timers below this many are not worth a sweep."""
JOB_BYTES: Final = 1536
"""What a job costs in memory beside bodies: the object, its uuid and strings, its places in tables."""
PART_BYTES: Final = 512
"""The same of a part; a queue of its own for each name is not in it."""

BODY_KEPT_BYTES: Final = 2048
"""A closed job keeps a body of up to so many bytes: people want to know its arguments."""


class FairQueue(Generic[Item]):
    """One queue: of a service, or of a worker that was named. Every operation is O(1).

    Clients take turns, each in the order it asked (NFP, "Overall Topology").
    """

    __slots__ = ("_lanes", "_size")

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, OrderedDict[Item, None]] = OrderedDict()
        """By holder, whose turn it is first."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Item]:
        for lane in self._lanes.values():
            yield from lane

    def push(self, item: Item, holder: str, *, front: bool = False) -> None:
        """Behind everything of the same holder; ``front``: before everything, it had its turn already."""
        lane = self._lanes.get(holder)
        if lane is None:
            lane = self._lanes[holder] = OrderedDict()
        lane[item] = None
        if front:
            lane.move_to_end(item, last=False)
            self._lanes.move_to_end(holder, last=False)
        self._size += 1

    def pop(self) -> Item:
        """The next one; its holder's next turn is behind everybody else's.

        Raises:
            StopIteration: nothing waits.
        """
        holder = next(iter(self._lanes))
        item = next(iter(self._lanes[holder]))
        self._lanes.move_to_end(holder)
        self.remove(item, holder)
        return item

    def remove(self, item: Item, holder: str) -> None:
        """Take out ``item`` of ``holder``, which waits here."""
        lane = self._lanes[holder]
        del lane[item]
        if not lane:
            del self._lanes[holder]
        self._size -= 1


class Timer:
    """An entry; ``when`` is monotonic seconds, inf once it is due or cancelled."""

    __slots__ = ("call", "what", "when")

    def __init__(self, when: float, call: Callable[[Any, float], None], what: Any) -> None:
        self.when = when
        self.call: Callable[[Any, float], None] | None = call
        self.what = what


class Timers:
    """Adding costs O(log n), cancelling O(1): cancelled entries are swept out when they are the half."""

    __slots__ = ("_cancelled", "_heap", "_order")

    def __init__(self) -> None:
        # the key stands beside the timer: cancelling changes the timer, never its place
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, when: float, call: Callable[[Any, float], None], what: Any) -> Timer:
        """Have ``call(what, now)`` called once ``when`` is reached."""
        timer = Timer(when, call, what)
        self._push(timer)
        return timer

    def _push(self, timer: Timer) -> None:
        self._order += 1
        heappush(self._heap, (timer.when, self._order, timer))

    def cancel(self, timer: Timer | None) -> None:
        """It will not be called; None, and one that is over already, is no error."""
        if timer is None or timer.call is None:
            return
        timer.call, timer.what, timer.when = None, None, inf
        self._cancelled += 1
        if self._cancelled > _SWEEP_MIN and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapify(self._heap)
            self._cancelled = 0

    @property
    def due(self) -> float:
        """When the next one is due, inf with none. May be early by one that was cancelled."""
        return self._heap[0][0] if self._heap else inf

    def run(self, now: float) -> None:
        """Call what is due. Timers added meanwhile for now or earlier run too.

        One that fails is called again ``RETRY_S`` later; the first failure is raised once all others were called.
        """
        failure: Exception | None = None
        while self._heap and self._heap[0][0] <= now:
            timer = heappop(self._heap)[2]
            call, what = timer.call, timer.what
            if call is None:
                self._cancelled -= 1
                continue
            timer.call, timer.what, timer.when = None, None, inf
            try:
                call(what, now)
            except Exception as error:
                failure = failure or error
                timer.call, timer.what, timer.when = call, what, now + RETRY_S  # its owner may cancel it
                self._push(timer)
        if failure is not None:
            raise failure


class Job:
    """A job as the broker holds it: a client's request and everything that came of it.

    Attributes:
        state: of ``machine.JOB``; only ``step`` changes it. Of what is stored, the store alone has body and parts.
        ended: how it ended, see ``outcome.job_state``; "" while it is open.
        principal: who submitted it; None after a restart, when only ``holder`` and ``userid`` are known.
        parts: by name; empty while a job for all waits for the first worker of its service.
        open: parts without recorded result.
        waiting: parts that wait.
        told_dispatched: the client was told so (202).
        owner: for any: the worker the client was told of, "" before.
        body: b"" once it is closed, when it is longer than ``BODY_KEPT_BYTES``.
        dropped: how many bytes it had then, else 0.
        stats: where it is counted while it is open.
        size: bytes it costs: its body, its recorded results, ``JOB_BYTES``, and ``PART_BYTES`` for each part.
        after: the commit that makes the job durable, and later its end.
    """

    def __init__(self, added: JobAdded, client: Client, principal: Principal | None, added_at: float) -> None:
        self.uuid = added.uuid
        self.service = added.service
        self.task = added.task
        self.target: Target = added.target
        self.body = added.body
        self.dialect: Dialect = added.dialect
        self.holder = added.holder
        self.userid = added.userid
        self.principal = principal
        self.client = client
        self.ttl_s = added.ttl_s
        self.added_at = added_at
        self.deadline = added_at + added.ttl_s
        self.closed_at = 0.0
        self.parts: dict[str, Part] = {}
        self.missing: tuple[str, ...] = ()
        self.open = 0
        self.waiting = 0
        self.told_dispatched = False
        self.owner = ""
        self.state: JobState = "open"
        self.ended = ""
        self.timer: Timer | None = None
        self.stats: NameStats | None = None
        self.size = JOB_BYTES + len(added.body)
        self.after = 0
        self.dropped = 0
        self._digest: tuple[int, int] | None = None

    def step(self, event: JobStep) -> None:
        """Go on to the state that ``event`` leads to.

        Raises:
            IllegalEvent: it cannot happen now.
        """
        self.state = following(JOB, self.state, event)

    @property
    def outcome(self) -> str:
        """What people read: open, or how it ended."""
        return self.ended or "open"

    @property
    def end(self) -> str:
        """How it ends: all of its parts are final."""
        return job_state(part.ended for part in self.parts.values())

    @property
    def target_text(self) -> str:
        """The target as deployed NorFab writes it."""
        return render(self.target, array=True)

    def drop_body(self) -> None:
        """Nobody is given the job any more: of a long body only what tells whether another one is the same is kept.

        Only whose job it is may ask, so that the hash need not withstand anybody: it is the quickest there is.
        """
        if len(self.body) <= BODY_KEPT_BYTES:
            return
        self.dropped = len(self.body)
        self._digest = (len(self.body), hash(self.body))
        self.size -= len(self.body)
        self.body = b""

    def leave_to_store(self) -> None:
        """The store alone has what takes room; a worker that has to stop a part may hold that for long."""
        self.step("store")
        for part in self.parts.values():
            part.body = b""
        self.body, self.parts = b"", {}

    def has_body(self, body: bytes) -> bool:
        """Whether it was submitted with this body."""
        if self._digest is None:
            return self.body == body
        return self._digest == (len(body), hash(body))

    def named(self, names: tuple[str, ...]) -> list[Part]:
        """The parts that ``names`` mean: all, when there are none or those of the target, which may be resources.

        A worker that has or had the part for any means that one.
        """
        if not names or names == self.target.names:
            return list(self.parts.values())
        anyone = self.parts.get("")
        found = []
        for name in names:
            part = self.parts.get(name)
            if part is None and anyone is not None and (name in anyone.given or name == self.owner):
                part = anyone
            if part is not None and part not in found:
                found.append(part)
        return found

    def given_to(self, worker: str) -> Part | None:
        """The part that this worker was ever given."""
        part = self.parts.get(worker) or self.parts.get("")
        return part if part is not None and worker in part.given else None


class Part:
    """One worker's part of a job: exactly one result is recorded for it.

    Attributes:
        name: the worker it is for; "" for any of the service.
        state: of ``machine.PART``; only ``step`` changes it.
        current: the attempt of who has it at present; None unless it is given.
        given: every worker it was ever given to, with the latest attempt there: each may still bring the result.
        forgotten: those of ``given`` that said since that they do not know the job.
        lost: the workers that were lost while they had it, as often as that was.
        since: when it began to wait.
        queue: where it waits.
        worker: whose result was recorded; "" while none is, and for the broker's own.
        ended: how it ended, see ``outcome.part_state``; "" while it has no result.
        after: the commit that makes the recorded result durable.
    """

    def __init__(self, job: Job, name: str, now: float) -> None:
        self.job = job
        self.name = name
        self.state: PartState = "waiting"
        self.current: Attempt | None = None
        self.given: dict[str, int] = {}
        self.forgotten: frozenset[str] = frozenset()
        self.lost: tuple[str, ...] = ()
        self.since = now
        self.queue: FairQueue[Part] | None = None
        self.worker = ""
        self.status = 0
        self.body = b""
        self.ended = ""
        self.after = 0

    def step(self, event: PartStep) -> None:
        """Go on to the state that ``event`` leads to.

        Raises:
            IllegalEvent: it cannot happen now.
        """
        self.state = following(PART, self.state, event)

    @property
    def number(self) -> int:
        """Of the latest attempt, 0 before the first."""
        return max(self.given.values(), default=0)

    @property
    def stage(self) -> str:
        """Its state as people and the store read it: waiting, dispatched, accepted or final."""
        if self.state != "given" or self.current is None:
            return self.state
        return "accepted" if self.current.state in ENTERED else "dispatched"

    @property
    def losses(self) -> str:
        """Who was lost over it, for people."""
        names = dict.fromkeys(self.lost)
        counts = {name: self.lost.count(name) for name in names}
        return ", ".join(f"{name} {times} times" if times > 1 else name for name, times in counts.items())

    def settle(self, worker: str, status: int, body: bytes) -> None:
        """Record its one result; ``worker`` is "" when the broker made it."""
        self.step("settle")
        self.worker, self.status, self.body = worker, status, body
        self.ended = part_state(status, body)


class Attempt:
    """What one worker has to do with a part. It is current while ``part.current`` is it; else others' results count.

    Attributes:
        number: 1 for the first attempt at the part; an older one when the worker speaks of that.
        state: of ``machine.ATTEMPT``; only ``Jobs.move`` changes it.
        heard: when the worker last said something about it, or was told to stop.
        asked: when the unanswered GET was sent, 0.0 with none.
        unasked: a GET found no room: it is sent later, even to a worker that brings its results without.
        once: the task must not be run again, which is settled when the worker has accepted it.
        question: body of the input request that the client has not answered, else None.
        announcement: body of the worker's result_ready event, whose result is on its way to us; else None.
        fresh: nothing that it has streamed can have gone elsewhere: it was given to a worker that did not have it.
        content: what it has streamed to a client that cannot be sent STREAM, None while nothing.
    """

    def __init__(self, part: Part, worker: WorkerEntry, number: int, now: float) -> None:
        self.part = part
        self.worker = worker
        self.number = number
        self.state: AttemptState = "released"
        self.heard = now
        self.asked = 0.0
        self.unasked = False
        self.once = False
        self.question: Any = None
        self.announcement: Any = None
        self.fresh = False
        self.content: bytearray | None = None

    def request(self, command: Command, body: Body, after: int = 0) -> bool:
        """Write to the worker about it. False: nothing was queued, the worker is away or its queue is full."""
        worker, client = self.worker, self.part.job.client
        address = client.token(self.number) if worker.records else client.address(self.number)
        return worker.request(command, self.part.job.uuid, address, body, after)

    def ask(self) -> bool:
        """GET: what became of it. Deployed workers do not read the body."""
        return self.request(Command.GET, b"{}")


def disconnect(peer: Peer, dialect: Dialect, service: str, reason: str) -> None:
    """DISCONNECT, with ``reason`` where the dialect has a body (NFP, "DISCONNECT").

    ``peer`` may have to prove its key again: nothing of ours is in it but that.
    """
    body = reason.encode() if dialect is Dialect.SEED else None
    peer.send(Packet(_BROKER, Command.DISCONNECT, dialect=dialect, service=service, body=body))


class WorkerEntry:
    """A worker that is there or waited for.

    Attributes:
        state: of ``machine.WORKER``; only ``step`` changes it.
        peer: its connection; None unless alive. What follows is true of the present one, or of the last:
        cancels: it understands DELETE.
        pushes: it sends results unasked; others say that a result is ready, and are asked for it.
        records: it wants to hear when a result is safe; the address of each request carries its attempt, that of other
            workers only from the second attempt on.
        managed: it answers requests for the workers' management; in the text's form that is a service which is asked
            by POST (NFP, "Worker Management Interface").
        lists: its OPEN lists the jobs it holds, and it begins what must not be run twice once that is confirmed.
        strict: it reads every body as a JSON object, and breaks at anything else.
        unknown: what it answers to a GET of a job it does not know.
        slots: jobs it runs at a time.
        ahead: jobs beyond its slots that it is given, so that it never waits for the next one, where they can be taken
            back; where not, only while it is alone: see ``limit``.
        busy: credits in use.
        attempts: by job, what it was given and has not finished, or has to stop.
        claims: jobs that it said it holds and was not given here (see ``Registry.claim``).
        choked: its queue was full: it gets nothing until it is heard again.
        turn: of a request in its mailbox and one of its service, it was given the first last time.
        heard, sent: when anything last came from or went to it.
        since: when it got into its present state.
        resources: what its OPEN said that it manages.
        tasks: what its OPEN said about running twice.
    """

    def __init__(self, name: str, service: Service, dialect: Dialect, key: str, now: float) -> None:
        self.name = name
        self.service = service
        self.dialect = dialect
        self.key = key
        self.holder = ""
        self.features: frozenset[str] = frozenset()
        self.state: WorkerState = "expected"
        self.peer: Peer | None = None
        self.cancels = self.pushes = self.records = self.managed = self.lists = self.strict = False
        self.unknown: frozenset[int] = frozenset()
        self.slots = 1
        self.ahead = 0
        self.busy = 0
        self.attempts: dict[str, Attempt] = {}
        self.claims: set[str] = set()
        self.choked = False
        self.turn = False
        self.heard = self.sent = self.since = now
        self.timer: Timer | None = None
        self.tx = self.rx = 0
        self.resources: tuple[str, ...] = ()
        self.tasks: Mapping[str, bool | None] = {}

    def step(self, event: WorkerStep) -> None:
        """Go on to the state that ``event`` leads to.

        Raises:
            IllegalEvent: it cannot happen now.
        """
        self.state = following(WORKER, self.state, event)

    @property
    def limit(self) -> int:
        """Jobs it is given at a time."""
        shares = not self.lists and self.service.alive > 1
        return self.slots if shares else self.slots + self.ahead

    @property
    def free(self) -> bool:
        """True when it could be given a job now."""
        return self.peer is not None and self.busy < self.limit and not self.choked

    # -- written to: each of these tells whether the packet was queued ------------------------------

    def speak(self, dialect: Dialect, features: frozenset[str]) -> None:
        """It is written to like this from now on."""
        text = dialect is Dialect.SEED
        self.dialect = dialect
        self.features = features
        self.records = "recorded" in features
        self.lists = "jobs" in features
        self.cancels = text or "delete" in features
        self.pushes = text or self.records
        self.managed = text or self.lists
        self.strict = not self.pushes
        self.unknown = frozenset({400, 404} if text else {404})

    def request(self, command: Command, uuid: str, address: bytes, body: Body, after: int = 0) -> bool:
        """A request, if the dialect has the command; ``address`` comes back with what the worker says about it.

        The text's form has the same frames as a client's, target ``any``, no address, and no PUT.
        """
        if self.peer is None:
            return False
        if self.dialect is Dialect.NORFAB:
            return self.peer.send(Packet(_BROKER, command, client=address, uuid=uuid, body=body), after)
        service = self.service.name
        if command is Command.MMI:
            command, service = Command.POST, MMI_WORKER
        if command > Command.EVENT:
            return False
        return self.peer.send(
            Packet(_BROKER, command, self.dialect, service, ANY, uuid=uuid, body=body), after
        )

    def keepalive(self) -> bool:
        """NFP, "Keepaliving"."""
        packet = Packet(_BROKER, Command.KEEPALIVE, self.dialect, self.service.name)
        return self.peer is not None and self.peer.send(packet)

    def tell(self, text: str, uuids: list[str], after: int) -> bool:
        """RECORDED: the results of these jobs are safe. CONFIRMED: they are the worker's, and may begin."""
        body = bodies.uuids(uuids)
        packet = answer_packet(Command.RESPONSE, self.dialect, self.service.name, uuids[0], 200, body)
        packet.status_text = text
        return self.peer is not None and self.peer.send(packet, after)


class Service:
    """A service with workers, or with requests that wait for one.

    Attributes:
        workers: those that are there or waited for.
        alive: how many of them are there.
        idle: those with a free slot, whose turn it is first.
        ready: those without, which are given one more all the same.
        ahead: those that were given more than they have slots.
        sharing: when something of that is taken back for somebody idle.
        queue: requests for any of them.
        gathering: requests for all of them, made while there was none.
        absent_since: when the last one that was there left.
        began: when the first of ``workers`` came.
    """

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.workers: dict[str, WorkerEntry] = {}
        self.alive = 0
        self.idle: OrderedDict[WorkerEntry, None] = OrderedDict()
        self.ready: OrderedDict[WorkerEntry, None] = OrderedDict()
        self.ahead: dict[WorkerEntry, None] = {}
        self.sharing: Timer | None = None
        self.queue: FairQueue[Part] = FairQueue()
        self.gathering: dict[Job, None] = {}
        self.absent_since = self.began = now


class Client:
    """Somebody whose jobs are remembered.

    Attributes:
        peer: its present connection, None while it is away.
        dialect: how it spoke last.
        features: what its latest OPEN asked for.
        owed: jobs with recorded results that could not be pushed, in order, and the names of their parts; {} means
            every part.
        open: its jobs that are not closed.
        kept: its closed jobs.
        seen: when it last asked something, -1.0 when never since the start.
    """

    def __init__(self, identity: bytes, holder: str, name: str, dialect: Dialect) -> None:
        self.identity = identity
        self.holder = holder
        self.name = name
        self.dialect = dialect
        self.features: frozenset[str] = frozenset()
        self.peer: Peer | None = None
        self.owed: dict[str, dict[str, None]] = {}
        self.open = 0
        self.kept = 0
        self.seen = -1.0
        self._prefix = bodies.make_token(identity, 0)[:-1]

    def owe(self, part: Part) -> None:
        """The result of ``part`` is still to be sent."""
        uuid = part.job.uuid
        if uuid not in self.owed:
            self.owed[uuid] = {part.name: None}
        elif self.owed[uuid]:
            self.owed[uuid][part.name] = None

    def owed_of(self, job: Job) -> dict[str, None]:
        """The parts of ``job`` that it is owed, by name."""
        owed = self.owed.get(job.uuid)
        return owed or dict.fromkeys(job.parts if owed is not None else ())

    def settle(self, job: Job, parts: Iterable[Part]) -> None:
        """The results of ``parts`` are not owed any more."""
        left = self.owed_of(job)
        for part in parts:
            left.pop(part.name, None)
        if left:
            self.owed[job.uuid] = left
        else:
            self.owed.pop(job.uuid, None)

    def token(self, attempt: int) -> bytes:
        """The address written to workers that run its jobs."""
        return b"%s%d" % (self._prefix, attempt)

    def address(self, attempt: int) -> bytes:
        """The same for deployed workers, whose ``job_list`` shows it to people: a first attempt has the name alone."""
        name = self._prefix[:-1]
        return name if attempt == 1 and b"#" not in name else self.token(attempt)


class Relay:
    """A request that was passed to workers and is no job.

    Attributes:
        packet: the request without its body, which nobody needs any more.
        unanswered: workers that have not answered.
        answers: what the others answered. size: their bytes.
    """

    def __init__(self, peer: Peer, packet: Packet) -> None:
        self.peer = peer
        self.packet = msgspec.structs.replace(packet, body=None)
        self.size = 0
        self.unanswered: dict[str, None] = {}
        self.answers: dict[str, bytes] = {}
        self.timer: Timer | None = None
