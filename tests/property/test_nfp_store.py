"""Any operations, in any groups, cut off at any byte: what comes back is what was committed, no more and no less."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.nfp.names import Dialect
from broker.nfp.records import (
    Accepted,
    Dispatched,
    Finished,
    Forgotten,
    JobAdded,
    Owned,
    PartAdded,
    Pinned,
    Returned,
    Snapshot,
    WorkerLeft,
    WorkerSeen,
)
from broker.nfp.store import Store
from broker.nfp.store.events import Clock
from broker.nfp.targets import ALL, ANY, Target
from tests.unit.nfp.store.samples import PartSeen, owner, parts, whole

CLOCK = Clock(lambda: 1e9, lambda: 1e3, lambda: "here")
"""Time stands still: ages are 0."""


class Model:
    """What the operations mean, one after the other, in plain dictionaries."""

    def __init__(self):
        self.jobs = {}
        self.workers = {}
        self.known = set()
        self.pins = {}

    def put(self, op):
        getattr(self, type(op).__name__)(op)

    def snapshot(self):
        jobs = [
            (job["added"], job["state"], job["owner"], tuple(map(told, job["parts"].items())))
            for job in self.jobs.values()
        ]
        return jobs, dict(self.workers), set(self.known), dict(self.pins)

    def part(self, op):
        """The part's row, made when its job is there; None when the job is not or the part is final."""
        job = self.jobs.get(op.uuid)
        if job is None:
            return None
        row = job["parts"].setdefault(op.part, self.new())
        return None if row["state"] == "final" else row

    def new(self):
        return {"worker": "", "attempt": 0, "state": "waiting", "given": {}}

    def JobAdded(self, op):
        parts = {name: self.new() for name in op.parts}
        self.jobs.setdefault(op.uuid, {"added": op, "state": "open", "owner": "", "parts": parts})

    def PartAdded(self, op):
        self.part(op)

    def Dispatched(self, op):
        row = self.part(op)
        if row is not None:
            row.update(worker=op.worker, attempt=op.attempt, state="dispatched")
            row["given"][op.worker] = max(op.attempt, row["given"].get(op.worker, 0))

    def Accepted(self, op):
        row = self.part(op)
        if row is not None and row["state"] == "dispatched" and row["attempt"] == op.attempt:
            row.update(state="accepted")

    def Returned(self, op):
        row = self.part(op)
        if row is not None:
            row.update(worker="", attempt=0, state="waiting")

    def Owned(self, op):
        if op.uuid in self.jobs:
            job = self.jobs[op.uuid]
            job["owner"] = job["owner"] or op.worker

    def Finished(self, op):
        row = self.part(op)
        if row is not None:
            row.update(worker=op.worker, attempt=0, state="final", status=op.status, body=op.body)
            row["given"][op.worker] = max(op.attempt, row["given"].get(op.worker, 0))
        job = self.jobs.get(op.uuid)
        if op.closes and job is not None and job["state"] == "open":
            job["state"] = op.closes

    def Forgotten(self, op):
        self.jobs.pop(op.uuid, None)

    def WorkerSeen(self, op):
        self.workers[op.name] = op
        self.known.discard(op.name)

    def WorkerLeft(self, op):
        self.workers.pop(op.name, None)
        self.known.add(op.name)

    def Pinned(self, op):
        self.pins[op.name] = op.key
        if not op.key:
            del self.pins[op.name]


def told(item):
    """A part of a model's, as ``parts`` tells it."""
    part, row = item
    return PartSeen(part, **row | {"given": tuple(row["given"].items())})


def seen(snapshot: Snapshot):
    """A snapshot, as ``Model.snapshot`` tells it."""
    assert all((job.age_s, job.closed_age_s, job.submitted_s) == (0.0, 0.0, 1e9) for job in snapshot.jobs)
    return (
        [(job.added, job.state, owner(job), parts(job)) for job in snapshot.jobs],
        {worker.name: worker for worker in snapshot.workers},
        set(snapshot.known),
        {pin.name: pin.key for pin in snapshot.pins},
    )


