"""A broker that is killed at some point of a job, and what its successor makes of the store."""

import pytest

from broker.nfp.access import Access, Task
from broker.nfp.dispatch import DispatchConfig
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Sender
from broker.nfp.records import Finished
from tests.unit.nfp.dispatch.bench import Bench, FakePeer, result_body, said, story, the

POST, GET = Command.POST, Command.GET


def stages(bench: Bench, worker: FakePeer, stage: str) -> str:
    """A job for any, brought to ``stage``."""
    client = bench.client()
    uuid = bench.post(client, timeout=500)
    if stage == "dispatched":
        return uuid
    post = the(worker.take(), POST)
    bench.accept(worker, post)
    if stage == "accepted":
        return uuid
    bench.finish(worker, post)
    return uuid


@pytest.mark.parametrize("stage", ["dispatched", "accepted"])
@pytest.mark.parametrize("ours", [False, True])
def test_a_worker_that_comes_back_keeps_its_job(stage, ours):
    bench = Bench()
    uuid = stages(bench, bench.register("w1", ours=ours), stage)
    bench.restart()
    assert bench.dispatcher.workers(bench.now)[0].status == "expected"
    assert bench.dispatcher.job(uuid, bench.now).slots[0].state == stage
    other = bench.register("w2", ours=ours)
    assert other.take() == []
    back = bench.register("w1", ours=ours, jobs={uuid: (1, "running")})
    if not ours:
        bench.answer(back, the(back.take(), GET), 300, b"{}")
    assert back.take() == []
    assert bench.dispatcher.job(uuid, bench.now).slots[0].state == "accepted"


@pytest.mark.parametrize("ours", [False, True])
def test_a_worker_that_comes_back_without_the_job_is_given_it_again(ours):
    bench = Bench()
    uuid = stages(bench, bench.register("w1", ours=ours), "accepted")
    bench.restart()
    back = bench.register("w1", ours=ours)
    if not ours:
        bench.answer(back, the(back.take(), GET), 404, b"{}")
    assert [(p.uuid, p.client) for p in back.take()] == [(uuid, b"c1#2")]


def test_a_worker_that_does_not_come_back_is_dead_after_one_hold_time():
    bench = Bench()
    uuid = stages(bench, bench.register("w1", ours=True), "accepted")
    bench.restart()
    other = bench.register("w2", ours=True)
    for _ in range(7):
        bench.pass_time(2)
        bench.dispatcher.worker(other, _keepalive(), bench.now)
    assert POST not in [packet.command for packet in other.take()]
    bench.pass_time(1.1)
    assert the([p for p in other.take() if p.command is POST], POST).uuid == uuid


def _keepalive() -> Packet:
    return Packet(Sender.WORKER, Command.KEEPALIVE, service="net")


def test_a_worker_that_had_left_is_not_waited_for():
    bench = Bench(access=Access(tasks=[Task("net", "ping", False)]))
    worker = bench.register("w1", ours=True)
    stages(bench, worker, "accepted")
    snapshot = bench.journal.snapshot()._replace(workers=())
    bench._start()
    bench.dispatcher.restore(snapshot, bench.now)
    bench.end_turn()
    result = bench.journal.of(Finished)[-1]
    assert result.status == 408
    assert b"not declared idempotent" in result.body
    assert bench.dispatcher.services() == []


def test_what_waited_still_waits_in_order():
    bench = Bench()
    client = bench.client()
    uuids = [bench.post(client, timeout=500) for _ in range(3)]
    named = bench.post(client, target="w9", timeout=500)
    everyone = bench.post(client, target="all", service="db", timeout=500)
    bench.restart()
    worker = bench.register("w1", ours=True, limit=5)
    assert [packet.uuid for packet in worker.take()] == uuids
    assert the(bench.register("w9", ours=True).take(), POST).uuid == named
    assert the(bench.register("d1", "db", ours=True).take(), POST).uuid == everyone


def test_deadlines_go_on_and_queues_start_anew():
    bench = Bench(DispatchConfig(queue_ttl_s=60))
    client = bench.client()
    uuid = bench.post(client, timeout=100)
    bench.restart(age_s=90)
    assert bench.dispatcher.job(uuid, bench.now).remaining_s == pytest.approx(10)
    bench.pass_time(10.1)
    assert bench.dispatcher.job(uuid, bench.now).state == "expired"
    late = bench.post(client, timeout=500)
    bench.restart(age_s=59)
    bench.pass_time(59)
    assert bench.dispatcher.job(late, bench.now).state == "open"
    bench.pass_time(1.1)
    assert bench.dispatcher.job(late, bench.now).state == "expired"


@pytest.mark.parametrize("seed", [False, True])
def test_results_survive(seed):
    bench = Bench()
    uuid = stages(bench, bench.register("w1", ours=True), "finished")
    bench.restart()
    client = bench.client(seed=seed)
    got = bench.get(client, uuid)
    assert (got[0].status, got[0].data) == (200, result_body("w1"))
    client.dialect = bench.client().dialect
    bench.post(client, uuid, timeout=500)
    assert bench.counts.duplicates == 1
    bench.pass_time(bench.config.result_ttl_s + 1)
    assert bench.dispatcher.job(uuid, bench.now) is None


def test_a_result_that_comes_after_the_restart_is_pushed_to_the_client_that_is_back():
    bench = Bench()
    uuid = stages(bench, bench.register("w1", ours=True), "accepted")
    bench.restart()
    back = bench.register("w1", ours=True, jobs={uuid: (1, "done")})
    bench.answer(back, the(back.take(), GET), 200, result_body("w1"))
    client = bench.own_client()
    bench.dispatcher.client_seen(client, bench.now)
    assert story(client.take()) == ["202[w1]", "200"]


def test_attempts_go_on():
    bench = Bench()
    uuid = stages(bench, bench.register("w1", ours=True), "accepted")
    bench.restart()
    bench.pass_time(16)
    second = bench.register("w2", ours=True)
    assert the(second.take(), POST).client == b"c1#2"
    bench.restart()
    late = bench.register("w1", ours=True, jobs={uuid: (1, "done")})
    bench.answer(late, the(late.take(), GET), 200, result_body("w1"))  # given once: it still counts
    assert bench.journal.of(Finished)[0].attempt == 1
    assert bench.dispatcher.job(uuid, bench.now).state == "done"


def test_rights_of_before_are_judged_anew():
    bench = Bench()
    client = bench.client("c1", holder="uid:7")
    bench.post(client, target="x1", timeout=500)
    client.take()
    bench.restart()
    worker = bench.register("x1", "other")  # nobody knows any more what uid 7 may do there
    assert worker.take() == []
    got = bench.get(client, f"job{bench.made}", target="x1")
    assert got[0].status == 400
    assert said(got[0])["error"].startswith("not allowed")


def test_what_was_not_committed_never_was():
    bench = Bench()
    worker = bench.register("w1", ours=True)
    worker.take()
    bench.end_turn = lambda: None
    client = bench.client()
    uuid = bench.post(client)
    assert worker.take(bench.journal.committed) == []
    del bench.end_turn
    bench.restart()
    assert bench.dispatcher.job(uuid, bench.now) is None
