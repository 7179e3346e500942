"""A node's proxy is started again under load: nothing is lost, nothing comes twice, calls in flight are answered."""

import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.identity import Role
from broker.transport import curve
from tests.live.oslo import Proxy, nodes, until
from tests.live.oslo_numbered import KINDS, Numbered
from tests.live.redis_server import redis_server

pytestmark = [pytest.mark.patient, pytest.mark.timeout(180)]

RATE = 1000.0
HOWS = {"restart": signal.SIGTERM, "kill": signal.SIGKILL}


def some(all_of_them: Sequence[Any], *now: Any) -> list[Any]:
    """Those of ``now``; the others, each of which these show by halves, are left to the long run."""
    rest = (each for each in all_of_them if each not in now)
    marked = (
        pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.slow) for each in rest
    )
    return [*now, *marked]


def start_again(proxy: Proxy, number: int) -> None:
    """End the proxy by that signal and start another one."""
    if number == signal.SIGKILL:
        proxy.kill()
    else:
        assert proxy.stop() == 0
    proxy.start()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOWS)
def test_nothing_is_lost_or_doubled(rundir: Path, how: str, kind: str) -> None:
    """What the next one shows of all kinds together, at four times the rate."""
    with nodes(rundir, 1) as (node,), Numbered(node.folder, servers=2) as numbered:
        count = numbered.send(kind, rate=RATE, seconds=3)
        time.sleep(1)
        start_again(node, HOWS[how])
        arrived = numbered.arrived(kind, count, copies=2 if kind == "fanout" else 1)
        assert (arrived.lost, arrived.doubled) == ([], []), arrived.counts
        assert arrived.counts["repeated"] > 0, "nothing was at risk"
        if kind == "call":
            assert Counter(what for what, _when in numbered.answers().values()) == {"ok": count}


@pytest.mark.parametrize("how", HOWS)
def test_all_kinds_at_once_twice(rundir: Path, how: str) -> None:
    with nodes(rundir, 1) as (node,), Numbered(node.folder, servers=2) as numbered:
        count = numbered.send(*KINDS, rate=RATE / 4, seconds=4)
        for _ in range(2):
            time.sleep(1)
            start_again(node, HOWS[how])
        for kind in KINDS:
            arrived = numbered.arrived(kind, count, copies=2 if kind == "fanout" else 1)
            assert (kind, arrived.lost, arrived.doubled) == (kind, [], []), arrived.counts
            assert arrived.counts["repeated"] > 0, f"no {kind} was at risk"
        assert Counter(what for what, _when in numbered.answers().values()) == {"ok": count}


@pytest.mark.parametrize("kind", some(["cast", "fanout", "notify"], "cast"))
def test_a_proxy_that_ends_before_it_has_read_anything(rundir: Path, kind: str) -> None:
    """It waits for the servers, which stand still; all that has come meanwhile is in its sockets."""
    with nodes(rundir, 1) as (node,), Numbered(node.folder) as numbered:
        count = numbered.send(kind, rate=RATE / 4, seconds=5)
        time.sleep(0.5)
        for signal_number in (signal.SIGSTOP, signal.SIGCONT):
            for server in numbered.servers:
                server.process.send_signal(signal_number)
            start_again(node, signal.SIGTERM)
            time.sleep(2.0)
        arrived = numbered.arrived(kind, count)
        assert (arrived.lost, arrived.doubled) == ([], []), arrived.counts


@pytest.mark.parametrize(
    ("how", "monitor_s"),
    some([(how, monitor_s) for how in HOWS for monitor_s in (None, 1.0)], ("restart", None), ("kill", 1.0)),
)
def test_calls_in_flight_are_answered_through_the_next_proxy(
    rundir: Path, how: str, monitor_s: float | None
) -> None:
    """Each is answered soon after its server has, wherever that one found the proxy: no timeout is waited for."""
    with nodes(rundir, 1) as (node,), Numbered(node.folder) as numbered:
        count = numbered.send("call", rate=50, seconds=2, work_s=3.0, timeout_s=20, monitor_s=monitor_s)
        until(lambda: numbered.taken("call") == count, 20, "all calls to have begun")
        start_again(node, HOWS[how])
        arrived = numbered.arrived("call", count)
        answers, served = numbered.answers(), numbered.answered()
        assert Counter(what for what, _when in answers.values()) == {"ok": count}, numbered.failures()
        assert (arrived.lost, arrived.doubled) == ([], [])
        longest_s = max(when - served[number] for number, (_what, when) in answers.items())
        assert longest_s < 5.0


