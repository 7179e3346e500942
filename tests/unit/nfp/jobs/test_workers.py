"""Workers come, fall silent, die, come back, lie; what becomes of their jobs."""

import json

import pytest

from broker.children.child import ENDS_MAX
from broker.nfp.access import Access
from broker.nfp.frames import Packet
from broker.nfp.jobs import DispatchConfig
from broker.nfp.jobs.schedule import ACKNOWLEDGE_S
from broker.nfp.jobs.workers import GRID_S
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.opening import WorkerOpen
from broker.nfp.records import Dispatched, Finished, Returned, WorkerLeft, WorkerSeen
from broker.settings.nfp import KeyEntry, TaskEntry
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import OURS, Bench, FakePeer, result_body, said, story, the

POST, GET, DELETE, DISCONNECT = Command.POST, Command.GET, Command.DELETE, Command.DISCONNECT


def worker_says(command: Command, seed: bool = False, **more) -> Packet:
    dialect = Dialect.SEED if seed else Dialect.NORFAB
    return Packet(Sender.WORKER, command, dialect=dialect, **more)


def keepalive(seed: bool = False) -> Packet:
    return worker_says(Command.KEEPALIVE, seed, service="net")


def posts(peer: FakePeer) -> list[Packet]:
    return [packet for packet in peer.take() if packet.command is POST]


# -- coming and going -----------------------------------------------------------------------------


@for_each("seed", [False, True])
def test_a_second_ready_is_answered_with_disconnect(seed):
    bench = Bench()
    worker = bench.register("w1", seed=seed)
    bench.say(worker, worker_says(Command.READY, seed, service="net"))
    goodbye = the(worker.take(), DISCONNECT)
    assert (goodbye.service, goodbye.body is None) == ("net", not seed)
    bench.post(bench.client())
    for late in (worker_says(Command.READY, seed, service="net"), keepalive(seed)):
        bench.say(worker, late)
    assert not bench.dispatcher.worker_opened(worker, WorkerOpen(), bench.now)
    assert worker.take() == []  # nothing more to that worker
    assert [about[:2] for about in bench.offences] == [("w1", "unexpected")] * 4
    the(bench.register("w1", seed=seed).take(), POST)  # on a new connection


def test_a_lost_connection_that_had_to_go_is_forgotten():
    bench = Bench()
    worker = bench.register("w1")
    bench.say(worker, worker_says(Command.READY, service="net"))
    bench.lose(worker)
    worker.alive = True
    bench.register("w1", peer=worker)
    assert [one.status for one in bench.dispatcher.workers(bench.now)] == ["alive"]


def test_open_after_ready_is_unexpected():
    bench = Bench()
    worker = bench.register("w1", ours=True)
    assert not bench.dispatcher.worker_opened(worker, WorkerOpen(), bench.now)
    the(worker.take(), DISCONNECT)
    assert bench.counts.unexpected == 1
    assert bench.offences == [("w1", "unexpected", "OPEN after READY")]


@for_each(
    "packet",
    [
        keepalive(),
        keepalive(seed=True),
        worker_says(Command.RESPONSE, client=b"c#1", uuid="u", status=200, body=b""),
        worker_says(Command.EVENT, service="net", uuid="u", status=200, body=b""),
        worker_says(Command.STREAM, client=b"c#1", uuid="u", status=200, body=b""),
    ],
)
def test_who_is_not_registered_is_disconnected_once_a_second(packet):
    bench = Bench()
    peer = FakePeer("w1", packet.dialect)
    for _ in range(3):
        bench.say(peer, packet)
    assert the(peer.take(), DISCONNECT).dialect is packet.dialect
    bench.pass_time(1.0)
    bench.say(peer, packet)
    the(peer.take(), DISCONNECT)
    assert bench.counts.unexpected == 4
    text = f"{packet.command.name} without READY"
    assert (
        bench.offences == [("w1", "unexpected", text)] * 2
    )  # what it sent before it could hear it does not count


def test_disconnect_of_the_unregistered_is_no_news():
    bench = Bench()
    peer = FakePeer("w1")
    bench.say(peer, worker_says(DISCONNECT, service="net"))
    assert peer.take() == []


