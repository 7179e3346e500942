"""Duplicates, GET, DELETE, PUT, rights, and what is told to whom."""

import json

from broker.nfp.access import Access
from broker.nfp.frames import Packet
from broker.nfp.jobs import DispatchConfig
from broker.nfp.jobs.client_requests import RELAYS_PER_CLIENT
from broker.nfp.jobs.model import JOB_BYTES, PART_BYTES
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.principal import Standing
from broker.nfp.records import Dispatched, Forgotten, JobAdded
from broker.nfp.targets import ALL
from broker.settings.nfp import RuleEntry
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import Bench, FakePeer, said, story, the

POST, DELETE, RESPONSE = Command.POST, Command.DELETE, Command.RESPONSE


def finished_job(bench: Bench, client: FakePeer) -> str:
    worker = bench.register("w1", ours=True)
    uuid = bench.post(client)
    bench.finish(worker, the(worker.take(), POST))
    client.take()
    return uuid


# -- the same again -------------------------------------------------------------------------------


@for_each(
    ("make", "open_story", "closed_story"),
    [
        (Bench.client, ["202[]"], ["202[w1]", "202[w1]", "200"]),
        (Bench.own_client, ["202[]"], ["202[w1]", "202[w1]", "200"]),
        (lambda bench, name="c1", **more: bench.client(name, seed=True, **more), ["202[]"], ["202[w1]"]),
    ],
)
def test_a_duplicate_is_answered_from_the_state_and_not_run_twice(make, open_story, closed_story):
    bench = Bench()
    worker, client = bench.register("w1", ours=True), make(bench)
    uuid = bench.post(client)
    client.take()
    bench.post(client, uuid)
    assert story(client.take()) == open_story
    bench.finish(worker, the(worker.take(), POST))
    client.take()
    bench.post(client, uuid)
    assert story(client.take()) == closed_story
    assert bench.counts.duplicates == 2
    assert len(bench.journal.of(JobAdded)) == len(bench.journal.of(Dispatched)) == 1


def test_a_duplicate_of_what_waits_is_300_again():
    bench = Bench()
    client = bench.client(seed=True)
    uuid = bench.post(client)
    bench.post(client, uuid)
    assert story(client.take()) == ["300", "300"]


def test_close_and_resend_under_a_new_identity():
    bench = Bench()
    first = bench.client("one", seed=True, holder="key:K")
    uuid = bench.post(first)
    bench.lose(first)
    second = bench.client("two", seed=True, holder="key:K")
    bench.post(second, uuid)
    assert story(second.take()) == ["300"]
    assert [client.name for client in bench.dispatcher.clients(bench.now)] == ["two"]


@for_each(
    "change",
    [{"holder": "key:B"}, {"service": "other"}, {"target": "w1"}, {"body": b'{"task":"else"}'}],
)
def test_a_uuid_in_use_is_refused_without_telling_anything(change):
    bench = Bench()
    uuid = bench.post(bench.client("c1", holder="key:A"))
    other = bench.client("c2", holder=change.pop("holder", "key:A"))
    bench.post(other, uuid, **change)
    packet = other.take()[0]
    assert (packet.status, said(packet)["error"]) == (400, "this uuid is in use")


# -- GET ------------------------------------------------------------------------------------------


@for_each("seed", [False, True])
@for_each("command", [Command.GET, Command.DELETE])
def test_strangers_hear_what_is_told_about_no_job(seed, command):
    bench = Bench()
    uuid = finished_job(bench, bench.client("c1", holder="key:A"))
    stranger = bench.client("c2", holder="key:B", seed=seed)
    known, unknown = (bench.request(stranger, command, each) for each in (uuid, "nothing"))
    assert [packet.status for packet in known + unknown] == [400, 400]
    assert said(known[0])["error"] == said(unknown[0])["error"]


def test_owners_and_other_connections_of_the_holder_may_ask():
    bench = Bench()
    uuid = finished_job(bench, bench.client("c1", holder="key:A"))
    for peer in (bench.client("x", holder="key:A"), bench.client("boss", standing=Standing.OWNER)):
        assert story(bench.get(peer, uuid)) == ["200"]


