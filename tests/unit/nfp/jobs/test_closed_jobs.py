"""Closed jobs that are in the store only are read when somebody speaks of them."""

import gc
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import pytest

from broker.nfp.contract import NotStored
from broker.nfp.frames import Packet
from broker.nfp.jobs import DispatchConfig
from broker.nfp.jobs import views as search_room
from broker.nfp.jobs.views import JobFilter
from broker.nfp.names import Command, Sender
from broker.nfp.records import Dispatched, Forgotten
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import Bench, FakePeer, result_body, said, story, the

POST, GET, RESPONSE = Command.POST, Command.GET, Command.RESPONSE
NONE_STAYS = DispatchConfig(recent_max_jobs=0, credits=1)
PUSH = frozenset({"push"})


def finished(bench: Bench, many: int, client: FakePeer | None = None) -> list[str]:
    """So many jobs of c1 that w1 has done."""
    worker, client, uuids = bench.register("w1", ours=True), client or bench.client(), []
    for _ in range(many):
        uuids.append(bench.post(client))
        bench.finish(worker, next(packet for packet in worker.take() if packet.command is POST))
    bench.end_turn()
    return uuids


def in_the_store(bench: Bench) -> list[str]:
    """The jobs that are there only."""
    return [uuid for uuid, order in bench.dispatcher._jobs.by_uuid.items() if order.state == "stored"]


def in_memory(bench: Bench) -> list[str]:
    return [uuid for uuid, order in bench.dispatcher._jobs.by_uuid.items() if order.state != "stored"]


@pytest.fixture(params=["restarted", "left memory"])
def stored(request):
    """A bench and three jobs that are in the store only."""
    bench = Bench(NONE_STAYS if request.param == "left memory" else None)
    uuids = finished(bench, 3)
    bench.pass_time(1)
    if request.param == "restarted":
        bench.restart()
    assert in_the_store(bench) == uuids
    return bench, uuids


def from_w1(bench: Bench, worker: FakePeer, uuid: str) -> None:
    """The worker says that it has done this job."""
    bench.answer(worker, Packet(Sender.BROKER, POST, client=b"c1#1", uuid=uuid), 200, result_body("w1"))


@pytest.mark.parametrize("make", [Bench.client, Bench.own_client])
def test_a_duplicate_is_answered_and_not_run_again(stored, make):
    bench, uuids = stored
    worker, client = bench.register("w1", ours=True), make(bench)
    bench.post(client, uuids[0])
    assert story(client.take()) == ["202[w1]", "202[w1]", "200"]
    assert worker.take() == []
    assert len(bench.journal.of(Dispatched)) == 3
    assert in_the_store(bench) == uuids


def test_a_strict_client_gets_one_answer_for_each_command(stored):
    bench, uuids = stored
    client = bench.client(seed=True, holder="peer:c1")
    assert story(bench.get(client, uuids[1]) + bench.delete(client, uuids[1])) == ["200", "202[]"]


def test_nothing_is_read_but_what_somebody_speaks_of(stored):
    bench, uuids = stored
    worker, client = bench.register("w1", ours=True), bench.client()
    uuid = bench.post(client)
    bench.finish(worker, next(packet for packet in worker.take() if packet.command is POST))
    assert bench.journal.reads == []
    assert story(bench.get(client, uuids[2])) == ["202[]", "202[w1]", "200", "200"]
    from_w1(bench, worker, uuids[1])
    assert bench.journal.reads == [uuids[2], uuids[1]]
    assert bench.job(uuid).state == "done"


def test_strangers_hear_nothing_of_it(stored):
    bench, uuids = stored
    stranger = bench.client("c2")
    told = bench.get(stranger, uuids[0])
    bench.post(stranger, uuids[0])
    assert [said(packet)["error"] for packet in [*told, *stranger.take()]] == [
        "this job is not known here",
        "this uuid is in use",
    ]


def test_a_worker_is_told_that_its_result_is_safe(stored):
    bench, uuids = stored
    back = bench.register("w1", ours=True, jobs={uuids[0]: (1, "done"), uuids[1]: (1, "running")})
    assert bench.journal.reads == [uuids[1]]  # what is done may be forgotten, whatever came of it
    from_w1(bench, back, uuids[2])
    assert bench.dispatcher._jobs.registry.claims == {}
    bench.pass_time(1)
    out = back.take()
    assert the(out, Command.DELETE).uuid == uuids[1]
    safe = [uuid for packet in out if packet.command is RESPONSE for uuid in said(packet)]
    assert sorted(safe) == [uuids[0], uuids[2]]
    assert bench.counts.forged == bench.counts.late == 0