@for_each("service", ["mmi.service.broker", "sid.service.broker", "all", "net"])
def test_who_may_not_offer_a_service_is_refused(service):
    bench = Bench(access=Access(keys=[KeyEntry(key="K", services=("db",))]))
    worker = bench.register("w1", service, key="K")
    the(worker.take(), DISCONNECT)
    assert bench.counts.refused == 1
    assert bench.dispatcher.workers(bench.now) == []
    assert bench.journal.of(WorkerSeen) == []


def test_a_name_that_is_somebody_elses_is_refused():
    bench = Bench()
    first = bench.register("w1", key="A")
    thief = bench.register("w1", key="B")
    the(thief.take(), DISCONNECT)
    bench.post(bench.client())
    the(first.take(), POST)


def test_a_name_that_was_somebody_elses_is_free_for_who_proves_it():
    """Names are proven before: the list of keys has given it to another one while who had it was away."""
    bench = Bench()
    former = bench.register("w1", key="A")
    bench.lose(former)
    owner = bench.register("w1", key="B")
    assert owner.take() == []
    assert [one.status for one in bench.dispatcher.workers(bench.now)] == ["alive"]
    seen = [(each.name, each.key, each.lost) for each in bench.journal.of(WorkerSeen)]
    assert seen == [("w1", "A", False), ("w1", "A", True), ("w1", "B", False)]


def test_a_new_connection_replaces_the_old_one():
    bench = Bench()
    old = bench.register("w1", ours=True)
    uuid = bench.post(bench.client())
    post = the(old.take(), POST)
    new = bench.register("w1", ours=True, jobs={uuid: (1, "running")})
    assert old.take() == new.take() == []
    bench.lose(old)  # heard late
    assert bench.dispatcher.workers(bench.now)[0].status == "alive"
    bench.finish(new, post)
    assert bench.job(uuid).state == "done"


def test_a_worker_that_changes_its_service_is_another_one():
    bench = Bench()
    bench.register("w1", ours=True)
    uuid = bench.post(bench.client(), timeout=900)
    bench.register("w1", "other", ours=True)
    assert {view.name for view in bench.dispatcher.services()} == {"net", "other"}
    assert bench.job(uuid).parts[0].state == "waiting"


def test_keepalives_only_where_nothing_else_was_sent():
    bench = Bench(DispatchConfig(keepalive_s=2))
    quiet, busy = bench.register("w1"), bench.register("w2", "busy", ours=True, limit=9)
    client = bench.client()
    for _ in range(6):
        bench.pass_time(1)
        bench.say(quiet, keepalive())
        bench.say(busy, keepalive())
        bench.post(client, service="busy")
    assert [p.command for p in quiet.take()] == [Command.KEEPALIVE] * 3
    assert [p.command for p in busy.take()] == [POST] * 6
    views = {view.name: view for view in bench.dispatcher.workers(bench.now)}
    assert (views["w1"].keepalives_sent, views["w1"].keepalives_received) == (3, 6)


@pytest.mark.timeout(20)
def test_a_timer_that_goes_off_to_the_moment_ends():
    """``sent + interval`` may be reached while ``now - sent`` is less, by rounding."""
    config = DispatchConfig(keepalive_s=0.3, multiplier=4)
    moments = (1000 + n * GRID_S for n in range(10_000))
    began = next(x - 0.3 for x in moments if x - 0.3 + 0.3 == x and x - (x - 0.3) < 0.3)
    bench = Bench(config)
    bench.now = began
    worker = bench.register("w1")
    bench.now = began + 0.3
    bench.end_turn()
    assert [packet.command for packet in worker.take()] == [Command.KEEPALIVE]


def test_workers_that_are_due_at_about_the_same_time_are_looked_at_together():
    bench = Bench(DispatchConfig(keepalive_s=1, multiplier=4))
    workers = []
    for number in range(5):
        bench.now = 1000 + number / 100
        workers.append(bench.register(f"w{number}"))
    told = []
    for bench.now in (1001.0, 1001.05, 1001 + GRID_S):
        bench.end_turn()
        told.append([worker.name for worker in workers if worker.take()])
    assert told == [["w0"], [], ["w1", "w2", "w3", "w4"]]


