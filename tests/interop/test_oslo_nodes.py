"""Nodes with applications of deployed oslo.messaging on them: what goes where (seed 003, Z2 to Z10, Z18 to Z21)."""

import os
import signal
import time
from pathlib import Path

import pytest

from broker.oslo.names import PORTS, Pipeline
from tests.live.oslo import Proxy, Sides, executions, nodes, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

ROOMS = ("call", "cast", "fanout", "notify")


def received(proxy: Proxy, room: str) -> int:
    """Messages that came in at the entries of a pipeline."""
    return sum(entry["in"] for entry in proxy.status(room)["entries"])


def inet_sockets(pid: int, *, listening: bool = False) -> list[str]:
    """The TCP sockets of a process: lines of the kernel's tables."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        link = os.readlink(f"/proc/{pid}/fd/{fd}")
        if link.startswith("socket:["):
            inodes.add(link[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (not listening or fields[3] == "0A"):
                found.append(line)
    return found


def ran(log: Path, what: str) -> int:
    return sum(1 for line in executions(log) if line.split()[2] == what)


# ---------------------------------------------------------------- which way messages take


def test_every_pattern_has_a_pipeline_of_its_own(rundir: Path, sides: Sides) -> None:
    """Z2, Z7, Z18, Z19: each message is seen at its own port, and at no other."""
    log = rundir / "log"
    with nodes(rundir, 1) as (node,):
        sides("server", node.url, topic="t", server="s", log=str(log))
        sides("listener", node.url, topic="n", log=str(log))
        client = sides("client", node.url)
        sending = {
            "call": lambda: client.result("call", topic="t", method="note", args={"n": 1}),
            "cast": lambda: client.result("cast", topic="t", method="note", args={"n": 2}),
            "fanout": lambda: client.result("cast", topic="t", fanout=True, method="note", args={"n": 3}),
            "notify": lambda: client.result("notify", topic="n", numbers=[4]),
        }
        for count, (room, send) in enumerate(sending.items(), 1):
            before = {each: received(node, each) for each in ROOMS}
            send()
            until(lambda: len(executions(log)) == count, what=room)  # noqa: B023
            grown = [each for each in ROOMS if received(node, each) != before[each]]
            assert grown == [room]


def test_messages_go_from_the_client_to_the_proxy_of_the_server(rundir: Path, sides: Sides) -> None:
    """Z4, Z14: nothing passes the client's own proxy, nothing the directory."""
    log = rundir / "log"
    with nodes(rundir, 2) as (near, far):
        sides("server", far.url, topic="t", server="s", log=str(log))
        sides("listener", far.url, topic="n", log=str(log))
        client = sides("client", near.url)
        told = client.result("call", topic="t", method="who")
        assert told[0] == "s"
        for number in range(5):
            client.result("call", topic="t", method="note", args={"n": number})
        client.result("cast", topic="t", method="note", numbers=list(range(5)))
        client.result("cast", topic="t", fanout=True, method="note", args={"n": 7})
        client.result("notify", topic="n", numbers=[1, 2, 3])
        until(lambda: len(executions(log)) == 5 + 5 + 1 + 3, what="all of them")
        assert [received(near, room) for room in ROOMS] == [0, 0, 0, 0]
        assert received(far, "cast") == 5
        assert received(far, "fanout") == 1
        assert received(far, "notify") == 3


def test_servers_have_no_tcp_and_clients_only_dial(rundir: Path, sides: Sides) -> None:
    """Z3, Z5: servers are shielded from the network, nobody binds a port but the proxy."""
    with nodes(rundir, 2) as (near, far):
        server = sides("server", far.url, topic="t", server="s")
        client = sides("client", near.url)
        client.result("call", topic="t", method="who")
        client.result("cast", topic="t", fanout=True, method="echo")
        assert inet_sockets(server.pid) == []
        assert inet_sockets(client.pid, listening=True) == []
        ports = {int(line.split()[2].split(":")[1], 16) for line in inet_sockets(client.pid)}
        assert ports <= set(PORTS.values())
        assert PORTS[Pipeline.CALL] in ports
        assert oct((near.folder).stat().st_mode & 0o777) == "0o700"


