"""A broker that is killed at some point of a job, and what its successor makes of the store."""

import pytest

from broker.nfp.access import Access
from broker.nfp.frames import Packet
from broker.nfp.jobs import DispatchConfig
from broker.nfp.names import Command, Sender
from broker.nfp.records import Accepted, Finished, JobAdded
from broker.settings.nfp import TaskEntry
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import Bench, FakePeer, result_body, said, story, the

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


@for_each("stage", ["dispatched", "accepted"])
@for_each("ours", [False, True])
def test_a_worker_that_comes_back_keeps_its_job(stage, ours):
    bench = Bench()
    uuid = stages(bench, bench.register("w1", ours=ours), stage)
    bench.restart()
    assert bench.dispatcher.workers(bench.now)[0].status == "expected"
    assert bench.job(uuid).parts[0].state == "dispatched"
    other = bench.register("w2", ours=ours)
    assert other.take() == []
    back = bench.register("w1", ours=ours, jobs={uuid: (1, "running")})
    if not ours:
        bench.answer(back, the(back.take(), GET), 300, b"{}")
    assert back.take() == []
    assert bench.job(uuid).parts[0].state == "accepted"


@for_each("ours", [False, True])
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


def test_all_means_who_was_alive_when_the_broker_ended_and_only_for_a_hold_time():
    bench = Bench()
    bench.register("w1", ours=True)
    bench.register("w2", ours=True)
    bench.lose(bench.register("w3", ours=True))
    bench.restart()
    back, client = bench.register("w1", ours=True), bench.own_client()
    uuid = bench.post(client, target="all", timeout=500)
    assert sorted(bench.journal.of(JobAdded)[-1].parts) == ["w1", "w2"]
    bench.finish(back, the(back.take(), POST))
    for _ in range(8):
        bench.pass_time(2)
        bench.dispatcher.worker(back, _keepalive(), bench.now)
    results = {each.worker or "": each.status for each in bench.results(uuid)}
    assert sorted(results.values()) == [200, 408]
    bench.post(client, target="all", timeout=500)
    assert bench.journal.of(JobAdded)[-1].parts == ("w1",)


def test_a_worker_that_was_lost_when_the_broker_ended_may_still_come_back():
    bench = Bench()
    worker = bench.register("w1", ours=True)
    uuid = stages(bench, worker, "accepted")
    bench.lose(worker)
    bench.restart()
    bench.register("w1", ours=True, jobs={uuid: (1, "running")})
    assert bench.job(uuid).parts[0].state == "accepted"


def _keepalive() -> Packet:
    return Packet(Sender.WORKER, Command.KEEPALIVE, service="net")


def test_a_worker_that_had_left_is_not_waited_for():
    bench = Bench(access=Access(tasks=[TaskEntry(service="net", task="ping", idempotent=False)]))
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


def test_what_must_not_run_twice_is_not_after_a_restart_either():
    """What the worker's OPEN said was decided when it accepted the job, and is known although it never comes back."""
    bench = Bench()
    worker, client = bench.register("w1", ours=True, tasks={"ping": False}), bench.own_client()
    uuid = bench.post(client, timeout=500)
    bench.accept(worker, the(worker.take(), POST))
    bench.restart()
    other = bench.register("w2", ours=True)
    for _ in range(8):
        bench.pass_time(2)
        bench.dispatcher.worker(other, _keepalive(), bench.now)
    assert POST not in [packet.command for packet in other.take()]
    result = bench.journal.of(Finished)[-1]
    assert (result.uuid, result.status) == (uuid, 408)
    assert b"not declared idempotent" in result.body


@for_each("later", [{}, {"ping": True}])
def test_a_worker_that_comes_back_with_other_words_changes_nothing(later):
    bench = Bench()
    worker, client = bench.register("w1", ours=True, tasks={"ping": False}), bench.own_client()
    bench.post(client, timeout=500)
    bench.accept(worker, the(worker.take(), POST))
    bench.restart()
    back = bench.register("w1", ours=True, tasks=later)
    assert POST not in [packet.command for packet in back.take()]
    assert bench.journal.of(Finished)[-1].status == 408


def test_what_was_only_dispatched_is_given_to_another_after_a_restart():
    bench = Bench()
    bench.register("w1", ours=True, tasks={"ping": False})
    uuid = bench.post(bench.own_client(), timeout=500)
    bench.restart()
    bench.register("w1", ours=True, tasks={"ping": False}, limit=1)
    assert bench.job(uuid).parts[0].attempt == 2


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
    assert bench.job(uuid).remaining_s == pytest.approx(10)
    bench.pass_time(10.1)
    assert bench.job(uuid).state == "expired"
    late = bench.post(client, timeout=500)
    bench.restart(age_s=59)
    bench.pass_time(59)
    assert bench.job(late).state == "open"
    bench.pass_time(1.1)
    assert bench.job(late).state == "expired"


@for_each("seed", [False, True])
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
    assert bench.job(uuid) is None


def test_a_result_that_comes_after_the_restart_is_pushed_to_the_client_that_is_back():
    bench = Bench()
    uuid = stages(bench, bench.register("w1", ours=True), "accepted")
    bench.restart()
    back = bench.register("w1", ours=True, jobs={uuid: (1, "done")})
    assert back.take() == []  # it sends its result anyway
    bench.answer(back, Packet(Sender.BROKER, POST, client=b"c1#1", uuid=uuid), 200, result_body("w1"))
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
    sent = Packet(Sender.BROKER, POST, client=b"c1#1", uuid=uuid)
    bench.answer(late, sent, 200, result_body("w1"))  # given once: it still counts
    assert bench.journal.of(Finished)[0].attempt == 1
    assert bench.job(uuid).state == "done"