def test_silence_is_death_and_any_frame_is_life():
    bench = Bench(DispatchConfig(keepalive_s=1, multiplier=4))
    talker, silent = bench.register("w1"), bench.register("w2")
    bench.post(bench.client(), target='["w1"]')
    post = the(talker.take(), POST)
    for _ in range(5):
        bench.pass_time(1)
        bench.event(talker, post)
    assert [view.name for view in bench.dispatcher.workers(bench.now)] == ["w1"]
    assert silent.take()[-1].command is DISCONNECT
    assert bench.journal.of(WorkerLeft) == [WorkerLeft("w2")]
    assert bench.counts.died == 1


@for_each("frozen", [True, False])
def test_who_is_told_to_come_back_and_stays_silent_on_its_connection_is_cut(frozen):
    bench = Bench(DispatchConfig(keepalive_s=1, multiplier=4))
    worker = bench.register("w1")
    bench.pass_time(4)
    assert worker.take()[-1].command is DISCONNECT
    if not frozen:
        bench.say(worker, worker_says(Command.READY, service="net"))
    assert worker.cuts == []
    bench.pass_time(2)
    assert bool(worker.cuts) is frozen


@for_each("frozen", [True, False])
@for_each("how", ["by an operator", "unexpected"])
def test_whoever_was_told_disconnect_and_holds_its_connection_is_cut(how, frozen):
    bench = Bench()
    worker = bench.register("w1")
    if how == "unexpected":
        bench.say(worker, worker_says(Command.READY, service="net"))
    else:
        assert bench.dispatcher.disconnect_workers(["w1"], "enough", bench.now) == ["w1"]
    assert worker.take()[-1].command is DISCONNECT
    if not frozen:
        bench.lose(worker)
        bench.register("w1")
    bench.pass_time(0.9)
    assert worker.cuts == []
    bench.pass_time(0.2)
    assert len(worker.cuts) == frozen


def test_a_worker_that_an_operator_sent_away_may_register_anew_on_its_connection():
    bench = Bench()
    worker = bench.register("w1")
    bench.dispatcher.disconnect_workers(None, "all of them", bench.now)
    bench.say(worker, worker_says(Command.READY, service="net"))
    bench.pass_time(2)
    assert worker.cuts == []
    assert [view.status for view in bench.dispatcher.workers(bench.now)] == ["alive"]


# -- jobs of lost workers -------------------------------------------------------------------------


@for_each("accepted", [False, True])
@for_each("how", ["lost", "silent", "goodbye"])
def test_a_job_for_any_goes_to_another_worker(accepted, how):
    bench = Bench()
    first = bench.register("w1", ours=True)
    client = bench.client()
    uuid = bench.post(client)
    post = the(first.take(), POST)
    if accepted:
        bench.accept(first, post)
    second = bench.register("w2", ours=True)
    if how == "goodbye":
        bench.say(first, worker_says(DISCONNECT, service="net"))
    elif how == "lost":
        bench.lose(first)
        bench.pass_time(1.9)
        assert posts(second) == []  # it may be back
        bench.pass_time(0.2)
    else:
        for _ in range(8):
            bench.pass_time(2)
            bench.say(second, keepalive())
    again = posts(second)
    assert [(packet.uuid, packet.client) for packet in again] == [(uuid, b"c1#2")]
    bench.finish(second, again[0])
    assert story([p for p in client.take() if p.status != 201]) == ["202[]", "202[w2]", "200"]
    assert bench.journal.of(Finished)[0].attempt == 2
    assert bench.counts.returned == 1
    assert "returned" in bench.listener.kinds(uuid)


