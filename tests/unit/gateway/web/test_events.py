"""Events over HTTP: published with POST, read as server-sent events that resume."""

import asyncio
import contextlib
import json
import socket

import pytest

from tests.tables import for_each
from tests.unit.gateway.web.site import Stream, begin


async def test_a_published_event_has_a_number_and_reaches_the_broker(site):
    async with site.handle.subscribe("a.") as events:
        answer = await site.post("/v1/events/a.b", json={"x": 1})
        assert answer.status == 200
        said = await answer.json()
        event = await anext(aiter(events))
        assert (event.topic, event.json()) == ("a.b", {"x": 1})
        assert said == {"sequence": event.sequence, "epoch": site.live.broker.broker.router.uuid}
        assert event.message.userid == 1001


@for_each(
    ("kind", "sent", "payload"),
    [
        ("text/plain", b"hello", b"hello\0"),
        ("application/octet-stream", b"\0\xff", b"\0\xff"),
        ("text/plain", b"", None),
    ],
)
async def test_payloads_of_events(site, kind, sent, payload):
    async with site.handle.subscribe("a.") as events:
        headers = {"Content-Type": kind}
        answer = await site.post("/v1/events/a.b", data=sent, headers=headers)
        assert answer.status == 200
        assert (await anext(aiter(events))).payload == payload


async def test_what_the_role_may_not_publish(site):
    answer = await site.post("/v1/events/secret.plan", "bob", json={})
    assert answer.status == 403
    answer = await site.post("/v1/events/a.b?private=maybe", json={})
    assert answer.status == 400


# ---------------------------------------------------------------- streams


async def test_a_stream_begins_with_its_position_and_carries_events(site):
    async with site.get("/v1/events?prefix=a.&prefix=c.") as answer:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        assert answer.headers["X-Accel-Buffering"] == "no"
        stream = Stream(answer)
        welcome = await stream.next()
        assert welcome.event == "welcome"
        assert welcome.id == f"{welcome.data['epoch']}:{welcome.data['sequence']}"
        for topic in ("a.1", "b.1", "c.1"):
            await site.handle.publish(topic, {"t": topic})
        first, second = await stream.next(), await stream.next()
        assert [first.data["topic"], second.data["topic"]] == ["a.1", "c.1"]
        assert first.data["payload"] == {"t": "a.1"}
        assert second.id == f"{welcome.data['epoch']}:{second.data['sequence']}"


async def test_a_payload_with_line_ends_stays_one_event(site):
    async with site.get("/v1/events") as answer:
        stream = Stream(answer)
        await stream.next("welcome")
        await site.handle.publish("a.b", b'{\r\n"x":\n1}\0')
        await site.handle.publish("a.c", "line\none\r\n")
        assert (await stream.next()).data["payload"] == {"x": 1}
        assert (await stream.next()).data["text"] == "line\none\r\n"


async def test_resumed_with_everything_that_was_missed(site):
    async with site.get("/v1/events?prefix=a.") as answer:
        seen = (await Stream(answer).next("welcome")).id
    numbers = [await site.handle.publish(f"a.{n}") for n in range(600)]
    await site.handle.publish("b.other")
    headers = {"Last-Event-ID": seen}
    async with site.get("/v1/events?prefix=a.", headers=headers) as answer:
        stream = Stream(answer)
        replayed = [await stream.next() for _ in numbers]
        assert [each.data["sequence"] for each in replayed] == numbers
        resumed = await stream.next()
        assert resumed.event == "resumed"
        assert resumed.data["recovered"] is True
        assert resumed.data["replayed"] == 600
        number = await site.handle.publish("a.live")
        live = await stream.next()
        assert (live.event, live.data["sequence"]) == ("message", number)


async def test_resumed_twice_from_the_id_that_resumed_gave(site):
    async with site.get("/v1/events?prefix=a.") as answer:
        seen = (await Stream(answer).next("welcome")).id
    for _ in range(2):
        async with site.get("/v1/events?prefix=a.", headers={"Last-Event-ID": seen}) as answer:
            resumed = await Stream(answer).next()
            assert (resumed.event, resumed.data["recovered"]) == ("resumed", True)
            seen = resumed.id


