"""``headgate journal`` as a person uses it: real processes over segments that an independent encoder wrote."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from broker.client import connect
from broker.errors import RpcError
from broker.journal.layout import DENIED
from broker.wire.message import event, request
from tests.live.segments import T0, Rec, block, flux, note, peer, write, write_many
from tests.live.verbs import headgate

JOURNAL = [sys.executable, "-m", "broker.cli.main", "journal"]
pytestmark = pytest.mark.story


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return headgate("journal", *words)


def said(count: int, first: int = 0) -> list[Rec]:
    out = []
    for n in range(first, first + count):
        message = request("echo.run", b'{"n": %d}\0' % n, matchtag=n + 1, userid=1000, rolemask=2)
        message.push_route(b"client-1")
        out.append(flux(T0 + n * 1_000_000, message, peer=1))
    return out


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    folder = tmp_path / "j"
    who = [peer(1, "unix:1000", uid=1000)]
    write_many(folder, "rank0", said(10), 4, per_block=2, peers=who)
    denied = said(1)[0].with_(direction=DENIED, reason=1, claimed=0)
    write(folder, "rank1", [*who, denied, note(T0, "link.down", {"peer": 1, "cause": "ended"})], codec="zstd")
    return folder


def test_ls(journal: Path) -> None:
    done = run("ls", journal)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["writer", "rank0", "rank0", "rank0", "rank1", "total"]
    assert "4 segments" in lines[-1]
    values = [json.loads(line) for line in run("ls", journal, "--json").stdout.splitlines()]
    assert [(each["writer"], each["first_seq"], each["records"], each["state"]) for each in values] == [
        ("rank0", 0, 4, "sealed"), ("rank0", 4, 4, "sealed"), ("rank0", 8, 2, "sealed"), ("rank1", 0, 3, "sealed"),
    ]  # fmt: skip
    assert values[3]["codecs"] == ["zstd"]


def test_verify(journal: Path) -> None:
    done = run("verify", journal)
    assert done.returncode == 0, done.stderr
    assert "4 segments, 2 runs" in done.stdout
    assert "nothing damaged, no gaps" in done.stdout
    path = sorted(journal.glob("rank0*"))[1]
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    done = run("verify", journal)
    assert done.returncode == 1
    assert "CRC of the block" in done.stdout
    told = json.loads(run("verify", journal, "--json").stdout)
    (damage,) = told["segments"][1]["damages"]
    assert damage["offset"] + damage["length"] == len(data)
    assert told["gaps"] == [
        {"writer": "rank0", "first": 6, "last": 7, "cause": "they stood in a damaged block", "why": "damaged"}
    ]


def test_show(journal: Path) -> None:
    lines = run("show", journal).stdout.splitlines()
    assert len(lines) == 12
    assert "request unix:1000 user=1000(claimed" not in lines[0]
    assert lines[-1].startswith("2026-01-01 00:00:00.009000 rank0:9 -> request unix:1000 user=1000 echo.run")
    assert lines[-1].endswith('tag=10 {"n":9}')
    (denied,) = run("show", journal, "--direction", "denied").stdout.splitlines()
    assert "rank1:1 XX request" in denied
    assert "denied:EPERM" in denied
    (state,) = run("show", journal, "--type", "state", "--json").stdout.splitlines()
    assert json.loads(state)["topic"] == "link.down"
    few = run(
        "show", journal, "--topic", "echo.*", "--user", "1000", "--limit", "3", "--json", "--writer", "rank0"
    )
    assert [json.loads(line)["payload"] for line in few.stdout.splitlines()] == [{"n": 0}, {"n": 1}, {"n": 2}]
    span = run(
        "show", journal, "--since", "2026-01-01T00:00:00.003", "--until", "2026-01-01T00:00:00.005", "--json"
    )
    assert [json.loads(line)["seq"] for line in span.stdout.splitlines()] == [3, 4]
    assert run("show", sorted(journal.glob("rank1*"))[0]).stdout.count("\n") == 2


def test_mistakes_are_one_line(journal: Path, tmp_path: Path) -> None:
    for words, code in (
        (("show", journal, "--type", "mail"), 2),
        (("show", journal, "--since", "yesterday"), 2),
        (("show", tmp_path / "none"), 78),
        (("ls", tmp_path / "none"), 78),
        (("verify", tmp_path / "none"), 78),
        (("tail", tmp_path / "none"), 78),
        (("replay", journal, "--speed", "quick"), 2),
        (("replay", journal), 2),
        (("replay", tmp_path, "--to", "local:///nowhere"), 78),
        (("shwo",), 2),
        (("show", journal, "-w", "nope"), 78),
        (("ls", journal, "-w", "nope"), 78),
        (("tail", journal, "-w", "nope"), 78),
        (("ls", sorted(journal.glob("*.fj"))[0]), 78),
    ):
        done = run(*words)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), (words, done.stderr)
        assert "journal: journal:" not in done.stderr
    assert "No such file or directory" in run("show", tmp_path / "none").stderr
    assert "no segment of writer nope" in run("show", journal, "-w", "nope").stderr


def test_a_folder_with_the_name_of_a_segment_is_passed_over(journal: Path) -> None:
    (journal / "rank0-00000000000000000010.fj").mkdir()
    for verb in ("ls", "verify", "show", "tail"):
        done = run(verb, journal)
        assert (done.returncode, done.stderr) == (0, ""), (verb, done.stderr)


def test_a_segment_of_another_version(tmp_path: Path) -> None:
    write(tmp_path, "rank0", said(2), version=2)
    done = run("ls", tmp_path)
    assert done.returncode == 1
    assert "version 2, this program knows 1" in done.stdout
    assert "version 2, this program knows 1" in run("verify", tmp_path).stdout
    assert run("show", tmp_path).stdout == ""


def test_an_empty_journal(tmp_path: Path) -> None:
    assert run("ls", tmp_path).returncode == 0
    assert run("show", tmp_path).stdout == ""
    assert "nothing damaged" in run("verify", tmp_path).stdout


def test_control_characters_of_a_peer_do_not_reach_the_terminal(tmp_path: Path) -> None:
    write(tmp_path, "rank0", [flux(T0, request("a\x1b[31m.b\n", b"\x1b[2J text"))])
    (line,) = run("show", tmp_path).stdout.splitlines()
    assert "\x1b" not in line


def test_tail(journal: Path) -> None:
    lines = run("tail", "-n", "3", "--writer", "rank0", journal).stdout.splitlines()
    assert [line.split()[2] for line in lines] == ["rank0:7", "rank0:8", "rank0:9"]


def test_tail_follows_all_writers_over_rotation(journal: Path) -> None:
    process = subprocess.Popen(
        [*JOURNAL, "tail", "-f", "-n", "1", "--json", str(journal)], stdout=subprocess.PIPE, text=False
    )
    try:
        assert process.stdout is not None
        fd, seen, rest = process.stdout.fileno(), [], b""

        def until(count: int) -> None:
            nonlocal rest
            deadline = time.monotonic() + 30
            while len(seen) < count:
                assert select.select([fd], [], [], max(0, deadline - time.monotonic()))[0], seen
                *lines, rest = (rest + os.read(fd, 1 << 16)).split(b"\n")
                seen.extend((json.loads(line)["writer"], json.loads(line)["seq"]) for line in lines)

        until(1)
        assert seen == [("rank0", 9)]
        with sorted(journal.glob("rank0*"))[-1].open("ab") as file:
            file.write(block(said(1, 10), 10))
        until(2)
        write(journal, "rank0", said(2, 11), 11)
        for old in sorted(journal.glob("rank0*"))[:2]:
            old.unlink()
        until(4)
        write(journal, "nfp", said(1), 0)
        until(5)
        assert seen[1:] == [("rank0", 10), ("rank0", 11), ("rank0", 12), ("nfp", 0)]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_session_is_replayed_against_a_broker(broker, tmp_path: Path) -> None:
    folder = tmp_path / "j"
    some = [*said(30), flux(T0 + 10**9, event("hello.world", b'{"n": 30}\0', sequence=4), peer=1)]
    some.append(flux(T0 + 2 * 10**9, request("nobody.home", None, matchtag=99), peer=1))
    some.append(flux(T0 + 2 * 10**9, request("kvs.heartbeat", None, matchtag=99), peer=2))
    write(folder, "rank0", some, peers=[peer(1, "unix:1"), peer(2, "own", role="own")])
    got: list[Any] = []

    async def story() -> tuple[int, str]:
        async with connect(broker.uri) as handle, handle.subscribe("hello") as events:
            await handle.serve("echo", {"run": lambda r: got.append(r.json()["n"]) or {}})
            process = await asyncio.create_subprocess_exec(
                *JOURNAL, "replay", str(folder), "--to", broker.uri, "--speed", "max", "--json", "--as-owner",
                stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            out, _ = await asyncio.wait_for(process.communicate(), 40)
            heard = await asyncio.wait_for(anext(events), 10)
            assert heard.json() == {"n": 30}
            assert process.returncode is not None
            return process.returncode, out.decode()

    code, out = asyncio.run(story())
    assert code == 0
    told = json.loads(out)
    assert got == list(range(30))
    assert (told["requests"], told["events"], told["ok"], told["error"], told["none"]) == (31, 1, 30, 1, 0)
    assert told["errors"] == {"ENOSYS": 1}
    assert told["skipped"] == {"a broker's own": 1}


def test_a_guests_refused_request_does_not_come_true(broker, tmp_path: Path) -> None:
    """Recorded as accepted, then refused by the service: sent again by an owner it must not be carried out."""

    def set_by_guest(name: str, tag: int, **around: Any) -> Rec:
        payload = b'{"name": "%s", "value": "1"}\0' % name.encode()
        message = request("attr.set", payload, matchtag=tag, userid=1234, rolemask=2)
        message.push_route(b"guest")
        return flux(T0, message, peer=1, **around)

    some = [
        set_by_guest("test.refused", 3),
        set_by_guest("test.refused", 3, direction=DENIED, reason=1, via=2),
        set_by_guest("test.unknown", 4),  # of this one the journal tells nothing: its stamp decides
    ]
    write(tmp_path, "rank0", some, peers=[peer(1, "unix:1234"), peer(2, "own", role="own")])

    async def value(name: str) -> str:
        async with connect(broker.uri) as handle:
            try:
                return str((await handle.rpc("attr.get", {"name": name})).json()["value"])
            except RpcError as error:
                return errno.errorcode[error.errno]

    done = run("replay", tmp_path, "--to", broker.uri, "--speed", "max")
    assert done.returncode == 0, done.stderr
    assert "errors: EPERM 1" in done.stdout
    assert "1 requests were refused then" in done.stdout
    assert asyncio.run(value("test.refused")) == "ENOENT"
    assert asyncio.run(value("test.unknown")) == "ENOENT"
    done = run("replay", tmp_path, "--to", broker.uri, "--speed", "max", "--as-owner", "--json")
    told = json.loads(done.stdout)
    assert (told["ok"], told["errors"], told["skipped"]) == (1, {}, {"refused then": 1, "not accepted": 1})
    assert asyncio.run(value("test.refused")) == "ENOENT"
    assert asyncio.run(value("test.unknown")) == "1"


def test_a_replay_says_that_payloads_are_missing(broker, tmp_path: Path) -> None:
    folder = tmp_path / "j"
    write(folder, "rank0", [each.with_(stripped=True) for each in said(2)], flags=0)
    done = run("replay", folder, "--to", broker.uri, "--speed", "max", "--timeout", "5")
    assert done.returncode == 0, done.stderr
    assert "captured without payloads" in done.stderr
    assert "2 were sent without their payload" in done.stdout
    assert "errors: ENOSYS 2" in done.stdout
