"""From a seed to faults: the same every time, within the load, never two that hold the same thing."""

import itertools

import pytest

from tests.proof import layout, schedule
from tests.proof.faults import KINDS as PLAYED
from tests.proof.schedule import APART_S, AT_ONCE, KINDS, QUIET_S, Schedule, make

pytestmark = pytest.mark.tools

SEEDS = range(40)


def test_a_seed_is_a_schedule():
    assert make(3, 60) == make(3, 60)
    assert make(3, 60) != make(4, 60)
    assert make(3, 60, kinds=("kill9",)) != make(3, 60)


def test_it_comes_back_from_json_as_it_was():
    for seed in SEEDS:
        plan = make(seed, 60)
        assert Schedule.from_json(plan.to_json()) == plan


def test_faults_are_in_order_within_the_load_and_leave_it_quiet():
    for seed in SEEDS:
        plan = make(seed, 60)
        assert len(plan.faults) >= 8
        assert [fault.number for fault in plan.faults] == list(range(1, len(plan.faults) + 1))
        assert all(one.at_s <= other.at_s for one, other in itertools.pairwise(plan.faults))
        assert all(
            schedule.FIRST_S <= fault.at_s < fault.end_s <= 60 - QUIET_S + 0.01 for fault in plan.faults
        )


def test_no_two_hold_the_same_thing_at_a_time():
    for seed in SEEDS:
        faults = make(seed, 120, every_s=1.0).faults
        for one, other in itertools.combinations(faults, 2):
            assert other.at_s >= one.end_s + APART_S or not one.holds & other.holds, f"{one}; {other}"
        for fault in faults:
            assert sum(1 for other in faults if other.at_s <= fault.at_s < other.end_s) <= AT_ONCE


def test_every_kind_comes_up_and_can_be_played():
    drawn = {fault.kind for seed in SEEDS for fault in make(seed, 60).faults}
    assert drawn == set(KINDS) == set(PLAYED)


def test_every_level_of_the_tree_and_everybody_beside_it_is_hit():
    hit = {fault.members[0] for seed in SEEDS for fault in make(seed, 120).faults if fault.kind == "kill9"}
    assert {f"broker-{rank}" for rank in layout.RANKS} <= hit
    assert {*layout.GATEWAYS, "nfp", "oslo-1", "oslo-2"} <= hit
    assert hit & set(layout.MORTAL)


def test_a_part_keeps_numbers_and_times():
    plan = make(5, 60)
    part = plan.only([2, 4])
    assert part.faults == (plan.faults[1], plan.faults[3])
    assert (part.seed, part.seconds) == (plan.seed, plan.seconds)


def test_what_is_no_schedule_is_refused():
    for text in ("[]", "{}", '{"format": 0}', '{"format": 1, "seed": 1}', "nonsense"):
        with pytest.raises(ValueError):
            Schedule.from_json(text)


def test_a_wrong_kind_and_a_load_without_time_are_refused():
    with pytest.raises(ValueError, match="no such kind of fault: flood"):
        make(1, 60, kinds=("flood",))
    with pytest.raises(ValueError, match="no time for a fault"):
        make(1, QUIET_S)


def test_a_partition_names_every_pair_across_it():
    for seed in SEEDS:
        for fault in make(seed, 60, kinds=("partition",)).faults:
            (group,) = fault.options["groups"]
            across = {
                (a, b) for a in layout.RANKS for b in layout.RANKS if a < b and (a in group) != (b in group)
            }
            assert set(fault.links) == across


# -- the load ----------------------------------------------------------------------------------------


def test_names_are_unique_and_the_special_ones_are_there():
    names = [party.name for party in layout.parties()]
    assert len(set(names)) == len(names)
    assert set(layout.SLOW) | set(layout.MORTAL) <= set(names)


def test_everybody_calls_what_somebody_provides_where_it_is_asked_for():
    places = {}
    for party in layout.parties():
        at = layout.HOSTS.get(party.at, party.at)
        places.update(dict.fromkeys((*party.provide, *party.streams), at))
    for party in layout.parties():
        for call in party.calls:
            if call.expect or call.to == "broker":
                continue
            here = layout.HOSTS.get(party.at, party.at)
            reached = [call.node] if call.node is not None else layout.path_between(here, 0)
            assert places[call.to] in reached, f"{party.name} calls {call}"


def test_paths_lead_over_the_common_ancestor():
    assert layout.path_between(3, 5) == [3, 1, 0, 2, 5]
    assert layout.path_between(3, 4) == [3, 1, 4]
    assert layout.path_between(0, 6) == [0, 2, 6]
    assert layout.path_between(2, 2) == [2]
    assert layout.below(1) == [1, 3, 4]
