"""One job from POST to result, for every kind of client and worker."""

import json

from broker.nfp.access import Access
from broker.nfp.frames import encode
from broker.nfp.jobs import worker_messages
from broker.nfp.names import SEED_CODES, Command
from broker.nfp.records import Dispatched, Finished, JobAdded
from broker.settings.nfp import TaskEntry
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import Bench, result_body, said, story, the

POST, GET, EVENT, RESPONSE = Command.POST, Command.GET, Command.EVENT, Command.RESPONSE


def test_deployed_client_and_worker_exchange_fourteen_messages():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    uuid = bench.post(client)
    post = the(worker.take(), POST)
    assert post.client == b"c1"
    assert story(client.take()) == ["202[]"]  # late binding
    bench.accept(worker, post)
    bench.event(worker, post)
    assert story(client.take()) == ["201", "EVENT"]
    bench.event(worker, post, "result_ready")
    asked = the(worker.take(), GET)
    assert client.take() == []  # not before the result is recorded
    bench.answer(worker, asked, 200, result_body("w1"))
    assert story(client.take()) == ["202[w1]", "EVENT"]
    got = bench.get(client, uuid, target='["w1"]')
    assert story(got) == ["200"]
    assert got[0].data == result_body("w1")
    assert worker.take() == []  # answered from the record


def test_what_is_written_down():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    uuid = bench.post(client, timeout=30)
    post = the(worker.take(), POST)
    bench.accept(worker, post)
    bench.finish(worker, post)
    ops = bench.journal.ops[1:]  # the first is the worker's
    assert [type(op) for op in ops] == [JobAdded, Dispatched, Finished]
    assert (ops[0].ttl_s, ops[0].parts) == (30, ("",))
    assert ops[1] == Dispatched(uuid, "", "w1", 1)
    assert ops[2].closes == "done"
    assert bench.listener.kinds(uuid) == ["submitted", "dispatched", "accepted", "finished", "closed"]


def test_nothing_leaves_before_its_commit():
    bench = Bench(access=Access(tasks=[TaskEntry(service="net", task="ping", idempotent=False)]))
    worker, client = bench.register("w1"), bench.client()
    worker.take()
    commit, bench.journal.commit = bench.journal.commit, lambda: None
    bench.post(client)
    assert worker.take(bench.journal.committed) == []
    assert client.take(bench.journal.committed) == []
    commit()
    post = the(worker.take(bench.journal.committed), POST)
    assert story(client.take(bench.journal.committed)) == ["202[]"]
    bench.finish(worker, post)
    assert client.take(bench.journal.committed) == []
    commit()
    assert story(client.take(bench.journal.committed)) == ["202[w1]", "200"]


def test_a_task_that_may_run_twice_need_not_wait_for_its_record():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    worker.take()
    commit, bench.journal.commit = bench.journal.commit, lambda: None
    bench.post(client)
    bench.accept(worker, the(worker.take(bench.journal.committed), POST))
    assert client.take(bench.journal.committed) == []
    commit()
    assert story(client.take(bench.journal.committed)) == ["202[]", "201"]


def test_its_dispatch_waits_when_the_job_is_stored_without_it():
    """Else the job would be known after a kill, and its worker would speak of what it was never given."""
    bench = Bench()
    client = bench.client()
    bench.post(client)
    bench.journal.commit = lambda: None
    worker = bench.register("w1")
    assert worker.take(bench.journal.committed) == []
    assert story(worker.take()) == ["POST"]


def test_our_client_gets_the_result_pushed_and_no_announcement():
    bench = Bench()
    worker, client = bench.register("w1"), bench.own_client()
    bench.post(client)
    post = the(worker.take(), POST)
    bench.event(worker, post, "result_ready")
    bench.answer(worker, the(worker.take(), GET), 200, result_body("w1"))
    assert story(client.take()) == ["202[]", "200"]  # whose result it is, it says


