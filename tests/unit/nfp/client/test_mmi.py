"""Management, inventory, jobs of the broker; subscriptions."""

import asyncio

import pytest

from broker.errors import LinkBroken, LinkClosed
from broker.nfp.client import Limits, NfpClient, RequestFailed
from broker.nfp.client import client as client_module
from broker.nfp.names import Command
from tests.unit.nfp.client.running import WITHIN_S, client_of, run


def test_management(broker):
    told = run(lambda c: c.mmi("show_workers"), broker)
    assert [worker["name"] for worker in told] == ["w1", "w2", "f1", "f2"]


def test_services_of_either_broker(broker):
    async def work(client):
        await client.wait_connected()
        return {service["name"]: service["workers"] for service in await client.services()}

    assert run(work, broker) == {"dummy": ["w1", "w2"], "filesharing": ["f1", "f2"]}


def test_inventory_is_asked_for_by_our_name(broker):
    assert run(lambda c: c.inventory(), broker) == {"hosts": ["c"]}
    assert run(lambda c: c.inventory("w9"), broker) == {"hosts": ["w9"]}


def test_jobs_of_the_broker(ours):
    async def work(client):
        await client.run("dummy", "ping")
        return await client.jobs()

    assert [(job["service"], job["state"]) for job in run(work, ours)] == [("dummy", "done")]


def test_an_error_is_raised(ours):
    with pytest.raises(RequestFailed, match=r"mmi\.service\.broker: no task 'nonsense'") as caught:
        run(lambda c: c.mmi("nonsense"), ours)
    assert caught.value.status == 400


def test_a_question_whose_answer_was_lost_is_asked_again_unless_it_changes_something(ours):
    answer, ours._mmi = ours._mmi, lambda client, packet: None

    async def work(client):
        asked = asyncio.gather(client.mmi("restart"), client.mmi("show_workers"), return_exceptions=True)
        await asyncio.to_thread(ours.wait_for, lambda b: b.count("MMI") == 2)
        ours._mmi = answer
        client._channel.reopen("for a test")
        return await asked

    restarted, shown = run(work, ours)
    assert len(shown) == 4
    assert isinstance(restarted, LinkBroken)
    assert "the connection was lost before the answer; it may have been done" in str(restarted)
    assert ours.count("MMI") == 3


def test_an_open_that_is_answered_late_repeats_no_restart(ours):
    ours._mmi = lambda client, packet: None

    async def work(client):
        asked = asyncio.gather(client.mmi("restart", timeout_s=0.3), return_exceptions=True)
        await asyncio.to_thread(ours.wait_for, lambda b: b.count("MMI") == 1)
        client.on_connect(ours.endpoint, client.opened)  # the same session, known better
        return (await asked)[0]

    assert isinstance(run(work, ours), TimeoutError)
    assert ours.count("MMI") == 1


def test_a_request_to_restart_waits_for_the_connection(ours):
    async def work(client):
        assert not client.is_connected
        with pytest.raises(RequestFailed, match="no task 'restart'"):
            await client.mmi("restart")

    run(work, ours)
    assert ours.count("MMI") == 1


def test_how_long_an_answer_is_waited_for_is_a_number(ours):
    async def work(client):
        with pytest.raises(ValueError, match="nan"):
            await client.mmi("show_workers", timeout_s=float("nan"))
        return await client.mmi("show_workers", timeout_s=float("inf"))

    assert len(run(work, ours)) == 4


def test_who_asks_before_the_client_is_open_or_when_it_is_closed_is_told():
    async def main():
        client = NfpClient("c", broker="tcp://127.0.0.1:1")
        with pytest.raises(LinkClosed, match="not open"):
            await client.mmi("show_workers")
        async with client:
            pass
        for asked in (client.mmi("show_workers"), client.submit("dummy", "ping"), client.unfinished()):
            with pytest.raises(LinkClosed, match="was closed"):
                await asked

    asyncio.run(main())


