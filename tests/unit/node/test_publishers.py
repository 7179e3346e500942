"""Publishers wait while events do not move on: who does, for whom, how long, and that nothing they said is lost."""

from broker.identity import Credentials, Role
from broker.node import pressure
from broker.node.pressure import PATIENCE_S, UNTRUSTED_S
from broker.routing.flow import WINDOW_BYTES
from broker.routing.port import CHILD, CLIENT, PARENT
from broker.transport.outbox import OutboxLimits
from broker.wire.message import CONTROL, OPEN, SHUT, control, event
from broker.wire.shares import RENEW_S, SHARE_BYTES, cost
from tests.tables import for_each
from tests.unit.node.desk import GUEST, OWNER, Desk, Peer, ask, run, ticks

SMALL = OutboxLimits(high_bytes=1000, high_msgs=8, event_bytes=1 << 20, cap_bytes=1 << 20)
SHARE = SHARE_BYTES // cost(event("e.1000"))
OTHER = Credentials(4243, int(Role.USER))


def news(first, last):
    return [event(f"e.{number}") for number in range(first, last)]


def numbers(peer):
    return [int(message.topic[2:]) for message in peer.events]


def heed(desk):
    """Control messages of neighbours are heard, as the overlay does it."""
    flow = desk.broker.router.events.flow
    desk.broker.on_control = lambda port, message: flow.received_window(
        port, message.aux2, message.aux1 == SHUT
    )


class Neighbour(Peer):
    """A broker that tells how much it has handled."""

    def __init__(self, desk, kind):
        super().__init__(desk, kind=kind, windowed=True)
        heed(desk)

    def tells(self, handled=0, shut=False):
        self.say(control(SHUT if shut else OPEN, handled))

    async def reads(self):
        """It handles what it gets until nothing more comes."""
        flow = self.desk.broker.router.events.flow
        got = -1
        while got != len(self.events):
            got = len(self.events)
            self.tells(flow.up if self.port.kind == PARENT else flow.down - self.port.window.base)
            await ticks(20)

    @property
    def told(self):
        return [message.aux1 for message in self.link.flushed if message.type == CONTROL]


def shut_desk(rank=0, **more):
    """A broker whose neighbour said SHUT."""
    desk = Desk(size=3, rank=rank, **more)
    neighbour = Neighbour(desk, PARENT if rank else CHILD)
    neighbour.tells(shut=True)
    return desk, neighbour


@for_each("rank", [0, 1])
@for_each("services", [[], ["mine"]], ids=["client", "provider"])
def test_who_says_more_than_its_share_is_held_and_nothing_is_lost(rank, services):
    async def script():
        desk, neighbour = shut_desk(rank, batch_msgs=1000)
        mouth = desk.peer(GUEST, services=services)
        mouth.say(ask("probe.a", 1), *news(0, 500), ask("probe.b", 2), *news(500, 600))
        await ticks()
        assert numbers(neighbour) == list(range(SHARE))
        assert mouth.errnums == [0], "what came before it is answered"
        assert not mouth.link.reading
        await neighbour.reads()
        assert numbers(neighbour) == list(range(600))
        assert mouth.errnums == [0, 0]
        assert mouth.link.reading

    run(script())


def test_who_says_little_does_not_notice_that_others_say_too_much():
    async def script():
        desk, neighbour = shut_desk()
        greedy, modest = desk.peer(GUEST), desk.peer(OTHER)
        greedy.say(*news(0, 1000))
        for number in range(1000, 1010):
            modest.say(event(f"e.{number}"), ask("probe.x", number))
        await ticks()
        assert modest.link.reading
        assert [number for number in numbers(neighbour) if number >= 1000] == list(range(1000, 1010))
        assert len(neighbour.events) == SHARE + 10
        assert len(modest.responses) == 10

    run(script())


