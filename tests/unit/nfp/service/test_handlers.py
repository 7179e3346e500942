"""What a caller on the Flux broker gets for nfp.SERVICE.TASK and nfp.jobs.*; the NFP broker is the test."""

import errno

import msgspec

from broker.identity import Role
from broker.nfp.access import Access
from broker.nfp.names import Command
from broker.nfp.principal import Standing
from broker.nfp.targets import ALL, Target
from broker.wire import message as wire
from broker.wire.payload import any_text, decode_json
from tests.tables import for_each
from tests.unit.client.peer import GUEST, asked, settle
from tests.unit.nfp.service.stand_in import happening, job_view, respond, with_face

S = wire.STREAMING


async def record(peer):
    answer = await peer.next()
    return decode_json(answer.payload) if answer.errnum == 0 else (answer.errnum, any_text(answer.payload))


def event_body(message="half", kind="progress", worker="w1"):
    return {"worker": worker, "event_type": kind, "message": message, "task": "go"}


# ---------------------------------------------------------------- jobs


def test_a_job_is_submitted_as_its_caller_and_answered_once():
    async def script(peer, broker):
        peer.call("nfp.lab.east.go", {"args": [1], "kwargs": {"a": 2}, "target": "w1,w2", "timeout": 5})
        caller, packet = await broker.next()
        assert (packet.command, packet.service, packet.target) == (
            Command.POST, "lab.east", Target("list", ("w1", "w2")),
        )  # fmt: skip
        assert msgspec.json.decode(packet.data) == {
            "task": "go", "args": [1], "kwargs": {"a": 2}, "timeout": 5.0,
        }  # fmt: skip
        assert (caller.principal.holder, caller.principal.standing) == ("uid:7", Standing.OWNER)
        assert caller.features == {"push"}
        respond(caller, packet, 202, {"workers": ["w1", "w2"], "status": "DISPATCHED"})
        respond(caller, packet, 201, {"worker": "w1", "status": "ACCEPTED"})
        respond(caller, packet, 200, event_body(), Command.EVENT)
        respond(caller, packet, 200, {"w1": {"result": 1, "failed": False}})
        await settle()
        assert not peer.seen
        respond(caller, packet, 408, {"worker": "w2", "error": "nothing came", "status": "EXPIRED"})
        assert await record(peer) == {
            "uuid": packet.uuid,
            "results": {"w1": {"result": 1, "failed": False}},
            "failures": {"w2": {"status": 408, "error": "nothing came"}},
        }

    with_face(script)


def test_a_stream_gets_everything_in_order_and_then_its_end():
    async def script(peer, broker):
        peer.call("nfp.lab.go", {"target": "any", "uuid": "job-1"}, flags=S, rolemask=GUEST)
        caller, packet = await broker.next()
        assert (packet.uuid, caller.principal.standing, packet.target.kind) == ("job-1", Standing.USER, "any")
        respond(caller, packet, 300, {"workers": [], "status": "PENDING"})
        assert await record(peer) == {
            "type": "accepted", "uuid": "job-1", "status": "queued", "workers": [],
        }  # fmt: skip
        respond(caller, packet, 202, {"workers": []})
        respond(caller, packet, 201, {"worker": "w1", "status": "ACCEPTED"})
        respond(caller, packet, 200, event_body(), Command.EVENT)
        respond(caller, packet, 200, b"\x00\xff", Command.STREAM)
        respond(caller, packet, 202, {"workers": ["w1"]})
        respond(caller, packet, 200, {"w1": {"result": "ok"}})
        told = [await record(peer) for _ in range(6)]
        assert told[0]["kind"] == "accepted"
        assert (told[1]["message"], told[1]["event"]["task"]) == ("half", "go")
        assert told[2] == {"type": "stream", "data": "AP8="}
        assert told[3] == {"type": "accepted", "uuid": "job-1", "status": "dispatched", "workers": ["w1"]}
        assert told[4] == {"type": "result", "worker": "w1", "result": {"result": "ok"}}
        assert told[5][0] == errno.ENODATA

    with_face(script)


