"""What a process says to its service manager, heard at a real socket."""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from importlib import import_module

import pytest

from broker import supervision
from broker.settings import Settings
from broker.settings.nfp import NfpSection
from gateway.settings import GatewaySettings
from tests.live.own_log import own_log
from tests.tables import for_each

pytestmark = pytest.mark.interpreter


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


@for_each("usec", ["", "0", "-5", "soon", "1.5", "²"])
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
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")  # its lines go on as they are
    given = supervision.environ_of_child(MORE="1")
    supervision.disown()
    assert given == {**os.environ, "MORE": "1"}
    assert os.environ["JOURNAL_STREAM"] == "8:1"
    supervision.notify("READY=1")
    assert heard() == ""
    assert supervision.watchdog_s() is None
    supervision.disown()


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


def test_the_first_signal_has_it_leave_and_further_ones_end_it_at_once():
    async def main():
        said = []
        told = supervision.on_signals(asyncio.get_running_loop(), said.append, lambda: said.append("at once"))
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.02)
        assert said == ["SIGINT", "at once"]
        assert told == ["SIGINT", "SIGTERM"]

    asyncio.run(main())


LATE = """
import asyncio, os, signal, sys
from broker import supervision
from broker.tasks import run_to_end
async def main():
    supervision.on_signals(asyncio.get_running_loop(), lambda name: None, lambda: None)
    return 7
code = run_to_end(main())
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(code)
"""


def test_a_signal_that_comes_once_the_loop_is_closed_changes_nothing_about_the_end():
    assert subprocess.run([sys.executable, "-c", LATE], check=False).returncode == 7


def test_a_process_that_is_about_to_begin_anew_ends_by_a_signal_that_comes_then():
    code = LATE.replace("main())\nos", "main(), again=7)\nos")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGTERM


LATE_NFP = """
import asyncio, os, signal, sys
from broker import supervision
async def serve(*_, **__):
    supervision.on_signals(asyncio.get_running_loop(), lambda name: None, lambda: None)
    return "stop"
{run}
os.kill(os.getpid(), signal.SIGTERM)
sys.exit(code + 7)
"""


@pytest.mark.parametrize(
    "run",
    [
        """
from broker.nfp.server import process
from broker.settings.nfp import NfpSection
process.serve = serve
code = process.run(NfpSection())
""",
        """
from broker.cli.nfp import worker
from broker.nfp.worker import Worker
worker._serve, worker.find = serve, lambda where: Worker("lab", name="w", store=False)
code = worker.main(["lab.py", "--quiet"])
""",
    ],
    ids=["broker", "worker"],
)
def test_the_same_of_processes_of_nfp(run):
    done = subprocess.run([sys.executable, "-c", LATE_NFP.format(run=run)], check=False)
    assert done.returncode == 7
