"""Closed jobs after a restart: the broker works before it has read them."""

import pytest

from broker.nfp.dispatch import DispatchConfig
from broker.nfp.dispatch import recall as recall_room
from broker.nfp.frames import Packet
from broker.nfp.names import Command, Sender
from broker.nfp.records import Dispatched, Forgotten
from tests.unit.nfp.dispatch.bench import Bench, FakePeer, result_body, said, story, the

POST, GET, RESPONSE = Command.POST, Command.GET, Command.RESPONSE


def finished(bench: Bench, many: int) -> list[str]:
    """So many jobs of c1 that w1 has done."""
    worker, client, uuids = bench.register("w1", ours=True), bench.client(), []
    for _ in range(many):
        uuids.append(bench.post(client))
        bench.finish(worker, next(packet for packet in worker.take() if packet.command is POST))
    return uuids


def restarted(many: int = 3, config: DispatchConfig | None = None) -> tuple[Bench, list[str]]:
    bench = Bench(config)
    uuids = finished(bench, many)
    bench.restart(recall=False)
    return bench, uuids


@pytest.mark.parametrize("make", [Bench.client, Bench.own_client])
def test_a_duplicate_of_a_job_that_is_not_read_yet_is_not_run_again(make):
    bench, uuids = restarted()
    worker, client = bench.register("w1", ours=True), make(bench)
    bench.post(client, uuids[0])
    assert client.take() == []
    assert bench.recall()
    assert story(client.take()) == ["202[w1]", "202[w1]", "200"]
    assert worker.take() == []
    assert len(bench.journal.of(Dispatched)) == 3


def test_a_strict_client_gets_one_answer_for_each_command():
    bench, uuids = restarted()
    client = bench.client(seed=True, holder="peer:c1")
    assert bench.get(client, uuids[1]) == bench.delete(client, uuids[1]) == []
    bench.recall()
    assert story(client.take()) == ["200", "202[]"]


def test_what_is_asked_for_is_read_first(monkeypatch):
    monkeypatch.setattr(recall_room, "READ_AT_ONCE", 2)
    bench, uuids = restarted(5)
    assert bench.dispatcher.to_read() == [uuids[4], uuids[3]]  # else the latest
    bench.get(bench.client(), uuids[1])
    assert bench.dispatcher.to_read() == [uuids[1], uuids[4]]


def test_new_jobs_run_meanwhile_and_all_stand_in_order_in_the_end(monkeypatch):
    monkeypatch.setattr(recall_room, "READ_AT_ONCE", 1)
    bench, uuids = restarted(3)
    bench.now += 1
    worker, client = bench.register("w1", ours=True), bench.client()
    uuids.append(bench.post(client))
    bench.get(client, uuids[0])
    bench.age_s = 5.0
    bench.recall()
    bench.finish(worker, the(worker.take(), POST))
    bench.age_s = 2.0
    while bench.recall():
        pass
    listed = [view.uuid for view in bench.jobs()]
    assert (listed[0], listed[-1]) == (uuids[0], uuids[3])
    ended = [job.closed_at for job in bench.dispatcher._state.closed]
    assert ended == sorted(ended)


def test_strangers_hear_nothing_of_it():
    bench, uuids = restarted()
    stranger = bench.client("c2")
    bench.get(stranger, uuids[0])
    bench.post(stranger, uuids[0])
    bench.recall()
    assert [said(packet)["error"] for packet in stranger.take()] == [
        "this job is not known here",
        "this uuid is in use",
    ]


def test_a_worker_is_told_that_its_result_is_safe():
    bench, uuids = restarted()
    back = bench.register("w1", ours=True, jobs={uuids[0]: (1, "done"), uuids[1]: (1, "running")})
    sent = Packet(Sender.BROKER, POST, client=b"c1#1", uuid=uuids[2])
    bench.answer(back, sent, 200, result_body("w1"))
    assert back.take() == []
    assert bench.dispatcher._state.foreign == {}
    bench.recall()
    out = back.take()
    assert the(out, Command.DELETE).uuid == uuids[1]
    assert sorted(said(the(out, RESPONSE))) == [uuids[0], uuids[2]]
    assert bench.counts.forged == bench.counts.late == 0


def test_who_has_left_meanwhile_is_not_spoken_for():
    bench, uuids = restarted()
    old = bench.client()
    bench.post(old, uuids[0])
    worker = bench.register("w1", ours=True, jobs={uuids[0]: (1, "done")})
    bench.lose(old)
    bench.lose(worker)
    bench.recall()
    assert not bench.dispatcher.clients(bench.now)[0].present
    assert bench.counts.duplicates == bench.counts.unexpected == 0


def test_what_is_not_there_any_more_is_unknown_or_new():
    bench, uuids = restarted()
    client = bench.client()
    bench.get(client, uuids[0])
    bench.post(client, uuids[1], task="new")
    bench.dispatcher.was_read(bench.dispatcher.to_read(), [], bench.now)
    assert story(client.take()) == ["400", "202[]"]
    assert bench.dispatcher.to_read() == []


@pytest.mark.parametrize(
    "config", [DispatchConfig(results_max_jobs=2), DispatchConfig(results_max_bytes=5000)]
)
def test_what_there_is_no_room_for_is_forgotten(config):
    bench = Bench()
    uuids = finished(bench, 5)
    bench.config = config
    bench.restart()
    assert [view.uuid for view in bench.jobs()] == uuids[3:]
    assert {op.uuid for op in bench.journal.of(Forgotten)} == set(uuids[:3])
    assert sorted(bench.journal.snapshot().closed) == uuids[3:]
    assert bench.dispatcher.clients(bench.now)[0].kept == 2


def test_too_much_that_waits_is_dropped(monkeypatch):
    monkeypatch.setattr(recall_room, "LATER_MAX", 2)
    bench, uuids = restarted()
    client = bench.client()
    for _ in range(4):
        bench.get(client, uuids[0])
    assert bench.counts.unroutable == 2
    bench.recall()
    assert story(client.take()) == ["200", "200"]
    monkeypatch.setattr(recall_room, "LATER_MAX_BYTES", 10)
    bench.restart(recall=False)
    peer = FakePeer("c1")
    bench.post(peer, uuids[0])  # its body alone is longer
    bench.recall()
    assert peer.take() == []
