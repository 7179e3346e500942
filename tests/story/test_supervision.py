"""Under a service manager: a real datagram socket hears when a process is there, how it stands, and that it leaves."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from broker.wire.message import RESPONSE, STREAMING, request, response
from tests.live.brokers import BrokerProcess, eventually, one_broker, one_config, tree, tree_config
from tests.live.gateways import GatewayProcess, config_in
from tests.live.manager import manager
from tests.live.ports import free_endpoint
from tests.live.speaker import Closed, Speaker, answers, is_request, provide

pytestmark = pytest.mark.story

AWAY = "rank 1 of 2, state join, parent rank 0 away"
JOINED = "STATUS=rank 1 of 2, state run, parent rank 0 joined"
EXTENDS = "EXTEND_TIMEOUT_USEC="
BEAT_S = 0.1
"""The watchdog's time; nobody is killed here for being late."""


def two(rundir, extra=""):
    """The configuration of a tree of two, and their sockets."""
    return tree_config(rundir, [f"ipc://{rundir}/tree-{rank}" for rank in range(2)], extra)


def leaves(notified):
    """The word that a process drains and how long that may take."""
    said = notified.wait(lambda lines: "STOPPING=1" in lines)
    assert [line.startswith(EXTENDS) for line in said] == [False, True]
    return int(said[1].removeprefix(EXTENDS)) / 1e6


# ---------------------------------------------------------------- brokers


@pytest.mark.patient
def test_ranks_come_up_in_any_order_and_tell_how_they_stand(rundir):
    """A child is ready before its parent is there: a manager must not wait for one level after the other."""
    config = two(rundir)
    with manager(rundir) as notified, contextlib.ExitStack() as stack:
        child = BrokerProcess(config, 1, f"local://{rundir}/local-1", env=notified.environ)
        stack.callback(child.kill)
        assert notified.wait_line("READY=1") == ["READY=1", f"STATUS={AWAY}"]
        with Speaker(child.uri) as speaker:  # and it means what it says
            assert speaker.ping() == 0
        parent = BrokerProcess(config, 0, f"local://{rundir}/local-0")
        stack.callback(parent.kill)
        notified.wait_line(JOINED)
        parent.kill()
        notified.wait_line(f"STATUS={AWAY}")
        parent.start()
        notified.wait_line(JOINED)
        assert child.stop() == 0
        assert leaves(notified) > 5
        notified.flush()
        assert sum("READY=1" in lines for lines in notified.heard) == 1
        assert notified.statuses[-1].startswith("rank 1 of 2, state goodbye")


def test_a_signal_ends_a_rank_that_still_looks_for_its_parent(rundir):
    child = BrokerProcess(two(rundir), 1, f"local://{rundir}/local-1")
    try:
        eventually(lambda: any("cannot join" in line or "state join" in line for line in child.lines()))
        assert child.stop() == 0
    finally:
        child.kill()


def test_rank_0_tells_of_the_tree_below_it(rundir):
    config = two(rundir)
    with manager(rundir) as notified, contextlib.ExitStack() as stack:
        root = BrokerProcess(config, 0, f"local://{rundir}/local-0", env=notified.environ)
        stack.callback(root.kill)
        assert notified.wait_line("READY=1")[1] == "STATUS=rank 0 of 2, state quorum, tree partial"
        child = BrokerProcess(config, 1, f"local://{rundir}/local-1")
        stack.callback(child.kill)
        notified.wait_line("STATUS=rank 0 of 2, state run, tree full")
        child.kill()
        notified.wait_line("STATUS=rank 0 of 2, state run, tree degraded")


def test_a_loop_that_hangs_misses_the_watchdog(rundir):
    with manager(rundir, watchdog_s=BEAT_S) as notified:
        broker = BrokerProcess(one_config(rundir), 0, f"local://{rundir}/local-0", env=notified.environ)
        try:
            broker.wait_ready()
            notified.wait_beats(3)
            broker.signal(signal.SIGSTOP)
            notified.listen(BEAT_S)
            notified.flush()  # a machine that stood still for so long has left some unheard
            assert notified.listen(4 * BEAT_S) == []
            broker.signal(signal.SIGCONT)
            notified.wait_line("WATCHDOG=1")
            assert broker.stop() == 0
        finally:
            broker.kill()


def test_wrong_configuration_is_78_and_never_ready(rundir):
    config = one_config(rundir, '[broker]\nmetrics_listen = "http://0.0.0.0:9464"\n')
    with manager(rundir) as notified:
        command = [sys.executable, "-m", "broker.cli.main", "broker", "--config", str(config)]
        done = subprocess.run(command, env=notified.environ, capture_output=True, text=True, timeout=30)
        assert done.returncode == 78
        assert "broker.toml:4: broker.metrics_listen: saw" in done.stderr
        assert notified.hear(0) is None


