"""The jobs a worker knows, by uuid: waiting, running, and ended ones as long as somebody may ask for their result."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from broker.nfp.bodies import read_request, read_token, token_client
from broker.nfp.names import Dialect

if TYPE_CHECKING:
    import asyncio

    from broker.nfp.frames import Packet

WAITING: Final = "PENDING"
RUNNING: Final = "STARTED"
ASKING: Final = "WAITING_CLIENT_INPUT"
DONE: Final = "COMPLETED"
FAILED: Final = "FAILED"
"""States, spelt as deployed NorFab's ``job_list`` shows them."""

TIMEOUT_S: Final = 600.0
"""Deadline of a job whose body says none; deployed NorFab's client assumes as much."""
EVENTS_KEPT: Final = 100
"""Events of a job that ``job_details`` shows, the newest."""
PUTS_MAX: Final = 1000
"""Inputs of a client that a task has not read yet; further ones are dropped."""
KEEP_JOBS: Final = 10_000
"""Ended jobs in memory: so many duplicates are known without asking the store."""
KEEP_BYTES: Final = 64 << 20
"""Bytes of their requests and results; the oldest recorded ones are forgotten first."""
OFFER_JOBS: Final = 10_000
"""Results that nobody has taken: a client of deployed NorFab that is gone for good never asks for its own."""
OFFER_BYTES: Final = 256 << 20
"""Bytes of these; beyond, the oldest is given up, except that the store still has it."""