def test_no_answer_in_time():
    async def main():
        async with NfpClient("c", broker="tcp://127.0.0.1:1") as client:
            await client.mmi("show_workers", timeout_s=0.1)

    with pytest.raises(TimeoutError, match=r"mmi.service.broker show_workers: no answer within 0.1 s"):
        asyncio.run(main())


# -- subscriptions -------------------------------------------------------------------------------------


async def take(events, count):
    return [await anext(events) for _ in range(count)]


def test_events_as_they_come(ours):
    async def work(client):
        async with client.subscribe() as events:
            ours.do(lambda: [ours.publish(kind) for kind in ("submitted", "finished")])
            return await take(events, 2)

    events = run(work, ours)
    assert [(one.sequence, one.kind, one.message) for one in events] == [
        (1, "submitted", "submitted of u"),
        (2, "finished", "finished of u"),
    ]


def test_several_subscriptions_share_one_and_get_theirs_in_order(ours):
    async def work(client):
        async with client.subscribe(service="a") as a, client.subscribe(kinds=["closed"]) as closed:

            def happen():
                for number in range(6):
                    ours.publish("closed" if number % 3 == 0 else "progress", service="ab"[number % 2])

            ours.do(happen)
            found = await take(a, 3), await take(closed, 2)
            assert len(ours.subscriptions) == 1
        await asyncio.to_thread(ours.wait_for, lambda b: not b.subscriptions)
        return [[one.sequence for one in events] for events in found]

    assert run(work, ours) == [[1, 3, 5], [1, 4]]


def test_a_replay_stands_in_front_of_what_comes(ours):
    async def work(client):
        ours.do(lambda: [ours.publish("progress") for _ in range(5)])
        async with client.subscribe() as live, client.subscribe(since=2) as events:
            ours.do(lambda: ours.publish("closed"))
            return [[one.sequence for one in await take(reader, n)] for reader, n in ((events, 4), (live, 1))]

    assert run(work, ours) == [[3, 4, 5, 6], [6]]


def test_what_happens_while_a_replay_begins_is_read_once(ours):
    told = ours._event_task

    def busy(client, ident, task, kwargs):
        if task == "unsubscribe":
            ours.publish("progress")
        return told(client, ident, task, kwargs)

    async def until_closed(reader):
        found = [await anext(reader)]
        while found[-1].kind != "closed":
            found.append(await anext(reader))
        return [one.sequence for one in found]

    async def work(client):
        ours.do(lambda: [ours.publish("progress") for _ in range(2)])
        async with client.subscribe() as live:
            ours._event_task = busy
            async with client.subscribe(since=0) as events:
                ours._event_task = told
                ours.do(lambda: ours.publish("closed"))
                return await until_closed(events), await until_closed(live)

    replayed, live = run(work, ours)
    assert replayed == list(range(1, live[-1] + 1))
    assert live == list(range(3, live[-1] + 1))


def test_one_that_the_broker_does_not_take_costs_the_others_nothing(ours):
    told = ours._answer

    def refuse(client, packet, task, kwargs):
        if task == "subscribe":
            ours.publish("progress")  # nobody is subscribed at this moment
            ours._answer = told
            return 400, {"error": "too many"}
        return told(client, packet, task, kwargs)

    async def work(client):
        await client.wait_connected()
        async with client.subscribe(since=0) as events:
            ours.do(lambda: ours.publish("submitted"))
            ours._answer = refuse
            with pytest.raises(RequestFailed, match="too many"):
                await client.subscribe().__aenter__()
            ours.do(lambda: ours.publish("closed"))
            return [one.sequence for one in await take(events, 3)]

    assert run(work, ours) == [1, 2, 3]


