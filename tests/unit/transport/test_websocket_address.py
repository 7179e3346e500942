"""Where a WebSocket link goes, and which credential it takes along; nothing is opened here."""

import asyncio
import os

import pytest

from broker.errors import ConfigError
from broker.transport.link import Options
from broker.transport.websocket import codec, dialing
from broker.transport.websocket.address import fresh, parse, token_of
from gateway import closes
from tests.tables import for_each


@for_each(
    ("uri", "full"),
    [
        ("ws://127.0.0.1:8280", "ws://127.0.0.1:8280/v1/ws"),
        ("ws://127.0.0.1:8280/", "ws://127.0.0.1:8280/v1/ws"),
        ("wss://example.org", "wss://example.org:443/v1/ws"),
        ("ws://localhost", "ws://localhost:80/v1/ws"),
        ("ws://[::1]:99/other", "ws://[::1]:99/other"),
        ("wss://h:1/x?a=b", "wss://h:1/x?a=b"),
    ],
)
def test_addresses(uri, full):
    assert parse(uri).uri == full


def test_the_policy_goes_into_the_query():
    assert parse("ws://h:1", "drop").uri == "ws://h:1/v1/ws?overflow=drop"
    assert parse("ws://h:1/x?a=b", "disconnect").uri == "ws://h:1/x?a=b&overflow=disconnect"
    with pytest.raises(ConfigError, match="overflow"):
        parse("ws://h:1", "wait")


@for_each(
    "uri", ["http://h:1", "ws://", "ws:///x", "ws://h:port", "ws://h:70000", "ws://[::1", "ws://h:1/#once=x"]
)
def test_what_is_no_address(uri):
    with pytest.raises(ConfigError):
        parse(uri)


@for_each(
    "uri",
    [
        "ws://user:s3cret@h:1",
        "ws://s3cret@h:1/x",
        "ws://h:1/#s3cret",
        "ws://s3cret@h:port?s3cret",
        "tcp://s3cret@h",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(uri):
    with pytest.raises(ConfigError) as caught:
        parse(uri)
    assert "s3cret" not in str(caught.value)


@for_each("host", ["192.0.2.1", "example.org", "[2001:db8::1]", "localhost.example.org"])
def test_plaintext_elsewhere_needs_insecure(host):
    with pytest.raises(ConfigError, match="plaintext off loopback; use wss://, or set insecure = true"):
        asyncio.run(dialing.dial(f"ws://{host}:1", Options(extra={"token": None})))


@pytest.fixture
def _no_token(monkeypatch):
    monkeypatch.delenv("HEADGATE_TOKEN", raising=False)
    monkeypatch.delenv("HEADGATE_TOKEN_FILE", raising=False)


@pytest.mark.usefixtures("_no_token")
def test_where_the_token_comes_from(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="HEADGATE_TOKEN") as caught:
        token_of({})
    assert "extra" not in str(
        caught.value
    )  # who reads it has typed `headgate ping --uri ws://...`, no Python
    assert token_of({"ssl": None}) is None
    assert token_of({"headers": {}}) is None
    assert token_of({"token": None}) is None
    file = tmp_path / "token"
    file.write_text("from-file\n")
    monkeypatch.setenv("HEADGATE_TOKEN_FILE", str(file))
    assert token_of({}) == "from-file"
    monkeypatch.setenv("HEADGATE_TOKEN", " from-env ")
    assert token_of({}) == "from-env"
    assert token_of({"token": "given"}) == "given"


@pytest.mark.usefixtures("_no_token")
@for_each("content", [None, b"", b" \n", b"\xff"])
def test_a_token_file_that_holds_none(monkeypatch, tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("HEADGATE_TOKEN_FILE", os.fspath(file))
    with pytest.raises(ConfigError, match="HEADGATE_TOKEN_FILE"):
        token_of({})


def test_tokens_that_no_header_takes_are_not_shown():
    assert fresh(lambda: "abc") == "abc"
    assert fresh(None) is None
    for bad in ("", "s3cret\r\nX: y", "s3cret s3cret", "s3cretä"):
        with pytest.raises(ConfigError) as caught:
            fresh(bad)
        assert "s3cret" not in str(caught.value)


def test_every_close_code_has_an_errno_but_those_that_say_nothing():
    assert set(closes.MEANINGS) - set(codec.BY_CODE) == {
        closes.NORMAL,
        closes.INTERNAL,
        closes.ENDED,
    }


def test_refusals_over_http():
    problem = codec.of_status("ws://h", 403, b'{"errno":13,"text":"not you"}')
    assert (problem.errno, str(problem)) == (13, "ws://h refused the connection: 403 not you")
    plain = codec.of_status("ws://h", 401, b"who are you?\n")
    assert (plain.errno, str(plain)) == (13, "ws://h refused the connection: 401 who are you?")
    assert str(codec.of_status("ws://h", 502, b"", "Bad Gateway")).endswith("502 Bad Gateway")
    assert codec.of_status("ws://h", 799, b"[1]").errno == 111