def test_what_the_store_has_lost_is_unknown_or_new(stored):
    bench, uuids = stored
    client = bench.client()
    bench.journal.find_closed = lambda uuid: None
    assert story(bench.get(client, uuids[0])) == ["400"]
    bench.post(client, uuids[1], task="new")
    assert story(client.take()) == ["202[]"]
    assert in_the_store(bench) == uuids[2:]


def test_what_a_worker_lists_is_read_one_by_one_and_costs_no_memory(stored):
    """It may list all jobs there are, and has them for as long as it likes."""
    bench, uuids = stored
    there, read = [], bench.journal.find_closed

    def find_closed(asked):
        there.append(in_memory(bench))
        return read(asked)

    bench.journal.find_closed = find_closed
    worker = bench.register("w1", ours=True, jobs=dict.fromkeys(uuids, (1, "running")))
    assert there == [[]] * 3
    assert [packet.uuid for packet in worker.take() if packet.command is Command.DELETE] == uuids
    held = bench.dispatcher._jobs.registry.workers["w1"].attempts.values()
    assert [(attempt.state, attempt.part.body) for attempt in held] == [("stopping", b"")] * 3


# -- failures -------------------------------------------------------------------------------------


def test_a_store_that_cannot_be_read_costs_an_error_and_no_second_run(stored):
    bench, uuids = stored
    worker, client = bench.register("w1", ours=True), bench.client("c1x", holder="peer:c1")
    bench.journal.unreadable = "the disk does not answer"
    for uuid in uuids:
        told = bench.get(client, uuid) + bench.delete(client, uuid)
        assert story(told) == ["500", "500"]
        assert "the disk does not answer" in said(told[0])["error"]
        assert bench.request(client, Command.PUT, uuid) == []
    bench.post(client, uuids[0])
    assert story(client.take()) == ["500"]
    with pytest.raises(NotStored, match="does not answer"):
        bench.job(uuids[1])
    from_w1(bench, worker, uuids[1])  # it says so again when it is back
    bench.pass_time(1)
    assert [packet.command for packet in worker.take()] == []
    back = bench.register("w1", ours=True, jobs={uuids[1]: (1, "running")})
    assert bench.counts.unroutable == 3 + 2
    assert [packet.command for packet in back.take()] == []
    bench.journal.unreadable = ""
    bench.post(client, uuids[0])
    assert story(client.take()) == ["202[w1]", "202[w1]", "200"]
    assert len(bench.journal.of(Dispatched)) == 3


def test_a_call_that_fails_leaves_no_job_in_memory(stored):
    bench, uuids = stored
    client = bench.client()
    client.send = None
    with pytest.raises(TypeError):
        bench.get(client, uuids[0])
    assert story(bench.get(bench.client("c1x", holder="peer:c1"), uuids[1])) == ["200"]
    assert in_the_store(bench) == uuids


# -- memory ---------------------------------------------------------------------------------------


def test_what_is_not_durable_stays_in_memory_and_so_does_all_while_the_store_is_broken():
    bench = Bench(NONE_STAYS)
    commit, bench.journal.commit = bench.journal.commit, lambda: None
    worker, client = bench.register("w1", ours=True), bench.client()
    uuid = bench.post(client)
    bench.finish(worker, the(worker.take(), POST))
    bench.end_turn()
    assert in_memory(bench) == [uuid]
    commit()
    bench.journal.broken = "no disk"
    bench.end_turn()
    assert in_memory(bench) == [uuid]
    bench.journal.broken = ""
    bench.end_turn()
    assert in_the_store(bench) == [uuid]
    assert bench.job(uuid).state == "done"


def test_the_latest_stay_in_memory():
    bench = Bench(DispatchConfig(recent_max_jobs=2, credits=1))
    uuids = finished(bench, 5)
    assert in_memory(bench) == uuids[3:]
    bench = Bench(DispatchConfig(recent_max_bytes=5000, credits=1))
    uuids = finished(bench, 5)
    assert in_memory(bench) == uuids[3:]


@for_each("config", [DispatchConfig(results_max_jobs=2), DispatchConfig(results_max_bytes=5000)])
@for_each("recent", [1000, 1, 0])
def test_what_there_is_no_room_for_is_forgotten(config, recent):
    bench = Bench()
    uuids = finished(bench, 5)
    bench.config = config
    bench.restart()
    assert [view.uuid for view in bench.jobs()] == uuids[3:]
    assert {op.uuid for op in bench.journal.of(Forgotten)} == set(uuids[:3])
    assert [row.job.added.uuid for row in bench.journal.snapshot().closed] == uuids[3:]
    assert bench.dispatcher.clients(bench.now)[0].kept == 2


