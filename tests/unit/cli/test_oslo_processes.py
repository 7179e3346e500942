"""Proxies as processes: all rooms in one, one for each, a child that is watched; what ``status`` says of them."""

import asyncio
import contextlib
import errno
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

import pytest
import zmq

from broker import interpreter
from broker.children import supervisor
from broker.cli import exits
from broker.cli.main import main
from broker.cli.oslo import children
from broker.cli.oslo.children import Children, orders
from broker.errors import ConfigError, HeadgateError
from broker.oslo.contract import Settings
from broker.oslo.service import asking
from broker.settings import OsloSection
from broker.transport import curve
from tests.live.verbs import headgate
from tests.unit.cli.test_imports import FORBIDDEN, loaded

ANY = {f"{room}_port": 0 for room in ("directory", "call", "fanout", "notify", "cast")}
ROOMS = tuple(room.removesuffix("_port") for room in ANY)
PORTS = [word for room in ANY for word in (f"--{room.replace('_', '-')}", "0")]
PATIENCE_S = 40


@contextlib.contextmanager
def proxy(rundir, *words, log="proxy.log"):
    """``headgate oslo proxy`` with free ports; gives the process and what it printed."""
    argv = [sys.executable, "-X", "importtime", "-m", "broker.cli.main", "oslo", "proxy", *PORTS]
    log = rundir / log
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*argv, "--ipc-dir", str(rundir / "ipc"), "--node", "n7", *words],
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        said = []
        for line in process.stdout:
            said.append(line.decode().rstrip())
            if said[-1] == "Ctrl-C ends it":
                break
        else:
            raise AssertionError(log.read_text()[-2000:])
        yield process, said
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def proxies(rundir, *words):
    """One for each room, as ``headgate-oslo-room@ROOM`` runs them; gives the processes by room."""
    with contextlib.ExitStack() as stack:
        yield {
            room: stack.enter_context(proxy(rundir, "--run", room, *words, log=f"{room}.log"))[0]
            for room in ROOMS
        }


def eventually(look, wanted=True):
    end = time.monotonic() + PATIENCE_S
    while (seen := look()) != wanted:
        assert time.monotonic() < end, seen
        time.sleep(0.02)


def status(rundir, capsys, *words):
    code = main(["oslo", "status", "--ipc-dir", str(rundir / "ipc"), *words])
    return code, capsys.readouterr()


# ---------------------------------------------------------------- one process


@pytest.mark.patient
def test_a_proxy_says_where_it_is_and_what_it_counts(rundir, capsys):
    with proxy(rundir) as (process, said):
        assert said[0] == f"oslo.messaging proxy n7 in {rundir}/ipc"
        found = re.fullmatch(
            r"  tcp://127\.0\.0\.1: directory \d+, call (\d+), fanout \d+, notify \d+, cast \d+ \(plaintext\)",
            said[1],
        )
        assert found is not None, said
        assert said[2] == f"  transport_url = zmq:///?rpc_zmq_ipc_dir={str(rundir).replace('/', '%2F')}%2Fipc"
        eventually(lambda: len(asking.states(Settings(ipc_dir=f"{rundir}/ipc")) or ()), 4)
        code, told = status(rundir, capsys, "--json")
        assert code == exits.OK, told.err
        seen = json.loads(told.out)
        assert set(seen["rooms"]) == {"directory", "call", "fanout", "notify", "cast"}
        assert seen["silent"] == []
        places = {(row["node"], row["pipeline"]): row["endpoint"] for row in seen["nodes"]}
        assert places["n7", "call"] == f"tcp://127.0.0.1:{found[1]}"
        code, told = status(rundir, capsys)
        assert code == exits.OK
        for words in (
            "5 of 5 rooms answer",
            "ROUTER",
            "XSUB",
            "XPUB",
            "SUB",
            "PULL",
            f"tcp://127.0.0.1:{found[1]}",
        ):
            assert words in told.out
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert not loaded((rundir / "proxy.log").read_text()) & FORBIDDEN


@pytest.mark.patient
def test_rooms_that_do_not_answer_are_said_so(rundir, capsys):
    with proxy(rundir, "--run", "call,directory") as (process, said):
        assert "fanout" not in said[1]
        process.send_signal(signal.SIGSTOP)
        code, told = status(rundir, capsys, "--timeout", "0.2")
        assert code == exits.FAILED
        assert "no answer from directory, call" in told.err
        assert "0 of 2 rooms answer" in told.out
        code, told = status(rundir, capsys, "--timeout", "0.2", "--json")
        assert json.loads(told.out)["silent"] == ["directory", "call"]
        process.send_signal(signal.SIGCONT)
        eventually(lambda: status(rundir, capsys)[0], exits.OK)


