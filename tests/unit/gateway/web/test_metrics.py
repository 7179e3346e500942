"""Counts: what one process tells, and the sum of several."""

import errno

import pytest
from prometheus_client.parser import text_string_to_metric_families

from broker.errors import NotReady
from gateway.web import worker_counts
from gateway.web.metrics import COUNTER, GAUGE, LEAST, counters_only, merged, render
from gateway.web.worker_counts import WorkerCounts, encoded, fold
from tests.unit.gateway.web.site import Stream


def parsed(text):
    """(name, labels) -> value."""
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def counted(requests, sessions=0, expires=9.0):
    return [
        ["requests", COUNTER, "Requests.", [[{}, requests]]],
        ["opened", COUNTER, "Opened.", [[{"kind": "http"}, requests]]],
        ["sessions", GAUGE, "Sessions.", [[{"kind": "sse"}, sessions]]],
        ["expires", LEAST, "First end.", [[{}, expires]]],
    ]


def test_counts_of_several_are_added():
    found = parsed(render(merged([counted(3, 1, 7.0), counted(4, 2, 5.0), []])).decode())
    assert found == {
        ("headgate_gateway_requests_total",): 7,
        ("headgate_gateway_opened_total", "http"): 7,
        ("headgate_gateway_sessions", "sse"): 3,
        ("headgate_gateway_expires",): 5,
    }


def test_labels_that_only_one_has_and_labels_to_escape():
    strange = [["dropped", COUNTER, "Dropped.", [[{"reason": 'a"b\\\n'}, 1]]]]
    found = parsed(
        render(merged([strange, [["dropped", COUNTER, "Dropped.", [[{"reason": "x"}, 2]]]]])).decode()
    )
    assert found == {
        ("headgate_gateway_dropped_total", 'a"b\\\n'): 1,
        ("headgate_gateway_dropped_total", "x"): 2,
    }


async def test_what_a_gateway_tells(site):
    async with site.post("/v1/rpc/lab.who"):
        pass
    async with site.post("/v1/rpc/secret.x", "bob"):
        pass
    async with site.get("/v1/events") as events:
        await Stream(events).next("welcome")
        await site.handle.publish("a.b")
        answer = await site.get("/metrics", "eve")
        assert answer.status == 200
        assert answer.content_type == "text/plain"
        found = parsed(await answer.text())
    assert found["headgate_gateway_requests_total",] >= 1
    assert found["headgate_gateway_denied_total",] == 1
    assert found["headgate_gateway_sessions", "sse"] == 1
    assert found["headgate_gateway_sessions_opened_total", "http"] == 2
    assert found["headgate_gateway_event_deliveries_total",] == 1
    assert found["headgate_gateway_upstream_joined",] == 1
    assert found["headgate_gateway_workers",] == 1


DENY = '[[rules]]\nroles = ["user"]\nprefixes = ["gateway."]\nallow = false\n'
ALLOW = '[[rules]]\nroles = ["user"]\nkinds = ["call"]\nprefixes = ["gateway.metrics"]\n'


@pytest.mark.parametrize(
    ("extra", "bob", "nobody"),
    [(DENY, 403, 401), (f"[gateway]\nmetrics_public = true\n{DENY}", 200, 200), (DENY + ALLOW, 200, 401)],
    ids=["nobody", "public", "rule"],
)
async def test_who_may_read_them(open_site, extra, bob, nobody):
    site = await open_site(extra)
    assert (await site.get("/metrics", "bob")).status == bob
    assert (await site.get("/metrics", None)).status == nobody


async def test_public_figures_are_not_for_pages_whose_name_was_bound_to_this_machine(open_site):
    """As at ``metrics_listen``: what needs no login is no page's of another name (DNS rebinding)."""
    site = await open_site("[gateway]\nmetrics_public = true\n")
    for host, status in (("localhost", 200), ("127.0.0.1:8280", 200), ("evil.example:8280", 403)):
        assert (await site.get("/metrics", None, headers={"Host": host})).status == status
    assert (await site.get("/metrics", "bob", headers={"Host": "evil.example"})).status == 403