@for_each(
    ("status", "text", "number"),
    [
        (408, "no worker within 60 s", errno.ETIMEDOUT),
        (400, "not allowed: a user may not call lab go", errno.EPERM),
        (400, "this uuid is in use", errno.EEXIST),
        (400, "target w-9 is none", errno.EINVAL),
        (400, "unknown uuid job-1", errno.ENOENT),
        (404, "job not found", errno.ENOENT),
        (417, "cancelled", errno.ECANCELED),
        (500, "queue of service lab is full (10000)", errno.EAGAIN),
        (500, "the disk is gone", errno.EIO),
    ],
)
def test_a_job_that_fails_is_an_error_number_and_its_text(status, text, number):
    async def script(peer, broker):
        for flags in (0, S):
            peer.call("nfp.lab.go", flags=flags)
            caller, packet = await broker.next()
            respond(caller, packet, status, {"error": text, "errors": [text]})
            assert await record(peer) == (number, text)

    with_face(script)


@for_each(
    ("topic", "payload", "number", "text"),
    [
        ("nfp.lab", {}, errno.ENOSYS, "expected nfp.SERVICE.TASK"),
        ("nfp", {}, errno.ENOSYS, "expected nfp.SERVICE.TASK"),
        ("nfp.lab.", {}, errno.ENOSYS, "expected nfp.SERVICE.TASK"),
        ("nfp.lab.go", {"targets": "all"}, errno.EINVAL, "targets"),
        ("nfp.lab.go", {"args": 1}, errno.EINVAL, "args"),
        ("nfp.lab.go", {"timeout": 0}, errno.EINVAL, "timeout"),
        ("nfp.lab.go", {"target": []}, errno.EINVAL, "target [], expected names of workers"),
        ("nfp.lab.go", {"uuid": "x" * 256}, errno.EINVAL, "uuid"),
        ("nfp.lab.go", b"junk\0", errno.EINVAL, "JSON object"),
        ("nfp.run", {"service": "lab"}, errno.EINVAL, "task"),
        ("nfp.jobs.show", {}, errno.EINVAL, "uuid"),
        ("nfp.jobs.show", {"uuid": "nobody's"}, errno.ENOENT, 'no job "nobody\'s" that you may see'),
        ("nfp.jobs.list", {"limit": 0}, errno.EINVAL, "limit"),
        ("nfp.jobs.list", {"stat": "open"}, errno.EINVAL, "stat"),
        ("nfp.jobs.count", {"state": "odd"}, errno.EINVAL, "state 'odd'"),
        ("nfp.events.service.broker.subscribe", {}, errno.EINVAL, "nfp.job.UUID.KIND"),
    ],
)
def test_requests_that_make_no_sense(topic, payload, number, text):
    async def script(peer, broker):
        got, said = await asked(peer, topic, payload)
        assert (got, broker.submitted) == (number, [])
        assert text in said

    with_face(script)


def test_run_reaches_names_that_topics_cannot():
    async def script(peer, broker):
        peer.call("nfp.run", {"service": "jobs", "task": "cancel", "kwargs": {"a": 1}})
        caller, packet = await broker.next()
        assert (packet.service, msgspec.json.decode(packet.data)["task"]) == ("jobs", "cancel")
        respond(caller, packet, 200, {"w1": {"result": 1}})
        respond(caller, packet, 202, {"workers": ["w1"]})
        assert (await record(peer))["results"] == {"w1": {"result": 1}}

    with_face(script)


def test_services_of_the_broker_itself_answer_at_once():
    async def script(peer, broker):
        peer.call("nfp.mmi.service.broker.show_workers", {"kwargs": {"status": "alive"}})
        caller, packet = await broker.next()
        assert packet.service == "mmi.service.broker"
        respond(caller, packet, 200, [{"name": "w1"}])
        respond(caller, packet, 200, [{"name": "w1"}], Command.MMI)
        assert (await record(peer))["results"] == {"": [{"name": "w1"}]}
        peer.call("nfp.mmi.service.broker.restart", rolemask=GUEST)
        caller, packet = await broker.next()
        respond(
            caller, packet, 400, {"error": "not allowed: mmi.service.broker restart needs the owner role"}
        )
        assert (await record(peer))[0] == errno.EPERM
        await settle()
        assert not peer.seen

    with_face(script)


