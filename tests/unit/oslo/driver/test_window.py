"""A server holds so many messages that it has not acknowledged, and no more."""

import threading

from broker.oslo.contract import Address
from broker.oslo.driver import serialization
from broker.oslo.driver.listener import ZmqListener
from tests.unit.oslo.driver.memory import MemoryIntake, MemoryItem

HERE = Address("e", "t")
PATIENCE_S = 40.0


def filled(count: int) -> MemoryIntake:
    inbox = MemoryIntake([("e", "t")])
    for number in range(count):
        body = serialization.request_body({}, {"method": "m", "args": {"n": number}})
        inbox.put(MemoryItem(body, HERE))
    return inbox


def test_a_listener_hands_out_as_many_as_were_acknowledged() -> None:
    inbox = filled(10)
    listener = ZmqListener(inbox, 100, window=4)
    held = [listener.poll()[0] for _ in range(4)]
    more: list[object] = []
    thread = threading.Thread(target=lambda: more.extend(listener.poll()))
    thread.start()
    thread.join(0.2)
    assert more == []
    held[0].acknowledge()
    held[0].acknowledge()  # counts once
    held[1].requeue()
    thread.join(PATIENCE_S)
    assert len(more) == 1
    assert len(inbox._items) == 6  # five were never asked for, one came back


def test_what_is_left_is_drained_after_stop() -> None:
    listener = ZmqListener(filled(10), 100, window=4)
    held = [listener.poll()[0] for _ in range(4)]
    listener.stop()
    while got := listener.poll():
        held += got
    assert len(held) == 10
    assert listener.poll() == []