def test_a_fan_out_enters_a_node_once(rundir: Path, sides: Sides) -> None:
    """Z8, Z9, Z10: one copy for five servers as for one; none for a node without servers of the topic."""
    one, five = rundir / "one", rundir / "five"
    with nodes(rundir, 3) as (first, second, third):
        sides("server", first.url, topic="t", server="a", log=str(one))
        sides("server", second.url, topic="t", servers=[f"b{n}" for n in range(5)], log=str(five))
        sides("server", third.url, topic="other", server="c", log=str(rundir / "none"))
        client = sides("client", first.url)
        for number in range(10):
            client.result("cast", topic="t", fanout=True, method="note", args={"n": number})
        until(lambda: len(executions(one)) == 10 and len(executions(five)) == 50, what="all copies")
        assert [received(node, "fanout") for node in (first, second, third)] == [10, 10, 0]
        assert executions(rundir / "none") == []


def test_every_room_runs_alone_and_a_frozen_one_costs_only_its_own(rundir: Path, sides: Sides) -> None:
    """Z6: five processes on one node; whichever pipeline is stopped, the other three serve."""
    log, folder = rundir / "log", rundir / "n"
    rooms: dict[str, Proxy] = {}
    try:
        rooms["directory"] = Proxy(folder, run=["directory"])
        host = rooms["directory"].host
        for room in ROOMS:
            rooms[room] = Proxy(folder, host=host, run=[room])
        url = rooms["directory"].url
        sides("server", url, topic="t", server="s", log=str(log))
        sides("listener", url, topic="n", log=str(log))
        client = sides("client", url)
        sending = {
            "call": lambda n: client.result("call", topic="t", method="note", args={"n": n}),
            "cast": lambda n: client.result("cast", topic="t", method="note", args={"n": n}),
            "fanout": lambda n: client.result("cast", topic="t", fanout=True, method="note", args={"n": n}),
            "notify": lambda n: client.result("notify", topic="n", event=str(n)),
        }
        for number, send in enumerate(sending.values()):
            send(number)
        until(lambda: len(executions(log)) == 4, what="each of them once")
        for frozen in ROOMS:
            rooms[frozen].signal(signal.SIGSTOP)
            before = len(executions(log))
            for room, send in sending.items():
                if room != frozen:
                    send(99)
            until(lambda: len(executions(log)) == before + 3, what=f"the others without {frozen}")  # noqa: B023
            rooms[frozen].signal(signal.SIGCONT)
    finally:
        for proxy in rooms.values():
            proxy.kill()


def test_all_ports_can_be_others(rundir: Path, sides: Sides) -> None:
    """Z20: the four are configured; clients learn them from the directory."""
    log = rundir / "log"
    ports = {"call": 19501, "fanout": 19502, "notify": 19503, "cast": 19504}
    with nodes(rundir, 2, ports=ports) as (near, far):
        sides("server", far.url, topic="t", server="s", log=str(log))
        sides("listener", far.url, topic="n", log=str(log))
        client = sides("client", near.url)
        client.result("call", topic="t", method="note", args={"n": 1})
        client.result("cast", topic="t", method="note", args={"n": 2})
        client.result("cast", topic="t", fanout=True, method="note", args={"n": 3})
        client.result("notify", topic="n")
        until(lambda: len(executions(log)) == 4, what="each of them once")
        used = {int(line.split()[2].split(":")[1], 16) for line in inet_sockets(client.pid)}
        assert used == set(ports.values())


def test_tcp_keep_alive_runs_on_every_connection(rundir: Path, sides: Sides) -> None:
    """Z21: the kernel's keep-alive timer is armed at both ends of each connection."""
    with nodes(rundir, 2) as (near, far):
        sides("server", far.url, topic="t", server="s")
        sides("listener", far.url, topic="n")
        client = sides("client", near.url)
        client.result("call", topic="t", method="echo")
        client.result("cast", topic="t", method="echo")
        client.result("cast", topic="t", fanout=True, method="echo")
        client.result("notify", topic="n")

        def timers(pid: int) -> dict[int, str]:
            """Port of the proxy -> its timer; 02 is keep-alive, 01 a retransmission under way."""
            found = {}
            for line in inet_sockets(pid):
                fields = line.split()
                if fields[3] == "01":
                    ports = [int(fields[at].split(":")[1], 16) for at in (1, 2)]
                    found[next(port for port in ports if port < 10_000)] = fields[5].split(":")[0]
            return found

        armed = dict.fromkeys(PORTS.values(), "02")

        def all_armed(pid: int) -> bool:
            return {port: timer for port, timer in timers(pid).items() if port in armed} == armed

        for side in (client, far):
            until(lambda: all_armed(side.pid), what=f"keep-alive, saw {timers(side.pid)}")  # noqa: B023