def test_our_client_is_told_whose_result_it_is_when_that_is_not_in_it():
    bench = Bench()
    worker, client = bench.register("w1", seed=True), bench.own_client()
    bench.post(client)
    bench.answer(worker, the(worker.take(), POST), 200, b"[1]")
    assert story(client.take()) == ["202[]", "202[w1]", "200"]


def test_our_worker_pushes_and_is_told_when_it_is_safe():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    uuid = bench.post(client)
    post = the(worker.take(), POST)
    bench.accept(worker, post)
    bench.finish(worker, post)
    safe = the(worker.take(), RESPONSE)
    assert (safe.status, safe.status_text, safe.uuid, said(safe)) == (200, "RECORDED", uuid, [uuid])
    assert story(client.take()) == ["202[]", "201", "202[w1]", "200"]


def test_results_are_acknowledged_together():
    bench = Bench()
    worker, client = bench.register("w1", ours=True, limit=4), bench.client()
    uuids = [bench.post(client) for _ in range(3)]
    posts = [packet for packet in worker.take() if packet.command is POST]
    end, bench.end_turn = bench.end_turn, lambda: None  # one turn for all
    for post in posts:
        bench.finish(worker, post)
    end()
    assert said(the(worker.take(), RESPONSE)) == uuids


def test_client_of_the_text_gets_one_answer_for_each_command():
    bench = Bench()
    worker, client = bench.register("w1", seed=True), bench.client(seed=True)
    uuid = bench.post(client)
    post = the(worker.take(), POST)
    assert (post.client, post.service, post.target.kind) == (None, "net", "any")
    assert story(client.take()) == ["202[]"]
    assert story(bench.get(client, uuid)) == ["300"]
    bench.answer(worker, post, 202)
    bench.event(worker, post)
    bench.answer(worker, post, 200, b"\xff\x00")
    assert client.take() == []  # nothing unasked
    got = bench.get(client, uuid)
    assert [(packet.status, packet.status_text, packet.data) for packet in got] == [(200, "OK", b"\xff\x00")]


@for_each(("finals", "code"), [((200, 200), 200), ((200, 500), 500), ((400, 417), 500), ((400, 200), 500)])
def test_several_results_in_one_answer(finals, code):
    bench = Bench()
    workers = [bench.register(name, ours=True) for name in ("w1", "w2")]
    client = bench.client(seed=True)
    uuid = bench.post(client, target="all")
    assert story(client.take()) == ["202[w1,w2]"]
    for worker, final in zip(workers, finals, strict=True):
        post = the(worker.take(), POST)
        bench.accept(worker, post)
        bench.finish(worker, post, code=final)
    got = bench.get(client, uuid)
    assert [packet.status for packet in got] == [code]
    assert said(got[0])["w1"] == {"result": 1, "failed": False}


def test_pushing_client_of_the_text_gets_events_and_one_result():
    bench = Bench()
    worker = bench.register("w1")
    client = bench.client(seed=True, features=frozenset({"push"}))
    bench.post(client)
    post = the(worker.take(), POST)
    bench.accept(worker, post)
    bench.event(worker, post)
    bench.answer(worker, post, 200, b"chunk", Command.STREAM)
    bench.finish(worker, post)
    out = client.take()
    assert story(out) == ["202[]", "EVENT", "200"]
    assert out[2].data == b"chunk"
    assert all(packet.status in SEED_CODES for packet in out)