def test_get_tells_pending_and_started():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    uuid = bench.post(client, target="w1")
    client.take()
    states = [said(bench.get(client, uuid, target='["w1"]')[0])]
    bench.accept(worker, the(worker.take(), POST))
    client.take()
    states.append(said(bench.get(client, uuid, target='["w1"]')[0]))
    assert [(state["worker"], state["status"]) for state in states] == [("w1", "PENDING"), ("w1", "STARTED")]


@for_each(("seed", "code"), [(False, 300), (True, 400)])
def test_get_of_a_worker_that_is_not_in_the_job(seed, code):
    bench = Bench()
    bench.register("w1")
    client = bench.client(seed=seed)
    uuid = bench.post(client)
    client.take()
    assert [packet.status for packet in bench.get(client, uuid, target="w7")] == [code]


# -- DELETE ---------------------------------------------------------------------------------------


@for_each("target", ["any", "w1", "all"])
@for_each("seed", [False, True])
def test_delete_ends_what_waits(target, seed):
    bench = Bench()
    client = bench.client(seed=seed)
    uuid = bench.post(client, target=target)
    client.take()
    out = bench.delete(client, uuid, target="all")
    assert [packet.status for packet in out] == ([202] if seed else [417, 202])
    assert bench.job(uuid).state == "cancelled"
    got = bench.get(client, uuid)
    assert (got[0].status, said(got[0])["status"]) == (417, "CANCELLED")
    assert bench.listener.kinds(uuid)[-1] == "cancelled"
    assert bench.register("w1").take() == []


@for_each(
    ("kind", "told"),
    [({}, False), ({"seed": True}, True), ({"ours": True}, True)],
)
def test_delete_of_what_runs_tells_workers_that_understand(kind, told):
    bench = Bench()
    worker, client = bench.register("w1", **kind), bench.client()
    uuid = bench.post(client)
    post = the(worker.take(), POST)
    bench.delete(client, uuid, target="all")
    assert [packet.command for packet in worker.take()] == ([DELETE] if told else [])
    waiting = bench.post(client)
    assert worker.take() == []  # it still works, as far as we know
    bench.finish(worker, post)
    assert the([p for p in worker.take() if p.command is POST], POST).uuid == waiting
    assert bench.job(uuid).state == "cancelled"
    assert bench.counts.late == 1


def test_delete_of_one_worker_leaves_the_others():
    bench = Bench()
    first, second = bench.register("w1", ours=True), bench.register("w2", ours=True)
    client = bench.own_client()
    uuid = bench.post(client, target="all")
    bench.delete(client, uuid, target="w1")
    assert DELETE in [packet.command for packet in first.take()]
    bench.finish(second, the(second.take(), POST))
    assert bench.job(uuid).state == "cancelled"
    assert [result.status for result in bench.results(uuid)] == [417, 200]


# -- PUT ------------------------------------------------------------------------------------------


def test_put_reaches_who_runs_it_and_nobody_else():
    bench = Bench()
    workers = [bench.register(name) for name in ("w1", "w2")]
    client = bench.client()
    uuid = bench.post(client, target="all")
    for worker in workers:
        worker.take()
    assert bench.request(client, Command.PUT, uuid, target='["w2"]', body=b'{"offset":1}')[1:] == []
    assert workers[0].take() == []
    put = the(workers[1].take(), Command.PUT)
    assert (put.client, put.data) == (b"c1", b'{"offset":1}')


@for_each("holder", ["key:B", "key:A"])
def test_put_that_goes_nowhere_is_counted(holder):
    bench = Bench()
    uuid = bench.post(bench.client("c1", holder="key:A"))
    assert bench.request(bench.client("c2", holder=holder), Command.PUT, uuid) == []
    assert bench.counts.unroutable == 1


# -- rights ---------------------------------------------------------------------------------------

RULES = [RuleEntry(services=("secret",), allow=False)]


