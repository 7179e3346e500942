"""Services as they are deployed: workers that fork, a second driver beside ours, CURVE (Z22, Z28, Z29)."""

import signal
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from broker.transport import curve
from tests.live.oslo import OLDER, Sides, counted, executions, new_host, nodes, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


@pytest.mark.parametrize(
    ("manager", "green"),
    [
        ("oslo.service", True),
        pytest.param("oslo.service", False, marks=pytest.mark.between),
        ("cotyledon", False),
    ],
)
def test_workers_that_fork_from_a_used_transport(
    rundir: Path, sides: Sides, manager: str, green: bool
) -> None:
    """Z28: the parent has sent a cast before it forks; each worker has a server and sockets of its own."""
    log = rundir / "log"
    with nodes(rundir, 1) as (node,):
        service = sides(
            "forking", node.url, topic="t", server="w", workers=3, manager=manager, green=green, log=str(log)
        )
        until(lambda: sum("started" in line for line in executions(log)) == 3, 30, "three workers")
        client = sides("client", node.url)
        until(
            lambda: len({client.result("call", topic="t", method="who")[1] for _ in range(6)}) == 3,
            what="all workers",
        )
        seen = [client.result("call", topic="t", method="who")[1] for _ in range(9)]
        assert sorted(seen.count(pid) for pid in set(seen)) == [3, 3, 3], "Z28: runs with real services"
        assert service.pid not in seen
        client.result("cast", topic="t", fanout=True, method="note", args={"n": "all"})
        until(lambda: sum(line.endswith(" all") for line in executions(log)) == 3, what="the fan-out at each")
        assert service.close(20) in (0, 1, -signal.SIGTERM)


def test_rpc_here_notifications_elsewhere(rundir: Path, sides: Sides) -> None:
    """Z29: RPC by zmq, notifications by the rabbit driver (over kombu's memory transport), in one process."""
    with nodes(rundir, 1) as (node,):
        sides("server", node.url, topic="t", server="s")
        client = sides("client", node.url, notify_url="kombu+memory:////")
        assert client.result("call", topic="t", method="who")[0] == "s", "Z29: beside other drivers"
        client.result("listen", topic="n")
        client.result("notify", topic="n", numbers=[1, 2])
        heard = until(lambda: len(client.result("heard")) == 2 and client.result("heard"), what="two")
        assert sorted(heard) == [1, 2], "Z29: beside other drivers"
        assert client.result("call", topic="t", method="who")[0] == "s", "Z29: beside other drivers"
        entered = {
            room: sum(each["in"] for each in node.status(room)["entries"]) for room in ("call", "notify")
        }
        assert entered == {"call": 2, "notify": 0}, "Z29: beside other drivers"


def test_curve_on_all_ports(rundir: Path, sides: Sides) -> None:
    """Z22: known keys only; plaintext and unknown keys get nothing, and say so."""
    log = rundir / "log"
    server, known, stranger = curve.generate(), curve.generate(), curve.generate()
    for name, certificate in (("proxy", server), ("known", known), ("stranger", stranger)):
        curve.save(certificate, rundir / f"{name}.cert")
    keys = [{"key": server.public_key, "rolemask": 1}, {"key": known.public_key, "name": "app"}]
    secure = {"curve_cert": str(rundir / "proxy.cert"), "keys": keys, "unlisted": 0}
    with nodes(rundir, 2, **secure) as (near, far):
        sides("server", far.url, topic="t", server="s", log=str(log))
        sides("listener", far.url, topic="n", log=str(log))
        option = f"&zmq_curve_cert={rundir}/known.cert"
        client = sides("client", near.url + option)
        client.result("call", topic="t", method="note", args={"n": 1})
        client.result("cast", topic="t", method="note", args={"n": 2})
        client.result("cast", topic="t", fanout=True, method="note", args={"n": 3})
        client.result("notify", topic="n")
        until(lambda: len(executions(log)) == 4, what="each of them once")
        for url in (near.url, f"{near.url}&zmq_curve_cert={rundir}/stranger.cert"):
            refused = sides("client", url)
            answer = refused.ask("call", topic="t", method="note", args={"n": 9}, timeout=2)
            assert answer["error"] == "MessagingTimeout", "Z22: secure messages: CURVE"
            assert "does not let our CURVE key" in answer["text"], answer
            assert "[[oslo.keys]]" in answer["text"]
            refused.ask("cast", topic="t", method="note", args={"n": 9}, retry=0)
            refused.ask("cast", topic="t", fanout=True, method="note", args={"n": 9}, retry=0)
            refused.ask("notify", topic="n", numbers=[9], retry=0)
        time.sleep(1)
        assert len(executions(log)) == 4, "Z22: secure messages: CURVE"
        key = quote(server.public_key, safe="")
        remote = f"zmq://{far.host}?rpc_zmq_ipc_dir={rundir}/nowhere{option}&zmq_curve_directory_key={key}"
        away = sides("client", remote)
        assert away.result("call", topic="t", method="who")[0] == "s"