def test_what_is_streamed_to_a_client_of_the_text_is_its_result_unless_the_task_failed():
    bench = Bench()
    worker = bench.register("w1", ours=True)
    client = bench.client(seed=True)
    for failed, got in ((False, b"one two"), (True, b"{")):
        uuid = bench.post(client, task="fetch_file", body=b'{"task":"fetch_file","kwargs":{"offset":10}}')
        client.take()
        post = the(worker.take(), POST)
        bench.answer(worker, post, 200, b"one ", Command.STREAM)
        assert said(the(worker.take(), Command.PUT)) == {"offset": 14}
        bench.answer(worker, post, 200, b"two", Command.STREAM)
        body = json.dumps({"w1": {"result": True, "failed": failed}}).encode()
        bench.answer(worker, post, 200, body)
        assert bench.get(client, uuid)[0].data.startswith(got)
        state, order = bench.dispatcher._jobs, bench.dispatcher._jobs.by_uuid[uuid]
        assert (state.open_bytes, order.size < 4096) == (0, True)


FETCH = b'{"task":"fetch_file","kwargs":{"url":"nf://f"}}'


@for_each("lost", ["restart", "restart and stream", "given up"])
def test_a_client_of_the_text_never_gets_a_part_of_a_file_as_all_of_it(lost):
    bench = Bench()
    worker, client = bench.register("w1", "filesharing", ours=True), bench.client(seed=True)
    uuid = bench.post(client, service="filesharing", task="fetch_file", body=FETCH)
    post = the(worker.take(), POST)
    bench.accept(worker, post)
    bench.answer(worker, post, 200, b"one ", Command.STREAM)
    held = {uuid: (1, "running")}
    if lost == "given up":
        bench.lose(worker)
        bench.pass_time(bench.config.grace_s + 1)
    else:
        bench.restart()
    back = bench.register("w1", "filesharing", ours=True, jobs=held)
    if lost != "restart":
        bench.answer(back, post, 200, b"two", Command.STREAM)
        assert [packet.command for packet in back.take()] == [Command.DELETE]
    bench.answer(back, post, 200, b'{"w1": {"result": true, "failed": false}}')
    answer = bench.get(client, uuid, service="filesharing")[-1]
    assert (answer.status, "submit it again" in said(answer)["error"]) == (500, True)
    assert bench.job(uuid).state == "failed"
    (view,) = bench.dispatcher.workers(bench.now)
    assert lost != "restart" or view.busy == 0


def test_what_was_gathered_of_one_worker_costs_nothing_once_another_brought_the_result():
    bench = Bench()
    late, client = bench.register("w1", ours=True), bench.client(seed=True)
    uuid = bench.post(client, task="report")
    post = the(late.take(), POST)
    bench.lose(late)
    bench.pass_time(bench.config.grace_s + 1)
    second = bench.register("w2", ours=True)
    bench.answer(second, the(second.take(), POST), 200, b"x" * 1000, Command.STREAM)
    late = bench.register("w1", ours=True, jobs={uuid: (1, "done")})
    bench.finish(late, post)
    state = bench.dispatcher._jobs
    assert bench.job(uuid).state == "done"
    bench.answer(second, the(second.take(), Command.DELETE), 417)
    assert (state.open_bytes, state.kept_bytes) == (0, state.by_uuid[uuid].size)
    assert state.kept_bytes < 4096


def test_an_empty_file_is_empty_for_a_client_of_the_text():
    bench = Bench()
    worker, client = bench.register("w1", "filesharing", ours=True), bench.client(seed=True)
    uuid = bench.post(client, service="filesharing", task="fetch_file", body=FETCH)
    client.take()
    bench.answer(worker, the(worker.take(), POST), 200, b'{"w1": {"result": true, "failed": false}}')
    (answer,) = bench.get(client, uuid, service="filesharing")
    assert (answer.status, answer.data) == (200, b"")


def test_no_more_is_gathered_for_a_client_of_the_text_than_fits(monkeypatch):
    monkeypatch.setattr(worker_messages, "GATHERED_MAX_BYTES", 8)
    bench = Bench()
    worker = bench.register("w1", ours=True)
    client = bench.client(seed=True)
    uuid = bench.post(client, task="report")
    client.take()
    post = the(worker.take(), POST)
    for _ in range(3):
        bench.answer(worker, post, 200, b"1234", Command.STREAM)
    assert [packet.command for packet in worker.take()] == [Command.DELETE]
    (answer,) = bench.get(client, uuid)
    assert (answer.status, "offset and length" in said(answer)["error"]) == (417, True)
    assert bench.dispatcher._jobs.open_bytes == 0