@for_each(
    ("setting", "own", "repeated"),
    [(None, None, True), (None, False, False), (True, False, True), (False, True, False), (None, True, True)],
)
@for_each("accepted", [False, True])
def test_only_idempotent_tasks_are_run_again_after_they_were_accepted(setting, own, repeated, accepted):
    tasks = [TaskEntry(service="net", task="ping", idempotent=setting)] if setting is not None else []
    bench = Bench(access=Access(tasks=tasks))
    first = bench.register("w1", ours=True, tasks={"ping": own})
    client = bench.client()
    bench.post(client)
    post = the(first.take(), POST)
    if accepted:
        bench.accept(first, post)
    client.take()
    second = bench.register("w2", ours=True)
    bench.lose(first)
    bench.pass_time(2.1)
    if repeated or (own is False and not accepted):  # who declares a task so asks before it begins
        assert len(posts(second)) == 1
    else:
        assert posts(second) == []
        last = client.take()[-1]
        assert last.status == 408
        assert "not declared idempotent" in said(last)["error"]


def test_a_named_job_waits_for_its_worker():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    uuid = bench.post(client, target="w1")
    worker.take()
    bench.register("w2", ours=True)
    bench.lose(worker)
    bench.pass_time(30)
    assert bench.job(uuid).parts[0].state == "waiting"
    assert story(bench.get(client, uuid, target='["w1"]'))[1:] == ["300"]
    back = bench.register("w1", ours=True)
    assert the(back.take(), POST).client == b"c1#2"


def test_within_its_grace_a_deployed_worker_is_asked_what_it_has():
    bench = Bench()
    worker, client = bench.register("w1", limit=3), bench.client()
    kept, done, unknown = (bench.post(client) for _ in range(3))
    worker.take()
    bench.lose(worker)
    back = bench.register("w1", limit=3)
    asked = {packet.uuid: packet for packet in back.take()}
    assert {packet.command for packet in asked.values()} == {GET}
    bench.answer(back, asked[kept], 300, b"{}")
    bench.answer(back, asked[done], 200, result_body("w1"))
    bench.answer(back, asked[unknown], 404, b"{}")
    assert [(packet.uuid, packet.client) for packet in posts(back)] == [(unknown, b"c1#2")]
    states = [bench.job(uuid).parts[0].state for uuid in (kept, done, unknown)]
    assert states == ["accepted", "final", "dispatched"]


def test_a_worker_of_the_text_that_does_not_know_the_job_is_given_it_again():
    bench = Bench()
    worker = bench.register("w1", seed=True)
    uuid = bench.post(bench.client())
    worker.take()
    bench.lose(worker)
    back = bench.register("w1", seed=True)
    bench.answer(back, the(back.take(), GET), 400, b"")
    assert the(back.take(), POST).uuid == uuid


def test_a_worker_that_never_answers_the_question_loses_the_job():
    bench = Bench()
    worker = bench.register("w1", seed=True)
    bench.post(bench.client())
    worker.take()
    bench.lose(worker)
    back = bench.register("w1", seed=True)
    for _ in range(10):
        bench.pass_time(2)
        bench.say(back, keepalive(seed=True))
    assert len(posts(back)) == 1


def test_our_worker_lists_what_it_has():
    bench = Bench()
    worker, client = bench.register("w1", ours=True, limit=4), bench.client()
    running, done, lost = (bench.post(client) for _ in range(3))
    worker.take()
    bench.lose(worker)
    back = bench.register("w1", ours=True, limit=4, jobs={running: (1, "running"), done: (1, "done")})
    post = the(back.take(), POST)  # and no GET: a result that waits there comes by itself
    assert (post.uuid, post.client) == (lost, b"c1#2")
    assert bench.job(running).parts[0].state == "accepted"
    assert bench.job(done).parts[0].state == "accepted"


@for_each("seed", [False, True])
def test_a_worker_that_pushes_is_asked_all_the_same_when_what_it_has_is_in_doubt(seed):
    """A result that was promised does not come; the question what it has found no room."""
    bench = Bench()
    worker = bench.register("w1", seed=seed, ours=not seed)
    uuid = bench.post(bench.client(), timeout=900)
    worker.take()
    bench.lose(worker)
    peer = FakePeer("w1", worker.dialect)
    peer.room = 0 if seed else None
    back = bench.register("w1", seed=seed, ours=not seed, jobs={uuid: (1, "done")}, peer=peer)
    peer.room = None
    asked = []
    for _ in range(7):  # it looks now and then: between 10 and 12.5 s after it is back
        assert asked == [] or bench.now >= 1000 + bench.config.probe_s
        bench.pass_time(2)
        bench.say(back, keepalive(seed))
        asked += [packet for packet in back.take() if packet.command is GET]
    assert [packet.uuid for packet in asked] == [uuid]
    for _ in range(3):
        bench.pass_time(2)
        bench.say(back, keepalive(seed))
    assert GET not in [packet.command for packet in back.take()]
    bench.answer(back, asked[0], 200, result_body("w1"))
    assert bench.job(uuid).state == "done"


