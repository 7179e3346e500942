"""The client API over ``ws://``: a program that speaks with its broker speaks with a gateway, unchanged."""

import asyncio
import contextlib
import errno
from pathlib import Path

import pytest

from broker.client import connect
from broker.errors import LinkEnded, LinkRefused, RpcError
from broker.testing.harness import Recorder
from broker.transport.link import Options
from broker.transport.registry import dial
from broker.wire.message import request
from broker.wire.payload import encode_json
from tests.live.gateways import Live, live, run


def to(gateway: Live, user: str = "ada", **extra):
    return connect(gateway.ws, options=options(gateway, user, **extra))


def options(gateway: Live, user: str = "ada", **extra) -> Options:
    return Options(extra={"token": gateway.tokens[user]} | extra)


def test_calls():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway, to(gateway) as h:
            assert (await h.rank(), await h.size()) == (0, 1)
            with pytest.raises(RpcError) as caught:
                await h.rpc("no.such.service")
            assert caught.value.errno == errno.ENOSYS
            answers = await asyncio.gather(
                *(h.rpc("attr.get", {"name": "size"}, nodeid=0) for _ in range(200))
            )
            assert {answer.json()["value"] for answer in answers} == {"1"}

    run(body)


def test_services_and_streams_between_two_web_clients():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway, to(gateway) as provider, to(gateway) as caller:

            async def count(request):
                for number in range(int(request.json()["to"])):
                    request.respond({"number": number})
                request.respond_error(errno.ENODATA)

            methods = {"run": lambda request: request.payload, "count": count}
            async with provider.service("echo", methods):
                for payload in (b"", b"x" * 70_000, "text", {"a": [1, "ä"]}):
                    answer = await caller.rpc("echo.run", payload)
                    assert answer.payload == (await provider.rpc("echo.run", payload)).payload
                async with caller.stream("echo.count", {"to": 300}) as numbers:
                    assert [each.json()["number"] async for each in numbers] == list(range(300))
            with pytest.raises(RpcError):
                await caller.rpc("echo.run", b"")

    run(body)


def test_events():
    async def body(folder: Path) -> None:
        async with contextlib.AsyncExitStack() as stack:
            gateway = await stack.enter_async_context(live(folder))
            one, two = [await stack.enter_async_context(to(gateway, user)) for user in ("ada", "bob")]
            async with two.subscribe("job.") as events, one.subscribe("secret.") as private:
                first = await one.publish("job.new", {"id": 1})
                hidden = await one.publish("secret.x", b"raw", private=True)
                one.publish_nowait("job.end", "done")
                heard = [await anext(events), await anext(events)]
                assert [event.topic for event in heard] == ["job.new", "job.end"]
                assert heard[0].sequence == first < hidden < heard[1].sequence, (
                    "a heartbeat may be between them"
                )
                assert heard[0].json() == {"id": 1}
                assert (await anext(private)).payload == b"raw"

    run(body)


def test_refusals_have_a_reason_and_an_errno():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway:
            with pytest.raises(LinkRefused) as caught:
                await dial(gateway.ws, Options(extra={"token": "hgt_unknown"}))
            assert caught.value.errno in (errno.EACCES, errno.EPERM)
            assert "credential refused" in str(caught.value)
            with pytest.raises(LinkRefused) as caught:
                await dial(gateway.ws.replace("/v1/ws", "/nowhere"), options(gateway))
            assert caught.value.errno == errno.ENOENT
            async with to(gateway, "bob") as h:
                with pytest.raises(RpcError) as denied:
                    await h.rpc("secret.call")
                assert denied.value.errno == errno.EPERM

    run(body)


def test_a_session_that_is_ended_says_why():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway, to(gateway) as h:
            for session in list(gateway.gateway.sessions.by_id.values()):
                session.close(4506, "an administrator wants it so")
            error = await h.wait_ended()
            assert isinstance(error, LinkEnded)
            assert "an administrator wants it so (close code 4506)" in str(error)

    run(body)


def test_resume_brings_what_was_missed():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway, to(gateway) as publisher:
            before = await dial(gateway.ws, options(gateway))
            welcome = before.replay.welcome
            before.abort(LinkEnded("the network went away"))
            numbers = [await publisher.publish(f"job.{name}") for name in ("a", "b", "c")]
            last = {"token": welcome["resume"], "epoch": welcome["epoch"], "sequence": welcome["sequence"]}
            link = await dial(gateway.ws, options(gateway, resume=last | {"subscriptions": ["job."]}))
            recorder = Recorder()
            link.start(recorder)
            assert [each.sequence for each in await recorder.count(3)] == numbers
            assert (link.replay.resumed["recovered"], link.replay.resumed["replayed"]) == (True, 3)
            await publisher.publish("job.d")
            assert (await recorder.count(4))[3].topic == "job.d"
            link.close()

    run(body)


def test_refresh_keeps_the_session():
    async def body(folder: Path) -> None:
        async with live(folder) as gateway:
            link = await dial(gateway.ws, options(gateway, token=lambda: gateway.tokens["ada"]))
            recorder = Recorder()
            link.start(recorder)
            link.replay._refresh()
            link.send(request("attr.get", encode_json({"name": "rank"}), matchtag=1))
            link.flush()
            (answer,) = await recorder.count(1)
            assert answer.errnum == 0
            assert link.ended is None
            link.close()

    run(body)


def test_the_gateways_limit_is_known_to_the_client():
    async def body(folder: Path) -> None:
        async with (
            live(folder, "[limits]\nmessage_bytes = 4096\npreauth_bytes = 4096\n") as gateway,
            to(gateway) as h,
        ):
            with pytest.raises(RpcError) as caught:
                await h.rpc("echo.run", bytes(5000))
            assert caught.value.errno == errno.EMSGSIZE
            answers = await asyncio.gather(
                *(h.rpc("attr.get", {"name": "size"}, nodeid=0) for _ in range(200))
            )
            assert len(answers) == 200, "joined messages are below the limit, too"

    run(body)