def test_a_result_of_the_texts_worker_is_wrapped_for_a_deployed_client():
    bench = Bench()
    worker, client = bench.register("w1", seed=True), bench.client()
    bench.post(client)
    bench.answer(worker, the(worker.take(), POST), 200, b"plain")
    got = client.take()[-1]
    assert encode(got)[-2] == b"200"  # of "200 OK", as the worker wrote it, a deployed client makes nothing
    body = said(got)
    assert body["w1"]["result"] == "plain"
    assert body["w1"]["failed"] is False


@for_each(
    ("name", "addresses"),
    [("c1", [b"c1", b"c1#2"]), ("c#1", [b"c#1#1", b"c#1#2"]), ("ü", [b"c3bc", b"c3bc#2"])],
)
def test_a_deployed_worker_is_given_the_clients_name_and_the_attempt_from_the_second_on(name, addresses):
    """Its ``job_list`` shows the address to people, and searches by it."""
    bench = Bench()
    client = bench.client(name)
    bench.post(client)
    for number, address in enumerate(addresses):
        worker = bench.register(f"w{number}")
        assert the(worker.take(), POST).client == address
        bench.lose(worker)
        bench.pass_time(30)
    worker = bench.register("ours", ours=True)
    third = the(worker.take(), POST)
    assert third.client == addresses[-1][:-1] + b"3"
    bench.finish(worker, third)
    bench.post(client)
    assert the(worker.take(), POST).client.endswith(b"#1")


def test_all_of_a_service():
    bench = Bench()
    workers = {name: bench.register(name) for name in ("w1", "w2", "w3")}
    bench.register("x1", "other")
    client = bench.client()
    bench.post(client, target="all")
    assert story(client.take()) == ["202[w1,w2,w3]"]
    for worker in workers.values():
        bench.finish(worker, the(worker.take(), POST))
    assert story(client.take()) == ["200"] * 3


@for_each("ours", [False, True])
def test_201_stands_in_front_of_every_event_and_comes_once(ours):
    """Our worker says it when the job has run a while, an event may be earlier."""
    bench = Bench()
    worker = bench.register("w1", ours=True)
    client = bench.own_client() if ours else bench.client()
    bench.post(client, target="all")
    post = the(worker.take(), POST)
    bench.event(worker, post, "progress")
    bench.accept(worker, post)
    bench.event(worker, post, "progress")
    out = client.take()
    assert story(out) == ["202[w1]", "201", "EVENT", "EVENT"]
    assert said(out[1]) == {"worker": "w1", "uuid": post.uuid, "status": "ACCEPTED", "service": "net"}


def test_whoever_gets_the_job_next_accepts_it_anew():
    bench = Bench()
    first, client = bench.register("w1", ours=True), bench.own_client()
    bench.post(client)
    bench.accept(first, the(first.take(), POST))
    bench.lose(first)
    bench.pass_time(2.1)
    second = bench.register("w2", ours=True)
    bench.event(second, the(second.take(), POST))
    out = client.take()
    assert story(out) == ["202[]", "201", "201", "EVENT"]
    assert [said(packet)["worker"] for packet in out[1:3]] == ["w1", "w2"]


def test_a_stream_names_its_owner_first_and_keeps_its_order():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    bench.post(client)
    post = the(worker.take(), POST)
    for chunk in (b"one", b"\xfftwo"):
        bench.answer(worker, post, 200, chunk, Command.STREAM)
    out = client.take()
    assert story(out) == ["202[]", "201", "202[w1]", "STREAM", "STREAM"]
    assert [packet.data for packet in out[3:]] == [b"one", b"\xfftwo"]


