"""Full outboxes: who is paused, who is told EAGAIN, who must go, and that nobody waits for ever."""

import errno
import os

from broker.errors import LinkBroken
from broker.ingress.admission import Access
from broker.node.broker import FLUSH_MSGS
from broker.routing.port import CHILD, PARENT
from broker.transport.budget import Budget
from broker.transport.outbox import OutboxLimits
from broker.wire.message import NORESPONSE, event, response
from tests.tables import for_each
from tests.unit.node.desk import Desk, Door, ask, run, ticks, until

SMALL = OutboxLimits(high_bytes=1000, high_msgs=8, event_bytes=2000, cap_bytes=6000)


def stuck(desk, service="echo"):
    """A provider above high water."""
    provider = desk.peer(services=[service], name="provider")
    provider.link.full = True
    filler = desk.peer()
    filler.say(*(ask(f"{service}.fill", tag) for tag in range(1, 10)))
    assert provider.link.outbox.choked
    return provider, filler


def test_a_pure_caller_is_paused_and_its_request_passes():
    async def script():
        desk = Desk(SMALL)
        provider, _ = stuck(desk)
        caller = desk.peer()
        caller.say(ask("echo.x", 1), ask("echo.y", 2), ask("probe.z", 3))
        assert not caller.link.reading
        assert [m.matchtag for m in caller.responses] == [3]
        provider.link.drain()
        assert caller.link.reading
        assert [m.topic for m in provider.requests][-2:] == ["echo.x", "echo.y"]

    run(script())


@for_each("kind", [CHILD, PARENT])
def test_tree_links_are_never_paused(kind):
    async def script():
        desk = Desk(SMALL, size=2, rank=0 if kind == CHILD else 1)
        _provider, _ = stuck(desk)
        tree = desk.peer(kind=kind)
        message = ask("echo.x", nodeid=desk.broker.router.rank)
        if kind == PARENT:
            message.front = tree.port.hop + message.front
        tree.say(message)
        assert tree.link.reading
        assert tree.errnums == [errno.EAGAIN]
        assert tree.responses[0].payload == b"provider does not keep up with its requests\0"

    run(script())


def behind(desk, **more):
    """A neighbour of the tree that takes all it is sent and has not handled it."""
    child = desk.peer(kind=CHILD, windowed=True, **more)
    child.link.outbox.sent = child.link.outbox.in_flight.end + 1
    child.link.outbox.progressed()
    return child


def test_callers_of_a_rank_that_is_behind_wait_and_all_others_pass():
    async def script():
        desk = Desk(size=3)
        child = behind(desk)
        caller, provider, tree = desk.peer(), desk.peer(services=["x"]), desk.peer(kind=PARENT)
        ping = ask("broker.ping", nodeid=1)
        caller.say(ping)
        assert not caller.link.reading
        provider.say(ping.copy())
        assert provider.link.reading
        assert tree.link.reading
        assert [len(child.requests), provider.errnums] == [2, []], "nobody is told EAGAIN: there is room"
        child.link.outbox.handled(child.link.outbox.sent)
        assert caller.link.reading

    run(script())


def test_of_what_was_read_of_a_caller_little_is_sent_to_a_rank_that_is_behind():
    async def script():
        desk = Desk(size=3)
        child, caller = behind(desk), desk.peer()
        caller.say(*(ask("broker.ping", tag, nodeid=1) for tag in range(1, 1000)))
        await ticks(20)
        assert len(child.requests) <= FLUSH_MSGS
        child.link.outbox.handled(child.link.outbox.sent)
        await ticks(20)
        assert [m.matchtag for m in child.requests] == list(range(1, 1000))
        assert caller.link.reading

    run(script())


def test_what_was_read_of_a_caller_that_left_is_not_kept_for_a_rank_that_is_behind():
    async def script():
        desk = Desk(size=3)
        child, caller = behind(desk), desk.peer()
        caller.say(*(ask("broker.ping", tag, nodeid=1) for tag in range(1, 1000)))
        caller.end()
        await ticks(20)
        assert caller.port not in desk.broker.router.ports
        assert caller.port not in desk.broker.backlog
        assert len(child.requests) >= 999

    run(script())


def test_a_provider_is_never_paused_and_noresponse_is_counted():
    async def script():
        desk = Desk(SMALL)
        stuck(desk)
        other = desk.peer(services=["other"])
        other.say(ask("echo.x", 1), ask("echo.x", 2, flags=NORESPONSE))
        assert other.link.reading
        assert other.errnums == [errno.EAGAIN]
        assert desk.broker.router.counters.drops == {f"request without response: errno {errno.EAGAIN}": 1}

    run(script())


