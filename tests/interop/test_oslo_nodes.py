"""Nodes with applications of deployed oslo.messaging on them: what goes where (Z2 to Z10, Z18 to Z21)."""

import os
import signal
import time
from pathlib import Path

import pytest

from broker.oslo.names import DIRECTORY_PORT, PORTS, Pipeline
from tests.live.oslo import Proxy, Sides, executions, nodes, until
from tests.live.zmtp import socket_type

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


def own_ports(sockets: list[str]) -> set[int]:
    """The local ports of lines of the kernel's tables."""
    return {int(line.split()[1].split(":")[1], 16) for line in sockets}


def ipc_sockets(pid: int, folder: Path) -> list[Path]:
    """The bound files of a node's folder behind the UNIX sockets that a process has accepted, one for each of them."""
    inodes = {
        link[8:-1]
        for fd in os.listdir(f"/proc/{pid}/fd")
        if (link := os.readlink(f"/proc/{pid}/fd/{fd}")).startswith("socket:[")
    }
    lines = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    return [
        Path(line[7])
        for line in lines
        if len(line) == 8 and line[5] == "03" and line[6] in inodes and Path(line[7]).parent == folder
    ]


def directory_bytes(proxy: Proxy) -> int:
    """What passed the sockets of a node's directory, in and out."""
    return sum(each["in_bytes"] + each["out_bytes"] for each in proxy.status("directory")["sockets"])


def numbers_of(log: Path) -> list[str]:
    """The number that each execution was sent with, for notifications the type of the event."""
    return [line.split()[3 if line.split()[2] == "info" else 2] for line in executions(log)]


# ---------------------------------------------------------------- which way messages take


def test_every_pattern_has_a_pipeline_of_its_own(rundir: Path, sides: Sides) -> None:
    """Z2, Z7: each message is seen at its own port, and at no other."""
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
            assert grown == [room], "Z2: a dedicated pipeline for each pattern"
            assert ("call" in grown) == (room == "call"), "Z7: CALL on ROUTER/DEALER, for calls only"


def test_what_listens_at_each_port(rundir: Path) -> None:
    """Z7, Z8, Z18, Z19: the types of the sockets, as they tell any peer that shakes hands with them."""
    with nodes(rundir, 1) as (node,):

        def at(room: str, peer: str) -> str:
            return socket_type((node.host, PORTS[Pipeline(room)]), peer)

        def towards_servers(file: str, peer: str) -> str:
            return socket_type(node.folder / file, peer)

        assert at("call", "DEALER") == "ROUTER", "Z7: CALL on ROUTER/DEALER, for calls only"
        fanout = at("fanout", "PUB"), towards_servers("fanout.pub", "SUB")
        assert fanout == ("XSUB", "XPUB"), "Z8: FANOUT: PUB to XSUB, XPUB to SUB"
        notify = at("notify", "PUB"), towards_servers("notify.ctl", "DEALER")
        assert notify == ("SUB", "ROUTER"), "Z19: NOTIFY on a PUB/SUB pipeline of its own"
        assert at("cast", "PUSH") == "PULL", "Z18: direct CAST on PUSH/PULL, optional"


def test_messages_go_from_the_client_to_the_proxy_of_the_server(rundir: Path, sides: Sides) -> None:
    """Z4, Z14: nothing passes the client's own proxy, nothing but leases the directory."""
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
        assert [received(near, room) for room in ROOMS] == [0, 0, 0, 0], (
            "Z4: the proxy belongs to the rpc-server's node"
        )
        entered = {room: received(far, room) for room in ROOMS}
        assert entered == {"call": 6, "cast": 5, "fanout": 1, "notify": 3}, (
            "Z4: the proxy belongs to the rpc-server's node"
        )
        before = [directory_bytes(node) for node in (near, far)]
        for _ in range(10):
            assert client.result("call", topic="t", method="echo", args={"value": "x" * 100_000})
        grown = [directory_bytes(node) - was for node, was in zip((near, far), before, strict=True)]
        assert max(grown) < 100_000, "Z14: messages never pass the directory"