def test_a_job_above_all_bounds_is_kept_until_the_next_one_where_nothing_is_stored():
    bench = Bench(DispatchConfig(results_max_bytes=3000))
    bench.dispatcher._jobs.journal = SimpleNamespace(position=0, committed=-1, broken="", put=lambda op: None)
    bench.dispatcher._jobs.config = replace(bench.config, recent_max_jobs=0, recent_max_bytes=0)
    worker, client = bench.register("w1", ours=True), bench.client()
    for _ in range(2):
        uuid = bench.post(client)
        bench.finish(worker, the([p for p in worker.take() if p.command is POST], POST), "x" * 5000)
        bench.end_turn()
        client.take()
        assert story(bench.get(client, uuid)) == ["200"]
        assert in_memory(bench) == [uuid]


def test_sizes_are_the_same_wherever_a_job_is_and_after_a_restart():
    bench = Bench(NONE_STAYS)
    worker, client = bench.register("w1", ours=True), bench.client()
    for body in (b"{}", b'{"x":"%s"}' % (b"x" * 5000)):
        bench.post(client, body=body)
        bench.finish(worker, next(packet for packet in worker.take() if packet.command is POST), "y" * 10_000)
    sizes = [(order.size, order.dropped) for order in bench.dispatcher._jobs.by_uuid.values()]
    assert sizes[0][0] > 10_000
    assert sizes[1][1] > 5000
    bench.end_turn()
    kept = bench.dispatcher._jobs.kept_bytes
    for _ in range(2):
        assert len(in_the_store(bench)) == 2
        for uuid in in_the_store(bench):
            bench.job(uuid)
            assert bench.dispatcher._jobs.by_uuid[uuid].parts == {}
        assert [(order.size, order.dropped) for order in bench.dispatcher._jobs.by_uuid.values()] == sizes
        assert bench.dispatcher._jobs.kept_bytes == kept
        bench.restart()


def test_many_closed_jobs_cost_little_memory():
    """What is in the store only costs the same, however large its result is."""
    bench = Bench(NONE_STAYS)
    worker, client = bench.register("w1", ours=True), bench.client()
    bench.journal.put = lambda op: None

    def run(many: int) -> None:
        for _ in range(many):
            bench.post(client, body=b'{"task":"ping","x":"%s"}' % (b"x" * 1000))
            bench.finish(
                worker, next(packet for packet in worker.take() if packet.command is POST), "y" * 10_000
            )
            client.take()
        bench.end_turn()
        bench.listener.events.clear()

    run(10)
    gc.collect()
    tracemalloc.start()
    try:
        run(150)
        gc.collect()
        each = tracemalloc.get_traced_memory()[0] / 150
    finally:
        tracemalloc.stop()
    assert len(in_the_store(bench)) == 160
    assert each < 1500


def test_what_a_client_was_told_is_the_same_from_the_store():
    """Whom it is for, who is missing, and how an error of one among several is told."""
    answers = []
    for config in (DispatchConfig(credits=1), NONE_STAYS):
        bench = Bench(config)
        worker, client = bench.register("w1", ours=True), bench.client()
        uuid = bench.post(client, target='["w1","w7"]')
        bench.finish(worker, the(worker.take(), POST), code=500)
        bench.end_turn()
        waits = bench.post(client, target='["w1","w8"]')
        bench.delete(client, waits, target='["w1","w8"]')
        bench.end_turn()
        client.take()
        told = []
        for each, target in ((uuid, '["w1","w7"]'), (waits, '["w1","w8"]')):
            bench.post(client, each, target=target)
            told += [*client.take(), *bench.get(client, each, target=target)]
        answers.append([(packet.status, packet.data) for packet in told])
    assert answers[0] == answers[1]


# -- who it belongs to ----------------------------------------------------------------------------


def test_a_job_that_was_submitted_again_under_another_name_stays_its(stored):
    bench, uuids = stored
    new = bench.own_client("c1-new", holder="peer:c1")
    bench.post(new, uuids[0])
    assert story(new.take())[-1] == "200"
    kept = {client.name: client.kept for client in bench.dispatcher.clients(bench.now)}
    assert kept == {"c1": 2, "c1-new": 1}
    assert bench.job(uuids[0]).client == "c1-new"
    assert [job.uuid for job in bench.look(JobFilter(client="c1-new"), 9, lambda _: True).found] == uuids[:1]


# -- what is owed ---------------------------------------------------------------------------------


def away(many: int) -> tuple[Bench, list[str]]:
    """So many jobs whose results could not be sent to c1, in the store only."""
    bench = Bench(NONE_STAYS)
    client = FakePeer("c1", features=PUSH)
    client.room = 0
    uuids = finished(bench, many, client)
    bench.lose(client)
    assert in_the_store(bench) == uuids
    return bench, uuids


def back_again(bench: Bench, spare: int | None = None) -> FakePeer:
    back = FakePeer("c1", features=PUSH)
    back.spare = spare
    bench.dispatcher.client_seen(back, bench.now)
    return back