def test_who_becomes_a_provider_is_read_again():
    async def script():
        desk = Desk(SMALL)
        provider, _ = stuck(desk)
        caller = desk.peer()
        caller.say(ask("echo.x"))
        assert not caller.link.reading
        caller.provide("mine")
        assert caller.link.reading
        resumed = caller.link.resumes
        provider.link.drain()
        assert caller.link.resumes == resumed

    run(script())


def test_a_caller_of_two_full_providers_waits_for_both():
    async def script():
        desk = Desk(SMALL)
        (one, _), (two, _) = stuck(desk), stuck(desk, "other")
        caller = desk.peer()
        caller.say(ask("echo.x", 1), ask("other.x", 2), ask("echo.x", 3))
        one.link.drain()
        assert not caller.link.reading
        two.link.drain()
        assert caller.link.reading

    run(script())


@for_each("how", ["provider", "caller"])
def test_a_lost_link_waits_for_nobody_and_nobody_for_it(how):
    async def script():
        desk = Desk(SMALL)
        provider, _ = stuck(desk)
        caller = desk.peer()
        caller.say(ask("echo.x", 77))
        (provider if how == "provider" else caller).end()
        await ticks()
        if how == "provider":
            assert caller.link.reading
            assert caller.errnums == [errno.EHOSTUNREACH]
        else:
            resumed = caller.link.resumes
            provider.link.drain()
            assert caller.link.resumes == resumed
        pressure = desk.broker.pressure
        assert not pressure._paused
        assert not any(pressure._waiters.values())

    run(script())


def test_a_stalled_reader_is_ended_and_its_calls_answered():
    async def script():
        desk = Desk(SMALL)
        provider, filler = stuck(desk)
        pressure = desk.broker.pressure
        for _ in range(4):
            pressure.sweep(1.0, 5.0)
        assert provider.link.ended is None
        provider.link.drain(1)
        for _ in range(5):
            pressure.sweep(1.0, 5.0)
        assert provider.link.ended is None, "it took a byte in the meantime"
        pressure.sweep(1.0, 5.0)
        assert isinstance(provider.link.ended, LinkBroken)
        assert "no byte for 5 s" in str(provider.link.ended)
        await ticks()
        assert filler.errnums == [errno.EHOSTUNREACH] * 9
        assert filler.link.reading

    run(script())


def test_a_slow_reader_below_high_water_is_left_alone():
    async def script():
        desk = Desk(SMALL)
        provider, _ = stuck(desk)
        provider.link.drain()
        for _ in range(100):
            desk.broker.pressure.sweep(1.0, 5.0)
        assert provider.link.ended is None

    run(script())


def test_providers_that_flood_each_other_do_not_deadlock():
    """A <-> B, both full: neither is paused, both are told, both get out of it."""

    async def script():
        desk = Desk(SMALL)
        left, right = desk.peer(services=["left"]), desk.peer(services=["right"])
        for peer in (left, right):
            peer.link.full = True
        for tag in range(1, 60):
            left.say(ask("right.x", tag))
            right.say(ask("left.x", tag))
        assert left.link.reading
        assert right.link.reading
        for peer in (left, right):
            peer.link.drain()
        passed = [len(peer.requests) for peer in (left, right)]
        assert all(passed)
        for peer, other in ((left, right), (right, left)):
            other.say(*(response(m) for m in other.requests))
            assert len(peer.responses) == 59, "each call is answered: done, or EAGAIN"
        assert left.errnums.count(0) == passed[1]

    run(script())


def test_responses_are_never_dropped_but_their_reader_may_be():
    async def script():
        desk = Desk(SMALL)
        caller = desk.peer()
        caller.link.full = True
        caller.say(*(ask("probe.x", tag, b"") for tag in range(1, 400)))
        await ticks()
        assert caller.link.ended is not None
        assert "the cap is 6000" in str(caller.link.ended)
        await ticks()
        assert caller.port not in desk.broker.router.ports
        assert desk.budget.used_bytes == 0

    run(script())