def test_servers_have_no_tcp_and_clients_only_dial(rundir: Path, sides: Sides) -> None:
    """Z3, Z5: servers are shielded from the network, nobody binds a port but the proxy."""
    with nodes(rundir, 2) as (near, far):
        server = sides("server", far.url, topic="t", server="s")
        client = sides("client", near.url)
        client.result("call", topic="t", method="who")
        client.result("cast", topic="t", fanout=True, method="echo")
        assert inet_sockets(client.pid, listening=True) == [], "Z3: fixed ports, no random ones"
        bound = own_ports(inet_sockets(far.pid, listening=True))
        assert bound == {DIRECTORY_PORT, *PORTS.values()}, "Z3: fixed ports, no random ones"
        ports = {int(line.split()[2].split(":")[1], 16) for line in inet_sockets(client.pid)}
        assert PORTS[Pipeline.CALL] in ports
        assert ports <= set(PORTS.values()), "Z3: fixed ports, no random ones"
        assert inet_sockets(server.pid) == [], "Z5: proxy and rpc-server speak IPC"
        assert ipc_sockets(far.pid, far.folder), "Z5: proxy and rpc-server speak IPC"
        assert oct(far.folder.stat().st_mode & 0o777) == "0o700", "Z5: proxy and rpc-server speak IPC"


def test_a_fan_out_enters_a_node_once(rundir: Path, sides: Sides) -> None:
    """Z9, Z10: one copy for five servers as for one; none for a node without servers of the topic."""
    one, five = rundir / "one", rundir / "five"
    with nodes(rundir, 3) as (first, second, third):
        sides("server", first.url, topic="t", server="a", log=str(one))
        sides("server", second.url, topic="t", servers=[f"b{n}" for n in range(5)], log=str(five))
        sides("server", third.url, topic="other", server="c", log=str(rundir / "none"))
        client = sides("client", first.url)
        for number in range(10):
            client.result("cast", topic="t", fanout=True, method="note", args={"n": number})
        until(lambda: len(executions(one)) == 10 and len(executions(five)) == 50, what="all copies")
        entered = [received(node, "fanout") for node in (first, second, third)]
        assert entered[:2] == [10, 10], "Z9: one publish, one copy for a node"
        assert entered[2] == 0, "Z10: subscriptions by topic"
        assert executions(rundir / "none") == [], "Z10: subscriptions by topic"


def test_every_room_runs_alone_and_a_frozen_one_costs_only_its_own(rundir: Path, sides: Sides) -> None:
    """Z6, Z19: five processes on one node; whichever pipeline is stopped, the other three serve."""
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
            served = [room for room in ROOMS if room != frozen]
            before = len(executions(log))
            for number, room in enumerate(served, 90):
                sending[room](number)
            until(lambda: len(executions(log)) == before + 3, what=f"the others without {frozen}")  # noqa: B023
            numbers = dict(zip(served, ("90", "91", "92"), strict=True))
            ran = {room for room, number in numbers.items() if number in numbers_of(log)[before:]}
            assert ran == set(served), "Z6: a separate proxy for each pipeline"
            publishing = {"fanout", "notify"} - {frozen}
            assert publishing <= ran, "Z19: NOTIFY on a PUB/SUB pipeline of its own"
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
        assert used == set(ports.values()), "Z20: ports 9501 to 9504, configurable"


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

        def timers(pid: int) -> set[tuple[int, str]]:
            """Port of the proxy and timer of each connection; 02 is keep-alive, 01 a retransmission under way."""
            established = [line.split() for line in inet_sockets(pid) if line.split()[3] == "01"]
            return {
                (min(int(fields[at].split(":")[1], 16) for at in (1, 2)), fields[5].split(":")[0])
                for fields in established
            }

        def quiet(pid: int, ports: set[int]) -> set[tuple[int, str]]:
            """The timers, once there is a connection at each port; nothing while something is under way."""
            found = timers(pid)
            ready = {port for port, _ in found} == ports and "01" not in {timer for _, timer in found}
            return found if ready else set()

        pipelines = set(PORTS.values())
        for side, ports in ((client, pipelines), (far, pipelines | {DIRECTORY_PORT})):
            found = until(lambda: quiet(side.pid, ports), what="quiet connections at all ports")  # noqa: B023
            assert {timer for _, timer in found} == {"02"}, "Z21: TCP keep-alive on every TCP socket"


# ---------------------------------------------------------------- what is left when a pipeline is missing


def test_casts_take_the_call_pipeline_where_a_node_has_no_cast(rundir: Path, sides: Sides) -> None:
    """Z18: PUSH/PULL is optional."""
    log = rundir / "log"
    with nodes(rundir, 1, run=["directory", "call", "fanout", "notify"]) as (node,):
        sides("server", node.url, topic="t", server="s", log=str(log))
        client = sides("client", node.url)
        client.result("cast", topic="t", method="note", numbers=[1, 2, 3])
        until(lambda: len(executions(log)) == 3, what="three casts")
        assert received(node, "call") >= 3, "Z18: direct CAST on PUSH/PULL, optional"


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
