"""One job as one request sees it: what comes for it becomes records, in order, until nothing more is awaited.

Bounded: events and streams that a slow reader has no room for are dropped and counted (a record ``gap`` says how many);
results always find room, there is one for each worker.
"""

from __future__ import annotations

import asyncio
import errno
from base64 import b64encode
from typing import Any, Final

from broker.bounded_queue import BoundedQueue
from broker.errors import RpcError
from broker.nfp.frames import Packet
from broker.nfp.names import ASKED_BY_MMI, Code, Command
from broker.nfp.opening import read_any
from broker.nfp.outcome import Failure, Outcome
from broker.nfp.service.payloads import errnum_of
from broker.nfp.targets import Target

RECORDS_MAX: Final = 1024
"""Events that wait for a reader."""
RECORDS_MAX_BYTES: Final = 4 << 20
"""The same in bytes of what they carry."""
_CHARGE_BYTES: Final = 256

Record = dict[str, Any]


class JobStream:
    """The records of one job: ``async for record in stream``.

    Args:
        uuid: the job.
        service, target: as it was submitted.

    Attributes:
        outcome: what came so far.
        answered: the RESPONSEs that came, for who waits for one.
        closed_with: once the job is known to be over: how many results it has; the stream waits for no more.
        lost: records dropped, all in all.
    """

    def __init__(self, uuid: str, service: str, target: Target) -> None:
        self.uuid = uuid
        self.service = service
        self.outcome = Outcome(service, target)
        self.answered = 0
        self.closed_with: int | None = None
        self.lost = 0
        self._untold = 0
        self._told: set[str] = set()
        self._accepted_told = False
        self._records: BoundedQueue[Record] = BoundedQueue(RECORDS_MAX, RECORDS_MAX_BYTES)
        self._fresh = asyncio.Event()

    # -- what comes ----------------------------------------------------------------------------

    def received(self, packet: Packet) -> None:
        """A packet about this job."""
        if packet.command is Command.STREAM:
            self.chunk(packet.data)
        elif packet.command is Command.EVENT:
            self.event(packet.data)
        elif packet.command in (Command.RESPONSE, Command.MMI) and not self.over:
            self._response(packet.status, packet.data)
        self._fresh.set()

    def _response(self, status: int, data: bytes) -> None:
        self.answered += 1
        if self.service in ASKED_BY_MMI:
            self._told_by_broker(status, data)
            return
        told = self.outcome.answer(status, data)
        if told.kind in ("queued", "dispatched"):
            self._accepted(told.kind)
        elif status == Code.ACCEPTED and not self._accepted_told and not told.kind:
            self._accepted("dispatched")  # nobody was chosen yet, but the caller has to know the uuid
        elif (
            told.kind == "finished" and told.worker
        ):  # one without a name is told at the end: by then it may have one
            self._result(told.worker)
        elif told.kind == "failed" and told.worker:
            failure = self.outcome.failures[told.worker]
            said = {"worker": told.worker, "status": failure.status, "error": failure.text}
            self._put({"type": "failed", **said}, 0, keep=True)
        elif told.kind == "accepted":
            event = {"worker": told.worker, "kind": "accepted", "message": "", "event": None}
            self._put({"type": "event", **event}, 0)

    def _told_by_broker(self, status: int, data: bytes) -> None:
        """A service of the broker's own: its answer is the result, whatever it looks like."""
        value = read_any(data)
        if status != Code.OK:
            text = value.get("error") if isinstance(value, dict) else None
            self.outcome.error = Failure(status, str(text or f"status {status}"))
        else:
            self.outcome.results.setdefault("", value)

    def _accepted(self, status: str) -> None:
        self._accepted_told = True
        outcome = self.outcome
        record: Record = {"type": "accepted", "uuid": self.uuid, "status": status}
        record["workers"] = list(outcome.workers)
        if outcome.missing:
            record["missing"] = list(outcome.missing)
        self._put(record, 0, keep=True)

    def _result(self, worker: str) -> None:
        """The result of ``worker``."""
        if worker not in self._told:
            self._told.add(worker)
            result = self.outcome.results[worker]
            self._put({"type": "result", "worker": worker, "result": result}, 0, keep=True)

    def event(self, data: bytes) -> None:
        """What a worker said on the way."""
        said = read_any(data)
        if not isinstance(said, dict) or self.over or not self.outcome.event(said):
            return
        record = {
            "type": "event",
            "worker": str(said.get("worker") or ""),
            "kind": str(said.get("event_type") or "progress"),
            "message": str(said.get("message") or ""),
            "event": said,
        }
        self._put(record, len(data))

    def chunk(self, data: bytes) -> None:
        """Bytes that a worker streams."""
        if not self.over:
            self._put({"type": "stream", "data": b64encode(data).decode()}, len(data))

    def joined(self) -> None:
        """The job runs already, for other requests."""
        self.outcome.status = "dispatched"
        self._accepted("dispatched")

    def closed(self, results: int) -> None:
        """The job is over, with this many results: those that have not come are on their way."""
        self.closed_with = results
        self._fresh.set()

    def failed(self, text: str) -> None:
        """Nothing more can come."""
        if not self.over:
            self.outcome.error = Failure(Code.ERROR, text)
        self._fresh.set()

    # -- the end -------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """True when nothing more is awaited."""
        outcome = self.outcome
        if outcome.complete or self.service in ASKED_BY_MMI:
            return outcome.complete or "" in outcome.results
        settled = len(outcome.results) + len(outcome.failures)
        return self.closed_with is not None and settled >= self.closed_with

    def error(self) -> RpcError | None:
        """How a job without any result ended; None when there is one."""
        outcome = self.outcome
        if outcome.results:
            return None
        failure = outcome.error or next(iter(outcome.failures.values()), None)
        if failure is None:
            return RpcError(errno.ENODATA, f"job {self.uuid} has no result") if self.over else None
        return RpcError(errnum_of(failure.status, failure.text), failure.text)

    # -- reading -------------------------------------------------------------------------------

    def __aiter__(self) -> JobStream:
        return self

    async def __anext__(self) -> Record:
        while True:
            if self._records:
                return self._records.pop()
            if self._untold:
                lost, self._untold = self._untold, 0
                return {"type": "gap", "lost": lost}
            if self.over:
                for worker in self.outcome.results.keys() - self._told:
                    self._result(worker)
                if not self._records:
                    raise StopAsyncIteration
                continue
            await self.changed()

    async def changed(self) -> None:
        """Wait until something came."""
        self._fresh.clear()
        await self._fresh.wait()

    def _put(self, record: Record, size: int, *, keep: bool = False) -> None:
        size += _CHARGE_BYTES
        if keep:
            self._records.add(record, size)
        elif self._untold or not self._records.put(record, size):  # behind a gap nothing overtakes its notice
            self.lost += 1
            self._untold += 1
            return
        self._fresh.set()
