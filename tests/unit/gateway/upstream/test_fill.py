"""What was missed is filled in from what rank 0 keeps: before a stand-in."""

from broker.errors import LinkEnded
from tests.tables import for_each
from tests.unit.gateway.upstream.recorder import Recorder, until
from tests.unit.gateway.upstream.standin import StandIn, joined, run


def keeping(rank=0, events=0):
    standin = StandIn(rank=rank)
    standin.keep()
    for _ in range(events):
        standin.event("before")
    return standin


def numbers(centre):
    return [number for kind, *rest in centre.told if kind == "published" for number in rest[0]]


async def cut(upstream, standin, events):
    """The link is lost, and comes back when so many events were published."""
    upstream.handle.link.abort(LinkEnded("cut"))
    await until(lambda: not upstream.joined)
    for _ in range(events):
        standin.event("meanwhile")
    assert await upstream.wait_joined(10), upstream.reason


def test_who_is_new_fills_its_history_and_tells_nobody():
    async def script():
        async with joined(keeping(events=5)) as (_, centre, _):
            assert centre.told == [("joined", True, None)]
            assert centre.history.covers("epoch-1", 0)
            assert centre.history.last == 6

    run(script)


def test_no_more_is_asked_for_than_there_is_room_for():
    async def script():
        centre = Recorder(history_msgs=3)
        async with joined(keeping(events=50), centre=centre):
            assert [entry[0] for entry in centre.told] == ["joined"]
            assert centre.history.before == 48

    run(script)


def test_what_was_published_while_the_link_was_away_comes_as_if_it_came_now():
    async def script():
        async with joined(keeping()) as (standin, centre, upstream):
            standin.event()
            await until(lambda: centre.history.last == 2)
            centre.told.clear()
            await cut(upstream, standin, 7)
            standin.event()
            await until(lambda: centre.history.last == 11)
            told = [entry for entry in centre.told if entry[0] == "joined"]
            assert told == [("joined", False, 0)]
            assert numbers(centre) == list(range(3, 12))
            assert centre.history.covers("epoch-1", 1)
            assert (upstream.handle.numbering.missed, upstream.handle.numbering.duplicates) == (0, 0)

    run(script)


def test_what_rank_0_does_not_keep_any_more_is_told_as_missed():
    async def script():
        async with joined(keeping()) as (standin, centre, upstream):
            centre.told.clear()
            upstream.handle.link.abort(LinkEnded("cut"))
            await until(lambda: not upstream.joined)
            for _ in range(5):
                standin.event("gone")
            standin.keep()
            for _ in range(3):
                standin.event("kept")
            assert await upstream.wait_joined(10)
            told = [entry for entry in centre.told if entry[0] == "joined"]
            assert told == [("joined", False, 5)]
            assert numbers(centre) == [7, 8, 9, 10]
            assert upstream.handle.numbering.missed == 5

    run(script)


def test_a_gap_is_filled_even_on_a_link_to_rank_0():
    async def script():
        async with joined(keeping()) as (standin, centre, upstream):
            centre.told.clear()
            prefixes, standin.prefixes = standin.prefixes, {}
            for _ in range(3):
                standin.event("dropped")
            standin.prefixes = prefixes
            standin.event("after")
            await until(lambda: centre.history.last >= 5)
            assert numbers(centre)[:4] == [2, 3, 4, 5]
            assert [entry for entry in centre.told if entry[0] == "joined"] == [("joined", False, 0)]
            assert upstream.handle.numbering.missed == 0

    run(script)


def test_of_another_rank_0_clients_that_are_here_get_everything_from_its_first_event_on():
    async def script():
        async with joined(keeping(rank=3)) as (standin, centre, upstream):
            centre.told.clear()
            standin.lose_root()
            await until(lambda: upstream.handle.numbering.in_doubt)
            standin.new_root()
            prefixes, standin.prefixes = standin.prefixes, {}
            for _ in range(5):
                standin.event("before the tree healed")
            standin.prefixes = prefixes
            standin.event("after")
            await until(lambda: not upstream.handle.numbering.in_doubt)
            assert [entry for entry in centre.told if entry[0] == "joined"] == [("joined", True, None)]
            assert numbers(centre)[:6] == [1, 2, 3, 4, 5, 6]
            assert centre.history.covers("epoch-2", 0)

    run(script)


def test_what_is_held_back_comes_behind_what_is_filled_in_and_once():
    async def script():
        async with joined(keeping(rank=3)) as (standin, centre, upstream):
            standin.lose_root()
            await until(lambda: upstream.handle.numbering.in_doubt)
            for _ in range(4):
                standin.event("held back")
            standin.root_lost = False
            await until(lambda: not upstream.handle.numbering.in_doubt)
            assert numbers(centre) == list(range(2, centre.history.last + 1))
            assert len(numbers(centre)) > 4

    run(script)


@for_each("late", [False, True])
def test_another_rank_0_that_comes_while_events_are_filled_in_is_found_out(late):
    """Whose numbers these are was asked before: what was held back meanwhile has the other one's."""

    class Replaced(StandIn):
        replacing = False

        def event_since(self, link, message):
            if not self.replacing:
                super().event_since(link, message)
                return
            self.replacing = False
            if late:  # with the last answer of the old one
                super().event_since(link, message)
            self.lose_root()
            self.new_root()
            for _ in range(8):
                self.event("of the other")
            if not late:
                super().event_since(link, message)

    async def script():
        standin = Replaced(rank=3)
        standin.keep()
        async with joined(standin) as (_, centre, upstream):
            centre.told.clear()
            standin.lose_root()
            await until(lambda: upstream.handle.numbering.in_doubt)
            standin.root_lost, standin.replacing = False, True
            await until(lambda: not standin.replacing and not upstream.handle.numbering.in_doubt)
            standin.event("after")
            await until(lambda: "after" in centre.topics())
            assert upstream.epoch == "epoch-2"
            assert ("joined", True, None) in centre.told
            assert numbers(centre)[-10:] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]

    run(script)


def test_what_the_former_rank_0_published_while_in_doubt_is_not_taken_for_the_next_ones():
    async def script():
        async with joined(keeping(rank=3)) as (standin, centre, upstream):
            standin.lose_root()
            await until(lambda: upstream.handle.numbering.in_doubt)
            centre.told.clear()
            for _ in range(20):  # the way there only broke
                standin.event("of the former")
            standin.new_root()  # and then it was another one
            for _ in range(3):
                standin.event("of the next")
            await until(lambda: not upstream.handle.numbering.in_doubt)
            standin.event("after")
            await until(lambda: "after" in centre.topics())
            assert numbers(centre) == [1, 2, 3, 4, 5]
            assert "of the former" not in centre.topics()[-5:]
            assert centre.told[0] == ("joined", True, None)

    run(script)
