"""Silence in the tree, both ways: who is told that we are here, who is taken as lost, and when nobody may be."""

import asyncio
from dataclasses import replace

import pytest

from broker.errors import LinkEnded
from broker.node.overlay import control
from broker.node.overlay.hello import HeadgateHello
from broker.wire.message import CONTROL, event
from tests.tables import for_each
from tests.unit.node.overlay import downward, upward
from tests.unit.node.overlay.downward import HELLO, say
from tests.unit.node.overlay.trees import QUICK, Clock, Tree, until

OURS = HELLO._replace(ours=HeadgateHello(True, True, "", 5.0))


def heartbeats(client):
    return [m for m in client.inbox if m.type == CONTROL and m.aux1 == control.HEARTBEAT]


def below(story):
    """Plays ``story(parent, clock)`` at rank 0."""
    clock = Clock()
    downward.run(lambda parent: story(parent, clock), clock=clock)


def above(story, ours):
    """Plays ``story(story, clock)`` at rank 1, whose parent adds ``ours`` to its answer."""
    clock = Clock()
    upward.run(lambda played: story(played, clock), clock=clock, ours=ours)


# -- we are the parent -----------------------------------------------------------------------------


def test_a_child_of_ours_that_is_silent_is_lost_after_20_to_25_s():
    async def story(parent, clock):
        child = await parent.join(OURS)
        joined = clock.now
        while child.ended is None and clock.now < joined + 60:
            await clock.live(parent.overlay, 2.5)
        assert 20 <= clock.now - joined <= 25
        assert isinstance(child.ended, LinkEnded)
        assert (parent.health()["status"], parent.health()["error"]) == ("lost", "lost connection")
        assert parent.overlay.online_children() == []

    below(story)


def test_a_child_of_ours_whose_keepalives_come_stays():
    async def story(parent, clock):
        child = await parent.join(OURS)
        for _ in range(20):
            say(child, control.heartbeat())
            await clock.live(parent.overlay, 10)
        assert child.ended is None
        assert parent.health()["status"] == "full"

    below(story)


@for_each("ours", [HeadgateHello(), HeadgateHello(True)], ids=["deployed", "says nothing"])
def test_a_child_that_promised_nothing_is_torpid_but_not_lost(ours):
    async def story(parent, clock):
        child = await parent.join(HELLO._replace(ours=ours))
        await clock.live(parent.overlay, 600)
        assert child.ended is None
        assert (parent.health()["status"], parent.health()["torpid"]) == ("full", True)

    below(story)


def test_a_child_that_speaks_seldom_has_longer():
    async def story(parent, clock):
        child = await parent.join(HELLO._replace(ours=HeadgateHello(True, True, "", 60.0)))
        await clock.live(parent.overlay, 235)
        assert child.ended is None
        await clock.live(parent.overlay, 10)
        assert child.ended is not None

    below(story)


def test_only_a_child_of_ours_is_told_that_we_are_here():
    async def story(parent, clock):
        ours = await parent.join(OURS)
        deployed = await parent.join(HELLO._replace(rank=2, uuid=downward.OTHER))
        await clock.live(parent.overlay, 7.5)
        assert (len(heartbeats(ours)), len(heartbeats(deployed))) == (1, 0)
        say(ours, control.heartbeat())
        await clock.live(parent.overlay, 15)
        assert (len(heartbeats(ours)), len(heartbeats(deployed))) == (3, 0)
        assert len(deployed.inbox) == 1  # the answer to its hello

    below(story)


def test_a_child_that_hears_events_is_sent_no_keepalive():
    async def story(parent, clock):
        child = await parent.join(OURS)
        for _ in range(10):
            parent.publish("heartbeat.pulse")
            await clock.live(parent.overlay, 2.5)
            say(child, control.heartbeat())
        assert heartbeats(child) == []
        assert len(child.inbox) == 11

    below(story)


