"""A listener polls as oslo.messaging's loop expects: promptly, in batches, without ever raising."""

import json
import logging
import threading
from typing import Any

import pytest
from oslo_messaging._drivers import base

from broker.oslo.contract import Address
from broker.oslo.driver import listener as module
from broker.oslo.driver import serialization
from broker.oslo.driver.listener import ZmqIncoming, ZmqListener
from tests.unit.oslo.driver.memory import MemoryIntake, MemoryItem

HERE = Address("e", "t")
PATIENCE_S = 40.0


def item(number: int = 0, **words: Any) -> MemoryItem:
    return MemoryItem(serialization.request_body({}, {"method": "m", "args": {"n": number}}), HERE, **words)


def numbers(batch: list[ZmqIncoming]) -> list[int]:
    return [each.message["args"]["n"] for each in batch]


@pytest.fixture
def inbox() -> MemoryIntake:
    return MemoryIntake([("e", "t")])


@pytest.fixture
def listener(inbox: MemoryIntake) -> ZmqListener:
    return ZmqListener(inbox, 1000)


def test_one_at_a_time_in_order(inbox: MemoryIntake, listener: ZmqListener) -> None:
    for number in range(3):
        inbox.put(item(number))
    assert [numbers(listener.poll()) for _ in range(3)] == [[0], [1], [2]]
    assert listener.poll(timeout=0.01) == []


def test_a_full_batch_does_not_wait(inbox: MemoryIntake, listener: ZmqListener) -> None:
    for number in range(7):
        inbox.put(item(number))
    assert numbers(listener.poll(batch_size=5, batch_timeout=3600)) == [0, 1, 2, 3, 4]
    assert numbers(listener.poll(batch_size=5, batch_timeout=0.01)) == [5, 6]


def test_the_first_message_starts_the_time_of_a_batch(inbox: MemoryIntake, listener: ZmqListener) -> None:
    threading.Timer(0.3, lambda: inbox.put(item(1))).start()
    # a timer that began with the poll would be over before the message
    assert numbers(listener.poll(batch_size=5, batch_timeout=0.1)) == [1]


def test_a_batch_without_a_time_waits_until_it_is_full_or_stopped(
    inbox: MemoryIntake, listener: ZmqListener
) -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(numbers(listener.poll(batch_size=3))))
    thread.start()
    inbox.put(item(1))
    inbox.put(item(2))
    thread.join(0.2)
    assert thread.is_alive()
    listener.stop()
    thread.join(PATIENCE_S)
    assert found == [1, 2]


def test_after_stop_what_is_here_is_drained_and_nothing_waits(
    inbox: MemoryIntake, listener: ZmqListener
) -> None:
    inbox.put(item(1))
    inbox.put(item(2))
    listener.stop()
    assert numbers(listener.poll()) == [1]
    assert numbers(listener.poll(batch_size=9, batch_timeout=3600)) == [2]
    assert listener.poll() == []
    listener.cleanup()
    listener.cleanup()
    assert listener.poll() == []


def test_stop_wakes_a_poll(inbox: MemoryIntake, listener: ZmqListener) -> None:
    seen: list[Any] = []
    adapter = base.PollStyleListenerAdapter(listener, 1, None)
    adapter.start(seen.extend)
    inbox.put(item(1))
    inbox.put(item(2))
    adapter.stop()
    adapter.cleanup()
    assert numbers(seen) == [1, 2]
    assert not adapter._listen_thread.is_alive()


class Broken(MemoryIntake):
    """Fails whatever is asked."""

    asked = 0

    def get(self, timeout_s: float | None) -> MemoryItem | None:
        self.asked += 1
        raise OSError("broken")

    def stop(self) -> None:
        raise OSError("broken")

    def close(self) -> None:
        raise OSError("broken")


def test_nothing_raises_and_nothing_spins(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    listener = ZmqListener(Broken([]), 10)
    with caplog.at_level(logging.ERROR):
        assert listener.poll() == []
        listener.stop()
        listener.cleanup()
    assert pauses == [module._PAUSE_S]
    assert caplog.text.count("broken") >= 3


def test_an_intake_that_ended_under_a_running_server_does_not_spin(
    monkeypatch: pytest.MonkeyPatch, inbox: MemoryIntake, listener: ZmqListener
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    inbox.close()
    assert listener.poll() == []
    assert pauses == [module._PAUSE_S]
    assert listener.poll(timeout=0.0) == []  # a poll with a timeout ends when it is over
    listener.stop()
    assert listener.poll() == []
    assert pauses == [module._PAUSE_S]


def test_what_cannot_be_read_is_dropped_and_its_caller_is_told(
    inbox: MemoryIntake, listener: ZmqListener, caplog: pytest.LogCaptureFixture
) -> None:
    call, cast = MemoryItem(b"{", HERE, wants_reply=True), MemoryItem(b"\xff", HERE)
    inbox.put(call)
    inbox.put(cast)
    inbox.put(item(3))
    with caplog.at_level(logging.WARNING):
        assert numbers(listener.poll()) == [3]
    assert (call.told, cast.told) == (["reply"], [])
    assert "e/t" in caplog.text
    reply = call.replies.get_nowait()
    assert reply is not None
    assert "Unreadable" in json.loads(reply)["failure"]


# ---------------------------------------------------------------- incoming messages


def test_an_incoming_message_does_what_its_server_says() -> None:
    mine = item(1, wants_reply=True, monitor_s=2.5)
    incoming = ZmqIncoming(mine, serialization.read_request(mine.body))
    assert (incoming.client_timeout, incoming.ctxt) == (2.5, {})
    assert incoming.msg_id != ZmqIncoming(mine, serialization.read_request(mine.body)).msg_id
    incoming.heartbeat()
    incoming.reply({"a": 1})
    incoming.requeue()
    assert mine.told == ["beat", "reply", "requeue"]
    assert mine.replies.get_nowait() is None
    assert mine.replies.get_nowait() == b'{"result": {"a": 1}}'


def test_a_cast_is_never_replied_to() -> None:
    mine = item()
    incoming = ZmqIncoming(mine, serialization.read_request(mine.body))
    incoming.reply("x")
    incoming.reply(failure=(ValueError, ValueError("x"), None))
    assert mine.told == []
    assert incoming.client_timeout is None


class Raising(MemoryItem):
    def requeue(self) -> None:
        raise OSError("gone")

    def reply(self, body: bytes) -> None:
        raise OSError("gone")

    def beat(self) -> None:
        raise OSError("gone")


def test_an_incoming_message_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    mine = Raising(b"{}", HERE, wants_reply=True)
    incoming = ZmqIncoming(mine, serialization.Request({}, {}))
    with caplog.at_level(logging.ERROR):
        incoming.requeue()
        incoming.reply(1)
        incoming.heartbeat()
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
