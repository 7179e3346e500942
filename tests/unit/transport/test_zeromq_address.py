"""Endpoints of ZeroMQ."""

import asyncio
import socket
import threading

import pytest

from broker.errors import ConfigError, LinkBroken
from broker.transport.zeromq import address
from broker.transport.zeromq.address import (
    Endpoint,
    bound,
    check_secrecy,
    contact,
    is_local,
    listening_at,
    parse,
    resolve,
)
from tests.tables import for_each


@for_each(
    ("uri", "endpoint", "text"),
    [
        ("tcp://10.0.0.1:8050", Endpoint("tcp", "10.0.0.1", 8050), "tcp://10.0.0.1:8050"),
        ("tcp://[fe80::1%eth0]:1", Endpoint("tcp", "fe80::1%eth0", 1), "tcp://[fe80::1%eth0]:1"),
        ("tcp://::1:8050", Endpoint("tcp", "::1", 8050), "tcp://[::1]:8050"),
        ("tcp://a_b-1.c.:1", Endpoint("tcp", "a_b-1.c.", 1), "tcp://a_b-1.c.:1"),
        ("tcp://*:*", Endpoint("tcp", "*", 0), "tcp://*:0"),
        ("ipc:///run/x", Endpoint("ipc", "/run/x"), "ipc:///run/x"),
    ],
)
def test_parse(uri, endpoint, text):
    assert parse(uri) == endpoint
    assert endpoint.text == text


@for_each(
    "uri",
    [
        "tcp://host",
        "tcp://:1",
        "tcp://h:x",
        "tcp://h:65536",
        "tcp://h:-1",
        "udp://h:1",
        "ipc://",
        "ipc://" + "x" * 108,
        *("tcp://[::1", "tcp://[::1]x:5", "tcp://::1]:5", "tcp://[::1]]:5", "tcp://[h]:5", "tcp://h]:5"),
        *(
            "tcp://u:hidden@h:5",
            "tcp://u:hidden@h",
            "tcp://h/x:5",
            "tcp://h?x=hidden:5",
            "tcp://a b:5",
            "tcp://-:5",
        ),
    ],
)
def test_what_is_no_endpoint_is_refused(uri):
    with pytest.raises(ConfigError) as caught:
        parse(uri)
    assert "hidden" not in str(caught.value)


def test_what_was_bound_loses_its_ipv6_clothes():
    assert bound("tcp://[::ffff:127.0.0.1]:5").text == "tcp://127.0.0.1:5"
    assert bound("tcp://[::]:5").text == "tcp://[::]:5"


def test_contact_replaces_wildcards_only():
    here = socket.gethostname()
    assert contact(Endpoint("tcp", "::", 5), "*") == f"tcp://{here}:5"
    assert contact(Endpoint("tcp", "0.0.0.0", 5), "0.0.0.0") == f"tcp://{here}:5"
    assert contact(Endpoint("tcp", "127.0.0.1", 5), "localhost") == "tcp://localhost:5"
    assert contact(Endpoint("ipc", "/run/x"), "/run/x") == "ipc:///run/x"


@for_each(
    ("uri", "local"),
    [
        ("ipc:///x", True),
        ("tcp://127.8.9.1:1", True),
        ("tcp://[::1]:1", True),
        ("tcp://*:1", False),
        ("tcp://0.0.0.0:1", False),
        ("tcp://192.0.2.1:1", False),
        ("tcp://name:1", False),
    ],
)
def test_plaintext_stays_on_this_machine(uri, local):
    endpoint = parse(uri)
    assert is_local(endpoint) is local
    check_secrecy([endpoint], curve=object(), insecure=False)
    check_secrecy([endpoint], curve=None, insecure=True)
    if not local:
        with pytest.raises(ConfigError, match="plaintext off loopback"):
            check_secrecy([parse("ipc:///x"), endpoint], curve=None, insecure=False)


def test_names_are_resolved_and_numbers_left_alone():
    async def check():
        assert await resolve(parse("tcp://*:1")) == [Endpoint("tcp", "*", 1)]
        assert await resolve(parse("tcp://[::1]:1")) == [Endpoint("tcp", "::1", 1)]
        assert all(is_local(endpoint) for endpoint in await resolve(parse("tcp://localhost:1")))
        with pytest.raises(LinkBroken, match="cannot resolve"):
            await resolve(parse("tcp://no-such-host.invalid:1"))

    asyncio.run(check())


def test_a_name_listens_on_all_interfaces_and_what_is_exact_stays_so(monkeypatch):
    """Debian's /etc/hosts has ``127.0.1.1 NAME``: where others never look for NAME. Nobody is asked."""
    monkeypatch.setattr(socket, "getaddrinfo", None)
    places = {
        "tcp://node0:1": Endpoint("tcp", "*", 1),
        "tcp://*:1": Endpoint("tcp", "*", 1),
        "tcp://localhost:1": Endpoint("tcp", "127.0.0.1", 1),
        "tcp://LocalHost:1": Endpoint("tcp", "127.0.0.1", 1),
        "tcp://10.0.0.256:1": Endpoint("tcp", "10.0.0.256", 1),
        "tcp://[fd77::1%lo]:1": Endpoint("tcp", "fd77::1%lo", 1),
        "tcp://127.0.1.1:1": Endpoint("tcp", "127.0.1.1", 1),
        "tcp://lo:1": Endpoint("tcp", "lo", 1),
    }
    assert {uri: listening_at(uri, object(), False) for uri in places} == places
    with pytest.raises(ConfigError, match="tcp://node0:1: plaintext off loopback"):
        listening_at("tcp://node0:1", None, False)


def test_a_name_that_appears_while_a_name_server_keeps_silent_is_found(monkeypatch, caplog):
    end, asked = threading.Event(), []

    def late(*_wanted, **_more):
        asked.append(1)
        if len(asked) == 1:
            end.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("192.0.2.1", 1))]

    monkeypatch.setattr(socket, "getaddrinfo", late)
    monkeypatch.setattr(address, "LOOK_AGAIN_S", 0.01)
    try:
        assert asyncio.run(resolve(parse("tcp://broker-1:1"))) == [Endpoint("tcp", "192.0.2.1", 1)]
    finally:
        end.set()
    assert "no name server has answered yet where broker-1 is" in caplog.text


def test_who_leaves_waits_for_no_name_server(monkeypatch):
    """A worker whose broker is gone took as long to leave as the name server took not to answer."""
    asked, end = threading.Event(), threading.Event()
    answered = []

    def never(*_wanted, **_more):
        asked.set()
        answered.append(end.wait(60))
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    async def leave():
        looking = asyncio.get_running_loop().create_task(resolve(parse("tcp://broker:1")), name="look")
        await asyncio.to_thread(asked.wait)
        looking.cancel()

    monkeypatch.setattr(socket, "getaddrinfo", never)
    try:
        asyncio.run(leave())
        assert not answered
    finally:
        end.set()