# ---------------------------------------------------------------- what is left when a pipeline is missing


def test_casts_take_the_call_pipeline_where_a_node_has_no_cast(rundir: Path, sides: Sides) -> None:
    """Z18: PUSH/PULL is optional."""
    log = rundir / "log"
    with nodes(rundir, 1, run=["directory", "call", "fanout", "notify"]) as (node,):
        sides("server", node.url, topic="t", server="s", log=str(log))
        client = sides("client", node.url)
        client.result("cast", topic="t", method="note", numbers=[1, 2, 3])
        until(lambda: len(executions(log)) == 3, what="three casts")
        assert received(node, "call") >= 3


def test_a_call_to_nobody_times_out_and_mandatory_says_so_at_once(rundir: Path, sides: Sides) -> None:
    with nodes(rundir, 1) as (node,):
        client = sides("client", node.url)
        answer = client.ask("call", topic="nobody", method="echo", timeout=0.7)
        assert answer["error"] == "MessagingTimeout"
        assert 0.6 < answer["took"] < 5
        answer = client.ask("call", topic="nobody", method="echo", timeout=60, at_least_once=True)
        assert answer["error"] == "MessageUndeliverable"
        assert answer["took"] < 10
        answer = client.ask("cast", topic="nobody", method="echo", at_least_once=True)
        assert answer["error"] == "MessageUndeliverable"
        assert client.ask("cast", topic="nobody", method="echo")["took"] < 5


def test_a_server_that_comes_within_the_timeout_gets_the_call(rundir: Path, sides: Sides) -> None:
    with nodes(rundir, 1) as (node,):
        client = sides("client", node.url)
        client.tell(do="call", topic="late", method="who", timeout=30)
        time.sleep(0.5)
        sides("server", node.url, topic="late", server="s")
        assert client.next()["result"][0] == "s"


def test_round_robin_is_over_servers_not_nodes(rundir: Path, sides: Sides) -> None:
    log = rundir / "log"
    with nodes(rundir, 2) as (near, far):
        sides("server", near.url, topic="t", server="a", log=str(log))
        sides("server", far.url, topic="t", servers=["b", "c", "d@backend"], log=str(log))
        client = sides("client", near.url)
        until(
            lambda: len({client.result("call", topic="t", method="who")[0] for _ in range(8)}) == 4,
            what="four servers",
        )
        seen = [client.result("call", topic="t", method="who")[0] for _ in range(12)]
        assert sorted(seen) == sorted(["a", "b", "c", "d@backend"] * 3)
        assert seen[:4] == seen[4:8] == seen[8:]
        assert client.result("call", topic="t", server="d@backend", method="who")[0] == "d@backend"


def test_pools_share_and_exchanges_do_not_mix(rundir: Path, sides: Sides) -> None:
    logs = {name: rundir / name for name in ("none", "p1", "p2", "other")}
    with nodes(rundir, 2) as (near, far):
        sides("listener", near.url, topic="n", log=str(logs["none"]), name="x")
        sides("listener", near.url, topic="n", pool="p1", log=str(logs["p1"]), name="y")
        sides("listener", far.url, topic="n", pool="p1", log=str(logs["p1"]), name="z")
        sides("listener", far.url, topic="n", pool="p2", log=str(logs["p2"]), name="w", count=2)
        sides("listener", far.url, topic="n", exchange="another", log=str(logs["other"]))
        client = sides("client", near.url)
        time.sleep(0.5)  # what fixtures of applications allow for a listener to be known
        client.result("notify", topic="n", numbers=list(range(20)))
        for name in ("none", "p1", "p2"):
            until(lambda: len(executions(logs[name])) == 20, what=f"20 at {name}")  # noqa: B023
        assert len({line.split()[1] for line in executions(logs["p1"])}) == 2
        assert executions(logs["other"]) == []
        for name in ("none", "p1", "p2"):
            assert sorted(line.split(None, 4)[4] for line in executions(logs[name])) == sorted(
                f'{{"n": {n}}}' for n in range(20)
            )