def test_after_its_death_what_it_lists_and_nobody_has_stays_with_it():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    uuid = bench.post(client)
    post = the(worker.take(), POST)
    bench.lose(worker)
    bench.pass_time(5)
    assert bench.job(uuid).parts[0].state == "waiting"
    back = bench.register("w1", ours=True, jobs={uuid: (1, "running")})
    assert back.take() == []
    bench.finish(back, post)
    assert bench.journal.of(Finished)[0].attempt == 1


@for_each(("state", "expected"), [("done", Command.RESPONSE), ("running", DELETE)])
def test_what_it_lists_and_is_over_is_acknowledged_or_cancelled(state, expected):
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    uuid = bench.post(client)
    worker.take()
    bench.lose(worker)
    bench.delete(client, uuid)
    back = bench.register("w1", ours=True, jobs={uuid: (1, state)})
    assert the(back.take(), expected).uuid == uuid


def test_a_job_that_only_a_worker_remembers_goes_to_that_worker():
    """The broker and its store were lost: the client submits again, the worker still has it."""
    bench = Bench()
    bench.register("w1", ours=True)
    holder = bench.register("w2", ours=True, jobs={"u1": (1, "done")})
    bench.post(bench.client(), "u1")
    assert the(holder.take(), POST).uuid == "u1"


def test_a_deployed_worker_that_may_have_the_job_is_asked_before_it_is_given_it_again():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    bench.post(client, target="w1")
    bench.accept(worker, the(worker.take(), POST))
    bench.lose(worker)
    bench.pass_time(5)
    back = bench.register("w1")
    asked = the(back.take(), GET)
    bench.answer(back, asked, 404, b"{}")
    post = the(back.take(), POST)
    assert (post.uuid, post.client) == (asked.uuid, b"c1#2")
    bench.answer(back, post, 404, b"{}")  # it fell out of its hands again
    assert the(back.take(), POST).client == b"c1#3"


def test_a_deployed_worker_that_got_a_forgotten_job_again_may_have_it():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    bench.post(client, target="w1")
    bench.answer(worker, the(worker.take(), POST), 404, b"{}")
    bench.accept(worker, the(worker.take(), POST))
    bench.lose(worker)
    bench.pass_time(5)
    assert posts(back := bench.register("w1")) == []
    assert back.alive


def test_a_worker_that_has_to_stop_a_job_and_is_given_it_again_takes_one_slot_for_it():
    bench = Bench(DispatchConfig(ahead=0))
    _, uuid, (first, _), (second, _) = two_workers_at_one_job(bench, ours=True, limit=2)
    bench.lose(second)
    bench.pass_time(5)  # w1 has not said yet that it has stopped, and has a slot left
    again = the([packet for packet in first.take() if packet.command is POST], POST)
    assert again.uuid == uuid
    (view,) = bench.dispatcher.workers(bench.now)
    assert view.busy == 1
    bench.finish(first, again)
    (view,) = bench.dispatcher.workers(bench.now)
    assert view.busy == 0


@for_each("says", [200, 404, 201])
def test_a_slot_returns_when_its_job_was_forgotten_before_the_worker_was_done(says):
    bench = Bench(DispatchConfig(credits=1, result_ttl_s=5))
    worker, client = bench.register("w1"), bench.client()
    uuid = bench.post(client)
    post = the(worker.take(), POST)
    bench.accept(worker, post)
    bench.delete(client, uuid)
    bench.pass_time(6)
    assert bench.job(uuid) is None
    published = len(bench.listener.events)
    bench.event(worker, post)
    assert len(bench.listener.events) == published
    bench.answer(worker, post, says, result_body("w1"))
    (view,) = bench.dispatcher.workers(bench.now)
    assert view.busy == (says == 201)
    bench.post(client)
    assert len(posts(worker)) == (says != 201)


