"""Whoever is killed, frozen or cut off, at any step: a task is entered as often as it may be, and no job is lost.

The broker's dispatcher and our worker library as they are, with a network, disks and tasks that go on by hand. Rules:
a task is entered at most once for each attempt; one that must not be run twice is entered once at most; never twice
at a time in a process; never after its cancellation was confirmed, unless the word that let it begin was on its way
to the worker by then, and that connection has held. In the end all jobs have their results.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from broker.nfp import bodies
from broker.nfp.frames import Packet, decode, encode
from broker.nfp.jobs import DispatchConfig
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.opening import BrokerOpen, read_worker
from broker.nfp.peer.channel import Traffic
from broker.nfp.worker import tasks
from broker.nfp.worker.run import ENDED, HELD, RUNNING
from broker.nfp.worker.session import Session
from broker.nfp.worker.store import StoredRun
from tests.unit.nfp.jobs.bench import Bench, FakePeer

CONFIG = DispatchConfig(
    queue_ttl_s=4000.0, job_timeout_s=4000.0, job_ttl_s=4000.0, result_ttl_s=9000.0, ahead=1
)
SLOTS = {"w1": 1, "w2": 2}
OPENED = {"features": ["recorded", "delete", "jobs"], "keepalive_ms": BrokerOpen().keepalive_ms}


class Disk:
    """A store whose disk writes when it is told to, or not before the process is killed."""

    def __init__(self) -> None:
        self.jobs: dict[str, StoredRun] = {}
        self._written: dict[str, StoredRun] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def write(self) -> None:
        self._written = dict(self.jobs)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def killed(self) -> None:
        self.jobs, self._waiting = dict(self._written), []

    def unrecorded(self) -> list[StoredRun]:
        return [job for job in self.jobs.values() if job.state not in ("recorded", "cancelled")]

    def _put(self, uuid: str, state: str, *, only: tuple[str, ...], **more: Any) -> None:
        if uuid in self.jobs and self.jobs[uuid].state in only:
            self.jobs[uuid] = self.jobs[uuid]._replace(state=state, **more)

    def state(self, uuid: str) -> str:
        return self.jobs[uuid].state if uuid in self.jobs else ""

    def accepted(self, job: StoredRun) -> bool:
        if job.uuid in self.jobs:
            return False
        self.jobs[job.uuid] = job._replace(state="accepted")
        return True

    def readdressed(self, uuid: str, client: bytes | None) -> None:
        self.jobs[uuid] = self.jobs[uuid]._replace(client=client)

    def started(self, uuid: str) -> None:
        self._put(uuid, "started", only=("accepted",))

    def done(self, job: StoredRun) -> None:
        self.accepted(job)
        self._put(job.uuid, "done", only=("accepted", "started"), status=job.status, result=job.result)

    def recorded(self, uuids: list[str]) -> None:
        for uuid in uuids:
            self._put(uuid, "recorded", only=("done",))

    def cancelled(self, uuid: str) -> None:
        self._put(uuid, "cancelled", only=("accepted", "started"))

    def drop(self, uuid: str) -> None:
        self.jobs.pop(uuid, None)

    async def durable(self) -> None:
        written = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        await written

    async def find(self, uuid: str) -> StoredRun | None:
        found = self.jobs.get(uuid)
        return found if found is not None and found.result else None


class Process:
    """A worker, and one connection of it at a time. As a channel it queues what is sent."""

    trouble = ""
    broker = "b"

    def __init__(self, machine: Once, name: str) -> None:
        self.machine = machine
        self.name = name
        self.disk = Disk()
        self.frozen = False
        self.alive = False
        self.peer: FakePeer | None = None
        self.out: deque[Packet] = deque()
        self.start()

    # -- peer.channel.Channel ---------------------------------------------------------------------

    def send(self, packet: Packet) -> bool:
        self.out.append(packet)
        return True

    def reopen(self, why: str) -> None:
        self.lose()

    # -- a life -----------------------------------------------------------------------------------

    def start(self) -> None:
        self.traffic = Traffic()
        self.inside: dict[str, asyncio.Future[None]] = {}
        self.entered: set[str] = set()
        self.alive, self.frozen = True, False
        self.machine.step(self._start)

    def _start(self) -> None:
        offered: dict[str, tasks.Task] = {}
        for name in ("once", "again"):
            offered[name] = tasks.make(self._body, name=name, idempotent=name == "again")
        self.tasks = offered
        self.session = Session(
            self,
            "net",
            offered,
            self.disk,
            slots=SLOTS[self.name],
            manage=lambda packet: b"{}",
            localise=self._localise,
            inventory={},
        )
        self.session.accept_after_s = 0.0
        self.session.restore(self.disk.unrecorded())

    async def _localise(self, _task: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return args, kwargs

    async def _body(self, job: Any) -> str:
        self.machine.entered(self, job)
        self.inside[job.uuid] = asyncio.get_running_loop().create_future()
        try:
            await self.inside[job.uuid]
        finally:
            self.inside.pop(job.uuid, None)
        return self.name

    def kill(self) -> None:
        self.cut()
        self.session._waiting.clear()  # a slot that becomes free here is nobody's any more
        for job in list(self.session.running.values()):
            job.cancelled = False
            if job.running is not None:
                job.running.cancel()
        works = list(self.session._background._tasks)
        for work in works:
            work.cancel()
        for job in self.session.jobs.values():
            job.stop_timer()
        self.disk.killed()  # nothing that ends now is written
        self.disk.jobs, kept = {}, self.disk.jobs
        self.alive = False
        self.machine.step(self.session.unregister)
        self.disk.jobs = kept
        self.disk._written = dict(kept)

    # -- its connection ---------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self.peer is not None

    def connect(self) -> None:
        if self.session.registered:
            self.lose()  # it was frozen while the connection went: a channel tells of the end before it begins anew
        self.peer = peer = FakePeer(self.name, Dialect.NORFAB)
        said = {
            "features": ["recorded", "delete", "jobs"],
            "credits": SLOTS[self.name],
            "tasks": {task.name: {"idempotent": task.idempotent} for task in self.tasks.values()},
            "jobs": self.session.listed(),
        }
        self.machine.bench.dispatcher.worker_opened(
            peer, read_worker(json.dumps(said).encode()), self.machine.bench.now
        )
        self.machine.step(lambda: self.session.on_connect("b", OPENED))

    def cut(self) -> FakePeer | None:
        """The connection is gone, and the broker has not noticed."""
        peer, self.peer = self.peer, None
        self.out.clear()
        return peer

    def lose(self) -> None:
        """The worker notices that the connection is gone."""
        self.cut()
        self.machine.step(lambda: self.session.on_disconnect("gone"))

    def take(self) -> bool:
        """The next packet of the broker; False when there is none."""
        if self.peer is not None and self.peer.cuts:
            peer = self.peer
            self.lose()
            self.machine.bench.lose(peer)
        if self.peer is None or not self.peer.waiting:
            return False
        packet = decode(encode(self.peer.waiting.pop(0)[0]))
        if packet.command is Command.DISCONNECT:
            self.lose()
        else:
            self.machine.step(lambda: self.session.on_packet(packet))
        return True

    def give(self) -> bool:
        """The next packet to the broker; False when there is none."""
        if self.peer is None or self.peer.cuts or not self.out:
            return False
        packet = decode(encode(self.out.popleft()))
        self.machine.bench.dispatcher.worker(self.peer, packet, self.machine.bench.now)
        self.machine.bench.end_turn()
        return True

    def flow(self, steps: int, *, written: bool = True) -> None:
        """What goes on by itself: so many packets there and back, and what is to be written."""
        for _ in range(steps):
            if self.alive and not self.frozen:
                if written:
                    self.machine.step(self.disk.write)
                self.take()
            self.give()

    def may_begin(self, uuid: str) -> bool:
        """Whether the job is on its way to its beginning here: the word that lets it is sent, or came."""
        job = self.session.jobs.get(uuid)
        if job is not None and job.state not in (RUNNING, ENDED) and (job.confirmed or job.idempotent):
            return job.state != HELD or self._on_its_way(uuid)
        return self._on_its_way(uuid)

    def _on_its_way(self, uuid: str) -> bool:
        waiting = self.peer.waiting if self.peer is not None else []
        for packet, _after in waiting:
            if packet.command is Command.POST and packet.uuid == uuid:
                return True
            if packet.status_text == bodies.CONFIRMED and uuid in bodies.read_uuids(packet.body):
                return True
        return False


NAMES = st.sampled_from(sorted(SLOTS))


class Once(RuleBasedStateMachine):
    """A broker, two workers and a client."""

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.bench = Bench(CONFIG)
        self.client = self.bench.own_client("c1")
        self.jobs: dict[str, str] = {}
        self.entries: list[tuple[str, int]] = []
        self.cancelled: dict[str, list[FakePeer]] = {}
        self.faults: list[str] = []
        self.workers = {name: Process(self, name) for name in SLOTS}
        for worker in self.workers.values():
            worker.connect()
            worker.flow(9)

    def step(self, call: Any) -> None:
        """Have ``call`` called in the loop, and everything that follows by itself."""

        async def run() -> None:
            call()
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(run())
        assert not self.faults, self.faults

    def entered(self, process: Process, job: Any) -> None:
        uuid, attempt = job.uuid, job.attempt
        kind = self.jobs[uuid]
        if (uuid, attempt) in self.entries:
            self.faults.append(f"{uuid} was entered twice for attempt {attempt}")
        if kind == "once" and any(uuid == each for each, _attempt in self.entries):
            self.faults.append(f"{uuid}, which must not be run twice, was entered again")
        if uuid in process.inside:
            self.faults.append(f"{uuid} was entered twice at a time by {process.name}")
        if uuid in self.cancelled and process.peer not in self.cancelled[uuid]:
            self.faults.append(f"{uuid} was entered by {process.name} after it was cancelled")
        self.entries.append((uuid, attempt))

    # -- clients ----------------------------------------------------------------------------------

    @rule(task=st.sampled_from(["once", "again"]), whom=st.sampled_from(["any", "any", "w1", "w2"]))
    def submit(self, task: str, whom: str) -> None:
        uuid = self.bench.uuid()
        self.jobs[uuid] = task
        self.bench.post(self.client, uuid, task=task, target=whom)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if not self.jobs:
            return
        uuid = data.draw(st.sampled_from(sorted(self.jobs)))
        begins = [worker.peer for worker in self.workers.values() if worker.may_begin(uuid)]
        self.bench.delete(self.client, uuid)
        if self._state(uuid) == "cancelled":
            self.cancelled.setdefault(uuid, [peer for peer in begins if peer is not None])

    # -- the network ------------------------------------------------------------------------------

    @rule(name=NAMES, steps=st.sampled_from([1, 2, 3, 9]), written=st.booleans())
    def flow(self, name: str, steps: int, written: bool) -> None:
        self.workers[name].flow(steps, written=written)

    @rule(steps=st.sampled_from([3, 9]), start=st.booleans())
    def flow_all(self, steps: int, start: bool) -> None:
        for worker in self.workers.values():
            if start and not worker.alive:
                worker.start()
            if worker.alive and not worker.frozen and not worker.connected:
                worker.connect()
            worker.flow(steps)

    go_on = settle_down = flow_all

    @rule(name=NAMES, count=st.integers(1, 4))
    def to_worker(self, name: str, count: int) -> None:
        worker = self.workers[name]
        for _ in range(count):
            if worker.alive and not worker.frozen:
                worker.take()

    @rule(name=NAMES, count=st.integers(1, 4))
    def to_broker(self, name: str, count: int) -> None:
        for _ in range(count):
            self.workers[name].give()

    @rule(name=NAMES, seen=st.booleans())
    def cut(self, name: str, seen: bool) -> None:
        worker = self.workers[name]
        if worker.alive and worker.connected and not worker.frozen:
            peer = worker.peer
            worker.lose()
            if seen and peer is not None:
                self.bench.lose(peer)

    @rule(name=NAMES)
    def connect(self, name: str) -> None:
        worker = self.workers[name]
        if worker.alive and not worker.connected and not worker.frozen:
            worker.connect()

    # -- processes --------------------------------------------------------------------------------

    @rule(name=NAMES)
    def kill_worker(self, name: str) -> None:
        worker = self.workers[name]
        if worker.alive:
            peer = worker.peer
            worker.kill()
            if peer is not None:
                self.bench.lose(peer)

    @rule(name=NAMES)
    def start_worker(self, name: str) -> None:
        if not self.workers[name].alive:
            self.workers[name].start()

    @rule(name=NAMES)
    def write(self, name: str) -> None:
        worker = self.workers[name]
        if worker.alive:
            self.step(worker.disk.write)

    @rule(name=NAMES, frozen=st.booleans())
    def freeze(self, name: str, frozen: bool) -> None:
        self.workers[name].frozen = frozen

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        inside = [(worker, uuid) for worker in self.workers.values() for uuid in worker.inside]
        inside = [(worker, uuid) for worker, uuid in inside if worker.alive and not worker.frozen]
        if inside:
            worker, uuid = data.draw(st.sampled_from(inside))
            self._finish(worker, uuid)

    def _finish(self, worker: Process, uuid: str) -> None:
        future = worker.inside[uuid]
        if not future.done():
            self.step(lambda: future.set_result(None))

    @precondition(lambda self: len(self.jobs) > 0)
    @rule()
    def kill_broker(self) -> None:
        for worker in self.workers.values():
            if worker.alive and worker.connected and not worker.frozen:
                worker.lose()
            worker.cut()
        self.bench.restart()

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0]))
    def pass_time(self, seconds: float) -> None:
        """Those who are there and not frozen are heard all the time."""
        while seconds > 0:
            self.bench.pass_time(min(seconds, 1.0))
            seconds -= 1.0
            for worker in self.workers.values():
                if (
                    worker.peer is not None
                    and worker.alive
                    and not worker.frozen
                    and worker.session.registered
                ):
                    worker.out.append(Packet(Sender.WORKER, Command.KEEPALIVE, service="net"))

    # -- in the end -------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            self._heal()
        finally:
            for worker in self.workers.values():
                if worker.alive:
                    worker.kill()
            self.loop.close()

    def _state(self, uuid: str) -> str:
        found = self.bench.job(uuid)
        assert found is not None
        return found.state

    def _over(self) -> bool:
        open_jobs = [uuid for uuid in self.jobs if self._state(uuid) == "open"]
        return not open_jobs and not any(worker.session.open for worker in self.workers.values())

    def _heal(self) -> None:
        for worker in self.workers.values():
            worker.frozen = False
            if not worker.alive:
                worker.start()
        for _ in range(60):
            if self._over():
                break
            for worker in self.workers.values():
                if not worker.connected:
                    worker.connect()
            while sum(worker.take() + worker.give() for worker in self.workers.values()):
                pass
            for worker in self.workers.values():
                self.step(worker.disk.write)
                for uuid in list(worker.inside):
                    self._finish(worker, uuid)
            self.pass_time(1.0)
        for uuid in self.jobs:
            assert self._state(uuid) != "open", f"{uuid} never ended"
            ends = {result.status for result in self.bench.results(uuid)}
            assert 417 not in ends or uuid in self.cancelled, f"{uuid} ended as if it had been cancelled"
        for worker in self.workers.values():
            assert worker.session.open == 0, worker.session.listed()


TestOnce = Once.TestCase
TestOnce.settings = settings(stateful_step_count=60, deadline=None)
