"""Views for people: what is listed, what is looked for, what whom a worker's row tells."""

import pytest

from broker.errors import RpcError
from broker.identity import USERID_UNKNOWN
from broker.nfp.jobs.search import JobFilter
from broker.nfp.jobs.views import PartView, WorkerView
from broker.nfp.management.jobs import listed
from broker.nfp.names import Dialect
from broker.nfp.outcome import END_STATES
from broker.nfp.principal import Principal, Standing
from broker.nfp.service.payloads import WhichJobs, job_row, read_job, worker_row
from broker.wire.payload import read_request
from tests.unit.nfp.found import Found
from tests.unit.nfp.service.stand_in import job_view

ME = Principal("uid:7", Standing.USER, 7)


def test_a_list_says_how_many_there_are():
    views = [job_view(f"u{number}") for number in range(5)]
    told = listed(Found(views, WhichJobs().filter(ME), ME.may_see, 2, job_row, lambda uuid: []))
    assert ([row["uuid"] for row in told["jobs"]], told["total"], told["more"]) == (["u4", "u3"], 5, True)


def test_what_is_looked_for(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 100.0)
    which = read_request(WhichJobs, b'{"state": "failed,open", "text": "r1", "since": 40, "mine": true}\0')
    states = frozenset({"failed", "open"})
    assert which.filter(ME) == JobFilter(states=states, text="r1", since_s=60.0, holder="uid:7")
    with pytest.raises(RpcError, match="state 'odd'"):
        WhichJobs(state=["odd"]).filter(ME)


def test_a_service_may_have_periods_and_the_last_word_is_the_task():
    what = read_job("nfp.mmi.service.broker.show_workers", None)
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
    assert job_row(job_view("u1", userid=7), [])["userid"] == 7
    assert job_row(job_view("u1", userid=USERID_UNKNOWN), [])["userid"] is None


def test_a_job_whose_task_failed_says_so():
    slot = PartView("", "w1", 1, "final", 200, 4, "failed")
    view = job_view("u1", state="failed")._replace(parts=(slot,))
    assert job_row(view, [])["failed"] == ["w1"]
