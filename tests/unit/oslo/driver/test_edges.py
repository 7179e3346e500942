"""What an application is told about names, numbers and options that cannot be."""

import math
from typing import Any

import oslo_messaging
import pytest
from oslo_config import cfg
from oslo_messaging import TransportURL, exceptions

from broker.oslo.contract import Address, Settings, Undelivered, Unroutable
from broker.oslo.driver import options
from broker.oslo.driver.driver import translated
from broker.oslo.driver.options import overridden, read_settings
from tests.tables import for_each


def settings(conf: cfg.ConfigOpts, text: str) -> Settings:
    options.register(conf)
    url = TransportURL.parse(conf, text)
    return read_settings(overridden(conf, url), url)


@for_each("name", ["a\nb", "\t", "\x01", "a\0b"])
@for_each("part", ["exchange", "topic", "server"])
def test_names_with_control_characters(transport: Any, part: str, name: str) -> None:
    named = {"exchange": "x", "topic": "t", "server": "s", part: name}
    target = oslo_messaging.Target(**named)
    client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic="t"))
    with pytest.raises(oslo_messaging.InvalidTarget, match=f"{part} "):
        client.prepare(**named).cast({}, "m")
    server = oslo_messaging.get_rpc_server(transport, target, [object()])
    with pytest.raises(oslo_messaging.InvalidTarget, match=f"{part} "):
        server.start()


def test_pools_with_control_characters(conf: cfg.ConfigOpts, network: object) -> None:
    transport = oslo_messaging.get_notification_transport(conf, url="zmq://")
    topics = [oslo_messaging.Target(topic="t")]

    class Endpoint:
        def info(self, *_args: object) -> None:
            """Never called."""

    listener = oslo_messaging.get_notification_listener(transport, topics, [Endpoint()], pool="a\nb")
    with pytest.raises(oslo_messaging.InvalidTarget, match="saw a control character"):
        listener.start()
    transport.cleanup()


def test_a_timeout_that_is_no_number_comes_back_to_the_caller(
    conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    transport = oslo_messaging.get_rpc_transport(conf, url=f"zmq:///?rpc_zmq_ipc_dir={tmp_path}")
    client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic="t"))
    for words in ({"timeout": math.nan}, {"timeout": 1, "call_monitor_timeout": math.nan}):
        with pytest.raises(ValueError, match="saw nan"):
            client.prepare(**words).call({}, "m")
    transport.cleanup()


@for_each(
    ("query", "said"),
    [
        ("zmq_linger=abc", "zmq_linger .*abc"),
        ("zmq_linger=nan", "zmq_linger .*saw nan"),
        ("rpc_zmq_ready_timeout=inf", "rpc_zmq_ready_timeout .*saw inf"),
        ("zmq_retry_interval=0", "zmq_retry_interval .*in the query of the URL"),
        ("zmq_inbox_messages=0", "zmq_inbox_messages .*in the query of the URL"),
        ("zmq_tcp_keepalive=7", "zmq_tcp_keepalive .*in the query of the URL"),
    ],
)
def test_what_is_wrong_in_a_url_names_its_option(conf: cfg.ConfigOpts, query: str, said: str) -> None:
    with pytest.raises(exceptions.ConfigurationError, match=said):
        settings(conf, f"zmq://?{query}")


def test_only_who_knows_that_nobody_listens_says_so() -> None:
    nobody = translated(Unroutable("x/t: nobody listens there"), Address("x", "t"), {})
    assert isinstance(nobody, oslo_messaging.MessageUndeliverable)
    assert str(nobody) == "x/t: nobody listens there"
    unknown = translated(Undelivered("x/t: not known"), Address("x", "t"), {})
    assert isinstance(unknown, oslo_messaging.MessageDeliveryFailure)


def test_a_real_port_without_a_directory(conf: cfg.ConfigOpts, tmp_path: object) -> None:
    url = f"zmq:///?rpc_zmq_ipc_dir={tmp_path}&rpc_zmq_ready_timeout=0.1"
    transport = oslo_messaging.get_rpc_transport(conf, url=url)
    client = oslo_messaging.get_rpc_client(
        transport,
        oslo_messaging.Target(topic="t"),
        timeout=20,
        transport_options=oslo_messaging.TransportOptions(at_least_once=True),
    )
    for send in (client.call, client.cast):
        with pytest.raises(oslo_messaging.MessageDeliveryFailure, match="not known whether anybody listens"):
            send({}, "m")
    transport.cleanup()
