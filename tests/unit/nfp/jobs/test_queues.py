"""Waiting: for nobody, for a busy worker, for a name; turns between clients; full queues; time limits."""

from functools import partial

from broker.nfp.jobs import DispatchConfig
from broker.nfp.names import Command
from broker.nfp.records import Dispatched
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import Bench, FakePeer, said, story, the

POST = Command.POST


def given(bench: Bench) -> list[str]:
    return [op.uuid for op in bench.journal.of(Dispatched)]


# -- nobody there ---------------------------------------------------------------------------------


@for_each("target", ["any", "all", "w1", '["w1","w2"]'])
def test_a_request_for_nobody_waits_and_is_dispatched(target):
    bench = Bench()
    client = bench.client()
    uuid = bench.post(client, target=target)
    assert story(client.take()) == ["300"]
    assert bench.job(uuid).state == "open"
    worker = bench.register("w1")
    the(worker.take(), POST)
    wanted = {"any": "202[]", '["w1","w2"]': "202[w1,w2]"}.get(target, "202[w1]")
    assert story(client.take()) == [wanted]


@for_each("target", ["any", "all", "w1", "w1,w2"])
@for_each("kind", ["deployed", "own", "text"])
def test_a_request_for_nobody_is_pending_for_whoever_asks(kind, target):
    """Clients ask now and then, deployed ones after 10 s, and take an error for the end."""
    bench = Bench()
    client = {"deployed": bench.client, "own": bench.own_client, "text": partial(bench.client, seed=True)}[
        kind
    ]()
    uuid = bench.post(client, target=target)
    client.take()
    answers = bench.get(client, uuid, target=target)
    assert {answer.status for answer in answers} == {300}
    the(bench.register("w1").take(), POST)


@for_each("target", ["any", "all", "w1"])
@for_each("seed", [False, True])
def test_a_request_for_nobody_expires(target, seed):
    bench = Bench(DispatchConfig(queue_ttl_s=60))
    client = bench.client(seed=seed)
    uuid = bench.post(client, target=target, timeout=500)
    client.take()
    bench.pass_time(59.9)
    assert bench.job(uuid).state == "open"
    bench.pass_time(0.2)
    assert bench.job(uuid).state == "expired"
    assert story(client.take()) == ([] if seed else ["408"])
    got = bench.get(client, uuid)
    assert story(got) == ["408"]
    assert "60 s" in said(got[0])["error"]
    assert bench.listener.kinds(uuid) == ["submitted", "queued", "finished", "expired"]


@for_each("target", ["any", "all", "w1"])
@for_each(("timeout", "told_at"), [(60, 58), (5, 4.5)])
def test_a_client_hears_that_nobody_is_there_before_it_stops_listening(target, timeout, told_at):
    bench = Bench(DispatchConfig(queue_ttl_s=60))
    client = bench.client()
    uuid = bench.post(client, target=target, timeout=timeout)
    bench.pass_time(told_at - 0.1)
    assert bench.job(uuid).state == "open"
    client.take()
    bench.pass_time(0.2)
    error = said(the(client.take(), Command.RESPONSE))["error"]
    assert ("worker w1 was not there for" if target == "w1" else "service net had no workers for") in error


def test_what_waits_for_a_busy_worker_has_until_its_deadline():
    bench = Bench(DispatchConfig(credits=1, queue_ttl_s=60))
    worker, client = bench.register("w1", ours=True), bench.client()
    bench.post(client, timeout=900)
    uuid = bench.post(client, target="w1", timeout=20)
    post = the(worker.take(), POST)
    client.take()
    for _ in range(199):
        bench.pass_time(0.1)
        bench.event(worker, post)
    assert bench.job(uuid).state == "open"
    bench.pass_time(0.2)
    assert bench.job(uuid).state == "expired"
    assert "no result within 20 s" in said(client.take()[-1])["error"]


def test_the_queue_ttl_counts_from_when_the_last_worker_left():
    bench = Bench(DispatchConfig(credits=1, queue_ttl_s=60, grace_s=2))
    busy, client = bench.register("w1", ours=True), bench.client()
    running, waiting = bench.post(client, timeout=900), bench.post(client, timeout=900)
    post = the(busy.take(), POST)
    for _ in range(30):  # 300 s: longer than the ttl, but somebody is there
        bench.pass_time(10)
        bench.event(busy, post)
    assert bench.job(waiting).state == "open"
    bench.lose(busy)
    bench.pass_time(59)
    assert bench.job(waiting).state == "open"
    bench.pass_time(1.1)
    assert bench.job(waiting).state == "expired"
    assert bench.job(running).state == "open"  # it waits since the grace ended
    bench.pass_time(2)
    assert bench.job(running).state == "expired"