def test_the_uuid_is_told_before_a_worker_is_chosen():
    async def script(peer, broker):
        peer.call("nfp.lab.go", {"target": "any"}, flags=S)
        caller, packet = await broker.next()
        for _ in range(2):
            respond(caller, packet, 202, {"workers": []})
        respond(caller, packet, 202, {"workers": ["w1"]})
        told = [await record(peer) for _ in range(2)]
        assert [(each["type"], each["uuid"], each["workers"]) for each in told] == [
            ("accepted", packet.uuid, []),
            ("accepted", packet.uuid, ["w1"]),
        ]
        respond(caller, packet, 200, {"w1": {}})
        await peer.next()
        await peer.next()

    with_face(script)


def test_a_slow_reader_misses_events_and_knows_but_no_result():
    async def script(peer, broker):
        peer.call("nfp.lab.go", {"target": "w1"}, flags=S)
        caller, packet = await broker.next()
        respond(caller, packet, 202, {"workers": ["w1"]})
        for number in range(2000):  # all before the handler runs once more
            respond(caller, packet, 200, event_body(f"step {number}"), Command.EVENT)
        respond(caller, packet, 200, {"w1": {"result": 1}})
        told = []
        while not told or not isinstance(told[-1], tuple):
            told.append(await record(peer))
        events = [each for each in told[:-1] if each["type"] == "event"]
        assert [each["message"] for each in events[-2:]] == ["step 1998", "step 1999"]
        lost = next(each["lost"] for each in told[:-1] if each["type"] == "gap")
        assert [each["type"] for each in told[:2]] == ["gap", "accepted"], "the uuid is told all the same"
        assert (told[1]["uuid"], told[1]["workers"]) == (packet.uuid, ["w1"])
        assert len(events) + lost - 1 == 2000, "the word that it was accepted is one of them"
        assert [each["result"] for each in told[:-1] if each["type"] == "result"] == [{"result": 1}]

    with_face(script)


# ---------------------------------------------------------------- two requests, one job


def test_the_same_uuid_twice_is_one_job_and_another_job_is_refused():
    async def script(peer, broker):
        payload = {"uuid": "u", "target": "w1"}
        peer.call("nfp.lab.go", payload, tag=1)
        caller, packet = await broker.next()
        respond(caller, packet, 202, {"workers": ["w1"]})
        broker.known["u"] = job_view("u", ("w1", "dispatched"), client=caller.name)
        peer.call("nfp.lab.go", payload, tag=2)
        peer.call("nfp.lab.go", {**payload, "args": [1]}, tag=3)
        refused = await peer.next()
        assert (refused.matchtag, refused.errnum) == (3, errno.EEXIST)
        assert broker.submitted == []
        respond(caller, packet, 200, {"w1": {"result": 1}})
        answers = [await peer.next() for _ in range(2)]
        assert sorted(answer.matchtag for answer in answers) == [1, 2]
        assert {any_text(answer.payload) for answer in answers} == {
            '{"uuid":"u","results":{"w1":{"result":1}},"failures":{}}'
        }

    with_face(script)


def test_who_waits_for_a_job_is_told_nothing_of_another_one_when_who_submitted_it_has_left():
    async def script(peer, broker):
        payload = {"uuid": "u", "target": "w1"}
        peer.call("nfp.lab.go", payload, tag=1, flags=S)
        caller, packet = await broker.next()
        view = job_view("u", ("w1", "dispatched"), client=caller.name)
        broker.known["u"] = view._replace(body=packet.data, target=packet.target)
        for topic, what, tag in (("nfp.lab.go", payload, 2), ("nfp.jobs.attach", {"uuid": "u"}, 3)):
            peer.call(topic, what, tag=tag)
        await settle()
        peer.call("nfp.cancel", {"matchtag": 1}, flags=wire.NORESPONSE)
        assert (await peer.next()).matchtag == 1
        peer.call("nfp.lab.go", {**payload, "args": [1]}, tag=4)
        refused = await peer.next()
        assert (refused.matchtag, refused.errnum) == (4, errno.EEXIST)
        assert broker.submitted == []
        respond(caller, packet, 200, {"w1": {"result": 1}})
        assert sorted([(await peer.next()).matchtag for _ in range(2)]) == [2, 3]

    with_face(script)


def test_all_sessions_of_a_user_are_one_caller_and_others_are_another():
    async def script(peer, broker):
        for rolemask in (GUEST, GUEST, int(Role.OWNER)):
            peer.call("nfp.lab.go", rolemask=rolemask)
        callers = [(await broker.next())[0] for _ in range(3)]
        assert callers[0] is callers[1]
        assert callers[0] is not callers[2]
        assert [caller.name for caller in callers[1:]] == ["flux:7:user", "flux:7:owner"]

    with_face(script)


