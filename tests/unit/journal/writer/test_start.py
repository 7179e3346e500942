"""What a command line must say, and what becomes of it when it does not."""

import fcntl
import json
import os
import sys

import msgspec
import pytest

from broker.errors import ConfigError
from broker.journal import premises
from broker.journal.writer import start
from broker.journal.writer.blocks import compressor
from tests.tables import for_each
from tests.unit.journal.writer.plain import RUN, options


def text(**more) -> str:
    return json.dumps({"directory": "d", "writer": "rank0", **more})


def test_options():
    assert start.read_options(text(run=RUN.upper(), rank=4).encode()).run == RUN
    made = start.read_options(text().encode())
    assert len(bytes.fromhex(made.run)) == 16
    assert start.read_options(text().encode()).run != made.run
    asked = options("d", codec="zstd", keep_s=3.0)
    assert start.read_options(msgspec.json.encode(asked)) == asked


@for_each(
    ("given", "said"),
    [
        ("", "options"),
        ("{}", "directory"),
        (text(writer="a/b"), "'a/b'"),
        (text(writer=""), "''"),
        (text(writer=".hidden"), "hidden"),
        (text(writer="w" * 65), "at most 64"),
        (text(run="xyz"), "options"),
        (text(run="ab"), "32 hex digits"),
        (text(rank=-1), "rank -1"),
        (text(rank=1 << 32), "rank 4294967296"),
        (text(codec="gzip"), "gzip"),
    ],
)
def test_options_that_no_segment_can_hold(given, said):
    with pytest.raises(ConfigError, match=said):
        start.read_options(given.encode())


def test_one_writer_a_name(tmp_path):
    place = tmp_path / "new" / "journal"
    first = premises.Lock(options(place), 0.05)
    assert place.stat().st_mode & 0o777 == 0o700
    assert os.fstat(first.fd).st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="another writer named rank0 is at work"):
        premises.Lock(options(place), 0.05)
    other = premises.Lock(msgspec.structs.replace(options(place), writer="rank1"))
    other.close()
    first.close()
    premises.Lock(options(place), 0.05).close()


def test_a_writer_that_is_about_to_end_is_waited_for(tmp_path, monkeypatch):
    first = premises.Lock(options(tmp_path))
    real, tries = fcntl.flock, []

    def released_at_the_third(fd, how):
        tries.append(fd)
        if len(tries) == 3:
            first.close()
        real(fd, how)

    monkeypatch.setattr(premises.fcntl, "flock", released_at_the_third)
    premises.Lock(options(tmp_path), 5.0).close()
    assert len(tries) == 3


@for_each("arguments", [[], ["x"], ["-2", "{}"], ["99999", "{}"]])
def test_without_a_socket_there_is_nobody_to_tell(arguments, monkeypatch):
    monkeypatch.setattr(start, "_close_all_but", lambda *fds: None)  # the test runner's own are open
    monkeypatch.setattr(start.signal, "signal", lambda *_: None)
    monkeypatch.setattr(start.os, "umask", lambda _: 0)
    assert start.main(arguments) == start.NO_SOCKET


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_library_that_is_missing(codec, monkeypatch):
    name = {"zstd": "zstandard", "lz4": "lz4.frame"}[codec]
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"is not installed: pip install '.*\[journal\]'"):
        compressor(codec)
