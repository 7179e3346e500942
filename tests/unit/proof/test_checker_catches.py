"""Wrong logs, made by hand: every rule catches what it is there for."""

import pytest

from tests.proof import logs
from tests.proof.checker import check
from tests.proof.checker.judge import Unjudgeable
from tests.proof.record import LOCAL, OWNER, USER
from tests.unit.proof.scene import Scene, busy
from tests.unit.proof.test_checker_passes import lively


@pytest.fixture
def stage():
    scene, conns = busy()
    lively(scene, conns)
    return scene, conns


def broken(scene: Scene, tmp_path, rule: str, text: str = "") -> None:
    verdict = scene.end().judged(tmp_path)
    assert not verdict.ok
    assert any(one.rule == rule and text in one.what for one in verdict.violations), [
        str(one) for one in verdict.violations
    ]


# -- C0 ------------------------------------------------------------------------------------------------


def test_a_request_that_nobody_sent(stage, tmp_path):
    scene, conns = stage
    forged = {"id": "x-1", "n": 0, "conn": "x#1"}
    scene.serve(forged, conns["b"])
    broken(scene, tmp_path, "C0", "did not send")


def test_a_request_in_another_connections_name(stage, tmp_path):
    scene, conns = stage
    call = scene.call(conns["a"], "sb")
    scene.serve({**call, "conn": conns["c"]}, conns["b"])
    broken(scene, tmp_path, "C0", "did not send")


def test_an_event_that_nobody_published(stage, tmp_path):
    scene, conns = stage
    scene.event({"id": "x-1", "topic": "t.x"}, conns["b"], scene.seq + 1)
    broken(scene, tmp_path, "C0", "nobody had published")


def test_a_connection_that_ends_by_itself(stage, tmp_path):
    scene, conns = stage
    scene.down(conns["b"], "LinkBroken: reset")
    broken(scene, tmp_path, "C0", "ended by itself")


def test_a_connection_that_a_distant_fault_does_not_explain(stage, tmp_path):
    scene, conns = stage
    scene.fault(True, "kill9", members=["broker-2"], ranks=[2])
    scene.down(conns["b"], "LinkBroken: reset")
    scene.fault(False, "kill9", members=["broker-2"], ranks=[2])
    broken(scene, tmp_path, "C0", "ended by itself")


def test_a_party_that_did_nothing(stage, tmp_path):
    scene, _ = stage
    scene.up("idle", 2)
    broken(scene, tmp_path, "C0", "sent and got nothing")


def test_a_fault_that_never_ends(stage, tmp_path):
    scene, _ = stage
    scene.fault(True, "freeze", members=["broker-2"], ranks=[2])
    broken(scene, tmp_path, "C0", "never taken away")


def test_a_run_whose_faults_leave_nothing_to_judge(tmp_path):
    scene, conns = busy()
    scene.fault(True, "freeze", members=["broker-0"], ranks=[0, 1])
    for _ in range(20):
        scene.answer(scene.call(conns["a"], "sb"), 113)
    scene.fault(False, "freeze", members=["broker-0"], ranks=[0, 1])
    broken(scene, tmp_path, "C0", "had a way that no fault touched")


@pytest.mark.parametrize("missing", ["world", "load"])
def test_logs_that_do_not_say_what_the_world_was(stage, tmp_path, missing):
    scene, _ = stage
    scene.lines["driver"] = [line for line in scene.lines["driver"] if line["ev"] != missing]
    scene.save(tmp_path)
    with pytest.raises(Unjudgeable):
        check(tmp_path)


def test_times_that_run_backwards(stage, tmp_path):
    scene, _ = stage
    scene.lines["a"][-1]["t"] = 1.0
    scene.save(tmp_path)
    with pytest.raises(Unjudgeable):
        check(tmp_path)


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(FileNotFoundError):
        check(tmp_path)


# -- C1 ------------------------------------------------------------------------------------------------


def test_a_call_that_hangs(stage, tmp_path):
    scene, conns = stage
    scene.serve(scene.call(conns["a"], "sb"), conns["b"])
    broken(scene, tmp_path, "C1", "no end")


def test_a_call_that_hangs_through_a_fault(stage, tmp_path):
    scene, conns = stage
    scene.call(conns["a"], "sb")
    scene.during("kill9", members=["broker-3"], ranks=[3])
    broken(scene, tmp_path, "C1", "no end")


