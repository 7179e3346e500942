"""Dialling ``ws://``: what the request carries, and every way not to be welcomed."""

import asyncio
import errno
import logging
import subprocess
import sys

import pytest
from websockets.asyncio.server import serve
from websockets.http11 import Response

from broker.errors import ConfigError, LinkBroken, LinkRefused
from broker.transport.link import Options
from broker.transport.registry import dial, listen
from tests.tables import for_each
from tests.unit.transport.scripted_gateway import failing, gateway, options, say, talking, welcome_and_wait


def test_the_request_carries_token_origin_and_headers_and_no_secret_in_its_address():
    async def script(connection):
        seen.append(connection.request)
        await welcome_and_wait(connection)

    async def then(link, recorder):
        assert link.replay.welcome["session"] == "1"
        assert "s3cret" not in link.peer.address

    seen = []
    talking(script, then, origin="https://x.example", headers={"X-More": "1"}, overflow="drop")
    (request_,) = seen
    assert request_.path == "/v1/ws?overflow=drop"
    fields = {
        name: request_.headers[name]
        for name in ("Authorization", "Origin", "X-More", "Sec-WebSocket-Protocol")
    }
    assert fields == {
        "Authorization": "Bearer s3cret",
        "Origin": "https://x.example",
        "X-More": "1",
        "Sec-WebSocket-Protocol": "flux.v1",
    }


def test_the_token_is_in_no_log(caplog):
    async def then(link, recorder):
        pass

    with caplog.at_level(logging.DEBUG):
        talking(welcome_and_wait, then)
    ours = [record for record in caplog.records if record.name != "websockets.server"]
    assert ours
    assert not any("s3cret" in record.getMessage() for record in ours)


@for_each(
    ("status", "body", "number", "text"),
    [
        (401, '{"errno":13,"name":"EACCES","text":"unknown token"}', errno.EACCES, "unknown token"),
        (403, '{"errno":1,"text":"this origin may not"}', errno.EPERM, "this origin may not"),
        (400, "none of the offered subprotocols", errno.EPROTO, "none of the offered"),
        (404, "<html>", errno.ENOENT, "404"),
        (503, "", errno.EAGAIN, "Service Unavailable"),
    ],
)
def test_refused_over_http(status, body, number, text):
    error = failing(answer=lambda connection, request: connection.respond(status, body))
    assert isinstance(error, LinkRefused)
    assert error.errno == number
    assert text in str(error)


def test_a_refusal_whose_body_ends_with_the_connection():
    def answer(connection, request):
        refused = connection.respond(403, '{"errno":13,"text":"not you"}')
        del refused.headers["Content-Length"]
        return Response(refused.status_code, refused.reason_phrase, refused.headers, refused.body)

    error = failing(answer=answer)
    assert (type(error), error.errno) == (LinkRefused, errno.EACCES)


def test_something_else_that_speaks_websocket():
    async def main():
        async with serve(welcome_and_wait, "127.0.0.1", 0) as server:
            with pytest.raises(LinkRefused, match="no gateway") as caught:
                await dial(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", options())
            assert caught.value.errno == errno.EPROTONOSUPPORT

    asyncio.run(main())


@for_each(
    ("code", "number"),
    [(4500, errno.EACCES), (4501, errno.EPERM), (4504, errno.EUSERS), (4005, errno.EAGAIN)],
)
def test_closed_instead_of_welcomed(code, number):
    async def script(connection):
        await connection.send(say({"type": "error", "code": code, "text": "the reason in full"}))
        await connection.close(code, "short")

    error = failing(script)
    assert isinstance(error, LinkRefused)
    assert error.errno == number
    assert f"the reason in full (close code {code})" in str(error)


def test_nobody_there():
    async def main():
        async with gateway(welcome_and_wait) as uri:
            pass
        with pytest.raises(LinkBroken) as caught:
            await dial(uri, options())
        assert caught.value.errno == errno.ECONNREFUSED

    asyncio.run(main())


def test_no_welcome_in_time():
    async def main():
        async with gateway(lambda connection: connection.wait_closed()) as uri:
            hasty = options()
            hasty.connect_timeout_s = 0.2
            with pytest.raises(LinkBroken, match="no welcome within") as caught:
                await dial(uri, hasty)
            assert caught.value.errno == errno.ETIMEDOUT

    asyncio.run(main())


def test_a_name_without_address():
    async def main():
        with pytest.raises(LinkBroken) as caught:
            await dial("wss://no-such-host.invalid", options())
        assert caught.value.errno == errno.EHOSTUNREACH

    asyncio.run(main())


def test_dialling_that_is_cancelled_leaves_nothing():
    async def main():
        async with gateway(lambda connection: connection.wait_closed()) as uri:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await dial(uri, options())

    asyncio.run(main())


def test_a_broker_does_not_listen_for_websockets():
    with pytest.raises(ConfigError, match="headgate gateway"):
        asyncio.run(listen("ws://127.0.0.1:1", lambda link: None, Options()))


def test_nothing_is_loaded_before_the_first_dial():
    code = (
        "import sys, broker.client, broker.node.broker; from broker.transport import registry;"
        "registry.transport_for('ws://h:1'); sys.exit('websockets' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