def test_a_certificate_closes_the_ports_by_itself(rundir: Path, sides: Sides) -> None:
    """Nothing is listed: whoever has the nodes' certificate comes in, other keys and processes without one do not."""
    log = rundir / "log"
    shared = curve.generate()
    curve.save(shared, rundir / "proxy.cert")
    with nodes(rundir, 2, curve_cert=str(rundir / "proxy.cert")) as (near, far):
        sides("server", far.url, topic="t", server="s", log=str(log))
        sides("listener", far.url, topic="n", log=str(log))
        anonymous = sides("client", near.url)
        answer = anonymous.ask("call", topic="t", method="note", args={"n": 9}, timeout=2)
        assert answer["error"] == "MessagingTimeout", answer
        assert "does not let our CURVE key" in answer["text"], answer
        anonymous.ask("cast", topic="t", method="note", args={"n": 9}, retry=0)
        anonymous.ask("cast", topic="t", fanout=True, method="note", args={"n": 9}, retry=0)
        anonymous.ask("notify", topic="n", numbers=[9], retry=0)
        key = quote(shared.public_key, safe="")
        url = f"zmq://{far.host}?rpc_zmq_ipc_dir={rundir}/nowhere&zmq_curve_directory_key={key}"
        outside = sides("client", url)
        assert outside.ask("call", topic="t", method="who", timeout=2)["error"] == "MessagingTimeout"
        assert not executions(log)
        client = sides("client", f"{near.url}&zmq_curve_cert={rundir}/proxy.cert")
        client.result("call", topic="t", method="note", args={"n": 1})
        client.result("cast", topic="t", fanout=True, method="note", args={"n": 2})
        client.result("notify", topic="n")
        until(lambda: len(executions(log)) == 3, what="each of them once")


def test_compressed_bodies_take_less_room_and_are_read_by_everybody(rundir: Path, sides: Sides) -> None:
    """A client that compresses, a server that does not, and the reverse."""
    text = "word " * 40_000
    with nodes(rundir, 1) as (node,):
        brief = f"{node.url}&zmq_compression=zlib"
        sides("server", node.url, topic="t", server="plain")
        sides("server", brief, topic="t", server="brief")
        # the requests, and the reply of the server that does not compress
        for url, most in ((node.url, 3), (brief, 1)):
            client, before = sides("client", url), counted(node.status("call"), "in_bytes")
            for server in ("plain", "brief"):
                answer = client.result("call", topic="t", server=server, method="echo", args={"value": text})
                assert answer == text
            taken = counted(node.status("call"), "in_bytes") - before
            assert taken < (most + 0.1) * len(text)
            assert taken > most * len(text)


@pytest.mark.parametrize(
    "versions", [("", OLDER[0]), pytest.param(("", *OLDER), marks=pytest.mark.between)], ids=["ends", "all"]
)
def test_versions_side_by_side(rundir: Path, sides: Sides, versions: tuple[str, ...]) -> None:
    """All speak with all: the protocol is ours, not theirs."""
    log = rundir / "log"
    with nodes(rundir, 1) as (node,):
        for version in versions:
            sides("server", node.url, topic="t", server=f"s{version}", version=version, log=str(log))
        for version in (OLDER[0], ""):
            sides("listener", node.url, topic="n", pool=f"p{version}", version=version, log=str(log))
        for version in versions:
            client = sides("client", node.url, version=version)
            for server in versions:
                assert (
                    client.result(
                        "call", topic="t", server=f"s{server}", method="echo", args={"value": version}
                    )
                    == version
                )
            client.result("cast", topic="t", fanout=True, method="note", args={"n": "all"})
            client.result("notify", topic="n")
        count = len(versions)
        until(lambda: len(executions(log)) == count * count * 2 + count * 2, what="each at each")


def test_a_client_of_no_node_at_all(rundir: Path, sides: Sides) -> None:
    """A static list of hosts is enough where no proxy runs beside the client."""
    with nodes(rundir, 2) as (one, two):
        sides("server", two.url, topic="t", server="s")
        client = sides("client", f"zmq://{one.host},{two.host}?rpc_zmq_ipc_dir={rundir}/nowhere")
        assert client.result("call", topic="t", method="who")[0] == "s"
        hostless = sides("client", f"zmq://{new_host()},{two.host}:9500?rpc_zmq_ipc_dir={rundir}/nowhere")
        assert hostless.result("call", topic="t", method="who")[0] == "s"