def test_a_lost_announcement_is_noticed():
    bench = Bench(DispatchConfig(probe_s=10))
    worker, client = bench.register("w1"), bench.client()
    bench.post(client)
    bench.accept(worker, the(worker.take(), POST))
    client.take()
    for _ in range(6):
        bench.pass_time(2.5)
        bench.say(worker, keepalive())
    bench.answer(worker, the([p for p in worker.take() if p.command is GET], GET), 200, result_body("w1"))
    assert story(client.take()) == ["202[w1]", "200"]


def test_a_job_that_outlives_too_many_workers_is_given_up():
    bench = Bench(DispatchConfig(attempts_max=3, queue_ttl_s=900))
    client = bench.own_client()
    uuid = bench.post(client, timeout=900)
    for attempt in range(4):
        worker = bench.register(f"w{attempt}", ours=True)
        assert len(posts(worker)) == (attempt < 3)
        bench.lose(worker)
        bench.pass_time(2.1)
    assert bench.results(uuid)[0].status == 500
    assert len(bench.journal.of(Dispatched)) == len(bench.journal.of(Returned)) == 3


def test_a_job_that_ends_its_workers_ends_as_failed_at_once_and_names_them():
    bench = Bench(DispatchConfig(queue_ttl_s=900))
    assert bench.config.attempts_max <= ENDS_MAX
    client = bench.own_client()
    uuid = bench.post(client, timeout=900)
    for name, away_s in (("w1", 0.5), ("w1", 2.1), ("w2", 2.1)):
        assert not bench.results(uuid)
        worker = bench.register(name, ours=True)
        assert [packet.uuid for packet in posts(worker)] == [uuid]
        bench.lose(worker)
        bench.pass_time(away_s)
    (ended,) = bench.results(uuid)
    assert (ended.status, json.loads(ended.body)["error"]) == (
        500,
        "given up: 3 workers were lost while they had it (w1 2 times, w2); it may have ended them",
    )


def test_who_was_only_there_when_a_worker_was_lost_is_not_blamed_for_it():
    bench = Bench(DispatchConfig(queue_ttl_s=900))
    client = bench.own_client()
    bad = bench.post(client, timeout=900)
    others = []
    for attempt in range(3):
        others.append(bench.post(client, timeout=900))
        worker = bench.register(f"w{attempt}", ours=True, limit=5)
        assert len(posts(worker)) == attempt + 2
        bench.lose(worker)
        bench.pass_time(2.1)
    assert bench.results(bad)[0].status == 500
    assert not bench.results(others[1])
    assert not bench.results(others[2])


def test_a_job_that_waits_for_workers_in_vain_says_who_was_lost_over_it():
    bench = Bench(DispatchConfig(queue_ttl_s=60))
    client = bench.own_client()
    uuid = bench.post(client, timeout=900)
    bench.lose(bench.register("w1", ours=True))
    bench.pass_time(70)
    error = json.loads(bench.results(uuid)[0].body)["error"]
    assert error.startswith("service net had no workers for")
    assert error.endswith("while workers had it these were lost: w1")


# -- who wins -------------------------------------------------------------------------------------


def two_workers_at_one_job(bench: Bench, **kind):
    """The first was given up and is back; the second has the job now."""
    first = bench.register("w1", **kind)
    client = bench.own_client()
    uuid = bench.post(client)
    old = the(first.take(), POST)
    bench.lose(first)
    bench.pass_time(3)
    second = bench.register("w2", **kind)
    new = the(second.take(), POST)
    jobs = {uuid: (1, "running")} if kind.get("ours") else None
    first = bench.register("w1", jobs=jobs, **kind)
    assert posts(first) == []
    client.take()
    return client, uuid, (first, old), (second, new)


