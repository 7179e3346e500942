"""Addresses of sockets: taken apart, and whether they stay on this machine; nothing is opened here."""

import pytest

from broker import schemes
from broker.endpoints import Endpoint, check_secrecy, is_wildcard, parse, split
from broker.errors import ConfigError
from tests.tables import for_each


@for_each(
    ("uri", "endpoint", "text"),
    [
        ("tcp://10.0.0.1:8050", Endpoint("tcp", "10.0.0.1", 8050), "tcp://10.0.0.1:8050"),
        ("tcp://[fe80::1%eth0]:1", Endpoint("tcp", "fe80::1%eth0", 1), "tcp://[fe80::1%eth0]:1"),
        ("tcp://::1:8050", Endpoint("tcp", "::1", 8050), "tcp://[::1]:8050"),
        ("tcp://a_b-1.c.:1", Endpoint("tcp", "a_b-1.c.", 1), "tcp://a_b-1.c.:1"),
        ("tcp://*:*", Endpoint("tcp", "*", 0), "tcp://*:0"),
        ("tls://h:1", Endpoint("tls", "h", 1), "tls://h:1"),
        ("http://h:1/", Endpoint("http", "h", 1), "http://h:1"),
        ("ipc:///run/x", Endpoint("ipc", "/run/x"), "ipc:///run/x"),
        ("ipc://@x", Endpoint("ipc", "@x"), "ipc://@x"),
        ("local:///run/x", Endpoint("local", "/run/x"), "local:///run/x"),
    ],
)
def test_parse(uri, endpoint, text):
    assert parse(uri) == endpoint
    assert endpoint.text == text


@for_each(
    "uri",
    [
        *("x", "", "://x", "tcp://", "h:1", "udp://h:1", "inproc://x"),
        "tcp://host",
        "tcp://:1",
        "tcp://h:",
        "tcp://h:x",
        "tcp://h:²",
        "tcp://h:65536",
        "tcp://h:-1",
        "ipc://",
        "ipc://" + "x" * 108,
        "local://a",
        "unix://a",
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
        parse(uri, "tcp", "ipc", "local", "unix")
    assert "hidden" not in str(caught.value)


def test_what_was_expected_names_every_scheme():
    with pytest.raises(
        ValueError, match=r"^expected http://HOST:PORT, tcp://HOST:PORT or unix:///ABSOLUTE/PATH$"
    ):
        split("ftp://h:1", "http", "tcp", "unix")
    with pytest.raises(ValueError, match=r"^expected SCHEME://HOST:PORT$"):
        split("x")


@for_each(
    "uri",
    [
        "",
        "x",
        "://x",
        "tcp://",
        "tcp://a:",
        "tcp://:1",
        "tcp://a:0",
        "tcp://a:65536",
        "tcp://a:²",
        "tcp://::1:5",
    ],
)
def test_settings_are_checked_more_strictly(uri):
    assert schemes.check_port(uri)


def test_a_path_that_no_socket_holds():
    assert "at most 107 bytes, it has 108" in schemes.check_port("local:///" + "x" * 107)
    assert not schemes.check_port("local:///" + "x" * 106)


@for_each(
    ("uri", "exposed"),
    [
        ("tcp://127.0.0.1:1", False),
        ("tcp://127.8.9.1:1", False),
        ("tcp://[::1]:1", False),
        ("tcp://localhost:1", False),
        ("ws://LocalHost:1", False),
        ("ipc:///x", False),
        ("unix:///x", False),
        ("tcp://127.evil.example:1", True),
        ("ws://localhost.example.org:1", True),
        ("tcp://*:1", True),
        ("tcp://0.0.0.0:1", True),
        ("tcp://[::]:1", True),
        ("tcp://192.0.2.1:1", True),
        ("tcp://[2001:db8::1]:1", True),
        ("tcp://node0:1", True),
        ("http://10.0.0.1:1/", True),
    ],
)
def test_plaintext_stays_on_this_machine(uri, exposed):
    endpoint = parse(uri)
    assert endpoint.is_local is not exposed
    assert schemes.beyond_loopback(uri) is exposed
    check_secrecy([endpoint], protected=True, insecure=False)
    check_secrecy([endpoint], protected=False, insecure=True)
    if exposed:
        with pytest.raises(ConfigError, match="plaintext off loopback; use x, or set insecure = true"):
            check_secrecy([parse("ipc:///x"), endpoint], protected=False, insecure=False, remedy="use x")
    else:
        check_secrecy([endpoint], protected=False, insecure=False)


def test_what_is_no_address_may_be_anywhere():
    assert schemes.beyond_loopback("tcp://")


def test_wildcards():
    assert all(map(is_wildcard, ("*", "0.0.0.0", "::")))
    assert not any(map(is_wildcard, ("", "localhost", "127.0.0.1", "::1", "node0")))