def test_many_links_of_one_user_have_one_share_and_each_second_a_new_one():
    async def script():
        desk, neighbour = shut_desk()
        links = [desk.peer(GUEST) for _ in range(10)]
        for number, link in enumerate(links):
            link.say(*news(200 * number, 200 * number + 200))
        await ticks(20)
        for second in range(1, 5):
            assert len(neighbour.events) == second * SHARE
            desk.broker.pressure.renew(1.0)
            await ticks(50)
        await neighbour.reads()
        assert sorted(numbers(neighbour)) == list(range(2000))
        assert all(link.link.reading for link in links)

    run(script())


def test_a_share_grows_again_little_by_little_so_that_nobody_waits_for_the_whole_of_it():
    async def script():
        desk, neighbour = shut_desk()
        told = []
        desk.broker.pressure.on_shared = lambda: told.append(len(neighbour.events))
        mouth = desk.peer(GUEST)
        mouth.say(*news(0, SHARE + 120))
        await ticks(20)
        assert len(neighbour.events) == SHARE
        grown = SHARE_BYTES * RENEW_S // cost(event("e.1000"))
        for turn in range(1, 3):
            assert desk.broker.pressure.renew(RENEW_S)
            await ticks(50)
            assert abs(len(neighbour.events) - SHARE - turn * grown) <= turn
        await neighbour.reads()
        assert len(neighbour.events) == SHARE + 120
        for _ in range(round(1 / RENEW_S)):
            more = desk.broker.pressure.renew(RENEW_S)
        assert not more, "nothing is used any more"
        assert len(told) == 1

    run(script())


def test_calls_that_a_neighbour_has_not_handled_hold_no_publisher():
    async def script():
        desk = Desk(size=3)
        neighbour = Neighbour(desk, CHILD)
        neighbour.tells()
        desk.broker.pressure.mark(neighbour.port, True)
        assert not desk.broker.router.events.flow.blocked

    run(script())


def test_an_owners_link_that_names_users_has_a_share_for_each():
    """So it is with the gateway, which speaks for all web users."""

    async def script():
        desk, neighbour = shut_desk()
        gateway = desk.peer(OWNER, services=["gateway"])
        gateway.say(*(event(f"e.{user}", userid=user, rolemask=2) for user in range(300)))
        await ticks()
        assert numbers(neighbour) == list(range(300))
        gateway.say(*(event("e.0", userid=7, rolemask=2) for _ in range(SHARE + 50)))
        await ticks()
        assert len(neighbour.events) == 300 + SHARE - 1

    run(script())


def loud(first, last, userid=5001):
    return [event(f"e.{number}", userid=userid, rolemask=2) for number in range(first, last)]


def test_what_one_user_says_too_much_is_set_aside_and_the_others_are_heard():
    async def script():
        desk, neighbour = shut_desk()
        gateway = desk.peer(OWNER)
        gateway.say(*loud(0, 1000), ask("probe.a", 1), *loud(2000, 2003, userid=5002))
        await ticks(20)
        assert gateway.errnums == [0]
        assert numbers(neighbour) == [*range(SHARE), 2000, 2001, 2002]
        assert gateway.link.reading
        gateway.say(*loud(1000, 1003))
        neighbour.tells()
        await ticks(20)
        await neighbour.reads()
        assert numbers(neighbour) == [*range(SHARE), 2000, 2001, 2002, *range(SHARE, 1003)]

    run(script())


def test_what_was_set_aside_is_published_when_its_link_ends():
    async def script():
        desk, neighbour = shut_desk()
        gateway = desk.peer(OWNER)
        gateway.say(*loud(0, 300))
        gateway.end()
        await ticks(20)
        assert numbers(neighbour) == list(range(300))
        assert not gateway.port.live

    run(script())


def test_when_too_much_is_set_aside_the_link_is_held(monkeypatch):
    monkeypatch.setattr(pressure, "DEFERRED_BYTES", 100 * cost(event("e.1000")))

    async def script():
        desk, neighbour = shut_desk()
        gateway = desk.peer(OWNER)
        gateway.say(*loud(0, SHARE + 300), ask("probe.a", 1))
        await ticks(20)
        assert gateway.errnums == []
        assert not gateway.link.reading
        neighbour.tells()
        await ticks(20)
        await neighbour.reads()
        assert gateway.errnums == [0]
        assert numbers(neighbour) == list(range(SHARE + 300))
        assert gateway.link.reading

    run(script())


