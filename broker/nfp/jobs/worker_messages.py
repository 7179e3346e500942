"""What workers say about jobs: RESPONSE, EVENT, STREAM (NFP, "RESPONSE", "EVENT"; STREAM is deployed NorFab's).

Only workers that a part was given to are listened to. The first final result of any of them counts, even of one that
was given up meanwhile; whatever comes later is counted and dropped.
"""

# compiled: mypyc

from __future__ import annotations

from typing import Final

from broker.identity import USERID_UNKNOWN
from broker.nfp import bodies
from broker.nfp.contract import JobEvent, Peer
from broker.nfp.frames import Packet
from broker.nfp.jobs.machine import (
    ANNOUNCE,
    CURRENT,
    FINAL,
    FINISH,
    FORGET,
    LOSE,
    POST,
    PROBED,
    READY,
    STOPPING,
    WAITING,
)
from broker.nfp.jobs.model import Attempt, Job, WorkerEntry
from broker.nfp.jobs.relays import Relays
from broker.nfp.jobs.schedule import Jobs
from broker.nfp.names import FILESHARING, FINAL_CODES, FSS, Code, Command, Dialect

GATHERED_MAX_BYTES: int = 16 * 1024 * 1024
"""What is streamed in one job for a client that has to get it as one result."""
_TORN: Final = (
    "what the task streams was torn when a connection was lost or the broker restarted: submit it again"
)
_AT_WORK: Final = frozenset({102, 201, 202, 300})
"""Codes of a worker that has the job and has not finished."""
_SPOKEN: Final = frozenset({"progress", "input_request", "input_response", "result_ready"})
"""What a worker's event may be told as: all other kinds are the broker's own words (see ``JobEvent``)."""