def test_a_folder_has_one_proxy_which_answers_a_probe(rundir, capsys):
    file = rundir / "oslo.toml"
    file.write_text(f'[oslo]\nipc_dir = "{rundir}/ipc"\nhost = ""\n')
    assert main(["health", "--oslo", str(file), "--timeout", "0.5"]) == exits.NO_CONNECTION
    capsys.readouterr()
    with proxy(rundir):
        assert main(["health", "--oslo", str(file)]) == exits.OK
        assert "call" in capsys.readouterr().out
        second = headgate("oslo", "proxy", *PORTS, "--ipc-dir", rundir / "ipc")
        assert second.returncode == exits.TEMPFAIL, second.stderr
        assert "headgate oslo: " in second.stderr
        assert "Traceback" not in second.stderr


def test_answers_of_others_are_none(rundir, capsys):
    folder = rundir / "ipc"
    folder.mkdir()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        sock.linger = 0
        sock.bind(f"ipc://{folder}/call.ctl")
        began = time.monotonic()
        assert asking.statuses(str(folder), 0.3) == {"call": None}
        assert time.monotonic() - began >= 0.3
        identity, *_ = sock.recv_multipart()
        assert len(identity) == 5
        assert asking._status([b"x", b"{}"], b"0" * 16) is None
        assert asking.states(Settings(ipc_dir=str(folder)), 0.2) is None


@pytest.mark.patient
def test_a_directory_elsewhere_is_asked_with_curve(rundir, capsys):
    for name in ("nodes", "stranger"):
        curve.save(curve.generate(), rundir / name)
    own = curve.load(rundir / "nodes").public_key
    text = f"curve_cert = 'nodes'\nunlisted = 'deny'\nipc_group = '{os.getgid()}'\n"
    (rundir / "oslo.toml").write_text(f"[oslo]\n{text}[[oslo.keys]]\nkey = '{own}'\n")
    with proxy(rundir, "--config", str(rundir / "oslo.toml")) as (_process, said):
        assert said[1].endswith("(CURVE)")
        port = re.search(r"directory (\d+)", said[1])[1]
        far = {"ipc_dir": f"{rundir}/none", "directories": (f"tcp://127.0.0.1:{port}",)}
        ours = Settings(**far, curve_cert=str(rundir / "nodes"))
        eventually(lambda: {state.key for state in asking.states(ours) or ()}, {own})
        stranger = Settings(**far, curve_cert=str(rundir / "stranger"), directory_key=own)
        assert asking.states(stranger, 0.5) is None
        assert asking.states(Settings(**far), 0.5) is None
        assert oct(os.stat(rundir / "ipc").st_mode & 0o777) == "0o750"


# ---------------------------------------------------------------- a process for each room


@pytest.mark.patient
def test_each_room_in_a_process_of_its_own(rundir, capsys):
    with proxies(rundir) as running:
        os.kill(running["call"].pid, signal.SIGSTOP)
        code, told = status(rundir, capsys, "--timeout", "1.5")
        assert code == exits.FAILED
        assert "no answer from call" in told.err
        os.kill(running["call"].pid, signal.SIGKILL)
        running["call"].wait()
        with proxy(rundir, "--run", "call", log="again.log"):
            eventually(lambda: status(rundir, capsys)[0], exits.OK)
        for room in reversed(ROOMS):
            running[room].send_signal(signal.SIGINT)
            assert running[room].wait(PATIENCE_S) == (0 if room != "call" else -signal.SIGKILL)
            assert not loaded((rundir / f"{room}.log").read_text()) & FORBIDDEN


# ---------------------------------------------------------------- children


def run(work):
    async def bounded():
        async with asyncio.timeout(40):
            await work()

    asyncio.run(bounded())


def made(rundir, **settings):
    return OsloSection(ipc_dir=f"{rundir}/ipc", node="n7", **{**ANY, **settings})


def test_a_child_that_cannot_start_says_why(rundir, capfd):
    async def work():
        (rundir / "ipc").write_text("no folder")
        kept = Children(orders(made(rundir)))
        with pytest.raises(ConfigError, match="the process for proxy ended with code 78 before it was ready"):
            await kept.start()
        assert all(child.pid == 0 for child in kept.children.values())

    run(work)
    assert f"{rundir}/ipc" in capfd.readouterr().err


@pytest.mark.patient
def test_a_bridge_without_its_broker_takes_the_proxy_with_it(rundir, capfd):
    async def work():
        kept = Children(orders(made(rundir), f"local://{rundir}/none"))
        with pytest.raises(HeadgateError, match="the process for bridge ended with code 1"):
            await kept.start()
        assert all(child.pid == 0 for child in kept.children.values())

    run(work)
    assert f"headgate oslo bridge: cannot connect to local://{rundir}/none" in capfd.readouterr().err
    assert asking.statuses(f"{rundir}/ipc", 0.2) == {}


