"""The gateway before brokers that die and come back, each a process of its own."""

import asyncio
import errno
import signal

import pytest

import broker.client
from broker.wire import message as wire
from gateway.upstream import upstream as upstreams
from tests.interop.fronting import fronting
from tests.live.brokers import one_broker, tree
from tests.unit.gateway.sessions.desk import until

pytestmark = [pytest.mark.story, pytest.mark.timeout(120)]


def play(uri, script):
    async def main():
        async with asyncio.timeout(90), fronting(uri) as front:
            await script(front)

    asyncio.run(main())


async def publish(uri, topic):
    async with broker.client.connect(uri) as h:
        return await h.publish(topic, {})


def test_a_broker_is_killed_and_started_again(rundir):
    """Sessions are told, calls answered, subscriptions and services there again; nobody has to reconnect."""
    with one_broker(rundir) as running:

        async def script(front):
            ada = front.user()
            await ada.rpc("event.subscribe", {"topic": "t."})
            await ada.rpc("service.add", {"service": "1001-mine"})
            tag = ada.send("groups.get", {"name": "broker.online"}, flags=wire.STREAMING)
            assert (await ada.answer(tag)).errnum == 0
            epoch = front.upstream.epoch
            running.kill()
            await until(lambda: ada.answers(tag)[-1].errnum == errno.EHOSTUNREACH)
            await until(lambda: ada.told("upstream"))
            assert ada.told("upstream")[-1]["joined"] is False
            running.start()
            await asyncio.to_thread(running.wait_ready)
            assert await front.upstream.wait_joined(20)
            assert front.upstream.epoch != epoch
            await until(lambda: ada.told("upstream")[-1]["joined"])
            assert ada.told("upstream")[-1]["epoch"] == front.upstream.epoch
            await publish(running.uri, "t.again")
            await until(lambda: ada.topics == ["t.again"])
            await until(lambda: front.delivery.registrations.names())
            async with broker.client.connect(running.uri) as h:
                h.send(wire.request("1001-mine.x", b"{}\0", matchtag=3))
                await ada.request("1001-mine.x")

        play(running.uri, script)


@pytest.mark.patient
def test_rank_0_comes_back_behind_a_rank_that_stays(rundir):
    """The gateway's link to rank 1 never ends; that the numbers are another instance's by now is told all the same."""
    with tree(rundir, 2) as running:
        root, leaf = running.ranks

        async def script(front):
            ada = front.user()
            await ada.rpc("event.subscribe", {"topic": "t."})
            assert front.upstream.rank == 1
            trunk, epoch = front.upstream.handle, front.upstream.epoch
            for _ in range(3):
                await publish(root.uri, "t.before")
            await until(lambda: len(ada.topics) == 3)
            seen = front.delivery.history.last
            assert front.delivery.history.covers(epoch, seen - 1)
            root.kill()
            await until(lambda: trunk.numbering.in_doubt)
            root.start()
            await asyncio.to_thread(root.wait_ready)
            # sessions are told of the numbers one turn of the loop after the gateway has them
            await until(lambda: any(told["epoch"] != epoch for told in ada.told("upstream")), 30)
            assert front.upstream.handle is trunk
            assert ada.told("upstream")[-1]["epoch"] == front.upstream.epoch != epoch
            assert ada.told("upstream")[-1]["lost"] is None
            assert not front.delivery.history.covers(epoch, seen)
            number = await publish(root.uri, "t.after")
            await until(lambda: ada.topics[-1] == "t.after")
            assert front.delivery.history.covers(front.upstream.epoch, number - 1)
            assert ada.of(wire.EVENT)[-1].sequence == number

        play(leaf.uri, script)


@pytest.mark.patient
def test_a_frozen_broker_is_given_up_and_found_again(rundir, monkeypatch):
    monkeypatch.setattr(upstreams, "SILENT_S", 0.5)
    monkeypatch.setattr(upstreams, "PATIENCE_S", 1.0)
    monkeypatch.setattr(upstreams, "JOIN_S", 2.0)
    with one_broker(rundir) as running:

        async def script(front):
            ada, owner = front.user(), front.owner()
            tag = ada.send("groups.get", {"name": "broker.online"}, flags=wire.STREAMING)
            await ada.answer(tag)
            epoch = front.upstream.epoch
            running.signal(signal.SIGSTOP)
            try:
                await until(lambda: ada.answers(tag)[-1].errnum == errno.EHOSTUNREACH)
            finally:
                running.signal(signal.SIGCONT)
            await until(lambda: owner.told("upstream") and ada.told("upstream"))
            assert "no sign of life" in owner.told("upstream")[-1]["reason"]
            assert ada.told("upstream")[-1]["reason"] == "the broker is away"  # no address is for everybody
            assert await front.upstream.wait_joined(20)
            assert front.upstream.epoch == epoch
            await until(lambda: ada.told("upstream")[-1]["joined"])
            assert isinstance(ada.told("upstream")[-1]["lost"], int)
            assert (await ada.rpc("attr.get", {"name": "rank"}))["value"] == "0"

        play(running.uri, script)


def test_two_gateways_before_one_broker_see_the_same_numbers(rundir):
    with one_broker(rundir) as running:

        async def script(front):
            async with fronting(running.uri) as second:
                assert front.upstream.name != second.upstream.name
                clients = [one.user() for one in (front, second)]
                for client in clients:
                    await client.rpc("event.subscribe", {"topic": "t."})
                await clients[0].rpc("event.publish", {"topic": "t.one", "flags": 0})
                await clients[1].rpc("event.publish", {"topic": "t.two", "flags": 0})
                for client in clients:
                    await until(lambda client=client: len(client.topics) == 2)
                first, other = ([m.sequence for m in client.of(wire.EVENT)] for client in clients)
                assert first == other
                assert front.upstream.epoch == second.upstream.epoch
                assert second.delivery.history.covers(front.upstream.epoch, first[0] - 1)

        play(running.uri, script)