# ---------------------------------------------------------------- several processes


def total(snapshots):
    return parsed(render(merged(snapshots)).decode())["headgate_gateway_requests_total",]


class Workers:
    """Worker processes that tell each other their counts."""

    def __init__(self, folder):
        self.folder = folder
        self.there = {}

    def start(self, name, own):
        async def ask():
            return {other: encoded(told()) for other, told in self.there.items() if other != name}

        worker = WorkerCounts(str(self.folder), name, own, ask)
        worker.start()
        self.there[name] = own
        return worker

    async def leave(self, name, worker):
        await worker.stop()
        del self.there[name]


async def test_whoever_is_asked_knows_the_counts_of_all(rundir):
    counts, all_ = {"a": 1, "b": 10, "c": 100}, Workers(rundir)
    workers = {name: all_.start(name, lambda n=name: counted(counts[n], 1)) for name in counts}
    for worker in workers.values():
        assert total(await worker.snapshots()) == 111
    counts["b"] = 20
    assert total(await workers["a"].snapshots()) == 121
    for worker in workers.values():
        await worker.stop()


async def test_a_worker_that_ended_keeps_counting_but_has_no_sessions(rundir):
    all_ = Workers(rundir)
    first, second = all_.start("first", lambda: counted(5, 2)), all_.start("second", lambda: counted(1, 1))
    await all_.leave("first", first)
    for folded in (False, True, True):
        if folded:
            fold(str(rundir), "first")
        found = parsed(render(merged(await second.snapshots())).decode())
        assert found["headgate_gateway_requests_total",] == 6
        assert found["headgate_gateway_sessions", "sse"] == 1
    assert sorted(path.name for path in rundir.iterdir()) == ["ended.json", "second.json"]
    await second.stop()


async def test_a_file_that_is_folded_already_counts_once(rundir):
    """A reader may list the file before the supervisor removes it, and read the sum after."""
    all_ = Workers(rundir)
    await all_.leave("first", all_.start("first", lambda: counted(5)))
    kept = (rundir / "first.json").read_bytes()
    fold(str(rundir), "first")
    (rundir / "first.json").write_bytes(kept)
    second = all_.start("second", lambda: counted(1))
    assert total(await second.snapshots()) == 6
    await second.stop()


@pytest.mark.parametrize("moment", ["_saved", "_ended"])
async def test_workers_that_end_while_counts_are_read_count_once(rundir, monkeypatch, moment):
    """The supervisor is another process, and folds whenever it likes."""
    all_ = Workers(rundir)
    for name, count in (("first", 5), ("second", 7)):
        await all_.leave(name, all_.start(name, lambda count=count: counted(count)))
    reader = all_.start("reader", lambda: counted(1))

    async def ask():
        return {"first": encoded(counted(5))}

    reader._ask = ask
    real = getattr(worker_counts, moment)

    def read(place):
        found = real(place)
        monkeypatch.undo()
        for name in ("first", "second"):
            fold(str(rundir), name)
        return found

    monkeypatch.setattr(worker_counts, moment, read)
    assert total(await reader.snapshots()) == 13
    assert total(await reader.snapshots()) == 13
    await reader.stop()


async def test_a_full_disk_may_pass_before_a_worker_is_started_again(rundir, monkeypatch):
    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gateway.web.worker_counts.atomic.write", write)
    with pytest.raises(NotReady, match="No space left"):
        Workers(rundir).start("full", lambda: counted(1))


async def test_a_worker_that_does_not_answer_speaks_by_its_file(rundir):
    all_ = Workers(rundir)
    stuck, other = all_.start("stuck", lambda: counted(5, 1)), all_.start("other", lambda: counted(1))
    for told, expected in ((encoded([]), 1), (b"", 6)):

        async def ask(told=told):
            return {"stuck": told}

        other._ask = ask
        assert total(await other.snapshots()) == expected
    for each in (stuck, other):
        await each.stop()


def test_only_counters_outlive_a_process():
    assert [sample[0] for sample in counters_only(counted(1))] == ["requests", "opened"]
