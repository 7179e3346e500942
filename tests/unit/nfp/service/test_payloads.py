"""Views for people: what is listed, how far one request looks, what whom a worker's row tells."""

from broker.identity import USERID_UNKNOWN
from broker.nfp.dispatch.views import SlotView, WorkerView
from broker.nfp.names import Dialect
from broker.nfp.outcome import END_STATES
from broker.nfp.principal import Principal, Standing
from broker.nfp.service.payloads import LOOKED_AT_MAX, WhichJobs, asked, counted, job_row, listed, worker_row
from tests.unit.nfp.service.stand_in import job_view

ME = Principal("uid:7", Standing.USER, 7)


def newest(count, **about):
    return (job_view(f"u{number}", **about) for number in range(count, 0, -1))


def test_a_list_has_an_end_and_says_whether_there_is_more():
    found = listed(newest(5), WhichJobs(limit=2), ME)
    assert ([row["uuid"] for row in found["jobs"]], found["more"]) == (["u5", "u4"], True)
    assert listed(newest(2), WhichJobs(limit=2), ME)["more"] is False


def test_nobody_has_all_jobs_looked_at():
    looked = 0

    def endless():
        nonlocal looked
        while True:
            looked += 1
            yield job_view("u", holder="uid:8")

    assert listed(endless(), WhichJobs(), ME) == {"jobs": [], "more": True}
    assert looked == LOOKED_AT_MAX + 1
    assert counted(endless(), ME)["more"] is True


def test_a_service_may_have_periods_and_the_last_word_is_the_task():
    what = asked("nfp.mmi.service.broker.show_workers", None)
    assert (what.service, what.task) == ("mmi.service.broker", "show_workers")


def test_what_a_worker_has_and_covers_is_not_for_everybody():
    view = WorkerView(
        "w", "s", "alive", Dialect.NORFAB, "", "uid:1", frozenset(), 1, 1, ("u1",), 0, 1.0, 2.0, 0, 0,
        dict.fromkeys(END_STATES, 3),
        ("r",), ("t",),
    )  # fmt: skip
    rows = {
        standing: worker_row(view, Principal("uid:7", standing))
        for standing in (Standing.OWNER, Standing.USER, Standing.GUEST)
    }
    assert [("jobs" in row, "resources" in row) for row in rows.values()] == [
        (True, True),
        (False, True),
        (False, False),
    ]


def test_a_job_of_a_key_without_userid_says_so():
    assert job_row(job_view("u1", userid=7))["userid"] == 7
    assert job_row(job_view("u1", userid=USERID_UNKNOWN))["userid"] is None


def test_a_job_whose_task_failed_says_so():
    slot = SlotView("", "w1", 1, "final", 200, 4, "failed")
    view = job_view("u1", state="failed")._replace(slots=(slot,))
    assert job_row(view)["failed"] == ["w1"]
    assert listed([view], WhichJobs(state="failed"), ME)["jobs"][0]["failed"] == ["w1"]
