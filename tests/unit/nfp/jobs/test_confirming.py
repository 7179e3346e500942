"""Whose job is it: a worker that is back, or must not begin twice, hears it from the broker before it begins."""

from broker.nfp import bodies
from broker.nfp.access import Access
from broker.nfp.frames import Packet
from broker.nfp.jobs import DispatchConfig
from broker.nfp.jobs.schedule import TAKE_BACK_S
from broker.nfp.names import Command, Sender
from broker.nfp.records import Accepted
from broker.settings.nfp import TaskEntry
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import Bench, said, the

POST, GET, DELETE, RESPONSE = Command.POST, Command.GET, Command.DELETE, Command.RESPONSE
ONCE = {"ping": False}


def confirmed(peer, committed=None):
    packets = [packet for packet in peer.take(committed) if packet.status_text == bodies.CONFIRMED]
    return [uuid for packet in packets for uuid in bodies.read_uuids(packet.data)]


def deletes(peer):
    return [packet.uuid for packet in peer.take() if packet.command is DELETE]


def given(bench, *, tasks=None, **more):
    """A worker of ours with a job that it has not answered."""
    worker, client = bench.register("w1", ours=True, tasks=tasks), bench.client()
    uuid = bench.post(client, **more)
    return worker, client, uuid, the(worker.take(), POST)


def back(bench, worker, jobs, *, tasks=None):
    bench.lose(worker)
    return bench.register("w1", ours=True, jobs=jobs, tasks=tasks)


# -- what must not be run twice -------------------------------------------------------------------


def test_the_acceptance_of_what_must_not_be_run_twice_is_confirmed_once_it_is_on_record():
    bench = Bench()
    worker, _client, uuid, post = given(bench, tasks=ONCE)
    bench.dispatcher.worker(worker, accepted(worker, post), bench.now)
    assert confirmed(worker, bench.journal.committed) == []
    bench.end_turn()
    assert [op.attempt for op in bench.journal.of(Accepted)] == [1]
    assert confirmed(worker, bench.journal.committed) == [uuid]
    bench.accept(worker, post)  # the word may have been lost
    assert confirmed(worker) == [uuid]


def accepted(worker, post):
    return Packet(
        Sender.WORKER,
        RESPONSE,
        client=post.client,
        uuid=post.uuid,
        status=201,
        status_text="CREATED",
        body=b"{}",
    )


def test_what_may_be_run_twice_is_not_confirmed():
    bench = Bench()
    worker, _client, _uuid, post = given(bench)
    bench.accept(worker, post)
    assert confirmed(worker) == []


def test_a_worker_that_asks_first_is_answered_whatever_the_settings_say():
    bench = Bench(access=Access(tasks=[TaskEntry(service="net", task="ping", idempotent=True)]))
    worker, _client, uuid, post = given(bench, tasks=ONCE)
    bench.accept(worker, post)
    assert confirmed(worker) == [uuid]


@for_each("ours", [False, True])
def test_what_must_not_be_run_twice_may_have_begun_where_nobody_asks_first(ours):
    bench = Bench(access=Access(tasks=[TaskEntry(service="net", task="ping", idempotent=False)]))
    worker, client = bench.register("w1", ours=ours), bench.client()
    bench.post(client)
    the(worker.take(), POST)
    other = bench.register("w2", ours=True)
    bench.lose(worker)
    bench.pass_time(2.1)
    assert [packet for packet in other.take() if packet.command is POST] == []
    last = client.take()[-1]
    assert last.status == 408
    assert "not declared idempotent" in said(last)["error"]


# -- who is back ----------------------------------------------------------------------------------


@for_each("tasks", [None, ONCE])
def test_a_worker_that_is_back_hears_which_of_its_jobs_may_begin(tasks):
    bench = Bench()
    worker, _client, uuid, _post = given(bench, tasks=tasks)
    worker = back(bench, worker, {uuid: (1, "waiting"), "strange": (1, "waiting")}, tasks=tasks)
    assert confirmed(worker) == [uuid]
    assert bench.job(uuid).parts[0].state == ("accepted" if tasks else "dispatched")