# ---------------------------------------------------------------- callers that leave


def test_a_job_survives_its_caller_unless_it_is_to_end_with_it():
    async def script(peer, broker):
        for tag, cancel in ((1, False), (2, True), (3, True)):
            peer.call("nfp.lab.go", {"cancel_with_caller": cancel, "uuid": f"u{tag}"}, tag=tag, flags=S)
            await broker.next()
        peer.call("nfp.cancel", {"matchtag": 1}, flags=wire.NORESPONSE)
        assert (await peer.next()).errnum == errno.ENODATA
        await settle()
        assert broker.submitted == []
        peer.call("nfp.cancel", {"matchtag": 2}, flags=wire.NORESPONSE)
        assert (await peer.next()).errnum == errno.ENODATA
        _caller, packet = await broker.next()
        assert (packet.command, packet.uuid) == (Command.DELETE, "u2")
        peer.call("nfp.lab.disconnect", flags=wire.NORESPONSE)
        _caller, packet = await broker.next()
        assert (packet.command, packet.uuid) == (Command.DELETE, "u3")
        await settle()
        assert (broker.submitted, list(peer.seen)) == ([], [])

    with_face(script)


def test_a_face_that_leaves_cancels_no_job():
    seen = []

    async def script(peer, broker):
        seen.append(broker)
        peer.call("nfp.lab.go")
        await broker.next()

    with_face(script)
    assert seen[0].submitted == []


# ---------------------------------------------------------------- jobs that are there


def test_attach_follows_a_job_that_another_peer_submitted():
    async def script(peer, broker):
        broker.known["u"] = job_view("u", ("w1", "final"), ("w2", "accepted"), client="cli")
        peer.call("nfp.jobs.attach", {"uuid": "u"}, flags=S)
        assert await record(peer) == {
            "type": "accepted", "uuid": "u", "status": "dispatched", "workers": ["w1", "w2"],
        }  # fmt: skip
        caller, packet = await broker.next()
        assert (packet.command, packet.target) == (Command.GET, ALL)
        respond(caller, packet, 200, {"w1": {"result": 1}})
        respond(caller, packet, 300, {"worker": "w2", "status": "STARTED"})
        assert (await record(peer))["worker"] == "w1"
        body = msgspec.json.encode(event_body(worker="w2"))
        broker.event_bus.publish(happening("progress", "u", body=body))
        broker.event_bus.publish(happening("progress", "another", body=body))
        assert (await record(peer))["message"] == "half"
        broker.known["u"] = job_view("u", ("w1", "final"), ("w2", "final"), client="cli", state="done")
        broker.event_bus.publish(happening("finished", "u", worker="w2"))
        caller, packet = await broker.next()
        respond(caller, packet, 200, {"w1": {"result": 1}})
        respond(caller, packet, 200, {"w2": {"result": 2}})
        assert (await record(peer))["worker"] == "w2"
        assert (await record(peer))[0] == errno.ENODATA

    with_face(script)


def test_attach_to_a_cancelled_job_without_results():
    async def script(peer, broker):
        broker.known["u"] = job_view("u", ("", "waiting"), client="cli")
        peer.call("nfp.jobs.attach", {"uuid": "u"})
        await settle()
        del broker.known["u"]
        broker.event_bus.publish(happening("cancelled", "u"))
        assert (await record(peer))[0] == errno.ENODATA

    with_face(script)


def test_a_closed_job_is_found_by_all_who_ask_for_it():
    async def script(peer, broker):
        broker.known["u"] = job_view("u", ("w1", "final"), client="cli", state="done")
        for tag, method in enumerate(("attach", "result"), 1):
            peer.call(f"nfp.jobs.{method}", {"uuid": "u"}, tag=tag)
            caller, packet = await broker.next()
            assert packet.command is Command.GET
            respond(caller, packet, 200, {"w1": {"result": 1}})
            assert (await record(peer))["results"] == {"w1": {"result": 1}}
        peer.call("nfp.jobs.show", {"uuid": "u"})
        assert (await record(peer))["state"] == "done"
        peer.call("nfp.jobs.cancel", {"uuid": "u"})
        assert await record(peer) == {"uuid": "u", "state": "done"}

    with_face(script)


