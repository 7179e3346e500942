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
from broker.nfp.dispatch.foreign_jobs import ForeignJobs
from broker.nfp.dispatch.model import ACCEPTED, DISPATCHED, FINAL, WAITING, Order, Run, WorkerEntry
from broker.nfp.dispatch.relays import Relays
from broker.nfp.dispatch.results import Results
from broker.nfp.dispatch.scheduler import Scheduler
from broker.nfp.dispatch.state import State
from broker.nfp.frames import Body, Packet
from broker.nfp.names import FILESHARING, FINAL_CODES, FSS, Code, Command, Dialect
from broker.nfp.records import Accepted

GATHERED_MAX_BYTES: int = 16 * 1024 * 1024
"""What is streamed in one job for a client that has to get it as one result."""
_TORN: Final = (
    "what the task streams was torn when a connection was lost or the broker restarted: submit it again"
)
_AT_WORK: Final = frozenset({102, 201, 202, 300})
"""Codes of a worker that has the job and has not finished."""
_SPOKEN: Final = frozenset({"progress", "input_request", "input_response", "result_ready"})
"""What a worker's event may be told as: all other kinds are the broker's own words (see ``JobEvent``)."""


class Progress:
    """Listens to workers."""

    def __init__(
        self, state: State, results: Results, scheduler: Scheduler, relays: Relays, foreign: ForeignJobs
    ) -> None:
        self._state = state
        self._results = results
        self._scheduler = scheduler
        self._relays = relays
        self._foreign = foreign

    # -- whose is it ----------------------------------------------------------------------------

    def _run_of(self, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> Run | None:
        """What ``worker`` has to do with the job; None: nothing, which is counted against it, or no more."""
        order = self._state.orders.get(packet.uuid)
        if order is None:
            self._state.counts.unroutable += 1
            self._foreign.heard(worker, packet)
            return None
        run = worker.runs.get(packet.uuid)
        if run is None:
            part = order.given_to(worker.name)
            if part is None:
                if self._foreign.heard(worker, packet):
                    self._state.counts.unroutable += 1
                else:
                    self._forged(peer, packet)
                return None
            if part.state == WAITING:
                run = self._scheduler.adopt(part, worker, now)
            else:
                run = Run(part, worker, part.given[worker.name], now)
        attempt = bodies.read_token(packet.client) if packet.client is not None else 0
        if attempt > run.part.given[worker.name]:  # another broker's: it was ours after that one was lost
            self._state.counts.unroutable += 1
            return None
        if attempt:
            run.attempt = attempt
        run.heard = now
        return run

    def _forged(self, peer: Peer, packet: Packet) -> None:
        self._state.counts.forged += 1
        self._state.offended(
            peer, "forged", f"{packet.command.name} about a job it was not given: {packet.uuid[:64]!r}"
        )

    # -- RESPONSE -------------------------------------------------------------------------------

    def response(self, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> None:
        """A RESPONSE."""
        if len(self._relays) and self._relays.answered(worker, packet):
            return
        if packet.status == Code.EXPECT_FAILED and self._stopped(worker, packet):
            self._state.counts.late += 1
            return
        run = self._run_of(peer, worker, packet, now)
        if run is None:
            return
        connection, code = worker.connection, packet.status
        assert connection is not None
        asked, run.asked = run.asked, 0.0
        run.doubtful = False
        if code in _AT_WORK:
            self._at_work(run, packet, now)
        elif code == 404 or (asked and code in connection.unknown):
            self._unknown(run, now)
        elif code in FINAL_CODES:
            self._final(run, packet, now)
        else:
            self._state.counts.unexpected += 1

    def _stopped(self, worker: WorkerEntry, packet: Packet) -> bool:
        """Whether it is the end of an attempt that was stopped because the job was somebody else's: no result of it."""
        order = self._state.orders.get(packet.uuid)
        part = order.given_to(worker.name) if order is not None else None
        if part is None or part.state == FINAL or worker.connection is None or not worker.connection.cancels:
            return False
        run = worker.runs.get(packet.uuid)
        if run is not None and run is part.run:
            attempt = bodies.read_token(packet.client) if packet.client is not None else 0
            return 0 < attempt < run.attempt
        if run is not None:
            self._results.release(run)
        return True

    def _at_work(self, run: Run, packet: Packet, now: float) -> None:
        if run.part.run is not run:
            if packet.status == 201:
                self._results.stop(run, now)
            return
        self.accept(run)
        if packet.status == 201:
            self._tell_accepted(run, packet.body)
            self.confirm(run)

    def confirm(self, run: Run) -> None:
        """The worker of a current run may begin, once it is on record that it has accepted the job.

        A worker that does not hear it does not begin, lists the job when it is back, and is told then.
        """
        connection = run.worker.connection
        if connection is not None and self._scheduler.asks_first(run):
            connection.confirm([run.part.order.uuid], self._state.journal.position)

    def _tell_accepted(self, run: Run, body: Body) -> None:
        """201 to the client, once, in front of every event: a worker may say it only when the job has run a while."""
        if run.told_accepted:
            return
        run.told_accepted = True
        order = run.part.order
        if body is None:
            body = bodies.accepted(order.uuid, run.worker.service.name, run.worker.name)
        self._state.responders.of(order.client).accepted(order, body)

    def accept(self, run: Run) -> None:
        """The worker of a current run has the job, by whatever it said."""
        part = run.part
        if part.state != DISPATCHED:
            return
        part.state = ACCEPTED
        run.check = False
        order, worker = part.order, run.worker.name
        part.repeat = self._scheduler.may_repeat(run)  # for good, whatever the worker says when it is back
        if not part.repeat:
            # an older token may have been echoed: the store knows the attempt under way only
            self._state.journal.put(Accepted(order.uuid, part.name, part.given[worker]))
        self._state.tell("accepted", order, worker, run.attempt)

    def _unknown(self, run: Run, now: float) -> None:
        """The worker does not know the job."""
        part, connection = run.part, run.worker.connection
        if part.run is not run:
            self._results.release(run)
        elif run.check and connection is not None:
            run.check, run.whole = False, True
            if not run.request(Command.POST, part.order.body, self._state.journal.position):
                run.worker.choked = True
                self._scheduler.give_back(run, "was lost", now, untouched=True)
        else:
            part.strangers |= {run.worker.name}
            self._scheduler.give_back(run, "forgot the job", now, untouched=True)

    def _final(self, run: Run, packet: Packet, now: float) -> None:
        part, worker = run.part, run.worker
        if part.state == FINAL:
            self._results.release(run)
            if packet.status == 200 and part.worker != worker.name:
                self._state.counts.late += 1
        elif run.ended and packet.status != 200:  # it was told to stop, somebody else is at work
            self._results.release(run)
        elif packet.status == 200 and self._is_gathered(part.order) and run.content is None:
            self._end_gathered(run, packet.data, now)
        else:
            self._results.record(run, packet.status, packet.data, now)
        self._results.acknowledge(worker, part.order.uuid)

    def _is_gathered(self, order: Order) -> bool:
        """Whether what a task streams is the whole point of it, and its client has to get it as one result."""
        files = order.task == "fetch_file" and order.service in (FILESHARING, FSS)
        return files and order.client.dialect is Dialect.SEED

    def _end_gathered(self, run: Run, body: bytes, now: float) -> None:
        """A file was sent, and nothing of it is here: it is empty, or what came is lost."""
        if run.whole or bodies.says_failed(body):
            run.content = bytearray()
            self._results.record(run, 200, body, now)
            return
        part = run.part
        self._results.release(run)
        if part.run is run:
            part.run = None
            self._results.fail(part, 500, _TORN, now)

    # -- EVENT, STREAM --------------------------------------------------------------------------

    def event(self, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> None:
        """An EVENT: to the client; the announcement of a result that has to be fetched is kept until it is here."""
        if packet.uuid not in self._state.orders and packet.uuid not in worker.foreign:
            self._publish(worker, packet)
            return
        run = self._run_of(peer, worker, packet, now)
        if run is None:
            return
        part, kind = run.part, bodies.event_kind(packet.body)
        if part.run is not run:
            self._event_of_other(run, kind)
            return
        self.accept(run)
        if kind == "input_request":
            part.asked = packet.body
        elif kind == "input_response":
            part.asked = None
        told = kind if kind in _SPOKEN else "progress"
        self._state.tell(told, part.order, worker.name, run.attempt, body=packet.body)
        if kind == "result_ready" and worker.connection is not None and not worker.connection.pushes:
            run.ready = packet.body
            self._results.free_credit(run)
            self.ask(run, now)
        else:
            self._tell_accepted(run, None)
            self._state.responders.of(part.order.client).event(run, kind, packet)

    def _publish(self, worker: WorkerEntry, packet: Packet) -> None:
        """An EVENT on a topic that is no job: to who subscribed to the topic (NFP, "NFP/Worker-PUB")."""
        service, status, body = worker.service.name, packet.status, packet.body
        event = JobEvent(
            "published", packet.uuid, service, "", "", USERID_UNKNOWN, worker.name, status=status, body=body
        )
        self._state.happened(event)

    def _event_of_other(self, run: Run, kind: str) -> None:
        """Of a worker whose part is over, or that lost the part to another one: only a result still counts."""
        worker, part = run.worker, run.part
        if kind != "result_ready" or worker.connection is None or worker.connection.pushes:
            self._state.counts.unroutable += 1
        elif part.state == FINAL:
            self._state.counts.late += part.worker != worker.name
            self._results.release(run)
        else:
            run.ask()

    def stream(self, peer: Peer, worker: WorkerEntry, packet: Packet, now: float) -> None:
        """A STREAM: to the client."""
        run = self._run_of(peer, worker, packet, now)
        if run is None:
            return
        if run.part.run is not run:
            self._state.counts.unroutable += 1
            return
        self.accept(run)
        order = run.part.order
        self._state.tell("stream", order, worker.name, run.attempt, body=packet.body)
        self._tell_accepted(run, None)
        if order.client.dialect is Dialect.SEED:
            self._gather(run, packet.data, now)
        else:
            self._state.responders.of(order.client).stream(run, packet)

    def _gather(self, run: Run, chunk: bytes, now: float) -> None:
        """The text has no STREAM: its client gets all chunks together, as the result.

        Nor has it PUT, by which file workers are asked for one chunk after the other: the broker does it.
        """
        content, order, state = run.content, run.part.order, self._state
        if content is None and not run.whole:
            self._results.fail(run.part, 500, _TORN, now)
            return
        if content is None:
            content = run.content = bytearray()
        content += chunk
        order.size += len(chunk)
        state.open_bytes += len(chunk)
        if len(content) > GATHERED_MAX_BYTES or state.open_bytes > state.config.open_max_bytes:
            error = (
                f"more than {len(content)} bytes were streamed: ask for a part of it, by offset and length"
            )
            self._results.fail(run.part, 417, error, now)
        elif order.task == "fetch_file":
            run.request(Command.PUT, bodies.next_offset(order.body, len(content)))

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, run: Run, now: float) -> None:
        """GET: what became of it. When it cannot be sent, a later look at the worker tries again."""
        worker = run.worker
        if run.ask():
            run.asked = now
            worker.sent = now
        else:
            run.doubtful = True

    def look_after(self, worker: WorkerEntry, now: float) -> None:
        """Now and then: who does not push is asked, what did not begin is taken back for somebody who is idle.

        The credit of a part that is over returns when the worker says that it is done, not by itself: a task that hangs
        keeps its place there, and another job given to that place would wait for ever.
        """
        config = self._state.config
        for run in list(worker.runs.values()) if worker.runs else ():
            if run.part.run is not run:
                if now - max(run.ended, run.heard, run.asked) >= config.hold_s and not _tells(worker):
                    self.ask(run, now)
            elif run.asked:
                if now - run.asked >= config.hold_s:
                    self._scheduler.give_back(run, "did not answer", now)
            elif self._to_be_asked(run, now):
                self.ask(run, now)
            elif self._scheduler.rebalancer.may_take_back(run, now):
                self._scheduler.rebalancer.take_back(run, now)

    def _to_be_asked(self, run: Run, now: float) -> bool:
        connection = run.worker.connection
        if connection is None or (connection.pushes and not run.doubtful):
            return False
        return run.ready is not None or now - run.heard >= self._state.config.probe_s


def _tells(worker: WorkerEntry) -> bool:
    """Whether the worker answers the DELETE of a job that it still runs as soon as it has stopped."""
    return worker.connection is None or worker.connection.cancels
