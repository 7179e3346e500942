"""A link to a gateway while it lives: what is joined, refreshed, resumed, logged."""

import asyncio
import errno
import json
import logging
import time

from broker.wire.framing import Splitter
from broker.wire.message import event, request, response
from tests.tables import for_each
from tests.unit.transport.scripted_gateway import PATIENCE_S, WELCOME, read_all, say, soon, talking


@for_each(("limits", "most"), [({}, 4), ({"message_bytes": 4096}, 25)])
def test_what_is_flushed_together_leaves_in_few_messages_below_the_gateways_limit(limits, most):
    async def script(connection):
        await connection.send(say(WELCOME | {"limits": limits}))
        count, splitter, found = 0, Splitter(), []
        while len(found) < 500:
            data = await connection.recv()
            assert len(data) <= limits.get("message_bytes", 1 << 20)
            found += splitter.feed(data)
            count += 1
        got.put_nowait((count, found))
        await connection.wait_closed()

    async def then(link, recorder):
        for number in range(500):
            link.send(request(f"n.{number}", b"x" * 100))
        link.flush()
        count, found = await soon(got)
        assert count <= most
        assert [message.topic for message in found] == [f"n.{number}" for number in range(500)]

    got = asyncio.Queue()
    talking(script, then)


def test_fragments_and_pings_are_taken():
    async def script(connection):
        await connection.send(say(WELCOME))
        framed = event("a", b"x" * 50).framed() + event("b").framed()
        await connection.send([framed[:10], framed[10:40], framed[40:]])
        await connection.send([say({"type": "gap", "lost": 3})[:5], say({"type": "gap", "lost": 3})[5:]])
        await (await connection.ping())
        await connection.send(event("c").framed())
        await connection.wait_closed()

    async def then(link, recorder):
        await recorder.count(3)
        assert [message.topic for message in recorder.messages] == ["a", "b", "c"]
        assert (link.replay.gaps, link.replay.lost) == (1, 3)

    talking(script, then)


def test_a_gap_is_logged(caplog):
    async def script(connection):
        await connection.send(say(WELCOME))
        await connection.send(say({"type": "gap", "lost": 17, "from": 1, "to": 17}))
        await connection.send(event("after").framed())
        await connection.wait_closed()

    async def then(link, recorder):
        await recorder.count(1)

    talking(script, then)
    assert "dropped 17 events" in caplog.text


def test_what_the_gateway_would_not_take_is_answered_here():
    async def script(connection):
        await connection.send(say(WELCOME))
        got.put_nowait(await read_all(connection))

    async def then(link, recorder):
        link.send(request("big", bytes(5000), matchtag=7))
        link.send(response(request("asked", matchtag=8), bytes(5000)))
        link.send(event("big", bytes(5000)))
        link.send(event("small"))
        link.flush()
        (answer,) = await recorder.count(1)
        assert (answer.errnum, answer.matchtag) == (errno.EMSGSIZE, 7)
        assert "4096" in answer.payload.decode()
        assert link.untranslatable == 3
        link.close()
        left = [(message.topic, message.errnum if message.type == 2 else 0) for message in await soon(got)]
        assert left == [("asked", errno.EMSGSIZE), ("small", 0)]

    got = asyncio.Queue()
    talking(script, then)


def test_a_token_that_expires_is_refreshed_in_time():
    async def script(connection):
        await connection.send(say(WELCOME | {"expires": time.time() + 0.1}))
        for _ in range(2):
            said.append(json.loads(await connection.recv()))
            await connection.send(say({"type": "refreshed", "expires": time.time() + 0.1}))
        await connection.send(event("enough").framed())
        await connection.wait_closed()

    async def then(link, recorder):
        await recorder.count(1)

    said, made = [], iter(range(1, 100))
    talking(script, then, token=lambda: f"token-{next(made)}")
    assert said == [{"type": "refresh", "token": "token-2"}, {"type": "refresh", "token": "token-3"}]


def test_a_refresh_that_fails_is_logged_without_the_secret_and_the_link_lives(caplog):
    tokens = iter(("first", "s3 cret"))

    async def script(connection):
        await connection.send(say(WELCOME | {"expires": time.time() + 0.05}))
        async with asyncio.timeout(PATIENCE_S):
            while "cannot refresh the credential" not in caplog.text:
                await asyncio.sleep(0.01)
        await connection.send(event("still.there").framed())
        await connection.wait_closed()

    async def then(link, recorder):
        await recorder.count(1)

    talking(script, then, token=lambda: next(tokens))
    assert "s3 cret" not in caplog.text


def test_resume():
    async def script(connection):
        await connection.send(say(WELCOME))
        said.append(json.loads(await connection.recv()))
        await connection.send(say({"type": "resumed", "recovered": True, "replayed": 1}))
        await connection.send(event("missed", sequence=8).framed())
        await connection.wait_closed()

    async def then(link, recorder):
        assert link.replay.resumed["recovered"] is True
        assert [message.topic for message in await recorder.count(1)] == ["missed"]

    said = []
    last = {"token": "r", "epoch": "e", "sequence": 7, "subscriptions": [""]}
    talking(script, then, resume=last)
    assert said == [{"type": "resume"} | last]


def test_what_else_the_gateway_says_is_logged(caplog):
    caplog.set_level(logging.INFO)

    async def script(connection):
        await connection.send(say(WELCOME))
        await connection.send(say({"type": "upstream", "joined": False, "reason": "it was killed"}))
        await connection.send(event("one").framed())
        await connection.recv()
        await connection.send(say({"type": "upstream", "joined": True}))
        await connection.send(say({"type": "shutdown", "in_s": 5}))
        await connection.send(say({"type": "something.new"}))
        await connection.send(
            say({"type": "denied", "kind": "publish", "topic": "secret.x", "text": "not you"})
        )
        await connection.send(say({"type": "unsubscribed", "subscriptions": ["secret."]}))
        await connection.send(say({"type": "service", "service": "echo", "registered": False, "errno": 17}))
        await connection.send(event("two").framed())
        await connection.wait_closed()

    async def then(link, recorder):
        await recorder.count(1)
        assert link.replay.welcome["upstream"] == {"joined": False, "reason": "it was killed"}
        link.send(event("go"))
        link.flush()
        await recorder.count(2)
        assert link.replay.welcome["upstream"] == {"joined": True}

    talking(script, then)
    assert "it was killed" in caplog.text
    for said in (
        "leaves within 5 s",
        "event secret.x: not you",
        "back: ['secret.']",
        "service echo: errno 17",
    ):
        assert said in caplog.text
