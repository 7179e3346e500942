"""URIs of the configuration: taken apart, and whether they stay on this machine."""

import pytest

from broker.settings.addresses import is_exposed, split_uri
from tests.tables import for_each


@for_each(
    ("uri", "exposed"),
    [
        ("tcp://127.0.0.1:1", False),
        ("tcp://127.8.9.1:1", False),
        ("tcp://[::1]:1", False),
        ("tcp://localhost:1", False),
        ("tcp://127.evil.example:1", True),
        ("tcp://*:1", True),
        ("tcp://0.0.0.0:1", True),
        ("tcp://[::]:1", True),
        ("tcp://node0:1", True),
        ("ipc:///x", False),
        ("inproc://x", False),
        ("http://10.0.0.1:1/", True),
    ],
)
def test_exposed(uri, exposed):
    assert is_exposed(split_uri(uri)) is exposed


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
def test_split_refuses(uri):
    with pytest.raises(ValueError, match="expected"):
        split_uri(uri)


def test_split_refuses_a_path_that_no_socket_holds():
    with pytest.raises(ValueError, match="at most 107 bytes, it has 108"):
        split_uri("local://" + "x" * 108)
    split_uri("local://" + "x" * 107)