def test_a_log_of_json_is_json_from_the_first_line_to_the_last(rundir):
    config = one_config(rundir)
    environ = {**os.environ, "HEADGATE_LOG_FORMAT": "json"}
    broker = BrokerProcess(config, 0, f"local://{rundir}/local-0", env=environ)
    try:
        broker.wait_ready()
        assert broker.stop() == 0
        told = [json.loads(line) for line in broker.lines()]
        assert {(one["name"], one["level"]) for one in told} == {("0", "info")}
        assert "rank 0 leaves: SIGTERM" in [one["text"] for one in told]
    finally:
        broker.kill()


@pytest.fixture
def as_first_process():
    """Begin of a command line that makes its program the first process of a namespace."""
    words = ("unshare", "--pid", "--fork", "--kill-child", "--")
    try:
        tried = subprocess.run([*words, "true"], capture_output=True, timeout=20)
    except FileNotFoundError:
        pytest.skip("optional: no unshare(1)")
    if tried.returncode:
        pytest.skip(f"optional: no process namespaces: {tried.stderr.decode().strip()}")
    return words


def test_as_pid_1_it_leaves_when_told_while_it_joins(rundir, as_first_process):
    """To a first process the kernel delivers only what it handles: without handlers SIGTERM would be lost."""
    child = BrokerProcess(two(rundir), 1, f"local://{rundir}/local-1", prefix=as_first_process)
    try:
        eventually(lambda: any("state join" in line for line in child.lines()), timeout=20)
        with open(f"/proc/{child.pid}/task/{child.pid}/children") as children:
            (inner,) = map(int, children.read().split())
        with open(f"/proc/{inner}/status") as status:
            assert "NSpid:" in (text := status.read())
            assert next(line for line in text.splitlines() if line.startswith("NSpid:")).split()[-1] == "1"
        os.kill(inner, signal.SIGTERM)
        assert child.wait() == 0
        assert any("leaves: SIGTERM" in line for line in child.lines())
    finally:
        child.kill()


# ---------------------------------------------------------------- draining


def drained(rundir, seconds):
    return one_broker(rundir, f"[broker]\ndrain_s = {seconds}\n")


def asked(caller, provider, tag=7):
    """One open call; the request as the provider has it."""
    caller.tell(request("svc.do", b"", matchtag=tag))
    return provider.take(is_request)


def test_a_call_that_is_open_is_answered_before_the_end(rundir):
    with drained(rundir, 30) as broker, Speaker(broker.uri) as caller, Speaker(broker.uri) as provider:
        provide(provider, "svc")
        open_call = asked(caller, provider)
        broker.signal(signal.SIGTERM)
        eventually(lambda: any("state shutdown" in line for line in broker.lines()))
        with pytest.raises((Closed, OSError)):  # nobody new comes in
            Speaker(broker.uri)
        time.sleep(0.3)
        provider.tell(response(open_call, b"late"))
        answer = caller.take(lambda seen: seen.type == RESPONSE and seen.matchtag == 7)
        assert (answer.errnum, answer.payload) == (0, b"late")
        assert broker.wait(5) == 0


def test_what_nobody_answers_holds_it_up_no_longer_than_it_may(rundir):
    with drained(rundir, 0.3) as broker, Speaker(broker.uri) as caller, Speaker(broker.uri) as provider:
        provide(provider, "svc")
        asked(caller, provider)
        began = time.monotonic()
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
        assert 0.3 <= time.monotonic() - began < 6
        assert any("leaving with 1 calls open after 0.3 s" in line for line in broker.lines())


@pytest.mark.parametrize("how", ["drain_s = 0", "a second signal"])
def test_at_once_means_at_once(how, rundir):
    with drained(rundir, 0 if "0" in how else 60) as broker, contextlib.ExitStack() as stack:
        caller, provider = (stack.enter_context(Speaker(broker.uri)) for _ in range(2))
        provide(provider, "svc")
        asked(caller, provider)
        broker.signal(signal.SIGTERM)
        if "signal" in how:
            eventually(lambda: any("state shutdown" in line for line in broker.lines()))
            time.sleep(0.3)
            assert broker.process is not None
            assert broker.process.poll() is None
            broker.signal(signal.SIGTERM)
        assert broker.wait(5) == 0