@for_each("policy", ["disconnect", "drop"])
def test_a_subscriber_that_does_not_read(policy):
    async def script():
        desk = Desk(OutboxLimits(event_bytes=2000, cap_bytes=6000, event_policy=policy))
        ear, good, speaker = desk.peer(), desk.peer(), desk.peer()
        ear.subscribe()
        good.subscribe()
        ear.link.full = True
        speaker.say(*(event("e", b"x" * 100) for _ in range(50)))
        await ticks()
        assert len(good.events) == 50
        if policy == "disconnect":
            assert "events beyond 2000 bytes" in str(ear.link.ended)
            assert ear.port not in desk.broker.router.ports
            return
        kept = len(ear.link.outbox.queue)
        assert ear.link.ended is None
        assert (ear.link.outbox.dropped_events, kept) == (50 - kept, kept)
        assert ear.link.outbox.queued_bytes <= 2000 + ear.link.outbox.single_bytes
        ear.link.drain()
        speaker.say(event("e"))
        assert [m.sequence for m in ear.events] == [*range(1, kept + 1), 51], "the gap shows in the numbers"

    run(script())


def test_the_budget_ends_the_longest_outbox():
    async def script():
        desk = Desk(OutboxLimits(cap_bytes=1 << 20), Budget(8_000))
        lengths = (10, 40, 25)
        peers = [desk.peer(name=str(length)) for length in lengths]
        for peer, length in zip(peers, lengths, strict=True):
            peer.link.full = True
            peer.say(*(ask("probe." + "x" * 50, tag) for tag in range(1, length + 1)))
        assert [peer.link.ended is None for peer in peers] == [True] * 3
        last = desk.peer(name="last")
        last.link.full = True
        last.say(*(ask("probe." + "x" * 50, tag) for tag in range(1, 36)))
        await ticks()
        assert [peer.link.ended is None for peer in (*peers, last)] == [True, False, True, True]
        assert desk.budget.used_bytes <= 8_000
        assert desk.budget.used_bytes == sum(p.link.outbox.queued_bytes for p in (*peers, last))

    run(script())


# -- real sockets -----------------------------------------------------------------------------------


def test_a_reader_that_never_reads_holds_what_is_allowed_and_no_more(rundir):
    async def script():
        limits = OutboxLimits(high_bytes=50_000, high_msgs=500, event_bytes=100_000, cap_bytes=400_000)
        desk = Desk(limits)
        async with Door(desk, rundir / "s") as door:
            deaf, speaker = await door.dial(), await door.dial()
            await until(lambda: len(door.clients) == 2)
            deaf.link.pause()
            port = next(
                port for port in door.clients if port.link.peer.address.endswith(f"#{first_fd(door)}")
            )
            desk.broker.router.events.subscribe(port, b"")
            most = 0
            for _ in range(200):
                speaker.say(*(event("e", b"x" * 1000) for _ in range(10)))
                await ticks(3)
                most = max(most, desk.budget.used_bytes)
                if port.link.ended is not None:
                    break
            assert isinstance(port.link.ended, LinkBroken)
            assert most <= 120_000
            await until(lambda: port not in desk.broker.router.ports)
            assert desk.budget.used_bytes == 0
            speaker.say(ask("probe.x"))
            await until(lambda: speaker.of(2))

    run(script())


def first_fd(door):
    return min(int(port.link.peer.address.rpartition("#")[2]) for port in door.clients)


def test_one_giant_batch_is_held_against_the_cap_too(rundir):
    """Found here: what one flush could not write was queued without a look at cap, budget or high water."""

    async def script():
        desk = Desk(OutboxLimits(high_bytes=50_000, cap_bytes=1_000_000))
        desk.on_deliver = lambda message: None
        async with Door(desk, rundir / "s") as door:
            deaf = await door.dial()
            await until(lambda: len(door.clients) == 1)
            deaf.link.pause()
            (port,) = door.clients
            big = response(ask("probe.x"), b"x" * 100_000)
            desk.broker.flusher.batch = True
            for _ in range(40):
                port.send(big)
            desk.broker.flusher.batch = False
            desk.broker.flusher.flush()
            assert isinstance(port.link.ended, LinkBroken)
            assert "the cap is 1000000" in str(port.link.ended)
            assert desk.budget.used_bytes == 0
            second = await door.dial()
            await until(lambda: len(door.clients) == 1 and door.clients[0] is not port)
            second.link.pause()
            (port,) = door.clients
            for _ in range(6):
                port.send(big)
            desk.broker.flusher.flush()
            assert port.link.ended is None
            assert port.link.outbox.choked, "and the stall of its reader is watched"
            assert port in desk.broker.pressure._progress

    run(script())


