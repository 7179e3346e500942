"""Proxies, servers and nodes that die, freeze or are cut off under load: calls time out or succeed, none runs twice."""

import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OPTIONAL
from tests.live.oslo import Proxy, Side, Sides, counted, executions, nodes, until
from tests.netlab import NetLab

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

LOAD_S = 8.0


def under_load(
    client: Side, fault: Callable[[], Any], *, seconds: float = LOAD_S, **words: Any
) -> dict[str, list[int]]:
    """Call numbers in four threads, let ``fault`` happen after a second; what became of each number."""
    client.tell(do="load", topic="t", during=seconds, threads=4, timeout=3, **words)
    time.sleep(1)
    fault()
    return client.next(90)["result"]


def runs(log: Path) -> Counter[str]:
    """How often each number ran."""
    return Counter(line.split()[2] for line in executions(log))


def check(done: dict[str, list[int]], log: Path) -> None:
    """Whatever succeeded ran once, whatever timed out at most once, and nothing else happened."""
    assert not done["error"], done.get("texts", [])[:3]
    ran = runs(log)
    assert max(ran.values()) == 1, ran.most_common(3)
    assert all(ran[str(n)] == 1 for n in done["ok"])


def test_the_proxy_is_killed_and_started_again(rundir: Path, sides: Sides) -> None:
    log = rundir / "log"
    with nodes(rundir, 2) as (near, far):
        sides("server", far.url, topic="t", server="s", log=str(log))
        client = sides("client", near.url)
        client.result("call", topic="t", method="who")

        def fault() -> None:
            far.kill()
            time.sleep(0.5)
            far.start()

        done = under_load(client, fault)
        check(done, log)
        assert len(done["ok"]) > 100
        answer = client.result("call", topic="t", method="who", timeout=20)
        assert answer[0] == "s", "Z26: several nodes, high availability"
        client.result("cast", topic="t", method="note", args={"n": "cast"})
        client.result("cast", topic="t", fanout=True, method="note", args={"n": "all"})
        until(lambda: runs(log)["cast"] == 1 and runs(log)["all"] == 1, 20, "cast and fan-out afterwards")


def test_the_proxy_freezes_and_goes_on(rundir: Path, sides: Sides) -> None:
    log = rundir / "log"
    with nodes(rundir, 2) as (near, far):
        sides("server", far.url, topic="t", server="s", log=str(log))
        client = sides("client", near.url)
        client.result("call", topic="t", method="who")

        def fault() -> None:
            far.signal(signal.SIGSTOP)
            time.sleep(2)
            far.signal(signal.SIGCONT)

        done = under_load(client, fault)
        check(done, log)
        assert client.result("call", topic="t", method="who", timeout=20)[0] == "s"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_of_two_servers_is_lost(rundir: Path, sides: Sides, number: int) -> None:
    """The other one gets everything soon: at once after a kill, after a lease when it is frozen."""
    logs = [rundir / "a", rundir / "b"]
    with nodes(rundir, 1) as (node,):
        sides("server", node.url, topic="t", server="a", log=str(logs[0]))
        second = sides("server", node.url, topic="t", server="b", log=str(logs[1]))
        client = sides("client", node.url)
        until(
            lambda: len({client.result("call", topic="t", method="who")[0] for _ in range(4)}) == 2,
            what="both",
        )
        done = under_load(client, lambda: second.signal(number), seconds=12)
        ran = runs(logs[0]) + runs(logs[1])
        assert not done["error"], done.get("texts", [])[:3]
        assert max(ran.values()) == 1
        assert all(ran[str(n)] == 1 for n in done["ok"])
        began = time.monotonic()
        assert {client.result("call", topic="t", method="who")[0] for _ in range(6)} == {"a"}
        assert time.monotonic() - began < 10
        assert counted(node.status("call"), "listeners") == 1
        second.kill()


