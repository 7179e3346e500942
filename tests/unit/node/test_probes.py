"""Live, ready and where it stands: over the metrics listener and to a service manager."""

import asyncio
import json
import socket

import pytest

from broker import settings, supervision
from broker.errors import ConfigError
from broker.node.assembly import Node
from broker.node.probes import StatusReporter
from tests.unit.node.desk import run

TWO = """
[[hosts]]
rank = 0
address = "ipc://{0}/t0"
[[hosts]]
rank = 1
address = "ipc://{0}/t1"
"""


def node_of(rundir, rank=0, more="", hosts=""):
    text = f'[broker]\nrundir = "{rundir}/r{rank}"\nmetrics_listen = "unix://{rundir}/m{rank}"\n{more}{hosts}'
    return Node(settings.loads(text).at_rank(rank))


async def get(rundir, path, rank=0, verb="GET"):
    reader, writer = await asyncio.open_unix_connection(f"{rundir}/m{rank}")
    writer.write(f"{verb} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    status, *fields = head.decode().split("\r\n")
    return int(status.split()[1]), dict(field.split(": ", 1) for field in fields), body


def test_a_tree_of_one_is_live_and_ready(rundir):
    async def script():
        node = node_of(rundir)
        assert not node.probes.is_ready()
        assert node.probes.standing() == "rank 0 of 1, state load-builtins, tree full"
        await node.start()
        for path in ("/livez", "/readyz", "/readyz?verbose"):
            status, fields, body = await get(rundir, path)
            assert (status, json.loads(body)) == (200, {"status": "ok"})
            assert (fields["Content-Type"], fields["Cache-Control"]) == ("application/json", "no-store")
        assert (await get(rundir, "/metrics"))[0] == 200
        for path, verb in (("/", "GET"), ("/livez/", "GET"), ("/livez", "POST"), ("livez", "GET")):
            assert (await get(rundir, path, verb=verb))[0] == 404
        await node.stop()

    run(script())


def test_without_its_parent_a_rank_lives_and_is_not_ready(rundir):
    async def script():
        child = node_of(rundir, 1, hosts=TWO.format(rundir))
        starting = asyncio.get_running_loop().create_task(child.start())
        async with asyncio.timeout(10):
            while child.lifecycle.state != "join":
                await asyncio.sleep(0.01)
        assert (await get(rundir, "/livez", 1))[0] == 200
        status, _, body = await get(rundir, "/readyz", 1)
        reason = "rank 1 of 2, state join, parent rank 0 away"
        assert (status, json.loads(body)) == (503, {"status": "not joined", "reason": reason})
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await child.stop()

    run(script())


def test_rank_0_is_ready_when_everybody_has_been_there(rundir):
    async def script():
        root, child = (node_of(rundir, rank, hosts=TWO.format(rundir)) for rank in (0, 1))
        await root.start()
        status, _, body = await get(rundir, "/readyz")
        assert (status, json.loads(body)["reason"]) == (503, "rank 0 of 2, state quorum, tree partial")
        await child.start()
        async with asyncio.timeout(10):
            while not child.probes.is_ready():
                await asyncio.sleep(0.01)
        assert (await get(rundir, "/readyz"))[0] == (await get(rundir, "/readyz", 1))[0] == 200
        assert child.probes.standing() == "rank 1 of 2, state run, parent rank 0 joined"
        await child.stop()
        await root.stop()

    run(script())


def test_a_leaving_broker_is_not_ready(rundir):
    async def script():
        node = node_of(rundir)
        await node.start()
        node.lifecycle.enter("cleanup")
        status, _, body = await get(rundir, "/readyz")
        assert (status, json.loads(body)["status"]) == (503, "leaving")
        assert (await get(rundir, "/livez"))[0] == 200
        await node.stop()

    run(script())


def test_off_loopback_only_where_that_was_said():
    text = '[broker]\nmetrics_listen = "http://0.0.0.0:9464"\n'
    with pytest.raises(ConfigError, match="metrics_insecure"):
        settings.loads(text)
    assert settings.loads(text + "metrics_insecure = true\n").broker.metrics_insecure


# ---------------------------------------------------------------- the service manager


@pytest.fixture
def told(rundir, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(rundir / "n"))
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(rundir / "n"))

        def take():
            heard = []
            while True:
                try:
                    heard.append(sock.recv(4096).decode().split("\n"))
                except BlockingIOError:
                    return heard

        yield take


def test_a_child_is_ready_for_its_manager_once_its_doors_are_open(rundir, told):
    async def script():
        node = node_of(rundir, 1, hosts=TWO.format(rundir))
        herald = StatusReporter(node.probes, node.context)
        node.state_follower.begin()
        assert told() == [["READY=1", "STATUS=rank 1 of 2, state join, parent rank 0 away"]]
        node.lifecycle.enter("init")
        node.lifecycle.enter("join")
        herald.started()
        assert told() == [
            ["STATUS=rank 1 of 2, state init, parent rank 0 away"],
            ["STATUS=rank 1 of 2, state join, parent rank 0 away"],
        ]

    run(script())


def test_rank_0_is_ready_for_its_manager_once_all_has_started(rundir, told):
    async def script():
        node = node_of(rundir)
        herald = StatusReporter(node.probes, node.context)
        node.state_follower.begin()
        node.state_follower.joined()
        assert not [lines for lines in told() if "READY=1" in lines]
        herald.started()
        assert told() == [["READY=1", "STATUS=rank 0 of 1, state run, tree full"]]
        node.context.tree_changed()  # nothing that the line shows
        assert told() == []

    run(script())


def test_how_a_broker_stands_is_not_lost_while_the_managers_queue_is_full(rundir, told):
    async def script():
        node = node_of(rundir)
        StatusReporter(node.probes, node.context)
        while supervision.notify("STATUS=busy"):
            pass
        node.state_follower.begin()
        node.state_follower.joined()
        assert [lines for lines in told() if lines != ["STATUS=busy"]] == []
        await asyncio.sleep(2 * supervision.RETRY_S)
        assert told() == [["STATUS=rank 0 of 1, state run, tree full"]]

    run(script())