def test_a_question_names_its_owner_and_put_goes_there():
    bench = Bench()
    workers = {name: bench.register(name) for name in ("w1", "w2")}
    client = bench.client()
    uuid = bench.post(client)
    post = the(workers["w1"].take(), POST)
    bench.event(workers["w1"], post, "input_request", extras={"input_request": {"id": "q", "question": "?"}})
    assert story(client.take()) == ["202[]", "201", "202[w1]", "EVENT"]
    polled = bench.get(client, uuid, target='["w1"]')
    assert (polled[0].status, said(polled[0])["input_request"]["id"]) == (102, "q")
    bench.request(client, Command.PUT, uuid, target="any", body=b'{"input_id":"q"}')
    assert the(workers["w1"].take(), Command.PUT).data == b'{"input_id":"q"}'
    bench.event(workers["w1"], post, "input_response")
    assert [packet.status for packet in bench.get(client, uuid, target='["w1"]')[1:]] == [300]


def test_the_error_of_one_worker_ends_nothing_for_the_others():
    bench = Bench()
    first, second = bench.register("w1"), bench.register("w2")
    client, ours = bench.client("old"), bench.own_client("new")
    for each in (client, ours):
        bench.post(each, target="all")
        bench.finish(first, the(first.take(), POST), code=500)
    out = client.take()
    assert story(out) == ["202[w1,w2]", "200"]
    assert said(out[1])["w1"]["failed"] is True
    assert story(ours.take()) == ["202[w1,w2]", "500"]
    bench.finish(second, second.take()[-1])
    assert story(client.take()) == ["200"]


@for_each("seed", [False, True])
@for_each("target", ["x1", '["w1","x1"]'])
def test_a_job_for_a_worker_of_another_service_is_refused(seed, target):
    bench = Bench()
    workers = [bench.register("w1"), bench.register("x1", "other")]
    client = bench.client(seed=seed)
    bench.post(client, target=target)
    (answer,) = client.take()
    assert answer.status == 400
    assert "worker x1 does not offer net" in said(answer)["error"]
    assert [worker.take() for worker in workers] == [[], []]


def test_a_job_that_waited_for_a_worker_is_refused_when_that_one_offers_something_else():
    bench = Bench()
    client = bench.client()
    bench.post(client, target="x1")
    other = bench.register("x1", "other")
    assert [packet for packet in other.take() if packet.command is POST] == []
    last = client.take()[-1]
    assert last.status == 400
    assert "worker x1 does not offer net" in said(last)["error"]


def test_all_means_who_is_there_and_names_who_is_lost_at_the_moment():
    bench = Bench()
    first, second, client = bench.register("w1"), bench.register("w2"), bench.own_client()
    bench.lose(second)
    uuid = bench.post(client, target="all")
    answer = client.take()[0]
    assert (said(answer)["workers"], said(answer)["missing"]) == (["w1"], ["w2"])
    bench.finish(first, the(first.take(), POST))
    assert bench.job(uuid).state == "done"


def test_all_waits_for_who_was_there_when_everybody_is_lost():
    bench = Bench()
    worker, client = bench.register("w1"), bench.own_client()
    bench.lose(worker)
    bench.post(client, target="all")
    assert said(client.take()[0])["workers"] == ["w1"]
    worker = bench.register("w1")
    bench.finish(worker, the(worker.take(), POST))
    assert client.take()[-1].status == 200


def test_service_all_is_every_worker_or_one_of_each_service():
    bench = Bench()
    for name, service in (("w1", "net"), ("w2", "net"), ("x1", "other")):
        bench.register(name, service)
    client = bench.client()
    bench.post(client, service="all", target="all")
    assert story(client.take()) == ["202[w1,w2,x1]"]
    uuid = bench.post(client, service="all", target="any")
    assert len(bench.job(uuid).parts) == 2
