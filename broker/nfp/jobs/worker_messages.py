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
from broker.nfp.jobs import client_requests, told
from broker.nfp.jobs.machine import CURRENT
from broker.nfp.jobs.model import Attempt, WorkerEntry
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


# -- whose is it ------------------------------------------------------------------------------------


def _attempt_of(jobs: Jobs, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> Attempt | None:
    """What ``worker`` has to do with the job; None: nothing, or no more, which is counted.

    One that was never given it may be lying; one that holds nothing for it here any more may still bring its result.
    """
    attempt = worker.attempts.get(packet.uuid)
    if attempt is None:
        job = jobs.by_uuid.get(packet.uuid)
        part = job.given_to(worker.name) if job is not None else None
        if part is not None:
            attempt = jobs.attempt_at(part, worker, now)
        elif job is None or packet.uuid in worker.claims:
            jobs.counts.unroutable += 1
            return None
        else:
            jobs.counts.forged += 1
            text = f"{packet.command.name} about a job it was not given: {packet.uuid[:64]!r}"
            jobs.offended(peer, "forged", text)
            return None
    number = _number(packet)
    if number > attempt.part.given[worker.name]:  # another broker's: it was ours after that one was lost
        jobs.counts.unroutable += 1
        return None
    if number:
        attempt.number = number
    attempt.heard = now
    return attempt


def _number(packet: Packet) -> int:
    """The attempt that the worker speaks of, 0 where it does not say."""
    return bodies.read_token(packet.client) if packet.client is not None else 0


# -- RESPONSE ---------------------------------------------------------------------------------------


def response(jobs: Jobs, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> None:
    """Take what a worker says of an attempt: that it has it, does not know it, or its result."""
    if jobs.relays and client_requests.answered(jobs, worker, packet):
        return
    code = packet.status
    if code == Code.EXPECT_FAILED and _is_of_stopped(jobs, worker, packet):
        jobs.counts.late += 1
        return
    attempt = _attempt_of(jobs, peer, worker, packet, now)
    if attempt is None:
        return
    asked, attempt.asked = attempt.asked, 0.0
    attempt.unasked = False
    if code in _AT_WORK:
        _take_progress(jobs, attempt, packet, now)
    elif code == 404 or (asked and code in worker.unknown):
        _take_unknown(jobs, attempt, now)
    elif code in FINAL_CODES:
        _take_result(jobs, attempt, packet, now)
    else:
        jobs.counts.unexpected += 1


def _is_of_stopped(jobs: Jobs, worker: WorkerEntry, packet: Packet) -> bool:
    """Whether it is the end of an attempt that was stopped because the job was somebody else's: no result of it."""
    job = jobs.by_uuid.get(packet.uuid)
    part = job.given_to(worker.name) if job is not None else None
    if part is None or part.state == "final" or not worker.cancels:
        return False
    attempt = worker.attempts.get(packet.uuid)
    if attempt is not None and attempt.state in CURRENT:
        return 0 < _number(packet) < attempt.number
    if attempt is not None:
        jobs.move(attempt, "finish")
    return True


def _take_progress(jobs: Jobs, attempt: Attempt, packet: Packet, now: float) -> None:
    accepts = packet.status == 201
    if attempt.state in CURRENT:
        jobs.accept(attempt, packet.body if accepts else None)
        if accepts and jobs.asks_first(attempt):
            # it may begin, once it is on record that it has accepted the job; who does not hear it does not begin,
            # lists the job when it is back, and is told then
            attempt.worker.tell(bodies.CONFIRMED, [attempt.part.job.uuid], jobs.journal.position)
    elif accepts:
        jobs.cancel(attempt, now)


def _take_unknown(jobs: Jobs, attempt: Attempt, now: float) -> None:
    """The worker does not know the job."""
    part, worker = attempt.part, attempt.worker
    if attempt.state not in CURRENT:
        jobs.move(attempt, "forget")
    elif attempt.state == "probed":
        attempt.fresh = True
        if attempt.request(Command.POST, part.job.body, jobs.journal.position):
            jobs.move(attempt, "post")
        else:
            worker.choked = True
            jobs.give_back(attempt, "forget", "was lost", now)
    else:
        part.forgotten |= {worker.name}
        jobs.give_back(attempt, "forget", "forgot the job", now)


def _take_result(jobs: Jobs, attempt: Attempt, packet: Packet, now: float) -> None:
    part, worker, done = attempt.part, attempt.worker, packet.status == 200
    job = part.job
    if part.state == "final":
        jobs.move(attempt, "finish")
        jobs.counts.late += done and part.worker != worker.name
    elif attempt.state == "stopping" and not done:  # somebody else is at work
        jobs.move(attempt, "finish")
    elif (
        done
        and attempt.content is None
        and job.client.dialect is Dialect.SEED
        and job.task == "fetch_file"
        and job.service in (FILESHARING, FSS)
    ):
        _end_empty(jobs, attempt, packet.data, now)
    else:
        jobs.record(attempt, packet.status, packet.data, now)
    jobs.acknowledge(worker, job.uuid)


def _end_empty(jobs: Jobs, attempt: Attempt, body: bytes, now: float) -> None:
    """A file was sent to a client that gets it as one result, and nothing of it is here: it is empty, or was lost."""
    if attempt.fresh or bodies.says_failed(body):
        attempt.content = bytearray()
        jobs.record(attempt, 200, body, now)
        return
    jobs.move(attempt, "finish")
    if attempt.part.current is attempt:
        jobs.fail(attempt.part, 500, _TORN, now)


# -- EVENT, STREAM ----------------------------------------------------------------------------------


def event(jobs: Jobs, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> None:
    """An EVENT: to the client; the announcement of a result that has to be fetched is kept until it is here.

    On a topic that is no job: to who subscribed to the topic (NFP, "NFP/Worker-PUB").
    """
    uuid = packet.uuid
    if uuid not in jobs.by_uuid and uuid not in worker.claims and uuid not in worker.attempts:
        about = uuid, worker.service.name, "", "", USERID_UNKNOWN, worker.name
        jobs.happened(JobEvent("published", *about, status=packet.status, body=packet.body))
        return
    attempt = _attempt_of(jobs, peer, worker, packet, now)
    if attempt is None:
        return
    part, kind = attempt.part, bodies.event_kind(packet.body)
    fetched = kind == "result_ready" and not worker.pushes
    if (
        attempt.state not in CURRENT
    ):  # of a worker whose part is over, or somebody else's: only a result still counts
        if not fetched:
            jobs.counts.unroutable += 1
        elif part.state == "final":
            jobs.counts.late += part.worker != worker.name
            jobs.move(attempt, "finish")
        else:
            attempt.ask()
        return
    jobs.accept(attempt, told_so=not fetched)
    if kind == "input_request":
        attempt.question = packet.body
    elif kind == "input_response":
        attempt.question = None
    told_as = kind if kind in _SPOKEN else "progress"
    jobs.tell(told_as, part.job, worker.name, attempt.number, body=packet.body)
    if fetched:
        attempt.announcement = packet.body
        jobs.move(attempt, "announce")
        ask(attempt, now)
    else:
        told.event(jobs, attempt, kind, packet)


def stream(jobs: Jobs, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> None:
    """A STREAM: to the client."""
    attempt = _attempt_of(jobs, peer, worker, packet, now)
    if attempt is None:
        return
    if attempt.state not in CURRENT:
        jobs.counts.unroutable += 1
        return
    jobs.accept(attempt)
    job = attempt.part.job
    jobs.tell("stream", job, worker.name, attempt.number, body=packet.body)
    if job.client.dialect is Dialect.SEED:
        _gather(jobs, attempt, packet.data, now)
    else:
        told.stream(jobs, attempt, packet)


def _gather(jobs: Jobs, attempt: Attempt, chunk: bytes, now: float) -> None:
    """The text has no STREAM: its client gets all chunks together, as the result.

    Nor has it PUT, by which file workers are asked for one chunk after the other: the broker does it.
    """
    content, job = attempt.content, attempt.part.job
    if content is None and not attempt.fresh:
        jobs.fail(attempt.part, 500, _TORN, now)
        return
    if content is None:
        content = attempt.content = bytearray()
    content += chunk
    job.size += len(chunk)
    jobs.open_bytes += len(chunk)
    if len(content) > GATHERED_MAX_BYTES or jobs.open_bytes > jobs.config.open_max_bytes:
        error = f"more than {len(content)} bytes were streamed: ask for a part of it, by offset and length"
        jobs.fail(attempt.part, 417, error, now)
    elif job.task == "fetch_file":
        attempt.request(Command.PUT, bodies.next_offset(job.body, len(content)))


# -- asking -----------------------------------------------------------------------------------------


def ask(attempt: Attempt, now: float) -> None:
    """GET: what became of it. When it cannot be sent, a later look at the worker tries again."""
    attempt.unasked = not attempt.ask()
    if not attempt.unasked:
        attempt.asked = attempt.worker.sent = now


def look_after(jobs: Jobs, worker: WorkerEntry, now: float) -> None:
    """Now and then: who does not push is asked, what did not begin is taken back for somebody who is idle.

    The credit of a part that is over returns when the worker says that it is done, not by itself: a task that hangs
    keeps its place there, and another job given to that place would wait for ever. Who understands DELETE answers it as
    soon as it has stopped.
    """
    hold_s = jobs.config.hold_s
    for attempt in list(worker.attempts.values()) if worker.attempts else ():
        if attempt.state == "stopping":
            if now - max(attempt.heard, attempt.asked) >= hold_s and not worker.cancels:
                ask(attempt, now)
        elif attempt.asked:
            if now - attempt.asked >= hold_s:
                jobs.give_back(attempt, "lose", "did not answer", now)
        elif _to_be_asked(jobs, attempt, now):
            ask(attempt, now)
        elif jobs.may_take_back(attempt, now):
            jobs.take_back(attempt, now)


def _to_be_asked(jobs: Jobs, attempt: Attempt, now: float) -> bool:
    """A result that was announced is asked for: at once where it must be, else when it does not come."""
    pushes, ready = attempt.worker.pushes, attempt.state == "ready"
    if pushes and not (ready or attempt.unasked):
        return False
    return (ready and not pushes) or now - attempt.heard >= jobs.config.probe_s
