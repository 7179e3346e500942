"""``jobs.service.broker``."""

import pytest

from broker.identity import USERID_UNKNOWN
from broker.nfp.access import Access
from broker.nfp.dispatch.views import SlotView
from broker.nfp.management import jobs as room
from broker.nfp.management.jobs import JobService
from broker.nfp.principal import Principal, Standing
from broker.nfp.targets import Target
from tests.unit.nfp.management.fakes import ANNA, BERT, OWNER, FakeBroker, FakePeer, job_view, reply

BOSS = FakePeer("boss", principal=OWNER)


def broker_with(*jobs):
    broker = FakeBroker()
    broker.dispatcher.all_jobs = list(jobs)
    return broker


def uuids(told):
    return [job["uuid"] for job in told["jobs"]]


def test_a_user_sees_their_own_the_newest_first_and_an_owner_all():
    broker = broker_with(job_view("a"), job_view("b", holder=BERT.holder), job_view("c"))
    assert uuids(reply(JobService(broker), "list")[1]) == ["c", "a"]
    assert uuids(reply(JobService(broker), "list", BOSS)[1]) == ["c", "b", "a"]
    assert uuids(reply(JobService(broker), "list", holder=BERT.holder)[1]) == []


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"service": "s1"}, ["a"]),
        ({"service": "all"}, ["b", "a"]),
        ({"state": "done"}, ["b"]),
        ({"task": "ping", "state": "open"}, ["a"]),
        ({"worker": "w9"}, ["b"]),
        ({"client": "c2"}, ["b"]),
        ({"client": "c3"}, []),
    ],
)
def test_filters(asked, found):
    slot = SlotView("", "w9", 1, "final", 200, 4)
    broker = broker_with(
        job_view("a", service="s1"), job_view("b", service="s2", state="done", client="c2", slots=(slot,))
    )
    assert uuids(reply(JobService(broker), "list", **asked)[1]) == found


def test_the_limit_and_whether_there_are_more():
    broker = broker_with(*(job_view(f"j{number}") for number in range(5)))
    jobs = JobService(broker)
    assert reply(jobs, "list", limit=5)[1]["more"] is False
    told = reply(jobs, "list", limit=4)[1]
    assert (uuids(told), told["more"]) == (["j4", "j3", "j2", "j1"], True)
    for wrong in (0, -1, "3", 10**6, True, 1.5):
        assert reply(jobs, "list", limit=wrong)[0] == 400


def test_one_request_looks_at_a_bounded_number(monkeypatch):
    monkeypatch.setattr(room, "LOOKED_AT_MAX", 3)
    broker = broker_with(*(job_view(f"j{number}", holder=BERT.holder) for number in range(5)))
    assert reply(JobService(broker), "list")[1] == {"jobs": [], "more": True}
    told = reply(JobService(broker), "count", BOSS)[1]
    assert (told["total"], told["more"]) == (3, True)


def test_count():
    broker = broker_with(job_view("a"), job_view("b", state="done"), job_view("c", holder=BERT.holder))
    assert reply(JobService(broker), "count")[1] == {
        "total": 2, "states": {"open": 1, "done": 1}, "services": {"dummy": 2}, "more": False,
    }  # fmt: skip
    assert reply(JobService(broker), "count", BOSS)[1]["total"] == 3
    assert reply(JobService(broker), "count", state="odd")[0] == 400


def test_show_brings_slots_attempts_and_results():
    job = job_view("a", target=Target("list", ("w1", "w2")), state="done")
    broker = broker_with(job)
    broker.dispatcher.found["a"] = [b'{"w1":{"result":1}}', b"\x00\xff"]
    _, told = reply(JobService(broker), "show", uuid="a")
    assert told["target"] == "w1,w2"
    assert told["attempts"] == 2
    assert told["slots"][0]["worker"] == "w1"
    assert told["results"] == [
        {"worker": "w1", "status": 200, "size": 19, "body": {"w1": {"result": 1}}},
        {"worker": "w1", "status": 200, "size": 2, "body": {"base64": "AP8="}},
    ]
    assert "results" not in reply(JobService(broker), "show", uuid="a", results=False)[1]


def test_the_workers_whose_part_failed_are_told():
    ends = {"a": "failed", "b": "done", "c": "expired", "d": "cancelled", "e": ""}
    broker = broker_with(
        *(job_view(uuid, slots=(SlotView("", "w1", 1, "final", 200, 4, end),)) for uuid, end in ends.items())
    )
    told = {job["uuid"]: job["failed"] for job in reply(JobService(broker), "list")[1]["jobs"]}
    assert told == {"a": ["w1"], "b": [], "c": [], "d": [], "e": []}
    assert reply(JobService(broker), "show", uuid="a")[1]["failed"] == ["w1"]


def test_large_results_are_left_to_get(monkeypatch):
    monkeypatch.setattr(room, "RESULTS_MAX_BYTES", 10)
    broker = broker_with(job_view("a"))
    broker.dispatcher.found["a"] = [b'"12345"', b'"67890"']
    _, told = reply(JobService(broker), "show", uuid="a")
    assert [result.get("body") for result in told["results"]] == ["12345", None]
    assert [result["size"] for result in told["results"]] == [7, 7]


def test_a_job_of_somebody_else_is_as_unknown_as_none():
    broker = broker_with(job_view("a"), job_view("b", holder=BERT.holder))
    foreign = reply(JobService(broker), "show", uuid="b")
    unknown = reply(JobService(broker), "show", uuid="z")
    assert foreign[0] == unknown[0] == 400
    assert foreign[1]["error"].replace("'b'", "") == unknown[1]["error"].replace("'z'", "")
    assert reply(JobService(broker), "show")[0] == 400
    assert reply(JobService(broker), "show", BOSS, uuid="b")[0] == 200
    assert ANNA.may_see(reply(JobService(broker), "show", uuid="a")[1]["holder"])


def test_a_job_of_a_key_without_userid_says_so():
    broker = broker_with(job_view("a"), job_view("b", userid=USERID_UNKNOWN))
    assert [job["userid"] for job in reply(JobService(broker), "list", BOSS)[1]["jobs"]] == [None, 1000]


@pytest.mark.parametrize(
    ("rule", "user", "guest"), [("holder", 400, 400), ("user", 200, 400), ("anyone", 200, 200)]
)
def test_who_may_fetch_results_may_be_shown_the_job_and_sees_it_in_no_list(rule, user, guest):
    broker = broker_with(job_view("a", holder=ANNA.holder))
    broker.access = Access(results=rule)
    jobs = JobService(broker)
    askers = FakePeer("b", principal=BERT), FakePeer("g", principal=Principal("uid:9", Standing.GUEST, 9))
    assert [reply(jobs, "show", asker, uuid="a")[0] for asker in askers] == [user, guest]
    assert [reply(jobs, "list", asker)[1]["jobs"] for asker in askers] == [[], []]