def test_who_is_behind_again_and_again_is_waited_for_no_longer_than_who_stays_behind():
    async def script():
        desk = Desk(limits=SMALL)
        reader, flow = desk.peer(GUEST), desk.broker.router.events.flow
        reader.subscribe()
        blocked = 0
        for _ in range(40):
            desk.broker.pressure.mark(reader.port, True)
            desk.broker.pressure.sweep(1.0, 1000.0)
            blocked += flow.blocked
            desk.broker.pressure.mark(reader.port, False)
        assert blocked <= PATIENCE_S + 1

    run(script())


def test_programs_of_the_owner_are_waited_for_one_by_one():
    async def script():
        desk = Desk(limits=SMALL)
        stopped, gateway = desk.peer(OWNER), desk.peer(OWNER)
        flow = desk.broker.router.events.flow
        for peer in (stopped, gateway):
            peer.subscribe()
        desk.broker.pressure.mark(stopped.port, True)
        for _ in range(5):
            desk.broker.pressure.sweep(1.0, 1000.0)
        assert not flow.blocked
        desk.broker.pressure.mark(gateway.port, True)
        assert flow.blocked

    run(script())


@for_each("kind", [CHILD, PARENT])
def test_tree_links_are_never_held(kind):
    async def script():
        desk = Desk(size=3, rank=1)
        other = Neighbour(desk, PARENT if kind == CHILD else CHILD)
        tree = Neighbour(desk, kind)
        other.tells(shut=True)
        tree.say(*(event(f"e.{number}", sequence=number + 1) for number in range(1000)))
        await ticks(20)
        assert numbers(other) == list(range(1000))
        assert tree.link.reading
        assert tree.told[0] == SHUT

    run(script())


def test_events_that_come_as_requests_are_held_like_others():
    async def script():
        desk, neighbour = shut_desk()
        mouth = desk.peer(GUEST)
        mouth.say(*(ask("event.publish", tag, b"p") for tag in range(1, 1001)))
        await ticks()
        assert len(mouth.responses) == len(neighbour.events) < 2 * SHARE
        await neighbour.reads()
        assert [m.matchtag for m in mouth.responses] == list(range(1, 1001))
        assert len(neighbour.events) == 1000

    run(script())


def test_a_window_that_fills_within_a_batch_ends_it():
    async def script():
        desk = Desk(size=3, batch_msgs=1000)
        neighbour = Neighbour(desk, CHILD)
        mouth = desk.peer(GUEST)
        mouth.say(*news(0, 1000))
        await ticks()
        window = WINDOW_BYTES // cost(event("e.1000"))
        assert window < len(neighbour.events) <= window + 64 + SHARE

    run(script())


def test_a_publisher_that_ends_while_it_is_held_is_heard_to_its_end():
    async def script():
        desk, neighbour = shut_desk()
        mouth = desk.peer(GUEST)
        mouth.say(*news(0, 500))
        await ticks()
        mouth.end()
        await ticks(20)
        assert numbers(neighbour) == list(range(500))
        assert mouth.port not in desk.broker.router.ports
        assert not desk.broker.pressure._held

    run(script())


def test_what_arrives_while_a_publisher_is_held_keeps_its_place():
    async def script():
        desk, neighbour = shut_desk()
        mouth = desk.peer(GUEST)
        mouth.say(*news(0, 500))
        await ticks()
        mouth.say(*news(500, 550))
        await ticks()
        await neighbour.reads()
        assert numbers(neighbour) == list(range(550))

    run(script())