def test_results_that_follow_one_another_are_acknowledged_together():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.own_client()
    done = []
    for _ in range(4):
        done.append(bench.post(client))
        bench.finish(worker, the(worker.take(), POST))
        if len(done) == 1:
            assert said(the(worker.take(), Command.RESPONSE)) == done  # nothing to wait for
    assert worker.take() == []
    assert bench.due <= bench.now + ACKNOWLEDGE_S
    bench.pass_time(ACKNOWLEDGE_S)
    assert said(the(worker.take(), Command.RESPONSE)) == done[1:]
    bench.post(client)
    bench.finish(worker, the(worker.take(), POST))
    assert worker.take() == []
    bench.dispatcher.disconnect_workers(None, "the broker stops", bench.now)
    assert story(worker.take()) == ["200", "DISCONNECT"]


@for_each("winner", [0, 1])
def test_the_first_final_result_wins(winner):
    bench = Bench()
    client, uuid, *both = two_workers_at_one_job(bench, ours=True)
    worker, post = both[winner]
    loser, other = both[1 - winner]
    body = bench.finish(worker, post, f"by {worker.name}")
    assert [packet.data for packet in client.take() if packet.status == 200] == [body]
    assert (DELETE in [packet.command for packet in loser.take()]) == (loser.name == "w2")
    bench.finish(loser, other, "late")
    assert client.take() == []
    bench.pass_time(ACKNOWLEDGE_S)
    assert said(the(loser.take(), Command.RESPONSE)) == [uuid]  # it need not keep it
    assert bench.counts.late == 1
    assert [(op.worker, op.attempt) for op in bench.journal.of(Finished)] == [(worker.name, 1 + winner)]


def test_a_job_that_waits_again_is_over_when_who_has_to_stop_it_brings_its_result():
    bench = Bench()
    client, uuid, (first, old), (second, _) = two_workers_at_one_job(bench, ours=True)
    bench.lose(second)
    bench.pass_time(3)
    assert bench.job(uuid).parts[0].state == "waiting"
    body = bench.finish(first, old)
    assert [packet.data for packet in client.take() if packet.status == 200] == [body]
    assert [view.queued for view in bench.dispatcher.services()] == [0]
    assert posts(bench.register("w3", ours=True)) == []
    assert [op.worker for op in bench.journal.of(Finished)] == ["w1"]


def test_the_first_announcement_of_deployed_workers_wins():
    bench = Bench()
    client, _, (first, old), (second, new) = two_workers_at_one_job(bench)
    bench.event(first, old, "result_ready")
    bench.answer(first, the(first.take(), GET), 200, result_body("w1"))
    assert story(client.take()) == ["200"]
    bench.event(second, new, "result_ready")
    assert GET not in [packet.command for packet in second.take()]
    assert bench.counts.late == 1
    assert {view.name: view.busy for view in bench.dispatcher.workers(bench.now)} == {"w1": 0, "w2": 0}


def test_events_of_who_was_given_up_are_not_passed_on():
    bench = Bench()
    client, _, (first, old), _ = two_workers_at_one_job(bench)
    bench.event(first, old)
    bench.answer(first, old, 200, b"chunk", Command.STREAM)
    bench.answer(first, old, 201, b"{}")
    assert client.take() == []


def test_an_owner_that_was_told_keeps_its_name():
    """A deployed client waits for the worker it was told of: the result comes under that name."""
    bench = Bench()
    first, client = bench.register("w1"), bench.client()
    uuid = bench.post(client)
    bench.answer(first, the(first.take(), POST), 200, b"chunk", Command.STREAM)
    bench.lose(first)
    bench.pass_time(3)
    second = bench.register("w2")
    post = the(second.take(), POST)
    client.take()
    bench.event(second, post, "result_ready")
    bench.answer(second, the(second.take(), GET), 200, result_body("w2", "mine"))
    out = client.take()
    assert story(out) == ["200"]
    assert said(out[0]) == {"w1": {"result": "mine", "failed": False}}
    assert said(bench.get(client, uuid, target='["w1"]')[0]) == said(out[0])


# -- lies -----------------------------------------------------------------------------------------


