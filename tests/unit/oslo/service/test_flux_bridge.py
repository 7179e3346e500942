"""The bridge's link: registered, lost, made again; notifications go through it and wait for nothing."""

import asyncio
import contextlib
import errno
import threading

import msgspec
import pytest

from broker.client import connect
from broker.errors import LinkBroken, RpcError
from broker.oslo.contract import OsloFailure
from broker.oslo.names import PRIORITIES
from broker.oslo.service import FluxBridge, notifications
from broker.oslo.service.notifications import (
    EventAnnouncer,
    HeardNotification,
    NotificationListening,
    content,
    topic_of,
)
from broker.wire.message import PRIVATE
from broker.wire.payload import decode_json
from tests.tables import for_each
from tests.unit.client.peer import soon
from tests.unit.client.tiny_broker import start
from tests.unit.oslo.service.sessions import FakeItem, FakePort, config, until


def run(script):
    async def main():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        async with asyncio.timeout(20):
            await script()
        assert not complaints, complaints

    asyncio.run(main())


@contextlib.asynccontextmanager
async def bridged(tmp_path, session=None, **more):
    """A broker, a bridge on it, and a client there."""
    flux, listener = await start(f"local://{tmp_path}/s")
    session = session or FakePort()
    bridge = FluxBridge(config(**more), f"local://{tmp_path}/s", open_session=lambda settings: session)
    await bridge.start()
    async with connect(f"local://{tmp_path}/s") as h:
        yield bridge, session, h, flux
    await bridge.stop()
    await bridge.stop()
    assert session.closed
    assert all(inbox.closed for inbox in session.intakes)
    await until(lambda: not flux.links)
    await listener.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("oslo notifications")]


def notification(event_type="e", **message):
    inner = msgspec.json.encode({"event_type": event_type, "payload": {}, **message}).decode()
    return {"ctxt": {"request_id": "r"}, "message": {"oslo.version": "2.0", "oslo.message": inner}}


def test_calls_come_through_and_notifications_go_out(tmp_path):
    async def script():
        async with bridged(tmp_path) as (bridge, session, h, _flux), h.subscribe("oslo.notify.") as events:
            assert (await h.rpc("oslo.nova.compute.show")).json() == {"result": "pong"}
            await until(session.listens.is_set)
            (topics, pool), *_ = session.listened
            assert set(topics) == {("openstack", f"notifications.{each}") for each in PRIORITIES}
            assert pool == "headgate"
            item = FakeItem(notification(publisher_id="p", message_id="m", timestamp="t"))
            session.intakes[0].items.put(item)
            event = await anext(events)
            assert event.topic == "oslo.notify.openstack.notifications.info"
            assert event.message.flags & PRIVATE
            assert event.json() == {
                "exchange": "openstack",
                "topic": "notifications",
                "priority": "info",
                "publisher_id": "p",
                "event_type": "e",
                "payload": {},
                "timestamp": "t",
                "message_id": "m",
                "ctxt": {"request_id": "r"},
            }
            told = bridge.counts()
            assert (told["notifications"], told["events"], told["events_dropped"], told["sent"]) == (
                1,
                1,
                0,
                1,
            )

    run(script)


def test_who_waits_is_told_when_the_face_leaves(tmp_path):
    async def script():
        async with bridged(tmp_path, FakePort(None), notify=()) as (bridge, session, h, _flux):
            waiting = soon(h.rpc("oslo.a.b.c"))
            await until(lambda: session.done)
            assert session.listened == []
            await bridge.stop()
            with pytest.raises(RpcError) as caught:
                await waiting
            assert caught.value.errno == errno.ECANCELED

    run(script)


def test_a_lost_link_is_made_again(tmp_path):
    async def script():
        async with bridged(tmp_path) as (bridge, session, h, flux):
            await until(session.listens.is_set)
            flux.services["oslo"].close("cut by the test")
            await until(lambda: bridge.counts()["connections"] == 2)
            assert (await h.rpc("oslo.a.b.c")).json() == {"result": "pong"}

    run(script)


