"""Finality: one recorded result for each part, whoever brings it first; how long it is remembered.

A part that is final never changes. A worker that still runs it then, or lost the race, is told to stop when it
understands that; the credit stays in use until it says that it is done.
"""

# compiled: mypyc

from __future__ import annotations

from math import inf
from typing import Final

from broker.nfp import bodies
from broker.nfp.dispatch.model import OPEN, Order, Part, Run, WorkerEntry
from broker.nfp.dispatch.state import State
from broker.nfp.names import Command
from broker.nfp.outcome import CANCELLED, EXPIRED, FAILED, STATUS_WORDS, job_state
from broker.nfp.records import Finished, Forgotten

ACKNOWLEDGE_S: Final = 0.02
"""Workers that bring one result after the other are told in such intervals which are safe: one packet costs both sides
as much as a hundred uuids in it, and all a worker does with the news is to forget sooner."""


class Results:
    """Records results and closes jobs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._acknowledged_at = -inf

    # -- a part ---------------------------------------------------------------------------------

    def record(self, run: Run, status: int, body: bytes, now: float) -> None:
        """The worker of ``run`` brought the first final result of a part that stands in no queue."""
        part, worker, other = run.part, run.worker, run.part.run
        ready = run.ready
        if run.content is not None and status == 200 and not bodies.says_failed(body):
            body = bytes(run.content)
        self.release(run)
        self._finish(part, worker.name, run.attempt, status, body, ready, now, at=worker.name)
        if other is not None and other is not run:
            self.detach(other, now)

    def fail(self, part: Part, status: int, error: str, now: float, *, lost: str = "") -> None:
        """The broker ends a part that stands in no queue; ``error`` is for people.

        ``lost`` is the worker that had it and is gone: the part has failed then, whatever the status.
        """
        order = part.order
        run = part.run
        at = run.worker.name if run is not None else lost
        word = STATUS_WORDS[FAILED] if lost else ""
        target, worker = order.target_text, part.name if lost else at or part.name
        body = bodies.failed(status, order.uuid, order.service, target, error, worker=worker, word=word)
        if run is not None:
            self._drop_content(run)
        self._finish(part, "", part.attempt, status, body, None, now, at=at)
        if run is not None:
            self.detach(run, now)

    def _finish(
        self,
        part: Part,
        worker: str,
        attempt: int,
        status: int,
        body: bytes,
        ready: object,
        now: float,
        *,
        at: str,
    ) -> None:
        """``at`` is the worker that had it, "" when nobody had."""
        state, order = self._state, part.order
        part.run = part.asked = None
        part.settle(worker, status, body)
        if at:
            state.registry.count(at, part.ended)
        order.size += len(body)
        state.open_bytes += len(body)
        order.open -= 1
        state.open_parts -= 1
        state.counts.finished += 1
        closes = "" if order.open else _end_of(order)
        state.journal.put(Finished(order.uuid, part.name, worker, attempt, status, body, closes))
        part.after = state.journal.position
        state.tell("finished", order, worker, attempt, status, body, len(body), part.ended)
        self._state.responders.of(order.client).recorded(part, ready)
        if not order.open:
            self.close(order, now)

    # -- a worker's part in it ------------------------------------------------------------------

    def detach(self, run: Run, now: float) -> None:
        """``run`` is not current any more: somebody else's result counts, or nobody's.

        That is recorded before: a worker must not give up what a restarted broker would still count on.
        """
        worker = run.worker
        if worker.connection is None:
            self.release(run)
            return
        run.ended = run.ended or now
        if worker.connection.cancels:
            run.request(Command.DELETE, b"", self._state.journal.position)

    def stop(self, run: Run, now: float) -> None:
        """A worker still has a part that is not its own any more, in a ``run`` that may be new here: it has to stop.

        Until it says that it has, a credit of it is in use.
        """
        worker, uuid = run.worker, run.part.order.uuid
        if uuid not in worker.runs:
            worker.runs[uuid] = run
            worker.busy += 1
            run.holds = True
            self._state.registry.refresh(worker)
        self.detach(run, now)

    def release(self, run: Run) -> None:
        """The worker has nothing to do with the part any more."""
        worker = run.worker
        if worker.runs.get(run.part.order.uuid) is run:
            del worker.runs[run.part.order.uuid]
        self._drop_content(run)
        self.free_credit(run)

    def _drop_content(self, run: Run) -> None:
        if run.content is not None:
            run.part.order.size -= len(run.content)
            self._state.open_bytes -= len(run.content)
            run.content = None

    def free_credit(self, run: Run) -> None:
        """A credit of the worker returns."""
        if run.holds:
            run.holds = False
            self._state.return_credit(run.worker)

    def acknowledge(self, worker: WorkerEntry, uuid: str) -> None:
        """Have ``worker`` told that its result is safe, if it wants to know: at the end of a turn, many in one."""
        if worker.connection is not None and worker.connection.records:
            self._state.safe.setdefault(worker, []).append(uuid)

    def send_acknowledgements(self, now: float, *, at_once: bool = False) -> float:
        """End of a turn: at once after a pause, else together. Returns when to be called again, inf for no need."""
        due = self._acknowledged_at + ACKNOWLEDGE_S
        if now < due and not at_once:
            return due
        self._acknowledged_at = now
        safe, self._state.safe = self._state.safe, {}
        for worker, uuids in safe.items():
            if worker.connection is not None:  # else it asks again when it is back
                worker.connection.recorded(uuids, self._state.journal.position)
        return inf

    # -- a job ----------------------------------------------------------------------------------

    def close(self, order: Order, now: float) -> None:
        """Every part is final."""
        state = self._state
        order.state = _end_of(order)
        state.counts.ended(order.state)
        state.tasks.ended(order, now)
        order.closed_at, order.after = now, state.journal.position
        state.timers.cancel(order.timer)
        order.timer = None
        self._state.responders.of(order.client).closed(order)
        state.open_orders -= 1
        state.open_bytes -= order.size
        order.client.open -= 1
        order.drop_body()
        state.recent.append(order)
        state.recent_bytes += order.size
        self.keep(order)
        kind = order.state if order.state in (CANCELLED, EXPIRED) else "closed"
        status = max(part.status for part in order.parts.values())
        state.tell(kind, order, status=status, ended=order.state)

    def keep(self, order: Order) -> None:
        """A closed job is remembered; the oldest make room."""
        state = self._state
        state.closed.append(order)
        state.kept_bytes += order.size
        order.client.kept += 1
        config = state.config
        while state.closed[0] is not order and (
            state.kept_bytes > config.results_max_bytes or len(state.closed) > config.results_max_jobs
        ):
            self._forget(state.closed.popleft())

    def sweep(self, now: float) -> float:
        """Forget what was kept long enough. Returns when the next one is due."""
        self._leave_to_store()
        closed, ttl = self._state.closed, self._state.config.result_ttl_s
        while closed:
            due = closed[0].closed_at + ttl
            if due > now:
                return due
            self._forget(closed.popleft())
        return inf

    def _leave_to_store(self) -> None:
        """All but the latest closed orders leave their room in memory, as soon as they are durable."""
        state, config, recent = self._state, self._state.config, self._state.recent
        while len(recent) > config.recent_max_jobs or state.recent_bytes > config.recent_max_bytes:
            if state.journal.broken or recent[0].after > state.journal.committed:
                return
            order = recent.popleft()
            state.recent_bytes -= order.size
            order.leave_to_store()

    def _forget(self, order: Order) -> None:
        """``order`` is in no table of closed ones any more."""
        state = self._state
        if state.recent and state.recent[0] is order:
            state.recent.popleft()
            state.recent_bytes -= order.size
        del state.orders[order.uuid]
        state.counts.forgotten += 1
        state.journal.put(Forgotten(order.uuid))
        self._kept_no_more(order)

    def lost(self, order: Order) -> None:
        """The store does not have this one any more."""
        self._state.closed.remove(order)
        self._forget(order)

    def _kept_no_more(self, order: Order) -> None:
        self._state.kept_bytes -= order.size
        order.client.kept -= 1
        self._owes_nothing(order)

    def _owes_nothing(self, order: Order) -> None:
        """The job's client is owed nothing because of it any more."""
        order.client.owed.pop(order.uuid, None)
        self._state.clients.tidy(order.client)

    def remove(self, order: Order) -> None:
        """A job that never was; it stands in no queue, and no worker has it."""
        state = self._state
        state.tasks.removed(order)
        state.timers.cancel(order.timer)
        if order.state == OPEN:
            state.open_orders -= 1
            state.open_parts -= order.open
            state.open_bytes -= order.size
            order.client.open -= 1
            self._owes_nothing(order)
        else:
            state.closed.remove(order)
            state.recent.remove(order)
            state.recent_bytes -= order.size
            self._kept_no_more(order)


def _end_of(order: Order) -> str:
    """The state of a job whose parts are all final."""
    return job_state(part.ended for part in order.parts.values())