def test_names_of_workers_that_had_left_are_still_known():
    bench = Bench()
    worker = bench.register("w2", ours=True)
    bench.say(worker, Packet(Sender.WORKER, Command.DISCONNECT, service="net"))
    bench.register("w1", ours=True)
    bench.restart()
    client = bench.client()
    bench.post(client, target='["w1","w2","w3"]')
    answer = client.take()[0]
    assert (story([answer]), said(answer)["missing"]) == (["202[w1,w2,w3]"], ["w3"])


@for_each("names", [Command.STREAM, Command.EVENT])
@for_each("lost", ["before", "after"])
def test_an_owner_that_was_told_keeps_its_name_over_a_restart(names, lost):
    """A deployed client waits for the worker it was told of, whoever brings the result."""
    bench = Bench()
    first, client = bench.register("w1"), bench.client()
    uuid = bench.post(client)
    post = the(first.take(), POST)
    if names is Command.STREAM:
        bench.answer(first, post, 200, b"chunk", Command.STREAM)
    else:
        bench.event(first, post, "input_request")
    assert [told for told in story(client.take()) if told != "201"] == ["202[]", "202[w1]", names.name]
    if lost == "before":
        bench.lose(first)
        bench.pass_time(3)
    bench.restart()
    bench.pass_time(16)
    back = bench.client()
    bench.dispatcher.client_seen(back, bench.now)
    second = bench.register("w2")
    post = the(second.take(), POST)
    bench.event(second, post, "result_ready")
    bench.answer(second, the(second.take(), GET), 200, result_body("w2", "mine"))
    out = back.take()
    assert story(out) == ["200"]
    assert said(out[0]) == {"w1": {"result": "mine", "failed": False}}
    assert said(bench.get(back, uuid, target='["w1"]')[0]) == said(out[0])
    bench.restart()
    assert said(bench.get(bench.client(), uuid, target='["w1"]')[0]) == said(out[0])


def test_nobody_is_told_of_an_owner_that_a_restarted_broker_would_not_know():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    bench.post(client)
    post = the(worker.take(), POST)
    bench.journal.commit = lambda: None
    client.take()
    bench.answer(worker, post, 200, b"chunk", Command.STREAM)
    told = story(client.take(bench.journal.committed))
    assert set(told) <= {"201"}
    assert story(client.take())[-2:] == ["202[w1]", "STREAM"]


def test_nobody_is_told_of_gathered_workers_that_a_restarted_broker_would_not_know():
    bench = Bench()
    client = bench.client()
    bench.post(client, target="all")
    client.take()
    bench.journal.commit = lambda: None
    bench.register("w1")
    assert client.take(bench.journal.committed) == []
    assert story(client.take()) == ["202[w1]"]


def test_a_worker_is_told_to_stop_once_a_restarted_broker_would_know_why():
    bench = Bench()
    client = bench.client()
    worker = bench.register("w1", ours=True)
    uuid = bench.post(client)
    bench.accept(worker, the(worker.take(), POST))
    bench.journal.commit = lambda: None
    bench.delete(client, uuid)
    assert worker.take(bench.journal.committed) == []
    assert the(worker.take(), Command.DELETE).uuid == uuid


def test_a_worker_that_lost_the_race_is_told_once_the_result_is_safe():
    bench = Bench()
    first = bench.register("w1", ours=True)
    uuid = bench.post(bench.client(), timeout=500)
    post = the(first.take(), POST)
    bench.lose(first)
    bench.pass_time(3)
    second = bench.register("w2", ours=True)
    the(second.take(), POST)
    back = bench.register("w1", ours=True)
    bench.journal.commit = lambda: None
    bench.finish(back, post)
    assert second.take(bench.journal.committed) == []
    assert the(second.take(), Command.DELETE).uuid == uuid


def test_an_older_token_in_a_201_does_not_make_the_store_forget_the_acceptance():
    """A deployed worker answers a second POST with the address of the first."""
    bench = Bench(access=Access(tasks=[TaskEntry(service="net", task="ping", idempotent=False)]))
    worker = bench.register("w1")
    uuid = bench.post(bench.client(), timeout=500)
    first = the(worker.take(), POST)
    bench.lose(worker)
    back = bench.register("w1")
    bench.answer(back, the(back.take(), GET), 404, b"{}")
    assert the(back.take(), POST).client == b"c1#2"
    bench.accept(back, first)
    assert bench.journal.of(Accepted) == [Accepted(uuid, "", 2)]


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
    assert client.take(bench.journal.committed) == []
    post = the(worker.take(bench.journal.committed), POST)
    del bench.end_turn
    bench.restart()
    assert bench.job(uuid) is None
    back = bench.register("w1", ours=True, jobs={uuid: (1, "running")})
    bench.finish(back, post)  # of a job that was never promised to anybody
    assert (bench.counts.unroutable, bench.counts.forged, bench.offences) == (1, 0, [])
    bench.register("w2", ours=True)
    again = bench.client()
    bench.post(again, uuid)
    assert the(back.take(), POST).uuid == uuid  # the one that has it is asked, and does not run it again