class Job:
    """One job on this worker.

    Attributes:
        uuid: its id. client: the address to echo, None in the text's form without one. service: of that form.
        dialect: how it was asked for. body: of the POST. task, args, kwargs: what the body says. deadline: monotonic
            seconds. idempotent: may be run twice. state: see above. status, result: of the end, result None before.
        begun: its task was entered, in this life of the worker. confirmed: the broker has said that it may be.
            confirmation: waits for that word. accepted: 201 was promised. recorded: the broker (or the client's GET)
            has the result. cancelled: a DELETE came. again: the POST that came after it, before the task had ended.
            asked: the input it waits for, as events carry it. puts: what the client sent it. received_s, started_s,
            ended_s: wall clock, 0 before. running: the task that runs it. timer: of the 201 while it runs, of its
            deadline while it is held back.
    """

    __slots__ = (
        "_inputs",
        "accepted",
        "again",
        "args",
        "asked",
        "begun",
        "body",
        "cancelled",
        "client",
        "confirmation",
        "confirmed",
        "deadline",
        "dialect",
        "ended_s",
        "events",
        "idempotent",
        "kwargs",
        "put_came",
        "puts",
        "received_s",
        "recorded",
        "result",
        "running",
        "service",
        "started_s",
        "state",
        "status",
        "stored",
        "task",
        "timeout_s",
        "timer",
        "uuid",
    )

    def __init__(self, uuid: str, client: bytes | None, service: str, dialect: Dialect, body: bytes) -> None:
        self.uuid = uuid
        self.client = client
        self.service = service
        self.dialect = dialect
        self.body = body
        request = read_request(body)
        self.task = request.task
        self.args = list(request.args)
        self.kwargs = request.kwargs
        self.timeout_s = request.timeout_s or TIMEOUT_S
        self.deadline = time.monotonic() + self.timeout_s
        self.idempotent = True
        self.state = WAITING
        self.status = 0
        self.result: bytes | None = None
        self.accepted = self.recorded = self.cancelled = self.stored = False
        self.begun = self.confirmed = False
        self.confirmation: asyncio.Future[None] | None = None
        self.again: Packet | None = None
        self.asked: dict[str, Any] | None = None
        self.puts: deque[Any] = deque()
        self.put_came: Callable[[], None] | None = None
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self.received_s = time.time()
        self.started_s = self.ended_s = 0.0
        self.running: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, packet: Packet) -> Job:
        """The job that a POST is."""
        return cls(packet.uuid, packet.client, packet.service, packet.dialect, packet.data)

    def readdress(self, packet: Packet) -> None:
        """It was sent again: what comes goes where the latest POST or GET says."""
        self.client, self.service, self.dialect = packet.client, packet.service, packet.dialect

    @property
    def ended(self) -> bool:
        """True once there is a result."""
        return self.result is not None

    @property
    def size(self) -> int:
        """About how many bytes it holds; the request counts twice, as it came and as it was read."""
        return 2 * len(self.body) + len(self.result or b"")

    @property
    def attempt(self) -> int:
        """Which dispatch of our broker this is; 0 with deployed NorFab."""
        return read_token(self.client) if self.client is not None else 0

    @property
    def asker(self) -> str:
        """Who sent it, as far as the address tells."""
        return token_client(self.client)

    def end(self, status: int, result: bytes, *, failed: bool) -> None:
        """It has its final result."""
        self.status, self.result = status, result
        self.state = FAILED if failed else DONE
        self.ended_s = time.time()
        self.asked = None
        self.puts.clear()
        self.stop_timer()

    def stop_timer(self) -> None:
        """Forget the timer. Harmless without one."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Jobs:
    """The table.

    Attributes:
        open: jobs without result. done, failed: ended ones since the start. given_up: results that nobody took.
    """

    def __init__(self, keep_jobs: int = KEEP_JOBS, keep_bytes: int = KEEP_BYTES) -> None:
        self._jobs: dict[str, Job] = {}
        self._keep_jobs = keep_jobs
        self._keep_bytes = keep_bytes
        self._offered: dict[str, Job] = {}
        self._offered_bytes = 0
        self._over: dict[str, int] = {}  # ended and recorded: uuid -> bytes, oldest first
        self._over_bytes = 0
        self.open = 0
        self.done = 0
        self.failed = 0
        self.given_up = 0

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, uuid: str) -> Job | None:
        """The job ``uuid``; None when it is not known here (a store may still know it)."""
        return self._jobs.get(uuid)

    def add(self, job: Job) -> None:
        """Know ``job``, which has no result yet."""
        self._jobs[job.uuid] = job
        self.open += 1

    def remove(self, job: Job) -> None:
        """``job`` was given back before it began, or its end is of no use: nothing is known of it here."""
        del self._jobs[job.uuid]
        if not job.ended:
            self.open -= 1
        elif self._offered.pop(job.uuid, None) is not None:
            self._offered_bytes -= job.size
        else:
            self._over_bytes -= self._over.pop(job.uuid, 0)

    def close(self, job: Job) -> None:
        """``job`` has its result."""
        self.open -= 1
        if job.state == FAILED:
            self.failed += 1
        else:
            self.done += 1
        self._offer(job)
        while len(self._offered) > OFFER_JOBS or (
            self._offered_bytes > OFFER_BYTES and len(self._offered) > 1
        ):
            self.recorded(next(iter(self._offered.values())))
            self.given_up += 1

    def recorded(self, job: Job) -> None:
        """The result of ``job`` is safe elsewhere: it may be forgotten when memory is needed."""
        if self._offered.pop(job.uuid, None) is None:
            return
        self._offered_bytes -= job.size
        job.recorded = True
        self._over[job.uuid] = job.size
        self._over_bytes += job.size
        while len(self._over) > self._keep_jobs or self._over_bytes > self._keep_bytes:
            oldest = next(iter(self._over))
            self._over_bytes -= self._over.pop(oldest)
            del self._jobs[oldest]

    def unrecorded(self, job: Job) -> None:
        """Somebody asks for the result of ``job`` who has it not."""
        if job.uuid in self._offered:
            return
        job.recorded = False
        self._over_bytes -= self._over.pop(job.uuid, 0)
        self._offer(job)

    def _offer(self, job: Job) -> None:
        self._offered[job.uuid] = job
        self._offered_bytes += job.size

    @property
    def offered(self) -> list[Job]:
        """With a result of which nobody said that it is safe, oldest first."""
        return list(self._offered.values())
