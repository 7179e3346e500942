"""A bench for the dispatcher: peers that keep what they get, a journal in memory, a clock that is turned by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from broker.nfp.access import Access
from broker.nfp.contract import JobEvent, NotStored
from broker.nfp.frames import Packet, decode, encode, status_text
from broker.nfp.jobs import DispatchConfig, Dispatcher, JobView
from broker.nfp.jobs.views import JobFilter, JobSearch, PartView
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.opening import HeldJob, WorkerOpen
from broker.nfp.principal import Principal, Standing
from broker.nfp.records import (
    Accepted,
    ClosedJob,
    Dispatched,
    Finished,
    Forgotten,
    JobAdded,
    Op,
    Owned,
    PartAdded,
    Returned,
    Snapshot,
    StoredEvent,
    StoredJob,
    WorkerLeft,
    WorkerSeen,
)
from broker.nfp.targets import Target, parse

OURS = frozenset({"recorded", "delete", "jobs"})
"""What our own workers' OPEN asks for."""


class FakePeer:
    """Keeps what it is sent until the test takes it; ``room`` is how many more packets fit."""

    def __init__(
        self,
        name: str,
        dialect: Dialect = Dialect.NORFAB,
        features: frozenset[str] = frozenset(),
        *,
        holder: str = "",
        standing: Standing = Standing.USER,
        key: str = "",
    ) -> None:
        self.name = name
        self.identity = name.encode()
        self.principal = Principal(holder or f"peer:{name}", standing, key=key)
        self.dialect = dialect
        self.features = features
        self.alive = True
        self.room: int | None = None
        self.spare: int | None = None
        self.unsent: frozenset[str] = frozenset()
        self.cuts: list[str] = []
        self.waiting: list[tuple[Packet, int]] = []

    def cut(self, why: str) -> None:
        self.cuts.append(why)

    def send(self, packet: Packet, after: int = 0) -> bool:
        assert encode(packet)  # what is sent can be written
        if not self.alive or self.room == 0:
            return False
        if self.room is not None:
            self.room -= 1
        self.waiting.append((packet, after))
        return True

    def has_spare_room(self) -> bool:
        """``spare`` is how many more packets that can wait fit."""
        return self.spare is None or len(self.waiting) < self.spare

    def take(self, committed: int | None = None) -> list[Packet]:
        """What may leave, in order."""
        out = []
        while self.waiting and (committed is None or self.waiting[0][1] <= committed):
            out.append(self.waiting.pop(0)[0])
        return out


class FakeJournal:
    """A store in memory: ``commit`` makes durable what was put, ``snapshot`` is what a restarted broker finds."""

    def __init__(self) -> None:
        self.committed = 0
        self.broken = ""
        self.unreadable = ""
        """Why closed jobs cannot be read, "" when they can."""
        self.reads: list[str] = []
        """The closed jobs that were read."""
        self.pending: list[Op] = []
        self.ops: list[Op] = []

    @property
    def position(self) -> int:
        return self.committed + 1 if self.pending else self.committed

    def put(self, op: Op) -> None:
        self.pending.append(op)

    def commit(self) -> None:
        if self.pending:
            self.ops += self.pending
            self.pending = []
            self.committed += 1

    def find_closed(self, uuid: str) -> StoredJob | None:
        """A job that is durable."""
        if self.unreadable:
            raise NotStored(self.unreadable)
        self.reads.append(uuid)
        book = self.book()
        return book.stored(uuid) if uuid in book.jobs else None

    def of(self, kind: type) -> list[Any]:
        """Everything of one kind that was ever put."""
        return [op for op in [*self.ops, *self.pending] if isinstance(op, kind)]

    def book(self) -> Book:
        """What is durable."""
        book = Book()
        for op in self.ops:
            book.take(op)
        return book

    def snapshot(self, age_s: float = 0.0) -> Snapshot:
        """What a broker starts from; jobs are ``age_s`` old."""
        book = self.book()
        jobs = tuple(book.stored(uuid, age_s) for uuid in book.jobs if uuid not in book.closed)
        closed = tuple(book.unread(uuid, age_s) for uuid in book.closed)
        return Snapshot(jobs, tuple(book.workers.values()), (), closed, tuple(book.known))


