"""Requests and replies that are too large: an exception at whoever asked, at once, and never a wait."""

import logging
from typing import Any

import oslo_messaging
import pytest

from broker.oslo.contract import Address, TooLarge
from broker.oslo.driver import serialization
from broker.oslo.driver.driver import MessageRefused
from broker.oslo.driver.listener import ZmqIncoming
from broker.oslo.names import Reason
from tests.unit.oslo.driver.memory import MemoryItem, Network

LIMIT = 2_000


def answered(**words: Any) -> Any:
    """What a caller gets of ``reply``, where so much can be sent at most."""
    item = MemoryItem(b"", Address("x", "t", "s"), wants_reply=True, reply_bytes_max=LIMIT)
    ZmqIncoming(item, serialization.Request({}, {})).reply(**words)
    body = item.replies.get(timeout=20.0)
    assert body is not None
    assert len(body) <= LIMIT
    return serialization.read_reply(body, [])


def test_a_result_that_fits_is_sent() -> None:
    assert answered(reply="x" * 1_900) == "x" * 1_900


def test_a_result_that_is_too_large_raises_at_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(RuntimeError, match=r"has 3014 bytes, expected 2000 at most"),
    ):
        answered(reply="x" * 3_000)
    assert "rpc_zmq_message_max" in caplog.text


def test_an_exception_that_is_too_large_raises_another_one() -> None:
    error = ValueError("x" * 3_000)
    with pytest.raises(RuntimeError, match="expected 2000 at most"):
        answered(failure=(ValueError, error, None))


def test_a_request_that_is_too_large_is_refused(transport: Any, network: Network) -> None:
    network.fail = TooLarge(Address("x", "t"), 3000, 2000)
    client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic="t"))
    for send in (client.call, client.cast):
        with pytest.raises(oslo_messaging.ClientSendError, match="saw a body of 3000 bytes") as refused:
            send({}, "add")
        assert isinstance(refused.value.ex, MessageRefused)
        assert refused.value.ex.reason is Reason.MALFORMED
