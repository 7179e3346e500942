"""A broker's journal when things go wrong: its writer is killed, its disk is full, the broker itself is killed.

Each time: no message of a client is lost for it, nothing stands in the journal twice, and what is missing there is
counted and named.
"""

import contextlib
import errno
import os
import signal
import socket
import subprocess

import pytest

from broker.journal.reading.segments import segments
from broker.wire.message import request
from tests.live.brokers import eventually, one_broker
from tests.live.journaled import (
    Journal,
    all_handed,
    all_written,
    control,
    ended,
    once_each,
    some_once,
    status,
    tags,
)
from tests.live.load import Caller, Provider, Publisher, numbered, stop_all
from tests.live.speaker import Speaker

pytestmark = [pytest.mark.story, pytest.mark.timeout(60), pytest.mark.patient]

KILLS = 3


def recording(folder, more=""):
    """Settings of a broker that records into ``folder``."""
    return f'[journal]\nenabled = true\ndirectory = "{folder}"\nblock_s = 0.02\n{more}'


def metrics(rundir):
    """What a scraper reads."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(rundir / "m"))
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        text = b""
        while data := sock.recv(65536):
            text += data
    return text.decode()


def test_the_writer_is_killed_under_load(rundir):
    with one_broker(rundir, recording(rundir / "j", "capture = 'both'\n")) as running:
        provider = Provider(running.uri, "svc")
        # what passes while a writer starts is read below, and the slower the machine the more that is
        caller = Caller(running.uri, "svc", 1, 0, rest_s=0.05)
        publisher = Publisher(running.uri, "load", 2, 0, pause_s=0.05)
        killed = []
        for number in range(1, KILLS + 1):
            before = status(running.uri)
            eventually(lambda before=before: status(running.uri)["written"] > before["written"] + 200)
            killed.append(status(running.uri)["pid"])
            os.kill(killed[-1], signal.SIGKILL)
            eventually(lambda number=number: status(running.uri)["restarts"], number)
            eventually(lambda: status(running.uri)["pid"] not in (0, *killed))
        written = status(running.uri)["written"]
        eventually(lambda: status(running.uri)["written"] > written + 200)
        stop_all([caller, publisher, provider])
        all_written(running.uri)
        told = status(running.uri)
        lines = [line for line in running.lines() if "another one takes over" in line]
    assert len(lines) == KILLS
    journal = Journal(rundir / "j")
    lost = journal.check_numbers()
    assert len(segments(rundir / "j", "rank0")) == KILLS + 1
    assert lost == told["lost"] + told["shed"]
    assert {gap["cause"] for gap in journal.state("gap")} <= {"the writer died"}
    assert len({each.run for each in journal.records}) == 1
    missing = 0
    for direction in ("in", "out"):
        for kind in ("request", "response"):
            seen = tags(journal.of(direction=direction, type=kind, topic="svc.echo"))
            missing += some_once(seen, 1, caller.done)
        sequences = [each.event_seq for each in journal.of(direction=direction, type="event", topic="load")]
        assert sequences == sorted(set(sequences))
        missing += publisher.sent - len(sequences)
    assert missing <= lost
    known = {each.peer for each in journal.of(topic="svc.echo")}
    assert not any(name.startswith("#") for name in known), known


def test_the_broker_is_killed(rundir):
    """What it had handed over is on disk: the writer goes on until it has written it."""
    with one_broker(rundir, recording(rundir / "j")) as running:
        with Speaker(running.uri) as me:
            me.tell(*(request("broker.ping", b'{"seq":1}\0', matchtag=n + 1) for n in range(500)))
            for n in range(500):
                me.take(lambda seen, n=n: seen.matchtag == n + 1)
            all_handed(running.uri)
            writer = status(running.uri)["pid"]
            running.kill()
        eventually(lambda: ended(writer))
        journal = Journal(rundir / "j")
        assert journal.check_numbers() == 0
        once_each(tags(journal.of(direction="in", topic="broker.ping")), 1, 500)
        running.start()
        running.wait_ready()
        with Speaker(running.uri) as me:
            assert me.ping() == 0
    journal = Journal(rundir / "j")
    assert journal.check_numbers() == 0
    assert len(segments(rundir / "j", "rank0")) == 2
    assert len({each.run for each in journal.records}) == 2
    assert len(journal.of(direction="in", topic="broker.ping")) == 501


# ---------------------------------------------------------------- a full disk


@pytest.fixture
def small(rundir):
    """A file system of one MiB in the place of the journal."""
    if os.getuid() != 0:
        pytest.skip("optional: needs root to mount a small file system")
    place = rundir / "j"
    place.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("optional: needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place):
    with (place / "filler").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):  # full, for this size
                while file.write(bytes(size)) == size:
                    pass


def echo(me, first, count):
    """``count`` numbered calls, all answered."""
    for number in range(first, first + count):
        answer = me.ask(request("svc.echo", numbered(1, number, 2000), matchtag=number + 1))
        assert answer.errnum == 0


def test_the_disk_is_full(rundir, small):
    extra = recording(small, "keep_bytes = 0\n") + f'[broker]\nmetrics_listen = "unix://{rundir}/m"\n'
    with one_broker(rundir, extra) as running:
        provider = Provider(running.uri, "svc")
        with Speaker(running.uri) as me:
            echo(me, 0, 20)
            all_written(running.uri)
            assert 'headgate_journal_recording{off=""} 1\n' in metrics(rundir)
            fill(small)
            echo(me, 20, 50)
            eventually(lambda: status(running.uri)["state"], "off: No space left on device")
            full = 'headgate_journal_recording{off="No space left on device"} 0\n'
            assert full in metrics(rundir)
            refused = control(running.uri, "start")
            if refused.errnum == 0:  # it can start, but not write: off again
                eventually(lambda: status(running.uri)["state"], "off: No space left on device")
            else:
                assert refused.errnum == errno.ENOSPC
            echo(me, 70, 30)
            (small / "filler").unlink()
            again = control(running.uri, "start")
            assert again.errnum == 0, again.payload
            assert status(running.uri)["state"] == "on"
            echo(me, 100, 20)
            all_written(running.uri)
            told = status(running.uri)
        stop_all([provider])
        lines = [line for line in running.lines() if "capture is off" in line]
        assert len(lines) == (1 if refused.errnum else 2), lines
        assert all("ERROR" in line and "No space left" in line for line in lines)
    journal = Journal(small)
    assert told["lost"] <= journal.check_numbers() <= told["lost"] + told["shed"]
    assert {gap["cause"] for gap in journal.state("gap")} == {"capture was off"}
    seen = tags(journal.of(direction="in", type="request", topic="svc.echo"))
    once_each(seen[:20], 1, 20)
    once_each(seen[-20:], 101, 20)
    assert some_once(seen, 1, 120) > 0
    answered = tags(journal.of(direction="in", type="response", topic="svc.echo"))
    once_each(answered[-20:], 101, 20)
    known = {each.peer for each in journal.of(topic="svc.echo")[-20:]}
    assert not any(name.startswith("#") for name in known), known


def test_off_and_on_by_hand(rundir):
    with one_broker(rundir, recording(rundir / "j")) as running:
        provider = Provider(running.uri, "svc")
        with Speaker(running.uri) as me:
            echo(me, 0, 10)
            stopped = control(running.uri, "stop", {"reason": "to copy it"})
            assert stopped.errnum == 0
            assert status(running.uri)["state"] == "off: to copy it"
            at_rest = Journal(rundir / "j")
            once_each(tags(at_rest.of(direction="in", type="request", topic="svc.echo")), 1, 10)
            echo(me, 10, 10)
            assert control(running.uri, "start").errnum == 0
            echo(me, 20, 10)
        stop_all([provider])
    journal = Journal(rundir / "j")
    assert journal.check_numbers() == 0
    seen = tags(journal.of(direction="in", type="request", topic="svc.echo"))
    assert seen == [*range(1, 11), *range(21, 31)]
    assert [each["state"] for each in journal.state("capture")] == ["on", "off", "on", "off"]