def test_notifications_of_the_time_between_are_told_as_lost(tmp_path, monkeypatch):
    monkeypatch.setattr("broker.client.bridge.FIRST_PAUSE_S", 0.3)

    async def script():
        async with (
            bridged(tmp_path, notify_public=True) as (bridge, session, h, flux),
            h.subscribe("oslo.") as events,
        ):
            await until(session.listens.is_set)
            flux.services["oslo"].close("cut by the test")
            await until(lambda: bridge.announcer.handle is None)
            for _ in range(3):
                session.intakes[0].items.put(FakeItem(notification()))
            await until(lambda: bridge.announcer.dropped == 3)
            await until(lambda: bridge.counts()["connections"] == 2)
            session.intakes[0].items.put(FakeItem(notification("again")))
            event = await anext(events)
            assert (event.json()["event_type"], event.json()["lost"]) == ("again", 3)
            assert not event.message.flags & PRIVATE

    run(script)


def test_a_name_that_is_taken_and_a_broker_that_is_not_there(tmp_path):
    async def script():
        session = FakePort()
        with pytest.raises(LinkBroken):
            await FluxBridge(
                config(), f"local://{tmp_path}/none", open_session=lambda settings: session
            ).start()
        assert session.closed
        async with bridged(tmp_path):
            second = FakePort()
            with pytest.raises(RpcError) as caught:
                await FluxBridge(
                    config(), f"local://{tmp_path}/s", open_session=lambda settings: second
                ).start()
            assert caught.value.errno == errno.EEXIST
            assert second.closed

    run(script)


def test_listening_that_fails_is_tried_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(notifications, "_PAUSE_S", 0.01)

    async def script():
        session = FakePort()
        session.failure = OsloFailure("no sockets")
        async with bridged(tmp_path, session) as (_bridge, _session, _h, _flux):
            await until(session.listens.is_set)
            assert len(session.listened) == 2
        assert "notifications cannot be listened to: no sockets" in caplog.text

    run(script)


def test_listening_that_has_ended_by_itself_begins_again(tmp_path, monkeypatch):
    monkeypatch.setattr(notifications, "_PAUSE_S", 0.01)

    async def script():
        async with bridged(tmp_path) as (_bridge, session, h, _flux), h.subscribe("oslo.notify.") as events:
            await until(session.listens.is_set)
            session.intakes[0].stopping = True  # the thread of the sockets has failed
            session.listens.clear()
            await until(session.listens.is_set)
            session.intakes[1].items.put(FakeItem(notification("again")))
            assert (await anext(events)).json()["event_type"] == "again"

    run(script)


# ---------------------------------------------------------------- from the thread to the loop


def test_a_loop_that_does_not_take_costs_notifications_and_nothing_else(monkeypatch):
    monkeypatch.setattr(notifications, "QUEUE_MSGS", 4)

    async def script():
        taken = []
        session = FakePort()
        listens = NotificationListening(session, (("x", "y"),), "p", taken.append)
        listens.start()
        while not session.listens.is_set():
            await asyncio.sleep(0.005)
        items = [FakeItem(b"%d" % number, "x", "y.info") for number in range(10)]
        for item in items:
            session.intakes[0].items.put(item)
        while listens.received < 10:  # without letting the loop run
            pass
        assert (listens.lost, taken) == (6, [])
        await until(lambda: len(taken) == 4)
        session.intakes[0].items.put(FakeItem(b"after", "x", "y.info"))
        await until(lambda: len(taken) == 5)
        assert [told.body for told in taken] == [b"0", b"1", b"2", b"3", b"after"]
        assert (taken[0].lost, taken[4]) == (0, HeardNotification("x", "y", "info", b"after", 6))
        await listens.stop()

    run(script)


def test_whatever_one_notification_is_the_next_one_is_told(tmp_path):
    deep = b"[" * 995 + b"]" * 995
    bad = [
        b"", b"\xff", b"no JSON", b"[]", b'{"ctxt":{},"message":{"payload":"\xff"}}', b"[" * 100_000,
        b'{"message":{"payload":' + deep + b"}}", b'{"message":{"payload":1e999}}',
        b'{"message":{"oslo.version":"2.0","oslo.message":"' + b"[" * 100_000 + b'"}}',
    ]  # fmt: skip

    async def script():
        async with bridged(tmp_path) as (bridge, session, h, _flux), h.subscribe("oslo.notify.") as events:
            await until(session.listens.is_set)
            for body in bad:
                session.intakes[0].items.put(FakeItem(body))
            session.intakes[0].items.put(FakeItem(notification("after")))
            event = await anext(events)
            assert (event.json()["event_type"], event.json()["lost"]) == ("after", len(bad))
            told = bridge.counts()
            assert (told["events_unreadable"], told["notifications_failed"]) == (len(bad), 0)

    run(script)