def test_a_child_ends_with_its_parent(rundir):
    code = (
        "import asyncio, sys; from broker.cli.oslo.children import Children, orders;"
        "from broker.settings import OsloSection\n"
        "async def work():\n"
        "    kept = Children(orders(OsloSection(ipc_dir=sys.argv[1], host='', run=('directory',))))\n"
        "    await kept.start(); print(kept.children['oslo proxy'].pid, flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(work())"
    )
    with subprocess.Popen([sys.executable, "-c", code, f"{rundir}/ipc"], stdout=subprocess.PIPE) as parent:
        try:
            ended = os.pidfd_open(int(parent.stdout.readline()))
        finally:
            parent.kill()
        try:
            assert select.select([ended], [], [], PATIENCE_S)[0]
        finally:
            os.close(ended)


def stands_in(monkeypatch, code):
    """A program of that code in place of ours."""
    monkeypatch.setattr(interpreter, "command", lambda module: [sys.executable, "-S", "-c", code])


def test_a_child_that_cannot_even_be_made(rundir, monkeypatch):
    def fails(*words, **options):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    async def work():
        kept = Children(orders(made(rundir)))
        with pytest.raises(HeadgateError, match=r"proxy cannot be started: .*Resource temporarily"):
            await kept.start()

    monkeypatch.setattr(subprocess, "Popen", fails)
    run(work)


def test_a_child_that_is_never_ready(rundir, monkeypatch):
    monkeypatch.setattr(children, "READY_S", 0.2)
    stands_in(monkeypatch, "import time; time.sleep(60)")

    async def work():
        kept = Children(orders(made(rundir)))
        with pytest.raises(TimeoutError, match=r"oslo proxy not ready within 0\.2 s"):
            await kept.start()

    run(work)


SAYS = """
import os, signal, socket, sys, time
def say(*lines):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendto("\\n".join(lines).encode(), os.environ["NOTIFY_SOCKET"])
"""


def test_a_child_that_does_not_leave_is_killed(rundir, monkeypatch):
    monkeypatch.setattr(children, "LEAVE_S", 0.2)
    monkeypatch.setattr(supervisor, "HURRY_S", 0.2)
    said = f"""say('{children.ENDPOINTS}={{"call":"tcp://x:1"}}', "READY=1")"""
    stands_in(monkeypatch, f"{SAYS}signal.signal(15, signal.SIG_IGN); {said}; time.sleep(60)")

    async def work():
        kept = Children(orders(made(rundir)))
        await kept.start()
        assert kept.endpoints == {"call": "tcp://x:1"}
        (pid,) = [child.pid for child in kept.children.values()]
        await kept.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await kept.stop()

    run(work)


def test_a_wrong_configuration_that_a_child_finds_later_is_final_and_told(rundir, monkeypatch, caplog):
    """What it is started with has become wrong: the first process was ready, and was killed."""
    first = rundir / "first"
    code = f"{SAYS}first = not os.path.exists({str(first)!r}); open({str(first)!r}, 'w').close()\n"
    stands_in(monkeypatch, f"{code}if first: say('READY=1'); time.sleep(60)\nsys.exit(78)")

    async def work():
        kept = Children(orders(made(rundir)))
        await kept.start()
        failing = asyncio.get_running_loop().create_task(kept.failed())
        (child,) = kept.children.values()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(
            ConfigError, match="the process for proxy ended with code 78, is not started again"
        ):
            await failing
        assert child.restarts == 1
        await kept.stop()

    run(work)
    assert "oslo proxy: ended with signal 9 (SIGKILL), is started again in 0.1 s" in caplog.text
    assert "oslo proxy: ended with code 78 2 times in a row, is not started again" in caplog.text


def test_what_has_changed_while_a_child_was_starting_is_told_once_it_is_ready(rundir, monkeypatch):
    """Its order is in its input; SIGHUP tells it to read that again, which it could not before it was ready."""
    code = f"{SAYS}signal.signal(1, lambda *_: say('STATUS=' + os.pread(0, 9999, 0).decode()))\n"
    code += f"open({str(rundir / 'begun')!r}, 'w').close()\n"
    code += f"while not os.path.exists({str(rundir / 'go')!r}): time.sleep(0.01)\n"
    stands_in(monkeypatch, f"{code}say('READY=1')\nwhile True: signal.pause()")

    async def work():
        kept = Children(orders(made(rundir)))
        (child,) = kept.children.values()
        heard = []
        monkeypatch.setattr(child, "hear", lambda line: (heard.append(line), type(child).hear(child, line)))
        starting = asyncio.get_running_loop().create_task(kept.start())
        while not (rundir / "begun").exists():
            await asyncio.sleep(0.01)
        kept.renew(made(rundir, lease_s=7.0))
        await asyncio.sleep(0.05)
        assert heard == []
        (rundir / "go").touch()
        await starting
        while len(heard) < 2:
            await asyncio.sleep(0.01)
        assert '"lease_s":7.0' in heard[1]
        await kept.stop()

    run(work)