def test_a_flood_of_requests_to_a_provider_that_does_not_read_stops_at_its_callers(rundir):
    async def script():
        desk = Desk(OutboxLimits(high_bytes=50_000, high_msgs=100_000, cap_bytes=10_000_000))
        async with Door(desk, rundir / "s") as door:
            provider, caller = await door.dial(), await door.dial()
            await until(lambda: len(door.clients) == 2)
            ports = {p.link.peer.address.endswith(f"#{first_fd(door)}"): p for p in door.clients}
            desk.broker.router.services.add(b"echo", ports[True])
            desk.broker.router.invalidate()
            provider.link.pause()
            sent = 3000
            caller.say(*(ask("echo.x", tag, b"x" * 1000) for tag in range(1, sent + 1)))
            await until(lambda: desk.broker.pressure.is_held(ports[False]))
            await ticks(50)
            assert ports[True].link.outbox.queued_bytes < 50_000 + 2 * 131_072 + 10_000
            provider.link.resume()
            await until(lambda: len(provider.of(1)) == sent)
            assert [m.matchtag for m in provider.of(1)] == list(range(1, sent + 1))
            provider.say(*(response(m) for m in provider.of(1)))
            await until(lambda: len(caller.of(2)) == sent)
            assert all(m.errnum == 0 for m in caller.of(2))

    run(script())


def test_a_subscriber_that_missed_events_is_named_when_it_reads_again(caplog):
    async def script():
        desk = Desk(OutboxLimits(high_bytes=500, event_bytes=2000, cap_bytes=6000, event_policy="drop"))
        ear, speaker = desk.peer(name="ear"), desk.peer()
        ear.subscribe()
        for times in (1, 2):
            ear.link.full = True
            speaker.say(*(event("e", b"x" * 100) for _ in range(50)))
            await ticks()
            missed = ear.link.outbox.dropped_events
            ear.link.drain()
            assert caplog.text.count("missed") == times
        assert f"ear did not read in time and missed {missed // 2} events" in caplog.text

    run(script())


def test_requests_of_many_callers_do_not_end_the_link_of_their_provider():
    """Each may still send what was read of it before it was paused: what finds no room is answered."""

    async def script():
        desk = Desk(SMALL)
        provider, filler = stuck(desk)
        callers = [desk.peer(name=str(number)) for number in range(20)]
        for caller in callers:
            caller.say(ask("echo.x", 1, bytes(500)))
        assert provider.link.ended is None
        refused = [caller for caller in callers if caller.errnums]
        assert 0 < len(refused) < 20
        assert {each.errnums[0] for each in refused} == {errno.EAGAIN}
        provider.link.drain()
        assert len(provider.requests) == 9 + 20 - len(refused)
        assert all(caller.link.reading for caller in (*callers, filler))

    run(script())


@for_each("policy", ["disconnect", "drop"])
def test_a_subscriber_whose_events_may_be_dropped_has_all_the_time(policy):
    async def script():
        desk = Desk(OutboxLimits(high_bytes=500, event_bytes=2000, cap_bytes=6000, event_policy=policy))
        ear, speaker = desk.peer(), desk.peer()
        ear.subscribe()
        ear.link.full = True
        speaker.say(*(event("e", b"x" * 100) for _ in range(10)))
        for _ in range(60):
            desk.broker.pressure.sweep(1.0, 5.0)
        assert (ear.link.ended is None) == (policy == "drop")
        if policy == "drop":
            ear.say(ask("probe.x"))
            for _ in range(5):
                desk.broker.pressure.sweep(1.0, 5.0)
            assert "no byte for 5 s" in str(ear.link.ended), "an answer waits for it"

    run(script())


def test_what_waits_for_a_guest_is_charged_to_it_over_all_its_links(rundir):
    async def script():
        desk = Desk(budget=Budget(1 << 40))
        access = Access(os.getuid() + 1, allow_guest=True)
        async with Door(desk, rundir / "s", access, user=3_000_000) as door:
            for _ in range(3):
                (await door.dial()).link.pause()
            await until(lambda: len(door.clients) == 3)
            big = response(ask("probe.x"), bytes(1 << 20))
            for port in door.clients:
                port.send(big)
            desk.broker.flusher.flush()
            assert len({id(port.link.outbox.account) for port in door.clients}) == 1
            for port in door.clients:
                port.send(response(ask("probe.x"), bytes(1 << 20)))
            desk.broker.flusher.flush()
            ended = [port.link.ended for port in door.clients if port.link.ended is not None]
            assert f"wait for user {os.getuid()}, the limit of one user is 3000000" in str(ended[0])
            assert len(ended) < 3

    run(script())
