"""Ours below, above and between real flux-core brokers (FLUX_PREFIX)."""

import asyncio
import contextlib
import errno
import itertools
import signal
import time

import pytest

from broker.cli.ping import NONCE, Trace, hops_of
from broker.errors import LinkRefused, RpcError
from broker.transport import curve
from tests.interop.mixed import Mixed
from tests.unit.node.overlay.trees import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


@pytest.fixture
def mixed(flux_prefix, rundir):
    """Runs a story of an instance of ``size`` ranks."""

    def play(size, tell, **more):
        async def main():
            async with Mixed(flux_prefix, rundir, size, **more) as instance:
                await tell(instance)

        asyncio.run(main())

    return play


async def ping(instance, origin, target):
    """The rank that answered, the hops that came with the request, the rolemask seen."""
    async with instance.connect(origin) as h:
        answer = (await h.rpc("broker.ping", {"seq": 1, "pad": "x"}, nodeid=target)).json()
        return answer["rank"], answer["route"].count("!"), answer["rolemask"]


async def check_pings(instance):
    """Every rank reaches every rank; a hop makes the route longer; LOCAL ends at the first hop between brokers."""
    for origin, target in itertools.product(range(instance.size), repeat=2):
        _, at_home, _ = await ping(instance, origin, origin)
        rank, hops, roles = await ping(instance, origin, target)
        assert rank == target
        assert (hops > at_home) == (origin != target)
        assert roles == (5 if origin == target else 1)


async def check_events(instance):
    """An event published anywhere is seen everywhere, in one order, with one numbering."""
    ranks = range(instance.size)
    async with contextlib.AsyncExitStack() as stack:
        handles = [await stack.enter_async_context(instance.connect(rank)) for rank in ranks]
        subscriptions = [await stack.enter_async_context(h.subscribe("mixed.")) for h in handles]
        for h, rank in zip(handles, ranks, strict=True):
            await h.publish("mixed.rpc", {"from": rank})
            h.publish_nowait("mixed.message", {"from": rank})
        seen = []
        for events in subscriptions:
            async with asyncio.timeout(10):
                seen.append([await anext(events) for _ in range(2 * instance.size)])
    numbers = [[event.sequence for event in each] for each in seen]
    assert all(each == list(range(each[0], each[0] + 2 * instance.size)) for each in numbers)
    assert all([e.json() for e in each] == [e.json() for e in seen[0]] for each in seen)
    assert {(e.topic, e.json()["from"]) for e in seen[0]} == set(
        itertools.product(("mixed.rpc", "mixed.message"), ranks)
    )


async def check_status(instance, rank=0):
    """``flux overlay status``, which asks broker by broker."""
    output = await instance.run(rank, "overlay", "status", "-v")
    assert all(f"fake{each}: full" in output for each in range(instance.size)), output


async def check_trace(instance, origin, target, where):
    """``headgate ping --trace`` along ``where``, whoever's broker is on the way."""
    async with instance.connect(origin) as h, Trace(h, "broker.ping", target, 10.0) as trace:
        for seq in range(3):
            began = time.perf_counter()
            await h.rpc("broker.ping", {"seq": seq, NONCE: trace.nonce}, nodeid=target)
            total = time.perf_counter() - began
            hops = hops_of(trace.ranks, await trace.take(seq), total)
            assert [hop.where for hop in hops] == where
            assert sum(hop.both_ms or 0.0 for hop in hops) == pytest.approx(total * 1000, abs=0.01)


# -- ours below a real rank 0 ----------------------------------------------------------------------


def test_ours_under_a_real_root(mixed):
    async def tell(instance):
        instance.real(0)
        node = await instance.ours(1)
        await instance.state(0)
        await instance.state(1)
        await check_pings(instance)
        await check_events(instance)
        await check_status(instance)
        assert "seq=1" in await instance.run(
            0, "ping", "--count", "2", "--interval", "0.1", "--rank", "1", "broker"
        )
        await node.stop()
        async with instance.connect(0) as h:
            (child,) = (await h.rpc("overlay.health")).json()["children"]
        assert (child["rank"], child["status"], child["error"]) == (1, "offline", "administrative shutdown")

    mixed(2, tell)


def test_a_real_instance_with_its_scheduler_counts_us_as_online(mixed):
    async def tell(instance):
        instance.real(0, "-Sbroker.quorum=2")
        left = asyncio.Event()
        node = await instance.ours(1, leave=lambda _reason, _code: left.set())
        await instance.state(0)
        output = await instance.run(0, "uptime")
        assert "size 2" in output
        assert "offline" not in output
        instance.kill(0, signal.SIGTERM)
        async with asyncio.timeout(20):
            await left.wait()
        await node.stop()
        assert await instance.wait(0) == 0

    mixed(2, tell)


def test_a_real_parent_refuses_another_version(mixed):
    async def tell(instance):
        instance.real(0)
        with pytest.raises(
            LinkRefused, match=r"client \(0\.75\.0\) version mismatched with server"
        ) as raised:
            await instance.ours(1, 'version_announced = "0.75.0"')
        assert raised.value.errno == errno.EINVAL

    mixed(2, tell)


def test_a_real_parent_refuses_another_key(mixed):
    async def tell(instance):
        instance.real(0)
        with pytest.raises(LinkRefused) as raised:
            await instance.ours(1, certificate=curve.generate())
        assert raised.value.errno == errno.EPERM

    mixed(2, tell)


