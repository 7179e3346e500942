"""The jobs of a worker that go on: waiting, running, or with a result that is not safe elsewhere.

The rest is in its store. One of them is::

    coming     it may have ended here before, or has to be stored first
    held       until the broker says that it may begin
    waiting    for a slot
    starting   it has its slot; what must not be run twice waits for the disk, and for the broker's word
    running    its task is entered
    ended      it has its result
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from broker.nfp.bodies import read_request, read_token, token_client, write
from broker.nfp.frames import Packet
from broker.nfp.names import Dialect
from broker.nfp.states import Table, following
from broker.nfp.worker.store import StoredRun

if TYPE_CHECKING:
    from broker.nfp.worker.context import JobContext, ThreadContext

COMING: Final = "coming"
HELD: Final = "held"
WAITING: Final = "waiting"
STARTING: Final = "starting"
RUNNING: Final = "running"
ENDED: Final = "ended"

WAIT: Final = "wait"
HOLD: Final = "hold"
START: Final = "start"
ENTER: Final = "enter"
END: Final = "end"

RUN: Final[Table] = {
    COMING: {WAIT: WAITING, HOLD: HELD, END: ENDED},
    HELD: {WAIT: WAITING, END: ENDED},
    WAITING: {START: STARTING, HOLD: HELD, END: ENDED},
    STARTING: {ENTER: RUNNING, HOLD: HELD, END: ENDED},
    RUNNING: {END: ENDED},
    ENDED: {},
}

PENDING: Final = "PENDING"
STARTED: Final = "STARTED"
ASKING: Final = "WAITING_CLIENT_INPUT"
COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
"""What deployed NorFab's ``job_list`` shows of them."""

TIMEOUT_S: Final = 600.0
"""Deadline of a job whose body says none; deployed NorFab's client assumes as much."""
EVENTS_KEPT: Final = 100
"""Events of a job that ``job_details`` shows, the newest."""
PUTS_MAX: Final = 1000
"""Inputs of a client that a task has not read yet; further ones are dropped."""
UNRECORDED_MAX: Final = 10_000
"""Results that nobody has taken: a client of deployed NorFab that is gone for good never asks for its own."""
UNRECORDED_BYTES: Final = 256 << 20
"""Bytes of these; beyond, the oldest is given up, except that the store still has it."""


