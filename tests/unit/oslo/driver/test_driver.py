"""oslo.messaging's own clients, servers and notifiers over the driver, on a network in memory."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg
from oslo_messaging._drivers import base

from broker.oslo.bodies import BodyFormat
from broker.oslo.contract import Address, Closed, Refused, Undelivered
from broker.oslo.driver.driver import MessageRefused, ZmqDriver, ZmqDriverError
from broker.oslo.names import Reason
from tests.tables import for_each
from tests.unit.oslo.driver.memory import Network

PATIENCE_S = 40.0


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it did not become so in time"
        time.sleep(0.005)


class Calculator:
    """Endpoint of most tests."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.go = threading.Event()

    def add(self, ctxt: dict[str, Any], a: int, b: int) -> int:
        self.seen.append((ctxt, a, b))
        return a + b

    def fail(self, ctxt: dict[str, Any]) -> None:
        raise ValueError("it is wrong")

    def slow(self, ctxt: dict[str, Any]) -> str:
        assert self.go.wait(PATIENCE_S)
        return "done"


@contextmanager
def serving(transport: Any, endpoint: Any, **target: Any) -> Iterator[Any]:
    target = {"topic": "sums", "server": "s1", **target}
    server = oslo_messaging.get_rpc_server(transport, oslo_messaging.Target(**target), [endpoint])
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.wait()


def client(transport: Any, timeout: float = PATIENCE_S, **words: Any) -> Any:
    target = {"topic": "sums", **words.pop("target", {})}
    return oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(**target), timeout=timeout, **words)


def driver_of(transport: Any) -> ZmqDriver:
    driver = transport._driver
    assert isinstance(driver, ZmqDriver)
    return driver


# ---------------------------------------------------------------- rpc


def test_the_entry_point_loads_the_driver_and_nothing_is_opened_before_it_is_used(
    transport: Any, network: Network
) -> None:
    transport._require_driver_features(requeue=True)
    assert network.opened == 0
    client(transport).cast({}, "add", a=1, b=2)
    assert network.opened == 1


def test_calls(transport: Any, network: Network) -> None:
    endpoint = Calculator()
    with serving(transport, endpoint):
        ctxt = {"user": "ada"}
        assert client(transport).call(ctxt, "add", a=1, b=2) == 3
        assert endpoint.seen == [({"user": "ada"}, 1, 2)]
        assert ctxt == {"user": "ada"}
        with pytest.raises(ValueError, match="it is wrong"):
            client(transport).call({}, "fail")
        with pytest.raises(oslo_messaging.RemoteError):
            client(transport).call({}, "no_such_method")
    assert network.sent[1] == (
        "call",
        Address("openstack", "sums"),
        {"timeout_s": PATIENCE_S, "monitor_s": None, "mandatory": False},
    )
    assert network.intakes[0].calls == ["stop", "close", "stop"]


def test_neither_context_nor_message_is_changed(transport: Any, network: Network) -> None:
    ctxt, message = {"a": {"b": 1}}, {"method": "add", "args": {"a": 1, "b": 2}}
    target = oslo_messaging.Target(topic="sums")
    with serving(transport, Calculator()):
        driver_of(transport).send(target, ctxt, message, wait_for_reply=True, timeout=PATIENCE_S)
        driver_of(transport).send(target, ctxt, message)
        driver_of(transport).send_notification(target, ctxt, message, 2.0)
    assert (ctxt, message) == ({"a": {"b": 1}}, {"method": "add", "args": {"a": 1, "b": 2}})


def test_targets_become_addresses(conf: cfg.ConfigOpts, network: Network) -> None:
    conf.set_override("control_exchange", "mine")
    transport = oslo_messaging.get_rpc_transport(conf, url="zmq://h/vh")
    for target in (
        {},
        {"exchange": "cinder"},
        {"server": "host@lvm"},
        {"server": "host@lvm", "fanout": True},
        {"namespace": "n", "version": "1.2"},
    ):
        client(transport, target=target).cast({}, "add")
    transport.cleanup()
    assert [(what, *address) for what, address, _ in network.sent] == [
        ("cast", "/vh/mine", "sums", ""),
        ("cast", "/vh/cinder", "sums", ""),
        ("cast", "/vh/mine", "sums", "host@lvm"),
        ("fanout", "/vh/mine", "sums", ""),
        ("cast", "/vh/mine", "sums", ""),
    ]


