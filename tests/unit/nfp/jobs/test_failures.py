"""However a job ends, all that the broker says of it agrees: views, figures, events, the journal."""

import json

from broker.nfp.management import mmi
from broker.nfp.management.jobs import job_row
from broker.nfp.names import Command
from broker.nfp.records import Finished
from broker.nfp.server.recording import told_of
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import Bench, the

POST = Command.POST
HOWS = {
    "returns": "done",
    "raises": "failed",
    "answers an error": "failed",
    "is lost": "failed",
    "takes too long": "expired",
    "is cancelled": "cancelled",
}
"""What a worker does with a job, and how that ends."""


def ended(bench: Bench, how: str) -> str:
    """The uuid of a job for w1 that ended so; w1 is there afterwards."""
    worker = bench.register("w1", ours=True, tasks={"ping": False})
    client = bench.client()
    uuid = bench.post(client, target="any", timeout=5)
    post = the(worker.take(), POST)
    bench.accept(worker, post)
    if how == "is lost":
        bench.lose(worker)
        bench.pass_time(bench.config.grace_s + 1)
        bench.register("w1", ours=True, tasks={"ping": False})
    elif how == "takes too long":
        bench.pass_time(5.1)
    elif how == "is cancelled":
        bench.delete(client, uuid)
    elif how == "answers an error":
        bench.finish(worker, post, code=500)
    else:
        failed = how == "raises"
        body = json.dumps({"w1": {"result": "x" * 20_000, "failed": failed, "errors": ["no"] * failed}})
        bench.answer(worker, post, 200, body.encode())
    return uuid


@for_each(("how", "state"), HOWS.items())
def test_all_of_it_agrees(how, state):
    bench = Bench()
    uuid = ended(bench, how)
    bench.journal.commit()
    view = bench.job(uuid)
    (part,) = view.parts
    row = job_row(view)
    assert (row["state"], part.ended, row["failed"]) == (state, state, ["w1"] if state == "failed" else [])
    assert bench.journal.of(Finished)[-1].closes == state
    (worker,) = bench.dispatcher.workers(bench.now)
    said = mmi.worker_row(worker, owner=False)
    for figures in (bench.counts.as_dict(), said):
        assert {name: figures[name] for name in HOWS.values()} == {
            name: int(name == state) for name in HOWS.values()
        }
    events = [event for event in bench.listener.events if event.uuid == uuid]
    assert [event.state for event in events[-2:]] == [state, state]
    words = {"done": "COMPLETED"}
    assert told_of(events[-1])["status"] == words.get(state, state.upper())
    bench.restart()
    assert bench.job(uuid).state == state


@for_each("how", ["raise", "answer an error", "are called by no such name"])
@for_each("client", ["deployed", "own", "text"])
def test_a_job_of_several_workers_that_all_fail_has_failed(how, client):
    """A deployed client is told each as a task that failed, so that it shows every error; the job has failed."""
    bench = Bench()
    workers = [bench.register(name, ours=True) for name in ("w1", "w2")]
    bench.pass_time(6)
    asking = {"deployed": bench.client, "own": bench.own_client}.get(
        client, lambda: bench.client(seed=True)
    )()
    names = "x1,x2" if "name" in how else "w1,w2"
    uuid = bench.post(asking, target=names)
    for worker in workers if "name" not in how else ():
        post = the(worker.take()[-1:], POST)
        body = json.dumps({worker.name: {"result": None, "failed": True, "errors": ["no"]}})
        if how == "raise":
            bench.answer(worker, post, 200, body.encode())
        else:
            bench.finish(worker, post, code=500)
    view = bench.job(uuid)
    assert (view.state, job_row(view)["failed"]) == ("failed", names.split(","))
    assert told_of(bench.listener.events[-1])["status"] == "FAILED"
    told = [packet for packet in asking.take() if packet.status != 202]
    if client == "deployed":
        assert [packet.status for packet in told] == [200, 200]
        assert all(b'"failed":true' in packet.data.replace(b" ", b"") for packet in told)
    (answer,) = bench.get(asking, uuid, target=names)[-1:]
    assert client == "deployed" or answer.status == (
        200 if how == "raise" else 500 if client == "text" or "error" in how else 400
    )
