"""Which calls a leaving broker waits for, and for how long."""

import asyncio

import pytest

from broker import settings
from broker.node import drain
from broker.node.assembly import Node
from broker.transport.link import Options
from broker.transport.unix import transport as unix
from broker.wire.message import REQUEST, RESPONSE, STREAMING, request, response
from broker.wire.payload import encode_json
from tests.unit.node.desk import Far, run, until


class Pair:
    """A node, and two clients of it: ``provider`` has the service ``svc``, ``caller`` asks it."""

    def __init__(self, rundir, drain_s=5.0):
        text = f'[broker]\nrundir = "{rundir}/r"\nlocal_uri = "local://{rundir}/s"\ndrain_s = {drain_s}\n'
        self.node = Node(settings.loads(text).at_rank(0))
        self.uri = f"local://{rundir}/s"

    async def __aenter__(self):
        await self.node.start()
        self.provider, self.caller = [Far(await unix.dial(self.uri, Options())) for _ in range(2)]
        self.provider.say(request("service.add", encode_json({"service": "svc"}), matchtag=1))
        await until(lambda: self.provider.of(RESPONSE))
        return self

    async def __aexit__(self, *_exc):
        await self.node.stop()

    async def call(self, matchtag, flags=0):
        """Ask; returns the request as the provider received it."""
        seen = len(self.provider.of(REQUEST))
        self.caller.say(request("svc.do", b"", matchtag=matchtag, flags=flags))
        await until(lambda: len(self.provider.of(REQUEST)) > seen)
        return self.provider.of(REQUEST)[-1]

    def finish(self, seconds):
        return asyncio.get_running_loop().create_task(drain.finish_calls(self.node.broker, seconds))


def test_an_open_call_is_waited_for(rundir):
    async def script():
        async with Pair(rundir) as pair:
            asked = await pair.call(7)
            finishing = pair.finish(10)
            await asyncio.sleep(0.05)
            assert not finishing.done()
            pair.provider.say(response(asked))
            assert await finishing == 0

    run(script())


def test_what_nobody_answers_is_waited_for_so_long_and_counted(rundir):
    async def script():
        async with Pair(rundir, drain_s=0) as pair:
            await pair.call(7)
            await pair.call(8)
            clock = asyncio.get_running_loop().time
            began = clock()
            assert await drain.finish_calls(pair.node.broker, 0.2) == 2
            assert 0.2 <= clock() - began < 10
            assert await drain.finish_calls(pair.node.broker, 0) == 2

    run(script())


def test_nobody_waits_for_a_stream_or_for_calls_that_come_later(rundir):
    async def script():
        async with Pair(rundir, drain_s=0) as pair:
            await pair.call(7, STREAMING)
            assert await drain.finish_calls(pair.node.broker, 10) == 0
            first = await pair.call(8)
            finishing = pair.finish(10)
            await asyncio.sleep(0.05)
            await pair.call(9)
            pair.provider.say(response(first))
            assert await finishing == 0

    run(script())


@pytest.mark.parametrize("first", ["answer", "ask"])
def test_a_caller_that_uses_its_matchtag_again_and_again_keeps_nobody(rundir, first):
    async def script():
        async with Pair(rundir, drain_s=0) as pair:
            asked = await pair.call(7)
            clock = asyncio.get_running_loop().time
            began, finishing = clock(), pair.finish(12)
            await asyncio.sleep(0)
            while not finishing.done():
                seen = len(pair.provider.of(REQUEST))
                says = [
                    lambda to=asked: pair.provider.say(response(to)),
                    lambda: pair.caller.say(request("svc.do", b"", matchtag=7)),
                ]
                for say in says if first == "answer" else reversed(says):
                    say()
                await until(lambda count=seen: len(pair.provider.of(REQUEST)) > count)
                asked = pair.provider.of(REQUEST)[-1]
            assert await finishing == 0
            assert clock() - began < 10, "it was not waited for until the end"

    run(script())


@pytest.mark.parametrize("who", ["caller", "provider"])
def test_a_call_whose_end_is_gone_is_over(rundir, who):
    async def script():
        async with Pair(rundir) as pair:
            await pair.call(7)
            finishing = pair.finish(10)
            getattr(pair, who).link.close()
            assert await finishing == 0

    run(script())


def test_children_have_a_little_longer_than_their_parent():
    assert drain.children_s(0) == drain.CHILDREN_S
    assert drain.children_s(30) == 30 + drain.FOLLOW_S
    assert drain.bound_s(30) > drain.children_s(30) + drain.QUEUES_S
