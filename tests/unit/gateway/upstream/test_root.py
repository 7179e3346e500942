"""Rank 0 behind another rank: whose numbers events carry when the way there breaks."""

import asyncio
import logging

from broker.wire import message as wire
from tests.tables import for_each
from tests.unit.gateway.upstream.recorder import hop, session_request, until
from tests.unit.gateway.upstream.standin import StandIn, joined, run


def test_behind_another_rank_the_way_to_rank_0_is_watched():
    async def script():
        async with joined(StandIn(rank=1)) as (standin, centre, upstream):
            assert standin.seen.count("groups.get") == 1
            standin.event()
            await until(lambda: centre.history.last == 2, "the event")
            standin.lose_root()
            await until(lambda: upstream.handle.numbering.in_doubt, "doubt")
            standin.new_root()
            standin.event("first of the new one")
            standin.event("second")
            await until(lambda: upstream.epoch == "epoch-2", "the new epoch")
            await until(lambda: centre.history.last == 3, "events")
            assert centre.told[-2:] == [("joined", True, None), ("published", [1, 2, 3])]
            assert (upstream.losses, centre.reregistered) == (0, 1)
            assert len(standin.watches) == 1

    run(script)


def test_in_doubt_the_answer_to_a_publication_waits_behind_its_event():
    async def script():
        async with joined(StandIn(rank=1)) as (standin, centre, upstream):
            standin.lose_root()
            await until(lambda: upstream.handle.numbering.in_doubt, "doubt")
            centre.told.clear()
            trunk = upstream.handle
            asked = session_request(hop("a"), "event.publish", matchtag=1)
            done, refused = wire.response(asked, b'{"seq":2}\0'), wire.response(asked, errnum=113)
            standin.number += 1
            trunk.received(trunk.link, [wire.event("t", sequence=standin.number), done, refused])
            assert centre.answers == [refused], "who is refused need not wait"
            standin.root_lost = False
            await until(lambda: len(centre.answers) == 2, "the answer")
            assert centre.kinds() == ["answered", "joined", "published", "answered"]
            assert centre.topics()[-2:] == ["t", "gateway.online"]
            trunk.received(trunk.link, [done])
            assert centre.answers[1:] == [done, done], "nothing waits any more"

    run(script)


def test_a_way_to_rank_0_that_only_broke_costs_what_was_missed():
    async def script():
        async with joined(StandIn(rank=1)) as (standin, centre, upstream):
            standin.lose_root()
            await until(lambda: upstream.handle.numbering.in_doubt, "doubt")
            standin.root_lost = False
            standin.number += 4  # published while the way was broken
            await until(lambda: not upstream.handle.numbering.in_doubt, "certainty")
            assert centre.told[-2:] == [("joined", False, 4), ("published", [6])]
            assert upstream.epoch == "epoch-1"
            assert len(standin.watches) == 1

    run(script)


@for_each("number", [1, 700])
def test_behind_another_rank_an_odd_number_is_looked_into(number):
    async def script():
        standin = StandIn(rank=1)
        standin.number = 100
        async with joined(standin) as (_, centre, upstream):
            standin.attrs["broker.uuid"] = "epoch-2"
            standin.event(number=number)
            await until(lambda: upstream.epoch == "epoch-2", "the new epoch")
            assert centre.told[-2:] == [("joined", True, None), ("published", [number, number + 1])]

    run(script)


def test_on_a_link_to_rank_0_a_gap_is_no_more_than_a_gap():
    async def script():
        async with joined() as (standin, centre, _):
            assert "groups.get" not in standin.seen
            standin.event(number=10)
            await until(lambda: centre.history.last == 10, "the event")
            assert centre.told[-2:] == [("joined", False, 8), ("published", [10])]
            assert standin.seen.count("event.publish") == 1

    run(script)


def test_an_upstream_without_the_watch_is_served_all_the_same(caplog):
    async def script():
        standin = StandIn(rank=1)
        standin.groups_get = lambda link, message: standin.back(wire.response(message, errnum=38))
        async with joined(standin) as (_, _, upstream):
            await until(lambda: "cannot be watched" in caplog.text, "the warning")
            await asyncio.sleep(0.05)
            assert upstream.joined
            assert standin.seen.count("groups.get") == 1

    with caplog.at_level(logging.WARNING, "headgate"):
        run(script)
    assert "cannot be watched" in caplog.text