def test_what_the_broker_had_no_room_for_is_read(ours):
    def leave_out():
        (subscription,) = ours.subscriptions
        ours.subscriptions.clear()
        for _ in range(3):
            ours.publish("progress")
        ours.subscriptions.append(subscription)
        client, ident, _wish = subscription
        said = {"kind": "gap", "subscription": ident, "lost": 3, "first": 2, "last": 4, "sequence": 4}
        ours.send(client, Command.EVENT, ident, 200, said, "events.service.broker", 4)
        ours.publish("closed")

    async def work(client):
        await client.wait_connected()
        async with client.subscribe(since=0) as a, client.subscribe(kinds=["closed"]) as b:
            ours.do(lambda: ours.publish("submitted"))
            await anext(a)
            ours.do(leave_out)
            found = await take(a, 4), await take(b, 1)
            ours.do(lambda: ours.publish("closed"))
            return [[one.sequence for one in each] for each in (*found, await take(a, 1), await take(b, 1))]

    assert run(work, ours) == [[2, 3, 4, 5], [5], [6], [6]]


def test_nothing_is_missed_over_a_reconnect(ours):
    async def work(client):
        async with client.subscribe() as events:
            ours.do(lambda: ours.publish("submitted"))
            first = await anext(events)

            def away():
                ours.subscriptions.clear()
                for _ in range(3):
                    ours.publish("progress")

            ours.do(away)
            client._channel.reopen("test")
            return [first.sequence, *[one.sequence for one in await take(events, 3)]]

    assert run(work, ours) == [1, 2, 3, 4]


def test_a_broker_that_was_started_anew_is_told_as_a_gap(ours):
    async def work(client):
        async with client.subscribe() as events:
            ours.do(lambda: [ours.publish("progress") for _ in range(4)])
            await take(events, 4)

            def restart():
                ours.subscriptions.clear()
                ours.events.clear()
                ours.epoch = "e2"
                ours.publish("submitted")

            ours.do(restart)
            client._channel.reopen("test")
            return await take(events, 2)

    gap, event = run(work, ours)
    assert (gap.kind, gap.message) == ("gap", "the broker was started anew")
    assert (event.kind, event.sequence) == ("submitted", 1)


def start_anew(broker, epoch="e2"):
    """The broker forgets what it had, and one event happens (in its thread)."""
    broker.subscriptions.clear()
    broker.events.clear()
    broker.epoch = epoch
    broker.publish("submitted")


def told(events):
    return [(one.kind, one.sequence) for one in events]


def test_events_of_a_broker_that_is_started_anew_while_they_are_read_come_once(ours):
    """The answer to a page is of another epoch than the subscription in front of it."""
    answer = ours._event_task

    def restart(client, ident, task, kwargs):
        if task == "read":
            ours._event_task = answer
            start_anew(ours)
        return answer(client, ident, task, kwargs)

    async def work(client):
        await client.wait_connected()
        ours.do(lambda: [ours.publish("progress") for _ in range(3)])
        ours._event_task = restart
        async with client.subscribe(since=0) as events:
            client._channel.reopen("test")
            await asyncio.to_thread(ours.wait_for, lambda broker: broker.subscriptions)
            ours.do(lambda: ours.publish("closed"))
            return told(await take(events, 3))

    assert run(work, ours) == [("gap", None), ("submitted", 1), ("closed", 2)]


def test_events_that_a_former_session_brought_are_not_given_late(ours):
    """They wait behind a page whose answer comes in the next session, of a broker whose numbers begin again."""
    answer, lost = ours._mmi, []

    def lose(client, packet):
        if not lost and b'"read"' in packet.data:
            lost.append(packet)
            for _ in range(5):
                ours.publish("progress")
        else:
            answer(client, packet)

    async def work(client):
        await client.wait_connected()
        ours.do(lambda: [ours.publish("progress") for _ in range(3)])
        ours._mmi = lose
        events = client.subscribe(since=0)
        begins = asyncio.gather(events.__aenter__())
        await asyncio.to_thread(ours.wait_for, lambda _: lost)
        await client.mmi("show_workers")  # its answer comes behind the events
        ours.do(lambda: start_anew(ours))
        client._channel.reopen("test")
        await begins
        ours.do(lambda: ours.publish("closed"))
        return told(await take(events, 3))

    assert run(work, ours) == [("gap", None), ("submitted", 1), ("closed", 2)]


