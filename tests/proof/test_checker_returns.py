"""C13: who comes back to any gateway gets what it missed, and nothing twice, or is told."""

import pytest

from tests.proof.record import USER
from tests.proof.scene import busy
from tests.proof.test_checker_passes import lively

pytestmark = pytest.mark.tools


def back(scene, conns, recovered=True):
    """A web client that was at one gateway, and is at the other one; (its connection, what it missed)."""
    two = scene.up("v", "gateway", userid=1003, roles=USER, host=1, kind="ws")
    scene.subscribed(two, "t.")
    had = scene.publish(conns["a"], "t.x", *conns.values(), two)
    after = scene.seq
    scene.fault(True, "kill9", members=["gateway"])
    scene.down(two, "close code 1006")
    missed = [scene.publish(conns["a"], "t.x", *(conns[n] for n in "abc")) for _ in range(3)]
    again = scene.up("v", "gateway-2", userid=1003, roles=USER, host=1, kind="ws")
    scene.subscribed(again, "t.")
    scene.add("v", "resumed", conn=again, after=after, upto=scene.seq, recovered=recovered)
    return again, had, after, missed


def test_what_was_missed_comes_once_or_is_told(tmp_path):
    for given, twice, recovered, broken in (
        (3, False, True, 0),
        (2, False, True, 1),
        (0, False, True, 3),
        (0, False, False, 0),
        (3, True, True, 1),
    ):
        scene, conns = busy()
        lively(scene, conns)
        again, had, after, missed = back(scene, conns, recovered)
        if twice:
            scene.event(had, again, after)
        for number, event in enumerate(missed[:given]):
            scene.event(event, again, after + 1 + number)
        scene.wait(12)
        scene.fault(False, "kill9", members=["gateway"])
        verdict = scene.end().judged(tmp_path)
        assert (verdict.broken["C13"], verdict.judged["returns"]) == (broken, 1), (given, twice, recovered)