@dataclass(slots=True, eq=False)
class JobRun:
    """One job on this worker.

    Attributes:
        uuid: its id. client: the address to echo, None in the text's form without one. service: of that form.
        dialect: how it was asked for. body: of the POST. task, args, kwargs: what the body says. deadline: monotonic
            seconds. idempotent: may be run twice. state: see above; only ``step`` changes it.
        status, result, failed: of the end, result None before. confirmed: the broker has said that its task may be
            entered. confirmation: waits for that word. accepted: 201 was promised. stored: the store has it.
        cancelled: a DELETE came. repost: the POST that came after it, before the task had ended.
        question: the input it waits for, as events carry it. puts: what the client sent it.
        received_s, started_s, ended_s: wall clock, 0 before. running, context: while it has its slot, what runs it and
            what its task sees of it. timer: of the 201 while it runs, of its deadline while it is held back.
    """

    uuid: str
    client: bytes | None
    service: str
    dialect: Dialect
    body: bytes
    task: str = ""
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = TIMEOUT_S
    deadline: float = 0.0
    idempotent: bool = True
    state: str = COMING
    status: int = 0
    result: bytes | None = None
    failed: bool = False
    confirmed: bool = False
    confirmation: asyncio.Future[None] | None = None
    accepted: bool = False
    stored: bool = False
    cancelled: bool = False
    repost: Packet | None = None
    question: dict[str, Any] | None = None
    puts: deque[Any] = field(default_factory=deque)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT))
    received_s: float = field(default_factory=time.time)
    started_s: float = 0.0
    ended_s: float = 0.0
    running: asyncio.Task[None] | None = None
    context: JobContext | ThreadContext | None = None
    timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        request = read_request(self.body)
        self.task, self.args, self.kwargs = request.task, list(request.args), request.kwargs
        self.timeout_s = request.timeout_s or TIMEOUT_S
        self.deadline = time.monotonic() + self.timeout_s

    @classmethod
    def restored(cls, kept: StoredRun) -> JobRun:
        """The job that an earlier life of the worker has left in its store."""
        job = cls(kept.uuid, kept.client, kept.service, Dialect.NORFAB, kept.body, idempotent=kept.idempotent)
        job.stored = job.accepted = True
        job.received_s, job.started_s = kept.received_s, kept.started_s
        job.deadline -= kept.age_s
        return job

    def as_stored(self) -> StoredRun:
        """The job for the store."""
        return StoredRun(
            self.uuid,
            self.client,
            self.service,
            self.task,
            self.body,
            self.idempotent,
            "done" if self.ended else "started" if self.started_s else "accepted",
            self.status,
            self.result or b"",
            self.received_s,
            self.started_s,
            self.ended_s,
            write(list(self.events)) if self.events else b"",
            self.failed,
        )

    def readdress(self, packet: Packet) -> None:
        """Take the address of the latest POST or GET: what comes goes there."""
        self.client, self.service, self.dialect = packet.client, packet.service, packet.dialect

    def step(self, event: str) -> None:
        """Go on to the state that ``event`` leads to.

        Raises:
            IllegalEvent: it cannot happen now.
        """
        self.state = following(RUN, self.state, event)

    @property
    def ended(self) -> bool:
        """True once there is a result."""
        return self.state == ENDED

    @property
    def shown(self) -> str:
        """The state in deployed NorFab's words."""
        if self.ended:
            return FAILED if self.failed else COMPLETED
        if self.state == RUNNING:
            return STARTED if self.question is None else ASKING
        return PENDING

    @property
    def size(self) -> int:
        """About how many bytes it holds; the request counts twice, as it came and as it was read."""
        return 2 * len(self.body) + len(self.result or b"")

    @property
    def attempt(self) -> int:
        """Which dispatch of our broker this is; 0 with deployed NorFab."""
        return read_token(self.client) if self.client is not None else 0

    @property
    def client_name(self) -> str:
        """The name of the client that sent it, as far as the address tells."""
        return token_client(self.client)

    def end(self, status: int, result: bytes, *, failed: bool) -> None:
        """Set the final result."""
        self.step(END)
        self.status, self.result, self.failed = status, result, failed
        self.ended_s = time.time()
        self.question = None
        self.puts.clear()
        self.stop_timer()

    def stop_timer(self) -> None:
        """Forget the timer. Harmless without one."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class JobTable:
    """The table of those without result, and of ended ones until their result is safe elsewhere.

    Attributes:
        open: without result. done, failed: ended ones since the start.
    """

    def __init__(self) -> None:
        self._by_uuid: dict[str, JobRun] = {}
        self._unrecorded: dict[str, JobRun] = {}
        self._unrecorded_bytes = 0
        self.open = 0
        self.done = 0
        self.failed = 0

    def __iter__(self) -> Iterator[JobRun]:
        return iter(self._by_uuid.values())

    def __len__(self) -> int:
        return len(self._by_uuid)

    def get(self, uuid: str) -> JobRun | None:
        """The job ``uuid``; None when it is not in the table (the store may still know it)."""
        return self._by_uuid.get(uuid)

    def add(self, job: JobRun) -> None:
        """Put ``job``, which has no result yet, into the table."""
        self._by_uuid[job.uuid] = job
        self.open += 1

    def remove(self, job: JobRun) -> None:
        """Take ``job`` out: it was given back before it began, or its result is safe or of no use."""
        if self._by_uuid.pop(job.uuid, None) is None:
            return
        if not job.ended:
            self.open -= 1
        elif self._unrecorded.pop(job.uuid, None) is not None:
            self._unrecorded_bytes -= job.size

    def close(self, job: JobRun) -> None:
        """``job`` has its result, which is offered until it is removed, or too many others are."""
        self.open -= 1
        if job.failed:
            self.failed += 1
        else:
            self.done += 1
        self._unrecorded[job.uuid] = job
        self._unrecorded_bytes += job.size
        while len(self._unrecorded) > UNRECORDED_MAX or (
            self._unrecorded_bytes > UNRECORDED_BYTES and len(self._unrecorded) > 1
        ):
            self.remove(next(iter(self._unrecorded.values())))

    def replace_result(self, job: JobRun, result: bytes) -> None:
        """``job``, which has ended, has failed with this ``result`` instead."""
        before = job.size
        job.result, job.failed = result, True
        if job.uuid in self._unrecorded:
            self._unrecorded_bytes += job.size - before

    @property
    def unrecorded(self) -> list[JobRun]:
        """With a result of which nobody said that it is safe, oldest first."""
        return list(self._unrecorded.values())
