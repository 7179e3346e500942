"""Right logs, also near faults, break no rule: a checker that cries wolf proves nothing either."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.proof.record import ANY, OWNER, USER
from tests.proof.scene import Scene, busy

pytestmark = pytest.mark.tools


RIGHT: list[tuple[Callable[..., None], dict[str, Any]]] = []


def right(**each: Iterable[Any]):
    """Mark a story that breaks no rule; of ``NAME=VALUES`` one for each value."""

    def noted(story):
        RIGHT.extend((story, {name: value}) for name, values in each.items() for value in values)
        if not each:
            RIGHT.append((story, {}))
        return story

    return noted


def test_no_right_story_breaks_a_rule(tmp_path):
    broken = {}
    for number, (story, given) in enumerate(RIGHT):
        scene, conns = busy()
        story(scene, conns, **given)
        verdict = scene.end().judged(tmp_path / str(number))
        if not verdict.ok:
            broken[f"{story.__name__} {given or ''}"] = [str(one) for one in verdict.violations]
    assert broken == {}


def lively(scene: Scene, conns: dict[str, str], rounds: int = 3) -> None:
    """Calls and events of all, untouched."""
    for _ in range(rounds):
        scene.rpc(conns["a"], "sb", conns["b"], node=3)
        scene.rpc(conns["b"], "sa", conns["a"])
        scene.rpc(conns["c"], "sa", conns["a"], 1500, USER)
        scene.rpc(conns["w"], "sb", conns["b"], 1001, OWNER)
        scene.stream(conns["a"], "sw", conns["w"], 3)
        scene.publish(conns["a"], "t.x", *conns.values())
        scene.publish(conns["u"], "t.y", *conns.values(), userid=1002)
        scene.publish(conns["u"], "t.p", *(conns[n] for n in "abwu"), userid=1002, private=True)
        scene.wait(0.1)


def test_nothing_happens_but_load(tmp_path):
    scene, conns = busy()
    lively(scene, conns, 10)
    verdict = scene.end().judged(tmp_path)
    assert verdict.ok, verdict.violations
    assert verdict.judged["calls live"] == 50
    assert verdict.judged["calls near a fault"] == 0
    assert verdict.judged["deliveries live"] == 10 * (5 + 5 + 4)
    assert verdict.judged["stamps"] == 50
    assert verdict.messages["events delivered"] == 10 * (5 + 5 + 4)


@right()
def calls_may_be_answered_out_of_order_and_overlap(scene, conns):
    lively(scene, conns)
    first, second = scene.call(conns["a"], "sb"), scene.call(conns["a"], "sb")
    for call in (first, second):
        scene.serve(call, conns["b"])
    for call in (second, first):
        scene.answer(call, by=conns["b"])


@right(outcome=["served and answered", "served, then lost", "never served", "no service"])
def a_call_through_a_killed_broker(scene, conns, outcome):
    lively(scene, conns)
    scene.fault(True, "kill9", members=["broker-1"], ranks=[1])
    call = scene.call(conns["a"], "sb", node=3)
    if outcome.startswith("served"):
        scene.serve(call, conns["b"])
    scene.wait(1)
    scene.answer(call, {"served and answered": 0, "no service": 38}.get(outcome, 113))
    scene.fault(False, "kill9", members=["broker-1"], ranks=[1])


@right()
def a_gateway_that_leaves_says_so(scene, conns):
    lively(scene, conns)
    scene.fault(True, "restart", members=["gateway"])
    scene.answer(scene.call(conns["u"], "sb"), 108)
    scene.fault(False, "restart", members=["gateway"])


@right()
def a_call_that_was_open_when_the_fault_began(scene, conns):
    lively(scene, conns)
    call = scene.call(conns["a"], "sb")
    scene.serve(call, conns["b"])
    scene.during("partition", links=[[0, 1], [0, 3]])
    scene.wait(1)
    scene.answer(call, 113)
    lively(scene, conns)


@right()
def the_aftermath_of_a_fault_is_forgiven_as_long_as_it_says(scene, conns):
    lively(scene, conns)
    scene.during("kill9", members=["broker-1"], ranks=[1], settle_s=4.0)
    scene.wait(3)
    call = scene.call(conns["a"], "sb")
    scene.answer(call, 113)


@right()
def a_broker_that_lost_its_parent_sends_its_children_away(scene, conns):
    lively(scene, conns)
    scene.fault(True, "partition", links=[[0, 1]])
    call = scene.call(conns["b"], "sw")  # from rank 3 to the gateway at rank 1
    scene.answer(call, 113)
    scene.fault(False, "partition", links=[[0, 1]])


@right()
def a_killed_party_leaves_calls_without_end_and_comes_again(scene, conns):
    lively(scene, conns)
    scene.fault(True, "kill9", members=["b"])
    open_call = scene.call(conns["b"], "sa")
    scene.serve(open_call, conns["a"])
    unanswered = scene.call(conns["a"], "sb")
    scene.answer(unanswered, 113)
    scene.publish(conns["a"], "t.x", *(conns[n] for n in "acwu"))
    scene.wait(1)
    conns["b"] = scene.up("b", 3)
    scene.fault(False, "kill9", members=["b"])
    scene.provides(conns["b"], "sb")
    scene.subscribed(conns["b"], "t.")
    scene.wait(3)
    lively(scene, conns)


@right()
def a_lost_connection_takes_its_calls_along(scene, conns):
    lively(scene, conns)
    scene.fault(True, "kill9", members=["broker-3"], ranks=[3])
    call = scene.call(conns["b"], "sa")
    scene.down(conns["b"], "LinkEnded: gone")
    scene.gave_up(call)
    scene.fault(False, "kill9", members=["broker-3"], ranks=[3])


@right()
def a_provider_that_leaves_and_comes_is_no_fault(scene, conns):
    lively(scene, conns)
    scene.add("a", "withdrawn", conn=conns["a"], service="sa")
    call = scene.call(conns["b"], "sa")
    scene.answer(call, 38)
    scene.provides(conns["a"], "sa")
    scene.rpc(conns["b"], "sa", conns["a"])


@right()
def a_service_beside_the_way_up_is_not_found_without_its_rank(scene, conns):
    lively(scene, conns)
    scene.answer(scene.call(conns["a"], "sb", node=ANY), 38)  # from rank 0; it is at rank 3


@right()
def forbidden_calls_get_their_errno(scene, conns):
    lively(scene, conns)
    scene.answer(scene.call(conns["c"], "sa", expect="EPERM"), 1)
    scene.answer(scene.call(conns["u"], "secret", expect="EPERM", node=0), 1)


@right()
def services_of_the_broker_itself(scene, conns):
    lively(scene, conns)
    scene.answer(scene.call(conns["a"], "broker", node=3))


@right()
def parallel_requests_over_http_may_overtake_each_other(scene, conns):
    lively(scene, conns)
    h = scene.up("h", "gateway", 1003, USER, unordered=True, kind="http")
    first, second = scene.call(h, "sb"), scene.call(h, "sb")
    for call in (second, first):
        scene.serve(call, conns["b"], 1003, USER)
        scene.answer(call, by=conns["b"])


# -- events --------------------------------------------------------------------------------------------


@right()
def events_missed_behind_a_cut_are_told_by_the_broker_and_to_web_clients(scene, conns):
    lively(scene, conns)
    scene.fault(True, "partition", links=[[0, 1]])
    scene.publish(conns["a"], "t.x", conns["a"])
    missed = scene.seq
    scene.fault(False, "partition", links=[[0, 1]])
    scene.wait(4)
    for name in "wu":
        scene.gap(conns[name], -1)
    lively(scene, conns)
    scene.add("driver", "told", rank=1, first=missed, last=missed)


@right()
def an_event_without_acknowledgement_may_be_seen_or_not(scene, conns):
    lively(scene, conns)
    scene.fault(True, "freeze", members=["broker-3"], ranks=[3])
    seen = scene.publish(conns["b"], "t.x", *(conns[n] for n in "acwu"), acknowledge=False)
    scene.down(conns["b"], "lost")
    scene.add("b", "unpublished", id=seen["id"], errnum=-1)
    unseen = scene.add("b", "publish", conn=conns["b"], id="b-77", topic="t.x", private=False)
    scene.add("b", "unpublished", id=unseen["id"], errnum=-1)
    scene.fault(False, "freeze", members=["broker-3"], ranks=[3])


@right()
def numbers_begin_anew_with_a_new_rank_0(scene, conns):
    lively(scene, conns)
    scene.fault(True, "kill9", members=["broker-0"], ranks=[0])
    scene.down(conns.pop("a"), "lost")
    lost = scene.add("b", "publish", conn=conns["b"], id="b-50", topic="t.x", private=False)
    scene.add("b", "unpublished", id=lost["id"], errnum=113)
    scene.add("driver", "member", name="broker-0", did="exited", code=-9)
    scene.wait(1)
    scene.add("driver", "member", name="broker-0", did="started")
    scene.fault(False, "kill9", members=["broker-0"], ranks=[0])
    conns["a"] = scene.up("a", 0)
    scene.provides(conns["a"], "sa")
    scene.subscribed(conns["a"], "t.")
    scene.wait(3)
    scene.seq = 0
    lively(scene, conns)


@right()
def a_call_to_any_rank_that_a_gateway_sends_again_comes_behind_the_next_one(scene, conns):
    early = scene.call(conns["w"], "late", node=None)
    scene.provides(conns["a"], "late")
    soon = scene.call(conns["w"], "late", node=None)
    for call in (soon, early):
        scene.serve(call, conns["a"], 1001)
        scene.answer(call, by=conns["a"])
    lively(scene, conns)


@right()
def a_slow_reader_misses_events_and_nobody_else_does(scene, conns):
    lively(scene, conns)
    scene.fault(True, "slow", members=["u"])
    scene.publish(conns["a"], "t.x", *(conns[n] for n in "abcw"))
    scene.fault(False, "slow", members=["u"])
    scene.gap(conns["u"], 1)
    scene.wait(3)
    lively(scene, conns)


@right()
def a_subscription_counts_from_when_it_is_confirmed_to_when_it_is_given_back(scene, conns):
    scene.publish(conns["a"], "q.x")
    scene.subscribed(conns["b"], "q.")
    scene.publish(conns["a"], "q.x", conns["b"])
    scene.add("b", "unsubscribed", conn=conns["b"], prefix="q.")
    scene.publish(conns["a"], "q.x")
    lively(scene, conns)


@right()
def what_policy_takes_out_of_a_subscription_is_not_missed(scene, conns):
    scene.subscribed(conns["u"], "z.", but=["z.secret."])
    scene.publish(conns["a"], "z.open", conns["u"])
    scene.publish(conns["a"], "z.secret.x")
    lively(scene, conns)


@right()
def behind_a_broker_that_only_begins_nothing_is_missing_in_front_of_the_first_event(scene, conns):
    lively(scene, conns)
    scene.fault(True, "restart", members=["broker-4"], ranks=[4])
    scene.down(conns["c"], "lost")
    conns["c"] = scene.up("c", 4, 1500, USER)
    scene.subscribed(conns["c"], "t.")
    scene.publish(conns["a"], "t.x", *(conns[n] for n in "abwu"))
    scene.fault(False, "restart", members=["broker-4"], ranks=[4])
    scene.wait(3)
    lively(scene, conns)


# -- jobs, casts, usage --------------------------------------------------------------------------------


@right()
def jobs_of_a_killed_worker_move_on_or_end(scene, conns):
    lively(scene, conns)
    client = scene.up("nc", "nfp", host=1)
    easy = scene.job(client)
    scene.run(easy, "w1")
    scene.done(easy, "w1")
    both = scene.job(client, workers=["w1", "w2"])
    for worker in ("w1", "w2"):
        scene.run(both, worker)
        scene.done(both, worker)
    scene.wait(1)
    scene.fault(True, "kill9", members=["w1"])
    moved, once = scene.job(client), scene.job(client, once=True)
    scene.run(moved, "w1", end=False)
    scene.run(once, "w1", end=False)
    scene.run(moved, "w2", 2)
    scene.done(moved, "w2")
    scene.done(once, "", 408)
    scene.fault(False, "kill9", members=["w1"])
    scene.wait(3)
    last = scene.job(client)
    scene.run(last, "w1")
    scene.done(last, "w1")


@right()
def a_client_of_nfp_that_was_killed_finds_its_results_in_the_store(scene, conns):
    lively(scene, conns)
    client = scene.up("nc", "nfp", host=1)
    job = scene.job(client)
    scene.fault(True, "kill9", members=["nc"])
    scene.run(job, "w1")
    scene.fault(False, "kill9", members=["nc"])
    scene.add("driver", "job_recorded", id=job["id"], status=200, worker="w1")


@right()
def casts_near_a_fault_may_be_lost(scene, conns):
    lively(scene, conns)
    server, client = scene.up("os", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
    scene.provides(server, "oslo:todo")
    for _ in range(3):
        scene.serve(scene.call(client, "oslo:todo", "cast"), server, None, None)
    scene.wait(12)
    scene.fault(True, "kill9", members=["oslo-1"])
    scene.call(client, "oslo:todo", "cast")
    scene.wait(1)
    scene.fault(False, "kill9", members=["oslo-1"])


@right()
def casts_that_another_server_takes_over_may_come_late(scene, conns):
    lively(scene, conns)
    server, client = scene.up("os", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
    scene.provides(server, "oslo:todo")
    scene.fault(True, "restart", members=["oslo-2"])
    first, second = scene.call(client, "oslo:todo", "cast"), scene.call(client, "oslo:todo", "cast")
    scene.serve(second, server, None, None)
    scene.serve(first, server, None, None)
    scene.fault(False, "restart", members=["oslo-2"])


@right()
def fan_outs_come_to_every_server_that_everybody_has_been_told_of(scene, conns):
    lively(scene, conns)
    near, client = scene.up("s1", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
    scene.provides(near, "oslo:all")
    scene.wait(2)
    far = scene.up("s2", "oslo-2", kind="oslo")
    scene.provides(far, "oslo:all")
    scene.serve(scene.call(client, "oslo:all", "fanout"), near, None, None)
    scene.wait(2)
    call = scene.call(client, "oslo:all", "fanout")
    for server in (near, far):
        scene.serve(call, server, None, None)


@right()
def a_call_of_oslo_times_out_when_its_node_is_cut_off(scene, conns):
    lively(scene, conns)
    server, client = scene.up("os", "oslo-1", kind="oslo"), scene.up("oc", "oslo-2", kind="oslo")
    scene.provides(server, "oslo:work")
    scene.fault(True, "partition", links=[[3, 4]])
    call = scene.call(client, "oslo:work")
    scene.wait(6)
    scene.gave_up(call, "timeout")
    scene.fault(False, "partition", links=[[3, 4]])
    scene.wait(3)
    call = scene.call(client, "oslo:work")
    scene.serve(call, server, None, None)
    scene.answer(call, by=server)


@right()
def while_the_machine_stood_still_nothing_is_demanded(scene, conns):
    lively(scene, conns)
    scene.wait(12)
    call = scene.call(conns["a"], "sb")
    scene.wait(8)
    scene.gave_up(call, "timeout")
    scene.add("driver", "stall", seconds=7.5)


# -- many faults, drawn at random ----------------------------------------------------------------------

_BREAKS = {
    "kill9": {"members": ["broker-4"], "ranks": [4]},
    "freeze": {"members": ["broker-1"], "ranks": [1]},
    "partition": {"links": [[0, 2], [1, 2], [3, 2], [4, 2]]},
    "slow": {"members": ["u"]},
    "clock": {"on": "nfp"},
}


@right(seed=range(12))
def load_between_and_beside_random_faults(scene, conns, seed):
    rng = random.Random(seed)
    lively(scene, conns)
    for _ in range(6):
        kind = rng.choice(sorted(_BREAKS))
        scene.fault(True, kind, **_BREAKS[kind])
        if kind in ("slow", "clock", "partition"):  # of no concern to those
            scene.rpc(conns["a"], "sb", conns["b"])
            scene.rpc(conns["b"], "sb", conns["b"], 0, OWNER)
        elif kind == "freeze":
            late = scene.call(conns["a"], "sb")
            scene.wait(rng.uniform(0.1, 5))
            if rng.random() < 0.5:
                scene.serve(late, conns["b"])
                scene.answer(late, by=conns["b"])
            else:
                scene.answer(late, rng.choice([113, 11, 104]))
            scene.rpc(conns["b"], "sb", conns["b"], 0, OWNER)  # within rank 3
        else:
            scene.answer(scene.call(conns["c"], "sa"), rng.choice([113, 38]))
            scene.rpc(conns["a"], "sw", conns["w"])
        scene.wait(rng.uniform(0.1, 3))
        scene.fault(False, kind, **_BREAKS[kind])
        scene.wait(2.5)
        lively(scene, conns, 1)
        scene.wait(rng.uniform(0, 12))