@for_each(
    ("service", "target", "code"),
    [
        ("secret", "any", 400),
        ("net", "any", 202),
        ("net", "x1", 400),  # a name does not open another service's door
        ("net", '["w1","x1"]', 400),
        ("all", "x1", 400),
        ("all", "all", 202),
    ],
)
@for_each("seed", [False, True])
def test_rules(service, target, code, seed):
    bench = Bench(access=Access(rules=RULES))
    allowed, secret = bench.register("w1"), bench.register("x1", "secret")
    client = bench.client(seed=seed)
    bench.post(client, service=service, target=target)
    answer = client.take()[0]
    assert answer.status == code
    assert secret.take() == []
    if code == 202:
        the(allowed.take(), POST)
    else:
        assert said(answer)["error"].startswith("not allowed")


def test_a_held_name_that_comes_for_a_closed_service_is_refused():
    bench = Bench(access=Access(rules=RULES))
    client = bench.client()
    bench.post(client, target="x1")
    worker = bench.register("x1", "secret")
    assert worker.take() == []
    assert story(client.take()) == ["300", "400"]


@for_each("body", [b"[1]", b"plain", b'{"task":"t","args":["\xff"]}', b""])
def test_a_body_that_breaks_deployed_workers_does_not_reach_them(body):
    bench = Bench()
    worker, plain = bench.register("w1"), bench.register("s1", "plain", seed=True)
    client = bench.client(seed=True)
    uuid = bench.post(client, body=body)
    assert worker.take() == []
    assert [packet.status for packet in bench.get(client, uuid)][-1] == 417
    bench.post(client, body=body, service="plain")
    assert the(plain.take(), POST).data == body  # opaque to the text


# -- store and retention --------------------------------------------------------------------------


@for_each("seed", [False, True])
def test_a_broken_store_refuses_new_jobs_and_answers_old_ones(seed):
    bench = Bench()
    client = bench.client(seed=seed)
    uuid = finished_job(bench, client)
    bench.journal.broken = "disk full"
    bench.post(client)
    assert [(p.status, "disk full" in said(p)["error"]) for p in client.take()] == [(500, True)]
    assert story(bench.get(client, uuid)) == ["200"]


def test_a_job_that_could_not_be_stored_is_taken_back():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client(seed=True)
    worker.take()
    bench.journal.commit = lambda: None
    running, waiting, gathering = (
        bench.post(client, service=service, target=target)
        for service, target in (("net", "any"), ("net", "any"), ("nobody", "all"))
    )
    the(worker.take(), Command.POST)  # that it may run twice, so its POST did not wait
    client.waiting.clear()  # as the server drops what waits for the commit
    uuids = [running, waiting, gathering]
    bench.dispatcher.unstored(uuids, "disk full", bench.now)
    assert story(client.take()) == ["500"] * 3
    assert [bench.job(uuid) for uuid in uuids] == [None] * 3
    assert bench.dispatcher.workers(bench.now)[0].busy == 0
    assert story(worker.take()) == ["DELETE"]
    assert [view.name for view in bench.dispatcher.services()] == ["net"]


def test_results_are_forgotten_after_their_time():
    bench = Bench(DispatchConfig(result_ttl_s=100))
    client = bench.client()
    uuid = finished_job(bench, client)
    bench.pass_time(99)
    assert story(bench.get(client, uuid)) == ["200"]
    bench.pass_time(1.1)
    assert story(bench.get(client, uuid)) == ["400"]
    assert bench.journal.of(Forgotten) == [Forgotten(uuid)]


def test_results_are_forgotten_for_room():
    room = 2 * (JOB_BYTES + PART_BYTES) + 300
    bench = Bench(DispatchConfig(results_max_bytes=room))
    worker, client = bench.register("w1", ours=True), bench.client()
    uuids = []
    for _ in range(4):
        uuids.append(bench.post(client))
        post = next(packet for packet in worker.take() if packet.command is POST)
        bench.finish(worker, post, "x" * 60)
    kept = [uuid for uuid in uuids if bench.job(uuid) is not None]
    assert kept == uuids[-len(kept) :]
    assert len(kept) == 2
    assert bench.dispatcher._jobs.kept_bytes <= room


@for_each("most", [1, 3])
def test_so_many_jobs_are_remembered_and_no_more(most):
    bench = Bench(DispatchConfig(results_max_jobs=most))
    worker, client = bench.register("w1", ours=True), bench.client()
    uuids = []
    for _ in range(5):
        uuids.append(bench.post(client))
        bench.finish(worker, next(packet for packet in worker.take() if packet.command is POST))
    assert [op.uuid for op in bench.journal.of(Forgotten)] == uuids[:-most]