def test_a_call_that_is_answered_twice(stage, tmp_path):
    scene, conns = stage
    call = scene.rpc(conns["a"], "sb", conns["b"])
    scene.answer(call, 113)
    broken(scene, tmp_path, "C1", "2 ends")


def test_a_call_given_up_as_lost_on_a_connection_that_goes_on(stage, tmp_path):
    scene, conns = stage
    scene.fault(True, "freeze", members=["broker-3"], ranks=[3])
    scene.gave_up(scene.call(conns["a"], "sb"), "lost")
    scene.fault(False, "freeze", members=["broker-3"], ranks=[3])
    broken(scene, tmp_path, "C1", "went on")


def test_a_call_that_hangs_until_its_party_leaves(stage, tmp_path):
    scene, conns = stage
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


def test_publishing_without_end(stage, tmp_path):
    scene, conns = stage
    scene.publish(conns["a"], "t.x", *conns.values(), acknowledge=False)
    broken(scene, tmp_path, "C1", "publishing")


# -- C2, C3, C4 ----------------------------------------------------------------------------------------


def test_a_request_that_is_served_twice(stage, tmp_path):
    scene, conns = stage
    call = scene.call(conns["a"], "sb")
    scene.serve(call, conns["b"])
    scene.serve(call, conns["b"])
    scene.answer(call, by=conns["b"])
    broken(scene, tmp_path, "C2")


def test_a_request_that_is_served_twice_around_a_fault(stage, tmp_path):
    scene, conns = stage
    call = scene.call(conns["a"], "sb")
    scene.serve(call, conns["b"])
    scene.during("partition", links=[[0, 1]])
    scene.serve(call, conns["b"])
    scene.answer(call, 113)
    broken(scene, tmp_path, "C2")


def test_requests_that_overtake_each_other(stage, tmp_path):
    scene, conns = stage
    first, second = scene.call(conns["a"], "sb"), scene.call(conns["a"], "sb")
    for call in (second, first):
        scene.serve(call, conns["b"])
        scene.answer(call, by=conns["b"])
    broken(scene, tmp_path, "C3")


def test_a_request_from_before_a_cut_that_arrives_after_one_from_behind_it(stage, tmp_path):
    scene, conns = stage
    first = scene.call(conns["a"], "sb")
    scene.during("partition", links=[[0, 1]])
    scene.answer(first, 113)
    scene.wait(4)
    scene.rpc(conns["a"], "sb", conns["b"])
    scene.serve(first, conns["b"])
    broken(scene, tmp_path, "C3")


@pytest.mark.parametrize("order", [[0, 2, 1], [0, 1, 1, 2], [0, 2], [1, 2]])
def test_responses_out_of_order_or_missing(stage, tmp_path, order):
    scene, conns = stage
    call = scene.call(conns["a"], "sb", stream=3)
    scene.serve(call, conns["b"])
    for k in order:
        scene.answer(call, by=conns["b"], k=k, last=False)
    scene.answer(call, 61)
    broken(scene, tmp_path, "C4")


def test_a_response_behind_the_end(stage, tmp_path):
    scene, conns = stage
    call = scene.stream(conns["a"], "sb", conns["b"], 2)
    scene.answer(call, by=conns["b"], k=2, last=False)
    broken(scene, tmp_path, "C4", "behind its end")


# -- C5, C6 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("errnum", [113, 38, 11])
def test_an_error_on_a_live_way(stage, tmp_path, errnum):
    scene, conns = stage
    scene.answer(scene.call(conns["a"], "sb"), errnum)
    broken(scene, tmp_path, "C5", "live way")


def test_a_timeout_on_a_live_way(stage, tmp_path):
    scene, conns = stage
    scene.gave_up(scene.call(conns["a"], "sb"), "timeout")
    broken(scene, tmp_path, "C5", "given up")


def test_a_stream_that_ends_early(stage, tmp_path):
    scene, conns = stage
    call = scene.call(conns["a"], "sb", stream=5)
    scene.serve(call, conns["b"])
    for k in range(3):
        scene.answer(call, by=conns["b"], k=k, last=False)
    scene.answer(call, 61)
    broken(scene, tmp_path, "C5", "3 of 5")


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "kill9", "members": ["broker-2"], "ranks": [2]},
        {"kind": "partition", "links": [[0, 2], [1, 2]]},
        {"kind": "slow", "members": ["c"]},
        {"kind": "clock", "on": "broker-3"},
        {"kind": "kill9", "members": ["gateway"]},
        {"kind": "directory", "members": ["redis"]},
    ],
    ids=lambda fault: fault["kind"],
)
def test_an_error_beside_a_fault_that_is_none_of_its_business(stage, tmp_path, fault):
    scene, conns = stage
    scene.fault(True, **fault)
    scene.answer(scene.call(conns["a"], "sb"), 113)
    scene.fault(False, **fault)
    broken(scene, tmp_path, "C5", "live way")


