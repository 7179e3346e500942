"""How a link to a gateway ends, and the client API over it."""

import asyncio
import errno
import ssl
import time

import pytest
from websockets.http11 import Response

from broker.client import connect
from broker.errors import LinkBroken, LinkClosed, LinkEnded, LinkRefused
from broker.testing.harness import Recorder
from broker.transport.registry import dial
from broker.wire.framing import Splitter
from broker.wire.message import event, response
from gateway import selfsigned
from tests.tables import for_each
from tests.unit.transport.scripted_gateway import WELCOME, gateway, options, say, soon, talking


def test_messages_before_a_close_are_delivered_and_its_reason_is_the_error_objects():
    async def script(connection):
        await connection.send(say(WELCOME))
        await connection.send(event("last").framed())
        await connection.send(
            say({"type": "error", "code": 4002, "text": "you read too slowly, 99 events wait"})
        )
        await connection.close(4002, "slow")

    async def then(link, recorder):
        error = await recorder.end()
        assert [message.topic for message in recorder.messages] == ["last"]
        assert isinstance(error, LinkEnded)
        assert error.errno == errno.ENOBUFS
        assert "99 events wait (close code 4002)" in str(error)

    talking(script, then)


def test_an_end_right_behind_the_welcome_is_told_at_start():
    async def script(connection):
        await connection.send(say(WELCOME))
        await connection.send(event("only").framed())
        await connection.close(4000, "leaving")

    async def main():
        async with gateway(script) as uri:
            link = await dial(uri, options())
            await asyncio.sleep(0.1)
            recorder = Recorder()
            link.start(recorder)
            assert isinstance(await recorder.end(), LinkEnded)
            assert [message.topic for message in recorder.messages] == ["only"]

    asyncio.run(main())


def test_a_connection_that_just_ends():
    async def script(connection):
        await connection.send(say(WELCOME))
        connection.transport.abort()

    async def then(link, recorder):
        error = await recorder.end()
        assert isinstance(error, LinkEnded)
        assert "without a close frame" in str(error)

    talking(script, then)


@for_each("data", [b"rubbish" * 9, event("whole").framed() + b"\x12", "[]", "no json"])
def test_a_gateway_that_talks_nonsense(data):
    async def script(connection):
        await connection.send(say(WELCOME))
        await connection.send(data)
        try:
            await connection.wait_closed()
        finally:
            codes.put_nowait(connection.close_code)

    async def then(link, recorder):
        error = await recorder.end()
        assert isinstance(error, LinkBroken)
        assert error.errno == errno.EPROTO
        assert await soon(codes) == 1002

    codes = asyncio.Queue()
    talking(script, then)


def test_a_gateway_that_falls_silent():
    async def script(connection):
        await connection.send(say(WELCOME | {"ping_s": 0.05}))
        await connection.wait_closed()

    async def then(link, recorder):
        error = await recorder.end()
        assert isinstance(error, LinkBroken)
        assert error.errno == errno.ETIMEDOUT

    talking(script, then)


def test_a_process_that_was_stopped_listens_before_it_gives_a_gateway_up():
    async def script(connection):
        await connection.send(say(WELCOME))
        await connection.wait_closed()

    async def then(link, recorder):
        clock = link._loop = HandClock()
        link.watch(25)
        clock.now += 3600
        clock.fire()
        assert link.ended is None
        clock.now += 75
        clock.fire()
        assert (await recorder.end()).errno == errno.ETIMEDOUT

    talking(script, then)


class HandClock:
    """A loop whose clock a test moves, with its last timer."""

    def __init__(self):
        self.now = 0.0

    def __getattr__(self, name):
        return getattr(asyncio.get_running_loop(), name)

    def time(self):
        return self.now

    def call_later(self, delay, call, *args):
        return self.call_at(self.now + delay, call, *args)

    def call_at(self, _when, call, *args):
        self.fire = lambda: call(*args)
        return asyncio.get_running_loop().call_soon(lambda: None)


def test_closing_says_goodbye():
    async def script(connection):
        await connection.send(say(WELCOME))
        await connection.wait_closed()
        ends.put_nowait((connection.close_code, connection.close_reason))

    async def then(link, recorder):
        link.close("done here")
        assert isinstance(await recorder.end(), LinkClosed)
        assert await soon(ends) == (1000, "done here")

    ends = asyncio.Queue()
    talking(script, then)


# -- the client API over it -----------------------------------------------------------------------


def test_the_handle_needs_to_know_nothing_of_it():
    async def script(connection):
        await connection.send(say(WELCOME))
        splitter = Splitter()
        async for data in connection:
            for message in splitter.feed(data):
                await connection.send(response(message, b'{"value":"7"}\0').framed())

    async def main():
        async with gateway(script) as uri, connect(uri, options=options()) as h:
            assert await h.attr("rank") == "7"

    asyncio.run(main())


@pytest.fixture
def contexts(tmp_path):
    """Of a gateway, and of who trusts it."""
    made = selfsigned.make([], now=time.time())
    (tmp_path / "cert.pem").write_bytes(made.certificate)
    (tmp_path / "key.pem").write_bytes(made.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return server, ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))


@for_each("welcomed", [True, False])
def test_a_goodbye_of_tls_is_no_close_frame(contexts, welcomed):
    server, trusting = contexts

    async def script(connection):
        if welcomed:
            await connection.send(say(WELCOME))
        connection.transport.close()

    async def main():
        async with gateway(script, context=server) as uri:
            try:
                link, recorder = await dial(uri, options(ssl=trusting)), Recorder()
                link.start(recorder)
                error = await recorder.end()
            except LinkEnded as ended:
                error = ended
            assert isinstance(error, LinkEnded)
            assert "wss://127.0.0.1" in str(error)
            assert "without a close frame" in str(error)

    asyncio.run(main())


def test_a_refusal_within_tls_whose_body_ends_with_the_connection(contexts):
    server, trusting = contexts

    def answer(connection, request):
        refused = connection.respond(403, '{"errno":13,"text":"not you"}')
        del refused.headers["Content-Length"]
        return Response(refused.status_code, refused.reason_phrase, refused.headers, refused.body)

    async def main():
        async with gateway(lambda connection: connection.wait_closed(), answer=answer, context=server) as uri:
            with pytest.raises(LinkRefused, match="not you"):
                await dial(uri, options(ssl=trusting))

    asyncio.run(main())


def test_tls(contexts):
    server, trusting = contexts

    async def script(connection):
        await connection.send(say(WELCOME))
        splitter = Splitter()
        async for data in connection:
            for message in splitter.feed(data):
                await connection.send(response(message, b'{"value":"tls"}\0').framed())

    async def main():
        async with gateway(script, context=server) as uri:
            with pytest.raises(LinkBroken, match="certificate") as caught:
                await dial(uri, options())
            assert caught.value.errno == errno.EPROTO
            async with connect(uri, options=options(ssl=trusting)) as h:
                assert await h.attr("rank") == "tls"

    asyncio.run(main())
