"""Whatever clients, workers, time and restarts do: every job ends once, none is lost, nothing is left over.

Invariants that hold after every step: an open job has a timer; a slot is in one place (queue, one worker, record);
no slot is current at two workers; credits in use are what the attempts take, and never above the limit by dispatch; all
counters agree with the tables; nothing happens that is not in the tables of states. The journal's book refuses a second
final result of a slot, and anything after it.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.nfp.bodies import read_token
from broker.nfp.frames import Packet
from broker.nfp.jobs import DispatchConfig
from broker.nfp.jobs.machine import CURRENT, TAKES_SLOT
from broker.nfp.jobs.model import JOB_BYTES, PART_BYTES
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.records import Dispatched, Finished, Forgotten, Snapshot
from tests.unit.nfp.jobs.bench import Bench, FakeJournal, FakePeer, result_body

CONFIG = DispatchConfig(
    queue_ttl_s=40.0,
    job_timeout_s=120.0,
    result_ttl_s=300.0,
    queue_max=6,
    queue_per_client=5,
    jobs_max=12,
    attempts_max=6,
    ahead=1,
    recent_max_jobs=2,
)
WORKERS = {
    "plain": ("net", "seed", 1),
    "deployed": ("net", "norfab", 1),
    "ours": ("net", "ours", 2),
    "other": ("db", "norfab", 2),
}
TARGETS = ["any", "any", "all", "deployed", '["ours","other"]', '["plain","nobody"]', "nobody"]

RARELY = st.integers(0, 3).map(lambda drawn: drawn == 3)


class Machine(RuleBasedStateMachine):
    """Clients, workers and a broker."""

    @initialize()
    def start(self) -> None:
        self.bench = Bench(CONFIG)
        self.workers = {name: SimWorker(self, name, *about) for name, about in WORKERS.items()}
        self.clients = {
            "old": self.bench.client("old"),
            "own": self.bench.own_client("own"),
            "rex": self.bench.client("rex", seed=True),
        }
        self.jobs: dict[str, tuple[str, str, str]] = {}
        self.taken: set[str] = set()
        for name in ("deployed", "ours"):
            self.workers[name].connect()

    # -- clients ----------------------------------------------------------------------------------

    def hear(self, name: str) -> list[Packet]:
        """What a client gets; a job that was answered 202 or 300 must not be lost from then on."""
        got = self.clients[name].take(self.bench.journal.committed)
        for packet in got:
            if (
                packet.command is Command.RESPONSE
                and packet.status in (202, 300)
                and packet.uuid in self.jobs
            ):
                self.taken.add(packet.uuid)
        return got

    @rule(name=st.sampled_from(["old", "own", "rex"]), meant=st.sampled_from(TARGETS), db=st.booleans())
    def submit(self, name: str, meant: str, db: bool) -> None:
        uuid = self.bench.uuid()
        service = "db" if db else "net"
        self.jobs[uuid] = (name, service, meant)
        self.bench.post(self.clients[name], uuid, service=service, target=meant)
        assert self.hear(name)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), command=st.sampled_from([Command.GET, Command.DELETE, Command.POST]))
    def again(self, data: st.DataObject, command: Command) -> None:
        uuid = data.draw(st.sampled_from(sorted(self.jobs)))
        name, service, target = self.jobs[uuid]
        if command is Command.POST:
            self.bench.post(self.clients[name], uuid, service=service, target=target)
        else:
            client = self.clients[name]
            self.hear(name)
            client.waiting[:0] = [
                (packet, 0)
                for packet in self.bench.request(client, command, uuid, service=service, target=target)
            ]
        assert self.hear(name)

    @rule(name=st.sampled_from(["old", "own", "rex"]))
    def client_comes_back(self, name: str) -> None:
        old = self.clients[name]
        self.bench.lose(old)
        peer = self.clients[name] = FakePeer(name, old.dialect, old.features)
        self.bench.dispatcher.client_seen(peer, self.bench.now)
        self.bench.end_turn()

    # -- workers ----------------------------------------------------------------------------------

    @rule(name=st.sampled_from(sorted(WORKERS)))
    def worker_comes(self, name: str) -> None:
        self.workers[name].connect()

    @rule(name=st.sampled_from(sorted(WORKERS)), loses_memory=RARELY)
    def worker_dies(self, name: str, loses_memory: bool) -> None:
        self.workers[name].die(loses_memory)

    @rule(name=st.sampled_from(sorted(WORKERS)), really=RARELY)
    def worker_leaves(self, name: str, really: bool) -> None:
        if really:
            self.workers[name].leave()

    @rule(name=st.sampled_from(sorted(WORKERS)))
    def worker_works(self, name: str) -> None:
        self.workers[name].react()

    @rule(name=st.sampled_from(sorted(WORKERS)), code=st.sampled_from([200, 200, 200, 500]))
    def worker_finishes(self, name: str, code: int) -> None:
        self.workers[name].finish(code)

    @rule()
    def all_workers_work(self) -> None:
        for worker in self.workers.values():
            if worker.peer is None:
                worker.connect()
            worker.react()

    @rule()
    def all_workers_finish(self) -> None:
        for worker in self.workers.values():
            worker.finish(200)

    @rule(name=st.sampled_from(sorted(WORKERS)), room=st.sampled_from([None, None, 0, 1]))
    def worker_queue(self, name: str, room: int | None) -> None:
        if self.workers[name].peer is not None:
            self.workers[name].peer.room = room
            self.workers[name].room_at = self.bench.now

    @precondition(lambda self: self.jobs)
    @rule(
        data=st.data(),
        name=st.sampled_from(sorted(WORKERS)),
        command=st.sampled_from([Command.RESPONSE, Command.EVENT, Command.STREAM]),
        attempt=st.integers(1, 9),
    )
    def worker_lies(self, data: st.DataObject, name: str, command: Command, attempt: int) -> None:
        worker = self.workers[name]
        uuid = data.draw(st.sampled_from(sorted(self.jobs)))
        job = self.bench.dispatcher._jobs.by_uuid.get(uuid)
        given = job.given_to(name) if job is not None else None
        if worker.peer is None or (given is not None and attempt <= given.given[name]):
            return  # that would be no lie
        if worker.kind == "seed" and (command is Command.STREAM or given is not None):
            return  # the text has no such thing
        finished = len(self.bench.journal.of(Finished))
        form = {"service": worker.service} if worker.kind == "seed" else {"client": b"old#%d" % attempt}
        body = result_body(name, "forged")
        packet = Packet(
            Sender.WORKER, command, dialect=worker.peer.dialect, uuid=uuid, status=200, body=body, **form
        )
        self.bench.say(worker.peer, packet)
        assert len(self.bench.journal.of(Finished)) == finished
        worker.react()

    # -- time and the broker ----------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 6.0, 20.0, 45.0]))
    def time_passes(self, seconds: float) -> None:
        """Workers that run send KEEPALIVEs; those whose connection is up but frozen do not."""
        end = self.bench.now + seconds
        while self.bench.now < end:
            self.bench.pass_time(min(2.0, end - self.bench.now))
            for worker in self.workers.values():
                worker.beat()

    @rule(name=st.sampled_from(sorted(WORKERS)))
    def worker_freezes(self, name: str) -> None:
        self.workers[name].frozen = not self.workers[name].frozen

    @rule(really=RARELY, last=st.sampled_from(["", "post", "finish"]))
    def broker_restarts(self, really: bool, last: str) -> None:
        """It is killed; the last thing it did was not committed."""
        if not really:
            return
        end, self.bench.end_turn = self.bench.end_turn, lambda: None
        if last == "post":
            self.bench.post(self.clients["old"])
        elif last == "finish":
            self.workers["ours"].finish(200)
        self.bench.end_turn = end
        self.bench.restart()
        self.all_come_anew()

    @rule(really=RARELY)
    def another_broker_takes_over(self, really: bool) -> None:
        """It knows nothing of the jobs that workers hold and clients submit again."""
        if not really:
            return
        self.bench.journal = FakeJournal()
        self.bench._start()
        self.bench.end_turn()
        self.all_come_anew()
        self.taken.clear()

    def all_come_anew(self) -> None:
        for worker in self.workers.values():
            worker.cut()
        for name, old in list(self.clients.items()):
            self.clients[name] = FakePeer(name, old.dialect, old.features)

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost(self) -> None:
        forgotten = {op.uuid for op in self.bench.journal.of(Forgotten)}
        for uuid in self.taken - forgotten:
            assert uuid in self.bench.dispatcher._jobs.by_uuid

    @invariant()
    def results_are_of_who_was_given_the_job(self) -> None:
        given = {(op.uuid, op.part, op.worker) for op in self.bench.journal.of(Dispatched)}
        seen = set()
        for op in self.bench.journal.of(Finished):
            assert not op.worker or (op.uuid, op.part, op.worker) in given
            assert b"forged" not in op.body
            assert (op.uuid, op.part) not in seen
            seen.add((op.uuid, op.part))

    @invariant()
    def tables_agree(self) -> None:
        check(self.bench.dispatcher._jobs)
        for worker in self.bench.dispatcher._jobs.registry.workers.values():
            if worker.peer is None or worker.cancels:
                continue
            for (
                attempt
            ) in worker.attempts.values():  # what is over stays until the worker says so, and it is asked
                over_s = CONFIG.hold_s + CONFIG.keepalive_s + 0.1
                last = max(attempt.heard, attempt.asked, self.workers[worker.name].room_at)
                full = worker.peer.room == 0
                assert attempt.state != "stopping" or full or self.bench.now - last <= over_s

    @invariant()
    def credits_hold(self) -> None:
        for worker in self.workers.values():
            worker.check_credits()

    def teardown(self) -> None:
        """Everybody leaves; when all times are over nothing is left."""
        if not hasattr(self, "bench"):
            return
        for worker in self.workers.values():
            worker.die(loses_memory=False)
        for client in self.clients.values():
            self.bench.lose(client)
        self.bench.pass_time(CONFIG.job_timeout_s + CONFIG.result_ttl_s + 60)
        check(self.bench.dispatcher._jobs)
        assert leftovers(self.bench.dispatcher) == {}
        assert self.bench.journal.snapshot()._replace(known=()) == Snapshot()


class AnyWords(Machine):
    """Workers also say what makes no sense, about jobs that they have or had: every step stays in the tables."""

    @precondition(lambda self: self.jobs)
    @rule(
        data=st.data(),
        name=st.sampled_from(sorted(WORKERS)),
        command=st.sampled_from([Command.RESPONSE, Command.RESPONSE, Command.EVENT, Command.STREAM]),
        code=st.sampled_from([102, 200, 201, 202, 300, 400, 404, 408, 417, 500]),
        kind=st.sampled_from(["result_ready", "progress", "input_request", "input_response"]),
        attempt=st.integers(1, 3),
    )
    def worker_says_anything(
        self, data: st.DataObject, name: str, command: Command, code: int, kind: str, attempt: int
    ) -> None:
        worker, uuid = self.workers[name], data.draw(st.sampled_from(sorted(self.jobs)))
        seed = worker.kind == "seed"
        if worker.peer is None or (seed and (command is Command.STREAM or code in (102, 201, 404))):
            return  # the text has no such thing
        form = {"service": worker.service} if seed else {"client": b"old#%d" % attempt}
        event = json.dumps({"worker": name, "uuid": uuid, "event_type": kind}).encode()
        body = event if command is Command.EVENT else result_body(name)
        status = code if command is Command.RESPONSE else 200
        self.bench.say(
            worker.peer,
            Packet(
                Sender.WORKER,
                command,
                dialect=worker.peer.dialect,
                uuid=uuid,
                status=status,
                body=body,
                **form,
            ),
        )

    @invariant()
    def credits_hold(self) -> None:
        """A worker that forgets what it runs may be given more."""


class SimWorker:
    """A worker with a memory that survives it, as the real ones have."""

    def __init__(self, machine: Machine, name: str, service: str, kind: str, limit: int) -> None:
        self.machine = machine
        self.name = name
        self.service = service
        self.kind = kind
        self.limit = limit
        self.peer: FakePeer | None = None
        self.frozen = False
        self.room_at = 0.0
        """When its queue last got room for more, or less."""
        self.memory: dict[str, tuple[Packet, str]] = {}
        """By uuid: the POST, and running or done."""
        self.fresh: set[str] = set()
        """Given on the present connection and not finished."""

    @property
    def bench(self) -> Bench:
        return self.machine.bench

    def connect(self) -> None:
        """A new connection; with one that stands, the broker still thinks the old one does."""
        dialect = Dialect.SEED if self.kind == "seed" else Dialect.NORFAB
        self.peer = FakePeer(self.name, dialect)
        self.frozen = False
        self.fresh.clear()
        jobs = {uuid: (_attempt(post), state) for uuid, (post, state) in self.memory.items()}
        self.bench.register(
            self.name,
            self.service,
            seed=self.kind == "seed",
            ours=self.kind == "ours",
            limit=self.limit,
            jobs=jobs,
            peer=self.peer,
        )
        self.react()

    def cut(self) -> None:
        """Its connection is gone, without anybody's having said so."""
        self.peer = None
        self.fresh.clear()

    def die(self, loses_memory: bool) -> None:
        peer = self.peer
        self.cut()
        if peer is not None:
            self.bench.lose(peer)
        if loses_memory:
            self.memory.clear()

    def leave(self) -> None:
        if self.peer is not None:
            packet = Packet(
                Sender.WORKER, Command.DISCONNECT, dialect=self.peer.dialect, service=self.service
            )
            self.bench.say(self.peer, packet)
            self.die(loses_memory=False)

    def beat(self) -> None:
        if self.peer is not None and not self.frozen:
            packet = Packet(Sender.WORKER, Command.KEEPALIVE, dialect=self.peer.dialect, service=self.service)
            self.bench.say(self.peer, packet)
            self.react()

    def react(self) -> None:
        """Take what came, and answer as such a worker does."""
        while self.peer is not None and not self.frozen:
            packets = self.peer.take(self.bench.journal.committed)
            if not packets:
                return
            for packet in packets:
                self._act(packet)

    def _act(self, packet: Packet) -> None:
        if packet.command is Command.POST:
            known = self.memory.get(packet.uuid)
            if self.kind != "ours" or known is None:  # what it says it has is given to it over its credits
                self.fresh.add(packet.uuid)
            if known is None or self.kind == "seed":
                self.memory[packet.uuid] = (packet, "running")
            if self.kind == "ours" or (self.kind == "norfab" and known is None):
                self._say(packet, 201)
            if self.kind == "ours" and known is not None and known[1] == "done":
                self._say(packet, 200)
        elif packet.command is Command.GET:
            _, state = self.memory.get(packet.uuid, (None, ""))
            unknown = 400 if self.kind == "seed" else 404
            self._say(packet, {"running": 300, "done": 200}.get(state, unknown))
        elif packet.command is Command.DELETE and self.kind != "norfab":
            self.memory.pop(packet.uuid, None)
            self.fresh.discard(packet.uuid)
            self._say(packet, 417)
        elif packet.command is Command.DISCONNECT:
            self.cut()

    def finish(self, code: int) -> None:
        self.react()
        running = [uuid for uuid, (_, state) in self.memory.items() if state == "running"]
        if self.peer is None or self.frozen or not running:
            return
        uuid = running[0]
        post = self.memory[uuid][0]
        self.memory[uuid] = (post, "done")
        self.fresh.discard(uuid)
        if self.kind == "norfab":
            body = json.dumps({"worker": self.name, "uuid": uuid, "event_type": "result_ready"}).encode()
            self._say(post, 200, body, Command.EVENT)
        else:
            self._say(post, code)
        self.react()

    def _say(
        self, to: Packet, code: int, body: bytes | None = None, command: Command = Command.RESPONSE
    ) -> None:
        if self.peer is not None:
            self.bench.answer(self.peer, to, code, result_body(self.name) if body is None else body, command)

    def check_credits(self) -> None:
        """Jobs that it was given since it came, has not finished, and nobody else has ended."""
        jobs = self.bench.dispatcher._jobs.by_uuid
        busy = [
            uuid
            for uuid in self.fresh
            if uuid in jobs
            and (part := jobs[uuid].given_to(self.name)) is not None
            and part.current is not None
            and part.current.worker.name == self.name
        ]
        assert len(busy) <= self.limit + (self.kind == "ours")