@pytest.mark.parametrize("fails", ["subscribe", "read"])
def test_a_broker_that_does_not_answer_in_time_is_asked_for_events_again(ours, fails, monkeypatch):
    """In the same session: there may not be another one for days."""
    monkeypatch.setattr(client_module, "SUBSCRIBE_AGAIN_S", 0.01)
    answer, lost = ours._mmi, []

    def lose(client, packet):
        if not lost and f'"{fails}"'.encode() in packet.data:
            lost.append(packet)
        else:
            answer(client, packet)

    async def work(client):
        async with client.subscribe() as events:

            def away():
                ours.subscriptions.clear()
                ours.publish("submitted")
                ours._mmi = lose

            ours.do(away)
            client._channel.reopen("test")
            await asyncio.to_thread(ours.wait_for, lambda _: lost)
            ours.do(lambda: ours.publish("closed"))
            return told(await take(events, 2))

    assert run(work, ours, limits=Limits(answer_s=0.2)) == [("submitted", 1), ("closed", 2)]


def test_what_comes_while_others_are_read_is_bounded(ours):
    """What there is no room for is read as well."""
    answer, held = ours._event_task, []

    def busy(client, ident, task, kwargs):
        said = answer(client, ident, task, kwargs)
        if task == "read" and len(ours.events) < 60:
            for _ in range(20):
                ours.publish("progress")
        return said

    async def work(client):
        await client.wait_connected()
        hold = client._subscriptions._hold

        def watch(event, size):
            hold(event, size)
            held.append(len(client._subscriptions._held))

        client._subscriptions._hold = watch
        ours.do(lambda: ours.publish("submitted"))
        ours._event_task = busy
        async with client.subscribe(since=0) as events:
            found = await take(events, 1)
            while found[-1].sequence < 61:
                found.append(await anext(events))
            ours.do(lambda: ours.publish("closed"))
            found.append(await anext(events))
        return events.lost, [one.sequence for one in found]

    lost, sequences = run(work, ours, limits=Limits(subscription_msgs=10))
    assert max(held) <= 11
    assert sequences == sorted(set(sequences))
    assert sequences[-1] == 62
    assert lost + len(sequences) == 62


def test_a_reader_who_is_too_slow_is_told_what_it_lost(ours):
    async def work(client):
        async with client.subscribe() as events:
            ours.do(lambda: [ours.publish("progress") for _ in range(30)])
            await client.mmi("show_workers")  # its answer comes behind the events
            found = await take(events, 10)
            return events.lost, [one.sequence for one in found]

    lost, sequences = run(work, ours, limits=Limits(subscription_msgs=10))
    assert (lost, sequences) == (20, list(range(21, 31)))


def test_a_broker_without_subscriptions(norfab):
    async def work(client):
        async with client.subscribe():
            pass

    with pytest.raises(RequestFailed, match="no such service"):
        run(work, norfab)


def test_leaving_ends_a_subscription(ours):
    async def main():
        async with asyncio.timeout(WITHIN_S), NfpClient("c", broker=ours.endpoint) as client:
            events = client.subscribe()
            await events.__aenter__()
            reading = asyncio.gather(anext(events), return_exceptions=True)
            await asyncio.sleep(0)
        return (await reading)[0]

    assert "closed" in str(asyncio.run(main()))


def test_a_client_that_is_closed_leaves_no_subscribing_behind(ours):
    """However often the connection was made again while the broker answered none of it."""

    async def main():
        async with asyncio.timeout(WITHIN_S), client_of(ours) as client:
            await client.subscribe().__aenter__()
            ours._mmi = lambda client, packet: None
            for connections in (2, 3):
                client._channel.reopen("for a test")
                while client._channel.traffic.connections < connections:
                    await asyncio.sleep(0.01)
        return [task.get_name() for task in asyncio.all_tasks() if "events" in task.get_name()]

    assert asyncio.run(main()) == []