def test_whoever_takes_notifications_may_fail(monkeypatch, caplog):
    monkeypatch.setattr(notifications, "TURN_MSGS", 2)

    async def script():
        taken = []

        def take(told):
            if told.body != b"good":
                raise RuntimeError("not this one")
            taken.append(told)

        session = FakePort()
        listens = NotificationListening(session, (("x", "y"),), "p", take)
        listens.start()
        await until(session.listens.is_set)
        for body in (b"1", b"2", b"3", b"good", b"5", b"good"):
            session.intakes[0].items.put(FakeItem(body, "x", "y.info"))
        await until(lambda: len(taken) == 2)
        assert listens.failed == 4
        await listens.stop()

    run(script)
    assert [record.args[2] for record in caplog.records] == [1, 2, 4]
    assert "x/y.info of 1 bytes" in caplog.text


# ---------------------------------------------------------------- events


class Sink:
    """A handle, its link, and the outbox of that."""

    def __init__(self):
        self.link = self.outbox = self
        self.ended = None
        self.choked = False
        self.messages = []

    def send(self, message):
        self.messages.append(message)


def told(body, lost=0, topic="notifications"):
    return HeardNotification(
        "openstack", topic, "info", body if isinstance(body, bytes) else msgspec.json.encode(body), lost
    )


def test_a_choked_link_drops_and_tells():
    announcer, sink = EventAnnouncer(), Sink()
    announcer.handle = sink
    sink.choked = True
    announcer.take(told(notification(), lost=2))
    sink.choked = False
    announcer.take(told(notification()))
    announcer.take(told(notification()))
    assert [decode_json(message.payload).get("lost") for message in sink.messages] == [3, None]
    assert (announcer.sent, announcer.dropped) == (2, 1)


@for_each(
    "body",
    [b"", b"\xff", b'{"message":{"payload":"\xff"}}', b"[" * 100_000, b"[]", b"{}",
     b'{"message":3}', b'{"message":{},"ctxt":[1]}',
     b'{"message":{"oslo.version":"2.0","oslo.message":"no JSON"}}',
     b'{"message":{"oslo.version":"2.0","oslo.message":"[]"}}'],
)  # fmt: skip
def test_what_cannot_be_read_is_counted(body):
    announcer = EventAnnouncer()
    announcer.handle = Sink()
    announcer.take(told(body))
    assert (announcer.sent, announcer.unreadable, announcer.handle.messages) == (0, 1, [])


def test_both_forms_of_a_notification_say_the_same():
    bare = {"ctxt": {"request_id": "r"}, "message": {"event_type": "e", "payload": {}}}
    assert content(told(bare)) == content(told(notification()))


def test_tokens_are_not_shown():
    body = {
        "ctxt": {"auth_token": "t", "password": "p", "user_id": "u", "roles": ["a"]},
        "message": {"payload": 1},
    }
    assert content(told(body))["ctxt"] == {"user_id": "u"}


def test_a_large_notification_is_told_without_its_payload(monkeypatch):
    monkeypatch.setattr(notifications, "EVENT_BYTES_MAX", 100)
    said = content(told(notification(payload="x" * 200, publisher_id="p")))
    assert "payload" not in said
    assert (said["publisher_id"], said["payload_bytes"] > 200) == ("p", True)


def test_no_notification_makes_a_large_event(monkeypatch):
    monkeypatch.setattr(notifications, "EVENT_BYTES_MAX", 100)
    huge = "x" * 100_000
    body = {
        "ctxt": {"request_id": huge},
        "message": {"event_type": huge, "timestamp": [huge], "payload": huge},
    }
    said = content(told(body))
    assert (len(said["event_type"]), len(said["ctxt"]["request_id"])) == (notifications.TEXT_CHARS_MAX,) * 2
    assert not {"payload", "timestamp"} & set(said)


def test_words_of_the_topic():
    assert (
        topic_of(told(b"", topic="versioned.notes/1")) == "oslo.notify.openstack.versioned%2Enotes%2F1.info"
    )


def test_a_word_too_long_for_a_topic_is_its_digest():
    topic = topic_of(told(b"", topic="é" * 120))
    assert len(topic) == len("oslo.notify.openstack..info") + 64