def test_what_runs_needs_no_word():
    bench = Bench()
    worker, _client, uuid, _post = given(bench)
    assert confirmed(back(bench, worker, {uuid: (1, "running")})) == []
    assert bench.job(uuid).parts[0].state == "accepted"


@for_each("state", ["waiting", "running"])
def test_what_was_cancelled_meanwhile_is_deleted(state):
    bench = Bench()
    worker, client, uuid, _post = given(bench)
    bench.lose(worker)
    bench.delete(client, uuid)
    worker = bench.register("w1", ours=True, jobs={uuid: (1, state)})
    assert deletes(worker) == [uuid]


@for_each("state", ["waiting", "running"])
@for_each("finished", [False, True])
def test_what_is_somebody_elses_is_deleted(state, finished):
    bench = Bench()
    worker, client, uuid, _post = given(bench)
    other = bench.register("w2", ours=True)
    bench.lose(worker)
    bench.pass_time(2.1)
    again = the(other.take(), POST)
    if finished:
        bench.finish(other, again)
    worker = bench.register("w1", ours=True, jobs={uuid: (1, state)})
    packets = worker.take()
    assert [packet.uuid for packet in packets if packet.command is DELETE] == [uuid]
    assert all(packet.status_text != bodies.CONFIRMED for packet in packets)
    # that it has ended it is no result of the job, which the other one has
    bench.answer(worker, the(packets, DELETE), 417, b'{"w1":{"errors":["cancelled"]}}')
    if not finished:
        assert bench.job(uuid).parts[0].state != "final"
        bench.finish(other, again)
    assert [one.worker for one in bench.results(uuid)] == ["w2"]
    assert bench.delete(client, uuid)


def test_an_acceptance_of_what_is_somebody_elses_is_answered_with_delete():
    bench = Bench()
    worker, client, uuid, post = given(bench, tasks=ONCE)
    bench.delete(client, uuid)
    worker.take()
    bench.accept(worker, post)
    packets = worker.take()
    assert [packet.uuid for packet in packets if packet.command is DELETE] == [uuid]


# -- places that are taken ------------------------------------------------------------------------


def busy(bench):
    (view,) = (one for one in bench.dispatcher.workers(bench.now) if one.name == "w1")
    return view.busy


@for_each("how", ["cancelled", "late"])
def test_a_task_that_hangs_keeps_its_place_until_it_has_ended(how):
    bench = Bench()
    worker, client, uuid, post = given(bench, timeout=5)
    bench.accept(worker, post)
    if how == "cancelled":
        bench.delete(client, uuid)
    for _ in range(30):
        bench.pass_time(2)
        bench.say(worker, alive())
    second = bench.post(client)
    assert [packet.uuid for packet in worker.take() if packet.command is POST] == []
    other = bench.register("w2", ours=True)
    assert the(other.take(), POST).uuid == second
    bench.answer(worker, post, 417, b"{}")
    third = bench.post(client)
    assert the([packet for packet in worker.take() if packet.command is POST], POST).uuid == third


def alive():
    return Packet(Sender.WORKER, Command.KEEPALIVE, service="net")


def test_a_task_that_hangs_keeps_its_place_over_a_restart_of_the_broker():
    bench = Bench()
    worker, client, uuid, post = given(bench)
    bench.accept(worker, post)
    bench.delete(client, uuid)
    bench.restart()
    worker = bench.register("w1", ours=True, jobs={uuid: (1, "running")})
    bench.post(client)
    packets = worker.take()
    assert [packet.command for packet in packets if packet.command in (POST, DELETE)] == [DELETE]
    bench.answer(worker, the(packets, DELETE), 417, b"{}")
    the([packet for packet in worker.take() if packet.command is POST], POST)