def test_calls_within_one_rank_survive_what_happens_above_it(stage, tmp_path):
    scene, conns = stage
    scene.fault(True, "partition", links=[[0, 1]])
    scene.answer(scene.call(conns["b"], "sb"), 113)
    scene.fault(False, "partition", links=[[0, 1]])
    broken(scene, tmp_path, "C5", "live way")


def test_an_error_long_after_a_fault(stage, tmp_path):
    scene, conns = stage
    scene.during("kill9", members=["broker-3"], ranks=[3], settle_s=2.0)
    scene.wait(2.5)
    scene.answer(scene.call(conns["a"], "sb"), 113)
    broken(scene, tmp_path, "C5", "live way")


@pytest.mark.parametrize("errnum", [1, 22, 71, 5, 108, -1])
def test_an_error_that_is_not_documented(stage, tmp_path, errnum):
    scene, conns = stage
    scene.fault(True, "kill9", members=["broker-3"], ranks=[3])
    scene.answer(scene.call(conns["a"], "sb"), errnum)
    scene.fault(False, "kill9", members=["broker-3"], ranks=[3])
    broken(scene, tmp_path, "C6")


def test_a_forbidden_call_with_another_error(stage, tmp_path):
    scene, conns = stage
    scene.answer(scene.call(conns["u"], "sb", expect="EPERM"), 38)
    broken(scene, tmp_path, "C6", "not EPERM")


def test_publishing_that_fails_on_a_live_way(stage, tmp_path):
    scene, conns = stage
    line = scene.add("a", "publish", conn=conns["a"], id="a-99", topic="t.x", private=False)
    scene.add("a", "unpublished", id=line["id"], errnum=113)
    broken(scene, tmp_path, "C5", "publishing")


def test_publishing_that_fails_in_an_undocumented_way(stage, tmp_path):
    scene, conns = stage
    scene.fault(True, "kill9", members=["broker-0"], ranks=[0])
    line = scene.add("b", "publish", conn=conns["b"], id="b-99", topic="t.x", private=False)
    scene.add("b", "unpublished", id=line["id"], errnum=71)
    scene.fault(False, "kill9", members=["broker-0"], ranks=[0])
    broken(scene, tmp_path, "C6", "publishing")


# -- C7, C8 --------------------------------------------------------------------------------------------


def test_an_event_that_one_subscriber_never_gets(stage, tmp_path):
    scene, conns = stage
    scene.publish(conns["a"], "t.x", *(conns[n] for n in "abcw"))
    broken(scene, tmp_path, "C8", "u#1 never got")


def test_an_event_that_nobody_acknowledged_and_others_have_seen(stage, tmp_path):
    scene, conns = stage
    line = scene.publish(conns["a"], "t.x", *(conns[n] for n in "abcw"), acknowledge=False)
    scene.add("a", "unpublished", id=line["id"], errnum=113)
    broken(scene, tmp_path, "C8", "u#1 never got")


def test_a_lost_event_is_none_the_better_for_being_told(stage, tmp_path):
    scene, conns = stage
    scene.publish(conns["a"], "t.x", *(conns[n] for n in "abcw"))
    scene.gap(conns["u"])
    broken(scene, tmp_path, "C8", "u#1 never got")


def test_a_silent_gap_behind_a_cut(stage, tmp_path):
    scene, conns = stage
    scene.fault(True, "partition", links=[[0, 1]])
    scene.publish(conns["a"], "t.x", conns["a"])
    scene.fault(False, "partition", links=[[0, 1]])
    scene.wait(4)
    for name in "wu":
        scene.gap(conns[name], -1)
    lively(scene, conns)
    broken(scene, tmp_path, "C7", "b#1 was passed over")