class WorkerMessages:
    """Listens to workers."""

    def __init__(self, jobs: Jobs, relays: Relays) -> None:
        self._jobs = jobs
        self._relays = relays

    # -- whose is it ----------------------------------------------------------------------------

    def _attempt_of(self, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> Attempt | None:
        """What ``worker`` has to do with the job; None: nothing, or no more, which is counted."""
        attempt = worker.attempts.get(packet.uuid) or self._former_attempt(peer, worker, packet, now)
        if attempt is None:
            return None
        number = bodies.read_token(packet.client) if packet.client is not None else 0
        if number > attempt.part.given[worker.name]:  # another broker's: it was ours after that one was lost
            self._jobs.counts.unroutable += 1
            return None
        if number:
            attempt.number = number
        attempt.heard = now
        return attempt

    def _former_attempt(self, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> Attempt | None:
        """The same for a worker that holds nothing for the job here; one that was never given it may be lying."""
        job = self._jobs.by_uuid.get(packet.uuid)
        part = job.given_to(worker.name) if job is not None else None
        if part is None:
            if job is None or packet.uuid in worker.claims:
                self._jobs.counts.unroutable += 1
            else:
                self._forged(peer, packet)
            return None
        if part.state == WAITING:
            return self._jobs.adopt(part, worker, now)
        return Attempt(part, worker, part.given[worker.name], now)

    def _forged(self, peer: Peer, packet: Packet) -> None:
        self._jobs.counts.forged += 1
        self._jobs.offended(
            peer, "forged", f"{packet.command.name} about a job it was not given: {packet.uuid[:64]!r}"
        )

    # -- RESPONSE -------------------------------------------------------------------------------

    def response(self, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> None:
        """Take what a worker says of an attempt: that it has it, does not know it, or its result."""
        if len(self._relays) and self._relays.answered(worker, packet):
            return
        if packet.status == Code.EXPECT_FAILED and self._stopped(worker, packet):
            self._jobs.counts.late += 1
            return
        attempt = self._attempt_of(peer, worker, packet, now)
        if attempt is None:
            return
        connection, code = worker.connection, packet.status
        assert connection is not None
        asked, attempt.asked = attempt.asked, 0.0
        attempt.unasked = False
        if code in _AT_WORK:
            self._at_work(attempt, packet, now)
        elif code == 404 or (asked and code in connection.unknown):
            self._unknown(attempt, now)
        elif code in FINAL_CODES:
            self._final(attempt, packet, now)
        else:
            self._jobs.counts.unexpected += 1

    def _stopped(self, worker: WorkerEntry, packet: Packet) -> bool:
        """Whether it is the end of an attempt that was stopped because the job was somebody else's: no result of it."""
        job = self._jobs.by_uuid.get(packet.uuid)
        part = job.given_to(worker.name) if job is not None else None
        if part is None or part.state == FINAL or worker.connection is None or not worker.connection.cancels:
            return False
        attempt = worker.attempts.get(packet.uuid)
        if attempt is not None and attempt.state in CURRENT:
            number = bodies.read_token(packet.client) if packet.client is not None else 0
            return 0 < number < attempt.number
        if attempt is not None:
            self._jobs.move(attempt, FINISH)
        return True

    def _at_work(self, attempt: Attempt, packet: Packet, now: float) -> None:
        accepts = packet.status == 201
        if attempt.state in CURRENT:
            self._jobs.accept(attempt, packet.body if accepts else None)
            if accepts:
                self.confirm(attempt)
        elif accepts:
            self._jobs.cancel(attempt, now)

    def confirm(self, attempt: Attempt) -> None:
        """The worker of a current attempt may begin, once it is on record that it has accepted the job.

        A worker that does not hear it does not begin, lists the job when it is back, and is told then.
        """
        connection = attempt.worker.connection
        if connection is not None and self._jobs.asks_first(attempt):
            connection.confirm([attempt.part.job.uuid], self._jobs.journal.position)

    def _unknown(self, attempt: Attempt, now: float) -> None:
        """The worker does not know the job."""
        part, worker = attempt.part, attempt.worker
        if attempt.state not in CURRENT:
            self._jobs.move(attempt, FORGET)
        elif attempt.state == PROBED:
            attempt.fresh = True
            if attempt.request(Command.POST, part.job.body, self._jobs.journal.position):
                self._jobs.move(attempt, POST)
            else:
                worker.choked = True
                self._jobs.give_back(attempt, FORGET, "was lost", now)
        else:
            part.forgotten |= {worker.name}
            self._jobs.give_back(attempt, FORGET, "forgot the job", now)

    def _final(self, attempt: Attempt, packet: Packet, now: float) -> None:
        part, worker = attempt.part, attempt.worker
        if part.state == FINAL:
            self._jobs.move(attempt, FINISH)
            if packet.status == 200 and part.worker != worker.name:
                self._jobs.counts.late += 1
        elif attempt.state == STOPPING and packet.status != 200:  # somebody else is at work
            self._jobs.move(attempt, FINISH)
        elif packet.status == 200 and self._is_gathered(part.job) and attempt.content is None:
            self._end_gathered(attempt, packet.data, now)
        else:
            self._jobs.record(attempt, packet.status, packet.data, now)
        self._jobs.acknowledge(worker, part.job.uuid)

    def _is_gathered(self, job: Job) -> bool:
        """Whether what a task streams is the whole point of it, and its client has to get it as one result."""
        files = job.task == "fetch_file" and job.service in (FILESHARING, FSS)
        return files and job.client.dialect is Dialect.SEED

    def _end_gathered(self, attempt: Attempt, body: bytes, now: float) -> None:
        """A file was sent, and nothing of it is here: it is empty, or what came is lost."""
        if attempt.fresh or bodies.says_failed(body):
            attempt.content = bytearray()
            self._jobs.record(attempt, 200, body, now)
            return
        self._jobs.move(attempt, FINISH)
        if attempt.part.current is attempt:
            self._jobs.fail(attempt.part, 500, _TORN, now)

    # -- EVENT, STREAM --------------------------------------------------------------------------

    def event(self, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> None:
        """An EVENT: to the client; the announcement of a result that has to be fetched is kept until it is here."""
        uuid = packet.uuid
        if uuid not in self._jobs.by_uuid and uuid not in worker.claims and uuid not in worker.attempts:
            self._publish(worker, packet)
            return
        attempt = self._attempt_of(peer, worker, packet, now)
        if attempt is None:
            return
        connection, kind = worker.connection, bodies.event_kind(packet.body)
        fetched = kind == "result_ready" and connection is not None and not connection.pushes
        if attempt.state not in CURRENT:
            self._event_of_other(attempt, fetched=fetched)
            return
        self._jobs.accept(attempt, told=not fetched)
        if kind == "input_request":
            attempt.question = packet.body
        elif kind == "input_response":
            attempt.question = None
        job, told = attempt.part.job, kind if kind in _SPOKEN else "progress"
        self._jobs.tell(told, job, worker.name, attempt.number, body=packet.body)
        if fetched:
            attempt.announcement = packet.body
            self._jobs.move(attempt, ANNOUNCE)
            self.ask(attempt, now)
        else:
            self._jobs.responders.of(job.client).event(attempt, kind, packet)

    def _publish(self, worker: WorkerEntry, packet: Packet) -> None:
        """An EVENT on a topic that is no job: to who subscribed to the topic (NFP, "NFP/Worker-PUB")."""
        service, status, body = worker.service.name, packet.status, packet.body
        event = JobEvent(
            "published", packet.uuid, service, "", "", USERID_UNKNOWN, worker.name, status=status, body=body
        )
        self._jobs.happened(event)

    def _event_of_other(self, attempt: Attempt, *, fetched: bool) -> None:
        """Of a worker whose part is over, or that lost the part to another one: only a result still counts."""
        part = attempt.part
        if not fetched:
            self._jobs.counts.unroutable += 1
        elif part.state == FINAL:
            self._jobs.counts.late += part.worker != attempt.worker.name
            self._jobs.move(attempt, FINISH)
        else:
            attempt.ask()

    def stream(self, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> None:
        """A STREAM: to the client."""
        attempt = self._attempt_of(peer, worker, packet, now)
        if attempt is None:
            return
        if attempt.state not in CURRENT:
            self._jobs.counts.unroutable += 1
            return
        self._jobs.accept(attempt)
        job = attempt.part.job
        self._jobs.tell("stream", job, worker.name, attempt.number, body=packet.body)
        if job.client.dialect is Dialect.SEED:
            self._gather(attempt, packet.data, now)
        else:
            self._jobs.responders.of(job.client).stream(attempt, packet)

    def _gather(self, attempt: Attempt, chunk: bytes, now: float) -> None:
        """The text has no STREAM: its client gets all chunks together, as the result.

        Nor has it PUT, by which file workers are asked for one chunk after the other: the broker does it.
        """
        content, job, jobs = attempt.content, attempt.part.job, self._jobs
        if content is None and not attempt.fresh:
            self._jobs.fail(attempt.part, 500, _TORN, now)
            return
        if content is None:
            content = attempt.content = bytearray()
        content += chunk
        job.size += len(chunk)
        jobs.open_bytes += len(chunk)
        if len(content) > GATHERED_MAX_BYTES or jobs.open_bytes > jobs.config.open_max_bytes:
            error = (
                f"more than {len(content)} bytes were streamed: ask for a part of it, by offset and length"
            )
            self._jobs.fail(attempt.part, 417, error, now)
        elif job.task == "fetch_file":
            attempt.request(Command.PUT, bodies.next_offset(job.body, len(content)))

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, attempt: Attempt, now: float) -> None:
        """GET: what became of it. When it cannot be sent, a later look at the worker tries again."""
        attempt.unasked = not attempt.ask()
        if not attempt.unasked:
            attempt.asked = attempt.worker.sent = now

    def look_after(self, worker: WorkerEntry, now: float) -> None:
        """Now and then: who does not push is asked, what did not begin is taken back for somebody who is idle.

        The credit of a part that is over returns when the worker says that it is done, not by itself: a task that hangs
        keeps its place there, and another job given to that place would wait for ever.
        """
        jobs, hold_s = self._jobs, self._jobs.config.hold_s
        for attempt in list(worker.attempts.values()) if worker.attempts else ():
            if attempt.state == STOPPING:
                if now - max(attempt.heard, attempt.asked) >= hold_s and not _tells(worker):
                    self.ask(attempt, now)
            elif attempt.asked:
                if now - attempt.asked >= hold_s:
                    jobs.give_back(attempt, LOSE, "did not answer", now)
            elif self._to_be_asked(attempt, now):
                self.ask(attempt, now)
            elif jobs.may_take_back(attempt, now):
                jobs.take_back(attempt, now)

    def _to_be_asked(self, attempt: Attempt, now: float) -> bool:
        """A result that was announced is asked for: at once where it must be, else when it does not come."""
        connection, ready = attempt.worker.connection, attempt.state == READY
        if connection is None or (connection.pushes and not (ready or attempt.unasked)):
            return False
        return (ready and not connection.pushes) or now - attempt.heard >= self._jobs.config.probe_s


def _tells(worker: WorkerEntry) -> bool:
    """Whether the worker answers the DELETE of a job that it still runs as soon as it has stopped."""
    return worker.connection is None or worker.connection.cancels