def test_a_job_costs_more_than_its_body():
    """A job without body takes memory as well, and so does each worker it is for."""
    names = [f"n{number}" for number in range(20)]
    bench = Bench(DispatchConfig(open_max_bytes=JOB_BYTES + 20 * PART_BYTES))
    client = bench.client()
    bench.post(client, target=json.dumps(names), body=b"")
    assert story(client.take()) == ["300"]
    uuid = bench.post(client, body=b"")
    assert b"bytes of open jobs" in the(client.take(), RESPONSE).data
    bench.delete(client, "job1")
    bench.post(client, uuid, body=b"")
    assert story(client.take()) == ["300"]
    assert bench.dispatcher._jobs.open_parts == 1


# -- clients that vanish --------------------------------------------------------------------------


@for_each("push", [False, True])
def test_a_client_that_comes_back_is_given_what_it_is_owed(push):
    bench = Bench()
    worker = bench.register("w1", ours=True)
    features = frozenset({"push"} if push else ())
    client = FakePeer("c1", features=features)
    bench.post(client)
    bench.lose(client)
    bench.finish(worker, the(worker.take(), POST))
    back = FakePeer("c1", features=features)
    bench.dispatcher.client_seen(back, bench.now)
    assert story(back.take()) == ["202[w1]", "200"]
    bench.dispatcher.client_seen(back, bench.now)
    assert back.take() == []  # once


def test_nobody_else_under_that_name_is_given_anything():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.own_client("c1", holder="key:A")
    bench.post(client)
    bench.lose(client)
    thief = bench.own_client("c1", holder="key:B")
    bench.dispatcher.client_seen(thief, bench.now)
    bench.event(worker, the(worker.take(), POST))
    bench.finish(worker, _last_post(bench))
    assert thief.take() == []


def _last_post(bench: Bench) -> Packet:
    return Packet(Sender.BROKER, POST, client=b"c1#1", uuid=f"job{bench.made}")


def test_a_full_client_loses_events_and_keeps_results():
    bench = Bench()
    worker, client = bench.register("w1"), bench.client()
    uuid = bench.post(client)
    post = the(worker.take(), POST)
    client.room = 0
    bench.event(worker, post)
    bench.finish(worker, post)
    assert bench.counts.dropped == 1
    client.room = None
    bench.dispatcher.client_seen(client, bench.now)
    assert story(client.take())[-2:] == ["202[w1]", "200"]
    assert story(bench.get(client, uuid)) == ["200"]


def test_an_answer_that_finds_no_room_is_still_owed():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    uuid = bench.post(client)
    client.take()
    client.room = 1  # for the 202 that names the worker
    bench.finish(worker, the(worker.take(), POST))
    client.take()
    client.room = 0
    assert bench.get(client, uuid) == []
    client.room = None
    bench.dispatcher.client_seen(client, bench.now)
    assert story(client.take())[-1] == "200"
    assert story(bench.get(client, uuid)) == ["200"]
    bench.dispatcher.client_seen(client, bench.now)
    assert client.take() == []


def test_the_uuid_of_a_request_that_was_passed_on_is_in_use():
    """A worker's answer to it would be taken for the job's result, or the other way round."""
    bench = Bench()
    worker = bench.register("w1", ours=True)
    client = bench.client()
    packet = Packet(
        Sender.CLIENT, Command.MMI, service="mmi.service.worker", target=ALL, uuid="old", body=b"{}"
    )
    bench.dispatcher.relay_mmi(bench.client("boss"), packet, bench.now)
    asked = the(worker.take(), Command.MMI)
    bench.post(client, "old")
    assert said(the(client.take(), RESPONSE))["error"] == "this uuid is in use"
    bench.answer(worker, asked, 200, b"{}")
    bench.post(client, "old")
    assert story(client.take()) == ["202[]"]