def test_a_real_parent_that_dies_is_joined_again(mixed):
    async def tell(instance):
        instance.real(0)
        node = await instance.ours(1)
        await instance.state(0)
        before = node.broker.router.uuid
        async with instance.connect(1) as client:
            waiting = client.stream("log.dmesg", {"follow": True, "nobacklog": True}, nodeid=0)
            async with waiting as lines:
                await client.rpc("broker.ping", {}, nodeid=0)  # what was asked before it has arrived, too
                instance.kill(0)
                with pytest.raises(RpcError, match="overlay disconnect") as raised:
                    async with asyncio.timeout(10):
                        await anext(lines)
            assert raised.value.errno == errno.EHOSTUNREACH
            await instance.wait(0)
            await until(lambda: not node.overlay.joined())
            with pytest.raises(RpcError) as raised:
                await client.rpc("broker.ping", {}, nodeid=0)
            assert raised.value.errno == errno.EHOSTUNREACH
            instance.real(0)
            await until(node.overlay.joined, 30)
            await instance.state(0)
            assert node.broker.router.uuid != before
            assert (await client.rpc("broker.ping", {}, nodeid=0)).json()["rank"] == 0
        await check_events(instance)

    mixed(2, tell)


def test_a_real_parent_sends_us_away_and_we_come_back(mixed):
    async def tell(instance):
        instance.real(0)
        node = await instance.ours(1)
        await instance.state(0)
        before = node.broker.router.uuid
        await instance.run(0, "overlay", "disconnect", "1")
        await until(lambda: node.overlay.joined() and node.broker.router.uuid != before, 20)
        await check_pings(instance)

    mixed(2, tell)


# -- ours above ------------------------------------------------------------------------------------


def test_real_children_under_our_root(mixed):
    async def tell(instance):
        root = await instance.ours(0)
        instance.real(1)
        instance.real(2)
        for rank in range(3):
            await instance.state(rank)
        await check_pings(instance)
        await check_events(instance)
        await check_status(instance)
        await check_status(instance, rank=1)
        await root.stop()
        assert [await instance.wait(1), await instance.wait(2)] == [0, 0]

    mixed(3, tell)


def test_a_real_child_that_is_killed_is_lost_and_comes_back(mixed):
    async def tell(instance):
        root = await instance.ours(0)
        instance.real(1)
        await instance.state(1)
        async with instance.connect(0) as client:
            stream = client.stream("log.dmesg", {"follow": True, "nobacklog": True}, nodeid=1)
            async with stream as lines:
                await until(lambda: any(p.pending for p in root.broker.router.ports))
                instance.kill(1)
                with pytest.raises(RpcError) as raised:
                    async with asyncio.timeout(20):
                        await anext(lines)
            assert raised.value.errno == errno.EHOSTUNREACH
        assert [child["status"] for child in root.overlay.child_health()] == ["lost"]
        await instance.wait(1)
        instance.real(1)
        await until(lambda: root.overlay.subtree_status() == "full", 20)
        await instance.state(1)
        await check_pings(instance)

    mixed(2, tell)


def test_a_real_child_that_is_stopped_is_torpid_and_recovers(mixed):
    async def tell(instance):
        root = await instance.ours(0)
        object.__setattr__(root.overlay._config, "torpid_max_s", 0.5)
        instance.real(1)
        await instance.state(1)

        def torpid():
            root.overlay.pulse()
            return root.overlay.child_health()[0]["torpid"]

        instance.kill(1, signal.SIGSTOP)
        await until(torpid)
        assert root.overlay.child_health()[0]["status"] == "full"
        instance.kill(1, signal.SIGCONT)
        assert (await ping(instance, 0, 1))[0] == 1
        await until(lambda: not torpid())

    mixed(2, tell)


def test_a_real_child_leaves_when_we_send_it_away(mixed):
    async def tell(instance):
        root = await instance.ours(0)
        instance.real(1)
        await instance.state(1)
        await instance.run(0, "overlay", "disconnect", "1")
        assert root.overlay.child_health()[0]["status"] == "lost"
        assert await instance.wait(1) != 0
        assert "sent disconnect control message" in instance.log(1)

    mixed(2, tell)


def test_a_real_child_with_another_key_does_not_get_in(mixed, caplog):
    async def tell(instance):
        root = await instance.ours(0)
        foreign = curve.generate()
        curve.save(foreign, instance.dir / "curve.cert", replace=True)
        instance.real(1)
        await until(lambda: "failed in its handshake" in caplog.text, 20)
        assert root.overlay.online_children() == []

    mixed(2, tell)


# -- ours between ----------------------------------------------------------------------------------


def test_ours_between_two_real_ones(mixed):
    async def tell(instance):
        instance.real(0)
        instance.real(2)
        node = await instance.ours(1)
        for rank in range(3):
            await instance.state(rank)
        await check_pings(instance)
        await check_events(instance)
        await check_status(instance)
        await check_trace(instance, 0, 2, ["here - rank 0", "0 - 1", "rank 1", "1 - 2", "rank 2"])
        instance.kill(0)  # a real broker below us has to restart when its way up is lost
        assert await instance.wait(2) != 0
        assert not node.overlay.joined()

    mixed(3, tell, topology="kary:1")


def test_a_real_one_between_two_of_ours(mixed):
    async def tell(instance):
        await instance.ours(0)
        instance.real(1)
        await instance.ours(2)
        for rank in range(3):
            await instance.state(rank)
        await check_pings(instance)
        await check_events(instance)
        await check_status(instance)
        await check_trace(instance, 2, 0, ["here - 2", "rank 2", "2 - 1", "rank 1", "1 - 0", "rank 0"])

    mixed(3, tell, topology="kary:1")