def test_a_name_that_was_there_is_held_and_told():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    bench.lose(worker)
    bench.pass_time(3)
    bench.post(client, target="w1")
    assert story(client.take()) == ["202[w1]"]
    back = bench.register("w1", ours=True)
    the(back.take(), POST)


COME_S = 2 * DispatchConfig().keepalive_s
"""Every worker of a service has come after so long."""


def settled(bench: Bench, name: str = "w1") -> FakePeer:
    """A worker whose service is old enough that an unknown name is a misspelt one."""
    worker = bench.register(name, ours=True)
    bench.pass_time(COME_S)
    worker.take()
    return worker


@for_each("kind", ["deployed", "own", "text"])
def test_a_name_in_a_list_that_nobody_ever_had_fails_at_once(kind):
    bench = Bench()
    worker = settled(bench)
    client = {"deployed": bench.client, "own": bench.own_client, "text": partial(bench.client, seed=True)}[
        kind
    ]()
    uuid = bench.post(client, target="w1,ghost")
    first, *more = client.take()
    assert (said(first)["workers"], said(first)["missing"]) == (["w1", "ghost"], ["ghost"])
    error = "no worker is called ghost, and no resource"
    if kind == "deployed":
        assert story(more) == ["200"]
        assert (said(more[0])["ghost"]["failed"], said(more[0])["ghost"]["errors"]) == (True, [error])
    elif kind == "own":
        assert (story(more), said(more[0])["worker"], said(more[0])["error"]) == (["400"], "ghost", error)
    bench.finish(worker, the(worker.take(), POST))
    assert story(client.take()) == ([] if kind == "text" else ["200"])
    assert bench.job(uuid).state == "failed"
    if kind == "text":
        (answer,) = bench.get(client, uuid, target="w1,ghost")
        assert (answer.status, said(answer)["ghost"]["error"]) == (500, error)


@for_each("target", ["ghost", '["ghost"]', "ghost,spook"])
@for_each("kind", ["deployed", "own", "text"])
def test_names_that_nobody_ever_had_fail_at_once_where_the_service_has_workers(kind, target):
    bench = Bench()
    settled(bench)
    client = {"deployed": bench.client, "own": bench.own_client, "text": partial(bench.client, seed=True)}[
        kind
    ]()
    uuid = bench.post(client, target=target)
    first, *more = client.take()
    names = ["ghost", "spook"] if "," in target else ["ghost"]
    assert (first.status, said(first)["workers"], said(first)["missing"]) == (202, names, names)
    assert bench.job(uuid).state == "failed"
    if kind != "text":
        assert "no worker is called ghost, and no resource" in str(said(more[0]))
    assert len(more) == (0 if kind == "text" else len(names))
    (answer, *_) = bench.get(client, uuid)
    assert "no worker is called ghost, and no resource" in str(said(answer))


def test_a_name_that_nobody_had_yet_is_waited_for_while_the_services_workers_come():
    """After a failover everybody comes at its own pace, and a client may be faster than a worker that has its job."""
    bench = Bench()
    client = bench.own_client()
    bench.register("w1", ours=True)
    late, never = bench.post(client, target="w1,w2"), bench.post(client, target="w3")
    assert [said(packet)["missing"] for packet in client.take()] == [["w2"], ["w3"]]
    bench.pass_time(COME_S - 0.1)
    held = bench.register("w2", ours=True, jobs={late: (1, "running")})
    assert the(held.take(), POST).uuid == late
    bench.pass_time(0.2)
    (told,) = client.take()
    assert (told.uuid, told.status) == (never, 400)
    assert bench.job(late).state == "open"


def test_a_list_of_names_that_nobody_ever_had_waits_and_is_not_told_as_a_result_before_a_202():
    bench = Bench(DispatchConfig(queue_ttl_s=10))
    client = bench.client()
    bench.post(client, target="a,b")
    (told,) = client.take()
    assert (told.status, said(told)["missing"]) == (300, ["a", "b"])
    bench.pass_time(10.1)
    assert story(client.take()) == ["408", "408"]


@for_each("target", ["r1", "r1,w3", "w3,r1"])
def test_a_resource_means_the_workers_that_announced_it(target):
    bench = Bench()
    workers = {
        name: bench.register(name, service, ours=True, resources=resources)
        for name, service, resources in (
            ("w1", "net", ("r1", "r2")),
            ("w2", "net", ("r1",)),
            ("w3", "net", ()),
            ("x1", "other", ("r1",)),
        )
    }
    client = bench.own_client()
    uuid = bench.post(client, target=target)
    named = ["w1", "w2"] if target == "r1" else ["w1", "w2", "w3"] if target[0] == "r" else ["w3", "w1", "w2"]
    assert story(client.take()) == [f"202[{','.join(named)}]"]
    for name in named:
        bench.finish(workers[name], the(workers[name].take(), POST))
    assert workers["x1"].take() == []
    assert story(client.take()) == ["200"] * len(named)
    assert story(bench.get(client, uuid, target=target)) == ["200"] * len(named)