def test_who_waits_for_a_provider_and_for_events_is_read_when_both_are_there():
    async def script():
        desk, neighbour = shut_desk(limits=SMALL)
        provider = desk.peer(services=["echo"])
        provider.link.full = True
        desk.peer().say(*(ask("echo.fill", tag) for tag in range(1, 10)))
        mouth = desk.peer(GUEST)
        mouth.say(ask("echo.x", 1), *news(0, SHARE + 50))
        await ticks()
        await neighbour.reads()
        assert not mouth.link.reading
        provider.link.drain()
        await ticks()
        await neighbour.reads()
        assert mouth.link.reading
        assert numbers(neighbour) == list(range(SHARE + 50))

    run(script())


def test_who_becomes_a_provider_still_waits_for_events():
    async def script():
        desk, neighbour = shut_desk()
        mouth = desk.peer(GUEST)
        mouth.say(*news(0, SHARE + 50))
        await ticks()
        mouth.provide("mine")
        await ticks()
        assert not mouth.link.reading
        await neighbour.reads()
        assert mouth.link.reading

    run(script())


# -- subscribers ------------------------------------------------------------------------------------


def slow_ear(desk, cred=GUEST):
    """A subscriber above high water; what made it so stands in its outbox."""
    ear = desk.peer(cred, name="ear")
    ear.subscribe()
    ear.link.full = True
    desk.peer(OTHER).say(*(event("filler") for _ in range(9)))
    assert ear.link.outbox.choked
    return ear


def test_publishers_wait_for_a_subscriber_that_reads():
    async def script():
        desk = Desk(SMALL)
        ear, mouth = slow_ear(desk), desk.peer(OWNER)
        mouth.say(*news(0, 1000))
        await ticks(20)
        assert len(ear.link.outbox.queue) == 9 + SHARE
        while len(ear.events) < 1009:
            ear.link.drain(50)
            ear.link.full = True
            await ticks()
        assert ear.link.ended is None
        assert [message.topic for message in ear.events[9:]] == [f"e.{number}" for number in range(1000)]

    run(script())


def test_publishers_lose_patience_with_one_that_does_not_and_with_its_user():
    async def script():
        desk = Desk(SMALL)
        flow, pressure = desk.broker.router.events.flow, desk.broker.pressure
        ear = slow_ear(desk)
        for _ in range(int(PATIENCE_S)):
            pressure.sweep(1.0, 30.0)
            assert flow.blocked
        pressure.sweep(1.0, 30.0)
        assert not flow.blocked
        slow_ear(desk)
        assert not flow.blocked, "it is the same user's"
        other = slow_ear(desk, OTHER)
        assert flow.blocked
        other.link.drain()
        assert not flow.blocked
        assert ear.link.ended is None
        for _ in range(int(UNTRUSTED_S)):
            pressure.sweep(1.0, 300.0)
        slow_ear(desk)
        assert flow.blocked

    run(script())


def test_nobody_waits_for_a_subscriber_that_may_miss_events_or_that_has_gone_or_that_is_none():
    async def script():
        drop = OutboxLimits(high_bytes=1000, high_msgs=8, event_policy="drop")
        desk = Desk(drop)
        slow_ear(desk)
        assert not desk.broker.router.events.flow.blocked
        desk = Desk(SMALL)
        flow = desk.broker.router.events.flow
        deaf = desk.peer()
        deaf.link.full = True
        deaf.say(*(ask("probe.x", tag) for tag in range(1, 20)))
        assert deaf.link.outbox.choked
        assert not flow.blocked
        ear = slow_ear(desk)
        assert flow.blocked
        ear.end()
        await ticks()
        assert not flow.blocked
        assert not desk.broker.pressure._waited_for

    run(script())


def test_a_neighbour_of_another_make_is_waited_for_while_its_outbox_is_full():
    async def script():
        desk = Desk(SMALL, size=3)
        child, mouth = desk.peer(kind=CHILD), desk.peer(GUEST)
        child.link.full = True
        mouth.say(*news(0, 1000))
        await ticks(20)
        assert desk.broker.router.events.flow.blocked
        assert len(child.link.outbox.queue) < 9 + 64 + SHARE
        while len(child.events) < 1000:
            child.link.drain()
            child.link.full = True
            await ticks()
        assert numbers(child) == list(range(1000))
        assert child.port.kind != CLIENT

    run(script())
