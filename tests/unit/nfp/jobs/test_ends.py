"""Jobs that are over: what a DELETE of them says, errors of several workers, what is kept in memory."""

from broker.nfp.jobs import DispatchConfig
from broker.nfp.names import Command
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import Bench, said, story, the

POST = Command.POST
MIB = 1024 * 1024


def ended(bench: Bench, client, how: str) -> str:
    """A job for all of one worker, brought to its end."""
    worker = bench.register("w1", ours=True)
    uuid = bench.post(client, target="all", timeout=5)
    post = the(worker.take(), POST)
    if how == "EXPIRED":
        bench.pass_time(5.1)
    elif how == "CANCELLED":
        bench.delete(client, uuid, target="all")
    else:
        bench.finish(worker, post, code=200 if how == "COMPLETED" else 500)
    client.take()
    worker.take()
    return uuid


@for_each("seed", [False, True])
@for_each("how", ["COMPLETED", "FAILED", "EXPIRED", "CANCELLED"])
def test_deleting_what_is_over_tells_how_it_ended(how, seed):
    bench = Bench()
    client = bench.client(seed=seed)
    uuid = ended(bench, client, how)
    before = [(packet.status, packet.data) for packet in bench.get(client, uuid)]
    cancelled = bench.counts.cancelled
    (answer,) = bench.delete(client, uuid, target="all")
    assert answer.status == 202
    assert (said(answer)["status"], said(answer)["workers"]) == (how, [])
    assert [(packet.status, packet.data) for packet in bench.get(client, uuid)] == before
    assert bench.counts.cancelled == cancelled


def test_deleting_one_part_tells_how_this_part_ended():
    bench = Bench()
    workers = {name: bench.register(name, ours=True) for name in ("a", "b")}
    client = bench.client()
    uuid = bench.post(client, target="a,b")
    bench.finish(workers["a"], the(workers["a"].take(), POST))
    client.take()
    (answer,) = bench.delete(client, uuid, target="a")
    assert said(answer)["status"] == "COMPLETED"
    assert bench.job(uuid).state == "open"
    (answer,) = [packet for packet in bench.delete(client, uuid, target="a,b") if packet.status == 202]
    assert (said(answer)["status"], said(answer)["workers"]) == ("CANCELLED", ["b"])


@for_each("there", [False, True])
def test_a_delete_for_workers_that_never_had_the_job_cancels_nothing(there):
    bench = Bench()
    client = bench.client()
    if there:
        bench.register("w1")
    uuid = bench.post(client, target="all")
    client.take()
    (answer,) = bench.delete(client, uuid, target="w2")
    assert answer.status == 400
    assert "not given to" in said(answer)["error"]
    assert bench.job(uuid).state == "open"


@for_each("target", ["a,b", "all"])
def test_each_error_is_told_as_a_failed_task_of_its_worker(target):
    bench = Bench()
    workers = [bench.register(name) for name in ("a", "b")]
    client = bench.client()
    bench.post(client, target=target)
    for worker in workers:
        bench.finish(worker, the(worker.take(), POST), code=500)
    out = client.take()
    assert story(out) == ["202[a,b]", "200", "200"]
    assert [said(packet)["a"]["failed"] for packet in out[1:2]] == [True]
    assert said(out[2])["b"]["errors"] == ["worker b: status 500"]


def test_each_expired_part_is_told_once():
    bench = Bench(DispatchConfig(queue_ttl_s=10))
    client = bench.client()
    bench.post(client, target="a,b")
    client.take()
    bench.pass_time(10.1)
    assert [said(packet)["worker"] for packet in client.take()] == ["a", "b"]


@for_each("restarted", [False, True])
def test_a_closed_job_keeps_no_body_but_knows_it(restarted):
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.own_client()
    body = b'{"task":"ping","data":"%s"}' % (b"x" * MIB)
    uuid = bench.post(client, body=body)
    state = bench.dispatcher._jobs
    assert state.open_bytes > MIB
    bench.finish(worker, the(worker.take(), POST))
    client.take()
    if restarted:
        bench.restart()
        client = bench.own_client()
        state = bench.dispatcher._jobs
    else:
        assert (state.open_bytes, state.by_uuid[uuid].body) == (0, b"")
    bench.post(client, uuid, body=body)
    assert story(client.take())[-1] == "200"
    assert bench.counts.duplicates == 1
    for other in (body + b" ", body.replace(b"xx", b"yy"), b""):
        bench.post(client, uuid, body=other)
        assert story(client.take()) == ["400"]
    assert 0 < state.kept_bytes < 4096
    bench.pass_time(bench.config.result_ttl_s + 1)
    assert (state.kept_bytes, len(state.by_uuid)) == (0, 0)