@pytest.mark.parametrize(
    ("away", "kind"),
    some([(away, kind) for away in (False, True) for kind in KINDS], (False, "call"), (True, "cast")),
)
def test_a_pipeline_in_a_process_of_its_own(rundir: Path, kind: str, away: bool) -> None:
    """One of them is started again; the directory's goes on, or is dead and stays so."""
    with nodes(rundir, 1, run=["directory"]) as (directory,):
        common = {"host": directory.host, "node": directory.host, "ipc_dir": str(directory.folder)}
        pipelines = {name: Proxy(rundir / f"{name}-log", run=[name], **common) for name in KINDS}
        try:
            with Numbered(directory.folder) as numbered:
                count = numbered.send(kind, rate=RATE, seconds=3)
                if away:
                    directory.kill()
                time.sleep(1)
                start_again(pipelines[kind], signal.SIGTERM)
                arrived = numbered.arrived(kind, count)
                assert (arrived.lost, arrived.doubled) == ([], []), arrived.counts
        finally:
            for proxy in pipelines.values():
                proxy.kill()


def test_nodes_that_know_each_other_by_redis(rundir: Path) -> None:
    with (
        redis_server(rundir) as (_redis, port),
        nodes(rundir, 2, redis=[f"redis://127.0.0.1:{port}/0"], directories=[]) as (near, far),
        Numbered(far.folder) as numbered,
    ):
        count = numbered.send(*KINDS, rate=RATE / 8, seconds=5, folder=near.folder)
        for proxy in (far, near, far):
            time.sleep(0.5)
            start_again(proxy, signal.SIGTERM)
        for kind in KINDS:
            arrived = numbered.arrived(kind, count)
            assert (kind, arrived.lost, arrived.doubled) == (kind, [], []), arrived.counts


def test_nodes_that_speak_curve(rundir: Path) -> None:
    shared = rundir / "shared.cert"
    curve.save(curve.generate(), shared)
    with (
        nodes(rundir, 2, curve_cert=str(shared), unlisted=int(Role.USER)) as (near, far),
        Numbered(far.folder) as numbered,
    ):
        count = numbered.send(*KINDS, rate=RATE / 4, seconds=4, folder=near.folder)
        for _ in range(2):
            time.sleep(0.7)
            start_again(far, signal.SIGKILL)
        for kind in KINDS:
            arrived = numbered.arrived(kind, count)
            assert (kind, arrived.lost, arrived.doubled) == (kind, [], []), arrived.counts
            assert kind == "call" or arrived.counts.get("repeated"), f"no {kind} was at risk"


@pytest.mark.slow
def test_one_after_the_other_of_ten_nodes(rundir: Path) -> None:
    """A rolling restart under load, from a node of its own: calls, casts, fan-outs and notifications."""
    with nodes(rundir, 11) as (near, *far):
        servers = [Numbered(node.folder) for node in far]
        try:
            first = servers[0]
            first.servers = [server for each in servers for server in each.servers]
            count = first.send(*KINDS, rate=50, seconds=20, folder=near.folder)
            time.sleep(0.5)
            under_load = repeated = 0  # a busy machine takes longer for ten of them than the load lasts
            for node in far:
                start_again(node, signal.SIGTERM)
                under_load += not any("sent" in side.lines for side in first.senders.values())
            assert under_load >= 5
            for kind in KINDS:
                arrived = first.arrived(kind, count, copies=10 if kind == "fanout" else 1, patience_s=60)
                repeated += arrived.counts["repeated"]
                assert (kind, arrived.lost, arrived.doubled) == (kind, [], []), (
                    arrived.counts,
                    first.failures(),
                )
            assert repeated > 0, "nothing was at risk"
            assert Counter(what for what, _when in first.answers().values()) == {"ok": count}
        finally:
            for each in servers:
                each.__exit__()


def test_a_node_that_is_left_for_good_is_withdrawn_at_once(rundir: Path) -> None:
    """SIGINT is no restart: callers are told at once that nobody listens, not after a lease."""
    with nodes(rundir, 1) as (node,), Numbered(node.folder) as numbered:
        count = numbered.send("cast", rate=200, seconds=2)
        time.sleep(0.5)
        node.signal(signal.SIGINT)
        assert node.process is not None
        node.process.wait(20)
        arrived = numbered.arrived("cast", count)
        assert arrived.counts["nobody"] > 0
        until(lambda: not (node.folder / "cast.servers").exists(), 5, "the note of servers to be gone")


def test_what_waits_for_a_slow_server_is_given_to_it_before_the_proxy_ends(rundir: Path) -> None:
    """Far more than clients keep to send again waits in the proxy; as long as it moves, an end in order waits."""
    with nodes(rundir, 1) as (node,), Numbered(node.folder, inbox_msgs=16, take_s=0.0005) as numbered:
        count = numbered.send("cast", rate=1e6, seconds=0.008)
        until(lambda: "sent" in numbered.senders["cast"].lines, 20, "all of them to be on their way")
        start_again(node, signal.SIGTERM)
        arrived = numbered.arrived("cast", count, patience_s=60)
        assert (arrived.lost, arrived.doubled) == ([], []), arrived.counts
