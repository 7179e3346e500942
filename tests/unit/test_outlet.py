"""A standard error that nobody reads."""

import _thread
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time

from broker.outlet import FLUSH_S, QUEUE_BYTES, Outlet
from tests.tables import for_each

PIPE_BYTES = 4096


class Piped:
    """An outlet into a pipe of one page."""

    def __init__(self) -> None:
        self.read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.out = Outlet(os.fdopen(write, "w"))

    def lines(self) -> list[str]:
        """What there is to read, until the outlet has nothing more."""
        os.set_blocking(self.read, False)
        data, until = b"", time.monotonic() + 10
        while self.out._busy or not data.endswith(b"\n"):
            assert time.monotonic() < until
            try:
                data += os.read(self.read, 1 << 16)
            except BlockingIOError:
                time.sleep(0.001)
        try:
            data += os.read(self.read, 1 << 16)
        except BlockingIOError:
            pass
        return data.decode().splitlines()


def test_lines_come_in_order_and_what_was_dropped_is_told_once():
    piped = Piped()
    number = 0
    while not piped.out._dropped:
        print(f"{number:06d}", "x" * 1000, file=piped.out)
        number += 1
    print("and one more", file=piped.out)
    assert number * 1008 > QUEUE_BYTES
    *came, told = [line[:6] if line[:6].isdecimal() else line for line in piped.lines()]
    assert came == [f"{each:06d}" for each in range(number - 1)]
    assert told == "2 lines were dropped here: nobody read them"
    print("later", file=piped.out)
    assert piped.lines() == ["later"]


def pair(kind: str) -> tuple[int, int]:
    """Where to read what is written to the other."""
    if kind == "socket":
        near, far = socket.socketpair()
        return near.detach(), far.detach()
    if kind == "terminal":
        return os.openpty()
    if kind == "file":
        name = f"/proc/self/fd/{os.memfd_create('log')}"
        return os.open(name, os.O_RDONLY), os.open(name, os.O_WRONLY | os.O_APPEND)
    return os.pipe()


@for_each("kind", ["pipe", "socket", "terminal", "file"])
def test_a_line_takes_no_thread_and_comes_before_what_is_said_later(kind, monkeypatch):
    """Of a log and of what a service says on stdout, both of one terminal."""
    monkeypatch.setattr(_thread, "start_new_thread", None)
    read, write = pair(kind)
    log, said = Outlet(os.fdopen(write, "w")), Outlet(os.fdopen(os.dup(write), "w"))
    for number in range(3):
        print("listening", number, file=log)
        print("ready", number, file=said)
    data = b""
    while data.count(b"\n") < 6:  # a terminal hands on what it got in pieces
        data += os.read(read, 1 << 16)
    assert data.decode().splitlines() == [
        f"{word} {number}" for number in range(3) for word in ("listening", "ready")
    ]
    assert os.get_blocking(write), "it is not ours alone"


@for_each("kind", ["pipe", "socket", "terminal"])
def test_a_fork_holds_up_no_end(kind):
    """Whoever reads until the end does not wait for a child that says its lines elsewhere."""
    read, write = pair(kind)
    out = Outlet(os.fdopen(write, "w"))
    print("said", file=out)
    wait, go = os.pipe()
    if (child := os.fork()) == 0:
        os.close(write)
        os.close(go)
        os.read(wait, 1)
        os._exit(0)
    out._fd.forget()
    os.close(write)
    try:
        assert os.read(read, 1 << 16).decode().splitlines() == ["said"]
        try:
            rest = os.read(read, 1)
        except OSError:  # of a terminal
            rest = b""
        assert rest == b""
    finally:
        os.close(go)
        os.waitpid(child, 0)


def test_a_terminal_that_stands_still_stops_nobody():
    master, slave = os.openpty()
    out = Outlet(os.fdopen(slave, "w"))
    while not out._dropped:
        print("x" * 1000, file=out)
    os.close(master)


def test_a_flush_waits_for_a_reader_once():
    piped = Piped()
    piped.out.write("x" * 3 * PIPE_BYTES)
    began = time.monotonic()
    piped.out.flush()
    first = time.monotonic()
    for _ in range(50):
        piped.out.flush()
    assert first - began >= FLUSH_S
    assert time.monotonic() - first < FLUSH_S
    os.close(piped.read)


def test_what_else_a_text_stream_has_is_there():
    """Tasks of workers write bytes, and say how texts are written."""
    piped = Piped()
    piped.out.reconfigure(errors="replace")
    piped.out.buffer.write(b"\xff\n")
    piped.out.buffer.flush()
    assert os.read(piped.read, 16) == b"\xff\n"


def test_a_reader_that_is_gone_is_no_fault():
    piped = Piped()
    os.close(piped.read)
    for _ in range(3):
        print("nobody", file=piped.out)
        piped.out.flush()
    assert piped.out._dropped == 3


def test_what_a_full_disk_dropped_is_told_before_the_next_line(monkeypatch):
    read, write = pair("file")
    out = Outlet(os.fdopen(write, "w"))
    with monkeypatch.context() as full:
        full.setattr(out._fd, "_write_now", lambda _data: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
        print("lost", file=out)
    print("later", file=out)
    told = ["1 lines were dropped here: nobody read them", "later"]
    assert os.read(read, 1 << 16).decode().splitlines() == told


PROCESS = """
import logging, os, sys, threading
from broker import loglines, supervision
log = logging.getLogger("headgate")
loglines.send_to_stderr(log, "x", "info")
log.info("first")
print("said by", "print", file=sys.stderr)
sys.stderr.write("half a ")
sys.stderr.write("line\\n")
if (child := os.fork()) == 0:
    log.info("of a child")
    sys.stderr.flush()
    os._exit(0)
os.waitpid(child, 0)
assert threading.active_count() == len(os.listdir("/proc/self/task")) == 1 or "again" in sys.argv
if "again" not in sys.argv:
    sys.orig_argv.append("again")
    sys.argv.append("again")
    log.info("starts again")
    supervision.start_again()
log.info("the last")
raise ValueError("at the end")
"""


def test_nothing_is_lost_at_an_end_a_fork_and_a_new_start():
    """In the order in which it was written, whoever wrote it, and tracebacks as well."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS], capture_output=True, text=True, timeout=20, check=False
    )
    said = [line.rpartition("INFO ")[2] for line in done.stderr.splitlines()]
    life = ["first", "said by print", "half a line", "of a child"]
    assert said[: 2 * len(life) + 2] == [*life, "starts again", *life, "the last"]
    assert said[-1] == "ValueError: at the end"
    assert done.returncode == 1


def test_signals_are_taken_by_others():
    """A signal that the process waits for is never taken by the thread that writes."""
    piped = Piped()
    piped.out.write("x" * 3 * PIPE_BYTES + "\n")
    piped.out.flush()
    (thread,) = (each for each in os.listdir("/proc/self/task") if "pipe_write" in _state(each, "wchan"))
    (blocked,) = (line.split()[1] for line in _state(thread, "status").splitlines() if line[:6] == "SigBlk")
    assert int(blocked, 16) & 1 << signal.SIGTERM - 1
    os.close(piped.read)


def _state(thread: str, name: str) -> str:
    with open(f"/proc/self/task/{thread}/{name}") as file:
        return file.read()
