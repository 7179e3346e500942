"""Our client against a real flux-core of two brokers, and its programs against services we provide.

Needs FLUX_PREFIX. One instance serves the whole file.
"""

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import broker.client
from broker.client import blocking
from broker.errors import LinkBroken, LinkEnded, RpcError
from broker.identity import Role
from broker.wire import message as wire
from broker.wire.payload import encode_json

pytestmark = pytest.mark.interop

LIMIT_S = 20


class Instance:
    """A running instance: the URIs of its brokers and its command line."""

    def __init__(self, prefix, uri):
        self.flux = str(prefix / "bin" / "flux")
        self.uri = uri
        self.uri_of_rank_1 = uri.replace("local-0", "local-1")
        self.env = {**os.environ, "FLUX_URI": uri}

    def run(self, *args):
        done = subprocess.run(
            [self.flux, *args], env=self.env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def start(self, *args):
        return await asyncio.create_subprocess_exec(
            self.flux, *args, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )


@contextlib.contextmanager
def running(prefix, size):
    command = [
        str(prefix / "bin" / "flux"),
        "start",
        f"--test-size={size}",
        "sh",
        "-c",
        "echo $FLUX_URI; cat",
    ]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield Instance(prefix, process.stdout.readline().strip()), process
    finally:
        process.stdin.close()
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@pytest.fixture(scope="module")
def instance(flux_prefix):
    with running(flux_prefix, 2) as (found, _process):
        yield found


def run(script):
    async def main():
        async with asyncio.timeout(LIMIT_S):
            await script()

    asyncio.run(main())


def test_attributes_errors_and_texts(instance):
    async def script():
        async with broker.client.connect(instance.uri) as h:
            assert (await h.rank(), await h.size()) == (0, 2)
            assert await h.attr("rank", nodeid=1) == "1"
            for topic, payload, nodeid, errnum, text in (
                ("attr.get", {"name": "no-such"}, wire.NODEID_ANY, errno.ENOENT, "No such file or directory"),
                ("attr.get", None, wire.NODEID_ANY, errno.EPROTO, "Protocol error"),
                ("attr.nope", {}, wire.NODEID_ANY, errno.ENOSYS, "Unknown service method 'attr.nope'"),
                ("no.such", {}, 1, errno.ENOSYS, "No service matching no.such is registered"),
                ("attr.get", {"name": "rank"}, 99, errno.EHOSTUNREACH, "No route to host"),
                ("attr.set", {"name": "rank", "value": "5"}, wire.NODEID_ANY, errno.EINVAL, "updated"),
            ):
                with pytest.raises(RpcError, match=text) as caught:
                    await h.rpc(topic, payload, nodeid=nodeid)
                assert caught.value.errno == errnum
            assert await h.rpc("no.such", noresponse=True) is None
            with pytest.raises(RpcError) as caught:  # rank 0 has nobody above it
                await h.rpc("attr.get", {"name": "rank"}, upstream=True)
            assert caught.value.errno == errno.EHOSTUNREACH
            assert h._calls.unmatched == 0
        async with broker.client.connect(instance.uri_of_rank_1) as h:
            answer = await h.rpc("attr.get", {"name": "rank"}, upstream=True)
            assert answer.json()["value"] == "0"

    run(script)


def test_large_payloads_come_back(instance):
    async def script():
        async with broker.client.connect(instance.uri) as h:
            for size in (0, 253, 254, 255, 256, 70_000, 1 << 20):
                pad = "x" * size
                answer = await h.rpc("broker.ping", {"seq": 1, "pad": pad}, nodeid=1)
                assert answer.json()["pad"] == pad
                assert answer.json()["rank"] == 1

    run(script)


def test_provider_and_caller_through_real_brokers(instance):
    async def add(request):
        numbers = request.json()
        return {"sum": numbers["a"] + numbers["b"]}

    async def count(request):
        for n in range(request.json()["to"]):
            yield {"n": n}

    async def script():
        methods = {"add": add, "count": count, "raw": lambda request: request.payload}
        async with (
            broker.client.connect(instance.uri_of_rank_1) as provider,
            broker.client.connect(instance.uri) as h,
            provider.service("hgcalc", methods),
        ):
            assert (await h.rpc("hgcalc.add", {"a": 1, "b": 2}, nodeid=1)).json() == {"sum": 3}
            answers = [await h.rpc("hgcalc.raw", bytes(n), nodeid=1) for n in (0, 254, 255, 100_000)]
            assert [len(answer.payload) for answer in answers] == [0, 254, 255, 100_000]
            futures = [
                h.request(wire.request("hgcalc.raw", b"%d" % n, nodeid=1, flags=wire.USER1))
                for n in range(500)
            ]
            assert [(await future).payload for future in futures] == [b"%d" % n for n in range(500)]
            async with h.stream("hgcalc.count", {"to": 100}, nodeid=1) as stream:
                assert [response.json()["n"] async for response in stream] == list(range(100))
            with pytest.raises(RpcError, match=r"Unknown service method 'hgcalc.nope'"):
                await h.rpc("hgcalc.nope", nodeid=1)
            with pytest.raises(RpcError, match=r"No service matching hgcalc.add is registered"):
                await h.rpc("hgcalc.add")  # not at rank 0
            with pytest.raises(RpcError) as caught:
                await provider.serve("broker", {})
            assert caught.value.errno == errno.EEXIST

    run(script)


def test_roles_of_a_forwarded_user(instance):
    """An owner link may act for others: what it stamps is what the service judges (RFC 12)."""

    async def script():
        seen = []

        def look(request):
            seen.append((request.userid, request.rolemask))

        async with (
            broker.client.connect(instance.uri) as h,
            h.service("hgroles", {"own": look, "user": (look, Role.USER), "admin": (look, Role.ADMIN)}),
        ):
            await h.rpc("hgroles.own")
            for topic, text in (
                ("hgroles.own", b"Request requires owner credentials\0"),
                ("hgroles.user", None),
                ("hgroles.admin", b"Request rejected due to insufficient privilege\0"),
            ):
                answer = await h.request(wire.request(topic, userid=1234, rolemask=Role.USER))
                assert (answer.errnum, answer.payload) == (errno.EPERM if text else 0, text)
            # a real service says the same
            message = wire.request("log.clear", encode_json({}), userid=1234, rolemask=Role.USER)
            answer = await h.request(message)
            assert answer.payload == b"Request requires owner credentials\0"
        assert seen == [(os.getuid(), Role.OWNER | Role.LOCAL), (1234, Role.USER)]

    run(script)


def test_cancel_and_disconnect_reach_our_handlers(instance):
    async def script():
        ended = asyncio.Queue()

        async def watch(request):
            try:
                while True:
                    yield "tick"
                    await asyncio.sleep(0.001)
            finally:
                ended.put_nowait(request.matchtag)

        async def wait(request):
            try:
                await asyncio.sleep(60)
            finally:
                ended.put_nowait("wait")

        async with (
            broker.client.connect(instance.uri_of_rank_1) as provider,
            provider.service("hgwatch", {"watch": watch, "wait": wait}),
            broker.client.connect(instance.uri) as h,
            broker.client.connect(instance.uri) as other,
        ):
            async with other.stream("hgwatch.watch", nodeid=1) as stays:
                await anext(stays)
                async with h.stream("hgwatch.watch", nodeid=1) as stream:
                    await anext(stream)
                    await stream.cancel()
                    async for _ in stream:
                        pass
                assert await ended.get() == stream.request.matchtag
                await anext(stays)  # the other client's stream goes on, though its matchtag is the same
                with pytest.raises(TimeoutError):
                    await h.rpc("hgwatch.wait", nodeid=1, timeout_s=0.05)
                assert ended.empty()
                await h.close()
                assert await ended.get() == "wait"  # the broker's disconnect notice
            await ended.get()

    run(script)


def test_dmesg_follow_and_cancel(instance):
    async def script():
        async with broker.client.connect(instance.uri) as h:
            async with h.stream("log.dmesg", {"follow": True}) as lines:
                await anext(lines)
                await h.log("err", "headgate was here", app="interop")
                async for line in lines:
                    if "headgate was here" in line.text:
                        await lines.cancel()  # ends the iteration, with errno 61 as deployed services do
            async with h.stream("log.dmesg", {"follow": False}) as lines:
                kept = [line.text async for line in lines]
            assert any(" 0 interop " in line and line.endswith("headgate was here") for line in kept)
            assert len(h._calls) == 0

    run(script)
    assert "interop.err[0]: headgate was here" in instance.run("dmesg")


def test_events_with_their_real_form(instance):
    async def script():
        async with (
            broker.client.connect(instance.uri) as h,
            broker.client.connect(instance.uri_of_rank_1) as far,
            h.subscribe("hg.") as events,
            h.subscribe("hg.a") as narrow,
            far.subscribe("hg.") as far_events,
        ):
            first = await h.publish("hg.a", {"n": 1})
            assert events.ready == narrow.ready == 1, "the event precedes the answer of event.publish"
            assert await far.publish("hg.b", "text") == first + 1
            assert far_events.ready == 2, "so it does below rank 0: what is called next comes after it"
            h.publish_nowait("hg.c", b"\x00raw")
            h.publish_nowait("hg.d", private=True)
            await h.publish("hg.e", private=True)
            got = [await anext(events) for _ in range(5)]
            assert [event.sequence for event in got] == list(range(first, first + 5))
            assert [event.topic for event in got] == ["hg.a", "hg.b", "hg.c", "hg.d", "hg.e"]
            assert got[0].json() == {"n": 1}
            assert (got[1].text, got[2].payload, got[3].payload) == ("text", b"\x00raw", None)
            assert [event.private for event in got] == [False, False, False, True, True]
            # RFC 12: LOCAL is added on the publisher's own socket and cleared between brokers
            assert [event.rolemask & Role.OWNER for event in got] == [1] * 5
            assert {event.userid for event in got} == {os.getuid()}
            assert narrow.ready == 1
            assert [(await anext(far_events)).topic for _ in range(5)] == [event.topic for event in got]

    run(script)


def test_subscriptions_are_counted_here_and_there(instance):
    async def script():
        async with broker.client.connect(instance.uri) as h, h.subscribe("hgx.end") as end:
            for _ in range(3):
                async with h.subscribe("hgx.") as outer:
                    async with h.subscribe("hgx."):
                        pass
                    await h.publish("hgx.one")
                    assert (await anext(outer)).topic == "hgx.one"
            await h.publish("hgx.two")
            await h.publish("hgx.end")
            assert (await anext(end)).topic == "hgx.end"
            with pytest.raises(RpcError) as caught:  # nothing is left to unsubscribe at the broker
                await h.rpc("event.unsubscribe", {"topic": "hgx."})
            assert caught.value.errno == errno.ENOENT

    run(script)


def test_real_commands_call_our_service(instance):
    """`flux ping NAME` speaks with a ping method of ours, `flux event pub` with our subscription."""

    def ping(request):
        return {
            **request.json(),
            "route": "here",
            "userid": request.userid,
            "rolemask": request.rolemask,
            "rank": 0,
        }

    async def script():
        async with (
            broker.client.connect(instance.uri) as h,
            h.service("hgping", {"ping": ping}),
            h.subscribe("hgpub.") as events,
        ):
            process = await instance.start("ping", "--count=2", "--interval=0.01", "hgping")
            out, err = await process.communicate()
            assert process.returncode == 0, err
            assert out.count(b"hgping.ping") == 2
            process = await instance.start("event", "pub", "hgpub.x", '{"a": 1}')
            await process.communicate()
            event = await anext(events)
            assert event.json() == {"a": 1}

    run(script)


def test_real_library_streams_from_our_service(instance):
    """libflux itself calls, follows a stream and cancels it."""
    code = """
import errno, flux
from flux.constants import FLUX_RPC_STREAMING, FLUX_RPC_NORESPONSE
h = flux.Flux()
rpc = h.rpc("hglib.count", {"to": 3}, flags=FLUX_RPC_STREAMING)
try:
    while True:
        print(rpc.get()["n"])
        rpc.reset()
except OSError as error:
    print(errno.errorcode[error.errno])
print(h.rpc("hglib.echo", {"x": "\\u00e9"}).get()["x"])
try:
    h.rpc("hglib.fail").get()
except OSError as error:
    print(errno.errorcode[error.errno], error.strerror)
"""

    async def count(request):
        for n in range(request.json()["to"]):
            yield {"n": n}

    def fail(request):
        raise RpcError(errno.ESRCH, "no such job")

    async def script():
        methods = {"count": count, "echo": lambda request: request.json(), "fail": fail}
        async with broker.client.connect(instance.uri) as h, h.service("hglib", methods):
            process = await instance.start("python", "-c", code)
            out, err = await process.communicate()
            assert process.returncode == 0, err.decode()
            lines = out.decode().splitlines()
            assert lines[:5] == ["0", "1", "2", "ENODATA", "é"]
            assert lines[5].startswith("ESRCH")
            assert "no such job" in lines[5]

    run(script)


def test_our_rpc_calls_a_service_of_the_real_library(instance):
    code = """
import errno, flux, sys
from flux.constants import FLUX_MSGTYPE_REQUEST
h = flux.Flux()
left = [4]
def answer(handle, watcher, message, args):
    handle.respond(message, {"topic": message.topic, **(message.payload or {})})
    left[0] -= 1
    if not left[0]:
        handle.reactor_stop()
h.service_register("hgreal").get()
watcher = h.msg_watcher_create(answer, topic_glob="hgreal.*", type_mask=FLUX_MSGTYPE_REQUEST)
watcher.start()
print("ready", flush=True)
h.reactor_run()
"""

    async def script():
        process = await instance.start("python", "-c", code)
        assert await process.stdout.readline() == b"ready\n"
        async with broker.client.connect(instance.uri) as h:
            for n in range(4):
                answer = await h.rpc("hgreal.run", {"n": n})
                assert answer.json() == {"topic": "hgreal.run", "n": n}
        _out, err = await process.communicate()
        assert process.returncode == 0, err

    run(script)


def test_blocking_client(instance):
    def echo(request):
        return request.json()

    def three(request):
        yield from ("a", "b", "c")

    with blocking.connect(instance.uri) as h, h.service("hgblock", {"echo": echo, "three": three}):
        assert (h.rank(), h.size()) == (0, 2)
        assert h.rpc("hgblock.echo", {"a": 1}).json() == {"a": 1}
        with h.stream("hgblock.three") as stream:
            assert [response.text for response in stream] == ["a", "b", "c"]
        with h.subscribe("hgblock.") as events:
            sequence = h.publish("hgblock.x", {"b": 2})
            event = next(events)
            assert (event.sequence, event.json()) == (sequence, {"b": 2})
        with h.stream("log.dmesg", {"follow": True}) as lines:
            assert lines.next(timeout_s=LIMIT_S).text
            lines.cancel()
            list(lines)
        with pytest.raises(TimeoutError), h.stream("log.dmesg", {"follow": True, "nobacklog": True}) as lines:
            lines.next(timeout_s=0.05)


def test_everything_fails_when_the_broker_goes(flux_prefix):
    async def script(instance, process):
        async with (
            broker.client.connect(instance.uri) as h,
            h.subscribe("hg.") as events,
            h.service("hgwait", {"wait": lambda request: broker.client.LATER}),
        ):
            call = asyncio.get_running_loop().create_task(h.rpc("hgwait.wait"))
            stream = h.stream("log.dmesg", {"follow": True, "nobacklog": True})
            async with stream:
                process.stdin.close()
                # it may end the stream properly before it closes its sockets
                with contextlib.suppress(RpcError, LinkEnded, LinkBroken):
                    async for _ in stream:
                        pass
            with pytest.raises((LinkEnded, LinkBroken)):
                await call
            with pytest.raises((LinkEnded, LinkBroken)):
                await anext(events)

    with running(flux_prefix, 1) as (instance, process):
        asyncio.run(script(instance, process))


def test_program_started_by_flux_finds_its_broker(instance):
    code = "import broker.client.blocking as b\nwith b.connect() as h: print(h.attr('version'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**instance.env, "PYTHONPATH": str(Path.cwd())},
        capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == instance.run("getattr", "version").strip()