def test_a_gap_that_only_the_broker_knows_of_is_silent_for_a_web_client(stage, tmp_path):
    scene, conns = stage
    scene.fault(True, "partition", links=[[0, 1]])
    scene.publish(conns["a"], "t.x", conns["a"])
    scene.add("driver", "told", rank=1, first=scene.seq, last=scene.seq)
    scene.fault(False, "partition", links=[[0, 1]])
    scene.wait(4)
    scene.gap(conns["u"])
    lively(scene, conns)
    broken(scene, tmp_path, "C7", "w#1 was passed over")


def test_a_gap_of_fewer_events_than_are_missing(stage, tmp_path):
    scene, conns = stage
    scene.fault(True, "slow", members=["u"])
    for _ in range(3):
        scene.publish(conns["a"], "t.x", *(conns[n] for n in "abcw"))
    scene.fault(False, "slow", members=["u"])
    scene.gap(conns["u"], 2)
    scene.wait(4)
    lively(scene, conns)
    broken(scene, tmp_path, "C7", "u#1 was passed over")


def test_an_old_gap_does_not_excuse_a_new_one(stage, tmp_path):
    scene, conns = stage
    scene.gap(conns["w"])
    lively(scene, conns)
    scene.fault(True, "freeze", members=["gateway"])
    scene.publish(conns["a"], "t.x", *(conns[n] for n in "abc"))
    scene.fault(False, "freeze", members=["gateway"])
    scene.gap(conns["u"])
    scene.wait(4)
    lively(scene, conns)
    broken(scene, tmp_path, "C7", "w#1 was passed over")


def test_an_event_that_comes_twice(stage, tmp_path):
    scene, conns = stage
    line = scene.publish(conns["a"], "t.x", *conns.values())
    scene.event(line, conns["b"], scene.seq)
    broken(scene, tmp_path, "C7", "twice")


def test_events_out_of_order(stage, tmp_path):
    scene, conns = stage
    first = scene.publish(conns["a"], "t.x", *(conns[n] for n in "acwu"))
    scene.publish(conns["a"], "t.x", *conns.values())
    scene.event(first, conns["b"], scene.seq - 1)
    broken(scene, tmp_path, "C7", "after")


def test_one_event_with_two_numbers(stage, tmp_path):
    scene, conns = stage
    line = scene.publish(conns["a"], "t.x", *(conns[n] for n in "abcw"))
    scene.event(line, conns["u"], scene.seq + 1)
    broken(scene, tmp_path, "C7", "has the numbers")


def test_two_events_with_one_number(stage, tmp_path):
    scene, conns = stage
    scene.publish(conns["a"], "t.x", *conns.values())
    scene.seq -= 1
    scene.publish(conns["a"], "z.x")
    broken(scene, tmp_path, "C7", "both have the number")


def test_numbers_that_begin_anew_without_a_new_rank_0(stage, tmp_path):
    scene, conns = stage
    scene.seq = 0
    lively(scene, conns)
    broken(scene, tmp_path, "C7")


# -- C9 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("userid", "roles", "text"),
    [
        (0, OWNER, "was stamped 0"),
        (0xFFFFFFFF, 0, "was stamped"),
        (1500, OWNER | USER, "of roles"),
        (1500, 0, "of roles"),
        (1500, USER | LOCAL, "LOCAL"),
    ],
)
def test_a_stamp_that_says_too_much(stage, tmp_path, userid, roles, text):
    scene, conns = stage
    call = scene.call(conns["c"], "sa")
    scene.serve(call, conns["a"], userid, roles)
    scene.answer(call, by=conns["a"])
    broken(scene, tmp_path, "C9", text)


def test_a_forbidden_call_that_is_served(stage, tmp_path):
    scene, conns = stage
    call = scene.call(conns["c"], "sa", expect="EPERM")
    scene.serve(call, conns["a"], 1500, USER)
    scene.answer(call, 1)
    broken(scene, tmp_path, "C9", "policy forbids")


def test_a_forbidden_call_that_succeeds(stage, tmp_path):
    scene, conns = stage
    scene.answer(scene.call(conns["u"], "secret", expect="EPERM"), 0)
    broken(scene, tmp_path, "C9", "succeeded")


def test_a_forbidden_event_that_is_published(stage, tmp_path):
    scene, conns = stage
    line = scene.publish(conns["u"], "z.x", acknowledge=True)
    line["expect"] = "EPERM"
    broken(scene, tmp_path, "C9", "policy forbids")


