"""``jobs.service.broker``."""

import asyncio
import json

from broker.identity import USERID_UNKNOWN
from broker.nfp.access import Access
from broker.nfp.contract import Call
from broker.nfp.jobs.views import JobFilter, PartView
from broker.nfp.management import SERVICES, Questions
from broker.nfp.management import jobs as room
from broker.nfp.management.questions import UNDER_WAY_MAX
from broker.nfp.names import JOBS
from broker.nfp.principal import Principal, Standing
from broker.nfp.targets import Target
from tests.tables import for_each
from tests.unit.nfp.management.fakes import ANNA, BERT, OWNER, FakeBroker, FakePeer, ask, job_view

BOSS = FakePeer("boss", principal=OWNER)


def reply(broker, task, peer=None, ident="u1", /, **kwargs):
    return ask(broker, JOBS, task, peer, ident, **kwargs)


def broker_with(*jobs):
    broker = FakeBroker()
    broker.dispatcher.all_jobs = list(jobs)
    return broker


def uuids(told):
    return [job["uuid"] for job in told["jobs"]]


def test_a_user_sees_their_own_the_newest_first_and_an_owner_all():
    broker = broker_with(job_view("a"), job_view("b", holder=BERT.holder), job_view("c"))
    assert uuids(reply(broker, "list")[1]) == ["c", "a"]
    assert uuids(reply(broker, "list", BOSS)[1]) == ["c", "b", "a"]
    assert uuids(reply(broker, "list", holder=BERT.holder)[1]) == []


def test_what_is_asked_for_is_what_is_looked_for(monkeypatch):
    monkeypatch.setattr(room.time, "time", lambda: 1000.0)
    broker = broker_with()
    texts = {name: name[0] for name in ("service", "task", "worker", "client", "holder", "text")}
    reply(broker, "list", state="failed, open", since=900, until=990.5, **texts)
    assert broker.dispatcher.searched.which == JobFilter(
        states=frozenset({"failed", "open"}), since_s=100.0, until_s=9.5, **texts
    )
    reply(broker, "count", state=["done"])
    assert broker.dispatcher.searched.which == JobFilter(states=frozenset({"done"}))


@for_each(
    "wrong",
    [
        {"state": "odd"},
        {"state": ["done", "odd"]},
        {"since": "noon"},
        {"until": True},
        {"text": 7},
        {"stat": "open"},
    ],
)
@for_each("task", ["list", "count"])
def test_a_filter_that_makes_no_sense_is_refused(task, wrong):
    status, told = reply(broker_with(), task, **wrong)
    assert (status, next(iter(wrong)) in told["error"]) == (400, True)


def test_a_refusal_quotes_little_of_what_was_asked():
    status, told = reply(broker_with(), "list", **{"x" * 100_000: 1})
    assert (status, len(told["error"]) < 300) == (400, True)


def test_the_limit_and_whether_there_are_more():
    broker = broker_with(*(job_view(f"j{number}") for number in range(5)))
    jobs = broker
    assert reply(jobs, "list", limit=5)[1]["more"] is False
    told = reply(jobs, "list", limit=4)[1]
    assert (uuids(told), told["more"]) == (["j4", "j3", "j2", "j1"], True)
    assert told["total"] == 5
    for wrong in (0, -1, "3", 10**6, True, 1.5):
        assert reply(jobs, "list", limit=wrong)[0] == 400


def test_a_search_of_several_slices_lets_the_loop_do_something_else():
    broker = broker_with(job_view("a"))
    broker.dispatcher.slices = 3

    async def story():
        answers = []
        questions = Questions(broker, SERVICES)
        questions.ask(Call(JOBS, "list", (), {}, "u1", FakePeer()), answers.append)
        for _ in range(2):
            await asyncio.sleep(0)
            assert not answers
        while not answers:
            await asyncio.sleep(0)
        return json.loads(answers[0].body)

    assert uuids(asyncio.run(story())) == ["a"]


