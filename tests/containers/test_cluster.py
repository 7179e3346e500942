"""A cluster of containers, up for real: calls across it, faults in it, nothing left of it.

One cluster of seven brokers with all wings serves all tests; each leaves it whole.
"""

import json
import subprocess
import time
import urllib.request

import pytest

from broker.errors import ConfigError, HeadgateError
from gateway.cluster import compose, state
from gateway.cluster.containers import PROJECT, Containers, compose_command
from gateway.cluster.shape import Shape
from tests.containers import images
from tests.containers.images import podman

SIZE = 7
STRANGER = "hg-stranger"
SETTLE_S = 60.0
SERVER = """\
import json, sys
from broker.oslo.contract import Address, Settings
from broker.oslo.node import client_ipc_dir
from broker.oslo.client import open_session
port = open_session(Settings(ipc_dir=client_ipc_dir()))
intake = port.listen(Address("openstack", "stock", "shelf"))
print("ready", flush=True)
for _ in range(2):
    item = intake.get(60.0)
    asked = json.loads(item.body)["message"]
    item.reply(json.dumps({"result": {"method": asked["method"], "args": asked["args"]}, "failure": None}).encode())
    item.acknowledge()
port.close()
"""


class Cluster:
    """The engine, and what is asked inside."""

    def __init__(self, engine: Containers, figures: dict) -> None:
        self.engine = engine
        self.figures = figures

    def container(self, service: str) -> str:
        return self.engine._id(service)

    def ask(self, service: str, *words: str, check: bool = True) -> str:
        return podman("exec", self.container(service), "headgate", *words, check=check)

    def tree(self) -> dict[int, str]:
        """Rank -> what rank 0 and those below it tell."""
        told = json.loads(self.ask("broker-0", "status", "--json"))["tree"]
        found: dict[int, str] = {}

        def walk(node):
            found[node["rank"]] = node["status"]
            for child in node.get("children", ()):
                walk(child)

        walk(told)
        return found

    def until(self, expected, what: str) -> float:
        """Seconds until ``expected`` of the tree is true."""
        began = time.monotonic()
        seen: object = None
        while time.monotonic() - began < SETTLE_S:
            try:
                seen = self.tree()
                if expected(seen):
                    took = time.monotonic() - began
                    self.figures[what] = round(took, 1)
                    return took
            except (AssertionError, HeadgateError, ValueError) as error:
                seen = error
            time.sleep(0.3)
        raise AssertionError(f"{what}: not within {SETTLE_S:.0f} s, last seen {seen}")

    def whole(self, what: str) -> float:
        return self.until(lambda tree: tree == dict.fromkeys(range(SIZE), "full"), what)