def test_a_private_event_for_a_stranger(stage, tmp_path):
    scene, conns = stage
    scene.publish(conns["u"], "t.p", *conns.values(), userid=1002, private=True)
    broken(scene, tmp_path, "C9", "reached userid 1500")


def test_a_request_at_somebody_who_does_not_serve_it(stage, tmp_path):
    scene, conns = stage
    call = scene.call(conns["a"], "sb")
    scene.serve(call, conns["w"])
    scene.answer(call, by=conns["w"])
    broken(scene, tmp_path, "C9", "does not provide")


def test_an_answer_of_somebody_else(stage, tmp_path):
    scene, conns = stage
    call = scene.call(conns["a"], "sb")
    scene.serve(call, conns["b"])
    scene.answer(call, by=conns["w"])
    broken(scene, tmp_path, "C9", "not delivered")


def test_an_answer_without_a_request(stage, tmp_path):
    scene, conns = stage
    scene.answer(scene.call(conns["a"], "sb"), by=conns["b"])
    broken(scene, tmp_path, "C9", "not delivered")


def test_an_event_for_somebody_who_did_not_subscribe(stage, tmp_path):
    scene, conns = stage
    scene.publish(conns["a"], "other.x", conns["b"])
    broken(scene, tmp_path, "C9", "did not subscribe")


def test_an_event_below_a_subscription_that_policy_takes_out(stage, tmp_path):
    scene, conns = stage
    scene.subscribed(conns["u"], "z.", but=["z.secret."])
    scene.publish(conns["a"], "z.secret.x", conns["u"])
    broken(scene, tmp_path, "C9", "did not subscribe")


def test_an_event_with_another_topic_or_sender(stage, tmp_path):
    scene, conns = stage
    line = scene.publish(conns["u"], "t.x", *(conns[n] for n in "abw"), userid=1002)
    scene.event({**line, "topic": "t.other"}, conns["c"], scene.seq, 1002)
    scene.event(line, conns["u"], scene.seq, 0)
    verdict = scene.end().judged(tmp_path)
    assert verdict.broken["C9"] == 2


# -- C10 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("figures", [{"rss_kib": 90_000}, {"fds": 40}, {"tasks": 30}])
def test_a_member_that_keeps_what_it_took(stage, tmp_path, figures):
    scene, _ = stage
    scene.end().baseline("after", **figures)
    verdict = scene.judged(tmp_path)
    assert verdict.broken == {"C10": 4}


def test_a_member_that_is_not_there_any_more(stage, tmp_path):
    scene, _ = stage
    scene.end()
    scene.lines["driver"].pop()
    assert scene.judged(tmp_path).broken == {"C10": 1}


# -- C11 -----------------------------------------------------------------------------------------------


@pytest.fixture
def working(stage):
    scene, _ = stage
    client = scene.up("nc", "nfp", host=1)
    job = scene.job(client)
    scene.run(job, "w2")
    scene.done(job, "w2")
    return scene, client


def test_an_acknowledged_job_without_result(working, tmp_path):
    scene, client = working
    scene.run(scene.job(client), "w1")
    broken(scene, tmp_path, "C11", "0 of 1 results")


def test_a_job_for_two_workers_with_one_result(working, tmp_path):
    scene, client = working
    job = scene.job(client, workers=["w1", "w2"])
    scene.run(job, "w1")
    scene.done(job, "w1")
    broken(scene, tmp_path, "C11", "1 of 2 results")


def test_a_job_with_two_results(working, tmp_path):
    scene, client = working
    job = scene.job(client)
    scene.run(job, "w1")
    scene.done(job, "w1")
    scene.done(job, "w2")
    broken(scene, tmp_path, "C11", "two results")


def test_a_job_told_otherwise_than_stored(working, tmp_path):
    scene, client = working
    job = scene.job(client)
    scene.run(job, "w1")
    scene.done(job, "w1")
    scene.add("driver", "job_recorded", id=job["id"], status=408, worker="w1")
    broken(scene, tmp_path, "C11", "stored is 408")


def test_a_job_that_succeeds_without_a_run(working, tmp_path):
    scene, client = working
    scene.done(scene.job(client), "w1")
    broken(scene, tmp_path, "C11", "never ran to its end")


def test_a_job_that_succeeds_on_a_worker_that_did_not_end_it(working, tmp_path):
    scene, client = working
    job = scene.job(client)
    scene.run(job, "w1", end=False)
    scene.done(job, "w1")
    broken(scene, tmp_path, "C11", "never ran to its end")