@for_each("command", [Command.RESPONSE, Command.EVENT, Command.STREAM])
@for_each("form", [{"client": b"c1#1"}, {"service": "net"}, {"client": b"c1#9"}])
def test_what_a_worker_says_about_others_jobs_is_dropped(command, form):
    bench = Bench()
    bench.register("w1")
    liar, client = bench.register("w2"), bench.client()
    uuid = bench.post(client, target="w1")
    client.take()
    bench.say(liar, worker_says(command, uuid=uuid, status=200, body=result_body("w1", "lie"), **form))
    assert client.take() == []
    assert bench.counts.forged == 1
    assert [about[:2] for about in bench.offences] == [("w2", "forged")]
    assert bench.job(uuid).parts[0].state == "dispatched"


def test_an_attempt_that_was_never_made_counts_for_nothing():
    """Another broker made it: until the worker hears of ours it says so, which is no offence."""
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    uuid = bench.post(client)
    bench.say(
        worker, worker_says(Command.RESPONSE, client=b"c1#2", uuid=uuid, status=200, body=result_body("w1"))
    )
    assert (bench.counts.unroutable, bench.counts.forged, bench.offences) == (1, 0, [])
    assert bench.job(uuid).state == "open"


@for_each("kind", ["submitted", "closed", "cancelled", "a b\n", "x.y", "p" * 70_000, ""])
def test_what_a_worker_calls_its_event_is_told_as_one_of_a_few_kinds(kind):
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    uuid = bench.post(client)
    post = the(worker.take(), POST)
    client.take()
    bench.event(worker, post, kind)
    assert bench.listener.kinds(uuid) == ["submitted", "dispatched", "accepted", "progress"]
    assert said(the(client.take(), Command.EVENT))["event_type"] == kind  # its client gets it as it came


def test_what_nobody_asked_for_is_counted():
    bench = Bench()
    worker = bench.register("w1")
    bench.say(worker, worker_says(Command.RESPONSE, client=b"c1#1", uuid="nothing", status=200, body=b"{}"))
    assert (bench.counts.unroutable, bench.counts.forged) == (1, 0)


@for_each("code", [100, 203, 301, 999])
def test_codes_that_nobody_knows_change_nothing(code):
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    uuid = bench.post(client)
    bench.answer(worker, the(worker.take(), POST), code, b"{}")
    assert bench.job(uuid).parts[0].state == "dispatched"
    assert bench.counts.unexpected == 1


# -- management -----------------------------------------------------------------------------------


@for_each(("names", "expected"), [(None, ["w1", "w2"]), (["w2", "w9"], ["w2"])])
def test_disconnect(names, expected):
    bench = Bench()
    workers = {name: bench.register(name) for name in ("w1", "w2")}
    for worker in workers.values():
        worker.take()
    assert bench.dispatcher.disconnect_workers(names, "asked to", bench.now) == expected
    gone = [name for name, worker in workers.items() if worker.take()]
    assert gone == expected


def test_views():
    bench = Bench()
    worker = bench.register("w1", ours=True, tasks={"ping": True}, key="K")
    client = bench.client("c1", holder="key:A")
    uuid = bench.post(client)
    bench.post(client)
    bench.accept(worker, the(worker.take(), POST))
    view = bench.dispatcher.workers(bench.now)[0]
    assert (view.name, view.service, view.status, view.key, view.busy) == ("w1", "net", "alive", "K", 1)
    assert (view.jobs, view.tasks, view.features) == ((uuid,), ("ping",), OURS)
    service = bench.dispatcher.services()[0]
    assert (service.alive, service.idle, service.queued, service.running) == (1, 0, 1, 1)
    about = bench.dispatcher.clients(bench.now)[0]
    assert (about.name, about.holder, about.jobs) == ("c1", "key:A", 2)
    first, second = bench.jobs()
    assert [first.parts[0].state, second.parts[0].state] == ["accepted", "waiting"]
    assert (first.task, first.client, first.state) == ("ping", "c1", "open")
    assert bench.dispatcher.may_read(client.principal, first.holder)
    assert not bench.dispatcher.may_read(bench.client("c2").principal, first.holder)
