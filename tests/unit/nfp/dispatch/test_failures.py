"""However a job ends, all that the broker says of it agrees: views, figures, events, the journal, accounting."""

import json

import pytest

from broker.nfp.management.accounting import Accounting
from broker.nfp.management.jobs import shown
from broker.nfp.management.workers import detailed
from broker.nfp.names import Command
from broker.nfp.records import Finished
from broker.nfp.server.summaries import told_of
from tests.unit.nfp.dispatch.bench import Bench, the

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


@pytest.mark.parametrize(("how", "state"), HOWS.items())
def test_all_of_it_agrees(how, state):
    bench = Bench()
    uuid = ended(bench, how)
    bench.journal.commit()
    view = bench.dispatcher.job(uuid, bench.now)
    (part,) = view.slots
    row = shown(view)
    assert (row["state"], part.ended, row["failed"]) == (state, state, ["w1"] if state == "failed" else [])
    assert bench.journal.of(Finished)[-1].closes == state
    (worker,) = bench.dispatcher.workers(bench.now)
    said = detailed(worker, owner=False)
    for figures in (bench.counts.as_dict(), said):
        assert {name: figures[name] for name in HOWS.values()} == {
            name: int(name == state) for name in HOWS.values()
        }
    events = [event for event in bench.listener.events if event.uuid == uuid]
    assert [event.state for event in events[-2:]] == [state, state]
    words = {"done": "COMPLETED"}
    assert told_of(events[-1])["status"] == words.get(state, state.upper())
    accounting = Accounting(bench.journal)
    for event in events:
        accounting.happened(event)
    (used,) = accounting.usage()
    assert (used.jobs, used.failed) == (1, int(state == "failed"))
    bench.restart()
    assert bench.dispatcher.job(uuid, bench.now).state == state


def test_a_job_that_an_earlier_version_recorded_as_done_has_failed():
    bench = Bench()
    uuid = ended(bench, "raises")
    (at,) = (at for at, op in enumerate(bench.journal.ops) if isinstance(op, Finished))
    assert bench.journal.ops[at].closes == "failed"
    bench.journal.ops[at] = bench.journal.ops[at]._replace(closes="done")
    bench.restart()
    assert bench.dispatcher.job(uuid, bench.now).state == "failed"