def test_one_peer_may_ask_so_much_at_a_time_and_few_searches_run_at_once():
    """Each search holds the ids of all jobs: who asks on and on takes no memory, and no time of others."""
    broker = broker_with(job_view("a"))
    broker.dispatcher.slices, begun, search = 3, [], broker.dispatcher.search
    broker.dispatcher.search = lambda *about: begun.append(about) or search(*about)

    async def story():
        questions, answers = Questions(broker, SERVICES), []
        for _ in range(UNDER_WAY_MAX + 1):
            questions.ask(Call(JOBS, "list", (), {}, "u1", peer), answers.append)
        assert [(each.status, b"too many at a time" in each.body) for each in answers] == [(500, True)]
        questions.ask(Call(JOBS, "list", (), {}, "u1", FakePeer()), answers.append)
        await asyncio.sleep(0)
        assert (len(answers), len(begun)) == (1, 4)
        while len(answers) < UNDER_WAY_MAX + 2:
            await asyncio.sleep(0)
        questions.ask(Call(JOBS, "list", (), {}, "u1", peer), answers.append)
        while len(answers) < UNDER_WAY_MAX + 3:
            await asyncio.sleep(0)
        assert [each.status for each in answers[1:]] == [200] * (UNDER_WAY_MAX + 2)

    peer = FakePeer()
    asyncio.run(story())


def test_nobody_waits_for_what_a_peer_has_asked_that_is_gone():
    """Who asks, leaves and comes again as fast as it can makes no crowd of searches."""
    broker, answers = broker_with(job_view("a")), []
    broker.dispatcher.slices = 1000

    async def story():
        questions = Questions(broker, SERVICES)
        before = len(asyncio.all_tasks())
        for number in range(10):
            peer = FakePeer(f"c{number}")
            for _ in range(UNDER_WAY_MAX):
                questions.ask(Call(JOBS, "list", (), {}, "u1", peer), answers.append)
            await asyncio.sleep(0)
            questions.leave(peer)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (len(asyncio.all_tasks()), answers) == (before, [])
        broker.dispatcher.slices = 1
        questions.ask(Call(JOBS, "list", (), {}, "u1", FakePeer()), answers.append)
        while not answers:
            await asyncio.sleep(0)
        assert answers[0].status == 200
        questions.leave(FakePeer())

    asyncio.run(story())


def test_what_is_looked_for_is_no_longer_than_it_can_be():
    broker = broker_with(job_view("a"))
    for field, most in (("service", 255), ("worker", 255), ("text", room.TEXT_CHARS_MAX)):
        assert reply(broker, "list", **{field: "x" * most})[0] == 200
        status, told = reply(broker, "list", **{field: "x" * (most + 1)})
        assert (status, f"$.{field}" in told["error"]) == (400, True)


def test_count():
    broker = broker_with(job_view("a"), job_view("b", state="done"), job_view("c", holder=BERT.holder))
    assert reply(broker, "count")[1] == {
        "total": 2, "states": {"open": 1, "done": 1}, "services": {"dummy": 2}, "more": False,
    }  # fmt: skip
    assert reply(broker, "count", BOSS)[1]["total"] == 3
    assert reply(broker, "count", state="odd")[0] == 400


def test_show_brings_parts_attempts_and_results():
    job = job_view("a", target=Target("list", ("w1", "w2")), state="done")
    broker = broker_with(job)
    _, told = reply(broker, "show", uuid="a")
    assert told["target"] == "w1,w2"
    assert told["attempts"] == 2
    assert told["parts"][0]["worker"] == "w1"
    assert (told["parts"][0]["state"], "result" in told["parts"][0]) == ("accepted", False)
    ended = (PartView("", "w1", 2, "final", 200, 0, "done", b'{"w1":{"result":1}}'),)
    broker.dispatcher.all_jobs = [job_view("a", state="done", parts=ended)]
    (part,) = reply(broker, "show", uuid="a")[1]["parts"]
    assert (part["attempt"], part["result"], part["error"]) == (2, {"w1": {"result": 1}}, "")
    (part,) = reply(broker, "show", uuid="a", results=False)[1]["parts"]
    assert "result" not in part


def test_the_workers_whose_part_failed_are_told():
    ends = {"a": "failed", "b": "done", "c": "expired", "d": "cancelled", "e": ""}
    broker = broker_with(
        *(job_view(uuid, parts=(PartView("", "w1", 1, "final", 200, 4, end),)) for uuid, end in ends.items())
    )
    told = {job["uuid"]: job["failed"] for job in reply(broker, "list")[1]["jobs"]}
    assert told == {"a": ["w1"], "b": [], "c": [], "d": [], "e": []}
    assert reply(broker, "show", uuid="a")[1]["failed"] == ["w1"]