def test_a_job_that_runs_twice_untouched(working, tmp_path):
    scene, client = working
    job = scene.job(client)
    scene.run(job, "w1")
    scene.run(job, "w2", 2)
    scene.done(job, "w2")
    broken(scene, tmp_path, "C11", "ran 2 times on a live way")


def test_a_job_that_runs_twice_at_a_time_on_one_worker(working, tmp_path):
    scene, client = working
    job = scene.job(client)
    scene.fault(True, "freeze", members=["nfp"])
    scene.run(job, "w1", end=False)
    scene.run(job, "w1", 2)
    scene.done(job, "w1")
    scene.fault(False, "freeze", members=["nfp"])
    broken(scene, tmp_path, "C11", "twice at a time")


def test_a_job_that_must_not_run_twice_and_does(working, tmp_path):
    scene, client = working
    job = scene.job(client, once=True)
    scene.fault(True, "kill9", members=["w1"])
    scene.run(job, "w1", end=False)
    scene.run(job, "w2", 2)
    scene.done(job, "w2")
    scene.fault(False, "kill9", members=["w1"])
    broken(scene, tmp_path, "C11", "must not run twice")


def test_a_job_at_a_worker_it_was_not_for(working, tmp_path):
    scene, client = working
    job = scene.job(client, workers=["w1"])
    scene.run(job, "w2")
    scene.done(job, "w1")
    broken(scene, tmp_path, "C11", "for whom it was not")


@pytest.mark.parametrize("status", [408, 500])
def test_a_job_that_fails_untouched(working, tmp_path, status):
    scene, client = working
    job = scene.job(client)
    scene.run(job, "w1")
    scene.done(job, "w1", status)
    broken(scene, tmp_path, "C11", "ended with")


# -- C12 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ev", ["cast", "notify"])
def test_casts_that_are_lost_doubled_or_out_of_order(stage, tmp_path, ev):
    scene, _ = stage
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


def test_a_cast_lost_beside_a_fault_of_the_tree(stage, tmp_path):
    scene, _ = stage
    server, client = scene.up("os", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
    scene.provides(server, "oslo:todo")
    scene.fault(True, "kill9", members=["broker-3"], ranks=[3])
    scene.call(client, "oslo:todo", "cast")
    scene.serve(scene.call(client, "oslo:todo", "cast"), server, None, None)
    scene.fault(False, "kill9", members=["broker-3"], ranks=[3])
    broken(scene, tmp_path, "C12", "never served")


# -- the log itself ------------------------------------------------------------------------------------


def test_a_line_that_is_no_line(stage, tmp_path):
    scene, _ = stage
    scene.save(tmp_path)
    path = logs.path_of(tmp_path, "a")
    path.write_text(path.read_text() + '{"ev": "up"}\n')
    with pytest.raises(logs.Malformed):
        check(tmp_path)


def test_a_fan_out_that_one_server_never_had_and_one_twice(stage, tmp_path):
    scene, _ = stage
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


def test_a_call_that_fails_over_a_rolling_restart(stage, tmp_path):
    scene, _ = stage
    server, client = scene.up("os", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
    scene.provides(server, "oslo:work")
    scene.fault(True, "rolling", members=["oslo-1", "oslo-2"])
    call = scene.call(client, "oslo:work")
    scene.gave_up(call, "timeout")
    scene.fault(False, "rolling", members=["oslo-1", "oslo-2"])
    broken(scene, tmp_path, "C5", "timeout")


@pytest.mark.parametrize(("kind", "demanded"), [("restart", True), ("rolling", True), ("kill9", False)])
def test_a_cast_lost_over_the_restart_of_a_proxy(stage, tmp_path, kind, demanded):
    """Whoever restarts a proxy loses nothing; nobody can promise that of one that dies for longer than a lease."""
    scene, _ = stage
    server, client = scene.up("os", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
    scene.provides(server, "oslo:todo")
    scene.fault(True, kind, members=["oslo-1"])
    lost = scene.call(client, "oslo:todo", "cast")
    scene.serve(scene.call(client, "oslo:todo", "cast"), server, None, None)
    scene.fault(False, kind, members=["oslo-1"])
    verdict = scene.end().judged(tmp_path)
    assert verdict.broken.get("C12", 0) == demanded
    assert [one.ids[0] for one in verdict.violations if one.rule == "C12"] == [lost["id"]] * demanded