UUIDS = st.sampled_from(["u1", "u2", "ü\u2028\"'"])
PARTS = st.sampled_from(["", "w1", "w 2"])
WORKERS = st.sampled_from(["w1", "w 2"])
BODIES = st.binary(max_size=40)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NUMBERS = st.integers(0, 2**20).map(lambda number: number / 1024)
OPERATIONS = st.one_of(
    st.builds(
        JobAdded, UUIDS, TEXT, TEXT, st.sampled_from([ANY, ALL, Target("list", ("w1", "é"))]), BODIES,
        st.binary(max_size=9), st.sampled_from(Dialect), TEXT, st.integers(0, 2**32 - 1), NUMBERS,
        st.lists(PARTS, unique=True).map(tuple),
    ),
    st.builds(PartAdded, UUIDS, PARTS),
    st.builds(Dispatched, UUIDS, PARTS, WORKERS, st.integers(1, 3)),
    st.builds(Accepted, UUIDS, PARTS, st.integers(1, 3)),
    st.builds(Returned, UUIDS, PARTS),
    st.builds(Owned, UUIDS, WORKERS),
    st.builds(Finished, UUIDS, PARTS, WORKERS, st.integers(1, 3), st.sampled_from([200, 408]), BODIES,
              st.sampled_from(["", "done", "cancelled"])),
    st.builds(Forgotten, UUIDS),
    st.builds(WorkerSeen, WORKERS, TEXT, st.sampled_from(Dialect), TEXT, st.booleans()),
    st.builds(WorkerLeft, WORKERS),
    st.builds(Pinned, WORKERS, st.sampled_from(["", "K1", "K2"])),
)  # fmt: skip


def sensible(groups):
    """Without what nobody puts: operations for a job that is not there but comes later, or for none of its parts."""
    parts = {}
    kept = []
    for group in groups:
        kept.append([])
        for op in group:
            if isinstance(op, JobAdded):
                parts.setdefault(op.uuid, set(op.parts))
            elif isinstance(op, Forgotten):
                parts.pop(op.uuid, None)
            elif isinstance(op, PartAdded) and op.uuid in parts:
                parts[op.uuid].add(op.part)
            elif hasattr(op, "uuid") and getattr(op, "part", "") not in parts.get(op.uuid, ()):
                continue
            kept[-1].append(op)
    return kept


GROUPS = st.lists(st.lists(OPERATIONS, max_size=25), min_size=1, max_size=8).map(sensible)


async def reopened(path):
    store = Store(path, asyncio.get_running_loop(), clock=CLOCK)
    try:
        found = await store.open()
        assert all(row.state == "open" for row in found.jobs)
        return seen(await whole(store, found))
    finally:
        await store.close()


def copied(path, wal_bytes, to: Path):
    """What a kill leaves of ``path``: the pages written so far, and so many bytes of what was being appended."""
    shutil.copy(path, to)
    wal = path.with_name(f"{path.name}-wal").read_bytes()
    to.with_name(f"{to.name}-wal").write_bytes(wal[:wal_bytes])
    return to


async def written(store, groups, wal):
    """Write each group, and return what was committed at which size of the -wal file."""
    model = Model()
    states = [(wal.stat().st_size, model.snapshot())]
    for group in groups:
        for op in group:
            store.put(op)
            model.put(op)
        await store.durable()
        states.append((wal.stat().st_size, model.snapshot()))
    return states


CUTS = st.lists(st.floats(0, 1), max_size=3)


@settings(max_examples=15)
@given(GROUPS, CUTS)
def test_what_comes_back_is_the_committed_prefix(groups, cuts):
    async def story(folder: Path):
        path = folder / "nfp.db"
        store = Store(path, asyncio.get_running_loop(), clock=CLOCK)
        await store.open()
        try:
            states = await written(store, groups, path.with_name("nfp.db-wal"))
            first, last = states[0][0], states[-1][0]
            sizes = [first + int(cut * (last - first)) for cut in cuts]
            for number, size in enumerate([last, *sizes]):
                expected = [state for at, state in states if at <= size][-1]
                assert await reopened(copied(path, size, folder / f"cut{number}.db")) == expected
            assert store.lost == 0
        finally:
            assert await store.close() == 0
        assert await reopened(path) == states[-1][1]

    with tempfile.TemporaryDirectory(prefix="hg-") as folder:
        asyncio.run(asyncio.wait_for(story(Path(folder)), 30))


@pytest.mark.patient
@given(GROUPS, CUTS)
def test_what_comes_back_is_the_committed_prefix_of_many(groups, cuts):
    test_what_comes_back_is_the_committed_prefix.hypothesis.inner_test(groups, cuts)