@for_each("target", [{"topic": "a\0b"}, {"exchange": "e" * 256}, {"server": "ż" * 128}])
def test_names_that_cannot_be_are_refused_by_name(
    transport: Any, network: Network, target: dict[str, str]
) -> None:
    with pytest.raises(oslo_messaging.InvalidTarget, match=next(iter(target))):
        client(transport, target=target).cast({}, "add")
    assert network.opened == 0


def test_casts_and_fanouts_reach_one_or_all(transport: Any, network: Network) -> None:
    one, two = Calculator(), Calculator()
    with serving(transport, one), serving(transport, two, server="s2"):
        client(transport, target={"fanout": True}).cast({}, "add", a=1, b=1)
        until(lambda: len(one.seen) == len(two.seen) == 1)
        for number in range(4):
            client(transport).cast({}, "add", a=number, b=2)
        until(lambda: len(one.seen) == len(two.seen) == 3)
        client(transport, target={"server": "s2"}).cast({}, "add", a=9, b=9)
        until(lambda: len(two.seen) == 4)
    assert len(one.seen) == 3
    assert all("reply" not in item.told for inbox in network.intakes for item in inbox._items)


@for_each("retry", [None, -1, 0, 3])
def test_retries_and_options_reach_the_port(transport: Any, network: Network, retry: int | None) -> None:
    network.sent.clear()
    target = {"fanout": True}
    client(transport, retry=retry).cast({}, "add")
    client(transport, retry=retry, target=target).cast({}, "add")
    driver_of(transport).send_notification(oslo_messaging.Target(topic="t.info"), {}, {}, 2.0, retry=retry)
    assert [(what, words["retry"]) for what, _, words in network.sent] == [
        ("cast", retry),
        ("fanout", retry),
        ("notify", retry),
    ]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, False),
        (oslo_messaging.TransportOptions(at_least_once=False), False),
        (oslo_messaging.TransportOptions(at_least_once=True), True),
        ({"at_least_once": True}, True),
        ({}, False),
    ],
)
def test_at_least_once_asks_for_somebody_to_be_there(
    transport: Any, network: Network, options: Any, expected: bool
) -> None:
    with serving(transport, Calculator()):
        assert client(transport, transport_options=options).call({}, "add", a=1, b=1) == 2
        client(transport, transport_options=options).cast({}, "add", a=1, b=1)
    assert [words["mandatory"] for what, _, words in network.sent if what in ("call", "cast")] == [
        expected
    ] * 2


def test_failures_are_those_that_applications_know(transport: Any, network: Network) -> None:
    mandatory = oslo_messaging.TransportOptions(at_least_once=True)
    with pytest.raises(oslo_messaging.MessageUndeliverable) as caught:
        client(transport, transport_options=mandatory, target={"server": "s9"}).call({}, "add", a=1)
    assert (caught.value.exchange, caught.value.routing_key) == ("openstack", "sums.s9")
    assert caught.value.message == {"method": "add", "args": {"a": 1}}
    assert "nobody listens" in str(caught.value.exception)
    with pytest.raises(oslo_messaging.MessagingTimeout, match="no answer"):
        client(transport, timeout=0.05).call({}, "add")
    network.fail = Undelivered("no node")
    with pytest.raises(oslo_messaging.MessageDeliveryFailure, match="no node"):
        client(transport, retry=0).cast({}, "add")
    with pytest.raises(oslo_messaging.MessageDeliveryFailure):
        driver_of(transport).send_notification(oslo_messaging.Target(topic="t.info"), {}, {}, 2.0)
    network.fail = Refused("not allowed", Reason.DENIED)
    with pytest.raises(oslo_messaging.ClientSendError, match="not allowed") as refused:
        client(transport).call({}, "add")
    assert isinstance(refused.value.ex, MessageRefused)
    assert refused.value.ex.reason is Reason.DENIED
    network.fail = Closed("the session was closed")
    with pytest.raises(oslo_messaging.ClientSendError, match="closed") as refused:
        driver_of(transport).send(oslo_messaging.Target(topic="t"), {}, {})
    assert isinstance(refused.value.ex, ZmqDriverError)
    assert issubclass(ZmqDriverError, base.TransportDriverError)