def test_a_deployed_worker_is_asked_whether_it_has_ended_what_is_over():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    uuid = bench.post(client, timeout=5)
    post = the(worker.take(), POST)
    bench.accept(worker, post)
    asked = []
    for _ in range(15):
        bench.pass_time(2)
        bench.say(worker, alive())
        asked += [packet for packet in worker.take() if packet.command is GET]
    second = bench.post(client)
    assert [packet for packet in worker.take() if packet.command is POST] == []
    assert asked
    assert {packet.uuid for packet in asked} == {uuid}
    bench.answer(worker, asked[-1], 200, b'{"w1":{"result":1}}')
    assert the([packet for packet in worker.take() if packet.command is POST], POST).uuid == second


# -- what waits at a worker -----------------------------------------------------------------------


def stuck(bench, **more):
    """A job that its worker has not begun, and another worker with nothing to do."""
    worker, client, uuid, post = given(bench, **more)
    other = bench.register("w2", ours=True)
    asked = []
    for _ in range(3):
        bench.pass_time(1)
        bench.say(worker, alive())
        bench.say(other, alive())
        asked += [packet for packet in worker.take() if packet.command is DELETE]
    return worker, other, client, uuid, post, asked


def test_what_has_not_begun_is_taken_back_for_somebody_with_nothing_to_do():
    bench = Bench()
    worker, other, client, uuid, _post, asked = stuck(bench)
    (delete,) = asked
    assert bodies.unless_begun(delete.data)
    bench.answer(worker, delete, 404, b"{}")
    again = the([packet for packet in other.take() if packet.command is POST], POST)
    assert (again.uuid, again.client) == (uuid, b"c1#2")
    bench.finish(other, again)
    assert client.take()[-1].status == 200


def test_what_has_begun_stays_where_it_is():
    bench = Bench()
    worker, other, _client, uuid, _post, asked = stuck(bench)
    bench.answer(worker, asked[0], 201, b"{}")
    for _ in range(30):
        bench.pass_time(2)
        bench.say(worker, alive())
        bench.say(other, alive())
    assert deletes(worker) == []
    assert [packet for packet in other.take() if packet.command is POST] == []
    assert bench.job(uuid).parts[0].state == "accepted"


@for_each("more", [{"target": "w1"}, {"accepted": True}])
def test_what_is_named_or_runs_is_not_taken_back(more):
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    bench.post(client, target=more.get("target", "any"))
    if more.get("accepted"):
        bench.accept(worker, the(worker.take(), POST))
    bench.register("w2", ours=True)
    bench.pass_time(10)
    assert deletes(worker) == []


# ---------------------------------------------------------------- one more than the slots


def busy_pair(bench):
    """w1 and w2 have one slot each and were given two jobs of five."""
    workers = [bench.register(name, ours=True, limit=1) for name in ("w1", "w2")]
    client = bench.client()
    for _ in range(5):
        bench.post(client)
    return workers, client, {worker: worker.take() for worker in workers}


def test_a_worker_is_given_one_more_than_it_has_slots_when_nobody_has_a_free_one():
    bench = Bench(DispatchConfig(ahead=1))
    (w1, w2), _client, posts = busy_pair(bench)
    assert [len(posts[w1]), len(posts[w2])] == [2, 2]
    views = {view.name: view for view in bench.dispatcher.workers(bench.now)}
    assert (views["w1"].credits, views["w1"].busy) == (1, 1)
    assert [(view.idle, view.queued) for view in bench.dispatcher.services()] == [(0, 1)]
    bench.finish(w1, posts[w1][0])
    assert [packet.command for packet in w1.take() if packet.command is POST] == [POST]


def deployed(bench, *names, jobs):
    """Workers of deployed NorFab, which give nothing back, after so many jobs."""
    workers, client = [bench.register(name) for name in names], bench.client()
    for _ in range(jobs):
        bench.post(client)
    return workers, client