def test_two_signals_in_one_turn_of_the_loop_are_two(rundir):
    with drained(rundir, 60) as broker, Speaker(broker.uri) as caller, Speaker(broker.uri) as provider:
        provide(provider, "svc")
        asked(caller, provider)
        broker.signal(signal.SIGSTOP)
        broker.signal(signal.SIGTERM)
        broker.signal(signal.SIGINT)
        broker.signal(signal.SIGCONT)
        assert broker.wait(5) == 0


def late_answer(running, far, told):
    """A client of rank 0 has a call open at rank ``far`` when rank ``told`` is told to leave."""
    leaving = running.ranks[told]
    with Speaker(running.ranks[0].uri) as caller, Speaker(running.ranks[far].uri) as provider:
        provide(provider, "svc")
        asking = request("svc.do", b"", matchtag=7, nodeid=far)
        caller.tell(asking)
        open_call = provider.take(is_request)
        leaving.signal(signal.SIGTERM)
        eventually(lambda: any("state shutdown" in line for line in leaving.lines()))
        time.sleep(0.2)
        provider.tell(response(open_call, b"late"))
        assert caller.take(lambda seen: answers(seen, asking)).payload == b"late"
    assert leaving.wait() == 0


@pytest.mark.patient
def test_a_call_through_the_tree_is_answered_before_a_child_or_the_root_leaves(rundir):
    with tree(rundir, 3, "[broker]\ndrain_s = 30\n") as running:
        late_answer(running, far=2, told=2)
        late_answer(running, far=1, told=0)
        assert running.ranks[1].wait() == 0  # it followed rank 0


@pytest.mark.patient
def test_flux_shutdown_ends_the_instance_from_the_leaves_up_and_tells_what_happens(rundir):
    asking = request("shutdown.start", b'{"loglevel": 6}\0', flags=STREAMING, matchtag=7)
    with (
        tree(rundir, 3) as running,
        Speaker(running.ranks[0].uri) as caller,
        Speaker(running.ranks[0].uri) as late,
    ):
        caller.tell(asking)
        told = []
        while not (answer := caller.take(lambda seen: answers(seen, asking))).errnum:
            told.append(json.loads(answer.payload.rstrip(b"\0"))["log"])
        assert answer.errnum == errno.ENODATA
        assert [rank.wait() for rank in running.ranks] == [0, 0, 0]
        assert late.ended()
    gone = [told.index(f"broker.info[0]: rank {rank} said goodbye\n") for rank in (1, 2)]
    (end,) = [at for at, line in enumerate(told) if "state finalize" in line]
    assert max(gone) < end
    assert "broker.info[0]: rank 0 leaves: shutdown by userid" in "".join(told)


# ---------------------------------------------------------------- the others


@pytest.mark.patient
@pytest.mark.parametrize("workers", [1, 2])
def test_a_gateway_is_ready_once_whatever_workers_it_has(workers, rundir, broker):
    config = config_in(rundir, broker.uri, f"workers = {workers}\n")
    with manager(rundir, watchdog_s=BEAT_S) as notified:
        running = GatewayProcess(config, env={**notified.environ, "WATCHDOG_PID": ""})
        try:
            running.wait_ready()
            notified.wait_line("READY=1")
            notified.wait_beats(3)
            running.signal(signal.SIGHUP)
            notified.wait_line("WATCHDOG=1")
            running.signal(signal.SIGTERM)
            # heard at once: what finds the queue full of beats is not said again
            assert leaves(notified) >= 5
            assert running.process.wait(20) == 0
            notified.flush()
            assert sum("READY=1" in lines for lines in notified.heard) == 1
            assert sum("STOPPING=1" in lines for lines in notified.heard) == 1
        finally:
            running.kill()


@pytest.mark.patient
def test_the_wings_beat_too(rundir):
    words = {
        "nfp": ["nfp", "broker", "--no-flux", "-q", "--set", f"nfp.endpoint={free_endpoint()}"],
        "oslo": ["oslo", "proxy", "-q", "--set", f"oslo.ipc_dir={rundir}/ipc", "--set", 'oslo.host=""'],
    }
    words["nfp"] += ["--set", f"nfp.base_dir={rundir}/nfp"]
    for name, arguments in words.items():
        folder = rundir / name[:1]
        folder.mkdir()
        with manager(folder, watchdog_s=BEAT_S) as notified:
            command = [sys.executable, "-m", "broker.cli.main", *arguments]
            with subprocess.Popen(command, env=notified.environ, stderr=subprocess.DEVNULL) as process:
                try:
                    notified.wait_line("READY=1")
                    notified.wait_beats(3)
                    process.terminate()
                    notified.wait_line("STOPPING=1")
                    assert process.wait(20) == 0
                finally:
                    process.kill()