def test_a_job_that_cannot_be_read_is_an_error():
    async def script(peer, broker):
        broker.unreadable["u"] = "the store does not answer"
        for method in ("attach", "result", "show", "cancel"):
            peer.call(f"nfp.jobs.{method}", {"uuid": "u"})
            assert await record(peer) == (errno.EIO, "the store does not answer")

    with_face(script)


def test_jobs_of_others_are_not_there():
    async def script(peer, broker):
        broker.known["mine"] = job_view("mine", ("w1", "final"), state="done")
        broker.known["theirs"] = job_view("theirs", ("w1", "accepted"), holder="key:x")
        for method in ("show", "result", "attach", "cancel"):
            said = await asked(peer, f"nfp.jobs.{method}", {"uuid": "theirs"}, rolemask=GUEST)
            assert said == (errno.ENOENT, "no job 'theirs' that you may see")
        assert broker.submitted == []
        for rolemask, uuids in ((GUEST, ["mine"]), (int(Role.OWNER), ["theirs", "mine"])):
            peer.call("nfp.jobs.list", rolemask=rolemask)
            assert [row["uuid"] for row in (await record(peer))["jobs"]] == uuids
        peer.call("nfp.jobs.list", {"mine": True, "state": "done"})
        assert [row["uuid"] for row in (await record(peer))["jobs"]] == ["mine"]
        peer.call("nfp.jobs.list", {"limit": 1})
        told = await record(peer)
        assert (told["total"], told["more"], told["jobs"][0]["age_s"]) == (2, True, 1.0)
        assert [part["worker"] for part in told["jobs"][0]["parts"]] == ["w1"]
        peer.call("nfp.jobs.count", rolemask=GUEST)
        assert await record(peer) == {
            "open": 0, "done": 1, "failed": 0, "cancelled": 0, "expired": 0, "more": False,
        }  # fmt: skip
        peer.call("nfp.jobs.show", {"uuid": "theirs"})
        assert (await record(peer))["parts"][0]["worker"] == "w1"

    with_face(script)


def test_result_says_what_is_there_and_does_not_wait():
    async def script(peer, broker):
        broker.known["u"] = job_view("u", ("w1", "final"), ("w2", "accepted"))
        peer.call("nfp.jobs.result", {"uuid": "u"})
        caller, packet = await broker.next()
        respond(caller, packet, 300, {"worker": "w2", "status": "STARTED"})
        respond(caller, packet, 200, {"w1": {"result": 1}})
        assert await record(peer) == {
            "state": "open", "uuid": "u", "results": {"w1": {"result": 1}}, "failures": {},
        }  # fmt: skip
        broker.known["u"] = job_view("u", ("w1", "accepted"))
        peer.call("nfp.jobs.result", {"uuid": "u"})
        assert (await record(peer))["results"] == {}
        assert broker.submitted == []

    with_face(script)


def test_cancel_of_a_job_that_is_over_when_the_broker_hears_of_it_is_answered_at_once():
    async def script(peer, broker):
        broker.known["u"] = job_view("u", ("w1", "accepted"), holder="uid:8")
        peer.call("nfp.jobs.cancel", {"uuid": "u"})
        caller, packet = await broker.next()
        broker.known["u"] = job_view("u", ("w1", "final"), holder="uid:8", state="done")
        respond(caller, packet, 202, {"status": "COMPLETED", "workers": []})
        assert await record(peer) == {"uuid": "u", "state": "done"}

    with_face(script)


def test_cancel_of_a_job():
    async def script(peer, broker):
        broker.known["u"] = job_view("u", ("w1", "accepted"))
        peer.call("nfp.jobs.cancel", {"uuid": "u"})
        caller, packet = await broker.next()
        assert packet.command is Command.DELETE
        broker.known["u"] = job_view("u", ("w1", "final"), state="cancelled")
        respond(caller, packet, 202, {"workers": ["w1"], "status": "CANCELLED"})
        assert await record(peer) == {"uuid": "u", "state": "cancelled"}
        peer.call("nfp.jobs.cancel", {"uuid": "u"})
        assert await record(peer) == {"uuid": "u", "state": "cancelled"}
        assert broker.submitted == []
        broker.known["v"] = job_view("v", ("w1", "accepted"))
        peer.call("nfp.jobs.cancel", {"uuid": "v"})
        caller, packet = await broker.next()
        respond(caller, packet, 400, {"error": "unknown uuid v"})
        assert await record(peer) == (errno.ENOENT, "unknown uuid v")

    with_face(script)