@pytest.fixture(scope="module")
def cluster(image, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clusters") / "hgtest"
    shape = Shape("hgtest", SIZE, nfp=True, oslo=True, image=image)
    state.save(folder, state.new(shape, "podman"))
    engine = Containers("podman", folder)
    engine.down()
    podman("volume", "rm", "--force", STRANGER, check=False)
    figures: dict[str, float] = {}
    try:
        began = time.monotonic()
        engine.up(shape, folder / state.KEYS)
        figures["up"] = round(time.monotonic() - began, 1)
        podman("volume", "create", "--label", f"{PROJECT}=hgtest", STRANGER)
        yield Cluster(engine, figures)
    finally:
        print("seconds:", json.dumps(figures))
        engine.down()
    with pytest.raises(ConfigError, match=f"a volume .{STRANGER}. of another project hgtest"):
        engine.up(shape, folder / state.KEYS)
    podman("volume", "rm", STRANGER)  # of another project of this name: still there
    assert engine.status() == []
    for kind in ("network", "volume", "pod"):
        assert "hgtest" not in podman(kind, "ls"), f"{kind} is left"


def test_every_member_runs(cluster):
    members = {member.name: member.state for member in cluster.engine.status()}
    others = {"gateway", "nfp", "redis", *compose.WORKERS, *compose.PROXIES}
    assert set(members) == {f"rank-{rank}" for rank in range(SIZE)} | others
    assert set(members.values()) == {"running"}


def test_a_call_over_the_tree_from_the_web(cluster):
    access = cluster.engine.access()
    assert access.token.startswith("hgt_")
    for rank in (0, 3, 6):
        request = urllib.request.Request(
            f"{access.url}/v1/rpc/broker.ping?nodeid={rank}",
            data=b'{"seq": 1}',
            headers={"Authorization": f"Bearer {access.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["rank"] == rank


def test_the_dashboard_is_served(cluster):
    with urllib.request.urlopen(cluster.engine.access().url, timeout=10) as answer:
        assert b"<html" in answer.read().lower()


def test_a_job_of_nfp_by_topic(cluster):
    asked = json.dumps({"kwargs": {"who": "a container"}, "target": "all", "timeout": 20})
    deadline = time.monotonic() + SETTLE_S
    while True:
        told = cluster.ask("broker-5", "rpc", "nfp.demo.hello", asked, check=False)
        results = json.loads(told)["results"] if told else {}
        if len(results) == 2:
            break
        assert time.monotonic() < deadline, told
        time.sleep(0.5)
    assert sorted(str(result) for result in results.values())
    assert "hello a container, from worker-1" in told
    assert "hello a container, from worker-2" in told


def test_a_call_of_oslo_from_one_node_to_the_other(cluster):
    server = podman("exec", "--detach", cluster.container("oslo-2"), "python", "-c", SERVER)
    assert server
    words = (
        "oslo",
        "call",
        "stock",
        "reserve",
        "item=bolt",
        "count=4",
        "--wait",
        "--timeout",
        "20",
        "--curve-cert",  # the other node lets in whoever has the proxies' own
        "/keys/oslo.cert",
        "--json",
    )
    assert json.loads(cluster.ask("oslo-1", *words)) == {
        "method": "reserve",
        "args": {"item": "bolt", "count": 4},
    }
    told = cluster.ask("broker-6", "rpc", "oslo.openstack.stock.count", '{"args": {"n": 2}}')
    assert json.loads(told)["result"] == {"method": "count", "args": {"n": 2}}


def test_a_killed_rank_comes_back(cluster):
    cluster.engine.kill(3, stay=True)
    assert {member.state for member in cluster.engine.status() if member.rank == 3} == {"exited"}
    cluster.until(lambda tree: tree[3] in ("lost", "offline"), "kill 3: seen as away")
    cluster.engine.start(3)
    cluster.whole("start 3: whole")
    cluster.engine.kill(3)
    cluster.whole("kill 3 and start again: whole")


def test_the_root_is_killed_and_everybody_joins_again(cluster):
    cluster.engine.kill(0)
    cluster.whole("kill 0: whole")
    told = json.loads(cluster.ask("broker-6", "ping", "--count", "1", "--json", "0").splitlines()[0])
    assert told["rank"] == 0
    test_a_call_over_the_tree_from_the_web(cluster)


def test_a_paused_rank_is_seen_and_goes_on(cluster):
    cluster.engine.pause(2)
    assert {member.state for member in cluster.engine.status() if member.rank == 2} == {"paused"}
    cluster.until(lambda tree: tree[0] != "full", "pause 2: seen")
    cluster.engine.resume(2)
    cluster.whole("resume 2: whole")


def test_a_partition_takes_the_subtree_away_until_it_is_healed(cluster):
    cluster.engine.partition([1])
    assert {member.rank for member in cluster.engine.status() if member.state == "partitioned"} == {1}
    cluster.until(lambda tree: tree[0] != "full" and tree.get(1) != "full", "partition 1: seen")
    assert cluster.tree()[2] == "full"
    cluster.engine.heal()
    cluster.whole("heal: whole")


def test_keys_are_not_readable_from_outside_their_user(cluster):
    listing = podman(
        "exec",
        cluster.container("broker-1"),
        "python",
        "-c",
        "import os; print(oct(os.stat('/keys').st_mode))",
    )
    assert listing.strip().endswith("700")
    assert (
        podman(
            "exec",
            "--user",
            "23456",
            cluster.container("broker-1"),
            "python",
            "-c",
            "open('/keys/rank-1.cert')",
            check=False,
        )
        == ""
    )


def test_brokers_that_start_before_their_keys_are_made_come_up_once_they_are(image, tmp_path):
    folder = tmp_path / "hgorder"
    shape = Shape("hgorder", 3, gateway=False, image=image)
    state.save(folder, state.new(shape, "podman"))
    engine = Containers("podman", folder)
    words = [
        *compose_command("podman"),
        "--project-name",
        shape.name,
        "--file",
        str(engine._write(shape)),
        "up",
        "--detach",
    ]
    environ = images.environ() | {"HEADGATE_IMAGE": image}
    try:
        for services in (["broker-2", "broker-1", "broker-0"], ["init"]):
            subprocess.run([*words, *services], env=environ, check=True, capture_output=True, timeout=120)
            if services != ["init"]:
                time.sleep(3)
                found = engine.status()
                assert [member.rank for member in found] == [0, 1, 2]
                assert all(member.restarts for member in found), "they left, and were started again"
        engine._wait_joined(shape, SETTLE_S)
    finally:
        engine.down()
