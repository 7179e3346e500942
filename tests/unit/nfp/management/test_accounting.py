"""Sums by holder, key and service."""

from broker.nfp.management import accounting as accounts
from broker.nfp.management.accounting import FLUSH_S, Accounting
from broker.nfp.records import OTHERS, Unused, Used
from tests.tables import for_each
from tests.unit.nfp.management.fakes import BERT, FakeJournal, event


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def run(accounting, clock, uuid, *, status=200, state="done", seconds=1.0, **who):
    accounting.count(event("submitted", uuid, size=10, **who))
    accounting.count(event("dispatched", uuid, worker="w1", attempt=1, **who))
    clock.now += seconds
    accounting.count(
        event("finished", uuid, worker="w1", attempt=1, status=status, state=state, size=100, **who)
    )
    accounting.count(event("closed", uuid, state=state, **who))


def test_sums_of_a_job_and_of_a_failed_one():
    clock, journal = Clock(), FakeJournal()
    accounting = Accounting(journal, clock=clock)
    run(accounting, clock, "a", key="K", seconds=2.0)
    run(accounting, clock, "b", key="K", status=200, state="failed", seconds=0.5)
    run(accounting, clock, "c", holder=BERT.holder, seconds=1.0)
    assert accounting.usage() == [
        Used("uid:1000", "K", "dummy", 2, 1, 20, 200, 2.5),
        Used("uid:1001", "", "dummy", 1, 0, 10, 100, 1.0),
    ]


def test_a_job_of_several_workers_fails_once_and_is_busy_for_each():
    clock = Clock()
    accounting = Accounting(FakeJournal(), clock=clock)
    accounting.count(event("submitted", size=1))
    for worker in ("w1", "w2"):
        accounting.count(event("dispatched", worker=worker))
    clock.now += 2
    for worker in ("w1", "w2"):
        accounting.count(event("finished", worker=worker, status=500, state="failed"))
    accounting.count(event("closed", state="failed"))
    assert accounting.usage() == [Used("uid:1000", "", "dummy", 1, 1, 1, 0, 4.0)]


def test_a_returned_job_counts_the_time_of_both_attempts():
    clock = Clock()
    accounting = Accounting(FakeJournal(), clock=clock)
    accounting.count(event("submitted"))
    accounting.count(event("dispatched", worker="w1"))
    clock.now += 3
    accounting.count(event("returned", worker="w1"))
    clock.now += 5  # nobody is busy with it
    accounting.count(event("dispatched", worker="w2"))
    clock.now += 1
    accounting.count(event("finished", status=500, state="failed"))  # the broker's word, not a worker's
    accounting.count(event("closed", status=500, state="failed"))
    assert accounting.usage() == [Used("uid:1000", "", "dummy", 1, 1, 0, 0, 4.0)]


def test_streams_count_as_bytes_out():
    accounting = Accounting(FakeJournal(), clock=Clock())
    accounting.count(event("submitted"))
    for chunk in (b"x" * 100, memoryview(b"y" * 50)):
        accounting.count(event("stream", worker="w1", body=chunk))
    accounting.count(event("finished", worker="w1", status=200, size=7, body=b"1234567"))
    accounting.count(event("closed", status=200))
    assert accounting.usage() == [Used("uid:1000", "", "dummy", 1, 0, 0, 157, 0.0)]


@for_each(
    ("kind", "state"),
    [("closed", "failed"), ("closed", "done"), ("expired", "expired"), ("cancelled", "cancelled")],
)
def test_how_a_job_ended_counts_once(kind, state):
    accounting = Accounting(FakeJournal(), clock=Clock())
    accounting.count(event("submitted"))
    accounting.count(event("finished", state=state))
    for _ in range(2):
        accounting.count(event(kind, state=state))
    ended = {name: int(name == state) for name in ("failed", "expired", "cancelled")}
    (used,) = accounting.usage()
    assert used == Used("uid:1000", "", "dummy", 1, bytes_in=0, bytes_out=0, busy_s=0.0, **ended)


def test_jobs_whose_end_is_never_told_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr("broker.nfp.management.accounting.OPEN_MAX", 3)
    clock = Clock()
    accounting = Accounting(FakeJournal(), clock=clock)
    for number in range(10):
        accounting.count(event("submitted", f"j{number}"))
    for number in range(10):
        accounting.count(event("closed", f"j{number}", status=500, state="failed"))
    (used,) = accounting.usage()
    assert (used.jobs, used.failed) == (10, 3)


def test_differences_are_written_after_ten_seconds_of_activity_and_at_the_end():
    clock, journal = Clock(), FakeJournal()
    accounting = Accounting(journal, clock=clock)
    run(accounting, clock, "a")
    assert journal.ops == []
    clock.now += FLUSH_S
    run(accounting, clock, "b")
    run(accounting, clock, "c")
    accounting.flush()
    accounting.flush()
    assert sum(op.jobs for op in journal.ops) == 3
    assert sum(op.busy_s for op in journal.ops) == 3.0
    assert sum(op.bytes_in for op in journal.ops) == 30
    assert accounting.usage() == [Used("uid:1000", "", "dummy", 3, 0, 30, 300, 3.0)]


def test_what_a_former_broker_wrote_is_added_to_and_not_written_again():
    clock, journal = Clock(), FakeJournal()
    known = [Used("uid:1000", "", "dummy", 7, 1, 70, 700, 7.0)]
    accounting = Accounting(journal, clock=clock)
    accounting.restore(known)
    run(accounting, clock, "a")
    accounting.flush()
    assert journal.ops == [Used("uid:1000", "", "dummy", 1, 0, 10, 100, 1.0)]
    assert accounting.usage() == [Used("uid:1000", "", "dummy", 8, 1, 80, 800, 8.0)]


def test_made_up_holders_cost_no_memory(monkeypatch):
    monkeypatch.setattr(accounts, "ACCOUNTS_MAX", 200)
    clock = Clock()
    journal = FakeJournal()
    accounting = Accounting(journal, clock=clock)
    run(accounting, clock, "j", holder="key:busy", seconds=9)
    for number in range(299):
        run(accounting, clock, "j", holder=f"key:{number}", service=f"s{number}", seconds=0)
    used = accounting.usage()
    assert 100 <= len(used) <= 200
    assert (used[0].holder, used[0].key, used[0].service) == (OTHERS, "", OTHERS)
    assert sum(one.jobs for one in used) == 300
    assert [one.busy_s for one in used if one.holder == "key:busy"] == [9.0]
    assert [one.jobs for one in used if one.holder == "key:298"] == [
        1
    ]  # newcomers get an account of their own
    accounting.flush()
    stored = {}
    for op in journal.ops:
        if isinstance(op, Unused):
            del stored[op]
        else:
            stored[op[:3]] = stored.get(op[:3], 0) + op.jobs
    assert stored == {one[:3]: one.jobs for one in used}, "the store has what memory has"


def test_events_of_jobs_from_before_a_restart_are_added_up():
    clock = Clock()
    accounting = Accounting(FakeJournal(), clock=clock)
    accounting.count(event("dispatched", worker="w1"))
    clock.now += 1
    accounting.count(event("finished", worker="w1", status=200, size=3))
    accounting.count(event("closed"))
    assert accounting.usage() == [Used("uid:1000", "", "dummy", 0, 0, 0, 3, 1.0)]