def test_a_server_that_may_not_listen_says_so(transport: Any, network: Network) -> None:
    network.fail = Refused("not allowed", Reason.DENIED)
    with pytest.raises(ZmqDriverError, match="not allowed"):
        driver_of(transport).listen(oslo_messaging.Target(topic="t", server="s"), 1, None)
    with pytest.raises(ZmqDriverError, match="not allowed"):
        driver_of(transport).listen_for_notifications(
            [(oslo_messaging.Target(topic="t"), "info")], None, 1, None
        )


@pytest.mark.patient  # oslo.messaging beats once a second at the most
def test_monitored_calls_are_kept_alive_by_heartbeats(transport: Any, network: Network) -> None:
    endpoint = Calculator()
    with serving(transport, endpoint):
        threading.Timer(3.0, endpoint.go.set).start()
        assert client(transport, call_monitor_timeout=2).call({}, "slow") == "done"
        endpoint.go.clear()
        with pytest.raises(oslo_messaging.MessagingTimeout):
            client(transport, call_monitor_timeout=0.2).call({}, "slow")
        endpoint.go.set()
    assert [words["monitor_s"] for what, _, words in network.sent if what == "call"] == [2, 0.2]


def test_calls_of_several_threads_at_once(transport: Any, network: Network) -> None:
    found: list[int] = []

    def ask(number: int) -> None:
        found.extend(client(transport).call({}, "add", a=number, b=each) for each in range(20))

    with serving(transport, Calculator()):
        threads = [threading.Thread(target=ask, args=(100 * number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert sorted(found) == sorted(100 * number + each for number in range(8) for each in range(20))
    assert network.opened == 1


def test_a_server_may_be_started_again(transport: Any, network: Network) -> None:
    endpoint = Calculator()
    target = oslo_messaging.Target(topic="sums", server="s1")
    server = oslo_messaging.get_rpc_server(transport, target, [endpoint])
    for number in range(3):
        server.start()
        network.intakes[:] = network.intakes[-1:]
        assert client(transport).call({}, "add", a=number, b=0) == number
        server.stop()
        server.wait()
    assert len(endpoint.seen) == 3


def test_cleanup_closes_the_port_and_the_next_message_opens_another(transport: Any, network: Network) -> None:
    transport.cleanup()
    client(transport).cast({}, "add")
    transport.cleanup()
    transport.cleanup()
    client(transport).cast({}, "add")
    assert (network.opened, network.open) == (2, 1)


def test_a_child_process_opens_a_port_of_its_own(
    transport: Any, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    client(transport).cast({}, "add")
    with (
        monkeypatch.context() as child
    ):  # real forks are tested with real services, in processes of their own
        child.setattr(os, "getpid", lambda: -1)
        client(transport).cast({}, "add")
        assert (network.opened, network.open) == (2, 2)
        transport.cleanup()
        assert network.open == 1  # the parent's is left alone
    client(transport).cast({}, "add")
    assert network.opened == 2


def test_threads_that_begin_together_share_one_port(transport: Any, network: Network) -> None:
    meet = threading.Barrier(8)
    ports: list[Any] = []
    first = network.open_session

    def begin() -> None:
        meet.wait(PATIENCE_S)
        ports.append(driver_of(transport)._session())

    network.open_session = lambda settings: (time.sleep(0.01), first(settings))[1]  # type: ignore[method-assign]
    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len({id(each) for each in ports}) == 1
    assert network.open == 1


def test_passwords_are_not_logged(
    conf: cfg.ConfigOpts, network: Network, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="broker.oslo"):
        transport = oslo_messaging.get_rpc_transport(
            conf, url=f"zmq+redis://ada:hush@r1:6379/0?rpc_zmq_ipc_dir={tmp_path}"
        )
        client(transport).cast({}, "add")
        transport.cleanup()
    assert "zmq+redis://r1:6379" in caplog.text
    assert "hush" not in caplog.text


# ---------------------------------------------------------------- notifications


class Events:
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.again = 0

    def info(self, ctxt: Any, publisher_id: str, event_type: str, payload: Any, metadata: Any) -> Any:
        self.seen.append((publisher_id, event_type, payload))
        if self.again:
            self.again -= 1
            return oslo_messaging.NotificationResult.REQUEUE
        return None

    def error(self, ctxt: Any, publisher_id: str, event_type: str, payload: Any, metadata: Any) -> None:
        self.seen.append(("error", event_type))


class Batches:
    def __init__(self) -> None:
        self.seen: list[int] = []

    def info(self, messages: list[Any]) -> None:
        self.seen.append(len(messages))


@contextmanager
def listening(transport: Any, endpoint: Any, **words: Any) -> Iterator[Any]:
    make = oslo_messaging.get_notification_listener
    if isinstance(endpoint, Batches):
        make = oslo_messaging.get_batch_notification_listener
    server = make(transport, [oslo_messaging.Target(topic="events")], [endpoint], **words)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.wait()


@pytest.fixture
def notifications(conf: cfg.ConfigOpts, network: Network) -> Iterator[Any]:
    transport = oslo_messaging.get_notification_transport(conf, url="zmq://")
    yield transport
    transport.cleanup()


def notifier(transport: Any, driver: str = "messagingv2") -> Any:
    return oslo_messaging.Notifier(transport, "me", driver=driver, topics=["events"])


@pytest.mark.parametrize("driver", ["messaging", "messagingv2"])
def test_notifications(notifications: Any, network: Network, driver: str) -> None:
    endpoint = Events()
    with listening(notifications, endpoint, pool="p"):
        notifier(notifications, driver).info({}, "made", {"n": 1})
        notifier(notifications, driver).error({}, "lost", {})
        notifier(notifications, driver).warn({}, "nobody listens to this priority", {})
        until(lambda: len(endpoint.seen) == 2)
    assert sorted(endpoint.seen) == [("error", "lost"), ("me", "made", {"n": 1})]
    listens = [words for what, _, words in network.sent if what == "listen_notifications"]
    assert listens == [{"topics": [("openstack", "events.error"), ("openstack", "events.info")], "pool": "p"}]


@pytest.mark.parametrize("pool", [None, ""])
def test_no_pool_is_a_pool(notifications: Any, network: Network, pool: str | None) -> None:
    with listening(notifications, Events(), pool=pool):
        assert network.intakes[0].pool is None


def test_a_pool_that_cannot_be_is_refused(notifications: Any, network: Network) -> None:
    with pytest.raises(ValueError, match="pool"):
        driver_of(notifications).listen_for_notifications(
            [(oslo_messaging.Target(topic="t"), "info")], "a\0b", 1, None
        )


def test_a_notification_that_is_given_back_comes_again(notifications: Any, network: Network) -> None:
    endpoint = Events()
    endpoint.again = 2
    with listening(notifications, endpoint, allow_requeue=True):
        notifier(notifications).info({}, "made", 7)
        until(lambda: len(endpoint.seen) == 3)
        until(lambda: network.sent[-1][0] == "notify")
    assert endpoint.seen == [("me", "made", 7)] * 3


def test_batches(notifications: Any, network: Network) -> None:
    endpoint = Batches()
    with listening(notifications, endpoint, batch_size=100, batch_timeout=20):
        for number in range(200):
            notifier(notifications).info({}, "made", number)
        until(lambda: sum(endpoint.seen) == 200)
    assert endpoint.seen == [100, 100]


def test_a_batch_is_not_larger_than_what_may_wait(conf: cfg.ConfigOpts, network: Network) -> None:
    transport = oslo_messaging.get_notification_transport(conf, url="zmq://?zmq_inbox_messages=10")
    endpoint = Batches()
    with listening(transport, endpoint, batch_size=100, batch_timeout=None):
        for number in range(20):
            notifier(transport).info({}, "made", number)
        until(lambda: sum(endpoint.seen) == 20)
    transport.cleanup()
    assert endpoint.seen == [10, 10]


# ---------------------------------------------------------------- compression


class Mirror:
    def echo(self, ctxt: Any, text: str) -> str:
        return text


@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_bodies_are_compressed_when_the_sender_is_told_to(
    conf: cfg.ConfigOpts, network: Network, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests, replies and notifications; whoever was told nothing reads them all the same."""
    sent: list[bytes] = []
    write = BodyFormat.write

    def noted(form: BodyFormat, body: bytes) -> bytes:
        sent.append(write(form, body))
        return sent[-1]

    monkeypatch.setattr(BodyFormat, "write", noted)
    there = oslo_messaging.get_rpc_transport(conf, url="zmq://")
    here = oslo_messaging.get_rpc_transport(conf, url=f"zmq://?zmq_compression={compression}")
    text = "word " * 4000
    with serving(there, Mirror()):
        assert client(here).call({}, "echo", text=text) == text
    assert [body[:1] for body in sent] == [b"x" if compression == "zlib" else b"{", b"{"]
    for transport in (here, there):
        transport.cleanup()
