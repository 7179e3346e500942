"""Services of clients anywhere in a tree of four: 1 and 2 below 0, 3 below 1."""

import asyncio
import errno

import pytest

from broker.client import LATER
from broker.errors import RpcError
from broker.identity import Role
from broker.wire.message import STREAMING
from gateway.sessions.any_rank_retry import KEPT_MESSAGE_BYTES
from tests.interop.fronting import fronting
from tests.interop.mixed import Mixed
from tests.unit.node.overlay.trees import until

pytestmark = [pytest.mark.story, pytest.mark.timeout(120)]


def play(rundir, tell):
    async def main():
        async with Mixed(None, rundir, 4) as instance:
            for rank in range(4):
                await instance.ours(rank)
            await tell(instance)

    asyncio.run(main())


def calc(rank):
    return {"where": lambda _request: {"rank": rank}}


async def until_known(h, ranks, name="calc"):
    """Wait until the broker of ``h`` knows this of a service."""
    async with asyncio.timeout(20):
        while True:
            answer = (await h.rpc("service.providers", {"service": name})).json()
            if answer["services"].get(name, []) == ranks:
                return
            await asyncio.sleep(0.01)


def test_a_service_elsewhere_is_named_but_not_called(rundir):
    """Who does not ask for it sees errnum and routing as ever."""

    async def tell(instance):
        async with instance.connect(0) as root, instance.connect(2) as other, instance.connect(3) as below:
            async with instance.connect(1) as provider, provider.service("calc", calc(1)):
                await until_known(root, [1])
                assert (await below.rpc("calc.where")).json() == {"rank": 1}
                for h in (root, other):
                    with pytest.raises(RpcError, match=r"registered here: calc is on rank 1$") as raised:
                        await h.rpc("calc.where")
                    assert raised.value.errno == errno.ENOSYS
                    assert (await h.rpc("calc.where", nodeid=1)).json() == {"rank": 1}
                with pytest.raises(RpcError, match=r"^No service matching calc.where is registered$"):
                    await root.rpc("calc.where", nodeid=2)
            await until_known(root, [])
            with pytest.raises(RpcError, match=r"^No service matching calc.where is registered$"):
                await root.rpc("calc.where")

    play(rundir, tell)


def test_callers_that_ask_for_it_reach_providers_in_turn_and_the_next_when_one_dies(rundir):
    async def tell(instance):
        async with instance.connect(0) as root, instance.connect(2) as provider:
            dying = await instance.connect(1)
            await dying.serve("calc", {**calc(1), "hang": lambda _request: LATER})
            await provider.serve("calc", calc(2))
            await until_known(root, [1, 2])

            async def where(**how):
                return (await root.rpc("calc.where", anywhere=True, **how)).json()["rank"]

            assert sorted([await where(), await where()]) == [1, 2]
            assert sorted([await where(), await where()]) == [1, 2]
            hanging = asyncio.get_running_loop().create_task(root.rpc("calc.hang", nodeid=1))
            await until(lambda: instance.nodes[1].broker.router.parent.pending)
            dying.link.close("killed")
            with pytest.raises(RpcError) as raised:
                await hanging
            assert raised.value.errno == errno.EHOSTUNREACH
            assert [await where() for _ in range(4)] == [2, 2, 2, 2]
            await dying.close()

    play(rundir, tell)


def test_streams_and_calls_from_the_nearest(rundir):
    async def count(request):
        yield {"rank": int(request.topic.rpartition(".")[2])}
        yield {"n": 2}

    async def tell(instance):
        async with instance.connect(0) as root, instance.connect(3) as h, instance.connect(2) as far:
            await far.serve("calc", {"where": calc(2)["where"], "count.2": count})
            await until_known(root, [2])
            for _ in range(2):
                assert (await h.rpc("calc.where", anywhere=True)).json() == {"rank": 2}
            async with h.stream("calc.count.2", anywhere=True) as answers:
                assert [answer.json() async for answer in answers] == [{"rank": 2}, {"n": 2}]
            await root.serve("calc", calc(0))
            await until_known(root, [0, 2])
            async with asyncio.timeout(10):
                while (await h.rpc("calc.where", anywhere=True)).json() != {"rank": 0}:
                    await asyncio.sleep(0.05)
            async with h.stream("calc.count.2", anywhere=True) as answers:  # rank 0 has no such method
                assert [answer.json() async for answer in answers] == [{"rank": 2}, {"n": 2}]
            assert (await h.rpc("attr.get", {"name": "rank"}, anywhere=True)).json()["value"] == "3"

    play(rundir, tell)


def test_a_broker_that_goes_takes_the_services_below_it_along_until_it_is_back(rundir):
    async def tell(instance):
        async with (
            instance.connect(0) as root,
            instance.connect(3) as provider,
            provider.service("calc", calc(3)),
        ):
            await until_known(root, [3])
            await root.rpc("overlay.disconnect-subtree", {"rank": 1})
            await until_known(root, [])
            await until_known(root, [3])
            assert (await root.rpc("calc.where", nodeid=3)).json() == {"rank": 3}

    play(rundir, tell)