def results(client: FakePeer) -> list[str]:
    return [packet.uuid for packet in client.take() if packet.command is RESPONSE and packet.status == 200]


def test_what_is_owed_is_read_as_far_as_there_is_room():
    bench, uuids = away(5)
    back = back_again(bench, spare=4)  # a 202 and a result each
    for _ in range(5):
        bench.dispatcher.has_room(back, bench.now)
    assert bench.journal.reads == uuids[:2]
    assert results(back) == uuids[:2]
    bench.dispatcher.has_room(back, bench.now)
    assert results(back) == uuids[2:4]
    assert in_the_store(bench) == uuids


def test_what_is_owed_is_sent_once_the_store_can_be_read_and_one_that_left_meanwhile_is_owed_it_still():
    bench, uuids = away(3)
    bench.journal.unreadable = "no disk"
    back = back_again(bench)
    bench.pass_time(100)
    assert results(back) == []
    bench.lose(back)
    bench.pass_time(2)
    assert len(bench.dispatcher._jobs.unpaid) == 0
    back = back_again(bench)
    bench.journal.unreadable = ""
    bench.pass_time(1)
    assert results(back) == uuids
    assert next(iter(bench.dispatcher._jobs.registry.clients.values())).owed == {}


def test_every_part_is_owed_however_many_of_them_were_asked_for_since():
    bench = Bench(NONE_STAYS)
    workers = [bench.register(name, ours=True) for name in ("w1", "w2", "w3")]
    client = FakePeer("c1", features=PUSH)
    uuid = bench.post(client, target="all")
    for worker in workers:
        bench.finish(worker, the(worker.take(), POST))
    bench.end_turn()
    client.take()
    client.unsent = frozenset({uuid})
    bench.lose(client)
    back = back_again(bench, spare=0)
    assert story(bench.get(back, uuid, target="w1")) == ["200"]
    back.spare = None
    bench.dispatcher.has_room(back, bench.now)
    bench.end_turn()
    sent = [said(packet) for packet in back.take() if packet.status == 200]
    assert sorted(name for body in sent for name in body) == ["w2", "w3"]


def test_one_part_more_does_not_narrow_every_part():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.own_client()
    uuid = bench.post(client)
    order = bench.dispatcher._jobs.by_uuid[uuid]
    owner = order.client
    owner.owed[uuid] = {}
    owner.owe(order.parts[""])
    assert owner.owed == {uuid: {}}
    owner.settle(order, [])
    assert owner.owed == {uuid: {"": None}}
    owner.settle(order, order.parts.values())
    assert owner.owed == {}
    assert worker.alive


# -- searches -------------------------------------------------------------------------------------


@for_each("which", [{}, {"worker": "w1"}, {"text": "ping"}])
def test_what_leaves_memory_while_it_is_looked_for_is_found(which, monkeypatch):
    monkeypatch.setattr(search_room, "SLICE", 2)
    bench = Bench(DispatchConfig(recent_max_jobs=3, credits=1))
    uuids = finished(bench, 6)
    search = bench.search(JobFilter(**which), lambda _: True, 10)
    steps = search.steps()
    next(steps)
    finished(bench, 3)
    assert list(steps) == [None]
    assert (search.total, {view.uuid for view in search.found}) == (6, set(uuids))
    assert len(in_memory(bench)) == 3


def test_only_what_is_told_of_is_read_where_no_text_is_looked_for(stored):
    bench, uuids = stored
    assert bench.look(JobFilter(task="ping"), 2, lambda _: True).total == 3
    assert bench.journal.reads == [uuids[2], uuids[1]]
    assert bench.look(JobFilter(task="ping"), 0, lambda _: True).total == 3
    assert len(bench.journal.reads) == 2


def test_no_more_is_read_in_one_step_than_takes_a_moment(stored, monkeypatch):
    bench, uuids = stored
    monkeypatch.setattr(search_room, "READ_MAX_BYTES", 10)
    search = bench.search(JobFilter(worker="w1"), lambda _: True, 9)
    assert [list(bench.journal.reads) for _ in search.steps()] == [uuids[:1:-1], uuids[:0:-1]]
    assert search.total == 3


def test_a_job_that_ends_while_the_broker_starts_is_kept_once():
    bench = Bench()
    worker, client = bench.register("w1", ours=True, tasks={"ping": False}), bench.own_client()
    bench.post(client, timeout=500)
    bench.accept(worker, the(worker.take(), POST))
    snapshot = bench.journal.snapshot()._replace(workers=())
    bench._start()
    bench.dispatcher.restore(snapshot, bench.now)
    assert bench.counts.failed == 1
    assert [(one.jobs, one.kept) for one in bench.dispatcher.clients(bench.now)] == [(0, 1)]