class Book:
    """Keeps events; every one must fit those before it."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobAdded] = {}
        self.events: dict[str, list[StoredEvent]] = {}
        self.parts: dict[str, dict[str, str]] = {}
        """What state a part is in: waiting, dispatched, accepted or final."""
        self.closed: dict[str, str] = {}
        self.workers: dict[str, WorkerSeen] = {}
        self.known: dict[str, None] = {}

    def stored(self, uuid: str, age_s: float = 0.0) -> StoredJob:
        """A job as a broker gets it."""
        state = self.closed.get(uuid, "open")
        return StoredJob(self.jobs[uuid], 0.0, age_s, tuple(self.events[uuid]), state)

    def unread(self, uuid: str, age_s: float) -> ClosedJob:
        """The same of a closed one, unread."""
        whole = self.stored(uuid, age_s)
        results = [len(event.body) for event in whole.events if isinstance(event, Finished)]
        job = whole._replace(added=whole.added._replace(body=b""), events=())
        return ClosedJob(job, len(self.parts[uuid]), len(whole.added.body), sum(results))

    def take(self, op: Op) -> None:
        if isinstance(op, JobAdded):
            assert op.uuid not in self.jobs
            self.jobs[op.uuid], self.events[op.uuid] = op, []
            self.parts[op.uuid] = dict.fromkeys(op.parts, "waiting")
        elif isinstance(op, Forgotten):
            assert op.uuid in self.closed
            del self.jobs[op.uuid], self.events[op.uuid], self.parts[op.uuid], self.closed[op.uuid]
        elif isinstance(op, WorkerSeen):
            assert not op.lost or op.name in self.workers
            self.workers[op.name] = op
            self.known.pop(op.name, None)
        elif isinstance(op, WorkerLeft):
            self.workers.pop(op.name, None)
            self.known[op.name] = None
        elif isinstance(op, StoredEvent):
            self._check(op)
            self.events[op.uuid].append(op)

    def _check(self, op: StoredEvent) -> None:
        parts, before = self.parts[op.uuid], self.events[op.uuid]
        if isinstance(op, PartAdded):
            assert op.part not in parts
            parts[op.part] = "waiting"
            return
        name = "" if isinstance(op, Owned) else op.part
        state = parts[name]
        assert state != "final", f"{op} after the final result"
        if isinstance(op, Owned):
            assert not any(isinstance(each, Owned) for each in before)
        elif isinstance(op, Dispatched):
            assert state == "waiting"
            parts[name] = "dispatched"
        elif isinstance(op, Accepted):
            given = [each for each in before if isinstance(each, Dispatched) and each.part == name]
            assert (state, given[-1].attempt) == ("dispatched", op.attempt)
            parts[name] = "accepted"
        elif isinstance(op, Returned):
            assert state in ("dispatched", "accepted")
            parts[name] = "waiting"
        else:
            parts[name] = "final"
        if isinstance(op, Finished) and op.closes:
            assert set(parts.values()) == {"final"}
            self.closed[op.uuid] = op.closes


class FakeListener:
    """Keeps what happened."""

    def __init__(self) -> None:
        self.events: list[JobEvent] = []

    def happened(self, event: JobEvent) -> None:
        self.events.append(event)

    def kinds(self, uuid: str) -> list[str]:
        return [event.kind for event in self.events if event.uuid == uuid]


class Bench:
    """A dispatcher and everything around it."""

    def __init__(self, config: DispatchConfig | None = None, access: Access | None = None) -> None:
        self.now = 1000.0
        self.config = config or DispatchConfig(credits=1)
        self.access = access or Access()
        self.journal = FakeJournal()
        self.listener = FakeListener()
        self.offences: list[tuple[str, str]] = []
        self.due = 0.0
        self.made = 0
        self._start()

    def _start(self) -> None:
        self.dispatcher = Dispatcher(
            self.config,
            self.journal,
            self.access,
            self.listener.happened,
            lambda peer, kind, text: self.offences.append((peer.name, kind, text)),
        )

    @property
    def counts(self) -> Any:
        return self.dispatcher.counts

    def restart(self, *, age_s: float = 0.0, down_s: float = 0.0) -> None:
        """The broker is killed and started again: what was not committed is lost."""
        self.journal.pending.clear()
        self.now += down_s
        self._start()
        self.dispatcher.restore(self.journal.snapshot(age_s), self.now)
        self.end_turn()

    def search(self, which: JobFilter, may_see: Callable[[str], bool], limit: int) -> JobSearch:
        """A search that has not begun; it tells of jobs as they are."""
        return self.dispatcher.search(which, may_see, limit, self.now, lambda view: view)

    def look(self, which: JobFilter, limit: int, may_see: Callable[[str], bool]) -> JobSearch:
        """A whole search."""
        search = self.search(which, may_see, limit)
        for _ in search.steps():
            pass
        return search

    def jobs(self) -> list[JobView]:
        """All of them, the oldest first."""
        return self.look(JobFilter(), 10_000, lambda holder: True).found[::-1]

    def job(self, uuid: str) -> JobView | None:
        """One of them, which is read if need be."""
        return self.dispatcher.find(uuid, self.now)

    def results(self, uuid: str) -> list[PartView]:
        """Its parts that have their result."""
        found = self.job(uuid)
        return [part for part in found.parts if part.ended] if found is not None else []

    def end_turn(self) -> None:
        self.due = self.dispatcher.tick(self.now)
        self.journal.commit()

    def pass_time(self, seconds: float) -> None:
        """Every timer goes off when it is due."""
        end = self.now + seconds
        self.due = self.dispatcher.tick(self.now)
        while self.due <= end:
            self.now = max(self.now, self.due)
            self.end_turn()
        self.now = end
        self.end_turn()

    # -- peers ------------------------------------------------------------------------------------

    def client(self, name: str = "c1", *, seed: bool = False, **more: Any) -> FakePeer:
        return FakePeer(name, Dialect.SEED if seed else Dialect.NORFAB, **more)

    def own_client(self, name: str = "c1", **more: Any) -> FakePeer:
        return FakePeer(name, Dialect.NORFAB, frozenset({"push"}), **more)

    def register(
        self,
        name: str,
        service: str = "net",
        *,
        seed: bool = False,
        ours: bool = False,
        limit: int = 0,
        jobs: dict[str, tuple[int, str]] | None = None,
        tasks: dict[str, bool | None] | None = None,
        resources: tuple[str, ...] = (),
        key: str = "",
        peer: FakePeer | None = None,
    ) -> FakePeer:
        """A worker comes."""
        dialect = Dialect.SEED if seed else Dialect.NORFAB
        peer = peer or FakePeer(name, dialect, key=key)
        if ours or limit:
            held = {uuid: HeldJob(*about) for uuid, about in (jobs or {}).items()}
            offer = WorkerOpen(
                features=OURS if ours else frozenset(),
                credits=limit,
                tasks=tasks or {},
                resources=resources,
                jobs=held,
            )
            self.dispatcher.worker_opened(peer, offer, self.now)
        self.say(peer, Packet(Sender.WORKER, Command.READY, dialect=dialect, service=service))
        return peer

    def lose(self, peer: FakePeer) -> None:
        """Its connection breaks."""
        peer.alive = False
        peer.waiting.clear()
        self.dispatcher.peer_gone(peer, self.now)
        self.end_turn()

    def say(self, peer: FakePeer, packet: Packet) -> None:
        """A worker sends ``packet``, as the wire would bring it."""
        encode(packet)
        self.dispatcher.worker(peer, packet, self.now)
        self.end_turn()

    # -- clients ----------------------------------------------------------------------------------

    def uuid(self) -> str:
        self.made += 1
        return f"job{self.made}"

    def request(
        self,
        peer: FakePeer,
        command: Command,
        uuid: str,
        *,
        service: str = "net",
        target: str = "any",
        body: bytes = b"{}",
    ) -> list[Packet]:
        """What the client gets back at once."""
        meant = parse(target)
        assert meant is not None
        packet = Packet(
            Sender.CLIENT,
            command,
            dialect=peer.dialect,
            service=service,
            target=meant,
            uuid=uuid,
            body=body,
        )
        self.dispatcher.client(peer, decode(encode(packet)), self.now)
        self.end_turn()
        return peer.take(self.journal.committed)

    def post(
        self,
        peer: FakePeer,
        uuid: str = "",
        *,
        service: str = "net",
        target: str = "any",
        task: str = "ping",
        timeout: float | None = None,
        body: bytes | None = None,
    ) -> str:
        """Submit a job; what the client is told is left for ``take``."""
        uuid = uuid or self.uuid()
        if body is None:
            said: dict[str, Any] = {"task": task, "args": [], "kwargs": {}}
            if timeout is not None:
                said["timeout"] = timeout
            body = json.dumps(said).encode()
        kept = self.request(peer, Command.POST, uuid, service=service, target=target, body=body)
        peer.waiting[:0] = [(packet, 0) for packet in kept]
        return uuid

    def get(self, peer: FakePeer, uuid: str, **more: Any) -> list[Packet]:
        return self.request(peer, Command.GET, uuid, **more)

    def delete(self, peer: FakePeer, uuid: str, **more: Any) -> list[Packet]:
        return self.request(peer, Command.DELETE, uuid, **more)

    # -- workers ----------------------------------------------------------------------------------

    def answer(
        self,
        worker: FakePeer,
        to: Packet,
        code: int,
        body: bytes = b"",
        command: Command = Command.RESPONSE,
    ) -> None:
        """The worker answers the packet ``to``, in its form."""
        service = {} if to.client is not None else {"service": to.service}
        self.say(
            worker,
            Packet(
                Sender.WORKER,
                command,
                dialect=worker.dialect,
                client=to.client,
                uuid=to.uuid,
                status=code,
                status_text=status_text(code, worker.dialect),
                body=body,
                **service,
            ),
        )

    def accept(self, worker: FakePeer, post: Packet) -> None:
        said = {"worker": worker.name, "uuid": post.uuid, "status": "ACCEPTED", "service": "net"}
        self.answer(worker, post, 201, json.dumps(said).encode())

    def event(self, worker: FakePeer, post: Packet, kind: str = "progress", **extras: Any) -> None:
        said = {"worker": worker.name, "uuid": post.uuid, "event_type": kind, "message": kind, **extras}
        self.answer(worker, post, 200, json.dumps(said).encode(), Command.EVENT)

    def finish(self, worker: FakePeer, post: Packet, result: Any = 1, code: int = 200) -> bytes:
        """The worker pushes its result."""
        body = result_body(worker.name, result)
        self.answer(worker, post, code, body)
        return body


def result_body(worker: str, result: Any = 1) -> bytes:
    return json.dumps({worker: {"result": result, "failed": False}}, separators=(",", ":")).encode()


def the(packets: Iterable[Packet], command: Command) -> Packet:
    """The only packet of that kind."""
    found = [packet for packet in packets if packet.command is command]
    assert len(found) == 1, found
    return found[0]


def story(packets: Sequence[Packet]) -> list[str]:
    """What was sent, short: ``202[w1] EVENT 200``."""
    return [_short(packet) for packet in packets]


def _short(packet: Packet) -> str:
    if packet.command is not Command.RESPONSE:
        return packet.command.name
    if packet.status != 202:
        return str(packet.status)
    workers = json.loads(packet.data).get("workers") or []
    return f"202[{','.join(workers)}]"


def said(packet: Packet) -> Any:
    """Its body."""
    return json.loads(packet.data)


def target_of(text: str) -> Target:
    found = parse(text)
    assert found is not None
    return found