async def test_who_has_the_history_replayed_again_and_again_is_told_when_to_come_back(open_site):
    limits = "[limits]\nconnections_per_user = 2\nreplay_msgs_per_s = 0.001\n[gateway]\nhistory_msgs = 32\n"
    site = await open_site(limits)
    async with site.get("/v1/events", "bob") as answer:
        seen = {"Last-Event-ID": (await Stream(answer).next("welcome")).id}
    for number in range(31):
        await site.handle.publish(f"a.{number}")
    for _ in range(2):
        async with site.get("/v1/events", "bob", headers=seen) as answer:
            assert (await Stream(answer).next("resumed")).data["replayed"] == 31
    async with site.get("/v1/events", "bob", headers=seen) as answer:
        assert answer.status == 429
        assert 0 < int(answer.headers["Retry-After"]) <= 16 / 0.001
        assert "limits.replay_msgs_per_s" in (await answer.json())["text"]
    for user, headers in (("bob", {}), ("eve", seen), ("ada", seen)):
        async with site.get("/v1/events", user, headers=headers) as answer:
            assert answer.status == 200, "new streams, and those of others, are as before"


async def test_a_stream_counts_as_a_call_and_its_prefixes_count(open_site):
    site = await open_site("[limits]\nmsgs_per_s = 0.001\nmsgs_burst = 64\n")
    many = "&".join(f"prefix=p{number}" for number in range(64))
    for number in range(14):
        async with site.get(f"/v1/events?{many}", "bob") as answer:
            assert answer.status == (200 if number < 64 / 5 else 429)
            assert number < 13 or "limits.msgs_per_s" in (await answer.json())["text"]
    async with site.get("/v1/events", "eve") as answer:
        assert answer.status == 200


@pytest.mark.parametrize("seen", ["00000000-0000-0000-0000-000000000000:1", ":0"])
async def test_another_epoch_is_not_recovered(site, seen):
    await site.handle.publish("a.before")
    async with site.get("/v1/events", headers={"Last-Event-ID": seen}) as answer:
        stream = Stream(answer)
        resumed = await stream.next()
        assert (resumed.event, resumed.data["recovered"]) == ("resumed", False)
        number = await site.handle.publish("a.live")
        assert (await stream.next()).data["sequence"] == number


async def test_a_history_that_does_not_reach_back_is_not_recovered(open_site):
    site = await open_site("[gateway]\nhistory_msgs = 4\n")
    async with site.get("/v1/events") as answer:
        seen = (await Stream(answer).next("welcome")).id
    for number in range(6):
        await site.handle.publish(f"a.{number}")
    async with site.get("/v1/events", headers={"Last-Event-ID": seen}) as answer:
        resumed = await Stream(answer).next()
        assert (resumed.event, resumed.data["recovered"]) == ("resumed", False)


async def test_an_empty_id_is_that_of_a_client_that_has_seen_nothing(site):
    async with site.get("/v1/events", headers={"Last-Event-ID": ""}) as answer:
        assert answer.status == 200
        assert (await Stream(answer).next()).event == "welcome"


@for_each("seen", ["x", "epoch:", "epoch:-1", "epoch:4294967296", "epoch:99999999999999999"])
async def test_an_id_that_is_none(site, seen):
    async with site.get("/v1/events", headers={"Last-Event-ID": seen}) as answer:
        assert answer.status == 400


async def test_rights_are_checked_for_the_prefix_and_again_for_each_topic(site):
    texts = set()
    for headers in ({}, {"Last-Event-ID": "e:1"}):
        async with site.get("/v1/events?prefix=secret.", "bob", headers=headers) as answer:
            assert answer.status == 403
            texts.add((await answer.json())["text"])
    (text,) = texts
    assert "needs the role" in text
    async with site.post("/v1/rpc/gateway.denied", json={}) as answer:
        rows = (await answer.json())["denied"]
    assert [(row["user"], row["topic"]) for row in rows] == [("bob", "secret.")] * 2, "both are recorded"
    async with site.get("/v1/events?prefix=", "bob") as answer:
        stream = Stream(answer)
        seen = (await stream.next("welcome")).id
        await site.handle.publish("secret.plan")
        await site.handle.publish("mine", {"for": "the owner"}, private=True)
        await site.handle.publish("a.b")
        assert (await stream.next()).data["topic"] == "a.b"
    async with site.get("/v1/events?prefix=", "bob", headers={"Last-Event-ID": seen}) as answer:
        stream = Stream(answer)
        assert (await stream.next()).data["topic"] == "a.b"
        assert (await stream.next()).data["recovered"] is True


