"""Rate, errors and duration of jobs, by service and task; bounded, whatever clients make up."""

import errno
import json

from broker.name_stats import BOUNDS_NS, OTHER, UNPROVEN_MAX
from broker.nfp.jobs import DispatchConfig
from broker.nfp.names import Command
from tests.unit.nfp.jobs.bench import Bench, the

POST = Command.POST


def stats(bench: Bench, name: str = "net.ping"):
    return bench.dispatcher.tasks.by_name[name]


def test_a_job_is_counted_and_timed_from_its_post_to_its_result():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    bench.post(client)
    assert (stats(bench).calls, stats(bench).open) == (1, 1)
    post = the(worker.take(), POST)
    bench.pass_time(2.0)
    bench.finish(worker, post)
    task = stats(bench)
    assert (task.calls, task.open, task.errors, task.proven) == (1, 0, {}, True)
    took = task.buckets.index(1)
    assert BOUNDS_NS[took - 1] < 2e9 <= BOUNDS_NS[took]


def test_a_job_of_several_workers_is_one():
    bench = Bench()
    workers = [bench.register(name, ours=True) for name in ("a", "b")]
    bench.post(bench.client(), target="a,b")
    posts = [the(worker.take(), POST) for worker in workers]
    bench.finish(workers[0], posts[0])
    assert (stats(bench).calls, stats(bench).open) == (1, 1)
    bench.finish(workers[1], posts[1])
    assert (stats(bench).open, sum(stats(bench).buckets)) == (0, 1)


def test_how_a_job_ends_is_its_error():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    bench.post(client)
    failing = json.dumps({"w1": {"failed": True, "errors": ["no such host"]}}).encode()
    bench.answer(worker, the(worker.take(), POST), 200, failing)
    task = stats(bench)
    assert (task.errors, task.last_text, task.proven) == ({errno.EIO: 1}, "no such host", False)
    bench.post(client, target="all", timeout=5)
    worker.take()
    bench.pass_time(5.1)
    uuid = bench.post(client)
    bench.delete(client, uuid)
    assert task.errors == {errno.EIO: 1, errno.ETIMEDOUT: 1, errno.ECANCELED: 1}
    assert (task.calls, task.open, sum(task.buckets)) == (3, 0, 3)


def test_a_job_that_is_refused_is_an_error():
    bench = Bench(DispatchConfig(job_ttl_s=10.0))
    bench.post(bench.client(), timeout=60)
    task = stats(bench)
    assert (task.calls, task.open, task.errors) == (1, 0, {errno.EINVAL: 1})
    assert "60 s" in task.last_text


def test_made_up_names_take_little_room_and_a_task_that_was_done_has_figures_of_its_own():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    for number in range(UNPROVEN_MAX + 3):
        bench.delete(client, bench.post(client, service=f"no{number}"))
    names = bench.dispatcher.tasks.by_name
    assert len(names) == UNPROVEN_MAX + 1
    for _ in range(2):
        bench.post(client)
        bench.finish(worker, the(worker.take(), POST))
    assert (names["net.ping"].calls, names[OTHER].open) == (1, 0)


def test_a_restarted_broker_ends_what_the_former_one_counted():
    bench = Bench()
    client = bench.client()
    bench.post(client)
    bench.end_turn()
    bench.restart(down_s=1.0)
    assert (stats(bench).calls, stats(bench).open) == (0, 1)
    bench.pass_time(bench.config.job_timeout_s + 1)
    assert (stats(bench).open, stats(bench).errors) == (0, {errno.ETIMEDOUT: 1})


def test_a_job_that_could_not_be_stored_is_none():
    bench = Bench()
    uuid = bench.post(bench.client())
    bench.dispatcher.unstored([uuid], "the disk is full", bench.now)
    assert (stats(bench).calls, stats(bench).open) == (0, 0)