def test_a_job_of_somebody_else_is_as_unknown_as_none():
    broker = broker_with(job_view("a"), job_view("b", holder=BERT.holder))
    foreign = reply(broker, "show", uuid="b")
    unknown = reply(broker, "show", uuid="z")
    assert foreign[0] == unknown[0] == 400
    assert foreign[1]["error"].replace("'b'", "") == unknown[1]["error"].replace("'z'", "")
    assert reply(broker, "show")[0] == 400
    assert reply(broker, "show", BOSS, uuid="b")[0] == 200
    assert ANNA.may_see(reply(broker, "show", uuid="a")[1]["holder"])


def test_a_job_of_a_key_without_userid_says_so():
    broker = broker_with(job_view("a"), job_view("b", userid=USERID_UNKNOWN))
    assert [job["userid"] for job in reply(broker, "list", BOSS)[1]["jobs"]] == [None, 1000]


@for_each(("rule", "user", "guest"), [("holder", 400, 400), ("user", 200, 400), ("anyone", 200, 200)])
def test_who_may_fetch_results_may_be_shown_the_job_and_sees_it_in_no_list(rule, user, guest):
    broker = broker_with(job_view("a", holder=ANNA.holder))
    broker.access = Access(results=rule)
    jobs = broker
    askers = FakePeer("b", principal=BERT), FakePeer("g", principal=Principal("uid:9", Standing.GUEST, 9))
    assert [reply(jobs, "show", asker, uuid="a")[0] for asker in askers] == [user, guest]
    assert [reply(jobs, "list", asker)[1]["jobs"] for asker in askers] == [[], []]


TRACE = "Traceback (most recent call last):\n  File x\nValueError: no such device"


def test_a_list_shows_arguments_result_and_error_in_short():
    body = b'{"task":"ping","args":[1],"kwargs":{"device":"r1"},"timeout":5}'
    long = {"w1": {"result": ["x" * 2000], "failed": False}}
    failed = {"w2": {"result": None, "failed": True, "errors": [TRACE]}}
    parts = tuple(
        PartView(name, name, 1, "final", 200, 4, end, json.dumps(said).encode())
        for name, end, said in (("w1", "done", long), ("w2", "failed", failed))
    )
    broker = broker_with(job_view("a", parts=parts, state="failed", body=body, took_s=1.25))
    (job,) = reply(broker, "list")[1]["jobs"]
    assert job["arguments"] == {"args": [1], "kwargs": {"device": "r1"}}
    assert (job["took_s"], job["error"]) == (1.25, "w2: ValueError: no such device")
    assert (job["result"][:9], len(job["result"])) == ('w1: ["xxx', room.IN_SHORT_CHARS)
    first, second = reply(broker, "show", uuid="a")[1]["parts"]
    assert (first["result"], first["error"], first["traceback"]) == (["x" * 2000], "", "")
    assert (second["result"], second["error"], second["traceback"]) == (
        None,
        "ValueError: no such device",
        TRACE,
    )


@for_each(
    ("body", "arguments"),
    [
        (b"", None),
        (b"plain text", "plain text"),
        (b'{"task":"t"}', {"args": [], "kwargs": {}}),
        (b'{"args":5,"kwargs":["a"]}', {"args": [], "kwargs": {}}),
    ],
)
def test_arguments_of_any_body(body, arguments):
    assert room.arguments_of(body) == arguments


def test_what_is_long_is_told_by_its_size(monkeypatch):
    monkeypatch.setattr(room, "EXPLAINED_MAX_BYTES", 10)
    result = json.dumps({"w1": {"failed": True, "errors": [TRACE]}}).encode()
    part = PartView("", "w1", 1, "final", 200, len(result), "failed", result)
    broker = broker_with(job_view("a", parts=(part,), body=b"x" * 11))
    (job,) = reply(broker, "list")[1]["jobs"]
    assert (job["arguments"], job["error"]) == (None, "failed; the result is too long to be shown")