# ---------------------------------------------------------------- web clients


def web(rundir, tell, on=True):
    """``tell(instance, front, h)``: a gateway at rank 0, and a handle at rank 1."""

    async def main(instance):
        async with fronting(instance.uri(0), anywhere=on) as front, instance.connect(1) as h:
            await tell(instance, front, h)
            if on:
                assert (front.delivery.any_rank_retry.held, front.delivery.any_rank_retry._bytes) == ({}, 0)

    play(rundir, main)


def shared(methods):
    return {name: (handler, Role.USER) for name, handler in methods.items()}


def test_web_clients_reach_a_service_elsewhere_as_if_it_were_here(rundir):
    asked = []

    def where(request):
        asked.append(request.userid)
        return {"rank": 1}

    async def tell(instance, front, h):
        ada = front.user()
        assert (await ada.ask("nobody.where")).errnum == errno.ENOSYS
        async with h.service("calc", shared({"where": where})), instance.connect(0) as root:
            await until_known(root, [1])
            for _ in range(2):
                assert await ada.rpc("calc.where") == {"rank": 1}
            assert asked == [1001, 1001]
            large = await ada.ask("calc.where", {"pad": "x" * KEPT_MESSAGE_BYTES})
            assert large.errnum == errno.ENOSYS
            assert (await ada.ask("calc.nope")).errnum == errno.ENOSYS
            assert (await ada.ask("calc.where", nodeid=0)).errnum == errno.ENOSYS
            async with root.service("calc", shared({"where": lambda _request: {"rank": 0}})):
                assert await ada.rpc("calc.where") == {"rank": 0}
            assert (await ada.ask("calc.where")).errnum in (0, errno.ENOSYS)
            assert await ada.rpc("calc.where") == {"rank": 1}
        assert ada.session.calls.count == 0

    web(rundir, tell)


def test_streams_of_web_clients_end_where_they_run(rundir):
    ended = []

    async def count(request):
        try:
            for n in range(1 << 20):
                yield {"n": n}
                await asyncio.sleep(0.01)
        finally:
            ended.append(request.matchtag)

    async def tell(instance, front, h):
        async with h.service("calc", shared({"count": count})), instance.connect(0) as root:
            await until_known(root, [1])
            ada, bob = front.user(), front.user("bob", 1002)
            first = ada.send("calc.count", flags=STREAMING)
            assert (await ada.answer(first, 3)).errnum == 0
            ada.send("calc.cancel", {"matchtag": first})
            await until(lambda: ended == [first])
            second = bob.send("calc.count", flags=STREAMING)
            assert (await bob.answer(second, 3)).errnum == 0
            bob.leave()
            await until(lambda: ended == [first, second])
            hanging = ada.send("calc.count", flags=STREAMING)
            await ada.answer(hanging, 1)
        await until(lambda: ada.answers(hanging)[-1].errnum)

    web(rundir, tell)


def test_a_stream_that_is_cancelled_before_it_is_found_ends_all_the_same(rundir):
    async def hang(_request):
        await asyncio.sleep(60)
        yield {}

    async def tell(instance, front, h):
        async with h.service("calc", shared({"hang": hang})), instance.connect(0) as root:
            await until_known(root, [1])
            ada = front.user()
            tag = ada.send("calc.hang", flags=STREAMING)
            ada.send("calc.cancel", {"matchtag": tag})
            assert (await ada.answer(tag)).errnum == errno.ENODATA

    web(rundir, tell)


def test_when_a_provider_dies_web_clients_are_answered_and_reach_the_next(rundir):
    async def tell(instance, front, h):
        async with instance.connect(2) as other, instance.connect(0) as root:
            dying = await instance.connect(1)
            await dying.serve("calc", shared({**calc(1), "hang": lambda _request: LATER}))
            ada = front.user()
            await until_known(root, [1])
            hanging = ada.send("calc.hang")
            await until(lambda: instance.nodes[1].broker.router.parent.pending)
            await other.serve("calc", shared(calc(2)))
            await until_known(root, [1, 2])
            dying.link.close("killed")
            assert (await ada.answer(hanging)).errnum == errno.EHOSTUNREACH
            for _ in range(3):
                assert await ada.rpc("calc.where") == {"rank": 2}
            await dying.close()

    web(rundir, tell)


def test_turned_off_a_web_client_is_told_where_it_is(rundir):
    async def tell(instance, front, h):
        async with h.service("calc", shared(calc(1))), instance.connect(0) as root:
            await until_known(root, [1])
            answer = await front.user().ask("calc.where")
            assert answer.errnum == errno.ENOSYS
            assert answer.payload.endswith(b"registered here: calc is on rank 1\0")

    web(rundir, tell, on=False)