def test_a_resource_is_its_workers_while_they_are_known_and_a_worker_of_that_name_comes_first():
    bench = Bench()
    first, client = bench.register("w1", ours=True, resources=("r1", "r2")), bench.own_client()
    bench.register("r2", ours=True)
    bench.post(client, target="r2")
    assert story(client.take()) == ["202[r2]"]
    bench.lose(first)
    bench.register("w1", ours=True, resources=("r3",))
    bench.pass_time(COME_S)
    bench.post(client, target="r1,r3")
    assert story(client.take()) == ["202[r1,w1]", "400"]
    registry = bench.dispatcher._jobs.registry
    assert list(registry.resources) == ["r3"]


@for_each("came_before", [False, True])
def test_a_resource_that_is_announced_too_late_is_told_as_such(came_before):
    """Of a restarted broker's workers it is not known what they manage, until they are back."""
    bench = Bench(DispatchConfig(queue_ttl_s=10))
    client = bench.own_client()
    if came_before:
        bench.register("w1", ours=True, resources=("r1",))
        bench.restart()
    bench.post(client, target="r1", timeout=100)
    bench.register("w1", ours=True, resources=("r1",))
    client.take()
    bench.pass_time(COME_S + 0.1 if came_before else 10.1)
    (told,) = client.take()
    error = "r1 is a resource that nobody had announced when the job came: submit it again"
    assert (told.status, said(told)["error"]) == (400, error)


def test_the_deadline_ends_what_runs_and_what_waits():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    bench.post(client, timeout=30)
    post = the(worker.take(), POST)
    bench.accept(worker, post)
    bench.post(client, timeout=20)
    client.take()
    for _ in range(4):
        bench.pass_time(8)
        bench.event(worker, post)
    out = client.take()
    assert [packet.status for packet in out if packet.command is Command.RESPONSE] == [408, 408]
    assert the(worker.take(), Command.DELETE).uuid == post.uuid
    assert bench.counts.expired == 2


@for_each("seed", [False, True])
def test_a_longer_deadline_than_the_brokers_is_refused(seed):
    bench = Bench(DispatchConfig(job_ttl_s=100, job_timeout_s=50))
    client = bench.client(seed=seed)
    long, longest, usual = (bench.post(client, timeout=each) for each in (101, 100, None))
    assert bench.job(long) is None
    assert bench.job(longest).remaining_s == 100
    assert bench.job(usual).remaining_s == 50
    refused = client.take()[0]
    assert refused.status == 400
    assert "timeout 101 s: a job of this broker has 100 s at most" in said(refused)["error"]


def test_a_usual_deadline_above_the_longest_is_the_longest():
    bench = Bench(DispatchConfig(job_ttl_s=100))
    assert bench.job(bench.post(bench.client())).remaining_s == 100


# -- turns ----------------------------------------------------------------------------------------


def test_one_job_at_a_time():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    first, second = bench.post(client), bench.post(client)
    post = the(worker.take(), POST)
    assert post.uuid == first
    bench.event(worker, post, "result_ready")  # here the credit returns
    assert [(packet.command, packet.uuid) for packet in worker.take()] == [
        (Command.GET, first),
        (POST, second),
    ]


@for_each(("seed", "expected"), [(False, 5), (True, 1)])
def test_a_deployed_worker_is_given_what_it_runs_at_once_and_one_of_the_text_one_job(seed, expected):
    bench = Bench(DispatchConfig())
    worker, client = bench.register("w1", seed=seed), bench.client()
    for _ in range(6):
        bench.post(client)
    assert len(worker.take()) == expected


@for_each(("offered", "most", "expected"), [(0, 64, 5), (3, 64, 3), (99, 4, 4)])
def test_credits(offered, most, expected):
    bench = Bench(DispatchConfig(credits_max=most))
    worker, client = bench.register("w1", ours=True, limit=offered), bench.client()
    for _ in range(6):
        bench.post(client)
    assert len(worker.take()) == expected
    assert bench.dispatcher.workers(bench.now)[0].busy == expected


