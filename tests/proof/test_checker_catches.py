"""Wrong logs, made by hand: every rule catches what it is there for."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.proof import logs
from tests.proof.checker import check
from tests.proof.checker.judge import Unjudgeable
from tests.proof.record import LOCAL, OWNER, USER
from tests.proof.scene import busy
from tests.proof.test_checker_passes import lively

pytestmark = pytest.mark.tools


WRONG: list[tuple[Callable[..., None], Callable[[], Any], str, str, dict[str, Any]]] = []


def staged():
    scene, conns = busy()
    lively(scene, conns)
    return scene, conns


def working():
    scene, _ = staged()
    client = scene.up("nc", "nfp", host=1)
    job = scene.job(client)
    scene.run(job, "w2")
    scene.done(job, "w2")
    return scene, client


def wrong(rule: str, text: str = "", *, at: Callable[[], Any] = staged, **given: Any):
    """Mark a story of which the checker has to say that ``rule`` is broken, with ``text`` in what it says."""

    def noted(story):
        WRONG.append((story, at, rule, text, given))
        return story

    return noted


def test_every_wrong_story_is_caught(tmp_path):
    missed = {}
    for number, (story, at, rule, text, given) in enumerate(WRONG):
        scene, other = at()
        story(scene, other, **given)
        verdict = scene.end().judged(tmp_path / str(number))
        if verdict.ok or not any(one.rule == rule and text in one.what for one in verdict.violations):
            missed[f"{story.__name__} {given or ''}"] = [str(one) for one in verdict.violations]
    assert missed == {}


# -- C0 ------------------------------------------------------------------------------------------------


@wrong("C0", "did not send")
def a_request_that_nobody_sent(scene, conns):
    forged = {"id": "x-1", "n": 0, "conn": "x#1"}
    scene.serve(forged, conns["b"])


@wrong("C0", "did not send")
def a_request_in_another_connections_name(scene, conns):
    call = scene.call(conns["a"], "sb")
    scene.serve({**call, "conn": conns["c"]}, conns["b"])


@wrong("C0", "nobody had published")
def an_event_that_nobody_published(scene, conns):
    scene.event({"id": "x-1", "topic": "t.x"}, conns["b"], scene.seq + 1)


@wrong("C0", "ended by itself")
def a_connection_that_ends_by_itself(scene, conns):
    scene.down(conns["b"], "LinkBroken: reset")


@wrong("C0", "ended by itself")
def a_connection_that_a_distant_fault_does_not_explain(scene, conns):
    scene.fault(True, "kill9", members=["broker-2"], ranks=[2])
    scene.down(conns["b"], "LinkBroken: reset")
    scene.fault(False, "kill9", members=["broker-2"], ranks=[2])


@wrong("C0", "sent and got nothing")
def a_party_that_did_nothing(scene, _):
    scene.up("idle", 2)


@wrong("C0", "never taken away")
def a_fault_that_never_ends(scene, _):
    scene.fault(True, "freeze", members=["broker-2"], ranks=[2])


@wrong("C0", "had a way that no fault touched", at=busy)
def a_run_whose_faults_leave_nothing_to_judge(scene, conns):
    scene.fault(True, "freeze", members=["broker-0"], ranks=[0, 1])
    for _ in range(20):
        scene.answer(scene.call(conns["a"], "sb"), 113)
    scene.fault(False, "freeze", members=["broker-0"], ranks=[0, 1])


def test_logs_that_do_not_say_what_the_world_was(tmp_path):
    for missing in ("world", "load"):
        scene, _ = staged()
        scene.lines["driver"] = [line for line in scene.lines["driver"] if line["ev"] != missing]
        scene.save(tmp_path)
        with pytest.raises(Unjudgeable):
            check(tmp_path)


def test_times_that_run_backwards(tmp_path):
    scene, _ = staged()
    scene.lines["a"][-1]["t"] = 1.0
    scene.save(tmp_path)
    with pytest.raises(Unjudgeable):
        check(tmp_path)


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(FileNotFoundError):
        check(tmp_path)


# -- C1 ------------------------------------------------------------------------------------------------


@wrong("C1", "no end")
def a_call_that_hangs(scene, conns):
    scene.serve(scene.call(conns["a"], "sb"), conns["b"])


@wrong("C1", "no end")
def a_call_that_hangs_through_a_fault(scene, conns):
    scene.call(conns["a"], "sb")
    scene.during("kill9", members=["broker-3"], ranks=[3])


@wrong("C1", "2 ends")
def a_call_that_is_answered_twice(scene, conns):
    call = scene.rpc(conns["a"], "sb", conns["b"])
    scene.answer(call, 113)


@wrong("C1", "went on")
def a_call_given_up_as_lost_on_a_connection_that_goes_on(scene, conns):
    scene.fault(True, "freeze", members=["broker-3"], ranks=[3])
    scene.gave_up(scene.call(conns["a"], "sb"), "lost")
    scene.fault(False, "freeze", members=["broker-3"], ranks=[3])


def test_a_call_that_hangs_until_its_party_leaves(tmp_path):
    scene, conns = staged()
    scene.fault(True, "kill9", members=["broker-3"], ranks=[3])
    call = scene.call(conns["a"], "sb")
    line = scene.add("a", "publish", conn=conns["a"], id="a-99", topic="t.x", private=False)
    scene.fault(False, "kill9", members=["broker-3"], ranks=[3])
    scene.wait(60)
    scene.down(conns["a"])
    scene.gave_up(call)
    scene.add("a", "unpublished", id=line["id"], errnum=-1)
    verdict = scene.end().judged(tmp_path)
    assert verdict.broken == {"C1": 2}


@wrong("C1", "publishing")
def publishing_without_end(scene, conns):
    scene.publish(conns["a"], "t.x", *conns.values(), acknowledge=False)


# -- C2, C3, C4 ----------------------------------------------------------------------------------------


@wrong("C2")
def a_request_that_is_served_twice(scene, conns):
    call = scene.call(conns["a"], "sb")
    scene.serve(call, conns["b"])
    scene.serve(call, conns["b"])
    scene.answer(call, by=conns["b"])


@wrong("C2")
def a_request_that_is_served_twice_around_a_fault(scene, conns):
    call = scene.call(conns["a"], "sb")
    scene.serve(call, conns["b"])
    scene.during("partition", links=[[0, 1]])
    scene.serve(call, conns["b"])
    scene.answer(call, 113)


@wrong("C3")
def requests_that_overtake_each_other(scene, conns):
    first, second = scene.call(conns["a"], "sb"), scene.call(conns["a"], "sb")
    for call in (second, first):
        scene.serve(call, conns["b"])
        scene.answer(call, by=conns["b"])


@wrong("C3")
def calls_to_any_rank_of_a_gateway_that_overtake_each_other(scene, conns):
    first, second = scene.call(conns["w"], "sa", node=None), scene.call(conns["w"], "sa", node=None)
    for call in (second, first):
        scene.serve(call, conns["a"], 1001)
        scene.answer(call, by=conns["a"])


@wrong("C3")
def a_request_from_before_a_cut_that_arrives_after_one_from_behind_it(scene, conns):
    first = scene.call(conns["a"], "sb")
    scene.during("partition", links=[[0, 1]])
    scene.answer(first, 113)
    scene.wait(4)
    scene.rpc(conns["a"], "sb", conns["b"])
    scene.serve(first, conns["b"])


@wrong("C4", order=[0, 2, 1])
@wrong("C4", order=[0, 1, 1, 2])
@wrong("C4", order=[0, 2])
@wrong("C4", order=[1, 2])
def responses_out_of_order_or_missing(scene, conns, order):
    call = scene.call(conns["a"], "sb", stream=3)
    scene.serve(call, conns["b"])
    for k in order:
        scene.answer(call, by=conns["b"], k=k, last=False)
    scene.answer(call, 61)


@wrong("C4", "behind its end")
def a_response_behind_the_end(scene, conns):
    call = scene.stream(conns["a"], "sb", conns["b"], 2)
    scene.answer(call, by=conns["b"], k=2, last=False)


# -- C5, C6 --------------------------------------------------------------------------------------------


@wrong("C5", "live way", errnum=113)
@wrong("C5", "live way", errnum=38)
@wrong("C5", "live way", errnum=11)
def an_error_on_a_live_way(scene, conns, errnum):
    scene.answer(scene.call(conns["a"], "sb"), errnum)


@wrong("C5", "given up")
def a_timeout_on_a_live_way(scene, conns):
    scene.gave_up(scene.call(conns["a"], "sb"), "timeout")


@wrong("C5", "3 of 5")
def a_stream_that_ends_early(scene, conns):
    call = scene.call(conns["a"], "sb", stream=5)
    scene.serve(call, conns["b"])
    for k in range(3):
        scene.answer(call, by=conns["b"], k=k, last=False)
    scene.answer(call, 61)


@wrong("C5", "live way", fault={"kind": "kill9", "members": ["broker-2"], "ranks": [2]})
@wrong("C5", "live way", fault={"kind": "partition", "links": [[0, 2], [1, 2]]})
@wrong("C5", "live way", fault={"kind": "slow", "members": ["c"]})
@wrong("C5", "live way", fault={"kind": "clock", "on": "broker-3"})
@wrong("C5", "live way", fault={"kind": "kill9", "members": ["gateway"]})
@wrong("C5", "live way", fault={"kind": "directory", "members": ["redis"]})
def an_error_beside_a_fault_that_is_none_of_its_business(scene, conns, fault):
    scene.fault(True, **fault)
    scene.answer(scene.call(conns["a"], "sb"), 113)
    scene.fault(False, **fault)


@wrong("C5", "live way")
def calls_within_one_rank_survive_what_happens_above_it(scene, conns):
    scene.fault(True, "partition", links=[[0, 1]])
    scene.answer(scene.call(conns["b"], "sb"), 113)
    scene.fault(False, "partition", links=[[0, 1]])


@wrong("C5", "live way")
def an_error_long_after_a_fault(scene, conns):
    scene.during("kill9", members=["broker-3"], ranks=[3], settle_s=2.0)
    scene.wait(2.5)
    scene.answer(scene.call(conns["a"], "sb"), 113)


@wrong("C6", errnum=1)
@wrong("C6", errnum=22)
@wrong("C6", errnum=71)
@wrong("C6", errnum=5)
@wrong("C6", errnum=108)
@wrong("C6", errnum=-1)
def an_error_that_is_not_documented(scene, conns, errnum):
    scene.fault(True, "kill9", members=["broker-3"], ranks=[3])
    scene.answer(scene.call(conns["a"], "sb"), errnum)
    scene.fault(False, "kill9", members=["broker-3"], ranks=[3])


@wrong("C6", "not EPERM")
def a_forbidden_call_with_another_error(scene, conns):
    scene.answer(scene.call(conns["u"], "sb", expect="EPERM"), 38)


@wrong("C5", "publishing")
def publishing_that_fails_on_a_live_way(scene, conns):
    line = scene.add("a", "publish", conn=conns["a"], id="a-99", topic="t.x", private=False)
    scene.add("a", "unpublished", id=line["id"], errnum=113)


@wrong("C6", "publishing")
def publishing_that_fails_in_an_undocumented_way(scene, conns):
    scene.fault(True, "kill9", members=["broker-0"], ranks=[0])
    line = scene.add("b", "publish", conn=conns["b"], id="b-99", topic="t.x", private=False)
    scene.add("b", "unpublished", id=line["id"], errnum=71)
    scene.fault(False, "kill9", members=["broker-0"], ranks=[0])


# -- C7, C8 --------------------------------------------------------------------------------------------


@wrong("C8", "u#1 never got")
def an_event_that_one_subscriber_never_gets(scene, conns):
    scene.publish(conns["a"], "t.x", *(conns[n] for n in "abcw"))


@wrong("C8", "u#1 never got")
def an_event_that_nobody_acknowledged_and_others_have_seen(scene, conns):
    line = scene.publish(conns["a"], "t.x", *(conns[n] for n in "abcw"), acknowledge=False)
    scene.add("a", "unpublished", id=line["id"], errnum=113)


@wrong("C8", "u#1 never got")
def a_lost_event_is_none_the_better_for_being_told(scene, conns):
    scene.publish(conns["a"], "t.x", *(conns[n] for n in "abcw"))
    scene.gap(conns["u"])


@wrong("C7", "b#1 was passed over")
def a_silent_gap_behind_a_cut(scene, conns):
    scene.fault(True, "partition", links=[[0, 1]])
    scene.publish(conns["a"], "t.x", conns["a"])
    scene.fault(False, "partition", links=[[0, 1]])
    scene.wait(4)
    for name in "wu":
        scene.gap(conns[name], -1)
    lively(scene, conns)


@wrong("C7", "w#1 was passed over")
def a_gap_that_only_the_broker_knows_of_is_silent_for_a_web_client(scene, conns):
    scene.fault(True, "partition", links=[[0, 1]])
    scene.publish(conns["a"], "t.x", conns["a"])
    scene.add("driver", "told", rank=1, first=scene.seq, last=scene.seq)
    scene.fault(False, "partition", links=[[0, 1]])
    scene.wait(4)
    scene.gap(conns["u"])
    lively(scene, conns)


@wrong("C7", "u#1 was passed over")
def a_gap_of_fewer_events_than_are_missing(scene, conns):
    scene.fault(True, "slow", members=["u"])
    for _ in range(3):
        scene.publish(conns["a"], "t.x", *(conns[n] for n in "abcw"))
    scene.fault(False, "slow", members=["u"])
    scene.gap(conns["u"], 2)
    scene.wait(4)
    lively(scene, conns)


@wrong("C7", "w#1 was passed over")
def an_old_gap_does_not_excuse_a_new_one(scene, conns):
    scene.gap(conns["w"])
    lively(scene, conns)
    scene.fault(True, "freeze", members=["gateway"])
    scene.publish(conns["a"], "t.x", *(conns[n] for n in "abc"))
    scene.fault(False, "freeze", members=["gateway"])
    scene.gap(conns["u"])
    scene.wait(4)
    lively(scene, conns)


@wrong("C7", "twice")
def an_event_that_comes_twice(scene, conns):
    line = scene.publish(conns["a"], "t.x", *conns.values())
    scene.event(line, conns["b"], scene.seq)


@wrong("C7", "after")
def events_out_of_order(scene, conns):
    first = scene.publish(conns["a"], "t.x", *(conns[n] for n in "acwu"))
    scene.publish(conns["a"], "t.x", *conns.values())
    scene.event(first, conns["b"], scene.seq - 1)


@wrong("C7", "has the numbers")
def one_event_with_two_numbers(scene, conns):
    line = scene.publish(conns["a"], "t.x", *(conns[n] for n in "abcw"))
    scene.event(line, conns["u"], scene.seq + 1)


@wrong("C7", "both have the number")
def two_events_with_one_number(scene, conns):
    scene.publish(conns["a"], "t.x", *conns.values())
    scene.seq -= 1
    scene.publish(conns["a"], "z.x")


@wrong("C7")
def numbers_that_begin_anew_without_a_new_rank_0(scene, conns):
    scene.seq = 0
    lively(scene, conns)


# -- C9 ------------------------------------------------------------------------------------------------


@wrong("C9", "was stamped 0", userid=0, roles=OWNER)
@wrong("C9", "was stamped", userid=0xFFFFFFFF, roles=0)
@wrong("C9", "of roles", userid=1500, roles=OWNER | USER)
@wrong("C9", "of roles", userid=1500, roles=0)
@wrong("C9", "LOCAL", userid=1500, roles=USER | LOCAL)
def a_stamp_that_says_too_much(scene, conns, userid, roles):
    call = scene.call(conns["c"], "sa")
    scene.serve(call, conns["a"], userid, roles)
    scene.answer(call, by=conns["a"])


@wrong("C9", "policy forbids")
def a_forbidden_call_that_is_served(scene, conns):
    call = scene.call(conns["c"], "sa", expect="EPERM")
    scene.serve(call, conns["a"], 1500, USER)
    scene.answer(call, 1)


@wrong("C9", "succeeded")
def a_forbidden_call_that_succeeds(scene, conns):
    scene.answer(scene.call(conns["u"], "secret", expect="EPERM"), 0)


@wrong("C9", "policy forbids")
def a_forbidden_event_that_is_published(scene, conns):
    line = scene.publish(conns["u"], "z.x", acknowledge=True)
    line["expect"] = "EPERM"


@wrong("C9", "reached userid 1500")
def a_private_event_for_a_stranger(scene, conns):
    scene.publish(conns["u"], "t.p", *conns.values(), userid=1002, private=True)


@wrong("C9", "does not provide")
def a_request_at_somebody_who_does_not_serve_it(scene, conns):
    call = scene.call(conns["a"], "sb")
    scene.serve(call, conns["w"])
    scene.answer(call, by=conns["w"])


@wrong("C9", "not delivered")
def an_answer_of_somebody_else(scene, conns):
    call = scene.call(conns["a"], "sb")
    scene.serve(call, conns["b"])
    scene.answer(call, by=conns["w"])


@wrong("C9", "not delivered")
def an_answer_without_a_request(scene, conns):
    scene.answer(scene.call(conns["a"], "sb"), by=conns["b"])


@wrong("C9", "did not subscribe")
def an_event_for_somebody_who_did_not_subscribe(scene, conns):
    scene.publish(conns["a"], "other.x", conns["b"])


@wrong("C9", "did not subscribe")
def an_event_below_a_subscription_that_policy_takes_out(scene, conns):
    scene.subscribed(conns["u"], "z.", but=["z.secret."])
    scene.publish(conns["a"], "z.secret.x", conns["u"])


def test_an_event_with_another_topic_or_sender(tmp_path):
    scene, conns = staged()
    line = scene.publish(conns["u"], "t.x", *(conns[n] for n in "abw"), userid=1002)
    scene.event({**line, "topic": "t.other"}, conns["c"], scene.seq, 1002)
    scene.event(line, conns["u"], scene.seq, 0)
    verdict = scene.end().judged(tmp_path)
    assert verdict.broken["C9"] == 2


# -- C10 -----------------------------------------------------------------------------------------------


def test_a_member_that_keeps_what_it_took(tmp_path):
    for figures in ({"rss_kib": 90_000}, {"fds": 40}, {"tasks": 30}):
        scene, _ = staged()
        scene.end().baseline("after", **figures)
        assert scene.judged(tmp_path).broken == {"C10": 4}, figures


def test_a_member_that_is_not_there_any_more(tmp_path):
    scene, _ = staged()
    scene.end()
    scene.lines["driver"].pop()
    assert scene.judged(tmp_path).broken == {"C10": 1}


# -- C11 -----------------------------------------------------------------------------------------------


@wrong("C11", "0 of 1 results", at=working)
def an_acknowledged_job_without_result(scene, client):
    scene.run(scene.job(client), "w1")


@wrong("C11", "1 of 2 results", at=working)
def a_job_for_two_workers_with_one_result(scene, client):
    job = scene.job(client, workers=["w1", "w2"])
    scene.run(job, "w1")
    scene.done(job, "w1")


@wrong("C11", "two results", at=working)
def a_job_with_two_results(scene, client):
    job = scene.job(client)
    scene.run(job, "w1")
    scene.done(job, "w1")
    scene.done(job, "w2")


@wrong("C11", "stored is 408", at=working)
def a_job_told_otherwise_than_stored(scene, client):
    job = scene.job(client)
    scene.run(job, "w1")
    scene.done(job, "w1")
    scene.add("driver", "job_recorded", id=job["id"], status=408, worker="w1")


@wrong("C11", "never ran to its end", at=working)
def a_job_that_succeeds_without_a_run(scene, client):
    scene.done(scene.job(client), "w1")


@wrong("C11", "never ran to its end", at=working)
def a_job_that_succeeds_on_a_worker_that_did_not_end_it(scene, client):
    job = scene.job(client)
    scene.run(job, "w1", end=False)
    scene.done(job, "w1")


@wrong("C11", "ran 2 times on a live way", at=working)
def a_job_that_runs_twice_untouched(scene, client):
    job = scene.job(client)
    scene.run(job, "w1")
    scene.run(job, "w2", 2)
    scene.done(job, "w2")


@wrong("C11", "twice at a time", at=working)
def a_job_that_runs_twice_at_a_time_on_one_worker(scene, client):
    job = scene.job(client)
    scene.fault(True, "freeze", members=["nfp"])
    scene.run(job, "w1", end=False)
    scene.run(job, "w1", 2)
    scene.done(job, "w1")
    scene.fault(False, "freeze", members=["nfp"])


@wrong("C11", "must not run twice", at=working)
def a_job_that_must_not_run_twice_and_does(scene, client):
    job = scene.job(client, once=True)
    scene.fault(True, "kill9", members=["w1"])
    scene.run(job, "w1", end=False)
    scene.run(job, "w2", 2)
    scene.done(job, "w2")
    scene.fault(False, "kill9", members=["w1"])


@wrong("C11", "for whom it was not", at=working)
def a_job_at_a_worker_it_was_not_for(scene, client):
    job = scene.job(client, workers=["w1"])
    scene.run(job, "w2")
    scene.done(job, "w1")


@wrong("C11", "ended with", at=working, status=408)
@wrong("C11", "ended with", at=working, status=500)
def a_job_that_fails_untouched(scene, client, status):
    job = scene.job(client)
    scene.run(job, "w1")
    scene.done(job, "w1", status)


# -- C12 -----------------------------------------------------------------------------------------------


def test_casts_that_are_lost_doubled_or_out_of_order(tmp_path):
    for ev in ("cast", "notify"):
        scene, _ = staged()
        server, client = scene.up("os", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
        scene.provides(server, "oslo:todo")
        lost = scene.call(client, "oslo:todo", ev)
        twice = scene.call(client, "oslo:todo", ev)
        first, second = scene.call(client, "oslo:todo", ev), scene.call(client, "oslo:todo", ev)
        for one in (twice, twice, second, first):
            scene.serve(one, server, None, None)
        verdict = scene.end().judged(tmp_path)
        assert verdict.broken == {"C12": 2, "C3": 1}
        assert lost["id"] in {one.ids[0] for one in verdict.violations}


@wrong("C12", "never served")
def a_cast_lost_beside_a_fault_of_the_tree(scene, _):
    server, client = scene.up("os", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
    scene.provides(server, "oslo:todo")
    scene.fault(True, "kill9", members=["broker-3"], ranks=[3])
    scene.call(client, "oslo:todo", "cast")
    scene.serve(scene.call(client, "oslo:todo", "cast"), server, None, None)
    scene.fault(False, "kill9", members=["broker-3"], ranks=[3])


# -- the log itself ------------------------------------------------------------------------------------


def test_a_line_that_is_no_line(tmp_path):
    scene, _ = staged()
    scene.save(tmp_path)
    path = logs.path_of(tmp_path, "a")
    path.write_text(path.read_text() + '{"ev": "up"}\n')
    with pytest.raises(logs.Malformed):
        check(tmp_path)


def test_a_fan_out_that_one_server_never_had_and_one_twice(tmp_path):
    scene, _ = staged()
    near, far = scene.up("s1", "oslo-1", kind="oslo"), scene.up("s2", "oslo-2", kind="oslo")
    client = scene.up("oc", "oslo-2", kind="oslo")
    for server in (near, far):
        scene.provides(server, "oslo:all")
    scene.wait(2)
    scene.serve(scene.call(client, "oslo:all", "fanout"), near, None, None)
    twice = scene.call(client, "oslo:all", "fanout")
    for server in (near, far, far):
        scene.serve(twice, server, None, None)
    assert scene.end().judged(tmp_path).broken == {"C12": 2}


@wrong("C5", "timeout")
def a_call_that_fails_over_a_rolling_restart(scene, _):
    server, client = scene.up("os", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
    scene.provides(server, "oslo:work")
    scene.fault(True, "rolling", members=["oslo-1", "oslo-2"])
    call = scene.call(client, "oslo:work")
    scene.gave_up(call, "timeout")
    scene.fault(False, "rolling", members=["oslo-1", "oslo-2"])


def test_a_cast_lost_over_the_restart_of_a_proxy(tmp_path):
    """Whoever restarts a proxy loses nothing; nobody can promise that of one that dies for longer than a lease."""
    for kind, demanded in (("restart", True), ("rolling", True), ("kill9", False)):
        scene, _ = staged()
        server, client = scene.up("os", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
        scene.provides(server, "oslo:todo")
        scene.fault(True, kind, members=["oslo-1"])
        lost = scene.call(client, "oslo:todo", "cast")
        scene.serve(scene.call(client, "oslo:todo", "cast"), server, None, None)
        scene.fault(False, kind, members=["oslo-1"])
        verdict = scene.end().judged(tmp_path)
        assert verdict.broken.get("C12", 0) == demanded
        assert [one.ids[0] for one in verdict.violations if one.rule == "C12"] == [lost["id"]] * demanded