def test_after_we_were_frozen_nobody_is_lost():
    async def story(parent, clock):
        child = await parent.join(OURS)
        await clock.live(parent.overlay, 10)
        clock.now += 34
        await clock.live(parent.overlay, 7.5)
        assert child.ended is None
        say(child, control.heartbeat())
        await clock.live(parent.overlay, 17.5)
        assert child.ended is None
        clock.now += 3600
        await clock.live(parent.overlay, 10)
        assert child.ended is not None  # silent for 20 s of those in which we were there

    below(story)


def test_time_in_which_we_did_not_look_is_not_watched():
    async def story(parent, clock):
        await clock.live(parent.overlay, 5)
        before = parent.overlay.watched()
        await clock.live(parent.overlay, 5)
        assert parent.overlay.watched() == before + 5
        clock.now += 34
        parent.overlay.pulse()
        assert parent.overlay.watched() == before + 5
        await clock.live(parent.overlay, 2.5)
        assert parent.overlay.watched() == before + 7.5

    below(story)


def test_what_came_before_the_look_counts_first():
    async def story(parent, clock):
        child = await parent.join(OURS)
        await clock.live(parent.overlay, 17.5)
        clock.now += 34
        say(child, event("late"))
        await clock.live(parent.overlay, 17.5)
        assert child.ended is None

    below(story)


def test_a_child_whose_messages_wait_for_us_is_not_silent(monkeypatch):
    async def story(parent, clock):
        child = await parent.join(OURS)
        (port,) = parent.broker.router.children.values()
        backlog = type(parent.broker.backlog)
        with monkeypatch.context() as patch:
            patch.setattr(backlog, "__contains__", lambda _self, each: each is port)
            await clock.live(parent.overlay, 60)
        assert child.ended is None
        await clock.live(parent.overlay, 25)
        assert child.ended is not None

    below(story)


# -- we are the child ------------------------------------------------------------------------------


def test_a_parent_of_ours_that_is_silent_is_lost_after_20_to_25_s_and_joined_again():
    async def story(played, clock):
        first, joined = played.link, clock.now
        while first.ended is None and clock.now < joined + 60:
            await clock.live(played.child.overlay, 2.5)
        assert 20 <= clock.now - joined <= 25
        assert ("parent_lost", f"silent for {clock.now - joined:.1f} s") in played.child.told
        await until(lambda: len(played.links) == 2 and played.child.overlay.joined())

    above(story, HeadgateHello(True, True, "", 5.0))


def test_a_parent_of_ours_whose_keepalives_come_stays():
    async def story(played, clock):
        for _ in range(20):
            played.link.say(control.heartbeat())
            await clock.live(played.child.overlay, 10)
        assert len(played.links) == 1
        assert played.child.overlay.joined()

    above(story, HeadgateHello(True, True, "", 5.0))


@for_each("ours", [HeadgateHello(), HeadgateHello(True)], ids=["deployed", "says nothing"])
def test_a_parent_that_promised_nothing_is_never_lost_by_silence(ours):
    async def story(played, clock):
        await clock.live(played.child.overlay, 600)
        assert len(played.links) == 1
        assert played.child.overlay.joined()

    above(story, ours)


def test_after_we_were_frozen_our_parent_is_not_lost():
    async def story(played, clock):
        await clock.live(played.child.overlay, 10)
        clock.now += 34
        await clock.live(played.child.overlay, 7.5)
        assert played.child.overlay.joined()
        assert len(played.links) == 1
        await clock.live(played.child.overlay, 5)
        assert played.link is not played.links[0] or not played.child.overlay.joined()

    above(story, HeadgateHello(True, True, "", 5.0))


# -- both are ours ---------------------------------------------------------------------------------


@pytest.mark.patient
def test_an_idle_tree_of_ours_stays_together_by_its_keepalives():
    """No heartbeat event passes at all, and 1.5 s of silence would be loss."""

    async def main():
        async with Tree(3, config=replace(QUICK, torpid_min_s=0.1, lost_s=1.5)) as tree:
            before = [rank.broker.router.uuid for rank in tree.ranks]
            await asyncio.sleep(3)
            assert [rank.broker.router.uuid for rank in tree.ranks] == before
            assert tree.ranks[0].overlay.subtree_status() == "full"
            assert tree.ranks[0].broker.router.counters.sent_controls > 10

    asyncio.run(main())