def test_who_gives_nothing_back_is_given_as_many_as_it_runs_where_somebody_else_could_run_them():
    bench = Bench(DispatchConfig(ahead=1, credits=2))
    workers, _client = deployed(bench, "w1", "w2", jobs=6)
    posts = [worker.take() for worker in workers]
    assert [len(each) for each in posts] == [2, 2]
    bench.lose(workers[1])
    bench.answer(workers[0], posts[0][0], 200, b"{}")
    assert len(given_to(workers[0])) == 2  # it is alone now


def test_who_gives_nothing_back_and_is_alone_is_given_twice_what_it_runs():
    bench = Bench(DispatchConfig(ahead=1, credits=2))
    (first,), client = deployed(bench, "w1", jobs=6)
    posts = given_to(first)
    assert len(posts) == 4
    assert bench.dispatcher.workers(bench.now)[0].busy == 2
    second = bench.register("w2")
    assert len(given_to(second)) == 2
    bench.post(client)
    bench.answer(first, posts[0], 200, b"{}")
    assert given_to(first) == []


@for_each("more", [{"seed": True}, {"limit": 1}])
def test_who_asked_for_one_job_at_a_time_gets_one(more):
    bench = Bench(DispatchConfig(ahead=1))
    worker, client = bench.register("w1", **more), bench.client()
    for _ in range(3):
        bench.post(client)
    assert len(given_to(worker)) == 1


def given_to(worker):
    return [packet for packet in worker.take() if packet.command is POST]


def test_what_waits_behind_a_long_job_goes_to_the_first_who_is_free():
    bench = Bench(DispatchConfig(ahead=1))
    (w1, w2), client, posts = busy_pair(bench)
    for worker in (w1, w2):
        bench.accept(worker, posts[worker][0])
    fifth = None
    for post in posts[w2]:
        bench.finish(w2, post)
        fifth = fifth or next((each for each in w2.take() if each.command is POST), None)
    bench.finish(w2, fifth)
    w2.take()
    bench.pass_time(TAKE_BACK_S)
    delete = the([each for each in w1.take() if each.command is DELETE], DELETE)
    assert (delete.uuid, bodies.unless_begun(delete.data)) == (posts[w1][1].uuid, True)
    bench.answer(w1, delete, 404, b"{}")
    again = the([each for each in w2.take() if each.command is POST], POST)
    bench.finish(w2, again)
    bench.finish(w1, posts[w1][0])
    assert [packet.status for packet in client.take() if packet.status == 200] == [200] * 5


def test_a_worker_that_is_soon_done_keeps_what_it_has():
    bench = Bench(DispatchConfig(ahead=1))
    (w1, w2), _client, posts = busy_pair(bench)
    for post in posts[w2]:
        bench.finish(w2, post)
    bench.finish(w2, next(each for each in w2.take() if each.command is POST))
    for post in posts[w1]:
        bench.finish(w1, post)
    bench.pass_time(2 * TAKE_BACK_S)
    assert deletes(w1) == []


# ---------------------------------------------------------------- stopped, and wanted after all


def test_the_end_of_an_attempt_that_was_stopped_is_no_result():
    bench = Bench()
    former, client = bench.register("w2", ours=True, limit=1), bench.client()
    uuid = bench.post(client)
    former.take()
    bench.lose(former)
    bench.pass_time(10)
    other = bench.register("w1", ours=True, limit=1)
    second = the(other.take(), POST)
    former = bench.register("w2", ours=True, limit=1, jobs={uuid: (1, "running")})
    stop = the([each for each in former.take() if each.command is DELETE], DELETE)
    bench.answer(other, second, 404, b"{}")
    bench.answer(former, stop, 417, b"{}")
    bench.end_turn()
    third = the([each for each in former.take() + other.take() if each.command is POST], POST)
    assert third.client == b"c1#3"
    assert bench.job(uuid).state == "open"
    holder = bench.job(uuid).parts[0].worker
    bench.finish({"w1": other, "w2": former}[holder], third)
    assert client.take()[-1].status == 200