def test_answer_to_an_input_request():
    async def script(peer, broker):
        broker.known["u"] = job_view("u", ("w1", "accepted"))._replace(asked=("w1",))
        peer.call("nfp.jobs.answer", {"uuid": "u", "input_id": "q1", "value": "yes"})
        assert (await record(peer))["workers"] == ["w1"]
        _caller, packet = await broker.next()
        assert (packet.command, packet.target) == (Command.PUT, Target("list", ("w1",)))
        assert msgspec.json.decode(packet.data)["value"] == "yes"
        broker.known["u"] = job_view("u", ("w1", "accepted"))
        peer.call("nfp.jobs.answer", {"uuid": "u", "input_id": "q1"})
        assert (await record(peer))[0] == errno.EINVAL

    with_face(script)


def test_an_nfp_broker_that_ends_its_peer_leaves_nobody_waiting():
    async def script(peer, broker):
        peer.call("nfp.lab.go")
        caller, _packet = await broker.next()
        caller.alive = False
        caller.on_lost("it stops")
        assert await record(peer) == (errno.EIO, "the NFP broker has left: it stops")
        peer.call("nfp.lab.go", {"target": "w1"})
        again, packet = await broker.next()
        assert again is not caller
        respond(again, packet, 200, {"w1": {}})
        await record(peer)

    with_face(script)


@for_each("rule", ["holder", "user"])
def test_results_of_others_by_the_rule_and_nothing_else(rule):
    async def script(peer, broker):
        broker.access = Access(results=rule)
        broker.known["u"] = job_view("u", ("w1", "accepted"), holder="uid:4711")
        for topic in ("show", "result", "attach", "cancel", "answer"):
            payload = {"uuid": "u", "input_id": "i"} if topic == "answer" else {"uuid": "u"}
            peer.call(f"nfp.jobs.{topic}", payload, rolemask=int(Role.USER))
            got = await record(peer)
            assert (isinstance(got, dict) and got["uuid"]) or got[0] == errno.ENOENT
            assert isinstance(got, dict) == (rule == "user" and topic in ("show", "result"))

    with_face(script)


# ---------------------------------------------------------------- who shares a userid


def test_an_owner_that_runs_as_nobody_is_one_caller():
    """Containers run programs as 65534: a job that is submitted once more, behind a lost link, is the same one."""

    async def script(peer, broker):
        callers = []
        for _again in range(2):
            peer.call("nfp.lab.go", {"target": "any", "uuid": "job-1"}, userid=65534, rolemask=1)
            callers.append((await broker.next())[0])
            await settle()
        assert callers[0] is callers[1]
        assert callers[0].principal.holds("uid:65534")

    with_face(script)


def test_nobody_owns_no_job_and_gets_the_answer_to_its_own_call():
    """All that log in by a link, and whatever runs as nobody, have one userid: none is shown another's job."""

    async def script(peer, broker):
        nobody = {"userid": 65534, "rolemask": GUEST}
        peer.call("nfp.lab.go", {"target": "any", "uuid": "job-1"}, **nobody)
        caller, packet = await broker.next()
        peer.call("nfp.lab.go", {"target": "any", "uuid": "job-1"}, sender=(b"other",), **nobody)
        other, again = await broker.next()
        assert (again.command, again.uuid) == (Command.POST, "job-1"), "no answer of the first is passed on"
        assert other.name != caller.name
        respond(other, again, 400, {"error": "the uuid is in use", "status": "FAILED"})
        assert (await record(peer))[0]
        broker.known["job-1"] = job_view("job-1", ("w1", "running"), holder="uid:65534", userid=65534)
        for method in ("show", "result", "attach", "cancel"):
            peer.call(f"nfp.jobs.{method}", {"uuid": "job-1"}, **nobody)
            assert (await record(peer))[0] == errno.ENOENT, method
        peer.call("nfp.jobs.list", {}, **nobody)
        assert (await record(peer))["jobs"] == []
        respond(caller, packet, 202, {"workers": ["w1"]})
        respond(caller, packet, 200, {"w1": {"result": 1}})
        assert (await record(peer))["results"] == {"w1": {"result": 1}}

    with_face(script)