def _attempt(post: Packet) -> int:
    return read_token(post.client or b"") or 1


def check(state: Any) -> None:
    """The tables of a dispatcher agree with each other."""
    waiting: dict[str, int] = {}
    waiting_parts: dict[str, int] = {}
    current: dict[Any, str] = {}
    assert not state.freed
    assert not state.returned
    for order in state.by_uuid.values():
        parts = order.parts.values()
        if order.state == "stored":
            assert not parts
            assert order.timer is None
            continue
        assert order.open == sum(part.state != "final" for part in parts)
        assert (order.state == "open") == (bool(order.open) or not parts)
        assert (order.timer is not None) == (order.state == "open")
        queued = sum(part.state == "waiting" for part in parts) if parts else 1
        assert order.waiting == queued
        if queued:
            waiting[order.holder] = waiting.get(order.holder, 0) + 1
            waiting_parts[order.holder] = waiting_parts.get(order.holder, 0) + queued
        assert order.size >= JOB_BYTES + len(order.body) + len(parts) * PART_BYTES
        for part in parts:
            assert (part.queue is not None) == (part.state == "waiting")
            assert (part.current is not None) == (part.state == "given")
            if part.current is not None:
                worker = part.current.worker
                assert part.current.state in CURRENT
                assert worker.attempts[order.uuid] is part.current
                assert state.registry.workers[worker.name] is worker
                current[part] = worker.name
    assert state.waiting.counts == waiting
    assert state.waiting_parts.counts == waiting_parts
    assert state.open_parts == sum(order.open for order in state.by_uuid.values() if order.state == "open")
    assert state.open_jobs == sum(order.state == "open" for order in state.by_uuid.values())
    assert state.open_bytes == sum(order.size for order in state.by_uuid.values() if order.state == "open")
    closed = state
    assert closed.recent_bytes == sum(order.size for order in closed.recent)
    assert [order for order in closed.by_end if order.state != "stored"] == list(closed.recent)
    assert closed.kept_bytes == sum(order.size for order in closed.by_end)
    assert [order.closed_at for order in closed.by_end] == sorted(order.closed_at for order in closed.by_end)
    for client in state.registry.clients.values():
        assert client.kept == sum(order.client is client for order in closed.by_end)
        assert client.owed.keys() <= state.by_uuid.keys()
    assert {order.uuid for order in closed.by_end} == {
        order.uuid for order in state.by_uuid.values() if order.state != "open"
    }
    for worker in state.registry.workers.values():
        taken = sum(attempt.state in TAKES_SLOT for attempt in worker.attempts.values())
        assert worker.busy == taken
        service, free = worker.service, worker.peer is not None and not worker.choked
        assert (worker in service.idle) == (free and worker.busy < worker.slots)
        assert (worker in service.ready) == (free and worker.slots <= worker.busy < worker.limit)
        assert (worker in service.ahead) == (free and worker.busy > worker.slots)
        assert worker.timer is not None
        for attempt in worker.attempts.values():
            assert attempt.state == "stopping" or current[attempt.part] == worker.name
    for uuid, worker in state.registry.claims.items():
        assert state.registry.workers[worker.name] is worker
        assert uuid in worker.claims
        assert uuid not in worker.attempts
    for service in state.registry.services.values():
        assert service.workers or service.queue or service.gathering
        assert service.alive == sum(worker.peer is not None for worker in service.workers.values())
        assert not (service.queue and (service.idle or service.ready))
    for name, box in state.registry.mailboxes.items():
        assert len(box)
        assert name not in state.registry.workers or not state.registry.workers[name].free


def leftovers(dispatcher: Any) -> dict[str, int]:
    """What a dispatcher still holds."""
    state = dispatcher._jobs
    tables = {
        "orders": state.by_uuid,
        "closed": state.by_end,
        "claims": state.registry.claims,
        "waiting": state.waiting.counts,
        "waiting_parts": state.waiting_parts.counts,
        "recent": state.recent,
        "read": dispatcher._jobs.read,
        "unpaid": dispatcher._jobs.unpaid,
        "safe": state.safe,
        "timers": state.timers,
        "workers": state.registry.workers,
        "services": state.registry.services,
        "mailboxes": state.registry.mailboxes,
        "clients": state.registry.clients,
        "relays": dispatcher._jobs.relays,
        "offers": dispatcher._workers._offers,
        "open": range(state.open_jobs + state.open_parts + state.open_bytes + state.kept_bytes),
    }
    return {name: len(table) for name, table in tables.items() if len(table)}


TestDispatch = Machine.TestCase
TestAnyWords = AnyWords.TestCase
TestDispatch.settings = TestAnyWords.settings = settings(stateful_step_count=40, deadline=None)
