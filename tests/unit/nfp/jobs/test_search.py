"""Jobs that people look for: every filter, the text, the limit, whose they are, slices."""

import json

import pytest

from broker.nfp.jobs import DispatchConfig
from broker.nfp.jobs import views as search_room
from broker.nfp.jobs.model import BODY_KEPT_BYTES
from broker.nfp.jobs.views import JobFilter
from broker.nfp.names import Command
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import Bench, the

POST = Command.POST


def submit(bench, client, uuid, **more):
    said = {"task": more.pop("task", "ping"), "args": more.pop("args", []), "kwargs": more.pop("kwargs", {})}
    bench.post(client, uuid, body=json.dumps(said).encode(), **more)


def failing(bench, worker, error):
    body = {worker.name: {"result": None, "failed": True, "errors": [error]}}
    bench.answer(worker, the(worker.take(), POST), 200, json.dumps(body).encode())


@pytest.fixture(params=[1000, 1, 0])
def bench(request):
    """Jobs a (done), b (failed), c (open, of c2, for w9), d (cancelled), each ten seconds after the last.

    So many of those that are closed stay in memory.
    """
    bench = Bench(DispatchConfig(credits=1, recent_max_jobs=request.param))
    worker = bench.register("w1", ours=True)
    one, two = bench.client("c1"), bench.client("c2")
    submit(bench, one, "a", kwargs={"device": "Zürich-1"})
    bench.finish(worker, the(worker.take(), POST), result="unreachable, it says")
    bench.pass_time(10)
    submit(bench, one, "b", task="push", args=["x" * 3000])
    failing(bench, worker, 'Traceback (most recent call last):\n  line\nOSError: "r1" is unreachable')
    bench.pass_time(10)
    submit(bench, two, "c", service="other", target="w9")
    bench.pass_time(10)
    submit(bench, one, "d", target="w1")
    bench.delete(one, "d")
    bench.end_turn()
    return bench


def look(bench, limit=10, may_see=lambda holder: True, **which):
    return bench.look(JobFilter(**which), limit, may_see)


def found(bench, **which):
    return "".join(job.uuid for job in look(bench, **which).found)


@for_each(
    ("which", "uuids"),
    [
        ({}, "dcba"),
        ({"service": "other"}, "c"),
        ({"service": "all"}, "dcba"),
        ({"task": "push"}, "b"),
        ({"states": frozenset({"failed"})}, "b"),
        ({"states": frozenset({"open", "cancelled"})}, "dc"),
        ({"worker": "w1"}, "dba"),
        ({"worker": "w9"}, "c"),
        ({"client": "c2"}, "c"),
        ({"holder": "peer:c1"}, "dba"),
        ({"since_s": 15}, "dc"),
        ({"since_s": 25, "until_s": 5}, "cb"),
        ({"text": "unreachable"}, "b"),
        ({"text": 'OSERROR: "r1"'}, "b"),
        ({"text": "call last):\n  line"}, "b"),
        ({"text": "zürich"}, "a"),
        ({"text": "ping"}, "dca"),
        ({"text": "nowhere"}, ""),
        ({"client": "c1", "text": "ping", "states": frozenset({"done"})}, "a"),
    ],
)
def test_filters(bench, which, uuids):
    assert found(bench, **which) == uuids


def test_the_limit_and_what_is_counted_beyond_it(bench):
    search = look(bench, limit=2)
    assert ([job.uuid for job in search.found], search.total) == (["d", "c"], 4)
    assert search.states == {"done": 1, "failed": 1, "open": 1, "cancelled": 1}
    assert search.services == {"net": 3, "other": 1}


def test_jobs_of_others_are_neither_found_nor_counted(bench):
    search = look(bench, may_see=lambda holder: holder == "peer:c2")
    assert ([job.uuid for job in search.found], search.total, dict(search.states)) == (["c"], 1, {"open": 1})


def test_a_slice_at_a_time_while_jobs_come_and_go(bench, monkeypatch):
    monkeypatch.setattr(search_room, "SLICE", 2)
    search = bench.search(JobFilter(), lambda holder: True, 10)
    steps = search.steps()
    next(steps)
    submit(bench, bench.client("c1"), "e", target="w9")
    bench.pass_time(bench.config.result_ttl_s - 25)
    for _ in steps:
        pass
    assert [job.uuid for job in search.found] == ["d", "c", "b"]


def test_arguments_are_known_after_the_end_and_a_restart_and_long_ones_are_not_kept(bench):
    submit(bench, bench.client("c1"), "e", args=["y" * BODY_KEPT_BYTES])
    for _ in range(2):
        bodies = {job.uuid: job.body for job in look(bench).found}
        assert json.loads(bodies["a"])["kwargs"] == {"device": "Zürich-1"}
        assert bodies["b"] == b""
        assert len(bodies["e"]) > BODY_KEPT_BYTES, "it is open"
        bench.restart()


def test_how_long_a_job_took(bench):
    took = {job.uuid: job.took_s for job in look(bench).found}
    assert took == {"a": 0, "b": 0, "c": 10, "d": 0}
