"""A tree of ours over CURVE, well and when a broker dies, freezes or comes back; the victim has its own process."""

import asyncio
import errno
import itertools
import signal

import pytest

from broker.errors import RpcError
from broker.identity import PeerKey
from broker.transport import curve
from broker.wire.message import event, request
from tests.interop.mixed import Mixed
from tests.unit.node.overlay.trees import QUICK, Rank, Tree, shared_certificate, tcp_place, until

pytestmark = [pytest.mark.story, pytest.mark.timeout(120)]
EVERYBODY = range(4)


def play(rundir, size, tell, **more):
    async def main():
        async with Mixed(None, rundir, size, **more) as instance:
            await tell(instance)

    asyncio.run(main())


async def pong(instance, origin, target):
    async with instance.connect(origin) as h:
        return (await h.rpc("broker.ping", {}, nodeid=target)).json()["rank"]


def full(node):
    return lambda: node.overlay.subtree_status() == "full"


# -- nothing is wrong ------------------------------------------------------------------------------


def walk(tell, **config):
    async def main():
        async with Tree(4, config=shared_certificate(QUICK), address=tcp_place, **config) as tree:
            await until(full(tree.ranks[0]))
            await tell(tree)

    asyncio.run(main())


def test_every_rank_reaches_every_rank():
    async def tell(tree):
        for origin, target in itertools.permutations(EVERYBODY, 2):
            answer = await tree.ranks[origin].call(target)
            assert (answer.errnum, answer.payload) == (0, str(target).encode())

    walk(tell)


def test_between_brokers_of_ours_messages_travel_in_batches():
    async def tell(tree):
        links = [
            port.link for rank in tree.ranks for port in rank.broker.router.ports if port.link is not None
        ]
        assert len(links) == 6
        assert all(link._codec.batch for link in links)

    walk(tell)


def test_events_of_all_ranks_are_numbered_once_and_seen_by_all_in_one_order():
    async def tell(tree):
        for _ in range(50):
            for rank in tree.ranks:
                rank.publish(f"from.{rank.rank}")
        await until(lambda: all(len(rank.events) == 200 for rank in tree.ranks))
        for rank in tree.ranks:
            assert [e.sequence for e in rank.events] == list(range(1, 201))
            assert [e.topic for e in rank.events] == [e.topic for e in tree.ranks[0].events]
        assert all(rank.overlay.event_gaps == 0 for rank in tree.ranks)

    walk(tell)


def test_stamps_are_trusted_between_brokers_and_local_ends_there():
    async def tell(tree):
        client = tree.ranks[3].client()
        await client.call(nodeid=2, tag=1, userid=1234, rolemask=2 | 4)
        await client.call(nodeid=3, tag=2)
        assert (tree.ranks[2].requests[0].userid, tree.ranks[2].requests[0].rolemask) == (1234, 2)
        assert tree.ranks[3].requests[0].rolemask == 5
        client.link.send(event("a.b", userid=7, rolemask=2 | 4))
        client.link.flush()
        await until(lambda: all(rank.events for rank in tree.ranks))
        assert {(rank.events[0].userid, rank.events[0].rolemask) for rank in tree.ranks} == {(7, 2)}

    walk(tell)


def test_ten_thousand_calls_across_two_hops_are_all_answered_in_order():
    async def tell(tree):
        client = tree.ranks[3].client()
        for tag in range(1, 10_001):
            client.link.send(request("probe.ping", nodeid=2, matchtag=tag))
        client.link.flush()
        await until(lambda: len(client.inbox) == 10_000, 60)
        assert [m.matchtag for m in client.inbox] == list(range(1, 10_001))
        assert not any(m.errnum for m in client.inbox)

    walk(tell)


def test_a_key_of_its_own_for_each_rank_binds_it_to_that_rank():
    certificates = [curve.generate() for _ in EVERYBODY]

    async def main():
        tree = Tree(2, address=tcp_place)
        keys = {certificate.public_key: PeerKey(rank) for rank, certificate in enumerate(certificates)}

        def config(rank, certificate):
            config = shared_certificate(tree.config_of(rank), certificate)
            config.listen.keys = keys
            config.dial.extra["curve"] = curve.CurveClient(certificate, certificates[0].public_key)
            return config

        root = Rank(0, tree.topology, config(0, certificates[0]))
        await root.overlay.start()
        impostor = Rank(1, tree.topology, config(1, certificates[2]))
        with pytest.raises(Exception, match="the key is that of rank 2, not of rank 1"):
            await impostor.overlay.start()
        child = Rank(1, tree.topology, config(1, certificates[1]))
        await child.overlay.start()
        assert (await root.call(1)).errnum == 0
        for rank in (child, impostor, root):
            await rank.overlay.stop()

    asyncio.run(main())


