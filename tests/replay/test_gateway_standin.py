"""The gateway in front of a stand-in for a flux-core, made of captures; ``interop`` holds the same with a real one."""

import asyncio
import contextlib
import errno

import pytest

import broker.client
from broker.errors import LinkBroken, RpcError
from broker.identity import Role
from broker.wire import message as wire
from broker.wire.payload import encode_json
from gateway.upstream.upstream import Upstream
from tests.interop.fronting import CHECKS, LIMIT_S, fronting
from tests.replay import comparison
from tests.replay.deployed import SERVICES, captured, deployed
from tests.unit.gateway.upstream.recorder import Recorder, hop, session_request, until


class Attached:
    """``tests.interop.fronting.Other``, by the stand-in and by connections to it."""

    def __init__(self, standin):
        self.standin = standin
        self.uri = standin.uri
        self.publish = standin.publish_event
        self.change_group = standin.change_group
        self.kill = standin.kill
        self.restart = standin.restart

    async def call(self, topic, payload):
        async with broker.client.connect(self.uri) as h:
            try:
                return (await h.rpc(topic, payload, timeout_s=10)).json()
            except RpcError as error:
                raise OSError(error.errno, str(error)) from error

    @contextlib.asynccontextmanager
    async def provide(self, name):
        seen = []

        class Echo:
            """Every method of the service: libflux's watchers take a pattern."""

            def requested(self, message):
                seen.append(message.topic)
                if not message.topic.endswith(".disconnect"):
                    h.send(wire.response(message, message.payload))

            def link_ended(self):
                """Nothing waits."""

        async with broker.client.connect(self.uri) as h:
            service = await h.service(name).open()
            service.requested = Echo().requested
            try:
                yield seen
            finally:
                if h.ended is None:
                    await service.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_through_the_gateway(check, rundir):
    async def main():
        uri = f"local://{rundir}/local-0"
        async with asyncio.timeout(LIMIT_S), deployed(uri) as standin, fronting(uri) as front:
            await check(front, Attached(standin))

    asyncio.run(main())


def exchanges():
    """Captured exchanges with services that an instance without modules has, as (topic, payload, nodeid, owner)."""
    return [
        key
        for key in captured()
        if (key[0].partition(".")[0] in SERVICES or "nosuch" in key[0]) and not key[0].startswith("event.")
    ]


def test_captured_answers_reach_web_clients_as_they_are(rundir):
    wrong = {}

    async def answer(front, topic, payload, nodeid, is_owner):
        expected = captured()[topic, payload, nodeid, is_owner]
        client = front.owner() if is_owner else front.user()
        flags = expected["flags"] & (wire.STREAMING | wire.UPSTREAM | wire.USER1)
        answer = await client.ask(topic, payload, nodeid=nodeid, flags=flags)
        assert (answer.errnum, hex(answer.flags)) == (expected["errnum"], hex(expected["flags"]))
        assert answer.routes == []
        comparison.payload(answer.payload, strange(expected, is_owner))

    async def main():
        uri = f"local://{rundir}/local-0"
        async with asyncio.timeout(LIMIT_S), deployed(uri), fronting(uri) as front:
            for key in exchanges():
                try:
                    await answer(front, *key)
                except Exception as error:
                    wrong[key] = error

    asyncio.run(main())
    assert len(exchanges()) > 50
    assert wrong == {}


def strange(expected, is_owner):
    """The captured pongs tell of a direct client: a web user's has its own userid and roles."""
    content = expected.get("payload_json")
    if not isinstance(content, dict) or "rolemask" not in content:
        return expected
    own = {"userid": 0, "rolemask": 1} if is_owner else {"userid": 1001, "rolemask": int(Role.USER)}
    return {**expected, "payload_json": {**content, **own}}


def test_a_link_s_end_is_told_for_its_first_sender_only(rundir):
    """Why sessions that stream have links of their own (``gateway.upstream.flux_core``): the stand-in has the habit."""

    async def main():
        async with deployed(f"local://{rundir}/local-0") as standin:
            async with broker.client.connect(standin.uri) as h:
                for name in "ab":
                    payload = encode_json({"name": "x"})
                    h.send(session_request(hop(name), "groups.get", payload, flags=wire.STREAMING))
                await until(lambda: len(standin.streams) == 2)
            await until(lambda: len(standin.streams) == 1)
            assert standin.streams[0].routes[-1][:1] == b"b"

    asyncio.run(main())


def test_a_gateway_that_dies_leaves_no_stream(rundir):
    async def main():
        async with deployed(f"local://{rundir}/local-0") as standin:
            upstream = Upstream(standin.uri)
            await upstream.start(Recorder())
            assert await upstream.wait_joined(10)
            for name in "abc":
                payload = encode_json({"name": "x"})
                upstream.send(session_request(hop(name), "groups.get", payload, flags=wire.STREAMING))
            await until(lambda: len(standin.streams) == 3)
            await upstream.stop()
            await until(lambda: standin.streams == [], "the end of all streams")

    asyncio.run(main())


def test_a_session_whose_own_link_breaks_is_answered_and_nobody_else(rundir):
    async def main():
        uri = f"local://{rundir}/local-0"
        async with asyncio.timeout(LIMIT_S), deployed(uri) as standin, fronting(uri) as front:
            ada, bob = front.user(), front.user("bob", 1002)
            for client in (ada, bob):
                client.send("groups.get", {"name": "x"}, nodeid=0, matchtag=9, flags=wire.STREAMING)
                await client.answer(9)
            mine = next(one for one in standin.streams if one.routes[-1] == ada.session.hop[1:])
            standin.links[mine.routes[0]].abort(LinkBroken("a connector that hangs up"))
            await ada.answer(9, 2)
            assert ada.answers(9)[-1].errnum == errno.EHOSTUNREACH
            assert front.upstream.joined
            assert len(bob.answers(9)) == 1
            ada.send("groups.get", {"name": "x"}, nodeid=0, matchtag=10, flags=wire.STREAMING)
            assert (await ada.answer(10)).errnum == 0

    asyncio.run(main())