def test_management_of_workers_is_asked_of_those_that_have_it():
    bench = Bench()
    ours, deployed = bench.register("w1", ours=True), bench.register("w2")
    client = bench.client()
    packet = Packet(
        Sender.CLIENT, Command.MMI, service="mmi.service.worker", target=ALL, uuid="m1", body=b"{}"
    )
    bench.dispatcher.relay_mmi(client, packet, bench.now)
    asked = the(ours.take(), Command.MMI)
    assert deployed.take() == []
    bench.answer(ours, asked, 200, b'{"alive":true}')
    out = client.take()
    assert [(p.command, said(p)) for p in out] == [
        (Command.RESPONSE, {"w1": {"alive": True}}),
        (Command.MMI, {"w1": {"alive": True}}),
    ]
    bench.dispatcher.relay_mmi(client, packet, bench.now)
    bench.pass_time(10.1)
    assert story(client.take()) == ["408"]
    assert len(bench.dispatcher._jobs.relays) == 0


def manage(bench, client, uuid, body=b"{}"):
    packet = Packet(
        Sender.CLIENT, Command.MMI, service="mmi.service.worker", target=ALL, uuid=uuid, body=body
    )
    bench.dispatcher.relay_mmi(client, packet, bench.now)


def test_one_who_asks_workers_without_end_leaves_room_for_others():
    bench = Bench()
    bench.register("w1", ours=True)
    many, other = bench.client("many", holder="key:A"), bench.client("other", holder="key:B")
    for number in range(RELAYS_PER_CLIENT + 1):
        manage(bench, many, f"m{number}")
    assert said(the(many.take(), RESPONSE))["error"] == "too many requests wait for workers"
    manage(bench, bench.client("many-2", holder="key:A"), "m")
    manage(bench, other, "o")
    assert len(bench.dispatcher._jobs.relays) == RELAYS_PER_CLIENT + 1
    bench.pass_time(10.1)
    assert story(other.take()) == ["408"]
    manage(bench, many, "again")
    assert "again" in bench.dispatcher._jobs.relays


def test_what_workers_answer_their_management_takes_no_more_room_than_open_jobs_may():
    bench = Bench(DispatchConfig(credits=1, open_max_bytes=1000))
    workers = [bench.register(f"w{number}", ours=True) for number in range(3)]
    client = bench.client()
    bench.post(client, service="elsewhere")  # jobs that take all their room keep nobody from managing workers
    assert bench.dispatcher._jobs.open_bytes > 1000
    client.take()
    manage(bench, client, "m1", b"x" * 600)
    assert bench.dispatcher._jobs.relays["m1"].packet.body is None
    for worker in workers:
        bench.answer(worker, the(worker.take(), Command.MMI), 200, b'{"said":"%s"}' % (b"y" * 600))
    answer = said(next(packet for packet in client.take() if packet.command is RESPONSE))
    assert answer["w0"] == {"said": "y" * 600}
    assert [answer[name] for name in ("w1", "w2")] == [
        {"error": "611 bytes: the broker has no room for this answer"}
    ] * 2
    assert bench.dispatcher._jobs.relayed_bytes == 0


def test_dialect_is_the_requests():
    bench = Bench()
    uuid = finished_job(bench, bench.client("c1", holder="key:A"))
    got = bench.get(bench.client("c2", holder="key:A", seed=True), uuid)
    assert (got[0].dialect, got[0].status_text) == (Dialect.SEED, "OK")


@for_each(("rule", "user", "guest"), [("holder", 400, 400), ("user", 200, 400), ("anyone", 200, 200)])
@for_each("seed", [False, True])
def test_who_may_fetch_the_results_of_others(rule, user, guest, seed):
    bench = Bench(access=Access(results=rule))
    worker, holder = bench.register("w1", ours=True), bench.own_client("c1")
    uuid = bench.post(holder)
    bench.finish(worker, the(worker.take(), Command.POST))
    for name, standing, code in (("c2", Standing.USER, user), ("c3", Standing.GUEST, guest)):
        other = bench.client(name, seed=seed)
        other.principal = other.principal._replace(standing=standing)
        assert [packet.status for packet in bench.get(other, uuid)] == [code]
        assert [packet.status for packet in bench.delete(other, uuid)] == [400]