# -- a child ---------------------------------------------------------------------------------------


@pytest.mark.patient
def test_a_killed_child_is_lost_at_once_and_nothing_hangs(rundir):
    async def tell(instance):
        root = await instance.ours(0)
        instance.apart(1)
        await instance.state(1)
        async with instance.connect(0) as client:
            async with client.stream("log.dmesg", {"follow": True, "nobacklog": True}, nodeid=1) as lines:
                await until(lambda: any(port.pending for port in root.broker.router.ports))
                instance.kill(1)
                with pytest.raises(RpcError) as raised:
                    async with asyncio.timeout(10):
                        await anext(lines)
            assert raised.value.errno == errno.EHOSTUNREACH
            with pytest.raises(RpcError) as raised:
                await client.rpc("broker.ping", {}, nodeid=1)
            assert raised.value.errno == errno.EHOSTUNREACH
        (child,) = root.overlay.child_health()
        assert (child["status"], child["error"]) == ("lost", "lost connection")
        assert root.overlay.subtree_status() == "degraded"
        await instance.wait(1)
        instance.apart(1)
        await instance.state(1)
        assert await pong(instance, 0, 1) == 1
        assert root.overlay.subtree_status() == "full"

    play(rundir, 2, tell)


@pytest.mark.patient
def test_a_frozen_child_is_torpid_and_its_calls_are_answered_when_it_thaws(rundir):
    quick = "heartbeat_period_s = 0.2"

    async def tell(instance):
        root = await instance.ours(0, quick)
        instance.apart(1, quick)
        await instance.state(1)
        instance.kill(1, signal.SIGSTOP)
        await until(lambda: root.overlay.child_health()[0]["torpid"])
        assert root.overlay.child_health()[0]["status"] == "full"
        call = asyncio.get_running_loop().create_task(pong(instance, 0, 1))
        await asyncio.sleep(0.1)
        assert not call.done()
        instance.kill(1, signal.SIGCONT)
        assert await call == 1
        await until(lambda: not root.overlay.child_health()[0]["torpid"])

    play(rundir, 2, tell, tree="torpid_min_s = 0.2\ntorpid_max_s = 0.6")


def impatient(node):
    """``node`` gives up a neighbour that is silent for one second, not for 20."""
    object.__setattr__(node.overlay._config, "lost_s", 1.0)


@pytest.mark.patient
def test_a_child_frozen_for_long_is_lost_and_comes_back_as_a_new_incarnation(rundir):
    """Its kernel goes on and takes what is sent to it: only the silence tells."""

    async def tell(instance):
        root = await instance.ours(0)
        impatient(root)
        instance.apart(1)
        await instance.state(1)
        (before,) = [port.uuid for port in root.broker.router.children.values()]
        instance.kill(1, signal.SIGSTOP)
        call = asyncio.get_running_loop().create_task(pong(instance, 0, 1))
        with pytest.raises(RpcError) as raised:
            await call
        assert raised.value.errno == errno.EHOSTUNREACH
        assert root.overlay.child_health()[0]["status"] == "lost"
        instance.kill(1, signal.SIGCONT)
        await until(full(root), 20)
        (after,) = [port.uuid for port in root.broker.router.children.values()]
        assert after != before
        assert await pong(instance, 0, 1) == 1

    play(rundir, 2, tell, tree="torpid_min_s = 0.2")


# -- a parent --------------------------------------------------------------------------------------