def test_clients_take_turns():
    bench = Bench()
    worker = bench.register("w1", ours=True)
    greedy, modest = bench.client("greedy"), bench.client("modest")
    many = [bench.post(greedy) for _ in range(4)]
    few = [bench.post(modest) for _ in range(2)]
    done = []
    while packets := [packet for packet in worker.take() if packet.command is POST]:
        done += [packet.uuid for packet in packets]
        bench.finish(worker, packets[0])
    assert done == [many[0], many[1], few[0], many[2], few[1], many[3]]


def test_a_worker_serves_its_mailbox_and_its_service_in_turn():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    bench.post(client)
    anyone = [bench.post(client) for _ in range(2)]
    named = [bench.post(client, target="w1") for _ in range(2)]
    done = []
    while packets := [packet for packet in worker.take() if packet.command is POST]:
        done += [packet.uuid for packet in packets]
        bench.finish(worker, packets[0])
    assert done[1:] == [named[0], anyone[0], named[1], anyone[1]]


def test_workers_take_turns():
    bench = Bench()
    workers = [bench.register(name, ours=True, limit=4) for name in ("w1", "w2", "w3")]
    client = bench.client()
    for _ in range(6):
        bench.post(client)
    assert [len(worker.take()) for worker in workers] == [2, 2, 2]


# -- limits ---------------------------------------------------------------------------------------


@for_each(
    ("config", "target", "text"),
    [
        (DispatchConfig(queue_max=2), "any", "queue of service net is full (2)"),
        (DispatchConfig(queue_max=2), "w9", "queue of worker w9 is full (2)"),
        (DispatchConfig(queue_max=2), "all", "queue of service net is full (2)"),
        (DispatchConfig(queue_per_client=2), "any", "2 requests of this client wait already"),
        (DispatchConfig(jobs_max=2), "any", "the broker is full (2 jobs)"),
        (DispatchConfig(open_max_bytes=4), "any", "the broker is full (4 bytes of open jobs)"),
        (DispatchConfig(parts_max=4), '["a","b"]', "the broker is full (4 workers that jobs are for)"),
        (
            DispatchConfig(parts_per_client=4),
            '["a","b"]',
            "requests of this client wait for 4 workers already (4)",
        ),
    ],
)
@for_each("seed", [False, True])
def test_full(config, target, text, seed):
    bench = Bench(config)
    client = bench.client(seed=seed)
    answers = [
        bench.request(client, POST, bench.uuid(), target=target, body=b'{"task":"t"}')[0] for _ in range(3)
    ]
    assert answers[-1].status == 500
    assert said(answers[-1])["error"] == text
    assert answers[0].status == 300


def test_a_full_queue_of_an_absent_worker_is_nobody_elses():
    bench = Bench(DispatchConfig(queue_max=1))
    worker, client = bench.register("w1"), bench.client()
    bench.post(client, target="w9")
    bench.post(client, target="w1")
    the(worker.take(), POST)


def test_one_request_for_many_workers_is_taken_while_nothing_waits():
    bench = Bench(DispatchConfig(parts_per_client=2))
    bench.register("w1")
    client, other = bench.client("c1"), bench.client("c2")
    bench.post(client, target='["a","b","c"]')
    bench.post(client)  # somebody is there for it, but who has so much waiting is through
    bench.post(other, target='["a","b","c"]')
    assert story(client.take() + other.take()) == ["202[a,b,c]", "500", "202[a,b,c]"]
    bench.delete(client, "job1")
    bench.post(client)
    assert story(client.take()) == ["202[]"]


def test_one_clients_limit_is_not_the_others():
    bench = Bench(DispatchConfig(queue_per_client=1))
    first, second = bench.client("c1"), bench.client("c2")
    bench.post(first)
    bench.post(second)
    assert story(first.take() + second.take()) == ["300", "300"]


def test_a_post_that_cannot_be_sent_goes_back_in_front():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    worker.room = 0
    first, second = bench.post(client), bench.post(client)
    assert bench.counts.unsent == 1  # it is not tried again and again
    worker.room = None
    bench.pass_time(2.6)  # the next look at the worker
    posts = [packet for packet in worker.take() if packet.command is POST]
    assert [packet.uuid for packet in posts] == [first]
    assert posts[0].client == b"c1"  # it is still the first attempt
    assert bench.job(second).state == "open"


def test_a_post_that_cannot_be_sent_goes_to_another_worker():
    bench = Bench()
    full, other = bench.register("w1"), bench.register("w2")
    full.room = 0
    uuid = bench.post(bench.client())
    assert the(other.take(), POST).uuid == uuid


def test_more_timers_than_needed_are_swept():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    for _ in range(600):
        bench.post(client)
        bench.finish(worker, the([p for p in worker.take() if p.command is POST], POST))
        client.take()
    assert len(bench.dispatcher._jobs.timers._heap) < 300
