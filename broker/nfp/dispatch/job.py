"""What is remembered of a job: its slots, and which worker runs which of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from broker.nfp.names import Dialect
from broker.nfp.targets import Target, render

if TYPE_CHECKING:
    from broker.nfp.dispatch.clients import Client
    from broker.nfp.dispatch.queues import FairQueue
    from broker.nfp.dispatch.roster import Worker
    from broker.nfp.dispatch.timers import Timer
    from broker.nfp.principal import Principal
    from broker.nfp.records import JobAdded

WAITING: Final = "waiting"
DISPATCHED: Final = "dispatched"
ACCEPTED: Final = "accepted"
FINAL: Final = "final"

OPEN: Final = "open"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"

JOB_BYTES: Final = 1536
"""What a job costs in memory beside bodies: the object, its uuid and strings, its places in tables."""
SLOT_BYTES: Final = 512
"""The same of a slot; a queue of its own for each name is not in it."""


class Slot:
    """One worker's part of a job: exactly one result is recorded for it.

    Attributes:
        name: the worker it is for; "" for any of the service.
        state: waiting, dispatched, accepted or final.
        run: who has it at present.
        given: every worker it was ever given to, with the latest attempt there: each may still bring the result.
        strangers: those of ``given`` that said since that they do not know the job.
        attempt: of the latest dispatch, 0 before the first.
        repeat: whether it may be run again when the worker that has accepted it is lost.
        since: when it began to wait.
        queue: where it waits.
        asked: body of the input request that the client has not answered, else None.
        worker: whose result was recorded; "" while none is, and for the broker's own.
        after: the commit that makes the recorded result durable.
    """

    __slots__ = (
        "after",
        "asked",
        "attempt",
        "body",
        "given",
        "job",
        "name",
        "queue",
        "repeat",
        "run",
        "since",
        "state",
        "status",
        "strangers",
        "worker",
    )

    def __init__(self, job: Job, name: str, now: float) -> None:
        self.job = job
        self.name = name
        self.state = WAITING
        self.run: Run | None = None
        self.given: dict[str, int] = {}
        self.strangers: frozenset[str] = frozenset()
        self.attempt = 0
        self.repeat = True
        self.since = now
        self.queue: FairQueue | None = None
        self.asked: Any = None
        self.worker = ""
        self.status = 0
        self.body = b""
        self.after = 0


class Run:
    """A slot in the hands of a worker. It is current while ``slot.run is run``; else somebody else's result counts.

    Attributes:
        heard: when the worker last said something about it.
        asked: when the unanswered GET was sent, 0.0 with none.
        doubtful: it is asked by GET when nothing more is heard about it, even if its worker pushes results.
        check: the GET asks whether the worker has the job from an earlier attempt; POST follows if not.
        told: the client was told that the worker has it (201).
        ready: body of the worker's result_ready event, whose result is on its way to us; else None.
        holds: a credit of the worker is in use for it.
        ended: when it ceased to be current, 0.0 before.
    """

    __slots__ = (
        "asked",
        "attempt",
        "check",
        "doubtful",
        "ended",
        "heard",
        "holds",
        "ready",
        "slot",
        "told",
        "worker",
    )

    def __init__(self, slot: Slot, worker: Worker, attempt: int, now: float) -> None:
        self.slot = slot
        self.worker = worker
        self.attempt = attempt
        self.heard = now
        self.asked = 0.0
        self.doubtful = False
        self.check = False
        self.told = False
        self.ready: Any = None
        self.holds = False
        self.ended = 0.0


class Job:
    """A request and everything that came of it.

    Attributes:
        principal: who submitted it; None after a restart, when only ``holder`` and ``userid`` are known.
        slots: by name; empty while a job for all waits for the first worker of its service.
        open: slots without recorded result.
        waiting: slots that wait.
        fate: cancelled or expired once that was decided, else "".
        told: the client was told that it is dispatched (202).
        owner: for any: the worker the client was told of, "" before.
        body: b"" once it is closed.
        size: bytes it costs: its body, its recorded results, ``JOB_BYTES``, and ``SLOT_BYTES`` for each slot.
        after: the commit that makes the job durable.
    """

    __slots__ = (
        "_digest",
        "added_at",
        "after",
        "body",
        "client",
        "closed_at",
        "deadline",
        "dialect",
        "fate",
        "holder",
        "key",
        "missing",
        "open",
        "owner",
        "principal",
        "service",
        "size",
        "slots",
        "state",
        "target",
        "task",
        "timer",
        "told",
        "ttl_s",
        "userid",
        "uuid",
        "waiting",
    )

    def __init__(self, added: JobAdded, client: Client, principal: Principal | None, added_at: float) -> None:
        self.uuid = added.uuid
        self.service = added.service
        self.task = added.task
        self.target: Target = added.target
        self.body = added.body
        self.dialect: Dialect = added.dialect
        self.holder = added.holder
        self.userid = added.userid
        self.key = principal.key if principal is not None else ""
        self.principal = principal
        self.client = client
        self.ttl_s = added.ttl_s
        self.added_at = added_at
        self.deadline = added_at + added.ttl_s
        self.closed_at = 0.0
        self.slots: dict[str, Slot] = {}
        self.missing: tuple[str, ...] = ()
        self.open = 0
        self.waiting = 0
        self.told = False
        self.owner = ""
        self.state = OPEN
        self.fate = ""
        self.timer: Timer | None = None
        self.size = JOB_BYTES + len(added.body)
        self.after = 0
        self._digest: tuple[int, int] | None = None

    @property
    def target_text(self) -> str:
        """The target as deployed NorFab writes it."""
        return render(self.target, array=True)

    def drop_body(self) -> None:
        """Nobody is given the job any more: what is kept of the body tells only whether another one is the same.

        Only whose job it is may ask, so that the hash need not withstand anybody: it is the quickest there is.
        """
        self._digest = (len(self.body), hash(self.body))
        self.size -= len(self.body)
        self.body = b""

    def has_body(self, body: bytes) -> bool:
        """Whether it was submitted with this body."""
        if self._digest is None:
            return self.body == body
        return self._digest == (len(body), hash(body))

    def named(self, names: tuple[str, ...]) -> list[Slot]:
        """The slots that ``names`` mean; a worker that has or had the slot for any means that one. () means all."""
        if not names:
            return list(self.slots.values())
        anyone = self.slots.get("")
        found = []
        for name in names:
            slot = self.slots.get(name)
            if slot is None and anyone is not None and (name in anyone.given or name == self.owner):
                slot = anyone
            if slot is not None and slot not in found:
                found.append(slot)
        return found

    def given_to(self, worker: str) -> Slot | None:
        """The slot that this worker was ever given."""
        slot = self.slots.get(worker) or self.slots.get("")
        return slot if slot is not None and worker in slot.given else None