@pytest.mark.patient
def test_a_killed_root_is_joined_again_and_clients_below_stay(rundir):
    async def tell(instance):
        instance.apart(0)
        child = await instance.ours(1)
        grandchild = await instance.ours(2)
        await instance.state(2)
        former = child.broker.router.uuid, grandchild.broker.router.uuid
        async with instance.connect(2) as client, client.subscribe("after.") as events:
            waiting = client.stream("log.dmesg", {"follow": True, "nobacklog": True}, nodeid=0)
            async with waiting as lines:
                instance.kill(0)
                with pytest.raises(RpcError) as raised:
                    async with asyncio.timeout(10):
                        await anext(lines)
            assert raised.value.errno == errno.EHOSTUNREACH
            await instance.wait(0)
            await until(lambda: not child.overlay.joined() and not grandchild.overlay.joined())
            assert (await client.rpc("broker.ping", {}, nodeid=2)).json()["rank"] == 2
            with pytest.raises(RpcError) as raised:
                await client.rpc("broker.ping", {}, nodeid=0)
            assert raised.value.errno == errno.EHOSTUNREACH
            instance.apart(0)
            await instance.state(0)
            await instance.state(2)
            assert (await client.rpc("broker.ping", {}, nodeid=0)).json()["rank"] == 0
            assert (await client.rpc("broker.ping", {}, nodeid=1)).json()["rank"] == 1
            await client.publish("after.restart", {})
            async with asyncio.timeout(10):
                assert (await anext(events)).topic == "after.restart"
            assert client.ended is None
        assert child.broker.router.uuid != former[0]
        assert grandchild.broker.router.uuid != former[1]
        assert grandchild.overlay.epoch == child.overlay.epoch == child.overlay.parent_uuid()

    play(rundir, 3, tell, topology="kary:1")


@pytest.mark.patient
def test_a_parent_frozen_for_long_is_lost_and_joined_again_when_it_thaws(rundir):
    async def tell(instance):
        instance.apart(0)
        child = await instance.ours(1)
        impatient(child)
        await instance.state(1)
        before = child.broker.router.uuid
        await asyncio.sleep(1.5)
        assert child.broker.router.uuid == before, "a live parent sends events, or keepalives"
        instance.kill(0, signal.SIGSTOP)
        with pytest.raises(RpcError) as raised:
            await pong(instance, 1, 0)
        assert raised.value.errno == errno.EHOSTUNREACH
        await until(lambda: not child.overlay.joined())
        instance.kill(0, signal.SIGCONT)
        await until(child.overlay.joined, 30)
        assert child.broker.router.uuid != before
        assert await pong(instance, 1, 0) == 0

    play(rundir, 2, tell, tree="torpid_min_s = 0.2")


@pytest.mark.patient
def test_a_killed_broker_in_the_middle_takes_its_subtree_along_until_it_is_back(rundir):
    async def tell(instance):
        root = await instance.ours(0)
        instance.apart(1)
        leaf = await instance.ours(2)
        await instance.state(2)
        assert await pong(instance, 0, 2) == 2
        instance.kill(1)
        await until(lambda: not leaf.overlay.joined() and root.overlay.subtree_status() == "degraded")
        async with instance.connect(0) as client:
            with pytest.raises(RpcError) as raised:
                await client.rpc("broker.ping", {}, nodeid=2)
        assert raised.value.errno == errno.EHOSTUNREACH
        await instance.wait(1)
        instance.apart(1)
        await until(full(root), 30)
        assert await pong(instance, 0, 2) == 2
        assert await pong(instance, 2, 0) == 0

    play(rundir, 3, tell, topology="kary:1")


@pytest.mark.patient
def test_exit_leaves_it_to_a_supervisor(rundir):
    async def tell(instance):
        root = await instance.ours(0)
        instance.apart(1, 'on_parent_loss = "exit"')
        await instance.state(1)
        root.overlay._children.disconnect(1, "test")
        assert await instance.wait(1) == 1
        assert "lost the parent" in instance.log(1)

    play(rundir, 2, tell)


@pytest.mark.patient
def test_a_child_that_is_told_to_end_says_goodbye(rundir):
    async def tell(instance):
        root = await instance.ours(0)
        instance.apart(1)
        await instance.state(1)
        instance.kill(1, signal.SIGTERM)
        assert await instance.wait(1) == 0
        (child,) = root.overlay.child_health()
        assert (child["status"], child["error"]) == ("offline", "administrative shutdown")
        assert root.overlay.subtree_status() == "partial"

    play(rundir, 2, tell)