def test_a_lost_node_is_left_out(rundir: Path, sides: Sides) -> None:
    """Servers on two nodes; the proxy and the server of one are killed together, as when a machine dies."""
    logs = [rundir / "a", rundir / "b"]
    with nodes(rundir, 3) as (near, one, two):
        sides("server", one.url, topic="t", server="a", log=str(logs[0]))
        lost = sides("server", two.url, topic="t", server="b", log=str(logs[1]))
        client = sides("client", near.url)
        until(
            lambda: len({client.result("call", topic="t", method="who")[0] for _ in range(4)}) == 2,
            what="both",
        )

        def fault() -> None:
            two.kill()
            lost.kill()

        done = under_load(client, fault, seconds=10)
        ran = runs(logs[0]) + runs(logs[1])
        assert not done["error"], done.get("texts", [])[:3]
        assert max(ran.values()) == 1
        assert all(ran[str(n)] == 1 for n in done["ok"]), "Z26: several nodes, high availability"
        answered = {client.result("call", topic="t", method="who")[0] for _ in range(6)}
        assert answered == {"a"}, "Z26: several nodes, high availability"


def test_nothing_hangs_when_the_proxy_is_gone(rundir: Path, sides: Sides) -> None:
    """Casts that cannot leave, cleanup, stop of a server: all end within their bounds."""
    with nodes(rundir, 1) as (node,):
        server = sides("server", node.url, topic="t", server="s")
        client = sides("client", node.url)
        client.result("call", topic="t", method="who")
        node.signal(signal.SIGSTOP)
        assert client.ask("call", topic="t", method="who", timeout=2)["error"] == "MessagingTimeout"
        client.ask("cast", topic="t", method="note", numbers=list(range(100)), retry=0)
        assert client.result("cleanup") < 10
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        server.process.wait(20)
        assert time.monotonic() - began < 20
        node.signal(signal.SIGCONT)


def test_a_server_is_stopped_in_the_middle_of_casts(rundir: Path, sides: Sides) -> None:
    """In order: it answers what it has, the others get the rest, nothing is lost."""
    log = rundir / "log"
    with nodes(rundir, 1) as (node,):
        sides("server", node.url, topic="t", server="a", log=str(log))
        second = sides("server", node.url, topic="t", server="b", log=str(log))
        client = sides("client", node.url)
        until(
            lambda: len({client.result("call", topic="t", method="who")[0] for _ in range(4)}) == 2,
            what="both",
        )
        client.tell(do="load", topic="t", during=4, threads=2, cast=True, pause=0.002)
        time.sleep(1.5)
        assert second.close(20) == 0
        done = client.next(60)["result"]
        until(lambda: sum(runs(log).values()) >= len(done["ok"]), 20, f"all {len(done['ok'])} casts")
        assert not done["error"]
        assert runs(log) == Counter(str(n) for n in done["ok"])


# ---------------------------------------------------------------- more than a server takes

SMALL = "&zmq_inbox_messages=500&zmq_outbox_messages=500"
"""So that some thousand messages are a flood."""
FLOOD_S = 2.0
FLOOD = 4000
SLOW_S = 0.2
"""For which an endpoint keeps its thread: 320 messages a second by 64 threads, fewer than any machine sends."""


def test_a_flood_of_casts_is_slowed_to_what_its_server_takes(rundir: Path, sides: Sides) -> None:
    log = rundir / "log"
    with nodes(rundir, 2, queue_msgs=500) as (near, far):
        sides("server", far.url + SMALL, topic="t", server="s", log=str(log), pause=SLOW_S)
        client = sides("client", near.url + SMALL)
        client.result("call", topic="t", method="who")
        assert client.ask("cast", 90, topic="t", method="note", numbers=list(range(FLOOD)))["result"]
        until(lambda: sum(runs(log).values()) >= FLOOD, 60, "all casts")
        assert runs(log) == Counter(map(str, range(FLOOD)))
        counts = far.status("cast")["counts"]
        assert counted(far.status("cast"), "pauses") >= 1
        assert "full" not in counts


def test_a_frozen_server_costs_only_its_own_casts(rundir: Path, sides: Sides) -> None:
    log = rundir / "log"
    with nodes(rundir, 1, queue_msgs=500) as (node,):
        sides("server", node.url + SMALL, topic="t", server="s", log=str(log))
        frozen = sides("server", node.url + SMALL, topic="frozen", server="f")
        client, other = (sides("client", node.url + SMALL) for _ in range(2))
        for topic in ("t", "frozen"):
            assert client.result("call", topic=topic, method="who")
        frozen.signal(signal.SIGSTOP)
        other.tell(do="load", topic="frozen", during=2 * FLOOD_S, cast=True)
        until(lambda: counted(node.status("cast"), "full"), 30, "more than its queue takes")
        done = client.result("load", topic="t", during=FLOOD_S, cast=True)
        lost = other.next(60)["result"]
        assert not done["error"]
        assert not lost["error"]
        until(lambda: sum(runs(log).values()) >= len(done["ok"]), 60, f"all {len(done['ok'])} casts")
        assert runs(log) == Counter(str(n) for n in done["ok"])
        assert 0 < node.status("cast")["counts"]["full"] < len(lost["ok"])
        frozen.kill()