async def test_too_many_prefixes(open_site):
    site = await open_site("[limits]\nsubscriptions = 2\n")
    async with site.get("/v1/events?prefix=a&prefix=b&prefix=c") as answer:
        assert answer.status == 502
        assert (await answer.json())["name"] == "ENOSPC"
    assert not site.gateway.sessions.by_id


async def test_a_quiet_stream_is_kept_alive(open_site):
    site = await open_site("[limits]\nping_s = 0.1\n")
    async with site.get("/v1/events") as answer:
        stream = Stream(answer)
        await stream.next("welcome")
        waiting = begin(stream.next())
        while not stream.comments:
            await asyncio.sleep(0.01)
        await site.handle.publish("a.b")
        await waiting


async def test_a_reader_that_leaves_ends_its_session(site):
    async with site.get("/v1/events") as answer:
        await Stream(answer).next("welcome")
        assert len(site.gateway.sessions.by_id) == 1
        answer.close()
    while site.gateway.sessions.by_id:
        await asyncio.sleep(0.01)
    assert site.gateway.sessions.options.budget.used_bytes == 0


SLOW = "[limits]\noutbox_bytes = 65536\n"
BULK = 1000
EACH = {"text": "x" * 10_000}


@contextlib.asynccontextmanager
async def stalled(site, policy):
    """A raw connection that asks for events and reads no more than the head; then many events are published."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((site.client.host, site.client.port))
    reader, writer = await asyncio.open_connection(sock=sock)
    writer.write(
        f"GET /v1/events?prefix=a.&overflow={policy} HTTP/1.1\r\nHost: {site.client.host}\r\n"
        f"Authorization: Bearer {site.live.tokens['ada']}\r\n\r\n".encode()
    )
    try:
        await reader.readuntil(b"event: welcome")
        for number in range(BULK):
            site.handle.publish_nowait("a.b", EACH)
            if number % 100 == 0:
                await site.handle.writable()
                await asyncio.sleep(0)
        await site.handle.publish("b.end")
        yield reader
    finally:
        writer.close()


async def arriving(reader):
    """Events and control objects of a raw stream as (event, data)."""
    event = ""
    while line := await reader.readline():
        if line.startswith(b"event: "):
            event = line[7:].strip().decode()
        elif line.startswith(b"data: ") and event:
            yield event, json.loads(line[6:])


async def test_a_slow_reader_that_would_rather_miss_events_is_told_which(open_site):
    site = await open_site(SLOW)
    async with stalled(site, "drop") as reader:
        last, seen, lost = site.gateway.delivery.history.last - BULK - 1, 0, 0
        async for event, data in arriving(reader):
            if event == "gap":
                assert data["from"] == last + 1
                assert data["lost"] == data["to"] - data["from"] + 1
                last = data["to"]
                lost += data["lost"]
            else:
                assert data["sequence"] == last + 1
                last = data["sequence"]
                seen += 1
            if seen + lost == BULK:
                break
        assert seen > 0
        assert lost > 0
        number = await site.handle.publish("a.again")
        assert (await anext(arriving(reader)))[1]["sequence"] == number


async def test_a_slow_reader_is_disconnected_with_a_reason(open_site):
    site = await open_site(SLOW)
    async with stalled(site, "disconnect") as reader:
        error = await anext(data async for event, data in arriving(reader) if event == "error")
        assert (error["code"], error["reconnect"]) == (4002, True)
        assert await reader.readuntil(b"0\r\n\r\n")
        assert site.gateway.sessions.options.budget.used_bytes == 0


async def test_a_stream_that_asks_for_another_policy(site):
    async with site.get("/v1/events?overflow=ignore") as answer:
        assert answer.status == 400


async def test_an_ended_session_is_told_why(site):
    async with site.get("/v1/events") as answer:
        stream = Stream(answer)
        session = (await stream.next("welcome")).data["session"]
        ended = await site.post("/v1/rpc/gateway.end", json={"session": session})
        assert ended.status == 200
        error = await stream.next("error")
        assert error.data["code"] == 4006
        assert await answer.content.read() == b""


async def test_the_upstream_going_away_is_told(site):
    async with site.get("/v1/events") as answer:
        stream = Stream(answer)
        await stream.next("welcome")
        await site.live.broker.stop()
        assert (await stream.next("upstream")).data["joined"] is False
