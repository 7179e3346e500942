"""The service's link: registered, lost, made again; events go through it."""

import asyncio
import errno

import pytest

from broker.client import connect
from broker.errors import LinkBroken, RpcError
from broker.nfp.service import FluxService
from broker.wire.message import PRIVATE
from tests.unit.client.peer import soon
from tests.unit.client.tiny_broker import start
from tests.unit.nfp.service.stand_in import FakeBroker, happening, respond


def run(script):
    async def main():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        async with asyncio.timeout(20):
            await script()
        assert not complaints, complaints

    asyncio.run(main())


async def until(done):
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.01)


def test_calls_come_through_and_events_go_out(tmp_path):
    async def script():
        flux, listener = await start(f"local://{tmp_path}/s")
        nfp = FakeBroker()
        service = FluxService(nfp, f"local://{tmp_path}/s")
        await service.start()
        async with connect(f"local://{tmp_path}/s") as h, h.subscribe("nfp.job.") as events:
            call = soon(h.rpc("nfp.lab.go", {"target": "w1"}))
            caller, packet = await nfp.next()
            nfp.event_bus.publish(happening("dispatched", packet.uuid, userid=7))
            respond(caller, packet, 200, {"w1": {"result": 1}})
            assert (await call).json()["results"] == {"w1": {"result": 1}}
            event = await anext(events)
            assert (event.topic, event.userid) == (f"nfp.job.{packet.uuid}.dispatched", 7)
            assert event.message.flags & PRIVATE
            waiting = soon(h.rpc("nfp.lab.go"))
            await nfp.next()
            await service.stop()
            with pytest.raises(RpcError) as caught:
                await waiting
            assert caught.value.errno == errno.ECANCELED
        assert nfp.submitted == []
        assert not any(peer.alive for peer in nfp.peers)
        nfp.event_bus.publish(happening("closed", "u"))
        assert service.publisher.sent == 1
        await service.stop()
        await until(lambda: not flux.links)
        await listener.stop()

    run(script)


def test_what_jobs_cost_is_told_to_owner_and_admin(tmp_path):
    async def script():
        flux, listener = await start(f"local://{tmp_path}/s")
        nfp = FakeBroker()
        nfp.tasks.refused("lab", "go", errno.EPERM, "not allowed", 7, 99.0)
        service = FluxService(nfp, f"local://{tmp_path}/s")
        await service.start()
        async with connect(f"local://{tmp_path}/s") as h:
            told = (await h.rpc("nfp.calls")).json()["figures"]["lab.go"]
            assert (told["calls"], told["errors"], told["open"]) == (1, {"1": 1}, 0)
            assert (told["last_error"]["text"], told["last_error"]["userid"]) == ("not allowed", 7)
        await service.stop()
        await until(lambda: not flux.links)
        await listener.stop()

    run(script)


def test_announce_false_publishes_nothing(tmp_path):
    async def script():
        flux, listener = await start(f"local://{tmp_path}/s")
        nfp = FakeBroker()
        service = FluxService(nfp, f"local://{tmp_path}/s", announce=False)
        await service.start()
        nfp.event_bus.publish(happening("closed", "u"))
        assert (service.publisher.sent, service.publisher.dropped) == (0, 0)
        await service.stop()
        await until(lambda: not flux.links)
        await listener.stop()

    run(script)


def test_a_lost_link_is_made_again_and_cancels_no_job(tmp_path):
    async def script():
        flux, listener = await start(f"local://{tmp_path}/s")
        nfp = FakeBroker()
        service = FluxService(nfp, f"local://{tmp_path}/s")
        await service.start()
        async with connect(f"local://{tmp_path}/s") as h:
            lost = soon(h.rpc("nfp.lab.go", {"cancel_with_caller": True}))
            await nfp.next()
            flux.services["nfp"].close("cut by the test")
            await until(lambda: service.bridge.connections == 2)
            nfp.event_bus.publish(happening("closed", "u"))
            again = soon(h.rpc("nfp.lab.go", {"target": "w1"}))
            caller, packet = await nfp.next()
            assert packet.service == "lab"
            assert packet.command.name == "POST"
            respond(caller, packet, 200, {"w1": {}})
            await again
            lost.cancel()
        await service.stop()
        await until(lambda: not flux.links)
        await listener.stop()

    run(script)


def test_a_name_that_is_taken_and_a_broker_that_is_not_there(tmp_path):
    async def script():
        with pytest.raises(LinkBroken):
            await FluxService(FakeBroker(), f"local://{tmp_path}/none").start()
        flux, listener = await start(f"local://{tmp_path}/s")
        first, second = (FluxService(FakeBroker(), f"local://{tmp_path}/s") for _ in range(2))
        await first.start()
        with pytest.raises(RpcError) as caught:
            await second.start()
        assert caught.value.errno == errno.EEXIST
        await second.stop()
        await first.stop()
        await until(lambda: not flux.links)
        await listener.stop()

    run(script)


def test_nothing_that_goes_wrong_while_it_connects_ends_the_attempts(tmp_path, caplog):
    async def script():
        flux, listener = await start(f"local://{tmp_path}/s")
        service = FluxService(FakeBroker(), f"local://{tmp_path}/s")
        await service.start()
        link = service.bridge
        real, failures = link._connect, [ValueError("one"), KeyError("two")]

        async def failing():
            if failures:
                raise failures.pop()
            await real()

        link._connect = failing
        flux.services["nfp"].close("cut by the test")
        await until(lambda: service.bridge.connections == 2)
        assert caplog.text.count("could not be made") == 2
        await service.stop()
        await until(lambda: not flux.links)
        await listener.stop()

    run(script)
