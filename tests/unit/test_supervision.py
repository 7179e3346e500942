"""What a process says to its service manager, heard at a real socket, and the three forms of its log."""

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from importlib import import_module

import pytest

from broker import supervision
from broker.flood import LINE_CHARS, LINES_PER_S, TRACE_CHARS
from broker.settings import Settings
from broker.settings.nfp import NfpSection
from gateway.settings import GatewaySettings
from tests.live.own_log import own_log


@pytest.fixture
def heard(rundir, monkeypatch):
    """A manager's socket; call it for the next datagram, "" when there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(rundir / "n"))
        sock.settimeout(0.05)
        monkeypatch.setenv("NOTIFY_SOCKET", str(rundir / "n"))

        def next_one():
            try:
                return sock.recv(4096).decode()
            except TimeoutError:
                return ""

        yield next_one


@pytest.fixture
def watchdog(monkeypatch):
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)

    def set_to(usec=None, pid=None):
        for name, value in (("WATCHDOG_USEC", usec), ("WATCHDOG_PID", pid)):
            if value is not None:
                monkeypatch.setenv(name, str(value))

    return set_to


# ---------------------------------------------------------------- the service manager


def test_lines_go_in_one_datagram(heard):
    supervision.notify("READY=1", "STATUS=here")
    supervision.notify("WATCHDOG=1")
    assert heard() == "READY=1\nSTATUS=here"
    assert heard() == "WATCHDOG=1"
    supervision.notify()
    assert heard() == ""


def test_an_abstract_socket_is_found(monkeypatch):
    name = f"headgate-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + name)
        sock.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        supervision.notify("READY=1")
        assert sock.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nowhere/at/all", "vsock:2:1234", "x" * 200, "a\0b"])
def test_a_manager_that_is_not_there_costs_nothing(address, monkeypatch):
    if "\0" in address:
        monkeypatch.setattr(os, "environ", {"NOTIFY_SOCKET": address})
    else:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    supervision.notify("READY=1")


def test_a_manager_that_does_not_read_is_not_waited_for(heard):
    for number in range(5000):  # far more than a socket queues
        supervision.notify(f"STATUS={number}")
    assert heard() == "STATUS=0"


def test_what_must_not_get_lost_is_said_again_while_the_queue_is_full(heard, watchdog):
    timers = []

    def call_later(seconds, function, *arguments):
        timers.append((seconds, function, arguments))

    while supervision.notify("STATUS=busy"):
        pass
    supervision.announce(call_later, "READY=1", "STATUS=here")
    watchdog(usec=4_000_000)
    supervision.watch(call_later)
    assert [seconds for seconds, *_ in timers] == [supervision.RETRY_S] * 2
    while heard() == "STATUS=busy":
        pass
    for _seconds, function, arguments in timers[:]:
        function(*arguments)
    assert heard() == "READY=1\nSTATUS=here"
    assert heard() == "WATCHDOG=1"
    assert [seconds for seconds, *_ in timers[2:]] == [2.0]


def test_half_of_the_watchdogs_time(watchdog):
    assert supervision.watchdog_s() is None
    watchdog(usec=30_000_000)
    assert supervision.watchdog_s() == 15.0
    watchdog(pid=os.getpid())
    assert supervision.watchdog_s() == 15.0
    watchdog(pid=os.getpid() + 1)
    assert supervision.watchdog_s() is None


@pytest.mark.parametrize("usec", ["", "0", "-5", "soon", "1.5", "²"])
def test_a_watchdog_without_a_time_is_none(usec, watchdog):
    watchdog(usec=usec)
    assert supervision.watchdog_s() is None


def test_the_watchdog_is_told_at_every_turn_of_the_timer(heard, watchdog):
    watchdog(usec=4_000_000)
    timers = []

    def call_later(seconds, function, *arguments):
        timers.append((seconds, function, arguments))

    supervision.watch(call_later)
    assert heard() == "WATCHDOG=1"
    for _ in range(3):
        seconds, function, arguments = timers.pop()
        assert (seconds, timers) == (2.0, [])
        assert heard() == ""
        function(*arguments)
        assert heard() == "WATCHDOG=1"


def test_no_watchdog_no_timer(heard, watchdog):
    watchdog()
    supervision.watch(lambda *_: pytest.fail("nobody waits"))
    assert heard() == ""


def test_leaving_asks_for_time(heard):
    supervision.leaving(12.5)
    assert heard().splitlines() == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=12500000"]


def test_a_disowned_child_does_not_speak(heard, watchdog, monkeypatch):
    watchdog(usec=1000, pid=os.getpid())
    monkeypatch.setattr(os, "environ", dict(os.environ))
    supervision.disown()
    supervision.notify("READY=1")
    assert heard() == ""
    assert supervision.watchdog_s() is None
    supervision.disown()


# ---------------------------------------------------------------- the log


def lines_of(write, capsys, name="3", level="info"):
    with own_log("headgate.test_supervision") as log:
        supervision.send_to_stderr(log, name, level)
        write(log)
    return capsys.readouterr().err.splitlines()


def fail(log):
    try:
        raise ValueError("for\nexample")
    except ValueError:
        log.exception("it failed: %s", "once")


def test_plain_lines_have_time_name_and_level(capsys, monkeypatch):
    monkeypatch.delenv("HEADGATE_LOG_FORMAT", raising=False)
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)

    def write(log):
        log.debug("not this")
        log.warning("%d things", 2)

    (line,) = lines_of(write, capsys)
    time, _, rest = line.partition(" ")
    assert rest == "headgate[3] WARNING 2 things"
    assert len(time) == len("2026-01-31T12:00:00.000")


def test_json_lines_hold_everything_on_one_line(capsys, monkeypatch):
    monkeypatch.setenv("HEADGATE_LOG_FORMAT", "JSON")

    def write(log):
        log.info("two\nlines, ä and %s", '"quoted"')
        fail(log)

    first, second = map(json.loads, lines_of(write, capsys))
    assert (first["level"], first["name"], first["text"]) == ("info", "3", 'two\nlines, ä and "quoted"')
    assert first["time"].endswith("+00:00")
    assert "trace" not in first
    assert (second["level"], second["text"]) == ("error", "it failed: once")
    assert second["trace"].splitlines()[-1] == "example"


def test_what_asyncio_reports_has_the_same_form(capsys, monkeypatch):
    monkeypatch.setenv("HEADGATE_LOG_FORMAT", "json")
    (line,) = lines_of(lambda _log: fail(logging.getLogger("asyncio")), capsys)
    assert json.loads(line)["text"] == "it failed: once"


def test_libraries_flood_the_log_no_more_than_we_do(capsys, monkeypatch):
    monkeypatch.setenv("HEADGATE_LOG_FORMAT", "json")

    error = (ValueError, ValueError("x" * 100_000), None)

    def write(log):
        for number in range(200):
            for name in (log.name, "asyncio", "aiohttp.server", "aiohttp.access"):
                text, args = (
                    (f"{number}" + "y" * 100_000, ()) if "access" in name else ("%d failed", (number,))
                )
                record = logging.LogRecord(name, logging.ERROR, name, 1, text, args, error)
                record.created = 100.0
                logging.getLogger(name).handle(record)

    lines = [json.loads(line) for line in lines_of(write, capsys)]
    assert len(lines) == 2 * LINES_PER_S, "of a template and of a place in the code, whoever logs"
    assert all(len(line["text"]) <= LINE_CHARS for line in lines)
    assert all(len(line.get("trace", "")) <= TRACE_CHARS for line in lines)


def test_the_next_process_to_be_gets_handlers_of_its_own(capsys):
    """A process that was forked from one with a log sets up its own: no line comes twice."""

    def write(log):
        supervision.send_to_stderr(log, "4", "info")
        log.warning("once")
        logging.getLogger("asyncio").warning("once")

    assert [line.partition(" ")[2] for line in lines_of(write, capsys)] == ["headgate[4] WARNING once"] * 2


def test_the_journal_gets_a_level_in_front_of_every_line_and_no_time(capsys, monkeypatch):
    monkeypatch.delenv("HEADGATE_LOG_FORMAT", raising=False)
    monkeypatch.setattr(supervision, "_is_journal", lambda: True)
    lines = lines_of(fail, capsys, name="90%")
    assert lines[0] == "<3>headgate[90%] ERROR it failed: once"
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)


@pytest.mark.parametrize(
    ("level", "severity"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (25, 6), (logging.WARNING, 4), (logging.ERROR, 3), (60, 2)],
)
def test_levels_become_those_of_syslog(level, severity, monkeypatch):
    monkeypatch.setattr(supervision, "_is_journal", lambda: True)
    record = logging.LogRecord("headgate", level, __file__, 1, "", (), None)
    assert supervision.formatter("x").format(record).startswith(f"<{severity}>headgate[x]")


def test_stderr_is_the_journal_when_device_and_inode_say_so(tmp_path, monkeypatch):
    with open(tmp_path / "stream", "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        seen = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{seen.st_dev}:{seen.st_ino}")
        assert supervision._is_journal()
        monkeypatch.setenv("JOURNAL_STREAM", f"{seen.st_dev}:{seen.st_ino + 1}")
        assert not supervision._is_journal()
        monkeypatch.delenv("JOURNAL_STREAM")
        assert not supervision._is_journal()
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    assert not supervision._is_journal()  # it is closed


# ---------------------------------------------------------------- descriptors


@pytest.fixture
def few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_all_descriptors_are_asked_for(few_descriptors):
    for _ in range(2):
        supervision.raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (few_descriptors, few_descriptors)


def test_the_table_of_descriptors_does_not_have_to_grow_among_threads():
    supervision.raise_descriptor_limit()
    with open("/proc/self/status") as status:
        size = next(int(line.split()[1]) for line in status if line.startswith("FDSize:"))
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert size >= min(supervision.TABLE_FDS, hard)
    assert max(map(int, os.listdir("/proc/self/fd"))) < supervision.TABLE_FDS - 1, (
        "the one that was asked for is free"
    )


def test_a_process_that_may_not_have_more_goes_on(monkeypatch):
    def refused(_what, _limits):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _what: (10, 20))
    monkeypatch.setattr(resource, "setrlimit", refused)
    supervision.raise_descriptor_limit()


class Asked(Exception):
    """The limit was asked for."""


@pytest.mark.parametrize("name", ["broker.node.bootstrap", "gateway.process", "broker.nfp.server.process"])
def test_every_server_asks_before_it_begins(monkeypatch, name):
    def asked():
        raise Asked

    process = import_module(name)
    monkeypatch.setattr(supervision, "raise_descriptor_limit", asked)
    settings = {
        "broker.node.bootstrap": Settings.defaults,
        "gateway.process": GatewaySettings.defaults,
        "broker.nfp.server.process": NfpSection,
    }
    with own_log(), pytest.raises(Asked):
        process.run(settings[name]())


def test_pauses_grow_to_a_limit_and_begin_anew():
    pauses = supervision.Pauses(0.5, 3.0, lasted_s=10.0)
    assert [pauses.after(1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert pauses.ends == 5
    assert pauses.after(11.0) == 0.5
    assert (pauses.after(10.0), pauses.ends) == (1.0, 2)
    for _ in range(2000):
        assert pauses.after(0.0) <= 3.0


def test_the_first_signal_has_it_leave_and_further_ones_end_it_at_once():
    async def main():
        said = []
        loop = asyncio.get_running_loop()
        with supervision.signals(loop, said.append, lambda: said.append("at once")) as told:
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
                await asyncio.sleep(0.02)
        assert said == ["SIGINT", "at once"]
        assert told == ["SIGINT", "SIGTERM"]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    asyncio.run(main())


def test_a_child_is_waited_for_also_when_it_has_ended_already():
    process = subprocess.Popen(["/bin/sh", "-c", "exit 7"], stdout=subprocess.PIPE)
    assert process.stdout.read() == b""

    async def main():
        assert await supervision.exit_code(asyncio.get_running_loop(), process) == 7

    with process:
        asyncio.run(main())


def test_a_child_whose_end_nobody_would_notice_is_not_kept(monkeypatch):
    def fails(pid):
        raise OSError("no descriptor")

    async def main():
        with pytest.raises(OSError, match="no descriptor"):
            await supervision.exit_code(asyncio.get_running_loop(), process)
        assert process.returncode == -signal.SIGKILL

    process = subprocess.Popen(["/bin/sleep", "60"])
    monkeypatch.setattr(os, "pidfd_open", fails)
    asyncio.run(main())