def test_a_flood_of_notifications_is_slowed_to_what_its_listener_takes(rundir: Path, sides: Sides) -> None:
    log = rundir / "log"
    with nodes(rundir, 1, queue_msgs=500) as (node,):
        sides("listener", node.url + SMALL, topic="n", log=str(log), pause=SLOW_S)
        sender = sides("client", node.url + SMALL)
        assert sender.ask("notify", 90, topic="n", numbers=list(range(FLOOD)))["result"]
        until(lambda: len(executions(log)) >= FLOOD, 60, "all notifications")
        payloads = Counter(line.split("event ")[1] for line in executions(log))
        assert payloads == Counter(f'{{"n": {n}}}' for n in range(FLOOD))
        counts = node.status("notify")["counts"]
        assert counts["lost_full"] == 0
        assert counts["pauses"] >= 1


# ---------------------------------------------------------------- a network that is cut


def lab_of(count: int) -> NetLab:
    try:
        return NetLab(count).__enter__()
    except (OSError, PermissionError, RuntimeError, subprocess.CalledProcessError) as error:
        pytest.skip(f"{OPTIONAL} no network namespaces here: {error}")


def joined(side: Side, host: str) -> list[str]:
    """The established TCP connections between where a process lives and an address: lines of the kernel's table."""
    far = socket.inet_aton(host)[::-1].hex().upper()
    lines = Path(f"/proc/{side.pid}/net/tcp").read_text().splitlines()[1:]
    return [line for line in lines if line.split()[2].startswith(f"{far}:") and line.split()[3] == "01"]


def test_a_node_behind_a_silent_cut(rundir: Path, sides: Sides) -> None:
    """No RST, no FIN: calls time out, fan-outs and notifications tell what they could not reach; all works after it."""
    lab = lab_of(2)
    log = rundir / "log"
    started: list[Proxy] = []
    try:
        addresses = [f"tcp://{lab.ip(n)}:9500" for n in range(2)]
        for n in range(2):
            started.append(
                Proxy(
                    rundir / f"n{n}",
                    host=lab.ip(n),
                    directories=addresses,
                    insecure=True,
                    keepalive=[True, 1, 2, 1],
                    prefix=tuple(lab.inside(n)),
                )
            )
        near, far = started
        sides("server", far.url, topic="t", server="s", log=str(log), prefix=tuple(lab.inside(1)))
        sides("listener", far.url, topic="n", log=str(log), prefix=tuple(lab.inside(1)))
        quick = "&zmq_tcp_keepalive_idle=1&zmq_tcp_keepalive_intvl=1&zmq_tcp_keepalive_cnt=2"
        client = sides("client", near.url + quick, prefix=tuple(lab.inside(0)))
        assert client.result("call", topic="t", method="who")[0] == "s"
        client.result("cast", topic="t", fanout=True, method="note", args={"n": "before"})
        assert joined(client, far.host), "the table that is read later is the right one"
        until(lambda: runs(log)["before"] == 1, what="a fan-out before")
        lab.cut(0, 1)
        answer = client.ask("call", topic="t", method="note", args={"n": 1}, timeout=2)
        assert answer["error"] == "MessagingTimeout"
        time.sleep(8)  # the lease and keep-alive have ended
        assert not joined(client, far.host), "Z21: TCP keep-alive on every TCP socket"
        answer = client.ask("call", topic="t", method="note", args={"n": 2}, timeout=2)
        assert answer["error"] == "MessagingTimeout"
        assert client.ask("cast", topic="t", fanout=True, method="note", args={"n": 3}, retry=0)["took"] < 10
        assert client.ask("notify", topic="n", numbers=[4], retry=0)["took"] < 10
        lab.heal()
        assert client.result("call", topic="t", method="who", timeout=40)[0] == "s"
        client.result("cast", topic="t", fanout=True, method="note", args={"n": "after"})
        until(lambda: runs(log)["after"] == 1, 20, "a fan-out after it")
        assert max(runs(log).values()) == 1, "Z26: several nodes, high availability"
    finally:
        for proxy in started:
            proxy.kill()
        lab.close()
